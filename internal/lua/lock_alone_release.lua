-- Sets the hold count of a plain lock to a lower value, or ends the hold, with the key of the lock alone: see
-- lock_alone_acquire.lua. The lock is not passed on: those in the line find it free when they ask.
--
-- KEYS[1]  the lock: a hash {field of the hold -> hold count}.
-- ARGV[1]  the field of the hold.
-- ARGV[2]  the channel on which the release is announced.
-- ARGV[3]  the command that publishes: see announce.lua.
-- ARGV[5]  the hold count that is left: 0, which is the default, ends the hold.
-- ARGV     the others: those of lock_release.lua, which do not count.
-- Returns  {1, heard, 0} done: see lock_release.lua. {-1, 0, 0} there is no such hold.
--
-- Repeatable, and then answers {-1, 0, 0}: see lock_release.lua.

--[[with forms record announce]]
return answer(function()
local lock, field, channel, how, left = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[5] or '0'

if left ~= '0' and redis.call('hexists', lock, field) == 1 then
    note_hold_count(lock, field, left)
    return {1, 0, 0}
elseif left ~= '0' or redis.call('hdel', lock, field) == 0 then
    check_record(lock)
    return {-1, 0, 0}
end
return {1, announce_release(how, channel, '0'), 0}
end, {'hash'})
