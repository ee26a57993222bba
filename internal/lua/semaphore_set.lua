-- Sets the number of permits of a semaphore. Permits that are then available pass to the line.
--
-- KEYS[1]  the number of available permits: a string; see semaphore.lua.
-- KEYS[2]  the taken permits: a zset.
-- KEYS[3]  the order of the line: a zset, see line.lua.
-- KEYS[4]  the waits of the line: a hash.
-- ARGV[1]  the number of permits.
-- ARGV[2]  the channel on which available permits are announced; that of a client has :client appended.
-- ARGV[3]  the command that publishes: see announce.lua.
-- ARGV[4]  the number of permits that the caller has seen; none: any.
-- Returns  {1, 0, 0}, or {0, 0, 0} if it is another number by now.
--
-- Repeatable: the number is set, and nothing is added to it. A run that is late does nothing if the number is neither
-- the one that its caller has seen nor its own: it has been set again since.
-- Taken permits stay taken. If they are more than the new number, the number of available permits becomes negative.

--[[with forms record announce clock semaphore clients permit tombstones line passing permits]]
return answer(function()
local free, taken = KEYS[1], KEYS[2]
local permits, channel, how, seen = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])

local available = free_permits(free)
check_permits(taken)
local now = available and available + redis.call('zcard', taken) or seen
if seen and now ~= seen and now ~= permits then
    return {0, 0, 0}
end
local line = open_line(free, KEYS[3], KEYS[4], '') -- before the first write, because it may refuse
drop_expired(free, taken, now_ms())
redis.call('set', free, ms(permits - redis.call('zcard', taken)), 'KEEPTTL')
offer(free, taken, line, channel, how)
return {1, 0, 0}
end, {'string', 'zset', 'zset', 'hash'})
