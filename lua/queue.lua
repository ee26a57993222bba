-- Prelude of the scripts of the fair lock: the queue of its waiters. Needs announce.lua, clock.lua, clients.lua and
-- grant.lua.
--
-- A queue is a table, q, with wait_timeout in ms, channel and how (see announce.lua), and these keys:
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
-- So each heartbeat keeps the timeout of its waiter near what Redisson's arithmetic says. All times are the server's.
-- A lock that becomes free is granted to the first waiter if this has a wish and its client hears its channel, which is
-- that of all waiters of this client. Another first waiter is woken on a channel of its own, and asks: one of Java, which would
-- count its own request as a re-entry; one of an older version; one that does not listen. No script passes over a
-- waiter that may be alive. A program of Java and one of an older version know the channel of the waiter alone. So a
-- waiter listens there too where one of these is in front of it.
--
-- Defines  leave_queue(q, waiter)                removes a waiter.
-- Defines  give_up(q, leaving, now)              removes waiters that were not served: the keys of a table.
-- Defines  wake_first(q)                         sends a message to the first waiter.
-- Defines  is_apart(q, wished, holder)           whether the lock may be released on the channel of the caller alone, which is in
--          the queue; wished: it has a wish. holder may be nil.
-- Defines  grant_first(q)                        grants the lock, which is free, to the first waiter; returns whether it could.
-- Defines  give_back(q, field, held, left, waits)    leaves so many levels; the last frees the lock. waits: there may be waiters.
-- Defines  evict_dead(q, now, ttl)               removes dead waiters; returns the first waiter, and whether there were dead ones.
-- Defines  shift_timeouts(q)                     shortens the timeouts, where heartbeats do not.
-- Defines  note_wish(q, waiter, wish, life)      notes for so many ms at least what a waiter wants that listens.
-- Defines  drop_wish(q, waiter)                  forgets it.
-- For this file:
-- Defines  shift_by(q, waiters, waits)           shortens the timeout of each waiter by so many wait timeouts.
-- Defines  client_channel(q, waiter)             the channel of the waiters of a client.
-- Defines  count_wishes(q)                       forgets wishes of waiters that have left, and counts the others.

-- wish is {lease, fenced, asked} of a waiter: see clients.lua. The key may be that of a line, which lives longer.
local function note_wish(q, waiter, wish, life)
    if q.wishes == q.lock then
        return
    end
    redis.call('hset', q.wishes, waiter, wish.lease .. ' ' .. wish.fenced .. ' ' .. wish.asked)
    if redis.call('pttl', q.wishes) < life then
        redis.call('pexpire', q.wishes, 4 * life)
    end
end

-- Where a script could not use the line, the wish of a waiter that has left is still there. The count is nil where the key
-- cannot be used or is that of other data.
local function count_wishes(q)
    local wishes = q.wishes ~= q.lock and redis.pcall('hlen', q.wishes)
    if type(wishes) ~= 'number' then
        return nil
    end
    if wishes < redis.call('zcard', q.heartbeats) then -- heartbeats has one '' more
        return wishes
    end
    for _, field in ipairs(redis.call('hrandfield', q.wishes, wishes)) do -- all of them, with the rights that users have
        if field:find(':', 1, true) and not redis.call('zscore', q.heartbeats, field) then
            redis.call('hdel', q.wishes, field)
        end
    end
    return redis.call('hlen', q.wishes)
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

