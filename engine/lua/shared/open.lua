-- What every script begins with: the names, Redis' time, and the hash of the lock as it is stored.
--
-- KEYS[1] K      what the user typed: a decimal number, present while a permit is held
-- KEYS[2] LOCK   hash: holders ("@id"), silent processes ("~channel"), calls that were given up ("!id:latest"),
--                the newest fencing token ("fence"), holders who lost it ("lost"), and the token ("floor") below
--                which nothing is known of a holder that is gone; what was done ("done": till at fence owner, a line
--                break, result), and who is the newest of those that only the newest shall serve ("newest": id)
-- KEYS[3] LINE   sorted set: id of a waiter -> ticket (µs of its first arrival)
-- KEYS[4] WAIT   hash: id of a waiter -> what it asked for; also of those who were handed the lock and have not
--                claimed it yet. So where it is empty, nobody waits.
-- KEYS[5]        optional hash: the locks of one execution, id -> K
local K, LOCK, LINE, WAIT = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local rcall, rpcall = redis.call, redis.pcall
local time = rcall('TIME')
local stored = rcall('HGETALL', LOCK)
