-- Says who holds a lock. It is a script and not three reads, because a go-redis client may send reads to replicas,
-- which do not have the latest records yet.
--
-- KEYS[1]  the lock: a hash {field of the hold -> levels}.
-- ARGV[1]  field of a hold, or '' for none.
-- Returns  {holders, levels of this hold, pttl}.
--
-- Repeatable: it only reads.
-- A hash that no lock makes is refused: see record.lua.

local lock = KEYS[1]
local field = ARGV[1]

local holders = redis.call('hlen', lock)
local hold_count = tonumber(field ~= '' and redis.call('hget', lock, field) or 0) -- other data may have a field ''
if holders > 0 and hold_count == 0 then
    check_record(lock)
end
return {holders, hold_count, redis.call('pttl', lock)}
