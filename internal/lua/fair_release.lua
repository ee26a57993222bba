-- Sets the hold count of a fair lock to a lower value, ends the hold, or rolls back an attempt together with its place
-- in the queue. When a hold ends, the lock passes to the first waiter.
--
-- KEYS[1]  the lock: a hash {field of the hold -> hold count}.
-- KEYS[2]  the queue: a list, see queue.lua.
-- KEYS[3]  the timeouts of the queue: a zset.
-- KEYS[4]  the places of the queue: a hash.
-- KEYS[5]  the waits of the line of the plain lock: a hash, which has the tombstones.
-- KEYS[6]  the token counter: a string; only for a fenced lock.
-- ARGV[1]  the field of the hold.
-- ARGV[2]  how long Redisson keeps a place in the queue, in ms: its fairLockWaitTimeout.
-- ARGV[3]  the channel of a waiter, without its field.
-- ARGV[4]  the command that publishes: see announce.lua.
-- ARGV[5]  the hold count that is left: 0, which is the default, ends the hold.
-- ARGV[6]  1 if a request for the lock with this field may still run; the default is 0.
-- ARGV[7]  1 to roll back an attempt; the default is 0.
-- Returns  {1, 0, passed} done, {-1, 0, passed} there is no such hold. passed is 1 if the lock was granted to the first
--          waiter, else 0.
--
-- Repeatable, and then answers {-1, 0, passed}: see lock_release.lua. A rollback leaves a hash that no lock writes as
-- it is, and still removes the waiter from the queue.

local found -- the answer of Redis

--[[common case]]
-- The hold ends, and the queue is empty.
if not ARGV[5] and redis.pcall('exists', KEYS[2]) == 0 then
    found = redis.pcall('hdel', KEYS[1], ARGV[1]) -- deleting the only field deletes the record
    if found == 1 then
        return 0
    end
end
--[[end]]

--[[with forms record announce clock counter token clients grant tombstones queue]]
return answer(function()
local q = open_queue(KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], ARGV[2], ARGV[3], ARGV[4])
local field = ARGV[1]
local left, late, rolls_back = ARGV[5] or '0', ARGV[6] == '1', ARGV[7] == '1'

if left == '0' then
    found = found or redis.pcall('hdel', q.lock, field)
else
    found = redis.pcall('hexists', q.lock, field)
end
local held = found == 1
if held and left ~= '0' then
    note_hold_count(q.lock, field, left)
    return {1, 0, 0}
end
if found == 0 and not rolls_back then
    check_record(q.lock)
end

-- An error in the queue must not stop a release. A rollback is repeated until its waiter has left the queue.
local has_left, problem = true, nil
if rolls_back then
    has_left, problem = pcall(leave_queue, q, {[field] = true})
end
local passed = try(function()
    if late and left == '0' then
        bury(q.waits, field)
    end
    if redis.call('exists', q.lock) == 0 then
        pass_on(q, nil, held)
    end
    return q.granted
end)
if type(found) == 'table' then
    error(found, 0)
elseif not has_left then
    error(problem, 0)
end
return {held and 1 or -1, 0, passed and 1 or 0}
end, {'hash', 'list', 'zset', 'hash', 'hash', 'string'})
