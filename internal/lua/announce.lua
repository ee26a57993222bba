-- Prelude of the scripts that publish messages.
--
-- how is 'publish', or 'spublish' on a Cluster, where Redisson uses sharded channels too. Servers before 7.0 do not
-- know spublish: there the message goes to all nodes. A client that does not know which way its servers need publishes
-- in both, and reaches the clients that listen in either. Such a client hears a message twice; so the numbers of the
-- two are not added, and the larger one counts. A user may have the permissions for one way alone, because its servers
-- need no others: then it may publish.

-- Publishes message; returns the number of connections that received it, as far as this server knows, and whether this
-- user may publish it: if not, the change has already been made, and waiters poll. answer is what Redis said if the
-- common case of the script has published the message, else nil.
local function announce(how, channel, message, answer)
    if how == in_both_ways then
        local plain = tonumber(redis.pcall('publish', channel, message))
        local sharded = tonumber(redis.pcall('spublish', channel, message))
        local received = math.max(plain or 0, sharded or 0)
        return received, plain ~= nil or sharded ~= nil
    end
    local received = answer or redis.pcall(how, channel, message)
    if how == 'spublish' and type(received) ~= 'number' then
        received = redis.pcall('publish', channel, message)
    end
    local may = type(received) == 'number'
    return may and received or 0, may
end

-- Publishes that a lock is free; returns how many of the connections that received it are subscribed to this channel: a
-- program that is subscribed to a pattern, to show all messages, is no waiter. It counts only if this user may not ask
-- for the number of subscribers. Sharded channels have no patterns.
local function announce_release(how, channel, message, answer)
    local received = announce(how, channel, message, answer)
    local known = received > 0 and how ~= 'spublish' and redis.pcall('pubsub', 'numsub', channel)[2]
    if known and how == in_both_ways then
        known = math.max(known, redis.pcall('pubsub', 'shardnumsub', channel)[2] or received)
    end
    return known and math.min(received, known) or received
end
