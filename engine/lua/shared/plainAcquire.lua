-- The plain path of acquire: nobody holds the key, nobody waits for it. Most calls need no more, and pay neither for
-- reading the whole state nor for the functions that know about lines and losses. It does what grant() in hold.lua
-- does. Whatever is out of the ordinary goes on behind this, with nothing written.
do
  local K, LOCK, id, ttl, rcall = KEYS[1], KEYS[2], ARGV[4], ARGV[5], redis.call
  local time = rcall('TIME')
  local us = time[1] * 1000000 + time[2]
  local ms = math.floor(us / 1000)
  local latest = tonumber(ARGV[12])

  local fence, hasFloor = 0, false
  local plain = latest == 0 or ms <= latest
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

  if plain and rcall('ZCARD', KEYS[3]) == 0 and not redis.pcall('GET', K) then
    local token, ends = math.max(fence + 1, us), ms + ttl
    local record = string.format(
      '%.0f %.0f %s %.0f %.0f %s %s 0 %s %s', ends, token, ttl, ms, ms, ARGV[7], ARGV[6], ARGV[8], ARGV[9]
    )
    rcall('SET', K, token, 'PXAT', ends)
    if hasFloor then
      rcall('HSET', LOCK, 'fence', token, '@' .. id, record)
    else
      rcall('HSET', LOCK, 'fence', token, '@' .. id, record, 'floor', token - 1)
    end
    rcall('PEXPIRE', LOCK, ttl + ARGV[1])
    if KEYS[5] then
      rcall('HSET', KEYS[5], id, K)
      if rcall('PTTL', KEYS[5]) < tonumber(ttl) then rcall('PEXPIRE', KEYS[5], ttl) end
    end
    return { 'acquired', ms, token, ends, tonumber(ttl), 0 }
  end
end
