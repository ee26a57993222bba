-- Renews the lease of a hold. Never creates a record, never touches another
-- owner's, never shortens a lease.
--
-- KEYS[1]  the lock: a hash {field of the hold -> levels}
-- ARGV[1]  field of the hold
-- ARGV[2]  lease in ms
-- Returns  {1, 0, 0} renewed, {-1, 0, 0} this hold is not there

local lock = KEYS[1]
local field, lease = ARGV[1], ARGV[2]

if redis.call('hexists', lock, field) == 0 then
    return {-1, 0, 0}
end
if redis.call('pttl', lock) < tonumber(lease) then
    redis.call('pexpire', lock, lease)
end
return {1, 0, 0}
