-- Granting, renewing and ending leases.
--
-- RETENTION, CLAIM, COUNTS and MAX_WAITERS stand in the first line of each script as it is loaded: see scripts.ts.

-- So many holders that lost the lock are remembered, to tell them who has it. Of older ones only a fencing token above
-- theirs is kept (`floor`): from it on, "not remembered" means "released in good order".
local REMEMBERED = 16

local function record(m)
  return string.format(
    '%.0f %.0f %s %.0f %.0f %s %s %.0f %s %s', -- %s does for numbers of up to 14 digits, and is faster
    m.ends, m.fence, m.ttl, m.since, m.beat, m.renew, m.limit, m.ticket, m.holds, m.owner
  )
end

local function store(m)
  m.text = record(m)
  rcall('HSET', LOCK, '@' .. m.id, m.text)
end

-- Takes a holder out. It goes first, since a removal is the one first write that is never refused.
local function remove(m)
  rcall('HDEL', LOCK, '@' .. m.id)
  byId[m.id] = nil
  for i, other in ipairs(members) do
    if other == m then table.remove(members, i) break end
  end
end

-- Notes what a holder that is gone will have to be told: why, and the token and record of the one who has it now.
local function remember(m, reason, byFence, byOwner)
  lost = lost .. table.concat({ m.id, int(m.fence), reason, int(nowMs), byFence or '0', byOwner or '' }, ' ') .. '\n'
  local _, lines = string.gsub(lost, '\n', '\n')
  while lines > REMEMBERED do
    local token = string.match(lost, '^%S+ (%d+)')
    floor = math.max(floor, token + 1)
    lost = string.sub(lost, string.find(lost, '\n', 1, true) + 1)
    lines = lines - 1
  end
  rcall('HSET', LOCK, 'lost', lost, 'floor', floor)
end

local function lose(m, reason, byFence, byOwner)
  remove(m)
  remember(m, reason, byFence, byOwner)
end

-- The holder who entered last.
local function newest()
  local by
  for _, m in ipairs(members) do
    if m.ends > nowMs and m.ticket == 0 and (not by or m.fence > by.fence) then by = m end
  end
  return by
end

-- Why the lease of `id` with the fencing token `token` (0 = unknown) is not there: { reason, at, token and record
-- of who has it }. Nil when it was given back in good order, or never was.
local function fate(id, token)
  for line in string.gmatch(lost, '([^\n]+)\n') do
    local who, its, reason, at, byFence, byOwner = string.match(line, '^(%S+) (%d+) (%S+) (%d+) (%d+) (.*)$')
    if who == id and (token == 0 or token == tonumber(its)) then return { reason, at, byFence, byOwner } end
  end
  local reason
  if not fence or token > fence then
    reason = 'stateLost'
  elseif token > 0 and token < floor then
    reason = 'unknown'
  else
    return nil
  end
  local by = newest()
  return { reason, nowMs, by and by.fence or 0, by and by.owner or '' }
end

-- The companions outlive the longest lease by the retention of the fencing token, and last as long as what was done is
-- remembered.
local function keepCompanion()
  rcall('PEXPIRE', LOCK, math.max(longest(nowMs) - nowMs + RETENTION, doneTill() - nowMs))
end

-- Remembers for so many ms that what the key stands for was done, by the holder `m`.
local function markDone(m, forMs, result)
  done = table.concat({ int(nowMs + forMs), int(nowMs), int(m.fence), m.owner }, ' ') .. '\n' .. result
  rcall('HSET', LOCK, 'done', done)
  keepCompanion()
end

-- What a caller asks for: {id, ttl, renew, limit, holds, owner}. @param terms 'renew limit' @param whose 'holds owner'
local function asked(id, ttl, terms, whose)
  local renew, limit = string.match(terms, '^(%d+) (%d+)$')
  local holds, owner = string.match(whose, '^(%S+) (.*)$')
  return { id = id, ttl = tonumber(ttl), renew = tonumber(renew), limit = tonumber(limit), holds = holds, owner = owner }
end

