-- Counts the permits of a semaphore. It only reads.
--
-- KEYS[1]  the permits that are free: a string; see semaphore.lua.
-- KEYS[2]  the permits that are taken: a zset.
-- ARGV[1]  how many permits a semaphore has that nothing has set the number of.
-- Returns  {permits, those that are free, 0}. Fewer than none are free where more are taken than there are.
--
-- Repeatable: it only reads.

local free, taken = KEYS[1], KEYS[2]
local permits = tonumber(ARGV[1])

local available = free_permits(free)
check_permits(taken)
local held = redis.call('zcount', taken, '(' .. ms(now_ms()), '+inf')
permits = available and available + redis.call('zcard', taken) or permits
return {permits, permits - held, 0}
