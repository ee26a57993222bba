-- Gives back all permits that are taken, no matter who holds them. They pass to the line.
--
-- KEYS[1]  the permits that are free: a string; see semaphore.lua.
-- KEYS[2]  the permits that are taken: a zset.
-- KEYS[3]  the line: see line.lua; or the first key again: the line cannot be used.
-- ARGV[1]  channel on which free permits are announced; that of a client has :client behind it.
-- ARGV[2]  how: see announce.lua.
-- Returns  {1, 0, 0} there were some, {0, 0, 0} no permit was taken.

local free, taken = KEYS[1], KEYS[2]
local channel, how = ARGV[1], ARGV[2]

free_permits(free)
check_ids(taken, redis.call('zrangebyscore', taken, '-inf', '+inf'))
local dropped = #drop_expired(free, taken, now_ms())
local n = redis.call('zcard', taken)
if n + dropped == 0 then
    return {0, 0, 0}
end
redis.call('del', taken)
add(free, n)
local line = open_line(free, KEYS[3], '')
if line then
    leave_granted(line)
end
offer(free, taken, line, channel, how)
return {n > 0 and 1 or 0, 0, 0}
