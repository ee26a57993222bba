-- Renews the lease of a hold. Never creates a record, never touches another owner's record, and shortens a lease only
-- if told to.
--
-- KEYS[1]  the lock: a hash {field of the hold -> levels}.
-- ARGV[1]  field of the hold.
-- ARGV[2]  lease in ms.
-- ARGV[3]  1: exactly this lease; 0: at least.
-- Returns  {1, 0, 0} renewed, {-1, 0, 0} this hold is not there.
--
-- Repeatable: the lease is set, and nothing is added to it.

local lock = KEYS[1]
local field, lease, exact = ARGV[1], ARGV[2], ARGV[3] == '1'

if redis.call('hexists', lock, field) == 0 then
    return {-1, 0, 0}
end
if exact or redis.call('pttl', lock) < tonumber(lease) then
    redis.call('pexpire', lock, lease)
end
return {1, 0, 0}
