-- Returns  who holds permits of a semaphore, or how many it has. The script only reads.
--
-- KEYS[1]  the number of available permits: a string; see semaphore.lua.
-- KEYS[2]  the taken permits: a zset.
-- ARGV[1]  the field of a hold, or '' for none.
-- ARGV[2]  to count: the number of permits that the semaphore has if nothing has set it yet.
-- Returns  {number of permits whose lease has not expired, 1 if all permits of the hold are among them, ms until all of
--          their leases have expired}. The last is -1 if a lease does not end, and -2 if no permit is taken. With
--          ARGV[2] {permits, available permits, 0}; these are negative if more are taken than there are.
--
-- Repeatable: it only reads.

--[[with forms record announce clock semaphore]]
return answer(function()
local free, taken = KEYS[1], KEYS[2]
local field = ARGV[1]

local available = free_permits(free)
local ends = field ~= '' and ends_of(taken, ids_of(field))
if not ends then
    check_permits(taken)
end
local now = now_ms()
local held = redis.call('zcount', taken, '(' .. ms(now), '+inf')
if ARGV[2] then
    local permits = available and available + redis.call('zcard', taken) or tonumber(ARGV[2])
    return {permits, permits - held, 0}
end
local last = redis.call('zrevrange', taken, 0, 0, 'withscores')[2]
local left = -2
if last and not has_lease(last) then
    left = -1
elseif last and tonumber(last) > now then
    left = tonumber(last) - now
end
return {held, ends and ends > now and 1 or 0, left}
end, {'string', 'zset'})
