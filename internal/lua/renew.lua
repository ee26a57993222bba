-- Renews the lease of a hold. The script never creates a record, never touches the record of another owner, and
-- shortens a lease only if it is told to.
--
-- KEYS[1]  the lock: a hash {field of the hold -> hold count}.
-- ARGV[1]  the field of the hold.
-- ARGV[2]  the lease in ms.
-- ARGV[3]  1: exactly this lease; 0: at least this lease.
-- Returns  {1, 0, 0} renewed, {-1, 0, 0} there is no such hold.
--
-- Repeatable: the lease is set, and nothing is added to it.

--[[with record]]
return answer(function()
local lock = KEYS[1]
local field, lease, exact = ARGV[1], ARGV[2], ARGV[3] == '1'

if redis.call('hexists', lock, field) == 0 then
    return {-1, 0, 0}
end
if exact or redis.call('pttl', lock) < tonumber(lease) then
    redis.call('pexpire', lock, lease)
end
return {1, 0, 0}
end, {'hash'})
