-- Gives back one level of a write hold. The lock passes to the first writer in the line: see writer.lua.
--
-- KEYS[1]  the lock: a hash, see readers.lua.
-- KEYS[2]  the waiting writers: a zset, see write_acquire.lua.
-- KEYS[3]  the line: a hash, see line.lua; or the lock again: the line cannot be used.
-- KEYS[4]  the token counter: a string; only for a fenced lock.
-- ARGV[1]  field of the hold, without its :write.
-- ARGV[2]  levels left: 0 ends the hold.
-- ARGV[3]  what the key of a read lease begins with.
-- ARGV[4]  channel on which the release is announced; that of a client has :client behind it.
-- ARGV[5]  how: see announce.lua.
-- ARGV[6]  how long the line may keep the lock from those that hear the channel of another server, in ms.
-- ARGV[7]  1 where a request that asks for the lock with this field may still run, else 0.
-- Returns  {1, heard, passed} done, and so many connections were told that the lock is free; passed is 1 where the lock has
--          the next holder already, 2 where this user may not tell the next one. {-1, heard, passed} this hold is not
--          there.
--
-- Repeatable, and then answers {-1, heard, passed}: running it late or twice ends no other hold, because the field
-- belongs to one acquisition, and to those that it was handed over to. The lock is free then, unless its owner holds
-- the read half too and keeps it. A hash that no lock makes is refused: see record.lua.

local lock, writers, tokens = KEYS[1], KEYS[2], KEYS[4]
local write_field, left, prefix, channel, how = ARGV[1] .. ':write', ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local slice, late = tonumber(ARGV[6]), ARGV[7] == '1'

local line = left == '0' and try(function() return open_line(lock, KEYS[3], write_field) end) or nil
local answer = give_back_write(lock, writers, line, tokens, prefix, write_field, left, late, channel, how, slice)
if answer[1] ~= 1 then
    check_record(lock)
end
return answer
