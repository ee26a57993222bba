-- Prelude of the scripts that end holds of a read/write lock: the lock passes to the first writer in the line, the
-- wait queue in Redis.
--
-- Readers, and all others that have no place in the line, have the same chance as the first writer: if any of them is
-- subscribed to the channel, the lock is left free, and the first writer is told as well.
--
-- Defines  pass_to_writer(lock, writers, line, tokens, channel, how, message, window)  grants the lock, which is
--          free, to the first writer, or leaves it free for all; returns the number of connections that were told
--          that it is free, and the client that was granted it, or nil. If they are 0 and nil, nothing was published.
-- Defines  release_write(lock, writers, line, tokens, prefix, field, left, late, channel, how, window)  sets the hold
--          count of a write hold, or ends the hold and its place in the line if left is 0; returns the answer of the
--          script, {1, heard, passed} or {-1, heard, passed}, and whether the lock is free and nobody was told.

local function pass_to_writer(lock, writers, line, tokens, channel, how, message, window)
    local heard, to = 0, nil
    if line then
        try(function()
            heard = release_to_all(line, channel, how, message, window, true)
            to = heard == 0 and pass_on(lock, line, tokens, channel, how, nil) or nil
        end)
        if to then
            forget_writer(writers, line.to)
        end
    end
    return heard, to
end

local function release_write(lock, writers, line, tokens, prefix, field, left, late, channel, how, window)
    local found = redis.pcall('hexists', lock, field)
    local had = found == 1
    local wrong = type(found) == 'table' -- the key holds other data: an error, after the field has left the line
    if wrong and left ~= '0' then
        error(found, 0)
    elseif left ~= '0' then
        if had then
            note_hold_count(lock, field, left)
        end
        return {had and 1 or -1, 0, 0}, false
    end
    local free, heard, to = false, 0, nil
    if had then
        -- This comes before the first write, because it fails while the slot of the lock moves.
        local living, longest = evict_dead_readers(lock, prefix, field)
        redis.call('hdel', lock, field)
        forget_writers(writers) -- all that wait have the same chance now, readers too
        free = living == 0
        if free then
            redis.call('del', lock)
        else
            redis.call('hset', lock, 'mode', 'read')
            redis.call('pexpire', lock, ms(longest))
            announce(how, channel, '1') -- a downgrade: other readers may join
        end
    else
        free = redis.call('exists', lock) == 0
    end
    if line then
        try(function()
            leave(line, field)
            if late then
                bury(line.waits, field)
            end
        end)
        if free then
            heard, to = pass_to_writer(lock, writers, line, tokens, channel, how, '1', window)
        end
    end
    if wrong then
        error(found, 0)
    end
    if had and free and heard == 0 and not to then
        heard = announce_release(how, channel, '1')
    end
    return {had and 1 or -1, heard, passed(line, to)}, free and heard == 0 and not to
end
