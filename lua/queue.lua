-- Prelude of the scripts of the fair lock: the queue of its waiters. Needs announce.lua, clock.lua and grant.lua.
--
-- A queue is a table, q, with wait_timeout in ms, channel (of a waiter, without its field) and how (see announce.lua), and
-- these keys:
--   lock, tokens  the lock and its token counter
--   waiters       a list of fields, the first waiter first
--   timeouts      a zset {field -> epoch ms when Redisson gives the place of the waiter away}
--   heartbeats    a zset {field of a relock waiter -> epoch ms when its heartbeat expires}, and '' -> epoch ms when a
--                 script last looked for dead waiters
--   wishes        a hash {field of a relock waiter that listens -> what it wants}: the key of the line, see line.lua; or
--                 that of the lock: the line cannot be used
--
-- Rules: every waiter in the queue has a timeout, which Redisson's arithmetic needs. A relock waiter has a heartbeat
-- too. The heartbeat alone then says whether the waiter lives, wherever in the queue it is. Java reads timeouts only.
-- So the timeout of a living relock waiter is kept far enough ahead. All times are the server's.
-- A lock that becomes free is granted to the first waiter if this has a wish and hears its channel. Another first waiter
-- is woken and asks: one of Java, which would count its own request as a re-entry; one of an older version; one that does
-- not listen. No script passes over a waiter that may be alive.
--
-- Defines  leave_queue(q, waiter)                removes a waiter.
-- Defines  wake_first(q)                         sends a message to the first waiter.
-- Defines  grant_first(q)                        grants the lock, which is free, to the first waiter; returns whether it could.
-- Defines  give_back(q, field, held, left)       leaves so many levels; the last frees the lock.
-- Defines  evict_dead(q, now, ttl)               removes dead waiters, and returns whether there were any.
-- Defines  shift_timeouts(q, place)              shortens the timeouts from this place on.
-- Defines  note_wish(q, waiter, wish, life)      notes for so many ms what a waiter wants that listens.
-- Defines  drop_wish(q, waiter)                  forgets it.
-- For this file:
-- Defines  drop_old_wishes(q)                    forgets wishes of waiters that have left.

-- Where a script could not use the line, the wish of a waiter that has left is still there.
local function drop_old_wishes(q)
    local wishes = redis.call('hlen', q.wishes)
    if wishes < redis.call('zcard', q.heartbeats) then -- heartbeats has one '' more
        return
    end
    for _, field in ipairs(redis.call('hrandfield', q.wishes, wishes)) do -- all of them, with the rights that users have
        if field:find(':', 1, true) and not redis.call('zscore', q.heartbeats, field) then
            redis.call('hdel', q.wishes, field)
        end
    end
end

-- wish is {lease, fenced, asked} of a waiter: see grant.lua. The key may be that of a line, which lives longer.
local function note_wish(q, waiter, wish, life)
    if q.wishes == q.lock then
        return
    end
    redis.call('hset', q.wishes, waiter, wish.lease .. ' ' .. wish.fenced .. ' ' .. wish.asked)
    if redis.call('pttl', q.wishes) < life then
        redis.call('pexpire', q.wishes, life)
    end
    drop_old_wishes(q)
end

local function drop_wish(q, waiter)
    if q.wishes ~= q.lock then
        redis.pcall('hdel', q.wishes, waiter) -- a release and an undo go on where the key is that of other data
    end
end

local function leave_queue(q, waiter)
    redis.call('lrem', q.waiters, 1, waiter)
    redis.call('zrem', q.timeouts, waiter)
    redis.call('zrem', q.heartbeats, waiter)
    if redis.call('zcard', q.heartbeats) == 1 then -- only the '' is left
        redis.call('del', q.heartbeats)
    end
    drop_wish(q, waiter)
end

-- Redisson does the same when a place in front of these waiters becomes free.
local function shift_timeouts(q, place)
    for _, waiter in ipairs(redis.call('lrange', q.waiters, place, -1)) do
        if redis.call('zscore', q.timeouts, waiter) then
            redis.call('zincrby', q.timeouts, -q.wait_timeout, waiter)
        end
    end
end

local function wake_first(q)
    local first = redis.call('lindex', q.waiters, 0)
    if first then
        announce(q.how, q.channel .. first, '0')
    end
end

local function grant_first(q)
    local first = redis.call('lindex', q.waiters, 0)
    local wish = first and q.wishes ~= q.lock and redis.pcall('hget', q.wishes, first)
    if type(wish) ~= 'string' then
        return false
    end
    local lease, fenced, asked = wish:match('^(%d+) (%d) (%d+)$')
    local channel = q.channel .. first
    if not lease or listeners(channel, q.how) == 0 or
        not grant(q.lock, {field = first, lease = tonumber(lease), fenced = fenced, asked = asked}, q.tokens, channel, q.how) then
        return false
    end
    leave_queue(q, first)
    shift_timeouts(q, 0)
    return true
end

-- The end of a release and of an undo, and their reply. held says whether the lock has the field. If the lock is
-- free afterwards, it is granted to the first waiter, or that is woken.
local function give_back(q, field, held, left)
    if held and left ~= '0' then
        note_levels(q.lock, field, left)
        return {1, 0, 0}
    end
    if held then
        redis.call('del', q.lock)
    end
    local passed = 0
    if redis.call('exists', q.lock) == 0 then
        passed = grant_first(q) and 1 or 0
        if passed == 0 then
            wake_first(q)
        end
    end
    return {held and 1 or -1, 0, passed}
end

-- Removes relock waiters whose heartbeat has expired. At the head of the queue it also removes other waiters
-- whose timeout is over, or that have none and would stay there for ever.
-- Where no script ran for half a ttl, Redis was away and not the waiters: each gets a new heartbeat instead.
-- Heartbeats are written with pcall: a release must go on where memory is short.
local function evict_dead(q, now, ttl)
    local evicted = false
    local last_run = tonumber(redis.call('zscore', q.heartbeats, '') or now)
    for _, waiter in ipairs(redis.call('zrangebyscore', q.heartbeats, '-inf', ms(now))) do
        if waiter ~= '' then
            if now - last_run > ttl / 2 and redis.call('lpos', q.waiters, waiter) then
                redis.pcall('zadd', q.heartbeats, ms(now + ttl), waiter)
            else
                leave_queue(q, waiter)
                evicted = true
            end
        end
    end
    redis.pcall('zadd', q.heartbeats, 'XX', ms(now), '')
    while true do
        local first = redis.call('lindex', q.waiters, 0)
        if not first or redis.call('zscore', q.heartbeats, first) then
            break
        end
        local timeout = redis.call('zscore', q.timeouts, first)
        if timeout and tonumber(timeout) > now then
            break
        end
        leave_queue(q, first)
        evicted = true
    end
    return evicted
end

