-- Returns who holds the write lock of a read/write lock.
--
-- KEYS[1]  the lock: a hash, see readers.lua.
-- ARGV[1]  the field of a write hold, without its :write; or '' for none.
-- Returns  {1 if there is a writer, else 0; hold count of this hold; pttl}.
--
-- Repeatable: it only reads.
-- A hash that no lock writes is refused: see record.lua.

--[[with record]]
return answer(function()
local lock = KEYS[1]
local field = ARGV[1]

local mode = redis.call('hget', lock, 'mode')
local hold_count = tonumber(field ~= '' and redis.call('hget', lock, field .. ':write') or 0)
if hold_count == 0 then
    check_record(lock)
end
return {mode == 'write' and 1 or 0, hold_count, redis.call('pttl', lock)}
end, {'hash'})
