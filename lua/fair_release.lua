-- Gives back one level of a fair lock. The last level frees the lock and wakes the first waiter.
--
-- KEYS[1]  the lock: a hash {field of the hold -> levels}.
-- KEYS[2]  the queue: see queue.lua.
-- KEYS[3]  the timeouts of the queue.
-- KEYS[4]  the heartbeats of the queue.
-- ARGV[1]  field of the hold.
-- ARGV[2]  levels left: 0 frees the lock.
-- ARGV[3]  how long a heartbeat lasts, in ms.
-- ARGV[4]  channel of a waiter, without its field.
-- ARGV[5]  how a waiter is woken: see announce.lua.
-- Returns  {1, 0, 0} done, {-1, 0, 0} this hold is not there.
--
-- Running it late or twice frees no other owner's hold: the field belongs to one acquisition. The script refuses a hash
-- that no lock makes before it writes anything: see record.lua.

local lock, queue, timeouts, heartbeats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local field, left, heartbeat_ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local channel, how = ARGV[4], ARGV[5]

local held = redis.call('hexists', lock, field) == 1
if not held then
    check_record(lock)
end

evict_dead(queue, timeouts, heartbeats, now_ms(), heartbeat_ttl)

return give_back(lock, field, held, left, queue, channel, how)
