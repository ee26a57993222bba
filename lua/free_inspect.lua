-- Says which of many locks may be free, or hold something that no lock makes, or have no place for a client that waits. It
-- only reads.
--
-- KEYS     the locks; and the lines of those that are looked at closely.
-- ARGV[1]  how many of them, from the first one on, are looked at closely: see record.lua.
-- ARGV[2]  the client.
-- Returns  {1, n, 0} for each such lock KEYS[n], one after the other.

local closely, client = tonumber(ARGV[1]), ARGV[2]
local locks = #KEYS - closely

-- The place of a client that was granted the lock stays in the line.
local function awaits(lock, line)
    return pcall(function() check_record(lock) end) and redis.call('hexists', line, client) == 1
end

local some_are_free = redis.call('exists', unpack(KEYS, 1, locks)) < locks
local found = {}
for n = 1, locks do
    local ends = some_are_free and redis.call('exists', KEYS[n]) == 0
    if ends or n <= closely and not awaits(KEYS[n], KEYS[locks + n]) then
        found[#found + 1] = 1
        found[#found + 1] = n
        found[#found + 1] = 0
    end
end
return found
