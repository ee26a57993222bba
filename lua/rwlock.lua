-- A lock that many readers share or one writer has: takes and gives back either half.
--
-- KEYS[1]  the lock: a hash {mode -> read or write, field of a read hold -> levels, field:write -> levels}
-- KEYS[2]  the waiting writers of relock: a zset {field -> epoch ms when it counts as dead};
--          one that reads already is there with the field of its read hold too; not to renew or to settle
-- KEYS[3]  the token counter: a string; only for a fenced write lock
-- ARGV[1]  what to do: read, unread, abandon-read, renew-read, settle-read, force-read, inspect-read,
--          write, unwrite, abandon-write, force-write or inspect-write
-- ARGV[2]  channel on which a release is announced
-- ARGV[3]  what the key of a read lease begins with; field:rwlock_timeout:level follows
-- ARGV[4]  field of the hold; '' where none is meant
-- ARGV[5]  read, write: level wanted, 1 is a fresh hold; unread, unwrite, abandon: levels left
-- ARGV[6]  read, write, renew: lease in ms; settle: the same, also if it is shorter than what is left
-- ARGV[7]  read, write, abandon-write: field of the caller's hold on the other half, or ''
-- ARGV[8]  write: how long a sign of waiting lasts, in ms; 0 to leave nothing behind when it is busy
-- ARGV[9]  how a release is announced: see announce.lua
-- Returns  read, write: {1, 0, token} held, {0, pttl, 0} busy, {-1, 0, 0} nothing there to re-enter, {-2, 0, 0} busy only with the caller
-- Returns  inspect: {1 if anybody holds this half, levels of the field, pttl}
-- Returns  unread, unwrite: {1, heard, 0} done, and so many connections were told that it is free; {-1, 0, 0} nothing there
-- Returns  else: {1, 0, 0} done, {0, 0, 0} or {-1, 0, 0} nothing there
--
-- Rules: every read hold has leases of its own, one key for each level, as Redisson
-- has them; a reader whose keys have all lapsed is dead, and whoever needs the
-- lock buries it. The lease of the hash is never shorter than that of a living
-- reader. Running it twice does what running it once does: levels are set. A
-- hash that no lock makes is refused, and never joined, emptied or deleted: see record.lua.
--
-- Every level of a reader costs the same. The lease of a relock reader is the key of its
-- first level: each acquire and each renewal sets this key to the longest lease of the
-- hold. Of the other levels each acquire and each renewal sets the last one alone, and
-- the keys between lapse. Java takes the longest lease of all levels in the hash, which is
-- the first one; missing keys count as lapsed. Java deletes keys of its own readers only.
-- Clients that set and renew the keys of all levels together have the longest lease in the first one too.

local lock, writers, tokens = KEYS[1], KEYS[2], KEYS[3]
local verb, channel, prefix, field = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local level, lease, kin, life = ARGV[5], tonumber(ARGV[6]), ARGV[7], tonumber(ARGV[8])
local how = ARGV[9]

local writing = field .. ':write' -- the field of a write hold

local forever = 100 * 365 * 24 * 3600 * 1000

local function now()
    local clock = redis.call('time')
    return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

local function ms(t) return string.format('%.0f', t) end

local function lease_key(reader, i)
    return prefix .. reader .. ':rwlock_timeout:' .. i
end

-- Time left of a reader's longest lease; below 0 when the reader is dead. The field of a relock
-- reader ends with the number of its acquisition; a transaction of Java has 32 digits there, at least.
local function lease_left(reader, levels)
    local longest = -2
    local acquisition = reader:match('^[%x-]+:%-?%d+:(%d+)$')
    if acquisition and #acquisition <= 20 then
        levels = 1
    end
    for i = 1, levels do
        local left = redis.call('pttl', lease_key(reader, i))
        if left == -1 then
            left = forever -- somebody took the lease away
        end
        longest = math.max(longest, left)
    end
    return longest
end

local function drop_leases(reader, from, to)
    for i = from, to do
        redis.call('del', lease_key(reader, i))
    end
end

-- Whether a reader without leases is dead. On a Cluster they may be on their way here, in a slot
-- that moves: then a command with one key that is here and one that is not yet fails, and so does the script.
local function dead(reader)
    redis.call('exists', lock, lease_key(reader, 1))
    return true
