-- Asked by a process that waits, when the lease it last saw has run out, now and then, and after it began to listen:
-- serves the line and tells what was given to this process, in case the message was lost.
--
-- KEYS  as in shared/open.lua
-- ARGV
--   1 channel of the asking process
--   2 '1' = messages for the waiters below have to go to this channel from now on
--   3… ids of waiters of it, to learn whether Redis still knows them
--
-- Returns { 'look', now, ms to the next change, '1' if messages will go where they were asked to,
--           ids handed to this process, and ids that Redis does not know… }
--       | { 'wrongType', type }
-- @include open
-- @include read
-- @include hold
-- @include line
-- @include answer
local channel, readdress = ARGV[1], ARGV[2] == '1'

settle()
hear(channel)
local concerned = {}
local told = '1'
for i = 3, #ARGV do
  local id = ARGV[i]
  local text = rcall('HGET', WAIT, id)
  if not text then
    if not byId[id] then concerned[#concerned + 1] = id end
  elseif readdress and string.sub(text, 1, 2) ~= '- ' then -- who just went and keeps its place stays away
    local set = rpcall('HSET', WAIT, id, channel .. string.match(text, '^%S+(.*)$'))
    if type(set) == 'table' then told = '0' end -- out of memory
  end
end

asking = channel
promote(nil)
for _, m in ipairs(members) do
  if m.ticket > 0 then
    local text = rcall('HGET', WAIT, m.id)
    local its = text and string.match(text, '^(%S+)')
    if its == channel or its == 'poll:' .. channel then concerned[#concerned + 1] = m.id end
  end
end
return { 'look', nowMs, nextChange(), told, unpack(concerned) }
