-- Takes a lock, or one more level of a lock that is held.
--
-- KEYS[1]  the lock: a hash {field of the hold -> levels}.
-- KEYS[2]  the token counter: a string; only for a fenced lock.
-- ARGV[1]  field of the hold, of its own for every acquisition that is not a handover.
-- ARGV[2]  lease in ms.
-- ARGV[3]  level wanted: 1 takes a free lock, more re-enters a held one.
-- Returns  {1, 0, token} held (token 0: not fenced), {0, pttl, 0} busy, {-1, 0, 0} nothing there to re-enter.
--
-- Running it twice does what running it once does: the level is set, not added, and a lease is never shortened.
-- A hash that no lock makes is refused: see record.lua.

local lock, tokens = KEYS[1], KEYS[2]
local field, lease, level = ARGV[1], ARGV[2], ARGV[3]

local pttl = redis.call('pttl', lock)

if pttl ~= -2 and redis.call('hexists', lock, field) == 0 then
    if level ~= '1' then
        return {-1, 0, 0}
    end
    check_record(lock)
    return {0, pttl, 0}
end
if pttl == -2 and level ~= '1' then
    return {-1, 0, 0}
end

-- The token first: if the counter is none, nothing is to be taken.
local token = level == '1' and draw_token(tokens) or 0
redis.call('hset', lock, field, level)
if pttl < tonumber(lease) then
    redis.call('pexpire', lock, lease)
end
return {1, 0, token}
