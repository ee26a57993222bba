-- Renames a hold of a fair lock: see lock_rename.lua.
--
-- KEYS[1]  the lock: a hash {field of the hold -> hold count}.
-- KEYS[2]  the queue: a list, see queue.lua.
-- KEYS[3]  the timeouts of the queue: a zset.
-- KEYS[4]  the places of the queue: a hash.
-- KEYS[5]  the waits of the line of the plain lock: a hash, which has the tombstones.
-- ARGV[1]  from: the field that has the lock.
-- ARGV[2]  to: the field that gets it.
-- ARGV[3]  the lease in ms from now on.
-- ARGV[4]  epoch ms at which the lease ends at the latest; 0: there is no such time.
-- ARGV[5]  of an Attach: epoch ms at which the hold is over, so that it cannot be renamed any more; a second run sets
--          the lease again. Else 0.
-- ARGV[6]  1 if a request for the lock with from may still run, else 0.
-- ARGV[7]  how long Redisson keeps a place in the queue, in ms: its fairLockWaitTimeout.
-- Returns  {1, lease, now} to has the lock, for lease ms from now, which is in epoch ms. {-1, 0, now} neither field has
--          it, or to has ended, or the hold is over.
--
-- Repeatable: a second run finds that to has the lock, and only sets the lease again, if at all.
-- A field that was renamed leaves the queue. A hash that no lock writes is refused, see record.lua, unless a request
-- with from may still run: then it stays as it is, and from has a tombstone.

--[[with forms record announce clock counter token clients grant tombstones queue renaming]]
return answer(function()
local from, to, ends, late = ARGV[1], ARGV[2], tonumber(ARGV[5]), ARGV[6] == '1'
local now, q = now_ms(), open_queue(KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], nil, ARGV[7])
local lock = q.lock
local lease = lease_up_to(tonumber(ARGV[3]), tonumber(ARGV[4]), now)

local renamed = redis.call('hexists', lock, to) == 1
local may = not renamed and not past_end(ends, now) and not is_buried(q.waits, to)
local hold_count = may and redis.call('hget', lock, from)
if hold_count then
    redis.call('hdel', lock, '') -- fails before anything has changed if the user may not remove the old field
    redis.call('hset', lock, to, hold_count)
    redis.call('hdel', lock, from)
end
if hold_count or renamed and ends > 0 then
    redis.call('pexpire', lock, ms(lease))
    renamed = true
elseif renamed then
    lease = redis.call('pttl', lock)
elseif not late then
    check_record(lock)
end
pcall(leave_queue, q, {[from] = true}) -- an error in the queue must not hide that the hold is renamed
if late then
    bury(q.waits, from)
end
return {renamed and 1 or -1, renamed and lease or 0, now}
end, {'hash', 'list', 'zset', 'hash', 'hash'})
