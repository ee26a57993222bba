-- Prelude of the scripts of the fair lock: the queue of its waiters.
--
-- A queue is a table, q, with these keys, and with wait_timeout in ms, channel and how (see announce.lua):
--   lock      the lock
--   waiters   a list of fields, the first waiter first
--   timeouts  a zset {field -> epoch ms at which Redisson gives the place of the waiter away}
--   places    a hash {field of a relock waiter -> its place, '' -> when a waiter last asked, and more}: see place_of
--             and look
--   waits     the tombstones: see tombstones.lua
--   tokens    the token counter, or nil
--
-- Rules: every waiter in the queue has a timeout, which Redisson's arithmetic needs. A relock waiter has a place too,
-- which it renews with each request, well before the place is overdue. A lock that becomes free is granted to the first
-- waiter that is not overdue and learns of the grant. It does if its client is subscribed to the channel that all
-- waiters of this client have; or it is not subscribed, and asks often. The script that passes on the lock removes the
-- waiters in front that are overdue: their processes are dead, or paused. No script looks for others. A waiter that is
-- not overdue, but whose channel has no subscriber on this server, is passed over and keeps its place: for a moment
-- after a restart or a failover of Redis the subscriptions of some living waiters are missing. If it asks, it is told
-- that its subscription is lost. A place grows older only while waiters ask: see look.
--
-- A waiter of Java has no place. It is woken when its turn comes, on a channel of its own, and asks: it would count its
-- own request as a re-entry if it was granted the lock. It is removed when its timeout has expired, as Redisson does.
-- Java cannot pass over any waiter. So waiters without a subscriber leave the queue if a waiter of Java is the next
-- one. They also leave it if a release finds no other waiter, so that the queue does not stay: a living waiter has lost
-- its turn then, and asks again soon.
--
-- Java reads timeouts only. So each request keeps the timeout of its waiter near the value that Redisson's arithmetic
-- gives. Redisson shortens the timeouts of all waiters behind one that leaves, by one wait timeout. A script does this
-- at once only for those that count for Java: the waiters of Java; each waiter that has one of Java behind it; and the
-- last waiter, because the timeout of the next one to join counts from the last one. The others correct theirs when
-- they ask. So if only relock waits, it costs the same however many wait.
--
-- A place notes whether a waiter of Java was in front when its waiter joined, or in front of the one before. So the
-- last waiter tells whether any waiter is of Java. If none is left, the next one that leaves finds out.
--
-- The waiters and the timeouts have a lease, so that they do not stay if all waiters have died. Each request of a waiter
-- of relock sets it. It is long, because waiters of Java, which set none, may be the only ones that are left. The place
-- of a waiter that Java has removed stays until the queue is empty, or the hash expires, 5 minutes after the last
-- request.

local queue_life = 24 * 60 * 60 * 1000 -- ms: how long waiters and timeouts last
local most_waiters = 20000 -- of a queue that relock still joins
local longest_queue = 2 * most_waiters -- that a script reads: Java joins a longer one, too
local far = 7 * near_head -- waiters with more in front of them are alike: they ask every eight seconds
local most_passed = 5000 -- waiters that one script passes over; the next one continues
local ask_every = 1000 -- ms: as FairHeartbeat in internal/record

local function open_queue(lock, waiters, timeouts, places, waits, tokens, wait_timeout, channel, how)
    return {lock = lock, waiters = waiters, timeouts = timeouts, places = places, waits = waits, tokens = tokens,
        wait_timeout = tonumber(wait_timeout), half = math.max(wait_timeout / 2, 2 * ask_every), channel = channel, how = how}
end

-- How long a place lasts, in ms, if so many waiters are in front. Three of four requests may be late. A waiter asks
-- more rarely if near_head or more are in front of it, and may be late by as much: see nextPoll of internal/engine.
local function life_of(ahead) return (4 + math.floor(math.min(ahead, far) / near_head)) * ask_every end

-- Returns the place of a waiter, as clients.lua has waiters, with these in addition: since, epoch seconds; at, epoch ms
-- of its last request; life, for how many ms that lasts; java, '1' or '0'. nil if it has none. asked is 0 if the waiter
-- is not subscribed. Then it asks often, and finds that it holds the lock.
local function place_of(q, waiter)
    local text = redis.pcall('hget', q.places, waiter)
    local lease, fenced, asked, since, at, life, java = (type(text) == 'string' and text or ''):match(queue_pattern)
    return lease and {field = waiter, lease = tonumber(lease), fenced = fenced, asked = asked, since = since,
        at = tonumber(at), life = tonumber(life), java = java, delivery = asked == '0' and 'poll' or 'push'}
