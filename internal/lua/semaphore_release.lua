-- Ends a hold of a permit, or of several, or whatever an attempt may have left in Redis, its place in the line
-- included. The permits pass to the next places. A hold count above 0 changes nothing, because Redis does not store the
-- hold count of a permit.
--
-- KEYS[1]  the number of available permits: a string; see semaphore.lua.
-- KEYS[2]  the taken permits: a zset.
-- KEYS[3]  the order of the line: a zset, see line.lua.
-- KEYS[4]  the waits of the line: a hash.
-- ARGV[1]  the field of the hold.
-- ARGV[2]  the channel on which available permits are announced; that of a client has :client appended.
-- ARGV[3]  the command that publishes: see announce.lua.
-- ARGV[4]  the hand-off window in ms: see release_to_all of passing.lua.
-- ARGV[5]  the hold count that is left: 0, which is the default, releases the permit.
-- ARGV[6]  1 if a request for the lock with this field may still run; the default is 0.
-- Returns  {1, heard, passed} done: see lock_release.lua. {-1, heard, passed} not all permits of the hold are taken, or
--          their leases had expired. Those that are taken are released all the same.
--
-- Repeatable, and then answers {-1, heard, passed}: see lock_release.lua.

--[[with forms]]
local released, received -- whether the common case has released the permit, and what Redis said when it told so

--[[common case]]
-- A permit whose lease has not expired is released, there is no line, and no connection hears of it.
if not ARGV[5] and ARGV[3] ~= in_both_ways and redis.pcall('exists', KEYS[3], KEYS[4]) == 0 then
    local available, clock = redis.pcall('get', KEYS[1]), redis.pcall('time')
    local ends = not clock.err and type(available) == 'string' and #available < 8 and
        (available == '0' or available:find('^[1-9]%d*$')) and redis.pcall('zscore', KEYS[2], ARGV[1])
    if type(ends) == 'string' and tonumber(ends) > clock[1] * 1000 + math.floor(clock[2] / 1000) then
        local n = redis.pcall('incrby', KEYS[1], 1)
        if type(n) == 'number' and redis.pcall('zrem', KEYS[2], ARGV[1]) == 1 then
            released, received = true, redis.pcall(ARGV[3], ARGV[2], string.format('%.0f', n))
            if received == 0 then
                return 0
            end
        elseif type(n) == 'number' then
            redis.pcall('incrby', KEYS[1], -1)
        end
    end
end
--[[end]]

--[[with record announce clock semaphore]]
return answer(function()
local free, taken, order, waits = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, channel, how, window = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local left, late = ARGV[5] or '0', ARGV[6] == '1'

if released then
    return {1, announce_free(free, channel, how, received), 0}
end
free_permits(free) -- if it is not a number, nothing must be released
local ids = ids_of(id)
local ends, there = ends_of(taken, ids)
local state = ends and ends > now_ms() and 1 or -1
if left ~= '0' then
    return {state, 0, 0}
end
released = return_permits(free, taken, ids, there) > 0
local heard, passed_on = 0, 0
if late or redis.pcall('exists', order, waits) ~= 0 then
    --[[with clients permit tombstones line passing permits]]
    passed_on = leave_and_pass(free, order, waits, id, late, function(line)
        local n = count_free(free)
        if n <= 0 then
            return
        end
        -- Permits that were available before were left to everybody just now, and their takers may be on their way; or
        -- they are kept for the head, which asks when it is told.
        heard = released and release_to_all(line, channel, how, ms(n), window, n > there) or 0
        return heard == 0 and pass_permits(free, taken, line, channel, how, nil) or nil
    end)
end
if released and heard == 0 then
    heard = announce_free(free, channel, how)
end
return {state, heard, passed_on}
end, {'string', 'zset', 'zset', 'hash'})
