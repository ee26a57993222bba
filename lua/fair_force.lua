-- Frees a fair lock, no matter who holds it, and wakes the first waiter.
--
-- KEYS[1]  the lock: a hash {field of the hold -> levels}.
-- KEYS[2]  the queue: see queue.lua.
-- KEYS[3]  the timeouts of the queue.
-- KEYS[4]  the heartbeats of the queue.
-- ARGV[1]  how long a heartbeat lasts, in ms.
-- ARGV[2]  channel of a waiter, without its field.
-- ARGV[3]  how a waiter is woken: see announce.lua.
-- Returns  {1, 0, 0} freed, {0, 0, 0} the lock was free.
--
-- The script refuses a hash that no lock makes before it writes anything: see record.lua.

local lock, queue, timeouts, heartbeats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local heartbeat_ttl, channel, how = tonumber(ARGV[1]), ARGV[2], ARGV[3]

check_record(lock)
evict_dead(queue, timeouts, heartbeats, now_ms(), heartbeat_ttl)
local freed = redis.call('del', lock)
wake_first(queue, channel, how)
return {freed, 0, 0}
