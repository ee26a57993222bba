-- Acquires the write lock of a read/write lock, or sets the hold count of a write hold. If the lock is busy, the caller
-- may keep new readers out and wait in the line.
--
-- KEYS[1]  the lock: a hash, see readers.lua.
-- KEYS[2]  the waiting writers of relock: a zset {field -> epoch ms at which its heartbeat expires}; a writer that
--          holds the read lock has a second entry, with the field of this hold.
-- KEYS[3]  the order of the line: a zset, see line.lua.
-- KEYS[4]  the waits of the line: a hash.
-- KEYS[5]  the token counter: a string; only for a fenced lock.
-- ARGV[1]  the field of the hold, without its :write.
-- ARGV[2]  the lease in ms.
-- ARGV[3]  the prefix of the key of a read lease.
-- ARGV[4]  how long a heartbeat lasts, in ms; 0 to leave nothing behind if the lock is busy.
-- ARGV[5]  the channel on which a release is announced; that of a client is this one with :client appended.
-- ARGV[6]  the command that publishes: see announce.lua.
-- ARGV[7]  the hold count to reach: 1, which is the default, is a new hold, more re-enters an existing one.
-- ARGV[8]  the delivery of the caller: see line.lua. The default is defer.
-- ARGV[9]  the field of the caller's read hold; the default is ''.
-- ARGV[10]  the number of this request within its wait; only for push and poll.
-- ARGV[11]  how many fencing tokens the caller can use: see lock_acquire.lua.
-- ARGV[12]  how long a grant lasts at most, in ms, if the client has been late for one; only for push and poll.
-- Returns  what lock_acquire.lua does, or {-2, 0, 0}: busy with read holds whose owners all wait to write, the caller
--          among them.
--
-- Repeatable: see lock_acquire.lua.

local token, following

--[[common case]]
-- The lock is free, no writer waits, and there is no line, where a late request would find its tombstone.
if (ARGV[7] or '1') == '1' and redis.pcall('exists', KEYS[1], KEYS[2], KEYS[3], KEYS[4]) == 0 then
    local field = ARGV[1] .. ':write'
    token = 0
    if KEYS[5] then -- drawn first: if the counter is not a number, the lock must not be acquired
        --[[with counter]]
        token, following = take_token(KEYS[5])
    end
    if token and redis.pcall('hset', KEYS[1], 'mode', 'write', field, '1') == 2 then
        if redis.pcall('pexpire', KEYS[1], ARGV[2]) == 1 then
            return token
        end
        if type(redis.pcall('hdel', KEYS[1], 'mode', field)) == 'table' then -- as undo of record.lua
            redis.pcall('del', KEYS[1])
        end
    end
end
--[[end]]

--[[with forms record announce clock counter token clients grant tombstones line passing readers]]
return answer(function()
local lock, writers, tokens = KEYS[1], KEYS[2], KEYS[5]
local field, lease, prefix, heartbeat_ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local channel, how, hold_count, delivery = ARGV[5], ARGV[6], ARGV[7] or '1', ARGV[8] or 'defer'
local read_field, asked, fenced = ARGV[9] or '', ARGV[10], tokens and '1' or '0'
local write_field, waits = field .. ':write', delivery == 'push' or delivery == 'poll'

-- The number of living readers that wait to write, the caller among them. Each of them would wait for the others.
local function upgrading()
    local n, now = 1, now_ms()
    local alive = redis.call('zrangebyscore', writers, ms(now), ms(now + farthest_beat), 'limit', 0, most_holds)
    -- At most most_holds: there are no more readers.
    for _, waiting in ipairs(alive) do
        if waiting ~= read_field and redis.call('hexists', lock, waiting) == 1 then
            n = n + 1
        end
    end
    return n
end

local function heartbeat()
    if heartbeat_ttl > 0 then
        local ends = ms(now_ms() + heartbeat_ttl)
        local reads = read_field ~= '' and redis.call('hexists', lock, read_field) == 1 -- it may have ended
        redis.call('zadd', writers, ends, field, ends, reads and read_field or field)
        local done, why = pcall(extend, writers, heartbeat_ttl)
        if not done then
            redis.call('zrem', writers, field, read_field)
            error(why, 0)
        end
    end
end

local mode = redis.call('hget', lock, 'mode')
local plain = not mode and redis.call('exists', lock) == 1 -- a plain lock of this name is held
local _, holder
if plain then
    _, holder = check_record(lock)
end
local mine = mode and redis.call('hexists', lock, write_field) == 1
if hold_count ~= '1' and not mine then
    return {-1, 0, 0}
end
local line
if not mine then
    line = open_line(lock, KEYS[3], KEYS[4], write_field) -- before the first write, because it may refuse
    if is_buried(line.waits, write_field) then
        return {0, redis.call('pttl', lock), 0}
    end
    local free = not mode and not plain
    if mode then
        _, holder = check_record(lock)
        local living, evicted = -1, 0
        if mode == 'read' then
            redis.call('zrevrange', writers, 0, 0) -- fails if the key holds other data
        end
        if mode == 'read' and (read_field ~= '' or not has_reader(lock, prefix, '', 1)) then
            local _, strange
            living, _, evicted, strange = evict_dead_readers(lock, prefix)
            if strange then
                refuse(lock, strange)
            end
        end
        free = living == 0 and evicted > 0
        if free then
            token, following = draw_token(tokens)
            redis.call('del', lock)
        elseif read_field ~= '' and redis.call('hexists', lock, read_field) == 1 and living == upgrading() then
            return {-2, 0, 0}
        end
    end
    local joins = waits and (not free or line.size > 0)
    local lost = joins and subscription_lost(field, delivery, channel, how)
    local joined = joins and not lost and
        join(line, write_field, {delivery = delivery, lease = lease, most = ARGV[12], fenced = fenced, asked = asked})
    local to
    if free and line.size > 0 and delivery ~= 'barge' then
        local client = client_of(field)
        to = pass_on(lock, line, tokens, channel, how, joined and client)
        if joined and to == client then
            to = nil
        elseif to then
            forget_writer(writers, line.to)
        end
    end
    if not free or to then
        heartbeat()
        if delivery == 'barge' then
            leave(line, write_field) -- the caller holds the read lock now
        end
        local legacy = delivery ~= 'barge' and not free and not is_relocks(holder) -- one of many may not be seen
        return {0, redis.call('pttl', lock), standing(line, joined, lost, legacy)}
    end
end

if hold_count == '1' and not token then
    token, following = draw_token(tokens, mine and tonumber(ARGV[11] or 1))
end
redis.call('zrem', writers, field, read_field)
if line then
    leave(line, write_field)
end
redis.call('hset', lock, 'mode', 'write', write_field, hold_count)
if mine then
    extend(lock, lease)
else
    begin_lease(lock, ms(lease), 'mode', write_field)
end
return {1, token or 0, following or 0}
end, {'hash', 'zset', 'zset', 'hash', 'string'})
