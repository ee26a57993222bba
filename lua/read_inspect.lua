-- Says who holds the read half of a read/write lock. Evicts dead readers.
--
-- KEYS[1]  the lock: a hash, see readers.lua.
-- ARGV[1]  field of a read hold, or '' for none.
-- ARGV[2]  what the key of a lease begins with.
-- Returns  {1 where there are readers, else 0; levels of this hold; pttl}.
--
-- Repeatable: dead readers stay away.
-- A hash that no lock makes is refused and never emptied: see record.lua.

local lock = KEYS[1]
local field, prefix = ARGV[1], ARGV[2]

check_record(lock)
if not redis.call('hget', lock, 'mode') then
    return {0, 0, redis.call('pttl', lock)}
end
local living, _, evicted, strange = evict_dead_readers(lock, prefix)
if strange then
    refuse(lock, strange)
end
if evicted > 0 and redis.call('hlen', lock) == 1 then
    redis.call('del', lock) -- a mode alone is no record
end
local hold_count = tonumber(field ~= '' and redis.call('hget', lock, field) or 0)
return {living > 0 and 1 or 0, hold_count, redis.call('pttl', lock)}
