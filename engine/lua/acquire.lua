-- Takes a permit, claims one that was handed over, or joins the line. Safe to repeat with the same id.
--
-- KEYS  as in shared/read.lua
-- ARGV
--   1 id  2 ttl
--   3 latest     ms of Redis' clock after which the caller has given up; 0 = none
--   4 terms      'renew limit'  5 whose  'holds owner': as they stand in the record
--   6 wait       ms to stay in line; -1 = do not join
--   7 channel    where this process listens ('-' when it does not wait)
--   8 arrived    µs of the first arrival, to return to the old place; 0 = now
--   9 stealAfter take over from a holder not heard of for so many ms; -1 = never
--
-- Returns { 'acquired', now, fence } (granted on the plain path: from now, as asked, with nobody in line)
--       | { 'acquired', now, fence, ends, ttl, length of the line[, record of the robbed or ''[, '1' if this id held it already
--           (then the hold is added, the lease renewed, and its TTL never shortened)]] }
--       | { 'waiting', now, ticket, position, length of the line, ms to the next change }
--       | { 'busy' … } (shared/answer.lua) | { 'late', now } | { 'wrongType', type }
-- @include plainAcquire
-- @include read
-- @include hold
-- @include line
-- @include answer
local me = asked(ARGV[1], ARGV[2], ARGV[4], ARGV[5])
me.channel = ARGV[7]
local latest, wait, stealAfter = tonumber(ARGV[3]), tonumber(ARGV[6]), tonumber(ARGV[9])

-- The caller gave up on this very call: granting now would give the lock to nobody.
if gone[me.id .. ':' .. ARGV[3]] or (latest > 0 and nowMs > latest) then return { 'late', nowMs } end

local queued = rcall('ZCARD', LINE)
local function acquired(m, robbed, again)
  index(m.id, m.ttl)
  return { 'acquired', nowMs, m.fence, m.ends, m.ttl, queued > 0 and rcall('ZCARD', LINE) or 0, robbed or again and '', again }
end

settle()
hear(me.channel)

local held = byId[me.id]
if held then
  claim(held)
  addHold(held, me.holds)
  held.ttl = math.max(held.ttl, me.ttl)
  renew(held, held.ttl)
  return acquired(held, nil, '1')
end

queued = rcall('ZCARD', LINE)
if queued == 0 and not foreign and living() < me.limit then return acquired(grant(me, me.ttl, 0)) end

if stealAfter >= 0 and not foreign then
  local stalest
  for _, m in ipairs(members) do
    if m.ends > nowMs and m.ticket == 0 and (not stalest or m.beat < stalest.beat) then stalest = m end
  end
  if stalest and living() >= me.limit and nowMs - stalest.beat > stealAfter then
    local m, robbed = takeOver(stalest, me)
    outOfLine(me.id)
    return acquired(m, robbed)
  end
end

local ticket
if wait >= 0 then
  ticket = tonumber(rcall('ZSCORE', LINE, me.id) or nil)
  if ticket then
    describe(me, wait)
  else
    if queued >= MAX_WAITERS then
      promote(nil) -- those at the head may be past their deadlines
      if rcall('ZCARD', LINE) >= MAX_WAITERS then return report('busy', 'lineFull') end
    end
    ticket = tonumber(ARGV[8])
    if ticket == 0 then ticket = nowUs end
    join(me, ticket, wait)
    index(me.id, wait + me.ttl)
  end
end

local mine, blocked
if queued > 0 or living() < me.limit then
  mine, blocked = promote(me)
  if mine then return acquired(mine) end
end

if wait < 0 then
  -- Room that the line left: everybody in it is deaf or silent just now.
  if not foreign and not blocked and living() < me.limit then return acquired(grant(me, me.ttl, 0)) end
  return report('busy', foreign and 'foreign' or 'held')
end
return {
  'waiting', nowMs, ticket, (rcall('ZRANK', LINE, me.id) or 0) + 1, rcall('ZCARD', LINE), nextChange(),
}
