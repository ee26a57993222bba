-- Renames a hold of the read lock of a read/write lock, or splits it: see lock_rename.lua. Several readers of a process
-- may share a field. If one of them is detached, its field stands beside the shared one, which the others keep.
--
-- KEYS[1]  the lock: a hash, see readers.lua.
-- KEYS[2]  the waits of the line of the writers: a hash.
-- ARGV[1]  from: the field that has the lock.
-- ARGV[2]  to: the field that gets it.
-- ARGV[3]  the lease in ms from now on: exactly this one.
-- ARGV[4]  epoch ms at which the lease ends at the latest; 0: there is no such time.
-- ARGV[5]  of an Attach: epoch ms at which the hold is over; else 0.
-- ARGV[6]  1 if from keeps the lock, because other readers share it, else 0.
-- ARGV[7]  the prefix of the key of a lease.
-- ARGV[8]  1 if a request for the lock with from may still run, else 0.
-- Returns  {1, lease, now} to has the lock, for lease ms from now, which is in epoch ms. {-1, 0, now} neither field has
--          it, or the hold is over. {-2, 0, now} from keeps the lock, and the record is full.
--
-- Repeatable: as lock_rename.lua, or a second run finds that to has left, and has a tombstone. If the hold is put back
-- before the Attach that has given up has run, from has a tombstone, too.
-- A reader whose lease has expired does not have the lock, even if its field is still there.

--[[with record clock tombstones readers renaming]]
return answer(function()
local lock, waits, from, to = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local ends, splits, prefix, late = tonumber(ARGV[5]), ARGV[6] == '1', ARGV[7], ARGV[8] == '1'

local now = now_ms()
local lease = lease_up_to(tonumber(ARGV[3]), tonumber(ARGV[4]), now)
local mode = redis.call('hget', lock, 'mode')
if not mode then
    if late and not splits then
        bury(waits, from)
    else
        check_record(lock)
    end
    return {-1, 0, now}
end

local renamed = living_count(lock, prefix, to) > 0
if renamed and late and not splits then
    redis.call('hdel', lock, from) -- a late attempt has acquired it for no owner
    drop_lease(waits, prefix, from)
    bury(waits, from)
end
if renamed and ends == 0 then
    return {1, lease_left(prefix, to, 1), now}
elseif not renamed then
    -- A detached field that is put back (neither splits nor ends) has a tombstone, too.
    local over = past_end(ends, now) or (splits or ends > 0) and is_buried(waits, to)
    local held = not over and living_count(lock, prefix, from) > 0
    if late and not splits and not over then
        if not held and redis.call('hdel', lock, from) == 1 and redis.call('hlen', lock) == 1 then
            redis.call('hdel', lock, 'mode') -- alone it is not a record
        end
        bury(waits, from)
    end
    if not held then
        return {-1, 0, now}
    elseif splits and redis.call('hlen', lock) > most_holds then
        return {-2, 0, now}
    end
    redis.call('hdel', lock, to) -- fails before anything has changed if the user may not remove the old field
end
local _, longest = evict_dead_readers(lock, prefix, (renamed or splits) and to or from)
local left = renamed and lease_left(prefix, to, 1) or 0
if left < lease then -- else MinHold may keep it for longer
    redis.call('set', lease_key(prefix, to, 1), '1', 'PX', ms(lease))
end
extend(lock, lease)
if not renamed then
    redis.call('hset', lock, to, 1)
end
if not renamed and not splits then
    redis.call('hdel', lock, from)
    drop_lease(waits, prefix, from)
end
if mode == 'read' then -- else the lease is that of the writer, too
    redis.call('pexpire', lock, ms(math.max(longest, lease, left)))
end
return {1, lease, now}
end, {'hash', 'hash'})
