-- Prelude of the scripts that end holds of a read/write lock: the lock passes to the first writer in the line.

-- Grants the lock, which is free, to the first writer, or leaves it free for all; returns the number of connections
-- that were told that it is free, and the client that was granted it, or nil. If they are 0 and nil, nothing was
-- published.
--
-- Readers, and all others that have no place in the line, have the same chance as the first writer: if any of them is
-- subscribed to the channel, the lock is left free, and the first writer is told as well.
local function pass_to_writer(lock, writers, line, tokens, channel, how, message, window)
    local heard = release_to_all(line, channel, how, message, window, true)
    local to = heard == 0 and pass_on(lock, line, tokens, channel, how, nil) or nil
    if to then
        forget_writer(writers, line.to)
    end
    return heard, to
end
