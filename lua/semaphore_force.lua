-- Gives back all permits that are taken, no matter who holds them. They pass to the line.
--
-- KEYS[1]  the permits that are free: a string; see semaphore.lua.
-- KEYS[2]  the permits that are taken: a zset.
-- KEYS[3]  the line: a hash, see line.lua; or the first key again: the line cannot be used.
-- ARGV[1]  channel on which free permits are announced; that of a client has :client behind it.
-- ARGV[2]  how: see announce.lua.
-- Returns  {1, more, 0} there were some, {0, more, 0} no permit was taken, or those that were are over; more is 1 where there were so many
--          that some are left: run it again.
--
-- Once: other owners may have taken permits before it runs again.
-- The first permits to lapse go first.

local free, taken = KEYS[1], KEYS[2]
local channel, how = ARGV[1], ARGV[2]

free_permits(free)
local ids = redis.call('zrangebyscore', taken, '-inf', '+inf', 'limit', 0, most_taken)
check_ids(taken, ids)
if #ids == 0 then
    return {0, 0, 0}
end
local line = open_line(free, KEYS[3], '') -- before anything is given back: it may refuse
local held = redis.call('zcount', taken, '(' .. ms(now_ms()), '+inf')
-- At most most_taken.
for from = 1, #ids, 1000 do -- Lua passes no more than some thousand arguments
    redis.call('zrem', taken, unpack(ids, from, math.min(from + 999, #ids)))
end
add(free, #ids)
if line then
    leave_granted(line)
end
offer(free, taken, line, channel, how)
return {held > 0 and 1 or 0, #ids == most_taken and 1 or 0, 0}