-- So many members that ran out may wait for their revival beside the living ones, where there is no lower limit.
local RUN_OUT = 64

-- The fencing token of the next grant.
local function nextToken()
  return math.max((fence or 0) + 1, nowUs)
end

-- Grants to `w` {id, ttl, limit, renew, holds, owner}. SET is the first write: out of memory and a
-- refused permission end the script there, with nothing changed.
local function grant(w, lease, ticket)
  local token = nextToken()
  local ends = nowMs + lease
  rcall('SET', K, token, 'PXAT', longest(ends))
  local living, limit = occupancy(w.limit)
  while #members >= math.min(limit, living + RUN_OUT) do
    local oldest
    for _, member in ipairs(members) do
      if member.ends <= nowMs and (not oldest or member.ends < oldest.ends) then oldest = member end
    end
    if not oldest then break end
    lose(oldest, oldest.reason or 'expired', int(token), w.owner)
  end
  fence, value, ours, foreign = token, token, true, false
  local m = {
    id = w.id, ends = ends, fence = token, ttl = w.ttl, since = nowMs, beat = nowMs, renew = w.renew,
    limit = w.limit, ticket = ticket, holds = w.holds, owner = w.owner,
  }
  m.text = record(m)
  members[#members + 1] = m
  byId[m.id] = m
  if floor > 0 then
    rcall('HSET', LOCK, 'fence', token, '@' .. m.id, m.text)
  else
    -- The first grant that this state knows of. Whoever comes with an older token held the lock before Redis
    -- lost its data: he must not be told that he gave it back.
    floor = token
    rcall('HSET', LOCK, 'fence', token, '@' .. m.id, m.text, 'floor', floor)
  end
  keepCompanion()
  return m
end

-- Whether one who allows `limit` holders would have room in the place of a holder that is robbed.
local function fitsInstead(victim, limit)
  local ends = victim.ends
  victim.ends = 0
  local fits = room(limit)
  victim.ends = ends
  return fits
end

-- Grants to `w` in the place of a holder that is robbed. Returns the new lease and the record of the robbed.
local function takeOver(victim, w)
  local robbed = victim.text
  victim.ends, victim.reason = 0, 'stolen'
  local m = grant(w, w.ttl, 0)
  if byId[victim.id] then lose(victim, 'stolen', int(m.fence), w.owner) end
  return m, robbed
end

-- Renews a lease (also one that ran out while nobody entered). PEXPIREAT comes first: unlike HSET it is
-- not refused when memory is short, and after it HSET is not either.
local function renew(m, lease)
  m.ends = nowMs + lease
  m.beat = nowMs
  local ends = longest(m.ends)
  if value then
    rcall('PEXPIREAT', K, ends)
  else
    value = fence
    rcall('SET', K, value, 'PXAT', ends)
  end
  store(m)
  keepCompanion()
end

-- Counts another taker of the same lease: it ends when all have given it back. '-' adds none.
local function addHold(m, hold)
  if hold == '-' or string.find(',' .. m.holds .. ',', ',' .. hold .. ',', 1, true) then return end
  m.holds = m.holds == '-' and hold or (m.holds .. ',' .. hold)
end

-- After a holder went: K goes with the last one, else covers the longest lease that is left.
local function coverRest()
  if foreign then return end
  if occupancy(1) == 0 then
    rcall('DEL', K)
    value = false
  else
    rcall('PEXPIREAT', K, longest(nowMs))
  end
end

-- Adds this lock to its execution's index (KEYS[5], unless told otherwise), and makes the index outlive the lease; it is
-- never shortened.
local function index(id, lease, name)
  name = name or KEYS[5]
  if not name then return end
  rcall('HSET', name, id, K)
  if rcall('PTTL', name) < lease then rcall('PEXPIRE', name, lease) end
end

-- Strikes a lock off its execution's index that is neither held nor waited for under this id.
local function unindex(id)
  if KEYS[5] and not byId[id] and not rcall('ZSCORE', LINE, id) then rcall('HDEL', KEYS[5], id) end
end
