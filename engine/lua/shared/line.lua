-- The waiting line: first come, first served, handed over by the script that frees the lock.
-- Needs read.lua and hold.lua.

-- A process that did not claim what was handed to it is passed over for so long, or until it speaks.
local SILENT_MS = 60000
local BATCH = 8

-- A waiter as stored: channel deadline ttl limit renew holds owner.
local function waiter(id, text)
  local channel, deadline, ttl, limit, renewEvery, holds, owner =
    string.match(text, '^(%S+) (%d+) (%d+) (%d+) (%d+) (%S+) (.*)$')
  return {
    id = id, channel = channel, deadline = tonumber(deadline), ttl = tonumber(ttl), limit = tonumber(limit),
    renew = tonumber(renewEvery), holds = holds, owner = owner,
  }
end

local function outOfLine(id)
  rcall('ZREM', LINE, id)
  rcall('HDEL', WAIT, id)
end

-- Notes what a waiter asks for, and from where: a repeated call may come from another process. Out of memory may
-- refuse the repetition, which does no harm.
local function describe(w, waitMs)
  rpcall('HSET', WAIT, w.id, table.concat({
    w.channel, int(nowMs + waitMs), int(w.ttl), int(w.limit), int(w.renew), w.holds, w.owner,
  }, ' '))
  -- Both live a minute longer than the last deadline in them.
  local need = waitMs + CLAIM + 60000
  if rcall('PTTL', LINE) < need then rcall('PEXPIRE', LINE, need) end
  if rcall('PTTL', WAIT) < need then rcall('PEXPIRE', WAIT, need) end
end

local function join(w, ticket, waitMs)
  rcall('HLEN', WAIT) -- fails here, before the first write, where the key has another type
  rcall('ZADD', LINE, ticket, w.id)
  describe(w, waitMs)
end

-- A process took what it was given: from now on it is a lease like any other.
local function claim(m)
  if m.ticket == 0 then return end
  m.ticket = 0
  rcall('HDEL', WAIT, m.id)
end

-- A hand-over that was not claimed: back to the old place, and its process is taken for silent.
local returned = false
local function takeBack(m, isSilent)
  remove(m)
  local text = rcall('HGET', WAIT, m.id)
  if not text then return end
  returned = true
  rcall('ZADD', LINE, m.ticket, m.id)
  -- The line may have been empty, so this may be a new key.
  local life = rcall('PTTL', WAIT)
  if rcall('PTTL', LINE) < life then rcall('PEXPIRE', LINE, life) end
  if isSilent then
    local channel = string.match(text, '^(%S+)')
    silent[channel] = nowMs + SILENT_MS
    rcall('HSET', LOCK, '~' .. channel, silent[channel])
  end
end

-- Brings the stored state up to the present before anything is decided upon it.
local function settle()
  for i = #members, 1, -1 do
    local m = members[i]
    local reason = revocation(m)
    if m.ticket > 0 and (reason or m.ends <= nowMs) then
      takeBack(m, not reason)
    elseif reason then
      lose(m, reason)
    end
  end
  -- Somebody with a larger limit entered meanwhile: to revive this one would be one holder more than it asked for.
  for i = #members, 1, -1 do
    local m = members[i]
    if m.ends <= nowMs and living() >= m.limit then
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
end

-- The process of this channel speaks, so it is not silent.
local function hear(channel)
  if silent[channel] then
    silent[channel] = nil
    rcall('HDEL', LOCK, '~' .. channel)
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

-- Serves the line while there is room. The caller (`me`, may be nil) is granted in full when its own place is reached;
-- others get the lock for CLAIM ms, until their process claims it. Returns the caller's lease or nil, and whether
-- somebody in line waits for room (so that a newcomer must not take what there is).
local function promote(me)
  if foreign then return nil, false end
  local selfId = me and me.id
  local mine, handedTo
  local blocked = false
  local passed = 0
  while true do
    local batch = rcall('ZRANGE', LINE, passed, passed + BATCH - 1, 'WITHSCORES')
    if #batch == 0 then return mine, blocked end
    local ids = {}
    for i = 1, #batch, 2 do ids[#ids + 1] = batch[i] end
    local texts = rcall('HMGET', WAIT, unpack(ids))
    for i, id in ipairs(ids) do
      local w = texts[i] and waiter(id, texts[i])
      if not w or (w.deadline < nowMs and id ~= selfId) then
        outOfLine(id)
      elseif blocked or living() >= w.limit then
        blocked = true
        -- Strict order: nobody behind passes. The next process is told of a hand-over to another one,
        -- so that it can look when that is not claimed.
        if not handedTo then return mine, true end
        if w.channel ~= handedTo then
          tell(w.channel, 'look - ' .. K)
          return mine, true
        end
        passed = passed + 1
        if passed >= BATCH then return mine, true end
      elseif id == selfId then
        outOfLine(id)
        mine = grant(me, me.ttl, 0)
      elseif not silent[w.channel] and tell(w.channel, 'grant ' .. id .. ' ' .. K) then
        rcall('ZREM', LINE, id)
        grant(w, CLAIM, tonumber(batch[i * 2]))
        handedTo = w.channel
      else
        passed = passed + 1
      end
    end
  end
end
