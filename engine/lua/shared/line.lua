-- The waiting line: first come, first served, handed over by the script that frees the lock.
-- Needs read.lua and hold.lua.

-- A process that did not claim what was handed to it is passed over for so long, or until it speaks.
local SILENT_MS = 60000
-- So many of the line are looked at together: most often the first is served, and the second told.
local FIRST_BATCH, BATCH = 2, 16
-- So many are served by one script, where that many have room. The next one's process then asks for more.
local MOST_SERVED = 200
local more = false

-- A waiter as stored: channel deadline ttl limit renew holds owner. Behind the limit may stand, without a blank, its policy:
-- 'o' = it wants nothing of what was done meanwhile; 'n<ms>:<ms>' = only the newest of these is served, from the first
-- moment on; the second is when the first of them came.
-- The channel '-' is one who went and whose place is kept, '^' one whom a newer one put out of the line (its owner is the
-- newer one's) and who has not left yet. Both are passed by.
local function waiter(id, text)
  local channel, deadline, ttl, limit, policy, renewEvery, holds, owner =
    string.match(text, '^(%S+) (%d+) (%d+) (%d+)(%S*) (%d+) (%S+) (.*)$')
  local settled, burst = string.match(policy, 'n(%d+):(%d+)')
  return {
    id = id, channel = channel, deadline = tonumber(deadline), ttl = tonumber(ttl), limit = tonumber(limit),
    renew = tonumber(renewEvery), holds = holds, owner = owner, once = string.sub(policy, 1, 1) == 'o',
    settled = tonumber(settled), burst = tonumber(burst), policy = policy,
  }
end

local function outOfLine(id)
  rcall('ZREM', LINE, id)
  rcall('HDEL', WAIT, id)
end

-- Notes what a waiter asks for, and from where: a repeated call may come from another process. Out of memory may
-- refuse the repetition, which does no harm. A place that is kept for one who went has '-' for a channel.
local function describe(w, waitMs, isFirst)
  rpcall('HSET', WAIT, w.id, table.concat({
    w.channel, int(nowMs + waitMs), int(w.ttl), int(w.limit) .. (w.policy or ''), int(w.renew), w.holds, w.owner,
  }, ' '))
  -- Both live longer than the last deadline in them, by half a minute at least: so not every waiter has to prolong them.
  local need = waitMs + CLAIM + 30000
  if isFirst or rcall('PTTL', LINE) < need then
    rcall('PEXPIRE', LINE, need + 30000)
    rcall('PEXPIRE', WAIT, need + 30000)
  end
end

-- The process whose call this is: it learns from the answer what it was given, and needs no message.
local asking

-- Tells a process that it was given the lock. False when nobody listens: it is passed over and keeps its
-- ticket, for its subscriber may be reconnecting. A refused PUBLISH (no channel rights) does no harm:
-- the process finds the grant when it looks. Processes that may not subscribe look often ("poll:").
local deaf = {}
local function tell(channel, message)
  if channel == asking then return true end
  if deaf[channel] then return false end
  if string.sub(channel, 1, 5) == 'poll:' then return true end
  local received = rpcall('PUBLISH', channel, message)
  if received == 0 and COUNTS then
    deaf[channel] = true
    return false
  end
  return true
end

-- Puts one out of the line whom a newer one made needless. Its process is told, and takes it out; until then it is passed by.
local function supersede(old, newer)
  rcall('HSET', WAIT, old.id, table.concat({ '^', int(old.deadline), int(old.ttl), '0', '0', '-', newer.owner }, ' '))
  if old.channel ~= '-' then tell(old.channel, 'out ' .. old.id .. ' ' .. K) end
end

-- The newest of those in line of whom only the newest is served, and its ticket.
local function newestWaiter()
  local ticket = newestId and rcall('ZSCORE', LINE, newestId)
  local text = ticket and rcall('HGET', WAIT, newestId)
  if text then return waiter(newestId, text), tonumber(ticket) end
end

-- `w` is the newest from now on. It may be served when nothing newer has come for `settle` ms, but no later than `atMost` ms
-- after the first of them (0 = however late). Returns false where a newer one is there already.
local function becomeNewest(w, ticket)
  local old, its = newestWaiter()
  if old and old.id == w.id then return true end
  if old and its > ticket then return false end
  if old then supersede(old, w) end
  newestId = w.id
  rcall('HSET', LOCK, 'newest', w.id)
  -- It may be the first that is known of this lock.
  local life = rcall('PTTL', WAIT)
  if rcall('PTTL', LOCK) < life then rcall('PEXPIRE', LOCK, life) end
  return true
end

local function settling(w)
  local old = newestWaiter()
  local burst = old and old.burst or nowMs
  local from = w.settle > 0 and nowMs + w.settle or 0
  if w.atMost > 0 then from = math.min(from, burst + w.atMost) end
  return 'n' .. int(from) .. ':' .. int(burst)
end

-- @param arrived µs of the first arrival, 0 = now. Returns the ticket: that of the first arrival, where it stands in line
-- already, unless its time there was over and it comes anew. Nil where a newer one has put it out of the line.
local function join(w, arrived, waitMs, isFirst)
  local ticket = arrived > 0 and arrived or nowUs
  if w.newest then w.policy = (w.once and 'o' or '') .. settling(w) elseif w.once then w.policy = 'o' end
  if rcall('ZADD', LINE, 'NX', ticket, w.id) == 0 then
    local text = rcall('HGET', WAIT, w.id)
    local before = text and waiter(w.id, text)
    if arrived == 0 and before and before.deadline < nowMs then
      rcall('ZADD', LINE, ticket, w.id)
    else
      ticket = tonumber(rcall('ZSCORE', LINE, w.id))
      if before and before.settled then w.policy = before.policy end
    end
  end
  describe(w, waitMs, isFirst)
  if w.newest and not becomeNewest(w, ticket) then return nil end
  return ticket
end

-- A process took what it was given: from now on it is a lease like any other.
local function claim(m)
  if m.ticket == 0 then return end
  m.ticket = 0
  rcall('HDEL', WAIT, m.id)
end

-- A process has the same name whether it listens yet or not.
local function processOf(channel)
  return (string.gsub(channel, '^poll:', ''))
end

-- A hand-over that was not claimed: back to the old place, and its process is taken for silent. Its lease is remembered
-- as lost, for the process may have entered already.
local returned = false
local function takeBack(m, reason)
  lose(m, reason or 'expired')
  local text = rcall('HGET', WAIT, m.id)
  if not text then return end
  returned = true
  rcall('ZADD', LINE, m.ticket, m.id)
  -- The line may have been empty, so this may be a new key.
  local life = rcall('PTTL', WAIT)
  if rcall('PTTL', LINE) < life then rcall('PEXPIRE', LINE, life) end
  if not reason then
    local channel = processOf(string.match(text, '^(%S+)'))
    silent[channel] = nowMs + SILENT_MS
    rcall('HSET', LOCK, '~' .. channel, silent[channel])
  end
  -- A newer one may have come while it was away.
  local w = waiter(m.id, text)
  if w.settled then
    local newer = newestWaiter()
    if not becomeNewest(w, m.ticket) then supersede(w, newer) end
  end
end

-- Brings the stored state up to the present before anything is decided upon it.
local function settle()
  for i = #members, 1, -1 do
    local m = members[i]
    local reason = revocation(m)
    if m.ticket > 0 and (reason or m.ends <= nowMs) then
      takeBack(m, reason)
    elseif reason then
      lose(m, reason)
    end
  end
  -- Others entered meanwhile who leave no room for one that ran out, by their limit or by its own: it can't be revived.
  local living, fewest = occupancy(math.huge)
  for i = #members, 1, -1 do
    local m = members[i]
    if m.ends <= nowMs and living >= math.min(m.limit, fewest) then
      local by = newest()
      lose(m, 'expired', by and int(by.fence), by and by.owner)
    end
  end
  for channel, till in pairs(silent) do
    if till <= nowMs then
      silent[channel] = nil
      rcall('HDEL', LOCK, '~' .. channel)
    end
  end
  for id, till in pairs(gone) do
    if till <= nowMs then
      gone[id] = nil
      rcall('HDEL', LOCK, '!' .. id)
    end
  end
  if forgotten then rcall('HDEL', LOCK, 'done') end
  if newestId and not (byId[newestId] and byId[newestId].ticket > 0) and not rcall('ZSCORE', LINE, newestId) then
    newestId = nil
    rcall('HDEL', LOCK, 'newest')
  end
end

-- The process of this channel speaks, so it is not silent.
local function hear(channel)
  channel = processOf(channel)
  if silent[channel] then
    silent[channel] = nil
    rcall('HDEL', LOCK, '~' .. channel)
  end
end

-- Serves the line while there is room. The caller (`me`, may be nil) is granted in full when its own place is reached;
-- others get the lock for CLAIM ms, until their process claims it. Returns the caller's lease or nil, and whether
-- somebody in line waits for room (so that a newcomer must not take what there is).
local function promote(me)
  local served, told = 0, {}
  if foreign then return nil, false end
  local selfId = me and me.id
  local mine, handedTo
  local blocked = false
  local passed, size = 0, FIRST_BATCH
  while true do
    local batch = rcall('ZRANGE', LINE, passed, passed + size - 1, 'WITHSCORES')
    if #batch == 0 then return mine, blocked end
    local ids = {}
    for i = 1, #batch, 2 do ids[#ids + 1] = batch[i] end
    local texts = rcall('HMGET', WAIT, unpack(ids))
    for i, id in ipairs(ids) do
      local w = texts[i] and waiter(id, texts[i])
      if not w or (w.deadline < nowMs and id ~= selfId) then
        outOfLine(id)
      elseif w.channel == '^' or (w.channel == '-' and id ~= selfId) or (w.settled or 0) > nowMs then
        passed = passed + 1 -- nobody is there to be served or told, or not yet
      elseif w.once and done then
        passed = passed + 1
        if not told[w.channel] then tell(w.channel, 'out * ' .. K) end
        told[w.channel] = true
      elseif served >= MOST_SERVED then
        more = true
        tell(w.channel, 'more ' .. K)
        return mine, true
      elseif blocked or not room(w.limit) then
        blocked = true
        -- Strict order: nobody behind passes. The next process is told of a hand-over to another one,
        -- so that it can look when that is not claimed.
        if not handedTo then return mine, true end
        if w.channel ~= handedTo then
          tell(w.channel, 'look ' .. K)
          return mine, true
        end
        passed = passed + 1
        if passed >= BATCH then return mine, true end
      elseif id == selfId then
        outOfLine(id)
        mine = grant(me, me.ttl, 0)
      elseif not silent[processOf(w.channel)] and not deaf[w.channel] then
        local text = table.concat({ 'grant', id, int(nextToken()), int(nowMs), rcall('ZCARD', LINE) - 1, K }, ' ')
        if tell(w.channel, text) then
          rcall('ZREM', LINE, id)
          grant(w, CLAIM, tonumber(batch[i * 2]))
          handedTo = w.channel
          served = served + 1
        else
          passed = passed + 1
        end
      else
        passed = passed + 1
      end
    end
    size = BATCH
  end
end
