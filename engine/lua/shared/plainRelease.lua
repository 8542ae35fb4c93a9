-- The plain path of release: the only holder gives back all of it, nothing has run out or drifted, and nobody waits.
-- What it is for, see plainAcquire.lua. Whatever is out of the ordinary goes on behind this, with nothing written.
do
  local field = '@' .. ARGV[1]
  local record, plain = nil, true
  for i = 1, #stored, 2 do
    local name = stored[i]
    if name == field then
      record = stored[i + 1]
    elseif name ~= 'fence' and name ~= 'floor' and name ~= 'lost' then
      plain = false
    end
  end
  if record and plain and rcall('HLEN', WAIT) == 0 then
    local ends, token, holds = string.match(record, '^(%d+) (%d+) %d+ %d+ %d+ %d+ %d+ 0 (%S+)')
    local hold = ARGV[3]
    local all = hold == '-' or holds == '-' or holds == hold
    local ms = time[1] .. string.sub('00000' .. time[2], -6, -4)
    if token and all and tonumber(ends) > tonumber(ms) and rpcall('GET', K) == token then
      rcall('DEL', K)
      rcall('HDEL', LOCK, field)
      if KEYS[5] then rcall('HDEL', KEYS[5], ARGV[1]) end
      return { 'released', ms, '0', 0 }
    end
  end
end
