-- Prelude of the scripts of the fair lock: the queue of its waiters. Needs announce.lua and clock.lua.
--
-- queue is a list of fields, the first waiter first. timeouts is a zset {field -> epoch ms when Redisson gives the
-- place of the waiter away}. heartbeats is a zset {field of a relock waiter -> epoch ms when its heartbeat expires},
-- and has '' -> epoch ms when a script last looked for dead waiters.
--
-- Rules: every waiter in the queue has a timeout, which Redisson's arithmetic needs. A relock waiter has a heartbeat
-- too. The heartbeat alone then says whether the waiter lives, wherever in the queue it is. Java reads timeouts only.
-- So the timeout of a living relock waiter is kept far enough ahead. All times are the server's.
--
-- Defines  leave_queue(queue, timeouts, heartbeats, waiter)        removes a waiter.
-- Defines  wake_first(queue, channel, how)                         sends a message to the first waiter.
-- Defines  give_back(lock, field, held, left, queue, channel, how)    leaves so many levels; the last frees the lock.
-- Defines  evict_dead(queue, timeouts, heartbeats, now, ttl)       removes dead waiters, and returns whether there were any.
-- Defines  shift_timeouts(queue, timeouts, place, wait_timeout)    shortens the timeouts from this place on.

local function leave_queue(queue, timeouts, heartbeats, waiter)
    redis.call('lrem', queue, 1, waiter)
    redis.call('zrem', timeouts, waiter)
    redis.call('zrem', heartbeats, waiter)
    if redis.call('zcard', heartbeats) == 1 then -- only the '' is left
        redis.call('del', heartbeats)
    end
end

local function wake_first(queue, channel, how)
    local first = redis.call('lindex', queue, 0)
    if first then
        announce(how, channel .. first, '0')
    end
end

-- The end of a release and of an undo, and their reply. held says whether the lock has the field. If the lock is
-- free afterwards, the first waiter is woken.
local function give_back(lock, field, held, left, queue, channel, how)
    if held and left ~= '0' then
        note_levels(lock, field, left)
        return {1, 0, 0}
    end
    if held then
        redis.call('del', lock)
    end
    if redis.call('exists', lock) == 0 then
        wake_first(queue, channel, how)
    end
    return {held and 1 or -1, 0, 0}
end

-- Removes relock waiters whose heartbeat has expired. At the head of the queue it also removes other waiters
-- whose timeout is over, or that have none and would stay there for ever.
-- Where no script ran for half a ttl, Redis was away and not the waiters: each gets a new heartbeat instead.
-- Heartbeats are written with pcall: a release must go on where memory is short.
local function evict_dead(queue, timeouts, heartbeats, now, ttl)
    local evicted = false
    local last_run = tonumber(redis.call('zscore', heartbeats, '') or now)
    for _, waiter in ipairs(redis.call('zrangebyscore', heartbeats, '-inf', ms(now))) do
        if waiter ~= '' then
            if now - last_run > ttl / 2 and redis.call('lpos', queue, waiter) then
                redis.pcall('zadd', heartbeats, ms(now + ttl), waiter)
            else
                leave_queue(queue, timeouts, heartbeats, waiter)
                evicted = true
            end
        end
    end
    redis.pcall('zadd', heartbeats, 'XX', ms(now), '')
    while true do
        local first = redis.call('lindex', queue, 0)
        if not first or redis.call('zscore', heartbeats, first) then
            break
        end
        local timeout = redis.call('zscore', timeouts, first)
        if timeout and tonumber(timeout) > now then
            break
        end
        leave_queue(queue, timeouts, heartbeats, first)
        evicted = true
    end
    return evicted
end

-- Redisson does the same when a place in front of these waiters becomes free.
local function shift_timeouts(queue, timeouts, place, wait_timeout)
    for _, waiter in ipairs(redis.call('lrange', queue, place, -1)) do
        if redis.call('zscore', timeouts, waiter) then
            redis.call('zincrby', timeouts, -wait_timeout, waiter)
        end
    end
end
