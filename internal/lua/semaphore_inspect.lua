-- Returns  who holds permits of a semaphore. The script only reads.
--
-- KEYS[1]  the number of available permits: a string; see semaphore.lua.
-- KEYS[2]  the taken permits: a zset.
-- ARGV[1]  the field of a hold, or '' for none.
-- Returns  {number of permits whose lease has not expired, 1 if all permits of the hold are among them, ms until all of
--          their leases have expired}. The last is -1 if a lease does not end, and -2 if no permit is taken.
--
-- Repeatable: it only reads.

--[[with forms record announce clock semaphore]]
return answer(function()
local free, taken = KEYS[1], KEYS[2]
local field = ARGV[1]

free_permits(free)
local ends = field ~= '' and ends_of(taken, ids_of(field))
if not ends then
    check_permits(taken)
end
local now = now_ms()
local last = redis.call('zrevrange', taken, 0, 0, 'withscores')[2]
local left = -2
if last and not has_lease(last) then
    left = -1
elseif last and tonumber(last) > now then
    left = tonumber(last) - now
end
return {redis.call('zcount', taken, '(' .. ms(now), '+inf'), ends and ends > now and 1 or 0, left}
end, {'string', 'zset'})
