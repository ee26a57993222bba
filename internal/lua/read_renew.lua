-- Renews the lease of a read hold: see renew.lua. It never creates a lease of a reader.
--
-- KEYS[1]  the lock: a hash, see readers.lua; it is the only key, so that renewals go on while the slot of the lock
--          moves.
-- ARGV[1]  the field of the hold.
-- ARGV[2]  the lease in ms.
-- ARGV[3]  1: exactly this lease; 0: at least this lease.
-- ARGV[4]  the prefix of the key of a lease.
-- Returns  {1, 0, 0} renewed, {-1, 0, 0} there is no such hold.
--
-- Repeatable: the lease is set, and nothing is added to it.

--[[with record clock tombstones readers]]
return answer(function()
local lock = KEYS[1]
local field, lease, exact, prefix = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1', ARGV[4]

local mode = redis.call('hget', lock, 'mode')
if not mode then
    check_record(lock)
    return {-1, 0, 0}
end
if living_count(lock, prefix, field) == 0 then
    return {-1, 0, 0}
end

if not exact then
    extend(lease_key(prefix, field, 1), lease)
    extend(lock, lease)
    return {1, 0, 0}
end
local _, longest = evict_dead_readers(lock, prefix, field)
redis.call('pexpire', lease_key(prefix, field, 1), ms(lease))
if mode == 'read' then
    redis.call('pexpire', lock, ms(math.max(longest, lease)))
else
    extend(lock, lease)
end
return {1, 0, 0}
end, {'hash'})
