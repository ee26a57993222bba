-- Prelude of the scripts of the read/write lock: the leases of its readers.
--
-- The record is a hash {mode -> read or write, field of a read hold -> hold count, field:write -> hold count}. Every
-- read hold has a lease of its own: prefix, field, :rwlock_timeout:, number. Redisson has such a key for each time that
-- it was acquired, and the numbers count from 1 to the hold count. A relock reader has the key with the number 1, which
-- each acquire sets to the longest lease of the hold. Java takes the longest lease of all numbers up to the hold count
-- in the hash, and missing keys count as expired. It deletes only keys of its own readers.
--
-- Rules: a reader whose leases have all expired is dead, and the next script that needs the lock evicts it. The lease
-- of the hash is never shorter than that of a living reader.
--
-- No script declares the leases. While the slot of the lock moves on a Cluster, the lock may be on this node and a lease
-- on the other one, and a command for this lease fails. So what reads or sets leases comes before the record changes.
--
-- A waiting writer has a heartbeat, which lasts three seconds: see rwlock.go. A heartbeat much farther in the future
-- was written before the clock of Redis was set back. It does not count, because its writer, if it is alive, writes
-- another one within a second.
--
-- A reader leaves a tombstone in the waits of the writers' line if a request that names its field may still run: see
-- tombstones.lua. A detached reader always leaves one: a split of a record that is shared (see read_rename.lua) does
-- not remove the field that it comes from, so it could otherwise run again, late, and bring the detached reader back.

-- How far in the future a heartbeat of a writer may end to count, in ms. The clock may have been set back a little.
local farthest_beat = 6000

local function is_write(field) return field:sub(-6) == ':write' end

-- Deletes the heartbeat of a writer that was granted the lock; field may be that of a plain lock.
local function forget_writer(writers, field)
    if is_write(field) then
        redis.pcall('zrem', writers, field:sub(1, -7))
    end
end

-- Deletes the heartbeats of all writers; other data at the key stays.
local function forget_writers(writers)
    if redis.pcall('zrevrange', writers, 0, 0)[1] then
        redis.pcall('del', writers) -- else they end within seconds
    end
end

local most_leases = 50000 -- leases that one script reads
local forever = 100 * 365 * 24 * 3600 * 1000

-- Returns the fields and values of a read/write lock, one after the other; if it has more than a lock may have, nil and
-- what refuse says.
local function fields_of(lock)
    local n = redis.call('hlen', lock)
    if n > most_holds + 1 then -- and the mode
        return nil, 'fields ' .. n
    end
    -- At most most_holds, and the mode.
    return redis.call('hgetall', lock)
end

-- The hold count of a reader, limited to the number that a loop may run to: other data may be in its place.
local function hold_count_of(value)
    return value and math.min(tonumber(value) or most_hold_count, most_hold_count) or 0
end

-- Sets a lease to at least this length.
local function extend(key, to)
    if redis.call('pttl', key) < to then
        redis.call('pexpire', key, ms(to))
    end
end

local function lease_key(prefix, reader, n)
    return prefix .. reader .. ':rwlock_timeout:' .. n
end

-- How many leases of a reader count. The field of a relock reader ends with the number of its acquire operation; that
-- of a transaction of Java has at least 32 digits there.
local function leases_of(reader, hold_count)
    local acquisition = reader:match('^[%x-]+:%-?%d+:(%d+)$')
    return acquisition and #acquisition <= 20 and 1 or hold_count
end

-- The ms that are left of the longest lease; 0 or less if there is none.
local function lease_left(prefix, reader, hold_count)
    local longest = -2
    -- At most most_hold_count.
    for n = 1, math.min(leases_of(reader, hold_count), most_hold_count) do
        local left = redis.call('pttl', lease_key(prefix, reader, n))
        if left == -1 then
            left = forever -- another program has removed the expiry
        end
        longest = math.max(longest, left)
    end
    return longest
end

-- Deletes the lease of a reader whose hold ends; what cannot be deleted expires, as the other keys of a Java reader do.
-- A detached reader is buried. Its owner is 0: see internal/engine/field.go.
local function drop_lease(waits, prefix, reader)
    if reader:find('^[%x-]+:0:') then
        bury(waits, reader)
    end
    redis.pcall('del', lease_key(prefix, reader, 1))
end

-- Whether a reader without leases is dead. On a Cluster the slot may be moving, and the leases may not have arrived on
-- this node yet. A command with one key that is here and one that is not then fails, and so does the script.
local function is_dead(lock, prefix, reader)
    redis.call('exists', lock, lease_key(prefix, reader, 1))
    return true
end

-- The hold count of a reader that lives, or 0.
local function living_count(lock, prefix, reader)
    local hold_count = hold_count_of(redis.call('hget', lock, reader))
    if hold_count == 0 or lease_left(prefix, reader, hold_count) <= 0 and is_dead(lock, prefix, reader) then
        return 0
    end
    return hold_count
end

local most_asked = 32 -- readers

-- Whether one of many readers, other than except, has a lease of at least this many ms. It asks some of them, and
-- reports false if there are few, or too many for a lock: then evict_dead_readers asks all.
local function has_reader(lock, prefix, except, least)
    local fields = redis.call('hlen', lock)
    if fields <= most_asked or fields > most_holds + 1 then
        return false
    end
    -- At most most_asked.
    local some = redis.call('hrandfield', lock, most_asked, 'withvalues')
    -- At most most_asked.
    for i = 1, #some, 2 do
        local field, value = some[i], some[i + 1]
        if field ~= 'mode' and field ~= except and not is_write(field) and is_hold(field, value) then
            local left = redis.call('pttl', lease_key(prefix, field, 1))
            if left >= least or left == -1 then
                return true
            end
        end
    end
    return false
end

-- Removes dead readers; returns the number of living readers other than except, the ms that are left of their longest
-- lease, and how many readers are dead. If none lives, the script deletes the lock, and none is removed. If the lock
-- has fields that no lock writes, none is removed, and these count as one reader that lives as long as the lock; the
-- function then also returns what refuse says of them.
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
    -- At most most_holds.
    for _, field in ipairs(dead) do
        if is_dead(lock, prefix, field) and living > 0 then
            redis.call('hdel', lock, field)
        end
    end
    return living, longest, #dead
end
