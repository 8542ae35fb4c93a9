-- Notes in an execution's index that it is about to take a lock. Only on a cluster, where the index lies on another
-- slot than the lock and cannot be written by the script that grants: a superset, each entry checked when it is used.
--
-- KEYS  1 index of the execution
-- ARGV  1 id  2 K  3 ms that the index has to live at least
--
-- Returns { 'intended' }
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return { 'intended' }
