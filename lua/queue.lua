-- Prelude of the scripts of the fair lock: the queue of its waiters.
--
-- A queue is a table, q, with wait_timeout in ms, channel and how (see announce.lua), and these keys:
--   lock, tokens  the lock and its token counter
--   waiters       a list of fields, the first waiter first
--   timeouts      a zset {field -> epoch ms when Redisson gives the place of the waiter away}
--   heartbeats    a zset {field of a relock waiter -> epoch ms when its heartbeat expires}, and '' -> epoch ms when a
--                 script last looked for dead waiters
--   wishes        a hash {field of a relock waiter that listens -> what it wants}, and 'over' -> fields that never wait
--                 again or take the lock, each with the epoch ms until when: the key of the line, see line.lua; or
--                 that of the lock: the line cannot be used
--
-- Rules: every waiter in the queue has a timeout, which Redisson's arithmetic needs. A relock waiter has a heartbeat
-- too. The heartbeat alone then says whether the waiter lives, wherever in the queue it is. Java reads timeouts only.
-- So each heartbeat keeps the timeout of its waiter near what Redisson's arithmetic says. All times are the server's.
--
-- The script that puts a relock waiter into the queue gives it its heartbeat, in every version and for every user: a
-- user without the right to the heartbeats cannot run the script at all, and no script runs while a slot moves and
-- only some of its keys have arrived. All heartbeats expire together when no waiter has sent one for queue_life. So a
-- waiter without a heartbeat whose field is of relock's form is dead, and is not one of Java (see is_relocks).
--
-- The waiters and the timeouts have a lease while relock alone waits, so that they do not stay where all waiters have
-- died. A Java service may come while the lease runs, and perhaps no script of relock runs any more. Redisson keeps
-- its place until one wait timeout after the timeout of the last waiter in front of it. The lease lasts until then:
-- Java loses no place sooner than Redisson would take it away. Where a script finds that Java waits, the lease becomes
-- one that never ends. Users have no right to PERSIST.
--
-- A lock that becomes free is granted to the first waiter that has a wish and whose client hears its channel, which
-- is that of all waiters of this client. A waiter that has a wish, and of which this server knows that nobody hears
-- its channel, is passed over: its process has died, or its connection was cut. It keeps its place until its heartbeat
-- expires, because for a moment after a restart or a failover of Redis some are not heard that live. If it asks, it is
-- told that it is not heard, and has no wish until it is. Java cannot pass over anybody. So waiters that nobody hears
-- leave the queue where a waiter of Java is the next one. They also leave it where a release finds no other waiter, so
-- that it does not stay: a waiter that lives has lost its turn then, and asks again within a heartbeat.
--
-- A first waiter without a wish may be alive, and no script passes over it. It is woken on a channel of its own, and
-- asks: one of Java, which would count its own request as a re-entry; one of an older version; one that does not
-- listen, because it may not or does not yet. A program of Java and one of an older version know the channel of the
-- waiter alone. So a waiter listens there too where one of these is in front of it.
--
-- Defines  leave_queue(q, waiter)                removes a waiter.
-- Defines  give_up(q, leaving, now)              removes waiters that were not served: the keys of a table.
-- Defines  wake(q, waiter)                       sends a message to a waiter.
-- Defines  pass_to_first(q)                      passes on the lock, which is free: grants it to the first waiter, or wakes
--          this. Returns whether it was granted.
-- Defines  has_legacy(q, wished, holder)         whether the lock may be released on the channel of the caller alone, which is in
--          the queue; wished: it has a wish. holder may be nil.
-- Defines  first_alive(q, asker, heard, from)    the first waiter that is not passed over, and how many are in front of
--          it. The asker is alive. heard is as in is_heard. from is the first place that counts. All but q may be nil.
-- Defines  grant_first(q)                        grants the lock, which is free, to the first waiter that is not passed
--          over; returns whether it could, and that waiter.
-- Defines  serve(q, waiter, place)               removes a waiter that has the lock now, with so many in front of it.
-- Defines  release_hold(q, field, held, left, waits, late)  leaves so many levels; the last frees the lock. waits: there may
--          be waiters. late: a request that asks for the lock with field may still run.
-- Defines  evict_dead(q, now, ttl)               removes dead waiters; returns the first waiter, and whether there were
--          dead ones. It sets q.now, and q.ran: what '' among the heartbeats says from now on.
-- Defines  set_lease(q, timeout)                 gives the queue its lease, where a waiter of relock has this timeout.
-- Defines  end_waiter(q, waiter)                 leaves a tombstone: a request of a waiter that leaves may still run.
-- Defines  has_ended(q, waiter)                  whether there is a tombstone; sets q.tombstones where there is any.
-- Defines  check_queue(q)                        refuses a queue that is longer than any; returns how long it is.
-- Defines  shift_timeouts(q)                     shortens the timeouts, where heartbeats do not.
-- Defines  note_wish(q, waiter, wish, life)      notes for so many ms at least what a waiter wants that listens.
-- Defines  drop_wish(q, waiter)                  forgets it.
-- For this file:
-- Defines  shift_by(q, waiters, waits)           shortens the timeout of each waiter by so many wait timeouts.
-- Defines  client_channel(q, waiter)             the channel of the waiters of a client.
-- Defines  count_wishes(q)                       forgets wishes of waiters that have left, and counts the others.
-- Defines  is_relocks(waiter)                    whether the field is one of relock.
-- Defines  keep_for_java(q)                      has the queue stay although Java runs no script of relock.
-- Defines  evict_silent(q)                       removes relock waiters without a heartbeat; returns how much of most_dead that was.
-- Defines  set_back(q, ttl)                      cuts heartbeats to what they may be: the clock has gone back.
-- Defines  drop_first(q, n)                      removes the first waiters.
-- Defines  is_heard(q, waiter, heard)            whether a waiter has no wish, or its client hears its channel. heard
--          is what is known of clients already.

