-- Says which of many locks may be free, or hold something that no lock makes, or be released without telling a client that
-- waits, or have been granted to it without its knowledge. It only reads.
--
-- KEYS     the locks: each a hash; and the lines of those that are looked at closely.
-- ARGV[1]  how many of them, from the first one on, are looked at closely: see record.lua.
-- ARGV[2]  the client.
-- ARGV     behind them, for each lock that is looked at closely: the fields with which the client waits, without :write,
--          and a space before and behind each.
-- Returns  {1, n, 0} for each such lock KEYS[n], one after the other.
--
-- Repeatable: it only reads.

local closely, client = tonumber(ARGV[1]), ARGV[2]
local locks = #KEYS - closely

-- Whether the client waits, and is told when the lock is released: it has a place, and no holder is of a program that
-- uses no line. The place of a client that was granted the lock is there, too, but its field is in the record. A record
-- that was granted has no more fields than are looked at. A place for the write lock is none of a caller who has to be
-- looked after here: a writer asks often.
local function is_told(lock, line, waiting)
    check_record(lock)
    -- At most 8.
    for _, field in ipairs(redis.call('hrandfield', lock, 8)) do
        if field ~= 'mode' and (not uses_line(field) or waiting:find(' ' .. field:gsub(':write$', '') .. ' ', 1, true)) then
            return false
        end
    end
    local place = redis.call('hget', line, client)
    return place and place:sub(-6) ~= ':write' or false
end

local some_are_free = redis.call('exists', unpack(KEYS, 1, locks)) < locks
local found = {}
-- At most #KEYS.
for n = 1, locks do
    local ends = some_are_free and redis.call('exists', KEYS[n]) == 0
    local read, told = true, true
    if n <= closely and not ends then
        read, told = pcall(is_told, KEYS[n], KEYS[locks + n], ARGV[n + 2])
    end
    if ends or not read or not told then
        found[#found + 1] = 1
        found[#found + 1] = n
        found[#found + 1] = 0
    end
end
return found
