-- Returns  who holds a lock. It is one script instead of three reads, because a go-redis client may send reads to
--          replicas, which may not have the latest record yet.
--
-- KEYS[1]  the lock: a hash {field of the hold -> hold count}; or that of a read/write lock, see readers.lua.
-- ARGV[1]  the field of a hold, or '' for none.
-- ARGV[2]  of a write lock: write; the default is a lock without a mode.
-- Returns  {number of holders, hold count of this hold, pttl}.
--
-- Repeatable: it only reads.

--[[with record]]
return answer(function()
local lock = KEYS[1]
local field = ARGV[1]

local holders = redis.call('hlen', lock)
local hold_count = tonumber(field ~= '' and redis.call('hget', lock, field) or 0) -- other data may have the field ''
if holders > 0 and hold_count == 0 then
    check_record(lock)
end
if ARGV[2] and redis.call('hget', lock, 'mode') ~= ARGV[2] then
    holders = 0
end
return {holders, hold_count, redis.call('pttl', lock)}
end, {'hash'})
