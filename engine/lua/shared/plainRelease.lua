-- The plain path of release: the only holder gives back all of it, nothing has run out or drifted, and nobody waits.
-- What it is for, see plainAcquire.lua. Whatever is out of the ordinary goes on behind this, with nothing written.
do
  local K, LOCK, hold, rcall = KEYS[1], KEYS[2], ARGV[3], redis.call
  local field = '@' .. ARGV[1]
  local record = rcall('HGET', LOCK, field)
  -- Three fields: this holder, "fence" and "floor".
  if record and rcall('HLEN', LOCK) == 3 and rcall('ZCARD', KEYS[3]) == 0 then
    local ends, token, ticket, holds = string.match(record, '^(%d+) (%d+) %d+ %d+ %d+ %d+ %d+ (%d+) (%S+)')
    local time = rcall('TIME')
    local ms = time[1] .. string.sub('00000' .. time[2], -6, -4)
    local all = hold == '-' or holds == '-' or holds == hold
    if all and ticket == '0' and tonumber(ends) > tonumber(ms) and redis.pcall('GET', K) == token then
      rcall('DEL', K)
      rcall('HDEL', LOCK, field)
      if KEYS[5] then rcall('HDEL', KEYS[5], ARGV[1]) end
      return { 'released', ms, '0', 0 }
    end
  end
end
