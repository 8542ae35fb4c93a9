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
--           '1' if Redis does not know one of the ids asked for,
--           those ids, those that have to leave the line, and ids handed to this process… }
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
local told, unknown = '1', '0'
for i = 3, #ARGV do
  local id = ARGV[i]
  local text = rcall('HGET', WAIT, id)
  local head = text and string.sub(text, 1, 2)
  if not text then
    if not byId[id] then
      concerned[#concerned + 1] = id
      unknown = '1'
    end
  elseif head == '^ ' or (done and waiter(id, text).once) then
    concerned[#concerned + 1] = id -- it has to go
  elseif readdress and head ~= '- ' then -- who just went and keeps its place stays away
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
return { 'look', nowMs, more and 0 or nextChange(), told, unknown, unpack(concerned) }
