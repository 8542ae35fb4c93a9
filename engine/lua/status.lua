-- What is there, changing nothing: also on a replica, and for a user who may only read.
--
-- KEYS  as in shared/open.lua
--
-- Returns { 'status', now, K's value or '', K's TTL in ms, 'missing' | 'ours' | 'foreign', length of the line,
--           newest fencing token or '0', holders… (newest first, those that ran out too) }
--       | { 'wrongType', type }
-- @include open
-- @include read
local kind = foreign and 'foreign' or (ours and 'ours' or 'missing')
local answer = {
  'status', nowMs, value or '', rcall('PTTL', K), kind, rcall('ZCARD', LINE), fence or 0,
}
table.sort(members, function(a, b) return a.fence > b.fence end)
for _, m in ipairs(members) do
  if not revocation(m) and #answer < 107 then answer[#answer + 1] = m.text end
end
return answer
