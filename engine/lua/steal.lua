-- Takes a lock over from a holder that is gone, if it still is in the state that was asked for. Exactly one
-- of several contenders succeeds: the first changes what the others compare with. Passes the line by.
--
-- KEYS  as in shared/open.lua
-- ARGV
--   1 id  2 ttl
--   3 latest  ms of Redis' clock after which the caller has given up; 0 = none
--   4 terms   'renew limit'  5 whose  'holds owner'
--   6 if      stale | noTtl | fencingToken | any
--   7 value   stale: ms without heartbeat (-1 = three missed announced renewals); fencingToken: the token; else 0
--   8 youngest  `any` does not rob a grant younger than so many ms
--   9 'check' = only say whether it would be stolen; 'also' = take it also where it is free. Both only for one of several.
--
-- Returns { 'stolen', now, fence, ends, ttl, record of the robbed, or 'foreign' } | { 'notStolen', … } (shared/answer.lua)
--       | { 'would', now } | { 'late', now } | { 'wrongType', type }
-- @include open
-- @include read
-- @include hold
-- @include line
-- @include answer
local me = asked(ARGV[1], ARGV[2], ARGV[4], ARGV[5])
local latest, condition, argument, youngest = tonumber(ARGV[3]), ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])

if gone[me.id .. ':' .. ARGV[3]] or (latest > 0 and nowMs > latest) then return { 'late', nowMs } end
settle()

local check = ARGV[9] == 'check'
local function stolen(m, robbed)
  index(m.id, m.ttl)
  return { 'stolen', nowMs, m.fence, m.ends, m.ttl, robbed }
end

-- The same call again, its answer having been lost.
if byId[me.id] and not check then return stolen(byId[me.id], '') end

if foreign then
  if condition == 'any' or (condition == 'noTtl' and rcall('PTTL', K) == -1) then
    if check then return { 'would', nowMs } end
    return stolen(grant(me, me.ttl, 0), 'foreign')
  end
  return report('notStolen', condition == 'noTtl' and 'hasTtl' or 'foreign')
end

local function matches(m)
  local silence = nowMs - m.beat
  if condition == 'stale' then
    if argument >= 0 then return silence > argument end
    return m.renew > 0 and silence > 3 * m.renew
  elseif condition == 'fencingToken' then
    return m.fence == argument
  elseif condition == 'any' then
    return nowMs - m.since >= youngest
  end
  return false
end

-- A lock that is just being handed over is nobody's to rob: its waiter goes back to the line by itself.
local victim
for _, m in ipairs(members) do
  if m.ends > nowMs and m.ticket == 0 and matches(m) and (not victim or m.beat < victim.beat) then victim = m end
end
if not victim then
  if occupancy(1) == 0 then
    if not ARGV[9] then return report('notStolen', 'free') end
    if check then return { 'would', nowMs } end
    return stolen(grant(me, me.ttl, 0), '')
  end
  local reasons = { stale = 'notStale', noTtl = 'notForeign', fencingToken = 'otherHolder', any = 'tooYoung' }
  return report('notStolen', reasons[condition])
end

-- Two permits would have to be taken for this one.
if not fitsInstead(victim, me.limit) then return report('notStolen', 'otherLimit') end

if check then return { 'would', nowMs } end
return stolen(takeOver(victim, me))
