-- The state of one lock, read once at the start of every script. Nothing is written here, so whatever
-- can fail for its type or its permission fails before the first write. Needs open.lua.

-- Losers of hand-built chains INCR K, so it drifts above our token: compare by range, never by equality.
local DRIFT = 1000000

-- Within a text Lua prints large numbers as 1.7e+15 unless told otherwise. As an argument or in an answer Redis
-- takes them whole.
local function int(n)
  return string.format('%.0f', n)
end

local nowUs = time[1] * 1000000 + time[2]
local nowMs = math.floor(nowUs / 1000)

local value = rpcall('GET', K)
if type(value) == 'table' then
  if string.find(value.err, 'WRONGTYPE', 1, true) then
    return { 'wrongType', rcall('TYPE', K).ok }
  end
  return value
end

local fence, floor, lost = nil, 0, ''
local done, newestId
local members, byId = {}, {}
local silent, gone = {}, {}

-- A holder as stored: ends fence ttl since beat renew limit ticket holds owner (see record()).
local function parse(id, text)
  local ends, token, ttl, since, beat, renew, limit, ticket, holds, owner =
    string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (.*)$')
  return {
    id = id, text = text, ends = tonumber(ends), fence = tonumber(token), ttl = tonumber(ttl),
    since = tonumber(since), beat = tonumber(beat), renew = tonumber(renew), limit = tonumber(limit),
    ticket = tonumber(ticket), holds = holds, owner = owner,
  }
end

do
  for i = 1, #stored, 2 do
    local field, text = stored[i], stored[i + 1]
    local kind, name = string.byte(field), string.sub(field, 2)
    if kind == 64 then -- @
      local member = parse(name, text)
      members[#members + 1] = member
      byId[name] = member
    elseif kind == 126 then -- ~
      silent[name] = tonumber(text)
    elseif kind == 33 then -- !
      gone[name] = tonumber(text)
    elseif field == 'fence' then
      fence = tonumber(text)
    elseif field == 'floor' then
      floor = tonumber(text)
    elseif field == 'lost' then
      lost = text
    elseif field == 'done' then
      done = text
    elseif field == 'newest' then
      newestId = text
    end
  end
end

-- Ours is tested as text first: tonumber() also accepts blanks, signs, hex, inf and nan.
local ours = false
if value and fence and #value == 16 and not string.find(value, '%D') then
  local number = tonumber(value)
  ours = number >= fence and number < fence + DRIFT
end
local foreign = value and not ours

-- Leases that K no longer covers: somebody deleted it (an operator's unlock), or put something of his
-- own there. K expires no earlier than its longest lease, so a living lease without K was revoked.
local function revocation(member)
  if foreign then return 'keyOverwritten' end
  if not value and member.ends > nowMs then return 'keyDeleted' end
end

-- A shared lock is a permit of one of so many: it lets in others that are shared, and nobody who would be alone.
local SHARED = 1000000

-- What was done is remembered for a time.
local function doneTill()
  return done and tonumber(string.match(done, '^%d+')) or 0
end
local forgotten = done and doneTill() <= nowMs
if forgotten then done = nil end

-- How many hold it, and the fewest that one of them or `limit` allows. A holder is never made one of more than it asked for.
local function occupancy(limit)
  local living = 0
  for _, member in ipairs(members) do
    if member.ends > nowMs then
      living = living + 1
      if member.limit < limit then limit = member.limit end
    end
  end
  return living, limit
end

-- Whether another one can enter who allows `limit`; without it, whether anybody can.
local function room(limit)
  local living, fewest = occupancy(limit or math.huge)
  return living < fewest
end

-- The end of the longest living lease, at least `least`.
local function longest(least)
  for _, member in ipairs(members) do
    if member.ends > least then least = member.ends end
  end
  return least
end
