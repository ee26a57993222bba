-- Acquires the read lock of a read/write lock, or sets the hold count of a read hold.
--
-- KEYS[1]  the lock: a hash, see readers.lua.
-- KEYS[2]  the waiting writers of relock: a zset, see write_acquire.lua.
-- KEYS[3]  the order of the line of the writers: a zset. Who may not release the lock because of it must not acquire
--          it.
-- KEYS[4]  the waits of that line: a hash.
-- ARGV[1]  the field of the hold.
-- ARGV[2]  the lease in ms.
-- ARGV[3]  the prefix of the key of a lease.
-- ARGV[4]  the hold count to reach: 1, which is the default, is a new hold, more re-enters an existing one.
-- ARGV[5]  the field of the caller's write hold, without its :write; the default is ''.
-- Returns  {1, 0, 0} held, {0, pttl, 0} busy, {-1, 0, 0} there is no hold to re-enter.
--
-- Repeatable: see lock_acquire.lua.
-- A reader joins other readers unless a writer waits, and the write hold of its own owner.

--[[common case]]
-- The lock is free, there are no waiters, and any tombstones are those of others.
local there = (ARGV[4] or '1') == '1' and redis.pcall('exists', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
if there == 1 and redis.pcall('exists', KEYS[1], KEYS[2], KEYS[3]) == 0 and redis.pcall('hexists', KEYS[4], ARGV[1]) == 0 then
    there = 0
end
if there == 0 then
    local set = redis.pcall('set', ARGV[3] .. ARGV[1] .. ':rwlock_timeout:1', '1', 'PX', ARGV[2])
    if not set.err and redis.pcall('hset', KEYS[1], 'mode', 'read', ARGV[1], '1') == 2 then
        if redis.pcall('pexpire', KEYS[1], ARGV[2]) == 1 then
            return 0
        end
        if type(redis.pcall('hdel', KEYS[1], 'mode', ARGV[1])) == 'table' then -- as undo of record.lua
            redis.pcall('del', KEYS[1])
        end
    end
end
--[[end]]

--[[with record clock tombstones readers]]
return answer(function()
local lock, writers = KEYS[1], KEYS[2]
local field, lease, prefix = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local hold_count, write_field = ARGV[4] or '1', (ARGV[5] or '') .. ':write'

local mode = redis.call('hget', lock, 'mode')
local free = not mode and redis.call('exists', lock) == 0
if not mode and not free then -- a plain lock of this name is held
    check_record(lock)
    return {hold_count == '1' and 0 or -1, redis.call('pttl', lock), 0}
end
local joins = mode and redis.call('hexists', lock, field) == 0 -- the caller has no hold yet
if free or joins then
    if hold_count ~= '1' then
        return {-1, 0, 0}
    elseif is_buried(KEYS[4], field) then -- this request runs late
        return {0, redis.call('pttl', lock), 0}
    end
    if mode and check_record(lock) == 1 then
        return {0, redis.call('pttl', lock), 0} -- the mode alone, left over from a lock, which expires
    end
    if not free and redis.call('hlen', lock) > most_holds then
        return {0, redis.call('pttl', lock), 0} -- the record is full
    end
    if mode ~= 'write' then
        local last, now = redis.call('zrevrange', writers, 0, 0, 'withscores'), now_ms()
        if last[2] and tonumber(last[2]) > now + farthest_beat then -- does not count: see readers.lua
            local after, to = '(' .. ms(now), ms(now + farthest_beat)
            last = redis.call('zrangebyscore', writers, after, to, 'withscores', 'limit', 0, 1)
        end
        local wait = last[2] and tonumber(last[2]) - now or 0
        if wait > 0 then
            return {0, math.max(1, wait), 0}
        end
    elseif redis.call('hexists', lock, write_field) == 0 then
        return {0, redis.call('pttl', lock), 0}
    end
end

-- The lease comes first: if this user may not set it, nothing is held. living_count fails if it is on the other node.
local longest = living_count(lock, prefix, field) > 0 and math.max(lease, lease_left(prefix, field, 1)) or lease
redis.call('set', lease_key(prefix, field, 1), '1', 'PX', ms(longest))
if free then
    redis.call('hset', lock, 'mode', 'read', field, hold_count)
    begin_lease(lock, ms(longest), 'mode', field)
else
    extend(lock, longest)
    redis.call('hset', lock, field, hold_count)
end
return {1, 0, 0}
end, {'hash', 'zset', 'zset', 'hash'})
