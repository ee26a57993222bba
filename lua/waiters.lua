-- Prelude of the scripts in which clients wait for permits of a semaphore.
--
-- The zset has two members for each client that waits: "client" -> when it came, and "client:alive" -> until when it counts as
-- alive. Both are epoch ms; the first one is less a number that makes it negative, so that the two kinds do not mix.
--
-- Defines  waiter_of(id)                                the client that asks with this id.
-- Defines  look_ahead(waiters, id, now)                 when the client of this id came, as the zset has it, or false; and
--          how many clients came before it. Drops the dead.
-- Defines  keep_waiting(waiters, id, came, now, life)   gives the client a place, if it has none, and a sign of life.
-- Defines  stop_waiting(waiters, id)                    the client does not wait any more.

local alive = ':alive'
local before_all = 1e15

local function waiter_of(id) return id:match('^[^:]*') end

local function look_ahead(waiters, id, now)
    for _, sign in ipairs(redis.call('zrangebyscore', waiters, 0, ms(now))) do
        redis.call('zrem', waiters, sign, sign:sub(1, -1 - #alive))
    end
    local came = redis.call('zscore', waiters, waiter_of(id))
    return came, redis.call('zcount', waiters, '-inf', '(' .. (came or 0))
end

local function keep_waiting(waiters, id, came, now, life)
    local client = waiter_of(id)
    if not came then
        redis.call('zadd', waiters, ms(now - before_all), client)
    end
    redis.call('zadd', waiters, ms(now + life), client .. alive)
    redis.call('pexpire', waiters, life)
end

local function stop_waiting(waiters, id)
    redis.call('zrem', waiters, waiter_of(id), waiter_of(id) .. alive)
end
