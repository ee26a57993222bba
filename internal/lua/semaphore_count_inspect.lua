-- Counts the permits of a semaphore. The script only reads.
--
-- KEYS[1]  the number of available permits: a string; see semaphore.lua.
-- KEYS[2]  the taken permits: a zset.
-- ARGV[1]  the number of permits that the semaphore has if nothing has set it yet.
-- Returns  {permits, available permits, 0}. The number of available permits is negative if more permits are taken
--          than there are.
--
-- Repeatable: it only reads.

--[[with forms record announce clock semaphore]]
return answer(function()
local free, taken = KEYS[1], KEYS[2]
local permits = tonumber(ARGV[1])

local available = free_permits(free)
check_permits(taken)
local held = redis.call('zcount', taken, '(' .. ms(now_ms()), '+inf')
permits = available and available + redis.call('zcard', taken) or permits
return {permits, permits - held, 0}
end, {'string', 'zset'})
