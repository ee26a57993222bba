-- Acquires a permit of a semaphore, or several, all or none; or re-enters a hold. If not enough permits are available,
-- the caller may wait in the line.
--
-- KEYS[1]  the number of available permits: a string; see semaphore.lua.
-- KEYS[2]  the taken permits: a zset.
-- KEYS[3]  the order of the line: a zset, see line.lua.
-- KEYS[4]  the waits of the line: a hash.
-- ARGV[1]  the field of the hold, which is a new one for every acquire operation, and tells how many permits it wants.
-- ARGV[2]  the lease in ms.
-- ARGV[3]  the number of permits that the semaphore has if nothing has set it yet.
-- ARGV[4]  the channel on which available permits are announced; that of a client has :client appended.
-- ARGV[5]  the command that publishes: see announce.lua.
-- ARGV[6]  the hold count to reach: 1, which is the default, is a new hold, more re-enters an existing one.
-- ARGV[7]  the delivery of the caller: see line.lua. The default is defer. Who barges takes no permit if the next place
--          wants several.
-- ARGV[8]  the number of this request within its wait; only for push and poll.
-- ARGV[9]  how long a grant lasts at most, in ms, if the client has been late for one; only for push and poll.
-- Returns  {1, more, other} held: the script took the permits, and more is the number of permits that others may still
--          take. {1, 0, 0} they were held already. {0, pttl, place + other} busy: the first lease ends in pttl ms, or
--          none ends (-1); for place see standing of line.lua. {-1, 0, 0} there is no hold to re-enter. {-2, total, 0}
--          the caller wants more permits than the semaphore has. other is 0 if the semaphore has ARGV[3] permits, else
--          2^20 times (1 + the number that it has).
--
-- Repeatable, and then answers {1, 0, 0}: an id takes one permit, and a lease is never shortened.
-- A caller that waits in the line goes on waiting if the semaphore gets fewer permits than it wants: see fits.

