-- Takes a permit of a semaphore, or one more level of a permit that is held. Where no permit is free the caller may wait in the
-- line.
--
-- KEYS[1]  the permits that are free: a string; see semaphore.lua.
-- KEYS[2]  the permits that are taken: a zset.
-- KEYS[3]  the line: a hash, see line.lua; or the first key again: the line cannot be used.
-- ARGV[1]  id of the permit, of its own for every acquisition.
-- ARGV[2]  lease in ms.
-- ARGV[3]  level wanted: 1 takes a permit, more re-enters a held one.
-- ARGV[4]  how many permits a semaphore has that nothing has set the number of.
-- ARGV[5]  the caller and the line: pass takes a free permit before all others; yield lets the line go first; hears and asks
--          wait in the line: see line.lua.
-- ARGV[6]  number of this request in its wait.
-- ARGV[7]  channel on which free permits are announced; that of a client has :client behind it.
-- ARGV[8]  how: see announce.lua.
-- Returns  {1, more, other} held: a permit was taken, and so many more are free. {1, 0, 0} one more level is held, or the permit
--          was taken before. {0, pttl, place + other} busy: the first lease ends in pttl ms, or none does (-1). {-1, 0, 0} nothing
--          there to re-enter. other is 0 where the semaphore has as many permits as ARGV[4] says; else it is 2^20 times one more than
--          it has. place is 1 and four for each place in front where the caller has a place in the line, 2 where only the
--          channel says that a permit is free, 3 where the caller has none because this server has no subscription of it, else 0.
--
-- Repeatable, and then answers {1, 0, 0}: an id takes one permit, and a lease is never shortened.

local free, taken, key = KEYS[1], KEYS[2], KEYS[3]
local id, lease, hold_count, permits = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local delivery, asked, channel, how = ARGV[5], ARGV[6], ARGV[7], ARGV[8]

local now = now_ms()
local available = free_permits(free)
check_permits(taken)
local expired = drop_expired(free, taken, now)
local ends = redis.call('zscore', taken, id)
if ends and tonumber(ends) < now + lease then
    redis.call('zadd', taken, ms(now + lease), id)
end
local wants = not ends and hold_count == '1'
if available then
    available = available + #expired
elseif wants then
    available = permits - redis.call('zcard', taken)
    redis.call('set', free, ms(available))
end
-- The caller tells people. It has no other way to know: the number that it asks for counts only where there is none.
local other = 0
local total = wants and available + redis.call('zcard', taken) or permits
if total ~= permits and total >= 0 then
    other = (math.min(total, 2147483647) + 1) * 1048576
end

-- The commonest cases: the permit is held, or one is free and no process waits.
if #expired == 0 and not wants then
    return {ends and 1 or -1, 0, 0}
elseif #expired == 0 and available > 0 and (key == free or not may_exist(key) or is_idle_for(key, id)) then
    take_permit(free, taken, id, now + lease)
    return {1, available - 1, other}
end

--[[preludes]]
-- Whether a holder says on the channel alone that it gives back its permit. Of many permits it looks at some.
local function has_legacy_holder()
    -- At most 1000.
    for _, other in ipairs(redis.call('zrangebyscore', taken, '-inf', '+inf', 'limit', 0, 1000)) do
        if not uses_line(other) then
            return true
        end
    end
    return false
end

local line = open_line(free, key, id)
if line and line.exists then
    forget_expired(line, expired, id)
end
wants = wants and not (line and has_tombstone(line, id))
local joins = wants and line and (delivery == 'push' or delivery == 'poll') and (available <= 0 or line.exists)
local lost = joins and subscription_lost(id, delivery, channel, how)
local joined = joins and not lost and join(line, id, {delivery = delivery, lease = lease, fenced = '0', asked = asked})
if not (wants and delivery == 'barge') then
    line = pass_permits(free, taken, line, id, channel, how, joined and client_of(id))
end
local takes = wants and count_free(free) > 0
if takes then
    take_permit(free, taken, id, now + lease)
    if line and line.exists then
        leave(line, id)
        line = pass_permits(free, taken, line, id, channel, how, nil)
    end
end
local closed = line and (line.exists or joined) and close_line(line)
if #expired > 0 then
    announce_free(free, channel, how)
end
if ends or takes then
    return {1, takes and math.max(0, count_free(free)) or 0, takes and other or 0}
elseif hold_count ~= '1' then
    return {-1, 0, 0}
end
local first = redis.call('zrangebyscore', taken, '-inf', '+inf', 'withscores', 'limit', 0, 1)
local pttl = first[2] and has_lease(first[2]) and tonumber(first[2]) - now or -1
local place = standing(line, joined and closed and line.mine, lost, not line or has_legacy_holder())
return {0, pttl, math.min(place, 1048573) + other} -- which is 1 and four for each place, too