end

-- Whether a waiter is of Java, and the last waiter.
local function java_waits(q)
    local last = redis.call('lindex', q.waiters, -1)
    local p = last and place_of(q, last)
    return last and (not p or p.java == '1'), last
end

local function looked(q) return ms(q.now) .. ' ' .. ms(q.lost) end

-- Sets q.now, and q.lost: how many ms no place has grown older, since no waiter asked: Redis was perhaps unreachable, or
-- its clock was set. One second of each gap counts all the same, because the few that wait may ask rarely. It is written
-- with pcall, because a release must go on if memory is short.
local function look(q)
    q.now = now_ms()
    local before = redis.pcall('hget', q.places, '')
    local asked, lost = (type(before) == 'string' and before or ''):match('^(%d+) (%-?%d+)$')
    local gap = asked and q.now - asked or 0
    q.lost = tonumber(lost or 0)
    if gap < 0 or gap > 2 * ask_every then
        q.lost = q.lost + gap - (gap > 0 and ask_every or 0)
        redis.pcall('hset', q.places, '', looked(q))
    end
end

local function client_channel(q, waiter) return q.channel .. 'client:' .. client_of(waiter) end

-- Whether the waiter of a place learns of a grant. heard has what is known of clients already. If the user may not ask
-- for the number of subscribers, all clients count as subscribed.
local function is_heard(q, p, heard)
    local client = client_of(p.field)
    if p.delivery == 'push' and heard[client] == nil then
        heard[client] = listeners(client_channel(q, p.field), q.how) ~= 0
    end
    return p.delivery == 'poll' or heard[client]
end

local function wake(q, waiter)
    if is_relocks(waiter) then
        announce(q.how, client_channel(q, waiter), 'free ' .. waiter)
    else
        announce(q.how, q.channel .. waiter, '0')
    end
end

-- Returns how many waiters are in front of a waiter, nil if it is not queued; and whether this is exact: else it is
-- far, and the waiter is there or farther behind. timeout is its timeout, or false, and queued the length of the queue.
-- The search of a long list takes longer than all the rest of a request. If only relock waits, the timeouts have each
-- waiter of the queue and no other, and that of a waiter in the middle does not count.
local function find_place(q, waiter, timeout, queued)
    if queued <= far or queued ~= redis.call('zcard', q.timeouts) or java_waits(q) then
        return redis.call('lpos', q.waiters, waiter), true
    elseif not timeout then
        return nil, true
    end
    local ahead = redis.call('lindex', q.waiters, -1) == waiter and queued - 1 or
        redis.call('lpos', q.waiters, waiter, 'maxlen', far)
    return ahead or far, ahead
end

-- Refuses a queue that is longer than any queue of locks, unless thousands of Java waiters joined a full one; returns
-- its length.
local function check_queue(q)
    local n = redis.call('llen', q.waiters)
    if n > longest_queue then
        refuse(q.waiters, 'type list')
    end
    return n
end

-- Stores a place, and fields and values that follow.
local function note_place(q, p, ...)
    redis.call('hset', q.places, p.field, string.format(queue_format, ms(p.lease), p.fenced, p.asked, p.since, ms(p.at),
        ms(p.life), p.java), ...)
end

