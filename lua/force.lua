-- Frees a lock, no matter who holds it.
--
-- KEYS[1]  the lock: a hash {field of the hold -> levels}.
-- ARGV[1]  channel on which the release is announced.
-- ARGV[2]  how: see announce.lua.
-- Returns  {1, 0, 0} freed, {0, 0, 0} the lock was free.
--
-- A hash that no lock makes is refused and stays as it is: see record.lua.

local lock = KEYS[1]
local channel, how = ARGV[1], ARGV[2]

if redis.call('hlen', lock) == 0 then
    return {0, 0, 0}
end
check_record(lock)
redis.call('del', lock)
announce(how, channel, '0')
return {1, 0, 0}
