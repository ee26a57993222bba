-- Gives back one level of a read hold, or all that an attempt may have taken.
--
-- KEYS[1]  the lock: see readers.lua.
-- ARGV[1]  field of the hold.
-- ARGV[2]  levels left: 0 ends the hold.
-- ARGV[3]  what the key of a lease begins with.
-- ARGV[4]  1 to refuse a hash that no lock makes, see record.lua; 0 where an attempt is undone, which leaves it as it is.
-- ARGV[5]  channel on which the release is announced.
-- ARGV[6]  how: see announce.lua.
-- Returns  {1, heard, 0} done, and so many connections were told that the lock is free;
--          {-1, 0, 0} this hold is not there.
--
-- Running it late or twice ends no other hold: the field belongs to one acquisition, and to those that it was handed
-- over to. The last reader frees the lock, unless its owner holds the write half too.

local lock = KEYS[1]
local field, left, prefix = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local refuse_others, channel, how = ARGV[4] == '1', ARGV[5], ARGV[6]

local mode = redis.call('hget', lock, 'mode')
local levels = tonumber(mode and redis.call('hget', lock, field) or 0)

if levels == 0 then
    drop_leases(prefix, field, left + 1, left + 1) -- Redisson's forceUnlock leaves them
    if refuse_others then
        check_record(lock)
    end
    return {-1, 0, 0}
end
if left > 0 then
    drop_leases(prefix, field, left + 1, levels)
    note_levels(lock, field, left)
    return {1, 0, 0}
end

local living, longest
if mode ~= 'write' then
    living, longest = evict_dead_readers(lock, prefix, field) -- before anything is given back: it fails where a slot moves
end
drop_leases(prefix, field, 1, levels)
redis.call('hdel', lock, field)
if living == 0 then
    redis.call('del', lock)
    return {1, announce(how, channel, '0'), 0}
end
if living then
    redis.call('pexpire', lock, ms(longest))
end
return {1, 0, 0}
