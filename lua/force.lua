-- Frees a lock, no matter who holds it.
--
-- KEYS[1]  the lock: a hash {field of the hold -> levels}.
-- KEYS[2]  the line: a hash, see line.lua; or the lock again: the line cannot be used.
-- KEYS[3]  the token counter: a string; only for a fenced lock.
-- ARGV[1]  channel on which the release is announced; that of a client has :client behind it.
-- ARGV[2]  how: see announce.lua.
-- Returns  {1, 0, 0} freed, {0, 0, 0} the lock was free.
--
-- Once: another owner may have taken the lock before it runs again.
-- A hash that no lock makes is refused and stays as it is: see record.lua.

local lock, tokens = KEYS[1], KEYS[3]
local channel, how = ARGV[1], ARGV[2]

if redis.call('hlen', lock) == 0 then
    return {0, 0, 0}
end
check_record(lock)
local line = open_line(lock, KEYS[2], '') -- before the lock is freed: it may refuse
redis.call('del', lock)
if line and line.exists then
    leave_granted(line)
    local to = pass_on(lock, line, tokens, channel, how, nil)
    close_line(line)
    if to then
        return {1, 0, 0}
    end
end
announce(how, channel, '0')
if line and line.exists then
    announce_beside(channel, how)
end
return {1, 0, 0}
