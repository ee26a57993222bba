-- Gives back one level of a lock, or all that an attempt may have taken: the place in the line, too. The lock passes to the
-- next place.
--
-- KEYS[1]  the lock: a hash {field of the hold -> levels}.
-- KEYS[2]  the line: a hash, see line.lua; or the lock again: the line cannot be used.
-- KEYS[3]  the token counter: a string; only for a fenced lock.
-- ARGV[1]  field of the hold.
-- ARGV[2]  levels left: 0 frees the lock.
-- ARGV[3]  channel on which the release is announced; that of a client has :client behind it.
-- ARGV[4]  how: see announce.lua.
-- ARGV[5]  how long the line may keep the lock from those that have no place in it, in ms.
-- ARGV[6]  1 where a request that asks for the lock with this field may still run, else 0.
-- Returns  {1, heard, passed} done, and so many connections were told that the lock is free; passed is 1 where the lock has
--          the next holder already, 2 where this user may not tell the next one. {-1, 0, passed} this hold is not
--          there.
--
-- Repeatable, and then answers {-1, 0, passed}: running it late or twice frees no other owner's hold, because the field
-- belongs to one acquisition, and to those that it was handed over to, the last of which frees it. A level is given
-- back also where Redis has no memory left: see note_levels of record.lua.

local lock, tokens = KEYS[1], KEYS[3]
local field, left, channel, how, window, late = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6] == '1'

-- The commonest case: no process waits. The code below reports the errors.
if left == '0' and not late and KEYS[2] ~= lock and is_idle(KEYS[2]) and redis.pcall('hdel', lock, field) == 1 then
    return {1, announce(how, channel, '0'), 0}
end

--[[answer]]
if left ~= '0' then
    if redis.call('hexists', lock, field) == 0 then
        check_record(lock)
        return {-1, 0, 0}
    end
    note_hold_count(lock, field, left)
    return {1, 0, 0}
end

local deleted = redis.pcall('hdel', lock, field) -- which deletes the record with its only field
local had = deleted == 1
local heard, heard_beside, passed_on = 0, 0, 0
if KEYS[2] ~= lock and (late or not is_idle(KEYS[2])) then
    --[[preludes]]
    passed_on = leave_and_pass(lock, KEYS[2], field, late, function(line)
        if redis.call('hlen', lock) > 0 then
            if not had and redis.call('hget', lock, 'mode') == 'read' then
                announce_beside(channel, how) -- readers may have waited for this place
            end
            return line, nil
        end
        heard = had and line.first <= line.last and release_to_all(line, channel, how, '0', window, false) or 0
        local to = heard == 0 and pass_on(lock, line, tokens, channel, how, nil) or nil
        heard_beside = had and heard == 0 and not to and announce_beside(channel, how) or 0
        return line, to
    end)
end
if type(deleted) == 'table' then
    error(deleted, 0)
elseif not had then
    check_record(lock)
elseif heard == 0 and passed_on ~= 1 then
    heard = announce(how, channel, '0') + heard_beside
end
return {had and 1 or -1, heard, passed_on}
