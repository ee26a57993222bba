-- Sets the number of permits of a semaphore.
--
-- KEYS[1]  the permits that are free: a string; see semaphore.lua.
-- KEYS[2]  the permits that are taken: a zset.
-- ARGV[1]  the number.
-- ARGV[2]  channel on which free permits are announced.
-- ARGV[3]  how: see announce.lua.
-- Returns  {1, 0, 0}.
--
-- Permits that are taken stay taken: with fewer permits than that, less than none are free.

local free, taken = KEYS[1], KEYS[2]
local permits, channel, how = tonumber(ARGV[1]), ARGV[2], ARGV[3]

local before = free_permits(free)
check_permits(taken)
drop_expired(free, taken, now_ms())
local available = permits - redis.call('zcard', taken)
if before then
    add_free(free, available - tonumber(redis.call('get', free)), how, channel)
    return {1, 0, 0}
end
redis.call('set', free, ms(available))
if available > 0 then
    announce(how, channel, ms(available))
end
return {1, 0, 0}
