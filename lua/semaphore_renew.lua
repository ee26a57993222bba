-- Renews the lease of a permit. Never takes a permit, and shortens a lease only if told to.
--
-- KEYS[1]  the permits that are taken: a zset; see semaphore.lua. It is the only key, so that renewals go on while its slot moves.
-- ARGV[1]  id of the permit.
-- ARGV[2]  lease in ms.
-- ARGV[3]  1: exactly this lease; 0: at least.
-- Returns  {1, 0, 0} renewed, {-1, 0, 0} this permit is not taken, or its lease is over.
--
-- Repeatable: the lease is set, and nothing is added to it.

local taken = KEYS[1]
local id, lease, exact = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'

local now = now_ms()
local ends = tonumber(redis.call('zscore', taken, id) or 0)
if ends <= now then
    return {-1, 0, 0}
end
redis.call('zrem', taken, '') -- a write that needs no memory: Redis then lets the next one pass where memory is short
if exact or ends < now + lease then
    redis.call('zadd', taken, ms(now + lease), id)
end
return {1, 0, 0}
