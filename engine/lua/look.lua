-- Asked by a process that waits, when the lease it last saw has run out, and now and then: serves the line
-- and tells what was given to this process, in case the message was lost.
--
-- KEYS  as in shared/read.lua
-- ARGV
--   1 channel of the asking process
--   2 id of one of its waiters, to learn whether Redis still knows them
--
-- Returns { 'look', now, ms to the next change, length of the line, '1' if that waiter is known, ids handed to this process… }
--       | { 'wrongType', type }
-- @include read
-- @include hold
-- @include line
-- @include answer
local channel, witness = ARGV[1], ARGV[2]

settle()
hear(channel)
asking = channel
promote(nil)
local known = byId[witness] or rcall('ZSCORE', LINE, witness)
local answer = { 'look', nowMs, nextChange(), rcall('ZCARD', LINE), known and '1' or '0' }
for _, m in ipairs(members) do
  if m.ticket > 0 then
    local text = rcall('HGET', WAIT, m.id)
    if text and string.match(text, '^(%S+)') == channel then answer[#answer + 1] = m.id end
  end
end
return answer
