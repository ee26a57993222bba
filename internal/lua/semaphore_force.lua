-- Releases taken permits, regardless of who holds them: all of them, or those that an operator has seen. They pass to
-- the line.
--
-- KEYS[1]  the number of available permits: a string; see semaphore.lua.
-- KEYS[2]  the taken permits: a zset.
-- KEYS[3]  the order of the line: a zset, see line.lua.
-- KEYS[4]  the waits of the line: a hash.
-- ARGV[1]  the channel on which available permits are announced; that of a client has :client appended.
-- ARGV[2]  the command that publishes: see announce.lua.
-- ARGV     behind these: the fields of the holders that may lose their permits; none: all of them. See forced.lua.
-- Returns  {1, more, 0, clients} some permits were held, {0, more, 0, clients} no permit was taken, or the leases of
--          those that were have expired. more is 1 if the script released as many permits as one run may and some may
--          be left: run it again. For clients see forced.lua.
--
-- Once: other owners may have acquired permits before the script runs again.
-- The permits whose leases end first are released first.

--[[with forms record announce clock semaphore clients permit tombstones line passing permits forced]]
return answer(function()
local free, taken = KEYS[1], KEYS[2]
local channel, how = ARGV[1], ARGV[2]

-- The permits that may be released, and how many of them are held. A permit whose lease has expired is not held.
local function forced(seen)
    local now = now_ms()
    if not seen then
        return redis.call('zrangebyscore', taken, '-inf', '+inf', 'limit', 0, most_taken),
            redis.call('zcount', taken, '(' .. ms(now), '+inf')
    end
    local ids, held, looked = {}, 0, 0
    -- At most most_taken.
    for field in pairs(seen) do
        if looked >= most_taken then
            break
        end
        -- At most most_of_hold.
        for _, id in ipairs(ids_of(field)) do
            looked = looked + 1
            local ends = redis.call('zscore', taken, id)
            if ends then
                ids[#ids + 1], held = id, held + (tonumber(ends) > now and 1 or 0)
            end
        end
    end
    return ids, held
end

free_permits(free)
local ids, held = forced(seen_from(3))
check_ids(taken, ids)
if #ids == 0 then
    return {0, 0, 0}
end
local line = open_line(free, KEYS[3], KEYS[4], '') -- before the first write, because it may refuse
return_permits(free, taken, ids, #ids)
offer(free, taken, line, channel, how)
return with_clients({held > 0 and 1 or 0, #ids == most_taken and 1 or 0, 0}, ids)
end, {'string', 'zset', 'zset', 'hash'})
