-- Renames a hold of a permit, or of several: its permits get other ids, and the number of available permits does not
-- change. See lock_rename.lua.
--
-- KEYS[1]  the taken permits: a zset; see semaphore.lua.
-- KEYS[2]  the waits of the line, which have the tombstones: a hash, see tombstones.lua.
-- ARGV[1]  from: the field that has the permits.
-- ARGV[2]  to: the field that gets as many permits.
-- ARGV[3]  the lease in ms from now on: exactly this one.
-- ARGV[4]  epoch ms at which the lease ends at the latest; 0: there is no such time.
-- ARGV[5]  of an Attach: epoch ms at which the hold is over; else 0.
-- ARGV[6]  1 if a request for permits with from may still run, else 0.
-- Returns  {1, lease, now} to has the permits, for lease ms from now, which is in epoch ms. {-1, 0, now} neither field
--          has all of its permits, their lease has expired, to has ended, or the hold is over.
--
-- Repeatable: see lock_rename.lua.

--[[with forms record announce clock semaphore tombstones renaming]]
return answer(function()
local taken, waits, from, to = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local ends_at, late = tonumber(ARGV[5]), ARGV[6] == '1'

local now = now_ms()
local lease = lease_up_to(tonumber(ARGV[3]), tonumber(ARGV[4]), now)
local old, new = ids_of(from), ids_of(to)
check_permits(taken)

local there = ends_of(taken, new)
local renamed = there and there > now
local may = not renamed and not past_end(ends_at, now) and not is_buried(waits, to)
local ends = may and ends_of(taken, old)
if ends and ends > now and #old == #new then
    redis.call('zrem', taken, unpack(new)) -- fails before anything has changed if the user may not remove the old permits
    lease_until(taken, new, now + lease)
    redis.call('zrem', taken, unpack(old))
    renamed = true
elseif renamed and ends_at > 0 then
    if there < now + lease then -- MinHold may keep it for longer
        lease_until(taken, new, now + lease)
    end
elseif renamed then
    lease = there - now
end
if late then
    bury(waits, from)
end
return {renamed and 1 or -1, renamed and lease or 0, now}
end, {'zset', 'hash'})
