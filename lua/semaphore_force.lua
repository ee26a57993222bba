-- Gives back all permits that are taken, no matter who holds them.
--
-- KEYS[1]  the permits that are free: a string; see semaphore.lua.
-- KEYS[2]  the permits that are taken: a zset.
-- ARGV[1]  channel on which free permits are announced.
-- ARGV[2]  how: see announce.lua.
-- Returns  {1, 0, 0} there were some, {0, 0, 0} no permit was taken.

local free, taken = KEYS[1], KEYS[2]
local channel, how = ARGV[1], ARGV[2]

free_permits(free)
check_ids(taken, redis.call('zrangebyscore', taken, '-inf', '+inf'))
drop_expired(free, taken, now_ms())
local n = redis.call('zcard', taken)
if n == 0 then
    return {0, 0, 0}
end
redis.call('del', taken)
add_free(free, n, how, channel)
return {1, 0, 0}
