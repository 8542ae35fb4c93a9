-- Takes several locks at once, or none of them.
--
-- KEYS  for each lock four, as in shared/open.lua; then, optional, the index of the execution
-- ARGV
--   1 ttl  2 latest  3 terms  4 whose: as in acquire.lua
--   5… an id for each lock
--
-- Returns { 'acquired', now, answer of acquire.lua for each }
--       | { 'notAll', now, which of them (from 1) can't be had, answer of acquire.lua for it }
--       | { 'late', now }
local ALL, ASKED = KEYS, ARGV
local count = #ASKED - 4

local function acquire(KEYS, ARGV)
-- @script acquire
end

local function release(KEYS, ARGV)
-- @script release
end

local function keysOf(i)
  return { ALL[4 * i - 3], ALL[4 * i - 2], ALL[4 * i - 1], ALL[4 * i], ALL[4 * count + 1] }
end

local function giveBack(till)
  for i = till, 1, -1 do release(keysOf(i), { ASKED[4 + i], '0', '-', '' }) end
end

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local answers = {}
for i = 1, count do
  -- An error in the middle must not leave the ones before it taken: Redis does not roll back.
  local went, answer = pcall(acquire, keysOf(i), { ASKED[4 + i], ASKED[1], ASKED[2], ASKED[3], ASKED[4] })
  local kind = went and (type(answer) == 'table' and answer[1] or string.match(answer, '^%a+'))
  if kind ~= 'acquired' then
    giveBack(i - 1)
    if not went then return type(answer) == 'table' and answer or redis.error_reply(tostring(answer)) end
    if type(answer) == 'table' and (answer.err or kind == 'late') then return answer end
    return { 'notAll', now, i, answer }
  end
  answers[i] = answer
end
return { 'acquired', now, unpack(answers) }
