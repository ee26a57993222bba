-- Gives back one level of a write hold, or all that an attempt may have taken: its wait, and its place in the line, too. The lock
-- passes to the first writer in the line: see writer.lua.
--
-- KEYS[1]  the lock: a hash, see readers.lua.
-- KEYS[2]  the waiting writers: a zset, see write_acquire.lua.
-- KEYS[3]  the line: a hash, see line.lua; or the lock again: the line cannot be used.
-- KEYS[4]  the token counter: a string; only for a fenced lock.
-- ARGV[1]  field of the hold, without its :write.
-- ARGV[2]  levels left: 0 ends the hold.
-- ARGV[3]  what the key of a read lease begins with.
-- ARGV[4]  1 where an attempt is undone, else 0.
-- ARGV[5]  of an undo: field of the caller's read hold, or ''.
-- ARGV[6]  channel on which the release is announced; that of a client has :client behind it.
-- ARGV[7]  how: see announce.lua.
-- ARGV[8]  how long the line may keep the lock from those that hear the channel of another server, in ms.
-- ARGV[9]  1 where a request that asks for the lock with this field may still run, else 0.
-- Returns  {1, heard, passed} done, and so many connections were told that the lock is free; passed is 1 where the lock has
--          the next holder already, 2 where this user may not tell the next one. {-1, heard, passed} this hold is not
--          there.
--
-- Repeatable, and then answers {-1, heard, passed}: running it late or twice ends no other hold, because the field
-- belongs to one acquisition, and to those that it was handed over to. The lock is free then, unless its owner holds
-- the read half too and keeps it. A hash that no lock makes is refused: see record.lua. An undo leaves it as it is, and the
-- caller waits no longer all the same.

local lock, writers, tokens = KEYS[1], KEYS[2], KEYS[4]
local field, left, prefix, rolls_back, read_field = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1', ARGV[5]
local channel, how, window, late = ARGV[6], ARGV[7], tonumber(ARGV[8]), ARGV[9] == '1'
local write_field = field .. ':write'

if rolls_back then
    redis.call('zrem', writers, field)
    if read_field ~= '' then
        redis.call('zrem', writers, read_field)
    end
end

local line = left == '0' and try(function() return open_line(lock, KEYS[3], write_field) end) or nil
local answer, free = release_write(lock, writers, line, tokens, prefix, write_field, left, late, channel, how, window)
if answer[1] ~= 1 and not rolls_back then
    check_record(lock)
elseif answer[1] ~= 1 and redis.call('exists', writers) == 0 and (free or redis.call('hget', lock, 'mode') == 'read') then
    announce(how, channel, '1') -- readers waited for this writer
end
return answer
