-- Returns those of many locks that their poller has to look after. A lock is one of these if it may be free, if its
-- key holds data that no lock writes, or if a waiter of the client is not told of its release, or has been granted it
-- without noticing: then the client has no place in the line. The script only reads.
--
-- KEYS     the locks: each a hash; and behind them the orders of the lines, which are the wait queues in Redis, of the
--          locks that are checked closely.
-- ARGV[1]  the number of locks that are checked closely, which are the first ones: see record.lua.
-- ARGV[2]  the client.
-- Returns  {1, n, 0} for each such lock KEYS[n], one after the other.
--
-- Repeatable: it only reads.

--[[with record]]
return answer(function()
local closely, client = tonumber(ARGV[1]), ARGV[2]
local locks = #KEYS - closely

-- Whether the client waits and is told when the lock is released: it has a place, and no holder belongs to a program
-- that does not use the line. A grant takes the place.
local function is_told(lock, order)
    check_record(lock)
    -- At most 8.
    for _, field in ipairs(redis.call('hrandfield', lock, 8)) do
        if field ~= 'mode' and not is_relocks(field) then
            return false
        end
    end
    return redis.call('zscore', order, client) ~= false
end

local some_are_free = redis.call('exists', unpack(KEYS, 1, locks)) < locks
local found = {}
-- At most #KEYS.
for n = 1, locks do
    local ends = some_are_free and redis.call('exists', KEYS[n]) == 0
    local read, told = true, true
    if n <= closely and not ends then
        read, told = pcall(is_told, KEYS[n], KEYS[locks + n])
    end
    if ends or not read or not told then
        found[#found + 1] = '1 ' .. n .. ' 0'
    end
end
return table.concat(found, ' ')
end, {'hash'})