-- Lua passes no more than some thousand arguments.
local function shift_by(q, waiters, waits)
    for from = 1, #waiters, 1000 do
        local to, shifted = math.min(from + 999, #waiters), {}
        for i, timeout in ipairs(redis.call('zmscore', q.timeouts, unpack(waiters, from, to))) do
            if timeout then
                shifted[#shifted + 1] = ms(tonumber(timeout) - waits[from + i - 1] * q.wait_timeout)
                shifted[#shifted + 1] = waiters[from + i - 1]
            end
        end
        if #shifted > 0 then
            redis.call('zadd', q.timeouts, unpack(shifted))
        end
    end
end

-- The first waiter has left the queue: it was served. Redisson shortens the timeouts of all waiters. A relock waiter does so
-- itself with its next heartbeat; but the next waiter counts from the timeout of the last one.
local function shift_timeouts(q)
    local n = redis.call('llen', q.waiters)
    local from = n == redis.call('zcard', q.heartbeats) - 1 and n - 1 or 0 -- else one is of Java
    local waiters = n > 0 and redis.call('lrange', q.waiters, from, -1) or {}
    local waits = {}
    for i = 1, #waiters do
        waits[i] = 1
    end
    shift_by(q, waiters, waits)
end

-- The timeouts behind these waiters become right, however many leave. That of the last waiter was right, and the one of a
-- relock waiter in front of it may have been late.
local function give_up(q, leaving, now)
    local all = redis.call('lrange', q.waiters, 0, -1)
    local last = all[#all] and tonumber(redis.call('zscore', q.timeouts, all[#all]) or nil)
    local left, moved, waits = 0, {}, {}
    for _, waiter in ipairs(all) do
        if leaving[waiter] then
            left = left + 1
        elseif left > 0 then
            moved[#moved + 1], waits[#waits + 1] = waiter, left
        end
    end
    for waiter in pairs(leaving) do
        leave_queue(q, waiter) -- first: where memory is short, a script that has written nothing may not zadd
    end
    shift_by(q, moved, waits)
    local final = redis.call('lindex', q.waiters, -1)
    if last and final and leaving[all[#all]] and redis.call('zscore', q.heartbeats, final) then
        local before = tonumber(redis.call('zscore', q.timeouts, final) or last)
        local least = now + (#all - left - 1) * q.wait_timeout + q.wait_timeout / 2
        redis.call('zadd', q.timeouts, ms(math.max(least, math.min(before, last - left * q.wait_timeout))), final)
    end
end

local function client_channel(q, waiter) return q.channel .. 'client:' .. client_of(waiter) end

local function wake_first(q)
    local first = redis.call('lindex', q.waiters, 0)
    if first then
        announce(q.how, q.channel .. first, '0')
        if q.wishes == q.lock or redis.pcall('hexists', q.wishes, first) == 1 then -- it may not listen to the other
            announce(q.how, client_channel(q, first), 'free ' .. first)
        end
    end
end

-- A waiter with a wish is of a program that grants. The line of a plain lock of this name has other fields.
local function is_apart(q, wished, holder)
    local wishes = count_wishes(q)
    if not wishes or holder and has_no_line(holder) or redis.call('hexists', q.wishes, 'last') == 1 then
        return true
    end
    return wishes + (wished and 0 or 1) ~= redis.call('llen', q.waiters)
end

local function grant_first(q)
    local first = redis.call('lindex', q.waiters, 0)
    local wish = first and q.wishes ~= q.lock and redis.pcall('hget', q.wishes, first)
    if type(wish) ~= 'string' then
        return false
    end
    local lease, fenced, asked = wish:match('^(%d+) (%d) (%d+)$')
    local channel = client_channel(q, first)
    if not lease or listeners(channel, q.how) == 0 or
        not grant(q.lock, {field = first, lease = tonumber(lease), fenced = fenced, asked = asked}, q.tokens, channel, q.how) then
        return false
    end
    leave_queue(q, first)
    shift_timeouts(q)
    return true
end

-- The end of a release and of an undo, and their reply. held says whether the lock has the field. If the lock is
-- free afterwards, it is granted to the first waiter, or that is woken.
local function give_back(q, field, held, left, waits)
    if held and left ~= '0' then
        note_levels(q.lock, field, left)
        return {1, 0, 0}
    end
    if held then
        redis.call('del', q.lock)
    end
    local passed = 0
    if waits and (held or redis.call('exists', q.lock) == 0) then
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
    local dead, last_run = {}, now
    local due = redis.call('zrangebyscore', q.heartbeats, '-inf', ms(now), 'withscores')
    for i = 1, #due, 2 do
        last_run = due[i] == '' and tonumber(due[i + 1]) or last_run
    end
    for i = 1, #due, 2 do
        local waiter = due[i]
        if waiter ~= '' then
            if now - last_run > ttl / 2 and redis.call('lpos', q.waiters, waiter) then
                redis.pcall('zadd', q.heartbeats, ms(now + ttl), waiter)
            else
                dead[waiter] = true
            end
        end
    end
    local evicted = next(dead) ~= nil
    if evicted then
        give_up(q, dead, now)
    end
    if #due > 0 then
        redis.pcall('zadd', q.heartbeats, 'XX', ms(now), '')
    end
    while true do
        local first = redis.call('lindex', q.waiters, 0)
        if not first or redis.call('zscore', q.heartbeats, first) then
            return first, evicted
        end
        local timeout = redis.call('zscore', q.timeouts, first)
        if timeout and tonumber(timeout) > now then
            return first, evicted
        end
        leave_queue(q, first)
        evicted = true
    end
end

