-- Releases a fair lock, regardless of who holds it. The lock passes to the first waiter.
--
-- KEYS[1]  the lock: a hash {field of the hold -> hold count}.
-- KEYS[2]  the queue: a list, see queue.lua.
-- KEYS[3]  the timeouts of the queue: a zset.
-- KEYS[4]  the places of the queue: a hash.
-- KEYS[5]  the waits of the line of the plain lock: a hash, which has the tombstones.
-- KEYS[6]  the token counter: a string; only for a fenced lock.
-- ARGV[1]  how long Redisson keeps a place in the queue, in ms: its fairLockWaitTimeout.
-- ARGV[2]  the channel of a waiter, without its field.
-- ARGV[3]  the command that publishes: see announce.lua.
-- ARGV     behind these: the fields of the holders that may lose the lock; none: all of them. See forced.lua.
-- Returns  {1, 0, 0, clients} released, {0, 0, 0} the lock was free, or has another holder. For clients see forced.lua.
--
-- Once: another owner may have acquired the lock before the script runs again.

--[[with forms record announce clock counter token clients grant queue forced]]
return answer(function()
local q = open_queue(KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], ARGV[1], ARGV[2], ARGV[3])

local _, holder = check_record(q.lock)
local seen = seen_from(4)
if seen and not seen[holder] then
    return {0, 0, 0}
end
check_queue(q)
redis.call('zcard', q.timeouts) -- before the first write: it refuses other data
local freed = redis.call('del', q.lock)
pass_on(q, nil, freed == 1)
return with_clients({freed, 0, 0}, {holder})
end, {'hash', 'list', 'zset', 'hash', 'hash', 'string'})
