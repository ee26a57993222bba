-- Returns  who holds a lock. It is one script instead of some reads, because a go-redis client may send reads to
--          replicas, which may not have the latest record yet.
--
-- KEYS[1]  the lock: a hash {field of the hold -> hold count}; or that of a read/write lock, see readers.lua.
-- ARGV[1]  the field of a hold, or '' for none.
-- ARGV[2]  of a read/write lock: read or write; the default is a lock without a mode.
-- ARGV[3]  of a read lock: the prefix of the key of a lease.
-- Returns  {number of holders, hold count of this hold, pttl}.
--
-- Repeatable: a second run finds no dead readers to evict.
-- A hash with this hold is not refused, and other data in it stay.

--[[with record]]
return answer(function()
local lock, field, half, prefix = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

local holders, mode = redis.call('hlen', lock), redis.call('hget', lock, 'mode')
local hold_count = tonumber(field ~= '' and redis.call('hget', lock, field) or 0) -- other data may have the field ''
local _, strange
if half == 'read' then
    --[[with clock tombstones readers]]
    hold_count = field ~= '' and living_count(lock, prefix, field) or 0
    if mode then
        holders, _, _, strange = evict_dead_readers(lock, prefix)
    end
end
if hold_count == 0 then
    check_record(lock)
    if strange then
        refuse(lock, strange)
    end
end
if half == 'write' and mode ~= half or half and not mode then
    holders = 0
end
return {holders, hold_count, redis.call('pttl', lock)}
end, {'hash'})
