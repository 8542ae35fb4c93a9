-- What is there, changing nothing: also on a replica, and for a user who may only read.
--
-- KEYS  as in shared/open.lua
--
-- Returns { 'status', now, K's value or '', K's TTL in ms, 'missing' | 'ours' | 'foreign', length of the line,
--           newest fencing token or '0', what was done (open.lua) or '', how many hold it,
--           holders… (newest first, those that ran out too, a hundred at most) }
--       | { 'wrongType', type }
-- @include open
-- @include read
local kind = foreign and 'foreign' or (ours and 'ours' or 'missing')
local answer = {
  'status', nowMs, value or '', rcall('PTTL', K), kind, rcall('ZCARD', LINE), fence or 0, done or '', 0,
}
table.sort(members, function(a, b) return a.fence > b.fence end)
local living = 0
for _, m in ipairs(members) do
  if not revocation(m) then
    if m.ends > nowMs then living = living + 1 end
    if #answer < 109 then answer[#answer + 1] = m.text end
  end
end
answer[9] = living
return answer