local queue_life = 5 * 60 * 1000 -- as that of a line
local for_ever = 100 * 365 * 24 * 60 * 60 * 1000
local most_waiters = 20000 -- of a queue
local most_dead = 5000 -- that one script removes; the next one goes on
local most_passed = 1000 -- waiters that one script passes over, or finds silent, at a time

-- Redisson's fields end with the number of the thread: see owner.go and name.go.
local function is_relocks(waiter) return waiter:find('^[%x-]+:%-?%d+:%d+$') end

-- wish is {lease, fenced, asked} of a waiter: see clients.lua. The key may be that of a line, which lives longer. The
-- lease of a key that lives longer than a line is one from before the clock went back.
local function note_wish(q, waiter, wish, life)
    if q.wishes == q.lock then
        return
    end
    redis.call('hset', q.wishes, waiter, wish.lease .. ' ' .. wish.fenced .. ' ' .. wish.asked)
    local left = redis.call('pttl', q.wishes)
    if left < life then
        redis.call('pexpire', q.wishes, 4 * life)
    elseif left > queue_life then
        redis.call('pexpire', q.wishes, queue_life)
    end
end

-- Where a script could not use the line, the wish of a waiter that has left is still there. The count is nil where the
-- key cannot be used or is that of other data. has_ended has run before.
local function count_wishes(q)
    local wishes = q.wishes ~= q.lock and redis.pcall('hlen', q.wishes)
    if type(wishes) ~= 'number' or wishes > 2 * most_waiters then
        return nil
    end
    local others = q.tombstones and 1 or 0
    wishes = wishes - others
    if wishes < redis.call('zcard', q.heartbeats) then -- heartbeats has one '' more
        return wishes
    end
    -- At most most_waiters, twice.
    for _, field in ipairs(redis.call('hrandfield', q.wishes, wishes + others)) do -- all, with the rights that users have
        if field:find(':', 1, true) and not redis.call('zscore', q.heartbeats, field) then
            redis.call('hdel', q.wishes, field)
        end
    end
    return redis.call('hlen', q.wishes) - others
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
    -- At most most_waiters.
    for from = 1, #waiters, 1000 do
        local to, shifted = math.min(from + 999, #waiters), {}
        -- At most 1000.
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
    local waiters = n > 0 and redis.call('lrange', q.waiters, from, from + most_waiters - 1) or {}
    local waits = {}
    -- At most most_waiters.
    for i = 1, #waiters do
        waits[i] = 1
    end
    shift_by(q, waiters, waits)
end

-- The timeouts behind these waiters become right, however many leave. That of the last waiter was right, and the one of a
-- relock waiter in front of it may have been late.
local function give_up(q, leaving, now)
    local all = redis.call('lrange', q.waiters, 0, most_waiters - 1)
    local last = all[#all] and tonumber(redis.call('zscore', q.timeouts, all[#all]) or nil)
    local left, moved, waits = 0, {}, {}
    -- At most most_waiters.
    for _, waiter in ipairs(all) do
        if leaving[waiter] then
            left = left + 1
        elseif left > 0 then
            moved[#moved + 1], waits[#waits + 1] = waiter, left
        end
    end
    -- At most most_dead.
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

local function wake(q, waiter)
    announce(q.how, q.channel .. waiter, '0')
    if q.wishes == q.lock or redis.pcall('hexists', q.wishes, waiter) == 1 then -- it may not listen to the other
        announce(q.how, client_channel(q, waiter), 'free ' .. waiter)
    end
end

-- A waiter with a wish is of a program that grants. The line of a plain lock of this name has other fields.
local function has_legacy(q, wished, holder)
    local wishes = count_wishes(q)
    if not wishes or holder and not uses_line(holder) or redis.call('hexists', q.wishes, 'last') == 1 then
        return true
    end
    return wishes + (wished and 0 or 1) ~= redis.call('llen', q.waiters)
end

local function keep_for_java(q)
    -- At most 2.
    for _, key in ipairs({q.waiters, q.timeouts}) do
        local left = redis.call('pttl', key)
        if left > 0 and left < for_ever / 2 then
            redis.call('pexpire', key, ms(for_ever))
        end
    end
end

-- The last waiter asks for the longest lease. Either key may have been evicted, and be new.
local function set_lease(q, timeout)
    if redis.call('llen', q.waiters) > redis.call('zcard', q.heartbeats) - 1 then -- one is of Java
        return keep_for_java(q)
    end
    local left, life = redis.call('pttl', q.waiters), math.max(queue_life, timeout - q.now + q.wait_timeout)
    if left < life - queue_life / 100 or left > for_ever / 2 or redis.call('pttl', q.timeouts) == -1 then
        redis.call('pexpire', q.waiters, ms(life))
        redis.call('pexpire', q.timeouts, ms(life))
    end
end

-- Where the user may not ask who listens, all count as heard.
local function is_heard(q, waiter, heard)
    local client = client_of(waiter)
    if heard[client] or type(redis.pcall('hget', q.wishes, waiter)) ~= 'string' then
        return true
    elseif heard[client] == nil then
        heard[client] = listeners(client_channel(q, waiter), q.how) ~= 0
    end
    return heard[client]
end

local function first_alive(q, asker, heard, from)
    heard = heard or {}
    -- At most most_passed.
    for place = from or 0, most_passed do
        local waiter = redis.call('lindex', q.waiters, place)
        if not waiter or waiter == asker or place == most_passed or q.wishes == q.lock or not is_relocks(waiter) or
            is_heard(q, waiter, heard) then
            return waiter, place
        end
    end
end

-- A waiter behind others that stay is as one that leaves: those behind it move up.
local function serve(q, waiter, place)
    if place == 0 then
        leave_queue(q, waiter)
        shift_timeouts(q)
    else
        give_up(q, {[waiter] = true}, q.now)
    end
end

-- The first waiters, so many of them, leave: nobody hears them.
local function drop_first(q, n)
    local passed = {}
    -- At most most_passed.
    for _, waiter in ipairs(redis.call('lrange', q.waiters, 0, n - 1)) do
        passed[waiter] = true
    end
    if next(passed) then
        give_up(q, passed, q.now)
    end
end

-- Where the user may not ask who listens, the answer to the grant says it.
local function grant_first(q)
    local heard = {}
    local first, place = first_alive(q, nil, heard)
    -- At most most_passed.
    while first and place < most_passed do
        local wish = q.wishes ~= q.lock and redis.pcall('hget', q.wishes, first)
        local lease, fenced, asked = (type(wish) == 'string' and wish or ''):match('^(%d+) (%d) (%d+)$')
        if not lease then
            break
        end
        local waiter = {field = first, lease = tonumber(lease), fenced = fenced, asked = asked}
        local granted = grant(q.lock, waiter, q.tokens, client_channel(q, first), q.how)
        if granted then
            serve(q, first, place)
            return true, first
        elseif granted == nil then
            break
        end
        heard[client_of(first)] = false
        first, place = first_alive(q, nil, heard, place + 1)
    end
    if first and place > 0 and not is_relocks(first) then
        drop_first(q, place)
        keep_for_java(q)
    end
    return false, first
end

local function pass_to_first(q)
    local granted, first = grant_first(q)
    if first and not granted then
        wake(q, first)
    elseif not first then
        drop_first(q, most_passed)
    end
    return granted
end

-- Where the key cannot be used there are no tombstones: a late request may queue
-- again, and is evicted when its heartbeat expires.
local function end_waiter(q, waiter)
    local over = q.wishes ~= q.lock and redis.pcall('hget', q.wishes, 'over')
    if q.wishes == q.lock or type(over) == 'table' then
        return
    end
    redis.pcall('hset', q.wishes, 'over', bury(over, waiter, q.now)) -- an undo goes on where memory is short
    if redis.call('pttl', q.wishes) < tombstone_life then
        redis.call('pexpire', q.wishes, tombstone_life)
    end
end

local function has_ended(q, waiter)
    local over = q.wishes ~= q.lock and redis.pcall('hget', q.wishes, 'over')
    if type(over) ~= 'string' then
        return false
    end
    local found, any = is_buried(over, waiter, q.now)
    if any then
        q.tombstones = true
    else
        redis.call('hdel', q.wishes, 'over')
    end
    return found
end

-- The end of a release and of an undo, and their reply. held says whether the lock has the field. If the lock is
-- free afterwards, it is granted to the first waiter, or that is woken.
local function release_hold(q, field, held, left, waits, late)
    if late and left == '0' then
        end_waiter(q, field)
    end
    if held and left ~= '0' then
        note_hold_count(q.lock, field, left)
        return {1, 0, 0}
    end
    if held then
        redis.call('hdel', q.lock, field) -- which deletes the record with its only field
    end
    local passed = 0
    if waits and redis.call('exists', q.lock) == 0 then
        passed = pass_to_first(q) and 1 or 0
    end
    return {held and 1 or -1, 0, passed}
end

-- A program of another kind may have put a waiter into the queue many times: all go, which takes longer. Returns how much of
-- most_dead that was worth.
local function evict_silent(q)
    local all, dead, again = redis.call('lrange', q.waiters, 0, most_passed - 1), {}, {}
    -- At most most_passed.
    for i, beat in ipairs(redis.call('zmscore', q.heartbeats, unpack(all))) do
        if not beat and is_relocks(all[i]) then
            again[all[i]] = dead[all[i]]
            dead[all[i]] = true
        end
    end
    -- At most most_passed.
    for waiter in pairs(again) do
        redis.call('lrem', q.waiters, 0, waiter)
    end
    give_up(q, dead, q.now)
    return next(again) and most_dead or most_passed
end

-- Timeouts of waiters that live become right with their next heartbeat. Returns whether that was all: if there are many, the
-- next script goes on.
local function set_back(q, ttl)
    local ahead = redis.call('zrangebyscore', q.heartbeats, ms(q.now + ttl + 1), '+inf', 'limit', 0, most_passed)
    -- At most most_passed.
    for _, waiter in ipairs(ahead) do
        if waiter ~= '' then
            redis.pcall('zadd', q.heartbeats, 'XX', ms(q.now + ttl), waiter)
        end
    end
    return #ahead < most_passed
end

-- Removes relock waiters whose heartbeat has expired. Where it finds one without a heartbeat at the head of the queue
-- it removes all of these. There it also removes other waiters whose timeout is over, or that have none and would stay
-- for ever.
-- Where no script ran for half a ttl, Redis was away and not the waiters: each gets a new heartbeat instead.
-- A run that has not looked at all heartbeats leaves the time of the last run as it was: the next one has to find out the same.
-- Heartbeats are written with pcall: a release must go on where memory is short.
local function evict_dead(q, now, ttl)
    q.now, q.ran = now, now
    local dead = {}
    local due = redis.call('zrangebyscore', q.heartbeats, '-inf', ms(now), 'limit', 0, most_dead)
    local ran = tonumber(redis.call('zscore', q.heartbeats, '') or nil)
    local last_run = ran and ran <= now and ran or nil
    local away = now - (last_run or now) > ttl / 2
    -- At most most_dead.
    for _, waiter in ipairs(due) do
        if waiter ~= '' then
            if away and redis.call('zscore', q.timeouts, waiter) then
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
    local first = redis.call('lindex', q.waiters, 0)
    local all = not (away and #due == most_dead)
    if first and not last_run then -- the last script ran in the future
        all = set_back(q, ttl)
    end
    if not all then
        q.ran = ran or now
    end
    if ran and ran ~= q.ran then
        redis.pcall('zadd', q.heartbeats, 'XX', ms(q.ran), '')
    end
    local left = most_dead
    -- At most most_dead.
    while left > 0 do
        if not first or redis.call('zscore', q.heartbeats, first) then
            break
        elseif is_relocks(first) then
            left = left - evict_silent(q)
        else
            local timeout = redis.call('zscore', q.timeouts, first)
            if timeout and tonumber(timeout) > now then
                keep_for_java(q)
                break
            end
            leave_queue(q, first)
            left = left - 1
        end
        first, evicted = redis.call('lindex', q.waiters, 0), true
    end
    return first, evicted
end

-- No queue is longer: where it is full, a caller waits without a place.
local function check_queue(q)
    local n = redis.call('llen', q.waiters)
    if n > most_waiters then
        refuse(q.waiters, 'type list')
    end
    return n
end
