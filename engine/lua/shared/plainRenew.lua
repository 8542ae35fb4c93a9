-- The plain path of a heartbeat, and of claiming a lock that was handed over: one holder, whose lease has not run out,
-- and nothing has happened to the key. It does what claim() and renew() do. Whatever is out of the ordinary goes on
-- behind this, with nothing written.
do
  local record = onlyRecord(ARGV[1])
  if record then
    local ends, token, before, since, terms, ticket, holds, owner =
      string.match(record, '^(%d+) (%d+) (%d+) (%d+) %d+ (%d+ %d+) (%d+) (%S+) (.*)$')
    local ms = time[1] .. string.sub('00000' .. time[2], -6, -4)
    local left = ends - ms
    local known = (ARGV[3] == '-' or ARGV[3] == holds) and (ARGV[4] == '0' or ARGV[4] == token)
    -- A second of tolerance, see heartbeat.lua.
    if known and left > 0 and rpcall('GET', K) == token and rcall('PTTL', K) >= left - 1000 then
      local ttl = ARGV[2] == '0' and before or ARGV[2]
      if ARGV[5] ~= '-' then terms = string.gsub(terms, '^%d+', ARGV[5]) end
      local till = string.format('%.0f', ms + ttl)
      -- PEXPIREAT comes first, see renew() in hold.lua.
      rcall('PEXPIREAT', K, till)
      rcall('HSET', LOCK, '@' .. ARGV[1],
        till .. ' ' .. token .. ' ' .. ttl .. ' ' .. since .. ' ' .. ms .. ' ' .. terms .. ' 0 ' .. holds .. ' ' .. owner)
      rcall('PEXPIRE', LOCK, ttl + RETENTION)
      if ticket ~= '0' then rcall('HDEL', WAIT, ARGV[1]) end
      if KEYS[5] then
        rcall('HSET', KEYS[5], ARGV[1], K)
        if rcall('PTTL', KEYS[5]) < tonumber(ttl) then rcall('PEXPIRE', KEYS[5], ttl) end
      end
      return 'alive ' .. ms .. ' ' .. token .. ' ' .. till .. ' ' .. ttl .. ' 0 '
    end
  end
end
