-- Renews the leases of all permits of a hold: see renew.lua.
--
-- KEYS[1]  the taken permits: a zset; see semaphore.lua. It is the only key, so that renewals go on while its slot
--          moves.
-- ARGV[1]  the field of the hold.
-- ARGV[2]  the lease in ms.
-- ARGV[3]  1: exactly this lease; 0: at least this lease.
-- Returns  {1, 0, 0} renewed, {-1, 0, 0} a permit is not taken, or its lease has expired. Then the client releases
--          those that are left, because they have to pass to the line, whose key is not here.
--
-- Repeatable: the lease is set, and nothing is added to it.

--[[with forms record announce clock semaphore]]
return answer(function()
local taken = KEYS[1]
local ids, lease, exact = ids_of(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'

local now = now_ms()
local ends = ends_of(taken, ids)
if not ends or ends <= now then
    return {-1, 0, 0}
end
-- This write needs no memory, and after it Redis accepts the next one even if memory is short.
redis.call('zrem', taken, '')
if exact or ends < now + lease then
    lease_until(taken, ids, now + lease)
end
return {1, 0, 0}
end, {'zset'})
