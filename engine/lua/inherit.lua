-- Goes on with a lease as a newer attempt of the one that took it: the same id with a new fencing token, so that the older
-- attempt, should it still run, is told that it lost.
--
-- KEYS  as in shared/open.lua
-- ARGV
--   1 id  2 ttl
--   3 latest  ms of Redis' clock after which the caller has given up; 0 = none
--   4 terms   'renew limit' of which the limit stays as it was  5 whose  'holds owner' of which the holds stay
--   6 fence of the lease as the caller knows it (0 = unknown), to say why it is gone
--
-- Returns { 'inherited', now, fence, ends, ttl }
--       | { 'lost', now, reason, at, fence of who has it, owner of who has it }
--       | { 'late', now } | { 'wrongType', type }
-- @include open
-- @include read
-- @include hold
-- @include line
local me = asked(ARGV[1], ARGV[2], ARGV[4], ARGV[5])
local latest = tonumber(ARGV[3])

if gone[me.id .. ':' .. ARGV[3]] or (latest > 0 and nowMs > latest) then return { 'late', nowMs } end
settle()
local m = byId[me.id]
if not m then
  if room() then promote(nil) end
  unindex(me.id)
  local why = fate(me.id, tonumber(ARGV[6])) or { 'notHeld', nowMs, '0', '' }
  return { 'lost', nowMs, unpack(why) }
end
local token = nextToken()
m.ends = nowMs + me.ttl
-- The first write, as in grant(): refused, nothing has changed.
rcall('SET', K, token, 'PXAT', longest(m.ends))
remember(m, 'takenOver', int(token), me.owner)
fence, value = token, token
claim(m)
m.fence, m.ttl, m.beat, m.renew, m.owner = token, me.ttl, nowMs, me.renew, me.owner
rcall('HSET', LOCK, 'fence', token)
store(m)
keepCompanion()
index(me.id, me.ttl)
return { 'inherited', nowMs, m.fence, m.ends, m.ttl }
