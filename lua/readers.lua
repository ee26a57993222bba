-- Prelude of the scripts of the read/write lock: the leases of its readers. Needs clock.lua.
--
-- The record is a hash {mode -> read or write, field of a read hold -> levels, field:write -> levels}. Every read hold
-- has leases of its own, one key for each level, as Redisson has them: prefix, field, :rwlock_timeout:, level.
--
-- Rules: a reader without a living lease is dead, and the next script that needs the lock evicts it. The lease of the
-- hash is never shorter than that of a living reader.
--
-- Every level of a reader costs the same. The lease of a relock reader is the key of its first level: each acquire and
-- each renewal sets this key to the longest lease of the hold. Of the other levels each acquire and each renewal sets
-- the last one alone, and the keys between expire. Java takes the longest lease of all levels in the hash, which is the
-- first one; missing keys count as expired. Java deletes keys of its own readers only. Clients that set and renew the
-- keys of all levels together have the longest lease in the first one too.
--
-- Defines  is_write(field)                              whether the field is a write hold.
-- Defines  extend(key, to)                              makes a lease at least so long.
-- Defines  lease_key(prefix, reader, level)             the key of one lease.
-- Defines  lease_left(prefix, reader, levels)           ms left of the longest lease; 0 or less where there is none.
-- Defines  drop_leases(prefix, reader, from, to)        deletes the leases of these levels.
-- Defines  is_dead(lock, prefix, reader)                whether a reader without leases is dead.
-- Defines  evict_dead_readers(lock, prefix, except)     removes dead readers; returns how many others than except live, ms
--          left of their longest lease, and how many were removed.

local function is_write(field) return field:sub(-6) == ':write' end

local function extend(key, to)
    if redis.call('pttl', key) < to then
        redis.call('pexpire', key, ms(to))
    end
end

local function lease_key(prefix, reader, level)
    return prefix .. reader .. ':rwlock_timeout:' .. level
end

-- The field of a relock reader ends with the number of its acquisition; a transaction of Java has 32 digits there, at least.
local function lease_left(prefix, reader, levels)
    local forever = 100 * 365 * 24 * 3600 * 1000
    local longest = -2
    local acquisition = reader:match('^[%x-]+:%-?%d+:(%d+)$')
    if acquisition and #acquisition <= 20 then
        levels = 1
    end
    for level = 1, levels do
        local left = redis.call('pttl', lease_key(prefix, reader, level))
        if left == -1 then
            left = forever -- another program took the lease away
        end
        longest = math.max(longest, left)
    end
    return longest
end

local function drop_leases(prefix, reader, from, to)
    for level = from, to do
        redis.call('del', lease_key(prefix, reader, level))
    end
end

-- On a Cluster the leases may be on their way here, in a slot that moves. A command with one key that is here and one
-- that is not yet here then fails, and so does the script.
local function is_dead(lock, prefix, reader)
    redis.call('exists', lock, lease_key(prefix, reader, 1))
    return true
end

local function evict_dead_readers(lock, prefix, except)
    local entries = redis.call('hgetall', lock)
    local living, longest, evicted = 0, -2, 0
    for i = 1, #entries, 2 do
        local field, levels = entries[i], entries[i + 1]
        if field ~= except and not is_write(field) and is_hold(field, levels) then
            local left = lease_left(prefix, field, tonumber(levels))
            if left > 0 then
                living = living + 1
                longest = math.max(longest, left)
            elseif is_dead(lock, prefix, field) then
                redis.call('hdel', lock, field)
                evicted = evicted + 1
            end
        end
    end
    return living, longest, evicted
end
