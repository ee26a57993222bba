-- Says which of many locks may be free, or hold something that no lock makes, or be released without telling a client that
-- waits. It only reads.
--
-- KEYS     the locks; and the lines of those that are looked at closely.
-- ARGV[1]  how many of them, from the first one on, are looked at closely: see record.lua.
-- ARGV[2]  the client.
-- Returns  {1, n, 0} for each such lock KEYS[n], one after the other.

local closely, client = tonumber(ARGV[1]), ARGV[2]
local locks = #KEYS - closely

-- Whether the client is told when the lock is released: it has a place, and no holder is of a program that uses no line. The
-- place of a client that was granted the lock is there, too.
local function is_told(lock, line)
    check_record(lock)
    for _, field in ipairs(redis.call('hrandfield', lock, 8)) do
        if field ~= 'mode' and has_no_line(field) then
            return false
        end
    end
    return redis.call('hexists', line, client) == 1
end

local some_are_free = redis.call('exists', unpack(KEYS, 1, locks)) < locks
local found = {}
for n = 1, locks do
    local ends = some_are_free and redis.call('exists', KEYS[n]) == 0
    local sure, told = true, true
    if n <= closely and not ends then
        sure, told = pcall(is_told, KEYS[n], KEYS[locks + n])
    end
    if ends or not sure or not told then
        found[#found + 1] = 1
        found[#found + 1] = n
        found[#found + 1] = 0
    end
end
return found
