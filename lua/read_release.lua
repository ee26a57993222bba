-- Gives back one level of a read hold, or all that an attempt may have taken. The last reader passes the lock to the first
-- writer in the line: see writer.lua.
--
-- KEYS[1]  the lock: a hash, see readers.lua.
-- KEYS[2]  the waiting writers: a zset, see write_acquire.lua.
-- KEYS[3]  the line: a hash, see line.lua; or the lock again: the line cannot be used.
-- KEYS[4]  the token counter: a string; only for a fenced lock.
-- ARGV[1]  field of the hold.
-- ARGV[2]  levels left: 0 ends the hold.
-- ARGV[3]  what the key of a lease begins with.
-- ARGV[4]  1 to refuse a hash that no lock makes, see record.lua; 0 where an attempt is undone, which leaves it as it is.
-- ARGV[5]  channel on which the release is announced; that of a client has :client behind it.
-- ARGV[6]  how: see announce.lua.
-- ARGV[7]  how long the line may keep the lock from those that hear the channel of another server, in ms.
-- Returns  {1, heard, passed} done, and so many connections were told that the lock is free; passed is 1 where the lock has
--          the next holder already. {-1, 0, 0} this hold is not there.
--
-- Repeatable, and then answers {-1, 0, 0}: running it late or twice ends no other hold, because the field belongs to
-- one acquisition, and to those that it was handed over to. The last reader frees the lock, unless its owner holds the
-- write half too.

local lock, writers, tokens = KEYS[1], KEYS[2], KEYS[4]
local field, left, prefix = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local refuse_others, channel, how, window = ARGV[4] == '1', ARGV[5], ARGV[6], tonumber(ARGV[7])

local mode = redis.call('hget', lock, 'mode')
local hold_count = hold_count_of(mode and redis.call('hget', lock, field))

if hold_count == 0 then
    drop_leases(prefix, field, left + 1, left + 1) -- Redisson's forceUnlock leaves them
    if refuse_others then
        check_record(lock)
    end
    return {-1, 0, 0}
end
if left > 0 then
    drop_leases(prefix, field, left + 1, hold_count)
    note_hold_count(lock, field, left)
    return {1, 0, 0}
end

local living, longest
if mode ~= 'write' then
    living, longest = evict_dead_readers(lock, prefix, field) -- before anything is given back: it fails where a slot moves
end
drop_leases(prefix, field, 1, hold_count)
if living == 0 then
    redis.call('del', lock)
    local line = try(function() return open_line(lock, KEYS[3], field) end)
    local heard, to = pass_to_writer(lock, writers, line, tokens, channel, how, '0', window)
    if line and line.exists then
        try(function() close_line(line) end)
    end
    if heard == 0 and not to then
        heard = announce(how, channel, '0') + (line and line.exists and announce_beside(channel, how) or 0)
    end
    return {1, heard, to and 1 or 0}
end
redis.call('hdel', lock, field)
if living then
    redis.call('pexpire', lock, ms(longest))
end
return {1, 0, 0}
