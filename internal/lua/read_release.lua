-- Sets the hold count of a read hold to a lower value, or ends the hold, or whatever an attempt may have left in Redis.
-- When the last read hold ends, the lock passes to the first writer in the line: see writer.lua.
--
-- KEYS[1]  the lock: a hash, see readers.lua.
-- KEYS[2]  the waiting writers: a zset, see write_acquire.lua.
-- KEYS[3]  the order of the line: a zset, see line.lua.
-- KEYS[4]  the waits of the line: a hash.
-- KEYS[5]  the token counter: a string; only for a fenced lock.
-- ARGV[1]  the field of the hold.
-- ARGV[2]  the prefix of the key of a lease.
-- ARGV[3]  the channel on which a release is announced; that of a client is this one with :client appended.
-- ARGV[4]  the command that publishes: see announce.lua.
-- ARGV[5]  the hand-off window in ms: see release_to_all of passing.lua.
-- ARGV[6]  the hold count that is left: 0, which is the default, ends the hold.
-- ARGV[7]  1 if a request for the lock with this field may still run; the default is 0.
-- Returns  {1, heard, passed} done: see lock_release.lua. {-1, 0, 0} there is no such hold.
--
-- Repeatable, and then answers {-1, 0, 0}: see lock_release.lua. The last reader frees the lock, unless its owner holds
-- the write lock too.

--[[with forms]]
local had, received -- whether the common case has ended the hold, and what Redis said when it told so

--[[common case]]
-- The only hold ends, which its owner may not have detached (a detached reader is buried); there is no line, and no
-- connection hears of the release.
if not ARGV[6] and ARGV[4] ~= in_both_ways and ARGV[1]:sub(37, 39) ~= ':0:' and
    redis.pcall('exists', KEYS[3], KEYS[4]) == 0 and redis.pcall('hlen', KEYS[1]) == 2 then
    local record = redis.pcall('hmget', KEYS[1], 'mode', ARGV[1])
    had = record[1] == 'read' and record[2] == '1' and
        type(redis.pcall('del', KEYS[1], ARGV[2] .. ARGV[1] .. ':rwlock_timeout:1')) == 'number'
    received = had and redis.pcall(ARGV[4], ARGV[3], '0')
    if received == 0 then
        return 0
    end
end
--[[end]]

--[[with record announce clock tombstones readers]]
return answer(function()
local lock, writers, tokens = KEYS[1], KEYS[2], KEYS[5]
local field, prefix, channel, how, window = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local left, late = tonumber(ARGV[6] or 0), ARGV[7] == '1'

if had then
    return {1, announce_release(how, channel, '0', received), 0}
end

if late and left == 0 then
    bury(KEYS[4], field) -- whatever the key of the lock holds by now
end
local mode = redis.call('hget', lock, 'mode')
if not (mode and redis.call('hget', lock, field)) then
    drop_lease(KEYS[4], prefix, field) -- Redisson's forceUnlock leaves leases behind
    check_record(lock)
    return {-1, 0, 0}
end
if left > 0 then
    note_hold_count(lock, field, left)
    return {1, 0, 0}
end

-- Whether another reader lives on, and the lock keeps its lease: it is not that of this reader, or another one lives
-- about as long.
local function changes_nothing()
    local ends = redis.call('pttl', lock)
    local longest = lease_left(prefix, field, 1) > ends - 1000
    return ends > 0 and has_reader(lock, prefix, field, longest and math.max(1, ends - 1000) or 1)
end

local living, longest
if mode ~= 'write' and not changes_nothing() then
    living, longest = evict_dead_readers(lock, prefix, field)
end
drop_lease(KEYS[4], prefix, field)
if living == 0 then
    --[[with counter token clients grant line passing writer]]
    redis.call('del', lock)
    local heard = 0
    local passed_on = leave_and_pass(lock, KEYS[3], KEYS[4], field, false, function(line)
        local to
        heard, to = pass_to_writer(lock, writers, line, tokens, channel, how, '0', window)
        return to
    end)
    if heard == 0 and passed_on ~= 1 then
        heard = announce_release(how, channel, '0')
    end
    return {1, heard, passed_on}
end
redis.call('hdel', lock, field)
if living then
    redis.call('pexpire', lock, ms(longest))
end
return {1, 0, 0}
end, {'hash', 'zset', 'zset', 'hash', 'string'})
