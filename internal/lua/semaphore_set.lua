-- Sets the number of permits of a semaphore. Permits that are then available pass to the line.
--
-- KEYS[1]  the number of available permits: a string; see semaphore.lua.
-- KEYS[2]  the taken permits: a zset.
-- KEYS[3]  the order of the line: a zset, see line.lua.
-- KEYS[4]  the waits of the line: a hash.
-- ARGV[1]  the number of permits.
-- ARGV[2]  the channel on which available permits are announced; that of a client has :client appended.
-- ARGV[3]  the command that publishes: see announce.lua.
-- ARGV[4]  the field of the request, which is a new one for each request; none: a late run sets the number again.
-- Returns  {1, 0, 0}.
--
-- Repeatable: the number is set, and nothing is added to it. A run leaves a tombstone of its field, and a run that
-- finds one does nothing: it is late, and the number may have been set again since.
-- Taken permits stay taken. If they are more than the new number, the number of available permits becomes negative.

--[[with forms record announce clock semaphore clients permit tombstones line passing permits]]
return answer(function()
local free, taken = KEYS[1], KEYS[2]
local permits, channel, how, request = tonumber(ARGV[1]), ARGV[2], ARGV[3], ARGV[4]

free_permits(free)
check_permits(taken)
local line = open_line(free, KEYS[3], KEYS[4], '') -- before the first write, because it may refuse
if request and is_buried(line.waits, request) then
    return {1, 0, 0}
end
drop_expired(free, taken, now_ms())
redis.call('set', free, ms(permits - redis.call('zcard', taken)), 'KEEPTTL')
if request then
    bury(line.waits, request) -- the number is set, and what it makes available passes to the line
end
offer(free, taken, line, channel, how)
return {1, 0, 0}
end, {'string', 'zset', 'zset', 'hash'})
