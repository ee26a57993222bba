-- Returns  who holds the read lock of a read/write lock, and evicts dead readers.
--
-- KEYS[1]  the lock: a hash, see readers.lua.
-- ARGV[1]  the field of a read hold, or '' for none.
-- ARGV[2]  the prefix of the key of a lease.
-- Returns  {1 if there are readers, else 0; hold count of this hold; pttl}.
--
-- Repeatable: a second run finds no dead readers to evict.
-- A hash with this hold is not refused, and other data in it stay.

--[[with record clock tombstones readers]]
return answer(function()
local lock = KEYS[1]
local field, prefix = ARGV[1], ARGV[2]

local hold_count = field ~= '' and living_count(lock, prefix, field) or 0
if hold_count == 0 then
    check_record(lock)
end
if not redis.call('hget', lock, 'mode') then
    return {0, 0, redis.call('pttl', lock)}
end
local living, _, evicted, strange = evict_dead_readers(lock, prefix)
if strange and hold_count == 0 then
    refuse(lock, strange)
end
if evicted > 0 and living == 0 and redis.call('hlen', lock) == 1 + evicted then
    redis.call('del', lock) -- the mode alone is not a record
end
return {living > 0 and 1 or 0, hold_count, redis.call('pttl', lock)}
end, {'hash'})
