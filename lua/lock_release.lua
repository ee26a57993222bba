-- Gives back one level of a lock, or all that an attempt may have taken.
--
-- KEYS[1]  the lock: a hash {field of the hold -> levels}.
-- ARGV[1]  field of the hold.
-- ARGV[2]  levels left: 0 frees the lock.
-- ARGV[3]  channel on which the release is announced.
-- ARGV[4]  how: see announce.lua.
-- Returns  {1, heard, 0} done, and so many connections were told that the lock is free;
--          {-1, 0, 0} this hold is not there.
--
-- Running it late or twice frees no other owner's hold: the field belongs to one acquisition, and to those that it was
-- handed over to, the last of which frees it. A level is given back also where Redis has no memory left: see note_levels
-- of record.lua.

local lock = KEYS[1]
local field, left, channel, how = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if left ~= '0' then
    if redis.call('hexists', lock, field) == 0 then
        check_record(lock)
        return {-1, 0, 0}
    end
    note_levels(lock, field, left)
    return {1, 0, 0}
end
if redis.call('hdel', lock, field) == 0 then -- which deletes the record with its only field
    check_record(lock)
    return {-1, 0, 0}
end
return {1, announce(how, channel, '0'), 0}
