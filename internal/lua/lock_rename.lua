-- Renames a hold: the lock passes from the field from to the field to. A hold is detached by giving it a field that no
-- process uses. It is attached by giving it a field of another process. If that process gives up, the hold is put back:
-- it gets its detached field again. See internal/engine/detach.go.
--
-- KEYS[1]  the lock: a hash {field of the hold -> hold count}; or that of a read/write lock, see readers.lua.
-- KEYS[2]  the waits of the line, which have the tombstones: a hash, see tombstones.lua.
-- ARGV[1]  from, as the hash has it.
-- ARGV[2]  to, as the hash has it.
-- ARGV[3]  the lease in ms from now on: exactly this one, unless the owner of a write lock has readers beside it.
-- ARGV[4]  epoch ms at which the lease ends at the latest; 0: there is no such time.
-- ARGV[5]  of an Attach: epoch ms at which the hold is over, so that it cannot be renamed any more; a second run sets
--          the lease again. Else 0.
-- ARGV[6]  1 if a request for the lock with from may still run, else 0.
-- Returns  {1, lease, now} to has the lock, for lease ms from now, which is in epoch ms. {-1, 0, now} neither field has
--          it, or to has ended, or the hold is over.
--
-- Repeatable: a second run finds that to has the lock, and only sets the lease again, if at all.
-- A field that was renamed is not in the line, and never acquires the lock again. A hash that no lock writes stays as
-- it is, and from has a tombstone, if a request with from may still run.

--[[with record clock tombstones renaming]]
return answer(function()
local lock, waits, from, to = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local ends, late = tonumber(ARGV[5]), ARGV[6] == '1'

local now = now_ms()
local lease = lease_up_to(tonumber(ARGV[3]), tonumber(ARGV[4]), now)

-- Readers beside the owner of a write lock have leases of their own, which the hash outlives.
local function set_lease_of(hash)
    local fields = redis.call('hexists', hash, 'mode') + 1
    if redis.call('hlen', hash) == fields or redis.call('pttl', hash) < lease then
        redis.call('pexpire', hash, ms(lease))
    end
end

local renamed = redis.call('hexists', lock, to) == 1
local may = not renamed and not past_end(ends, now) and not is_buried(waits, to)
local hold_count = may and redis.call('hget', lock, from)
if hold_count then
    redis.call('hdel', lock, to) -- fails before anything has changed if the user may not remove the old field
    redis.call('hset', lock, to, hold_count)
    redis.call('hdel', lock, from)
    set_lease_of(lock)
    renamed = true
elseif renamed and ends > 0 then
    if redis.call('pttl', lock) < lease then -- MinHold may keep it for longer
        redis.call('pexpire', lock, ms(lease))
    end
elseif renamed then
    lease = redis.call('pttl', lock)
elseif not late then
    check_record(lock)
end
if late then
    bury(waits, from)
end
return {renamed and 1 or -1, renamed and lease or 0, now}
end, {'hash', 'hash'})
