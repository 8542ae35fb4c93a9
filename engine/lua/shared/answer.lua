-- Answers that several scripts give. Needs read.lua and line.lua.

-- Milliseconds until the soonest lease ends and the line can move; -1 when nothing will end by itself.
local function nextChange()
  if foreign then return rcall('PTTL', K) end
  local soonest = -1
  for _, m in ipairs(members) do
    local left = m.ends - nowMs
    if left > 0 and (soonest < 0 or left < soonest) then soonest = left end
  end
  local waits = newestWaiter()
  local settles = waits and waits.settled - nowMs or 0
  if settles > 0 and (soonest < 0 or settles < soonest) then soonest = settles end
  return soonest
end

-- { kind, now, reason, length of the line, ms to the next change, foreign TTL or '', holders… }
-- At most ten holders are named, the newest first. Ids of holders are secrets and stay here.
local function report(kind, reason)
  local answer = { kind, nowMs, reason, rcall('ZCARD', LINE), nextChange(), foreign and rcall('PTTL', K) or '' }
  table.sort(members, function(a, b) return a.fence > b.fence end)
  for _, m in ipairs(members) do
    if m.ends > nowMs and not foreign and #answer < 16 then answer[#answer + 1] = m.text end
  end
  return answer
end
