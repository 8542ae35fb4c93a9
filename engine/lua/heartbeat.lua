-- Renews a lease, and claims one that was handed over; one that ran out is revived while nobody has entered in its place.
--
-- KEYS  as in shared/open.lua
-- ARGV
--   1 id  2 ttl (0 = as before)  3 hold to add ('-' = none)  4 fence of the lease (0 = unknown)
--   5 interval at which it will be renewed from now on, 0 = none is announced ('-' = as before)
--
-- Returns, on the plain path as one text, { 'alive', now, fence, ends, ttl, '1' if revived, K's TTL in ms if a stranger shortened it, else '' }
--       | { 'lost', now, reason, at, fence of who has it, owner of who has it }
--       | { 'wrongType', type }
-- @include open
-- @include only
-- @include plainRenew
-- @include read
-- @include hold
-- @include line
local id, ttl, hold, token = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

local before = longest(0)
settle()
local m = byId[id]
-- A newer lease of the same id is not the one that is meant, which is over; others may have held the lock between the two. It
-- is left alone: it may be a hand-over whose message is on its way, and who reads that must be able to rely on it.
if m and token > 0 and m.fence ~= token then m = nil end
if not m then
  if room() then promote(nil) end
  unindex(id)
  local why = fate(id, token) or { 'notHeld', nowMs, '0', '' }
  return { 'lost', nowMs, unpack(why) }
end

local revived = m.ends <= nowMs and '1' or '0'
local shortened = ''
if value then
  local left = rcall('PTTL', K)
  -- A second of tolerance: the chain's own EXPIRE counts in seconds.
  if left >= 0 and before > nowMs and left < before - nowMs - 1000 then shortened = left end
end

claim(m)
if ttl > 0 then m.ttl = ttl end
addHold(m, hold)
if ARGV[5] ~= '-' then m.renew = tonumber(ARGV[5]) end
renew(m, m.ttl)
index(id, m.ttl)
return { 'alive', nowMs, m.fence, m.ends, m.ttl, revived, shortened }
