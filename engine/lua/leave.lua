-- Ends a wait, in one step: nobody is told "timed out" and owns the lock.
--
-- KEYS  as in shared/read.lua
-- ARGV  1-3 as in shared/hold.lua, then
--   4 id
--   5 '1': keep the lock if it was granted meanwhile; '0': give it back
--   6 ms for which a late acquire of this id is refused; 0 = no mark
--
-- Returns { 'left', now, '1' if a grant was given back, length of the line }
--       | { 'yours', now, fence, ends, ttl, length of the line } | { 'wrongType', type }
-- @include read
-- @include hold
-- @include line
local id, take, mark = ARGV[4], ARGV[5] == '1', tonumber(ARGV[6])

local queued = rcall('ZCARD', LINE)
settle()
local m = byId[id]
if m and take then
  if m.ticket > 0 then
    m.ticket = 0
    rcall('HDEL', WAIT, id)
  end
  renew(m, m.ttl)
  return { 'yours', int(nowMs), int(m.fence), int(m.ends), int(m.ttl), rcall('ZCARD', LINE) }
end

if m then remove(m) end
outOfLine(id)
if KEYS[5] then rcall('HDEL', KEYS[5], id) end
local before = fence
if queued > 0 then promote(nil) end
if m and fence == before then coverRest() end
if mark > 0 then
  -- Out of memory may refuse this one; the latest time that acquire carries still holds.
  rpcall('HSET', LOCK, '!' .. id, int(nowMs + mark))
  if rcall('PTTL', LOCK) < mark then rcall('PEXPIRE', LOCK, int(mark)) end
end
return { 'left', int(nowMs), m and '1' or '0', rcall('ZCARD', LINE) }