end

-- Buries dead readers. Returns how many others than that one live, the longest of their leases, and how many were buried.
local function readers(but)
    local entries = redis.call('hgetall', lock)
    local living, longest, buried = 0, -2, 0
    for i = 1, #entries, 2 do
        local name, levels = entries[i], tonumber(entries[i + 1])
        if name ~= but and name:sub(-6) ~= ':write' and is_hold(name, entries[i + 1]) then
            local left = lease_left(name, levels)
            if left > 0 then
                living = living + 1
                longest = math.max(longest, left)
            elseif dead(name) then
                redis.call('hdel', lock, name)
                buried = buried + 1
            end
        end
    end
    return living, longest, buried
end

-- How many living readers wait to write, the reader kin among them: each would wait for the others.
local function upgrading(kin)
    local n = 1
    for _, waiting in ipairs(redis.call('zrangebyscore', writers, ms(now()), '+inf')) do
        if waiting ~= kin and redis.call('hexists', lock, waiting) == 1 then
            n = n + 1
        end
    end
    return n
end

local function extend(key, to)
    if redis.call('pttl', key) < to then
        redis.call('pexpire', key, ms(to))
    end
end

local function free(message)
    redis.call('del', lock)
    return announce(how, channel, message)
end

if verb == 'abandon-write' then -- a writer that gives up waits no longer, whatever the lock is
    redis.call('zrem', writers, field)
    if kin ~= '' then
        redis.call('zrem', writers, kin)
    end
end

local mode = redis.call('hget', lock, 'mode')
if not mode and redis.call('exists', lock) == 1 then
    if verb ~= 'abandon-read' and verb ~= 'abandon-write' then
        check_record(lock)
    end
    if verb == 'read' or verb == 'write' then
        return {0, redis.call('pttl', lock), 0} -- a plain lock of that name is held
    end
    return {0, 0, redis.call('pttl', lock)}
end

if verb == 'read' then
    local mine = redis.call('hexists', lock, field) == 1
    if level ~= '1' and not mine then
        return {-1, 0, 0}
    end
    if not mine then
        if mode and check_record(lock) == 1 then
            return {0, redis.call('pttl', lock), 0} -- a mode without holders, which may be a rest of a lock: it lapses
        end
        local downgrading = mode == 'write' and redis.call('hexists', lock, kin .. ':write') == 1
        if mode == 'write' and not downgrading then
            return {0, redis.call('pttl', lock), 0}
        end
        if not downgrading then
            local waiting = redis.call('zrevrange', writers, 0, 0, 'withscores')
            if waiting[2] and tonumber(waiting[2]) > now() then
                return {0, math.max(1, tonumber(waiting[2]) - now()), 0}
            end
        end
    end
    if not mode then
        redis.call('hset', lock, 'mode', 'read')
    end
    redis.call('hset', lock, field, level)
    local longest = math.max(lease, lease_left(field, 1))
    redis.call('set', lease_key(field, 1), '1', 'PX', ms(longest))
    if level ~= '1' then
        redis.call('set', lease_key(field, level), '1', 'PX', ms(longest))
    end
    extend(lock, longest)
    return {1, 0, 0}
end

if verb == 'write' then
    local mine = redis.call('hexists', lock, writing) == 1
    if level ~= '1' and not mine then
        return {-1, 0, 0}
    end
    if not mine and mode then
        check_record(lock)
        local living, _, buried = -1, -2, 0
        if mode == 'read' then
            living, _, buried = readers()
        end
        if living == 0 and buried > 0 then
            redis.call('del', lock)
        else
            if kin ~= '' and redis.call('hexists', lock, kin) == 1 and living == upgrading(kin) then
                return {-2, 0, 0}
            end
            if life > 0 then
                redis.call('zadd', writers, ms(now() + life), field)
                if kin ~= '' then
                    redis.call('zadd', writers, ms(now() + life), kin)
                end
                extend(writers, life)
            end
            return {0, redis.call('pttl', lock), 0}
        end
    end
    local token = level == '1' and draw_token(tokens) or 0
    redis.call('zrem', writers, field)
    if kin ~= '' then
        redis.call('zrem', writers, kin)
    end
    redis.call('hset', lock, 'mode', 'write', writing, level)
    extend(lock, lease)
    return {1, 0, token}
