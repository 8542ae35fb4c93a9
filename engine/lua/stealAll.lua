-- Takes several locks over at once, or none of them: all have to be in the state that was asked for, or free.
--
-- KEYS  for each lock four, as in shared/open.lua; then, optional, the index of the execution
-- ARGV
--   1 ttl  2 latest  3 terms  4 whose  5 if  6 value  7 youngest: as in steal.lua
--   8… an id for each lock
--
-- Returns { 'stolen', now, answer of steal.lua for each }
--       | { 'notAll', now, which of them (from 1) can't be stolen, answer of steal.lua for it }
--       | { 'late', now }
local ALL, ASKED = KEYS, ARGV
local count = #ASKED - 7

local function steal(KEYS, ARGV)
-- @script steal
end

local function each(i, how)
  return steal(
    { ALL[4 * i - 3], ALL[4 * i - 2], ALL[4 * i - 1], ALL[4 * i], ALL[4 * count + 1] },
    { ASKED[7 + i], ASKED[1], ASKED[2], ASKED[3], ASKED[4], ASKED[5], ASKED[6], ASKED[7], how }
  )
end

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
for i = 1, count do
  local answer = each(i, 'check')
  if answer.err or answer[1] == 'late' then return answer end
  if answer[1] ~= 'would' then return { 'notAll', now, i, answer } end
end
local answers = {}
for i = 1, count do answers[i] = each(i, 'also') end
return { 'stolen', now, unpack(answers) }
