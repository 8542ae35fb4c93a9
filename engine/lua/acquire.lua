-- Takes a permit, claims one that was handed over, or joins the line. Safe to repeat with the same id.
--
-- KEYS  as in shared/open.lua
-- ARGV
--   1 id  2 ttl
--   3 latest     ms of Redis' clock after which the caller has given up; 0 = none
--   4 terms      'renew limit'  5 whose  'holds owner': as they stand in the record
--   The others may be left out by one who neither waits nor takes over:
--   6 wait       ms to stay in line; -1 = do not join
--   7 channel    where this process listens ('-' when it does not wait)
--   8 arrived    µs of the first arrival, to return to the old place; 0 = now
--   9 stealAfter take over from a holder not heard of for so many ms; -1 = never
--   The others may be left out by one who has no policy:
--   10 policy    'o' = wants nothing of what was done before · 'n' = of those in line, only the newest is served · 'on'
--   11 settle    ms for which nothing newer may have come; 12 atMost  ms after which that does not matter any more, 0 = it does
--
-- Returns 'acquired now fence' (granted on the plain path: from now, as asked, with nobody in line)
--       | { 'acquired', now, fence, ends, ttl, length of the line[, record of the robbed or ''[, '1' if this id held it already
--           (then the hold is added, the lease renewed, and its TTL never shortened)]] }
--       | { 'waiting', now, ticket, ms to the next change }
--       | { 'doneBefore', now, what was done (open.lua) }
--       | { 'superseded', now, owner of the newer one, { … } (shared/answer.lua) }
--       | { 'otherMode', now }: this id holds it, shared where it is now to be exclusive, or the other way round
--       | { 'busy' … } (shared/answer.lua) | { 'late', now } | { 'wrongType', type }
-- @include open
-- @include plainAcquire
-- @include read
-- @include hold
-- @include line
-- @include answer
local me = asked(ARGV[1], ARGV[2], ARGV[4], ARGV[5])
me.channel = ARGV[7]
local policy = ARGV[10] or ''
me.once, me.newest = string.find(policy, 'o', 1, true), string.find(policy, 'n', 1, true)
me.settle, me.atMost = tonumber(ARGV[11] or 0), tonumber(ARGV[12] or 0)
local latest, wait, stealAfter = tonumber(ARGV[3]), tonumber(ARGV[6] or -1), tonumber(ARGV[9] or -1)

-- The caller gave up on this very call: granting now would give the lock to nobody.
if gone[me.id .. ':' .. ARGV[3]] or (latest > 0 and nowMs > latest) then return { 'late', nowMs } end

local queued = rcall('HLEN', WAIT)
local function acquired(m, robbed, again)
  index(m.id, m.ttl)
  return { 'acquired', nowMs, m.fence, m.ends, m.ttl, queued > 0 and rcall('ZCARD', LINE) or 0, robbed or again and '', again }
end

settle()
if me.channel then hear(me.channel) end

local function superseded(owner)
  outOfLine(me.id)
  unindex(me.id)
  return { 'superseded', nowMs, owner, report('busy', 'superseded') }
end

local held = byId[me.id]
if held then
  if (held.limit >= SHARED) ~= (me.limit >= SHARED) then return { 'otherMode', nowMs } end
  claim(held)
  addHold(held, me.holds)
  held.ttl = math.max(held.ttl, me.ttl)
  renew(held, held.ttl)
  return acquired(held, nil, '1')
end

if me.once and done then
  if wait >= 0 then
    outOfLine(me.id)
    unindex(me.id)
  end
  return { 'doneBefore', nowMs, done }
end

if me.newest then
  local text = rcall('HGET', WAIT, me.id)
  local before = text and waiter(me.id, text)
  if before and before.channel == '^' then return superseded(before.owner) end
end

if queued == 0 and not foreign and me.settle == 0 and room(me.limit) then return acquired(grant(me, me.ttl, 0)) end

if stealAfter >= 0 and not foreign and not room(me.limit) then
  local stalest
  for _, m in ipairs(members) do
    if m.ends > nowMs and m.ticket == 0 and (not stalest or m.beat < stalest.beat) then stalest = m end
  end
  if stalest and nowMs - stalest.beat > stealAfter and fitsInstead(stalest, me.limit) then
    local m, robbed = takeOver(stalest, me)
    outOfLine(me.id)
    return acquired(m, robbed)
  end
end

local ticket
if wait >= 0 then
  if queued >= MAX_WAITERS and not rcall('ZSCORE', LINE, me.id) then
    promote(nil) -- those at the head may be past their deadlines
    if rcall('HLEN', WAIT) >= MAX_WAITERS then return report('busy', 'lineFull') end
  end
  ticket = join(me, tonumber(ARGV[8]), wait, queued == 0)
  if not ticket then return superseded(newestWaiter().owner) end
  index(me.id, wait + me.ttl)
end

-- Where there is no room, nobody in line can be served.
local blocked = false
if room() then
  local mine
  mine, blocked = promote(me)
  if mine then return acquired(mine) end
end

if wait >= 0 then return { 'waiting', nowMs, ticket, nextChange() } end
local fits = not foreign and room(me.limit)
-- Room that the line left: everybody in it is deaf, silent or away just now.
if fits and not blocked then
  outOfLine(me.id) -- it may have stood there, not to be served yet
  return acquired(grant(me, me.ttl, 0))
end
local living = occupancy(me.limit)
local otherLimit = not fits and living < me.limit and me.limit < SHARED
return report('busy', foreign and 'foreign' or otherLimit and 'otherLimit' or 'held')
