-- Acquires a lock, or sets the hold count of a hold. If the lock is busy, the caller may wait in the line. While the slot
-- of a lock moves to another server of a Cluster, Redis refuses scripts whose keys are not all on one server. Then this
-- one runs with KEYS[1] alone: it leaves the line as it is, and who finds the lock busy asks again.
--
-- KEYS[1]  the lock: a hash {field of the hold -> hold count}.
-- KEYS[2]  the order of the line: a zset, see line.lua.
-- KEYS[3]  the waits of the line: a hash.
-- KEYS[4]  the token counter: a string; only for a fenced lock.
-- ARGV[1]  the field of the hold, which is a new one for every acquire operation that is not a hand-off inside a
--          process.
-- ARGV[2]  the lease in ms.
-- ARGV[3]  the hold count to reach: 1, which is the default, is a new hold, more re-enters an existing one.
-- ARGV[4]  the delivery of the caller: see line.lua. The default is defer.
-- ARGV[5]  how many fencing tokens the caller can use: see counter.lua. The default is 1. More than 1 only if a hold of
--          its process has left it the record.
-- ARGV[6]  the command that publishes: see announce.lua. The default is publish.
-- ARGV[7]  the number of this request within its wait; only for push and poll.
-- ARGV[8]  the channel on which a release is announced, which push and poll have to name.
-- ARGV[9]  how long a grant lasts at most, in ms, if the client has been late for one; only for push and poll.
-- Returns  {1, token, following} held (token 0: not fenced); the following tokens after that one are those of the
--          caller, too. {0, pttl, place} busy, {-1, 0, 0} there is no hold to re-enter. For place see standing of
--          line.lua.
--
-- Repeatable: the hold count is set and not incremented, and a lease is never shortened.

--[[with forms]]
local there = KEYS[2] and (ARGV[3] or '1') == '1' and redis.pcall('exists', KEYS[1], KEYS[2], KEYS[3])
local token, following

--[[common case]]
-- The lock is free, no process waits, and any tombstones are those of others.
if there == 1 and redis.pcall('exists', KEYS[1], KEYS[2]) == 0 and redis.pcall('hexists', KEYS[3], ARGV[1]) == 0 then
    there = 0
end
if there == 0 then
    token = 0
    if KEYS[4] then -- drawn first: if the counter is not a number, the lock must not be acquired
        --[[with counter]]
        token, following = take_token(KEYS[4])
    end
    if token and redis.pcall('hset', KEYS[1], ARGV[1], '1') == 1 then
        if redis.pcall('pexpire', KEYS[1], ARGV[2]) == 1 then
            return token
        end
        if type(redis.pcall('hdel', KEYS[1], ARGV[1])) == 'table' then -- as undo of record.lua
            redis.pcall('del', KEYS[1])
        end
    end
end
--[[end]]

local lock, order, waits, tokens = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local field, hold_count, delivery = ARGV[1], ARGV[3] or '1', ARGV[4] or 'defer'
local how, asked, channel = ARGV[6] or 'publish', ARGV[7], ARGV[8]
local fenced = tokens and '1' or '0'
local may_wait = delivery == 'push' or delivery == 'poll'

--[[short cut]]
-- The most common case of a lock in use by several processes: the holder uses the line, and the caller joins at the
-- end, or does not wait. This does the same as the code below, without its functions, which take longer to create than
-- to run.
if there and there ~= 0 then
    local client = field:sub(1, 36)
    local head = redis.pcall('hmget', waits, field, client, 'shared')
    local holders = head[1] == false and (not may_wait or tonumber(head[3] or '') and not head[2]) and
        redis.pcall('hrandfield', lock, 2, 'withvalues') or {}
    local holder = #holders == 2 and holders[2] == '1' and holders[1] ~= field and
        holders[1]:match('^(%x+%-%x+%-%x+%-%x+%-%x+):%-?%d+:%d+$')
    local pttl = holder and #holder == 36 and redis.pcall('pttl', lock)
    local known = type(pttl) == 'number'
    if known and not may_wait then
        return string.format('0 %.0f 0', pttl)
    end
    local subscribed = known and (delivery == 'poll' or
        redis.pcall('pubsub', how == 'spublish' and 'shardnumsub' or 'numsub', channel .. ':' .. client)[2] ~= 0)
    local last = subscribed and redis.pcall('zrevrange', order, 0, 0, 'withscores')
    local number = last and not last.err and tonumber(last[2] or 0) + 1
    local ahead = number and number > 0 and number < 1e15 and redis.pcall('zcard', order)
    if type(ahead) == 'number' and ahead < near_head then
        local since = redis.pcall('time')[1] or ''
        local brief = string.format('%.0f', math.min(ARGV[2], math.max(ARGV[9] or 0, provisional)))
        local place = string.format(place_format, delivery, brief, fenced, asked, field, since)
        if redis.pcall('zadd', order, 'nx', string.format('%.0f', number), client) == 1 then
            if redis.pcall('hset', waits, client, place) == 1 and redis.pcall('pexpire', order, line_life) == 1 and
                redis.pcall('pexpire', waits, line_life) == 1 then
                return string.format('0 %.0f %.0f', pttl, 1 + 4 * ahead)
            end
            redis.pcall('zrem', order, client)
            redis.pcall('hdel', waits, client)
        end
    end
end
--[[end]]

--[[with record counter token]]
return answer(function()
local lease, pttl = tonumber(ARGV[2]), redis.call('pttl', lock)
local mine = pttl ~= -2 and redis.call('hexists', lock, field) == 1
if not mine and hold_count ~= '1' then
    return {-1, 0, 0}
end
if not mine and pttl ~= -2 and not order then
    check_record(lock)
    return {0, pttl, 2}
elseif not mine and (pttl ~= -2 or order and redis.call('exists', order, waits) > 0) then
    --[[with announce clock clients grant tombstones line passing]]
    channel = channel or 'redisson_lock__channel:' .. (lock:find('{', 1, true) and lock or '{' .. lock .. '}')
    local _, holder
    if pttl ~= -2 then
        _, holder = check_record(lock)
    end
    local line = open_line(lock, order, waits, field)
    if is_buried(line.waits, field) then
        return {0, pttl, 0}
    end
    local joins = may_wait and (pttl ~= -2 or line.size > 0)
    local lost = joins and subscription_lost(field, delivery, channel, how)
    local joined = joins and not lost and
        join(line, field, {delivery = delivery, lease = lease, most = ARGV[9], fenced = fenced, asked = asked})
    if pttl ~= -2 then
        return {0, pttl, standing(line, joined, lost, not is_relocks(holder))}
    end
    if line.size > 0 and delivery ~= 'barge' then
        local client = client_of(field)
        local to = pass_on(lock, line, tokens, channel, how, joined and client)
        if to and not (joined and to == client) then
            return {0, redis.call('pttl', lock), standing(line, joined, lost, false)}
        end
    end
    leave(line, field)
end

if hold_count == '1' and not token then
    token, following = draw_token(tokens, mine and tonumber(ARGV[5] or 1))
end
redis.call('hset', lock, field, hold_count)
if not mine then
    begin_lease(lock, ARGV[2], field)
elseif pttl < lease then
    redis.call('pexpire', lock, ARGV[2])
end
return {1, token or 0, following or 0}
end, {'hash', 'zset', 'hash', 'string'})
