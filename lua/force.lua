-- Frees a lock, whoever holds it.
--
-- KEYS[1]  the lock: a hash {field of the hold -> levels}
-- ARGV[1]  channel on which the release is announced
-- ARGV[2]  how: see announce.lua
-- Returns  {1, 0, 0} freed, {0, 0, 0} nobody held it
--
-- A key of another type answers WRONGTYPE and stays as it is.

local lock = KEYS[1]
local channel, how = ARGV[1], ARGV[2]

if redis.call('hlen', lock) == 0 then
    return {0, 0, 0}
end
redis.call('del', lock)
announce(how, channel, '0')
return {1, 0, 0}
