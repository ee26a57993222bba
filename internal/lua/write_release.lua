-- Sets the hold count of a write hold to a lower value, or ends the hold, or rolls back an attempt together with its
-- wait and its place in the line. When a hold ends, the lock passes to the first writer in the line: see writer.lua.
--
-- KEYS[1]  the lock: a hash, see readers.lua.
-- KEYS[2]  the waiting writers: a zset, see write_acquire.lua.
-- KEYS[3]  the order of the line: a zset, see line.lua.
-- KEYS[4]  the waits of the line: a hash.
-- KEYS[5]  the token counter: a string; only for a fenced lock.
-- ARGV[1]  the field of the hold, without its :write.
-- ARGV[2]  the prefix of the key of a read lease.
-- ARGV[3]  the channel on which a release is announced; that of a client is this one with :client appended.
-- ARGV[4]  the command that publishes: see announce.lua.
-- ARGV[5]  the hand-off window in ms: see release_to_all of passing.lua.
-- ARGV[6]  the hold count that is left: 0, which is the default, ends the hold.
-- ARGV[7]  1 if a request for the lock with this field may still run; the default is 0.
-- ARGV[8]  1 to roll back an attempt; the default is 0.
-- ARGV[9]  of a rollback: the field of the caller's read hold; the default is ''.
-- Returns  {1, heard, passed} done: see lock_release.lua. {-1, heard, passed} there is no such hold.
--
-- Repeatable, and then answers {-1, heard, passed}: see lock_release.lua. The lock is free afterwards, unless its owner
-- holds the read lock too and keeps it. A rollback leaves a hash that no lock writes as it is, and still ends the wait
-- of the caller.

--[[with forms]]
local had, received -- whether the common case has ended the hold, and what Redis said when it told so

--[[common case]]
-- The hold ends, there are no other holds and no waiters, and no connection hears of the release.
if not ARGV[6] and ARGV[4] ~= in_both_ways and
    redis.pcall('exists', KEYS[2], KEYS[3], KEYS[4]) == 0 and redis.pcall('hlen', KEYS[1]) == 2 then
    local record = redis.pcall('hmget', KEYS[1], 'mode', ARGV[1] .. ':write')
    had = record[1] == 'write' and record[2] and redis.pcall('del', KEYS[1]) == 1
    received = had and redis.pcall(ARGV[4], ARGV[3], '1')
    if received == 0 then
        return 0
    end
end
--[[end]]

--[[with record announce clock counter token clients grant tombstones line passing readers writer]]
return answer(function()
local lock, writers, tokens = KEYS[1], KEYS[2], KEYS[5]
local field, prefix, channel, how, window = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local left, late, rolls_back, read_field = ARGV[6] or '0', ARGV[7] == '1', ARGV[8] == '1', ARGV[9] or ''
local write_field = field .. ':write'

if rolls_back then
    redis.pcall('zrem', writers, field, read_field) -- a rollback goes on if the key holds other data
end

if had then
    return {1, announce_release(how, channel, '1', received), 0}
end

local found = redis.pcall('hexists', lock, write_field)
had = found == 1
local wrong = type(found) == 'table' -- the key holds other data: an error, after the field has left the line
if wrong and left ~= '0' then
    error(found, 0)
elseif had and left ~= '0' then
    note_hold_count(lock, write_field, left)
    return {1, 0, 0}
end
local free, heard, passed_on = false, 0, 0
if left == '0' then
    if had then
        local living, longest = evict_dead_readers(lock, prefix, write_field)
        free = living == 0
        if free then
            redis.call('del', lock)
        else
            redis.call('hdel', lock, '') -- needs no memory; after it Redis accepts the next write
            redis.call('hset', lock, 'mode', 'read') -- first: without a writer, the mode write would keep all others out
            redis.call('hdel', lock, write_field)
            redis.call('pexpire', lock, ms(longest))
            announce(how, channel, '1') -- a downgrade: other readers may join
        end
        forget_writers(writers) -- all that wait have the same chance now, readers too
    else
        free = redis.call('exists', lock) == 0
    end
    passed_on = leave_and_pass(lock, KEYS[3], KEYS[4], write_field, late, function(line)
        local to
        if free then
            heard, to = pass_to_writer(lock, writers, line, tokens, channel, how, '1', window)
        end
        return to
    end)
    if wrong then
        error(found, 0)
    end
end
local untold = free and heard == 0 and passed_on ~= 1
if had and untold then
    heard = announce_release(how, channel, '1')
elseif not had and not rolls_back then
    check_record(lock)
elseif not had and redis.call('exists', writers) == 0 and (untold or redis.call('hget', lock, 'mode') == 'read') then
    announce(how, channel, '1') -- readers waited for this writer
end
return {had and 1 or -1, heard, passed_on}
end, {'hash', 'zset', 'zset', 'hash', 'string'})
