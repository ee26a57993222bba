-- Undoes an attempt to take a fair lock: the caller leaves the queue, and gives back what the attempt may have taken.
--
-- KEYS[1]  the lock: a hash {field of the hold -> levels}.
-- KEYS[2]  the queue: see queue.lua.
-- KEYS[3]  the timeouts of the queue.
-- KEYS[4]  the heartbeats of the queue.
-- ARGV[1]  field of the hold.
-- ARGV[2]  levels that the caller had before the attempt: 0 frees the lock.
-- ARGV[3]  how long Redisson keeps a place in the queue, in ms: its fairLockWaitTimeout.
-- ARGV[4]  how long a heartbeat lasts, in ms.
-- ARGV[5]  channel of a waiter, without its field.
-- ARGV[6]  how a waiter is woken: see announce.lua.
-- Returns  {1, 0, 0} done, {-1, 0, 0} the attempt has taken nothing.
--
-- Running it late or twice frees no other owner's hold: the field belongs to one acquisition. The caller leaves the
-- queue also where the lock's key holds something that no lock makes, which stays as it is.

local lock, queue, timeouts, heartbeats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local field, left = ARGV[1], ARGV[2]
local wait_timeout, heartbeat_ttl = tonumber(ARGV[3]), tonumber(ARGV[4])
local channel, how = ARGV[5], ARGV[6]

local held = redis.pcall('hexists', lock, field) == 1

evict_dead(queue, timeouts, heartbeats, now_ms(), heartbeat_ttl)

local place = redis.call('lpos', queue, field)
if place then
    redis.call('zrem', timeouts, field) -- first: where memory is short, scripts that have written nothing may not zincrby
    shift_timeouts(queue, timeouts, place + 1, wait_timeout)
    leave_queue(queue, timeouts, heartbeats, field)
end

return give_back(lock, field, held, left, queue, channel, how)