--[[common case]]
-- A permit is available, none of the taken ones has expired, and there is no line.
if (ARGV[6] or '1') == '1' and redis.pcall('exists', KEYS[3], KEYS[4]) == 0 and not ARGV[1]:find('+', 1, true) then
    local available, clock = redis.pcall('get', KEYS[1]), redis.pcall('time')
    local n = type(available) == 'string' and #available < 8 and available:match('^[1-9]%d*$') and tonumber(available)
    local now = n and not clock.err and clock[1] * 1000 + math.floor(clock[2] / 1000)
    local some = now and redis.pcall('zrangebyscore', KEYS[2], '-inf', '+inf', 'withscores', 'limit', 0, 8) or {}
    local genuine = now and not some.err and not (some[2] and tonumber(some[2]) <= now)
    -- At most 8 ids: see check_permits.
    for i = 1, #some, 2 do
        genuine = genuine and
            (#some[i] == 16 or some[i]:sub(37, 37) == ':' and some[i]:find('^%x+%-%x+%-%x+%-%x+%-%x+:%-?%d+:'))
    end
    if genuine and redis.pcall('zcard', KEYS[2]) == ARGV[3] - n and redis.pcall('pttl', KEYS[1]) == -1 and
        type(redis.pcall('incrby', KEYS[1], -1)) == 'number' then
        if redis.pcall('zadd', KEYS[2], 'nx', string.format('%.0f', now + ARGV[2]), ARGV[1]) == 1 then
            return n - 1
        end
        redis.pcall('incrby', KEYS[1], 1)
    end
end
--[[end]]

--[[with forms record announce clock semaphore]]
return answer(function()
local free, taken, order, waits = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local id, lease, permits, channel, how = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local hold_count, delivery, asked = ARGV[6] or '1', ARGV[7] or 'defer', ARGV[8]

local now = now_ms()
local available = free_permits(free)
check_permits(taken)
local ids = ids_of(id)
local ends, there = ends_of(taken, ids)
-- The caller reports this number to the user. It cannot know it otherwise, because the number that it sends counts only
-- if none has been set.
local other = 0
local total = hold_count == '1' and available and available + redis.call('zcard', taken) or permits
if total ~= permits and total >= 0 then
    other = (math.min(total, 2147483647) + 1) * 1048576
end

local function lengthen()
    if ends < now + lease then
        lease_until(taken, ids, now + lease)
    end
end

-- No lease has expired, and no permit of this hold is missing.
local as_left = #redis.call('zrangebyscore', taken, '-inf', ms(now), 'limit', 0, 1) == 0 and (ends or there == 0)
if as_left and ends then
    lengthen()
    return {1, 0, 0}
elseif as_left and hold_count ~= '1' then
    return {-1, 0, 0}
end

--[[short cut]]
-- The most common case: permits are available, and no process waits.
local left = as_left and available or 0
if left >= #ids and redis.call('exists', order) == 0 and redis.call('hexists', waits, id) == 0 then
    take_permits(free, taken, ids, now + lease)
    return {1, left - #ids, other}
end
--[[end]]

--[[with clients permit tombstones line passing permits]]
-- Whether a holder that does not use the line will announce the release of its permit on the channel alone. Of many
-- permits it reads some.
local function has_legacy_holder()
    -- At most 1000.
    for _, other in ipairs(redis.call('zrangebyscore', taken, '-inf', '+inf', 'limit', 0, 1000)) do
        if not is_relocks(other) then
            return true
        end
    end
    return false
end

local line = open_line(free, order, waits, id) -- before the first write, because it may refuse
local returned = #drop_expired(free, taken, now)
ends, there = ends_of(taken, ids)
if ends then
    lengthen()
elseif there > 0 then -- some of its permits are missing, so the hold is lost
    returned = returned + return_permits(free, taken, ids, there)
end
local wants = not ends and hold_count == '1'
if available then
    available = available + returned
elseif wants then
    available = permits - redis.call('zcard', taken)
    redis.call('set', free, ms(available))
    returned = available -- a Java waiter sleeps until the number is set
end
wants = wants and not is_buried(line.waits, id)
local too_many = wants and #ids > 1 and #ids > total and not (line.mine and line.mine.field == id)
wants = wants and not too_many
local joins = wants and (delivery == 'push' or delivery == 'poll') and (available < #ids or line.size > 0)
local lost = joins and subscription_lost(id, delivery, channel, how)
local joined = joins and not lost and
    join(line, id, {delivery = delivery, lease = lease, most = ARGV[9], fenced = '0', asked = asked})
local ahead = wants and delivery == 'barge' and available >= #ids and
    not (line.size > 0 and wants_several(line, total, channel, how))
local asker = joined and client_of(id)
local to = not ahead and line.size > 0 and pass_permits(free, taken, line, channel, how, asker)
local takes = wants and count_free(free) >= #ids and not line.short
if takes then
    leave(line, id)
    take_permits(free, taken, ids, now + lease)
    if line.size > 0 and (ahead or to) then -- else no place fits
        pass_permits(free, taken, line, channel, how, nil)
    end
end
if returned > 0 then
    announce_free(free, channel, how)
end
if ends or takes then
    local more = takes and not line.short and math.max(0, count_free(free)) or 0
    return {1, more, takes and other or 0}
elseif hold_count ~= '1' then
    return {-1, 0, 0}
elseif too_many then
    return {-2, total, 0}
end
local first = redis.call('zrangebyscore', taken, '-inf', '+inf', 'withscores', 'limit', 0, 1)
local pttl = first[2] and has_lease(first[2]) and tonumber(first[2]) - now or -1
local place = standing(line, joined and line.mine, lost, has_legacy_holder())
return {0, pttl, math.min(place, 1048573) + other} -- 1048573, too, is 1 plus a multiple of four
end, {'string', 'zset', 'zset', 'hash'})