-- As leave_queue, for a queue with waiters of Java, or if several leave, but for the places of those that leave;
-- returns how many have left. Of a longer queue than any of locks nothing is removed. The list is not written anew: while
-- its slot moves on a Cluster, Redis would not create it again. So those that leave are removed one by one. As a rule
-- they are in front, and found at once. If another program has put a waiter into the queue many times, its other entries
-- are overdue, and leave when it is their turn.
local function move_up(q, leaving)
    local all = redis.call('lrange', q.waiters, 0, longest_queue)
    local stay, left, java = {}, 0, false
    -- At most longest_queue, and one.
    for _, waiter in ipairs(#all <= longest_queue and all or {}) do
        if leaving[waiter] then
            redis.call('lrem', q.waiters, 1, waiter)
            left, leaving[waiter] = left + 1, nil
        else
            local before, timeout, first = stay[#stay], nil, not java
            if not is_relocks(waiter) then
                java, timeout = true, left > 0 and redis.call('zscore', q.timeouts, waiter)
            end
            if timeout then
                -- Redisson does not shorten it if those that left have outlived theirs: it would be over, too.
                local least = math.min(timeout, q.now + #stay * q.wait_timeout + q.half)
                timeout = math.max(timeout - left * q.wait_timeout, least)
                redis.call('zadd', q.timeouts, ms(timeout), waiter)
                if before and first then -- the next request of before may come later than one of Java
                    least = q.now + (#stay - 1) * q.wait_timeout + q.half
                    redis.call('zadd', q.timeouts, 'xx', 'lt', ms(math.max(timeout - q.wait_timeout, least)), before)
                end
            end
            stay[#stay + 1] = waiter
        end
    end
    local last = not java and #stay > 0 and place_of(q, stay[#stay])
    if last and last.java == '1' then
        last.java = '0'
        note_place(q, last)
    end
    return left
end

-- Removes waiters, which are the keys of a table. Those behind them move up. The first write needs no memory, and after
-- it Redis accepts the next ones even if memory is short.
local function leave_queue(q, leaving)
    if not q.now then
        look(q)
    end
    local java, last = java_waits(q)
    local ends = last and tonumber(redis.call('zscore', q.timeouts, last) or nil)
    local fields = {}
    -- At most most_passed, and one.
    for field in pairs(leaving) do
        fields[#fields + 1] = field
    end
    in_parts('zrem', q.timeouts, fields)
    pcall(in_parts, 'hdel', q.places, fields) -- a release goes on if the key holds other data
    local left = (java or #fields > 1) and move_up(q, leaving) or redis.call('lrem', q.waiters, 1, fields[1])
    last = redis.call('lindex', q.waiters, -1)
    if redis.pcall('hexists', q.places, '') == 1 and (not last or redis.call('hlen', q.places) == 1) then
        redis.call('del', q.places) -- with those of waiters that Java has removed
    end
    if left > 0 and ends and last and is_relocks(last) then
        local least = q.now + (redis.call('llen', q.waiters) - 1) * q.wait_timeout + q.half
        redis.call('zadd', q.timeouts, 'xx', 'lt', ms(math.max(least, ends - left * q.wait_timeout)), last)
    end
end

-- Passes on the lock, which is free, to the first waiter that is not passed over: grants it, or wakes this waiter;
-- asker is not granted it, because it acquires the lock itself. Returns this waiter, nil if there is none; q.granted
-- tells whether it was granted the lock. It is woken again by each run that finds the lock free: a waiter of Java sleeps
-- until the end of a lease that it has seen, and the lock may have been granted, and have expired, since then. freed:
-- the script has ended a hold; if there is no other waiter then, those that were passed over leave.
local function pass_on(q, asker, freed)
    if redis.call('exists', q.waiters) == 0 then
        return nil
    elseif not q.now then
        look(q)
    end
    local gone, passed, heard, to, granted = {}, {}, {}, nil, false
    -- At most most_passed, and one.
    for place = 0, most_passed do
        local waiter = redis.call('lindex', q.waiters, place)
        local p = waiter and place_of(q, waiter)
        if not waiter or waiter == asker or place == most_passed then
            to = waiter
            break
        elseif not is_relocks(waiter) then
            local timeout = redis.call('zscore', q.timeouts, waiter)
            if timeout and tonumber(timeout) > q.now then
                to = waiter
                break
            end
            gone[waiter] = true
        elseif not p or p.at + p.life <= q.now - q.lost then -- its waiter is overdue
            gone[waiter] = true
        elseif is_heard(q, p, heard) then
            granted = nil
            if p.delivery == 'push' or p.lease >= 2 * ask_every then -- else the grant would end before the waiter asks
                granted = grant(q.lock, p, q.tokens, client_channel(q, waiter), q.how)
            end
            if granted ~= false then
                to = waiter
                break
            end
            heard[client_of(waiter)], passed[waiter] = false, true
        else
            passed[waiter] = true
        end
    end
    local leave = to and not is_relocks(to) or not to and freed
    -- At most most_passed.
    for waiter in pairs(leave and passed or {}) do
        gone[waiter] = true
    end
    if granted then
        gone[to] = true
    end
    if next(gone) then
        leave_queue(q, gone)
    end
    if not granted and to and to ~= asker then
        wake(q, to)
    end
    q.granted = granted
    return to or nil
end
