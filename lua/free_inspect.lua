-- Says which of many locks may be free, or hold something that no lock makes. It only reads.
--
-- KEYS     the locks.
-- ARGV[1]  how many of them, from the first one on, are looked at closely: see record.lua.
-- Returns  {1, n, 0} for each such lock KEYS[n], one after the other.

local closely = tonumber(ARGV[1])

local some_are_free = redis.call('exists', unpack(KEYS)) < #KEYS
local found = {}
for n, lock in ipairs(KEYS) do
    local ends = some_are_free and redis.call('exists', lock) == 0
    if ends or n <= closely and not pcall(function() check_record(lock) end) then
        found[#found + 1] = 1
        found[#found + 1] = n
        found[#found + 1] = 0
    end
end
return found
