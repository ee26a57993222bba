-- Prelude of the scripts that end a write hold. Needs announce.lua, clock.lua and readers.lua.
--
-- Defines  give_back_write(lock, writers, prefix, field, left, channel, how)    sets the levels of a write hold, or ends
--          it with 0 left; returns what the script returns: {1, heard, 0} or {-1, 0, 0}.

local function give_back_write(lock, writers, prefix, field, left, channel, how)
    if redis.call('hexists', lock, field) == 0 then
        return {-1, 0, 0}
    end
    if left ~= '0' then
        note_levels(lock, field, left)
        return {1, 0, 0}
    end
    local living, longest = evict_dead_readers(lock, prefix) -- before anything is given back: it fails where a slot moves
    redis.call('hdel', lock, field)
    redis.call('del', writers) -- all that wait, readers too, have the same chance now
    if living == 0 then
        redis.call('del', lock)
        return {1, announce(how, channel, '1'), 0}
    end
    redis.call('hset', lock, 'mode', 'read')
    redis.call('pexpire', lock, ms(longest))
    announce(how, channel, '1') -- a downgrade: other readers may join
    return {1, 0, 0}
end
