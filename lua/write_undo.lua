-- Undoes an attempt to write: the caller waits no longer, and gives back what the attempt may have taken.
--
-- KEYS[1]  the lock: see readers.lua.
-- KEYS[2]  the waiting writers: see write_acquire.lua.
-- ARGV[1]  field of the hold, without its :write.
-- ARGV[2]  levels that the caller had before the attempt: 0 ends the hold.
-- ARGV[3]  what the key of a read lease begins with.
-- ARGV[4]  field of the caller's read hold, or ''.
-- ARGV[5]  channel on which a release is announced.
-- ARGV[6]  how: see announce.lua.
-- Returns  {1, heard, 0} done, and so many connections were told that the lock is free;
--          {-1, 0, 0} the attempt has taken nothing.
--
-- Running it late or twice ends no other hold: the field belongs to one acquisition. A hash that no lock makes stays as
-- it is, and the caller waits no longer all the same.

local lock, writers = KEYS[1], KEYS[2]
local field, left, prefix, read_field = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local channel, how = ARGV[5], ARGV[6]

redis.call('zrem', writers, field)
if read_field ~= '' then
    redis.call('zrem', writers, read_field)
end

local answer = give_back_write(lock, writers, prefix, field .. ':write', left, channel, how)
if answer[1] ~= 1 and redis.call('exists', writers) == 0 then
    local mode = redis.call('hget', lock, 'mode')
    if mode == 'read' or not mode and redis.call('exists', lock) == 0 then
        announce(how, channel, '1') -- readers waited for this writer
    end
end
return answer