end

if verb == 'renew-read' or verb == 'settle-read' then
    local levels = tonumber(redis.call('hget', lock, field) or 0)
    if levels == 0 or lease_left(field, 1) <= 0 and dead(field) then
        return {-1, 0, 0}
    end
    if verb == 'settle-read' then
        drop_leases(field, 2, levels) -- a longer one would count for Java
        redis.call('pexpire', lease_key(field, 1), ms(lease))
    else
        extend(lease_key(field, 1), lease)
        extend(lease_key(field, levels), lease)
    end
    if verb == 'settle-read' and mode == 'read' then
        local _, longest = readers()
        redis.call('pexpire', lock, ms(longest))
    else
        extend(lock, lease)
    end
    return {1, 0, 0}
end

if verb == 'inspect-read' then
    local living = 0
    if mode then
        check_record(lock)
        local _, buried
        living, _, buried = readers()
        if buried > 0 and redis.call('hlen', lock) == 1 then
            redis.call('del', lock) -- a mode alone is no record
        end
    end
    return {living > 0 and 1 or 0, tonumber(redis.call('hget', lock, field) or 0), redis.call('pttl', lock)}
end

if verb == 'inspect-write' then
    local levels = tonumber(redis.call('hget', lock, writing) or 0)
    if mode and levels == 0 then
        check_record(lock)
    end
    return {mode == 'write' and 1 or 0, levels, redis.call('pttl', lock)}
end

if verb == 'force-read' or verb == 'force-write' then
    -- Each half by itself: a writer's read lock stays when its write lock is
    -- forced, and the other way round.
    local dropped, kept = 0, 0
    if mode then
        check_record(lock)
    end
    local entries = redis.call('hgetall', lock)
    for i = 1, #entries, 2 do
        if entries[i] ~= 'mode' and not is_hold(entries[i], entries[i + 1]) then
            refuse_field(lock, entries[i])
        end
    end
    for i = 1, #entries, 2 do
        local name, levels = entries[i], tonumber(entries[i + 1])
        local wanted = verb == 'force-read'
        if levels and name:sub(-6) == ':write' then
            wanted = not wanted
        end
        if levels and wanted then
            redis.call('hdel', lock, name)
            drop_leases(name, 1, levels)
            dropped = dropped + 1
        elseif levels then
            kept = kept + 1
        end
    end
    if dropped == 0 then
        return {0, 0, 0}
    end
    redis.call('del', writers)
    if kept == 0 then
        free(mode == 'write' and '1' or '0')
    elseif mode == 'write' and verb == 'force-write' then
        redis.call('hset', lock, 'mode', 'read')
        announce(how, channel, '1')
    end
    return {1, 0, 0}
end

-- What is left is giving back.
local write_half = verb == 'unwrite' or verb == 'abandon-write'
local name = write_half and writing or field
local held = tonumber(redis.call('hget', lock, name) or 0)
local left = tonumber(level)

if verb == 'abandon-write' then
    if held == 0 and mode ~= 'write' and redis.call('exists', writers) == 0 then
        announce(how, channel, '1') -- readers waited for this writer
    end
end
if held == 0 then
    if not write_half then
        drop_leases(field, left + 1, left + 1) -- Redisson's forceUnlock leaves them
    end
    if mode and (verb == 'unread' or verb == 'unwrite') then
        check_record(lock)
    end
    return {-1, 0, 0}
end
local ends = left == 0 and (write_half or mode ~= 'write')
local living, longest = 0, -2
if ends then
    living, longest = readers(name) -- before anything is given back: it fails where a slot moves
end
if not write_half then
    drop_leases(field, left + 1, held)
end
if left > 0 then
    note_levels(lock, name, left)
    return {1, 0, 0}
end
redis.call('hdel', lock, name)
if not ends then
    return {1, 0, 0} -- the writer has given back its read lock
end
if write_half then
    redis.call('del', writers) -- whoever waits, readers too, has the same chance now
end
if living == 0 then
    return {1, free(write_half and '1' or '0'), 0}
end
redis.call('hset', lock, 'mode', 'read')
redis.call('pexpire', lock, ms(longest))
if write_half then
    announce(how, channel, '1') -- downgraded: all readers may come in
end
return {1, 0, 0}
