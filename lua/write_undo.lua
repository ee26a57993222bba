-- Undoes an attempt to write: the caller waits no longer, and gives back what the attempt may have taken: the place in the
-- line, too.
--
-- KEYS[1]  the lock: a hash, see readers.lua.
-- KEYS[2]  the waiting writers: a zset, see write_acquire.lua.
-- KEYS[3]  the line: a hash, see line.lua; or the lock again: the line cannot be used.
-- KEYS[4]  the token counter: a string; only for a fenced lock.
-- ARGV[1]  field of the hold, without its :write.
-- ARGV[2]  levels that the caller had before the attempt: 0 ends the hold.
-- ARGV[3]  what the key of a read lease begins with.
-- ARGV[4]  field of the caller's read hold, or ''.
-- ARGV[5]  channel on which a release is announced; that of a client has :client behind it.
-- ARGV[6]  how: see announce.lua.
-- ARGV[7]  how long the line may keep the lock from those that hear the channel of another server, in ms.
-- ARGV[8]  1 where a request that asks for the lock with this field may still run, else 0.
-- Returns  {1, heard, passed} done, and so many connections were told that the lock is free; passed is 1 where the lock has
--          the next holder already, 2 where this user may not tell the next one. {-1, heard, passed} the attempt has
--          taken nothing.
--
-- Repeatable, and then answers {-1, heard, passed}: running it late or twice ends no other hold, because the field
-- belongs to one acquisition. A hash that no lock makes stays as it is, and the caller waits no longer all the same.

local lock, writers, tokens = KEYS[1], KEYS[2], KEYS[4]
local field, left, prefix, read_field = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local channel, how, slice, late = ARGV[5], ARGV[6], tonumber(ARGV[7]), ARGV[8] == '1'
local write_field = field .. ':write'

redis.call('zrem', writers, field)
if read_field ~= '' then
    redis.call('zrem', writers, read_field)
end

local line = left == '0' and try(function() return open_line(lock, KEYS[3], write_field) end) or nil
local answer, free = give_back_write(lock, writers, line, tokens, prefix, write_field, left, late, channel, how, slice)
if answer[1] ~= 1 and redis.call('exists', writers) == 0 and (free or redis.call('hget', lock, 'mode') == 'read') then
    announce(how, channel, '1') -- readers waited for this writer
end
return answer
