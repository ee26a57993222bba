-- Acquires a plain lock, or sets the hold count of a hold, with the key of the lock alone, while its slot moves to
-- another server of a Cluster: Redis refuses lock_acquire.lua, whose keys are not all on one server. The line is
-- neither read nor written. A caller that finds the lock busy asks again.
--
-- KEYS[1]  the lock: a hash {field of the hold -> hold count}.
-- ARGV[1]  the field of the hold.
-- ARGV[2]  the lease in ms.
-- ARGV[3]  the hold count to reach: 1, which is the default, is a new hold, more re-enters an existing one.
-- ARGV     behind these: the others of lock_acquire.lua, which do not count.
-- Returns  {1, 0, 0} held, {0, pttl, 2} busy: the release will be announced on the channel of the lock alone. {-1, 0,
--          0} there is no hold to re-enter.
--
-- Repeatable: see lock_acquire.lua.

--[[with record]]
return answer(function()
local lock, field, lease, hold_count = KEYS[1], ARGV[1], ARGV[2], ARGV[3] or '1'

local pttl = redis.call('pttl', lock)
local mine = pttl ~= -2 and redis.call('hexists', lock, field) == 1
if not mine and hold_count ~= '1' then
    return {-1, 0, 0}
elseif not mine and pttl ~= -2 then
    check_record(lock)
    return {0, pttl, 2}
end
redis.call('hset', lock, field, hold_count)
if not mine then
    begin_lease(lock, lease, field)
elseif pttl < tonumber(lease) then
    redis.call('pexpire', lock, lease)
end
return {1, 0, 0}
end, {'hash'})
