-- Ends a wait, in one step: nobody is told "timed out" and owns the lock.
--
-- KEYS  as in shared/read.lua
-- ARGV
--   1 id
--   2 what becomes of a lock that it was granted: 'take' = kept · 'back' = given back · 'unclaimed' = given back
--     only if its process has not claimed it yet
--   3 'back' leaves a lease alone that was granted before this ms of Redis' clock; 0 = none
--   4 the latest time that an acquire of this id carried which was given up: it is refused, should it still
--     arrive; 0 = no such call
--   5 ms for which it is refused
--
-- Returns { 'left', now, '1' if a grant was given back, length of the line }
--       | { 'yours', now, fence, ends, ttl, length of the line } | { 'wrongType', type }
-- @include read
-- @include hold
-- @include line
local id, mode, since, life = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[5])

local queued = rcall('ZCARD', LINE)
settle()
local m = byId[id]
if m and mode == 'take' then
  claim(m)
  renew(m, m.ttl)
  return { 'yours', nowMs, m.fence, m.ends, m.ttl, rcall('ZCARD', LINE) }
end

local keeps = m and m.ticket == 0 and (mode == 'unclaimed' or m.since < since)
if m and not keeps then remove(m) end
outOfLine(id)
if KEYS[5] and not keeps then rcall('HDEL', KEYS[5], id) end
local before = fence
if queued > 0 or returned then promote(nil) end
if m and not keeps and fence == before then coverRest() end
if ARGV[4] ~= '0' then
  -- Out of memory may refuse this one; the latest time that acquire carries still holds.
  rpcall('HSET', LOCK, '!' .. id .. ':' .. ARGV[4], nowMs + life)
  if rcall('PTTL', LOCK) < life then rcall('PEXPIRE', LOCK, int(life)) end
end
return { 'left', nowMs, (m and not keeps) and '1' or '0', rcall('ZCARD', LINE) }
