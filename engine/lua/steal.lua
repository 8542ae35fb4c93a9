-- Takes a lock over from a holder that is gone, if it still is in the state that was asked for. Exactly one
-- of several contenders succeeds: the first changes what the others compare with. Passes the line by.
--
-- KEYS  as in shared/read.lua
-- ARGV  1-3 as in shared/hold.lua, then
--   4 id  5 ttl  6 limit  7 renew  8 holds  9 owner
--  10 latest  ms of Redis' clock after which the caller has given up; 0 = none
--  11 if      stale | noTtl | fencingToken | any
--  12 value   stale: ms without heartbeat (-1 = three missed announced renewals); fencingToken: the token; else 0
--  13 youngest  `any` does not rob a grant younger than so many ms
--
-- Returns { 'stolen', now, fence, ends, ttl, record of the robbed, or 'foreign' } | { 'notStolen', … } (shared/answer.lua)
--       | { 'late', now } | { 'wrongType', type }
-- @include read
-- @include hold
-- @include line
-- @include answer
local me = {
  id = ARGV[4], ttl = tonumber(ARGV[5]), limit = tonumber(ARGV[6]), renew = tonumber(ARGV[7]),
  holds = ARGV[8], owner = ARGV[9],
}
local latest, condition, argument, youngest = tonumber(ARGV[10]), ARGV[11], tonumber(ARGV[12]), tonumber(ARGV[13])

if gone[me.id .. ':' .. ARGV[10]] or (latest > 0 and nowMs > latest) then return { 'late', nowMs } end
settle()

local function stolen(m, robbed)
  index(m.id, m.ttl)
  return { 'stolen', nowMs, m.fence, m.ends, m.ttl, robbed }
end

-- The same call again, its answer having been lost.
if byId[me.id] then return stolen(byId[me.id], '') end

if foreign then
  if condition == 'any' or (condition == 'noTtl' and rcall('PTTL', K) == -1) then
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
  if living() == 0 then return report('notStolen', 'free') end
  local reasons = { stale = 'notStale', noTtl = 'notForeign', fencingToken = 'otherHolder', any = 'tooYoung' }
  return report('notStolen', reasons[condition])
end

return stolen(takeOver(victim, me))
