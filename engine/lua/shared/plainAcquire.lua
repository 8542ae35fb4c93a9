-- The plain path of acquire: nobody holds the key, nobody waits for it. Most calls need no more, and pay neither for
-- reading the whole state nor for the functions that know about lines and losses. It does what grant() in hold.lua
-- does, and answers in one text, which Redis sends and its client reads faster than a list. Whatever is out of the ordinary goes on behind this, with nothing written.
do
  local fence, hasFloor, plain = 0, false, true
  for i = 1, #stored, 2 do
    local field = stored[i]
    if field == 'fence' then
      fence = tonumber(stored[i + 1])
    elseif field == 'floor' then
      hasFloor = true
    elseif field ~= 'lost' then
      plain = false
    end
  end
  -- Numbers as texts: formatting them is what costs here.
  local ttl = ARGV[2]
  local us = time[1] .. string.sub('00000' .. time[2], -6)
  local ms = string.sub(us, 1, -4)
  local latest = ARGV[3]
  -- Who lets things settle first (ARGV[11]) goes to the line.
  if plain and not ARGV[11] and (latest == '0' or tonumber(ms) <= tonumber(latest)) and rcall('HLEN', WAIT) == 0 then
    local token = us
    if fence >= tonumber(us) then token = string.format('%.0f', fence + 1) end
    local ends = string.format('%.0f', ms + ttl)
    -- NX: whatever is under K, of ours or not and of any type, is a matter for what follows.
    if rcall('SET', K, token, 'NX', 'PXAT', ends) then
      local record = ends .. ' ' .. token .. ' ' .. ttl .. ' ' .. ms .. ' ' .. ms .. ' ' .. ARGV[4] .. ' 0 ' .. ARGV[5]
      if hasFloor then
        rcall('HSET', LOCK, 'fence', token, '@' .. ARGV[1], record)
      else
        rcall('HSET', LOCK, 'fence', token, '@' .. ARGV[1], record, 'floor', token)
      end
      rcall('PEXPIRE', LOCK, ttl + RETENTION)
      if KEYS[5] then
        rcall('HSET', KEYS[5], ARGV[1], K)
        if rcall('PTTL', KEYS[5]) < tonumber(ttl) then rcall('PEXPIRE', KEYS[5], ttl) end
      end
      return 'acquired ' .. ms .. ' ' .. token
    end
  end
end
