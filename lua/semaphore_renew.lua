-- Renews the lease of a permit. The script never takes a permit, and shortens a lease only if it is told to.
--
-- KEYS[1]  the taken permits: a zset; see semaphore.lua. It is the only key, so that renewals go on while its slot
--          moves.
-- ARGV[1]  the id of the permit.
-- ARGV[2]  the lease in ms.
-- ARGV[3]  1: exactly this lease; 0: at least this lease.
-- Returns  {1, 0, 0} renewed, {-1, 0, 0} this permit is not taken, or its lease has expired.
--
-- Repeatable: the lease is set, and nothing is added to it.

local taken = KEYS[1]
local id, lease, exact = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'

local now = now_ms()
local ends = tonumber(redis.call('zscore', taken, id) or 0)
if ends <= now then
    return {-1, 0, 0}
end
-- This write needs no memory, and after it Redis accepts the next one even if memory is short.
redis.call('zrem', taken, '')
if exact or ends < now + lease then
    redis.call('zadd', taken, ms(now + lease), id)
end
return {1, 0, 0}
