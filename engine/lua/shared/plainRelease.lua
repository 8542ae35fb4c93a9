-- The plain paths of release: the only holder gives back all of it, nothing has run out or drifted, and nobody waits; or
-- the first in line wants a lock for itself alone, and is there to be told. They do what coverRest(), and promote() and
-- grant(), do. What they are for, see plainAcquire.lua. Whatever is out of the ordinary goes on behind this, with nothing
-- written.
do
  local record = onlyRecord(ARGV[1])
  local ends, token, holds
  if record then ends, token, holds = string.match(record, '^(%d+) (%d+) %d+ %d+ %d+ %d+ %d+ 0 (%S+)') end
  local hold = ARGV[3]
  local us = time[1] .. string.sub('00000' .. time[2], -6)
  local ms = string.sub(us, 1, -4)
  if token and ARGV[4] == '' and not ARGV[5] and (ARGV[2] == '0' or ARGV[2] == token) and (hold == '-' or holds == '-' or holds == hold) and tonumber(ends) > tonumber(ms) and rpcall('GET', K) == token then
    local queued = rcall('HLEN', WAIT)
    local handed = false
    if queued == 0 then
      rcall('DEL', K)
      rcall('HDEL', LOCK, '@' .. ARGV[1])
    else
      local line = rcall('ZRANGE', LINE, 0, 1, 'WITHSCORES')
      local first, ticket, second = line[1], line[2], line[3]
      local asks = first and rcall('HMGET', WAIT, first, second or first) or {}
      local channel, deadline, ttl, renew, whose
      if asks[1] then channel, deadline, ttl, renew, whose = string.match(asks[1], '^(%S+) (%d+) (%d+) 1 (%d+) (.*)$') end
      if channel and channel ~= '-' and tonumber(deadline) >= tonumber(ms) then
        local after = string.match(asks[2] or '', '^(%S+)')
        if after ~= channel and string.sub(after or '-', 1, 1) == 'r' then rpcall('PUBLISH', after, 'look ' .. K) end
        local its = us
        if tonumber(token) >= tonumber(us) then its = string.format('%.0f', token + 1) end
        local message = 'grant ' .. first .. ' ' .. its .. ' ' .. ms .. ' ' .. (queued - 1) .. ' ' .. K
        if string.sub(channel, 1, 5) == 'poll:' or rpcall('PUBLISH', channel, message) ~= 0 or not COUNTS then
          handed = true
          rcall('HDEL', LOCK, '@' .. ARGV[1])
          rcall('ZREM', LINE, first)
          local till = string.format('%.0f', ms + CLAIM)
          rcall('SET', K, its, 'PXAT', till)
          rcall('HSET', LOCK, 'fence', its, '@' .. first,
            till .. ' ' .. its .. ' ' .. ttl .. ' ' .. ms .. ' ' .. ms .. ' ' .. renew .. ' 1 ' .. ticket .. ' ' .. whose)
          rcall('PEXPIRE', LOCK, CLAIM + RETENTION)
        end
      end
    end
    if queued == 0 or handed then
      if KEYS[5] then rcall('HDEL', KEYS[5], ARGV[1]) end
      return 'released ' .. ms .. ' 0 0'
    end
  end
end
