-- Prelude of the scripts that announce something.
--
-- Defines  announce(how, channel, message)    publishes message; returns how many connections have received it, as far
--          as this server knows, and whether this user may publish it.
--
-- how is 'publish', or 'spublish' on a Cluster, where Redisson stays in the shard too. Servers before 7.0 do not know
-- spublish: there the message goes to all nodes. announce never fails: the user may lack the right to publish, but the
-- change is already done, and waiters ask again by themselves.

local function announce(how, channel, message)
    local received = redis.pcall(how, channel, message)
    if how == 'spublish' and type(received) ~= 'number' then
        received = redis.pcall('publish', channel, message)
    end
    local may = type(received) == 'number'
    return may and received or 0, may
end

