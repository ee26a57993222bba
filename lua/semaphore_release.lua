-- Gives back one level of a permit, or all that an attempt may have taken: its sign of life, too.
--
-- KEYS[1]  the permits that are free: a string; see semaphore.lua.
-- KEYS[2]  the permits that are taken: a zset.
-- KEYS[3]  the waiters: see waiters.lua; only where an attempt is undone.
-- ARGV[1]  id of the permit.
-- ARGV[2]  levels left: 0 gives back the permit.
-- ARGV[3]  channel on which free permits are announced.
-- ARGV[4]  how: see announce.lua.
-- Returns  {1, heard, 0} done, and so many connections were told of free permits; {-1, heard, 0} this permit is not taken, or its
--          lease was over.
--
-- Running it late or twice gives back no other permit: the id belongs to one acquisition.

local free, taken, waiters = KEYS[1], KEYS[2], KEYS[3]
local id, left, channel, how = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if waiters then
    stop_waiting(waiters, id)
end
free_permits(free) -- if it is none, nothing is to be given back
local ends = redis.call('zscore', taken, id)
local state = ends and tonumber(ends) > now_ms() and 1 or -1
if not ends or left ~= '0' then
    return {state, 0, 0}
end
redis.call('zrem', taken, id)
return {state, add_free(free, 1, how, channel), 0}
