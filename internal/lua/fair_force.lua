-- Releases a fair lock, regardless of who holds it. The lock passes to the first waiter.
--
-- KEYS[1]  the lock: a hash {field of the hold -> hold count}.
-- KEYS[2]  the queue: a list, see queue.lua.
-- KEYS[3]  the timeouts of the queue: a zset.
-- KEYS[4]  the heartbeats of the queue: a zset.
-- KEYS[5]  the wishes of the queue: a hash.
-- KEYS[6]  the waits of the line of the plain lock: a hash, which has the tombstones.
-- KEYS[7]  the token counter: a string; only for a fenced lock.
-- ARGV[1]  how long Redisson keeps a place in the queue, in ms: its fairLockWaitTimeout.
-- ARGV[2]  how long a heartbeat lasts, in ms.
-- ARGV[3]  the channel of a waiter, without its field.
-- ARGV[4]  the command that publishes: see announce.lua.
-- ARGV     behind these: the fields of the holders that may lose the lock; none: all of them. See seen.lua.
-- Returns  {1, 0, 0, clients} released, {0, 0, 0} the lock was free, or has another holder. For clients see
--          evicted.lua.
--
-- Once: another owner may have acquired the lock before the script runs again.
-- The script refuses a hash that no lock writes before it writes anything: see record.lua.

--[[with forms record announce clock counter token clients evicted grant queue seen]]
return answer(function()
local q = {
    lock = KEYS[1], waiters = KEYS[2], timeouts = KEYS[3], heartbeats = KEYS[4], wishes = KEYS[5], waits = KEYS[6],
    tokens = KEYS[7],
    wait_timeout = tonumber(ARGV[1]), channel = ARGV[3], how = ARGV[4],
}
local heartbeat_ttl = tonumber(ARGV[2])

check_record(q.lock)
if not may_force(q.lock, seen_from(5)) then
    return {0, 0, 0}
end
check_queue(q)
evict_dead(q, now_ms(), heartbeat_ttl)
-- At most most_holds.
local fields = redis.call('hrandfield', q.lock, most_holds)
local freed = redis.call('del', q.lock)
pass_to_first(q)
return with_clients({freed, 0, 0}, fields)
end, {'hash', 'list', 'zset', 'zset', 'hash', 'hash', 'string'})
