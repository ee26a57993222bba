-- Put before the scripts that announce something.
--
-- announce never fails: a user may lack the right to publish, but what is
-- announced has happened by then, and waiters ask again by themselves.
-- how: 'publish', or 'spublish' on a Cluster, where Redisson stays in the shard
-- too; servers that cannot do that (before 7.0) tell everybody.
-- It returns how many connections were told, as far as that is known.

local function announce(how, channel, message)
    local heard = redis.pcall(how, channel, message)
    if how == 'spublish' and type(heard) ~= 'number' then
        heard = redis.pcall('publish', channel, message)
    end
    return type(heard) == 'number' and heard or 0
end

