-- Gives back one level of a permit, or all that an attempt may have taken: its place in the line, too. The permit passes to the
-- next place.
--
-- KEYS[1]  the permits that are free: a string; see semaphore.lua.
-- KEYS[2]  the permits that are taken: a zset.
-- KEYS[3]  the line: a hash, see line.lua; or the first key again: the line cannot be used.
-- ARGV[1]  id of the permit.
-- ARGV[2]  levels left: 0 gives back the permit.
-- ARGV[3]  channel on which free permits are announced; that of a client has :client behind it.
-- ARGV[4]  how: see announce.lua.
-- ARGV[5]  how long the line may keep free permits from those that have no place in it, in ms.
-- ARGV[6]  1 where a request that asks for a permit with this id may still run, else 0.
-- Returns  {1, heard, passed} done, and so many connections were told of free permits; passed is 1 where a permit was granted to
--          the next one, 2 where this user may not tell the next one. {-1, heard, passed} this permit is not taken, or its lease
--          was over.
--
-- Repeatable, and then answers {-1, heard, passed}: running it late or twice gives back no other permit, because the id
-- belongs to one acquisition.

local free, taken, key = KEYS[1], KEYS[2], KEYS[3]
local id, left, channel, how, window, late = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6] == '1'

free_permits(free) -- if it is none, nothing is to be given back
local ends = redis.call('zscore', taken, id)
local state = ends and tonumber(ends) > now_ms() and 1 or -1
if left ~= '0' then
    return {state, 0, 0}
end
if ends then
    redis.call('zrem', taken, id)
    add(free, 1)
end
local heard, passed_on = 0, 0
if key ~= free and (late or not is_idle(key)) then
    --[[preludes]]
    passed_on = leave_and_pass(free, key, id, late, function(line)
        if count_free(free) <= 0 then
            return line, false
        end
        heard = ends and line.first <= line.last and release_to_all(line, channel, how, ms(count_free(free)), window, false) or 0
        if heard > 0 then
            return line, false
        end
        return pass_permits(free, taken, line, id, channel, how, nil)
    end)
end
if ends and heard == 0 then
    heard = announce_free(free, channel, how)
end
return {state, heard, passed_on}
