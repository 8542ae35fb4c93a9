-- Gives a lease back and hands the lock to the first in line who answers. Safe to repeat.
--
-- KEYS  as in shared/open.lua
-- ARGV
--   1 id  2 fence of the lease (0 = unknown)  3 hold to give back ('-' = all of them)
--   4 '' = its holder gives it back · why somebody else does, which is remembered to tell the holder
--   Left out unless what the key stands for is done:
--   5 ms for which that is remembered  6 its result, a text without a line break
--
-- Returns, on the plain path as one text, { 'released', now, '1' if the lease had run out, holds that are left }
--       | { 'alreadyReleased', now }
--       | { 'notHeld', now, reason, at, fence of who has it, owner of who has it }
--       | { 'wrongType', type }
-- @include open
-- @include only
-- @include plainRelease
-- @include read
-- @include hold
-- @include line
local id, token, hold, reason = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]

-- Read before the first write, so that a wrong type fails there.
local queued = rcall('HLEN', WAIT)
settle()
local m = byId[id]
-- A newer lease of the same id is not what is given back: the one that is meant is over.
if m and token > 0 and m.fence ~= token then m = nil end
if m then
  local left = {}
  if hold ~= '-' then
    for name in string.gmatch(m.holds, '[^,]+') do
      if name ~= hold then left[#left + 1] = name end
    end
    if #left > 0 and m.holds ~= '-' then
      m.holds = table.concat(left, ',')
      rcall('PEXPIREAT', K, longest(nowMs))
      store(m)
      return { 'released', nowMs, '0', #left }
    end
  end
  local ranOut = m.ends <= nowMs and '1' or '0'
  if reason == '' then remove(m) else lose(m, reason) end
  claim(m)
  if KEYS[5] then rcall('HDEL', KEYS[5], id) end
  if ARGV[5] then markDone(m, tonumber(ARGV[5]), ARGV[6] or '') end
  local before = fence
  if queued > 0 or returned then promote(nil) end
  if fence == before then coverRest() end
  return { 'released', nowMs, ranOut, 0 }
end

if queued > 0 or returned then promote(nil) end
unindex(id)
local why = fate(id, token)
if why and (token > 0 or why[1] ~= 'stateLost') then return { 'notHeld', nowMs, unpack(why) } end
-- Every holder that lost it is remembered from `floor` on; so this one gave it back itself.
if token > 0 then return { 'alreadyReleased', nowMs } end
if foreign then return { 'notHeld', nowMs, 'foreign', nowMs, '0', '' } end
for _, other in ipairs(members) do
  if other.ends > nowMs then return { 'notHeld', nowMs, 'notHolder', nowMs, other.fence, other.owner } end
end
return { 'alreadyReleased', nowMs }
