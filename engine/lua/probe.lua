-- Asked once on each connection, before the first grant: tries every command that the scripts use, on a key of
-- its own. Redis does not roll a script back, so a permission that is missing must be found before one starts.
--
-- KEYS  1 scratch key in the lock's slot
-- ARGV  1 its life in ms
--
-- Returns { 'probe', now, name of a command this user may not run, or '' }
local scratch, life = KEYS[1], ARGV[1]
local missing = ''
local function try(command, ...)
  local reply = redis.pcall(command, ...)
  if type(reply) == 'table' and reply.err then
    -- In scripts: up to Redis 7.0, and in 7.2 and later and Valkey.
    if string.find(reply.err, 'NOPERM', 1, true) or string.find(reply.err, 'can\'t run this command', 1, true)
      or string.find(reply.err, 'ACL failure', 1, true) then
      if missing == '' then missing = string.lower(command) end
    elseif string.find(reply.err, 'READONLY', 1, true) then
      return reply
    end
    -- Out of memory is no matter of permission: the scripts meet it at their first write.
  end
end

local time = redis.pcall('TIME')
if time.err then return { 'probe', '0', 'time' } end
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))

-- Nothing is left without a TTL, whichever of these is refused.
local refused = try('DEL', scratch)
if refused then return refused end
for _, read in ipairs({ 'GET', 'PTTL', 'TYPE', 'HGETALL', 'HLEN', 'ZCARD' }) do try(read, scratch) end
try('PEXPIRE', scratch, life)
try('PEXPIREAT', scratch, now)
if missing == '' then
  try('SET', scratch, '1', 'PX', life)
  try('DEL', scratch)
  try('HSET', scratch, 'a', '1')
  try('PEXPIRE', scratch, life)
  try('HGET', scratch, 'a')
  try('HMGET', scratch, 'a')
  try('HDEL', scratch, 'b')
  try('DEL', scratch)
  try('ZADD', scratch, '1', 'a')
  try('PEXPIRE', scratch, life)
  try('ZRANGE', scratch, '0', '0', 'WITHSCORES')
  try('ZSCORE', scratch, 'a')
  try('ZREM', scratch, 'b')
  try('DEL', scratch)
end
return { 'probe', now, missing }
