-- Takes a lock, or one more level of a lock that is held. Where the lock is busy the caller may wait in the line.
--
-- KEYS[1]  the lock: a hash {field of the hold -> levels}.
-- KEYS[2]  the line: a hash, see line.lua; or the lock again: the line cannot be used.
-- KEYS[3]  the token counter: a string; only for a fenced lock.
-- ARGV[1]  field of the hold, of its own for every acquisition that is not a handover.
-- ARGV[2]  lease in ms.
-- ARGV[3]  level wanted: 1 takes a free lock, more re-enters a held one.
-- ARGV[4]  the caller and the line: pass takes a free lock before all others; yield lets the line go first; hears and asks
--          wait in the line: see line.lua.
-- ARGV[5]  number of this request in its wait.
-- ARGV[6]  1 where the lock is fenced, else 0.
-- ARGV[7]  channel on which a release is announced; that of a client has :client behind it.
-- ARGV[8]  how: see announce.lua.
-- Returns  {1, 0, token} held (token 0: not fenced), {0, pttl, place} busy, {-1, 0, 0} nothing there to re-enter. place is 1
--          and four for each place in front where the caller has a place in the line, 2 where only the channel says when the
--          lock is released, 3 where the caller has none because this server has no subscription of it, else 0.
--
-- Repeatable: the level is set, not added, and a lease is never shortened.
-- A hash that no lock makes is refused: see record.lua.

local lock, tokens = KEYS[1], KEYS[3]
local field, lease, hold_count = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local delivery, asked, fenced, channel, how = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local waits = delivery == 'push' or delivery == 'poll'

-- The commonest case: the lock is free, and no process waits. The code below reports the errors.
local there = hold_count == '1' and not tokens and redis.pcall('exists', lock, KEYS[2])
if there == 1 and is_idle_for(KEYS[2], field) then -- then it is the line that is there
    there = 0
end
if there == 0 and type(redis.pcall('hset', lock, field, hold_count)) == 'number' then
    if type(redis.pcall('pexpire', lock, ARGV[2])) == 'number' then
        return {1, 0, 0}
    end
    redis.call('del', lock)
end

--[[answer]]
local pttl = redis.call('pttl', lock)
local mine = pttl ~= -2 and redis.call('hexists', lock, field) == 1
local leave_line -- where there is a line
if not mine and hold_count ~= '1' then
    return {-1, 0, 0}
end
if not mine and (pttl ~= -2 or may_exist(KEYS[2]) and not is_idle_for(KEYS[2], field)) then
    --[[preludes]]
    local _, holder
    if pttl ~= -2 then
        _, holder = check_record(lock)
    end
    local line = open_line(lock, KEYS[2], field)
    if line and has_tombstone(line, field) then
        return {0, pttl, 0}
    end
    local guest = waits and is_guest(line, field)
    local joins = line and waits and not guest and (pttl ~= -2 or line.exists)
    local lost = joins and subscription_lost(field, delivery, channel, how)
    local joined = joins and not lost and
        join(line, field, {delivery = delivery, lease = lease, fenced = fenced, asked = asked})
    if pttl ~= -2 then
        joined = joined and close_line(line)
        return {0, pttl, standing(line, joined, lost, not line or guest or not uses_line(holder))}
    end
    if line and line.exists and delivery ~= 'barge' and not guest then
        local client = client_of(field)
        local to = pass_on(lock, line, tokens, channel, how, joined and client)
        if to and not (joined and to == client) then
            joined = close_line(line) and joined
            return {0, redis.call('pttl', lock), standing(line, joined, lost, false)}
        end
    end
    if line and line.exists then
        leave_line = function()
            leave(line, field)
            close_line(line)
        end
    end
end

-- The token first: if the counter is none, nothing is to be taken.
local token = hold_count == '1' and draw_token(tokens) or 0
redis.call('hset', lock, field, hold_count)
if pttl < lease then
    redis.call('pexpire', lock, ARGV[2])
end
if leave_line then
    leave_line()
end
return {1, 0, token}
