-- Takes the write half of a read/write lock, or one more level of a write hold. Where the lock is busy the caller may
-- have readers wait for it.
--
-- KEYS[1]  the lock: see readers.lua.
-- KEYS[2]  the waiting writers of relock: a zset {field -> epoch ms when its heartbeat expires}; a writer that holds the
--          read half has an entry with the field of this hold, too.
-- KEYS[3]  the token counter: a string; only for a fenced lock.
-- ARGV[1]  field of the hold, without its :write.
-- ARGV[2]  lease in ms.
-- ARGV[3]  level wanted: 1 is a fresh hold, more re-enters a held one.
-- ARGV[4]  what the key of a read lease begins with.
-- ARGV[5]  field of the caller's read hold, or ''.
-- ARGV[6]  how long a heartbeat lasts, in ms; 0 to leave nothing behind where the lock is busy.
-- Returns  {1, 0, token} held (token 0: not fenced), {0, pttl, 0} busy, {-1, 0, 0} nothing there to re-enter,
--          {-2, 0, 0} busy only with read holds whose owners wait to write, the caller among them.
--
-- Running it twice does what running it once does: the level is set, not added, and a lease is never shortened.
-- A hash that no lock makes is refused and never deleted: see record.lua.

local lock, writers, tokens = KEYS[1], KEYS[2], KEYS[3]
local field, lease, level = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local prefix, read_field, heartbeat_ttl = ARGV[4], ARGV[5], tonumber(ARGV[6])
local write_field = field .. ':write'

-- How many living readers wait to write, the caller among them: each would wait for the others.
local function upgrading()
    local n = 1
    for _, waiting in ipairs(redis.call('zrangebyscore', writers, ms(now_ms()), '+inf')) do
        if waiting ~= read_field and redis.call('hexists', lock, waiting) == 1 then
            n = n + 1
        end
    end
    return n
end

local function beat(of)
    redis.call('zadd', writers, ms(now_ms() + heartbeat_ttl), of)
end

local mode = redis.call('hget', lock, 'mode')
if not mode and redis.call('exists', lock) == 1 then
    check_record(lock)
    return {0, redis.call('pttl', lock), 0} -- a plain lock of this name is held
end
local mine = redis.call('hexists', lock, write_field) == 1
if level ~= '1' and not mine then
    return {-1, 0, 0}
end
if mode and not mine then
    check_record(lock)
    local living, evicted = -1, 0
    if mode == 'read' then
        local _
        living, _, evicted = evict_dead_readers(lock, prefix)
    end
    if living == 0 and evicted > 0 then
        redis.call('del', lock)
    else
        if read_field ~= '' and redis.call('hexists', lock, read_field) == 1 and living == upgrading() then
            return {-2, 0, 0}
        end
        if heartbeat_ttl > 0 then
            beat(field)
            if read_field ~= '' then
                beat(read_field)
            end
            extend(writers, heartbeat_ttl)
        end
        return {0, redis.call('pttl', lock), 0}
    end
end

-- The token first: if the counter is none, nothing is to be taken.
local token = level == '1' and draw_token(tokens) or 0
redis.call('zrem', writers, field)
if read_field ~= '' then
    redis.call('zrem', writers, read_field)
end
redis.call('hset', lock, 'mode', 'write', write_field, level)
extend(lock, lease)
return {1, 0, token}
