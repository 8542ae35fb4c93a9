-- Ends waits, in one step: nobody is told "timed out" and owns the lock. Several of one key and process at once.
--
-- KEYS  as in shared/open.lua; from 5 on the indexes that the callers name
-- ARGV
--   1 what becomes of a lock that was granted: 'take' = kept · 'back' = given back · 'unclaimed' = given back
--     only if its process has not claimed it yet
--   2 'back' leaves a lease alone that was granted before this ms of Redis' clock; 0 = none
--   3 the latest time that an acquire of these ids carried which was given up: it is refused, should it still
--     arrive; 0 = no such call
--   4 ms for which it is refused
--   5… for each caller: id, which of KEYS is its index (0 = none), ms for which its place in line is kept (0 = not, -1 =
--     it leaves only if it has to), '1' = it has a policy (see acquire.lua)
--
-- Returns { 'left', now, { … } (shared/answer.lua), for each caller: '' = left, a grant was given back
--           · { fence, ends, ttl } = the lock is its own
--           · { 'superseded', owner of the newer one } · { 'doneBefore', what was done (open.lua) } }
--       | { 'wrongType', type }
-- @include open
-- @include read
-- @include hold
-- @include line
-- @include answer
local mode, since, latest, life = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

rcall('HLEN', WAIT) -- a wrong type fails here
settle()
local before, gaveBack = fence, false
local results, leavers = {}, {}

local function keepPlace(id, keepMs)
  local text = rcall('HGET', WAIT, id)
  if not text then return end
  local w = waiter(id, text)
  w.channel = '-'
  describe(w, keepMs, false)
end

-- Why one with a policy has to go, if it has.
local function putOut(id)
  local text = rcall('HGET', WAIT, id)
  local w = text and waiter(id, text)
  if w and w.channel == '^' then return { 'superseded', w.owner } end
  if w and w.once and done then return { 'doneBefore', done } end
end

for i = 5, #ARGV, 4 do
  local id, place, keepMs = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local m = byId[id]
  local out = not m and ARGV[i + 3] == '1' and putOut(id)
  local result = out or ''
  if m and mode == 'take' then
    claim(m)
    renew(m, m.ttl)
    index(id, m.ttl, KEYS[place])
    result = { m.fence, m.ends, m.ttl }
  elseif not m and not out and keepMs ~= 0 and rcall('ZSCORE', LINE, id) then
    if keepMs > 0 then keepPlace(id, keepMs) end
  elseif not m or not (m.ticket == 0 and (mode == 'unclaimed' or m.since < since)) then
    if m then
      remove(m)
      gaveBack = true
    end
    leavers[#leavers + 1] = id
    if place > 0 then rcall('HDEL', KEYS[place], id) end
  end
  results[#results + 1] = result
end
if #leavers > 0 then
  rcall('ZREM', LINE, unpack(leavers))
  rcall('HDEL', WAIT, unpack(leavers))
end
if room() then promote(nil) end
if gaveBack and fence == before then coverRest() end
if latest ~= '0' then
  for i = 5, #ARGV, 4 do
    -- Out of memory may refuse this one; the latest time that acquire carries still holds.
    rpcall('HSET', LOCK, '!' .. ARGV[i] .. ':' .. latest, nowMs + life)
  end
  if rcall('PTTL', LOCK) < life then rcall('PEXPIRE', LOCK, int(life)) end
end
return { 'left', nowMs, report('left', ''), unpack(results) }
