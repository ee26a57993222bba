-- Frees one half of a read/write lock, no matter who holds it. The other half stays.
--
-- KEYS[1]  the lock: see readers.lua.
-- KEYS[2]  the waiting writers: see write_acquire.lua.
-- ARGV[1]  the half: read or write.
-- ARGV[2]  what the key of a read lease begins with.
-- ARGV[3]  channel on which the release is announced.
-- ARGV[4]  how: see announce.lua.
-- Returns  {1, 0, 0} freed, {0, 0, 0} this half was free.
--
-- A hash that no lock makes is refused and stays as it is: see record.lua.

local lock, writers = KEYS[1], KEYS[2]
local half, prefix, channel, how = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

check_record(lock)
local mode = redis.call('hget', lock, 'mode')
if not mode then
    return {0, 0, 0}
end
local entries = redis.call('hgetall', lock)
for i = 1, #entries, 2 do
    if entries[i] ~= 'mode' and not is_hold(entries[i], entries[i + 1]) then
        refuse_field(lock, entries[i])
    end
end

local freed, kept = 0, 0
for i = 1, #entries, 2 do
    local field, levels = entries[i], tonumber(entries[i + 1])
    if field ~= 'mode' then
        if is_write(field) == (half == 'write') then
            redis.call('hdel', lock, field)
            drop_leases(prefix, field, 1, levels)
            freed = freed + 1
        else
            kept = kept + 1
        end
    end
end
if freed == 0 then
    return {0, 0, 0}
end
redis.call('del', writers)
if kept == 0 then
    redis.call('del', lock)
    announce(how, channel, mode == 'write' and '1' or '0')
elseif half == 'write' and mode == 'write' then
    redis.call('hset', lock, 'mode', 'read')
    announce(how, channel, '1') -- other readers may join
end
return {1, 0, 0}
