-- The plain path of acquire: nobody holds the key, nobody waits for it. Most calls need no more, and pay neither for
-- reading the whole state nor for the functions that know about lines and losses. It does what grant() in hold.lua
-- does. Whatever is out of the ordinary goes on behind this, with nothing written.
do
  local K, LOCK, ttl, rcall = KEYS[1], KEYS[2], ARGV[2], redis.call
  local time = rcall('TIME')
  -- As texts: formatting numbers is what costs here.
  local us = time[1] .. string.sub('00000' .. time[2], -6)
  local ms = string.sub(us, 1, -4)

  local fence, hasFloor = 0, false
  local plain = ARGV[3] == '0' or tonumber(ms) <= tonumber(ARGV[3])
  local state = rcall('HGETALL', LOCK)
  for i = 1, #state, 2 do
    if state[i] == 'fence' then
      fence = tonumber(state[i + 1])
    elseif state[i] == 'floor' then
      hasFloor = true
    elseif state[i] ~= 'lost' then
      plain = false
    end
  end

  local token = us
  if fence >= tonumber(us) then token = string.format('%.0f', fence + 1) end
  local ends = string.format('%.0f', ms + ttl)
  -- NX: whatever is under K, of ours or not and of any type, is a matter for what follows.
  if plain and rcall('ZCARD', KEYS[3]) == 0 and rcall('SET', K, token, 'NX', 'PXAT', ends) then
    local record = ends .. ' ' .. token .. ' ' .. ttl .. ' ' .. ms .. ' ' .. ms .. ' ' .. ARGV[4] .. ' 0 ' .. ARGV[5]
    if hasFloor then
      rcall('HSET', LOCK, 'fence', token, '@' .. ARGV[1], record)
    else
      rcall('HSET', LOCK, 'fence', token, '@' .. ARGV[1], record, 'floor', token - 1)
    end
    rcall('PEXPIRE', LOCK, ttl + RETENTION)
    if KEYS[5] then
      rcall('HSET', KEYS[5], ARGV[1], K)
      if rcall('PTTL', KEYS[5]) < tonumber(ttl) then rcall('PEXPIRE', KEYS[5], ttl) end
    end
    return { 'acquired', ms, token }
  end
end
