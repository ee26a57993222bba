-- Releases the read lock or the write lock of a read/write lock, regardless of who holds it. Its counterpart stays as
-- it is.
--
-- KEYS[1]  the lock: a hash, see readers.lua.
-- KEYS[2]  the waiting writers: a zset, see write_acquire.lua.
-- KEYS[3]  the order of the line: a zset, see line.lua.
-- KEYS[4]  the waits of the line: a hash.
-- KEYS[5]  the token counter: a string; only for a fenced lock.
-- ARGV[1]  the lock to release: read or write.
-- ARGV[2]  the prefix of the key of a read lease.
-- ARGV[3]  the channel on which a release is announced; that of a client is this one with :client appended.
-- ARGV[4]  the command that publishes: see announce.lua.
-- ARGV     behind these: the fields of the holders that may lose the lock; none: all of them. See forced.lua.
-- Returns  {1, 0, 0, clients} released, {0, 0, 0} this lock was free, or has other holders. For clients see forced.lua.
--
-- Once: other owners may have acquired this lock before the script runs again.

--[[with forms record announce clock counter token clients grant tombstones line passing readers writer forced]]
return answer(function()
local lock, writers, tokens = KEYS[1], KEYS[2], KEYS[5]
local half, prefix, channel, how, seen = ARGV[1], ARGV[2], ARGV[3], ARGV[4], seen_from(5)

check_record(lock)
local mode = redis.call('hget', lock, 'mode')
if not mode or half == 'write' and mode == 'read' then
    return {0, 0, 0}
end
local line = open_line(lock, KEYS[3], KEYS[4], '') -- before the first write, because it may refuse
local living, longest, _, strange = evict_dead_readers(lock, prefix)
if strange then
    refuse(lock, strange)
end
local entries, freed = fields_of(lock), {}
-- At most most_holds.
for i = 1, #entries, 2 do
    local field = entries[i]
    if field ~= 'mode' and is_write(field) == (half == 'write') and (not seen or seen[field]) then
        freed[#freed + 1] = field
    end
end
if #freed == 0 then
    return {0, 0, 0}
end
local kept = half == 'write' and living or living - #freed
if half == mode and kept <= 0 then
    redis.call('del', lock)
else
    in_parts('hdel', lock, freed)
end
-- At most most_holds.
for _, field in ipairs(half == 'read' and freed or {}) do
    drop_lease(KEYS[4], prefix, field)
end
forget_writers(writers)
if half ~= mode then
    return with_clients({1, 0, 0}, freed) -- a writer holds the lock
end
local message = mode == 'write' and '1' or '0'
if kept > 0 then
    redis.call('hset', lock, 'mode', 'read')
    _, longest = evict_dead_readers(lock, prefix) -- of those that are left
    redis.call('pexpire', lock, ms(longest))
    if half == 'write' then
        announce(how, channel, message) -- other readers may join
    end
else
    local heard, to = pass_to_writer(lock, writers, line, tokens, channel, how, message, 0)
    if heard == 0 and not to then
        announce(how, channel, message)
    end
end
return with_clients({1, 0, 0}, freed)
end, {'hash', 'zset', 'zset', 'hash', 'string'})
