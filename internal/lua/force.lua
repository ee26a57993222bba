-- Releases a lock, regardless of who holds it.
--
-- KEYS[1]  the lock: a hash {field of the hold -> hold count}.
-- KEYS[2]  the order of the line: a zset, see line.lua.
-- KEYS[3]  the waits of the line: a hash.
-- KEYS[4]  the token counter: a string; only for a fenced lock.
-- ARGV[1]  the channel on which a release is announced; that of a client is this one with :client appended.
-- ARGV[2]  the command that publishes: see announce.lua.
-- ARGV     behind these: the fields of the holders that may lose the lock; none: all of them. See forced.lua.
-- Returns  {1, 0, 0, clients} released, {0, 0, 0} the lock was free, or has another holder. For clients see forced.lua.
--
-- Once: another owner may have acquired the lock before the script runs again.

--[[with forms record announce clock counter token clients grant tombstones line passing forced]]
return answer(function()
local lock, tokens = KEYS[1], KEYS[4]
local channel, how, seen = ARGV[1], ARGV[2], seen_from(3)

if redis.call('hlen', lock) == 0 then
    return {0, 0, 0}
end
local _, holder = check_record(lock)
if seen and not seen[holder] then
    return {0, 0, 0}
end
local line = open_line(lock, KEYS[2], KEYS[3], holder) -- before the lock is released, because it may refuse
leave(line, holder) -- it may have acquired the lock with one key, and has its place still
redis.call('del', lock)
if not pass_on(lock, line, tokens, channel, how, nil) then
    announce(how, channel, '0')
end
return with_clients({1, 0, 0}, {holder})
end, {'hash', 'zset', 'hash', 'string'})
