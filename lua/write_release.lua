-- Gives back one level of a write hold.
--
-- KEYS[1]  the lock: see readers.lua.
-- KEYS[2]  the waiting writers: see write_acquire.lua.
-- ARGV[1]  field of the hold, without its :write.
-- ARGV[2]  levels left: 0 ends the hold.
-- ARGV[3]  what the key of a read lease begins with.
-- ARGV[4]  channel on which the release is announced.
-- ARGV[5]  how: see announce.lua.
-- Returns  {1, heard, 0} done, and so many connections were told that the lock is free;
--          {-1, 0, 0} this hold is not there.
--
-- Running it late or twice ends no other hold: the field belongs to one acquisition, and to those that it was handed
-- over to. The lock is free then, unless its owner holds the read half too and keeps it. A hash that no lock makes is
-- refused: see record.lua.

local lock, writers = KEYS[1], KEYS[2]
local write_field, left, prefix, channel, how = ARGV[1] .. ':write', ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local answer = give_back_write(lock, writers, prefix, write_field, left, channel, how)
if answer[1] ~= 1 then
    check_record(lock)
end
return answer
