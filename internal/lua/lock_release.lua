-- Sets the hold count of a lock to a lower value, or ends the hold, or whatever an attempt may have left in Redis, its
-- place in the line included. When a hold ends, the lock passes to the next place, unless KEYS[1] is the only key: see
-- lock_acquire.lua.
--
-- KEYS[1]  the lock: a hash {field of the hold -> hold count}.
-- KEYS[2]  the order of the line: a zset, see line.lua.
-- KEYS[3]  the waits of the line: a hash.
-- KEYS[4]  the token counter: a string; only for a fenced lock.
-- ARGV[1]  the field of the hold.
-- ARGV[2]  the channel on which a release is announced; that of a client is this one with :client appended.
-- ARGV[3]  the command that publishes: see announce.lua.
-- ARGV[4]  the hand-off window in ms: see release_to_all of passing.lua.
-- ARGV[5]  the hold count that is left: 0, which is the default, ends the hold.
-- ARGV[6]  1 if a request for the lock with this field may still run; the default is 0.
-- Returns  {1, heard, passed} done. heard is the number of connections that received the message that the lock is free;
--          for passed see passing.lua. {-1, 0, passed} there is no such hold.
--
-- Repeatable, and then answers {-1, 0, passed}: a late or second run releases no hold of another owner, because the
-- field belongs to one acquire operation and to those that it was handed off to, the last of which releases it. A hold
-- count can be lowered even if Redis has no memory left: see note_hold_count of record.lua.

--[[with forms]]
local deleted, received -- the answers of Redis

--[[common case]]
-- There is no line, and no connection hears of the release.
if KEYS[2] and not ARGV[5] and ARGV[3] ~= in_both_ways and redis.pcall('exists', KEYS[2], KEYS[3]) == 0 then
    deleted = redis.pcall('hdel', KEYS[1], ARGV[1]) -- deleting the only field deletes the record
    received = deleted == 1 and redis.pcall(ARGV[3], ARGV[2], '0')
    if received == 0 then
        return 0
    end
end
--[[end]]

--[[with announce counter]]
local lock, order, waits, tokens = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local field, channel, how, window = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local left, late = ARGV[5] or '0', ARGV[6] == '1'
local ends = order and left == '0' and not late

--[[short cut]]
-- No process waits, or the common case has ended the hold, and connections hear of it.
if ends and (deleted == 1 or redis.pcall('exists', order) == 0) then
    if not deleted then
        deleted = redis.pcall('hdel', lock, field)
        redis.pcall('hdel', waits, deleted == 1 and 'shared' or '') -- as settle of line.lua
    end
    if deleted == 1 then
        return announce_release(how, channel, '0', received)
    end
elseif ends and how ~= in_both_ways then
    -- The most common case of a lock in use by several processes: it passes to the process at the front, which is
    -- subscribed. This does the same as the code below, without its functions, which take longer to create than to run.
    -- Where the token cannot be drawn, the code below grants the lock without one.
    local client = field:sub(1, 36)
    local to = redis.pcall('zrangebyscore', order, '-inf', '+inf', 'limit', 0, 1)[1]
    local head = to and redis.pcall('hmget', waits, to, 'shared', client) or {}
    local shared, own = tonumber(head[2] or ''), head[3]
    own = own and (own .. ' '):find(' ' .. field .. ' ', 1, true) -- a place of this field
    local delivery, lease, fenced, asked, waiter
    if head[1] then
        delivery, lease, fenced, asked, waiter = head[1]:match(place_pattern)
    end
    local clock = redis.pcall('time')
    -- For how many ms this process has kept the lock from others.
    local kept = shared and not clock.err and clock[1] * 1000 + math.floor(clock[2] / 1000) - shared
    if delivery == 'push' and #lease < 16 and not own and kept and kept >= 0 and kept < window and
        (redis.pcall('pubsub', how == 'spublish' and 'shardnumsub' or 'numsub', channel .. ':' .. to)[2] or 0) ~= 0 then
        deleted = redis.pcall('hdel', lock, field)
        local free, token = deleted == 1 and redis.pcall('exists', lock) == 0, 0
        if free and fenced == '1' then
            token = tokens and take_token(tokens)
        end
        if free and token then
            local grant = string.format(grant_format, waiter, asked, lease, string.format('%.0f', token))
            local heard = type(redis.pcall('hset', lock, waiter, 1)) == 'number' and
                redis.pcall('pexpire', lock, lease) == 1 and redis.pcall(how, channel .. ':' .. to, grant)
            if type(heard) == 'number' then
                redis.pcall('zrem', order, to)
                redis.pcall('hdel', waits, to)
                return '1 0 1'
            end
            redis.pcall('hdel', lock, waiter)
        end
    end
end
--[[end]]

--[[with record]]
return answer(function()
if left ~= '0' then
    if redis.call('hexists', lock, field) == 0 then
        check_record(lock)
        return {-1, 0, 0}
    end
    note_hold_count(lock, field, left)
    return {1, 0, 0}
end

deleted = deleted or redis.pcall('hdel', lock, field)
local had = deleted == 1
local heard, passed_on = 0, 0
if order and (late or redis.pcall('exists', order, waits) ~= 0) then
    --[[with clock token clients grant tombstones line passing]]
    passed_on = leave_and_pass(lock, order, waits, field, late, function(line)
        if redis.call('hlen', lock) > 0 then
            return had and settle(line) or nil
        end
        heard = had and release_to_all(line, channel, how, '0', window, false) or 0
        return heard == 0 and pass_on(lock, line, tokens, channel, how, nil) or nil
    end)
end
if type(deleted) == 'table' then
    error(deleted, 0)
elseif not had then
    check_record(lock)
elseif heard == 0 and passed_on ~= 1 then
    heard = announce_release(how, channel, '0')
end
return {had and 1 or -1, heard, passed_on}
end, {'hash', 'zset', 'hash', 'string'})
