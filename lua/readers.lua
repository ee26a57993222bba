-- Prelude of the scripts of the read/write lock: the leases of its readers.
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
-- A writer that waits has a heartbeat, which lasts three seconds: see rwlock.go. One that lies much farther in the future was made
-- before the clock of Redis was set back: it counts as no heartbeat, since its writer, if it lives, makes another one within a second.
--
-- Defines  farthest_beat                                how far in the future a heartbeat of a writer may end to count, in ms. The
--          clock may have been set back a little.
-- Defines  is_write(field)                              whether the field is a write hold.
-- Defines  hold_count_of(value)                         the levels of a hold, as many as a loop may go through.
-- Defines  leases_of(reader, hold_count)                how many leases of a reader count.
-- Defines  extend(key, to)                              makes a lease at least so long.
-- Defines  lease_key(prefix, reader, n)                 the key of one lease.
-- Defines  lease_left(prefix, reader, hold_count)       ms left of the longest lease; 0 or less where there is none.
-- Defines  forget_writer(writers, field)              forgets the heartbeat of a writer that was granted the lock; field may be that of
--          a plain lock.
-- Defines  drop_leases(prefix, reader, from, to)        deletes the leases of these levels.
-- Defines  is_dead(lock, prefix, reader)                whether a reader without leases is dead.
-- Defines  evict_dead_readers(lock, prefix, except)     removes dead readers; returns how many others than except live, ms
--          left of their longest lease, and how many were removed. Where the lock has fields that no lock makes, none is removed,
--          and these count as one that lives as long as the lock; then it also returns what refuse says of them.

local farthest_beat = 6000

local function is_write(field) return field:sub(-6) == ':write' end

local function forget_writer(writers, field)
    if is_write(field) then
        redis.pcall('zrem', writers, field:sub(1, -7))
    end
end

local most_leases = 50000 -- that one script looks at
local forever = 100 * 365 * 24 * 3600 * 1000

-- Other data may stand where a hold has its levels. The keys of a relock reader have no greater numbers.
local function hold_count_of(value) return value and math.min(tonumber(value) or most_hold_count, most_hold_count) or 0 end

local function extend(key, to)
    if redis.call('pttl', key) < to then
        redis.call('pexpire', key, ms(to))
    end
end

local function lease_key(prefix, reader, n)
    return prefix .. reader .. ':rwlock_timeout:' .. n
end

-- The field of a relock reader ends with the number of its acquisition; a transaction of Java has 32 digits there, at least.
local function leases_of(reader, hold_count)
    local acquisition = reader:match('^[%x-]+:%-?%d+:(%d+)$')
    return acquisition and #acquisition <= 20 and 1 or hold_count
end

local function lease_left(prefix, reader, hold_count)
    local longest = -2
    -- At most most_hold_count.
    for n = 1, math.min(leases_of(reader, hold_count), most_hold_count) do
        local left = redis.call('pttl', lease_key(prefix, reader, n))
        if left == -1 then
            left = forever -- another program took the lease away
        end
        longest = math.max(longest, left)
    end
    return longest
end

local function drop_leases(prefix, reader, from, to)
    -- At most most_hold_count.
    for n = from, math.min(to, most_hold_count) do
        redis.call('del', lease_key(prefix, reader, n))
    end
end

-- On a Cluster the leases may be on their way here, in a slot that moves. A command with one key that is here and one
-- that is not yet here then fails, and so does the script.
local function is_dead(lock, prefix, reader)
    redis.call('exists', lock, lease_key(prefix, reader, 1))
    return true
end

local function evict_dead_readers(lock, prefix, except)
    local entries, strange = fields_of(lock)
    local living, longest, leases, dead = 0, -2, 0, {}
    entries = entries or {}
    -- At most most_holds.
    for i = 1, #entries, 2 do
        local field, value = entries[i], entries[i + 1]
        local other = field ~= 'mode' and field ~= except
        if other and (not is_hold(field, value) or too_deep(field, value)) then
            strange = strange or field_text(field)
        elseif other and not strange and not is_write(field) then
            local hold_count = tonumber(value)
            leases = leases + leases_of(field, hold_count)
            local left = leases <= most_leases and lease_left(prefix, field, hold_count) or 0
            if leases > most_leases then
                strange = field_text(field)
            elseif left > 0 then
                living = living + 1
                longest = math.max(longest, left)
            else
                dead[#dead + 1] = field
            end
        end
    end
    if strange then
        local left = redis.call('pttl', lock)
        return living + 1, math.max(longest, left == -1 and forever or left, 1), 0, strange
    end
    local evicted = 0
    -- At most most_holds.
    for _, field in ipairs(dead) do
        if is_dead(lock, prefix, field) then
            redis.call('hdel', lock, field)
            evicted = evicted + 1
        end
    end
    return living, longest, evicted
end
