-- Sets the number of permits of a semaphore. The permits that are free then pass to the line.
--
-- KEYS[1]  the permits that are free: a string; see semaphore.lua.
-- KEYS[2]  the permits that are taken: a zset.
-- KEYS[3]  the line: a hash, see line.lua; or the first key again: the line cannot be used.
-- ARGV[1]  the number.
-- ARGV[2]  channel on which free permits are announced; that of a client has :client behind it.
-- ARGV[3]  how: see announce.lua.
-- Returns  {1, 0, 0}.
--
-- Repeatable: the number is set, and nothing is added to it.
-- Permits that are taken stay taken: with fewer permits than that, less than none are free.

local free, taken = KEYS[1], KEYS[2]
local permits, channel, how = tonumber(ARGV[1]), ARGV[2], ARGV[3]

local before = free_permits(free)
check_permits(taken)
local line = open_line(free, KEYS[3], '') -- before anything is written: it may refuse
drop_expired(free, taken, now_ms())
local available = permits - redis.call('zcard', taken)
if before then
    redis.call('incrby', free, available - count_free(free))
else
    redis.call('set', free, ms(available))
end
offer(free, taken, line, channel, how)
return {1, 0, 0}
