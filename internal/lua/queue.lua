-- Prelude of the scripts of the fair lock: the queue of its waiters.
--
-- A queue is a table, q, with wait_timeout in ms, channel and how (see announce.lua), and these keys:
--   lock, tokens  the lock and its token counter
--   waiters       a list of fields, the first waiter first
--   timeouts      a zset {field -> epoch ms at which Redisson gives the place of the waiter away}
--   heartbeats    a zset {field of a relock waiter -> epoch ms at which its heartbeat expires}, and '' -> epoch ms at
--                 which a script last looked for dead waiters
--   wishes        a hash {field of a relock waiter that is subscribed -> its wish: lease, fenced, asked, since}
--   waits         the tombstones: see tombstones.lua
--
-- Rules: every waiter in the queue has a timeout, which Redisson's arithmetic needs. A relock waiter has a heartbeat
-- too. The heartbeat alone then decides whether the waiter is alive, wherever in the queue it is. Java reads timeouts
-- only. So each heartbeat keeps the timeout of its waiter near the value that Redisson's arithmetic gives. All times
-- are those of the server.
--
-- Redisson shortens the timeouts of all waiters behind one that leaves, by one wait timeout. A script does this at once
-- only for those that count for Java: the waiters of Java, which send no heartbeats; and each waiter that has one of
-- Java behind it, or nobody, because the timeout of the next one to join counts from the last one. The others correct
-- theirs with their next heartbeats. So if only relock waits, it costs the same however many wait: no script searches
-- the whole list for a heartbeat, waiters far behind send fewer of them, and many that leave together cost one look at
-- the list.
--
-- The script that puts a relock waiter into the queue gives it its heartbeat, in every version and for every user: a
-- user without permission for the heartbeats cannot run the script at all, and no script runs while a slot moves and
-- only some of its keys have arrived. All heartbeats expire together when no waiter has sent one for queue_life. So a
-- waiter without a heartbeat whose field has the form of relock is dead, and is not a waiter of Java (see
-- is_relocks).
--
-- The waiters and the timeouts have a lease while only relock waits, so that they do not stay if all waiters have
-- died. A Java service may come while the lease runs, and perhaps no script of relock runs any more. Redisson keeps
-- its place until one wait timeout after the timeout of the last waiter in front of it. The lease lasts until then:
-- Java loses no place sooner than Redisson would take it away. If a script finds that Java waits, the lease becomes
-- one that never ends. Users have no permission for PERSIST.
--
-- A lock that becomes free is granted to the first waiter that has a wish and whose client is subscribed to its
-- channel, which is that of all waiters of this client. A waiter that has a wish, but whose channel has no subscriber
-- on this server, is passed over: its process has died, or its connection was cut. It keeps its place until its
-- heartbeat expires, because for a moment after a restart or a failover of Redis the subscriptions of some living
-- waiters are missing. If it asks, it is told that its subscription is lost, and has no wish until it has subscribed
-- again. Java cannot pass over any waiter. So waiters without a subscriber leave the queue if a waiter of Java is the
-- next one. They also leave it if a release finds no other waiter, so that the queue does not stay: a living waiter
-- has lost its turn then, and asks again within a heartbeat.
--
-- A first waiter without a wish may be alive, and no script passes over it. It is woken on a channel of its own, and
-- asks. It is a waiter of Java, which would count its own request as a re-entry; or of an older version; or one that
-- is not subscribed, because it may not subscribe or has not done so yet. Java and older versions know the channel of
-- the waiter alone. So a waiter subscribes to that channel too if one of these is in front of it.
--
-- Defines  leave_queue(q, leaving)             removes waiters, which are the keys of a table. Those behind them move up.
-- Defines  wake(q, waiter)                     sends a message to a waiter.
-- Defines  pass_to_first(q)                    passes on the lock, which is free: grants it to the first waiter, or
--          wakes this waiter. Returns whether it was granted.
-- Defines  has_legacy(q, wished, holder)       whether the release may be announced on the channel of the waiter
--          alone, because the holder or a waiter does not grant. The caller is in the queue; wished: it has a wish.
--          holder may be nil.
-- Defines  first_alive(q, asker, heard, from)  the first waiter that is not passed over, and how many are in front of
--          it. The asker is alive. heard is as in is_heard. from is the first place that counts. All arguments except
--          q may be nil.
-- Defines  grant_first(q)                      grants the lock, which is free, to the first waiter that is not passed
--          over; returns whether it could, and that waiter.
-- Defines  evict_dead(q, now, ttl)             removes dead waiters; returns the first waiter, and whether there were
--          dead ones. It sets q.now, q.ttl, and q.ran: the value of '' among the heartbeats from now on.
-- Defines  life_of(place, ttl)                 how long a heartbeat lasts, in ms, of a waiter with a wish at this place
--          or one in front of it. ttl is the life of the others.
-- Defines  find_place(q, waiter, timeout, queued)  the place of a waiter, which counts from 0, and nil if it is not
--          queued; and whether this is exact: else it is far, and the waiter is there or farther behind. timeout is
--          its timeout, or false, and queued the length of the queue, with dead waiters or without.
-- Defines  set_lease(q, timeout)               sets the lease of the queue; a waiter of relock has this timeout.
-- Defines  check_queue(q)                      refuses a queue that is longer than any queue of locks; returns its
--          length.
-- Defines  note_wish(q, waiter, wish, life)    stores the wish of a waiter that is subscribed, for at least life ms.
-- Defines  drop_wish(q, waiter)                deletes it.
-- For this file:
-- Defines  replace_list(q, stay)               replaces the list of waiters by this one.
-- Defines  drop_waiters(q, waiters, listed, stay)  removes the waiters, of which only the first listed ones are in the
--          queue; stay has the others of the queue if these are several. Returns how many were in the queue. The
--          timeouts of the others stay.
-- Defines  moves_behind(q, leaving)            the timeouts that change at once when these waiters leave, in four lists:
--          waiters; how many in front of each leave; its new place; and from, the waiters from whose timeouts the new
--          ones are counted. Also returns what drop_waiters takes: the waiters that leave, in their order; how many
--          entries of the queue are theirs; and the other entries.
-- Defines  new_timeouts(q, moves, first)       the new timeouts of a thousand of these moves, as zadd takes them.
-- Defines  client_channel(q, waiter)           the channel of the waiters of a client.
-- Defines  count_wishes(q)                     deletes wishes of waiters that have left, and counts the others.
-- Defines  keep_for_java(q)                    makes the queue stay although Java runs no script of relock.
-- Defines  evict_silent(q)                     removes relock waiters without a heartbeat, of the first most_passed.
-- Defines  set_back(q, ran, ttl)               shortens heartbeats to what they may be: the clock was set back, to before
--          ran, when the last script ran.
-- Defines  drop_first(q, n)                    removes the first n waiters.
-- Defines  watch_grant(q, granted, heard)  makes a waiter ask if the others that are near the waiter granted do so late.
-- Defines  is_heard(q, waiter, heard)          whether a waiter has no wish, or its client is subscribed to its
--          channel. heard is what is known of clients already.

local queue_life = 5 * 60 * 1000 -- as that of a line
local for_ever = 100 * 365 * 24 * 60 * 60 * 1000
local most_waiters = 20000 -- of a queue that relock still joins
local longest_queue = 2 * most_waiters -- that a script reads: Java joins a longer one, too
local far = 24 * near_head -- places: waiters farther behind are alike
local most_dead = 5000 -- dead waiters that one script removes; the next one continues
local most_passed = 1000 -- waiters that one script passes over, or checks for heartbeats, at a time

-- Three of four heartbeats may be late, and a waiter sends one each ttl / 4. It sends fewer where near_head places or
-- more are in front of it, and may be late by as much: see nextPoll of internal/engine.
local function life_of(place, ttl) return ttl + math.floor(math.min(place, far) / near_head) * ttl / 4 end

-- wish is {lease, most, fenced, asked} of a waiter: see clients.lua. A wish that is repeated keeps its since. A lease longer
-- than queue_life was set before the clock was set back.
local function note_wish(q, waiter, wish, life)
    local kept, _, _, before = (redis.call('hget', q.wishes, waiter) or ''):match(wish_form)
    local since, granted = before or ms(math.floor(q.now / 1000)), ms(grant_lease(wish, kept))
    redis.call('hset', q.wishes, waiter, granted .. ' ' .. wish.fenced .. ' ' .. wish.asked .. ' ' .. since)
    local left = redis.call('pttl', q.wishes)
    if left < life then
        redis.call('pexpire', q.wishes, 4 * life)
    elseif left > queue_life then
        redis.call('pexpire', q.wishes, queue_life)
    end
end

-- If Redis has evicted the other keys of the queue, the wishes of waiters that have left are still there. The count is
-- nil if the key holds other data.
local function count_wishes(q)
    local wishes = redis.pcall('hlen', q.wishes)
    if type(wishes) ~= 'number' or wishes > 2 * most_waiters then
        return nil
    end
    if wishes < redis.call('zcard', q.heartbeats) then -- heartbeats has '' as well
        return wishes
    end
    -- At most most_waiters, twice.
    for _, field in ipairs(redis.call('hrandfield', q.wishes, wishes)) do -- all: users may call hrandfield
        if not redis.call('zscore', q.heartbeats, field) then
            redis.call('hdel', q.wishes, field)
        end
    end
    return redis.call('hlen', q.wishes)
end

local function drop_wish(q, waiter)
    redis.pcall('hdel', q.wishes, waiter) -- a release or rollback goes on if the key holds other data
end

-- The first writes change nothing. They need no memory, or fail before the list is lost.
local function replace_list(q, stay)
    local left = redis.call('pttl', q.waiters)
    local function keep_lease()
        if left > 0 then
            redis.call('pexpire', q.waiters, left)
        end
    end
    keep_lease()
    redis.call('rpush', q.waiters, '')
    redis.call('del', q.waiters)
    -- At most longest_queue. A call in Lua may have some thousand arguments at most.
    for from = 1, #stay, 1000 do
        redis.call('rpush', q.waiters, unpack(stay, from, math.min(from + 999, #stay)))
    end
    keep_lease()
end

-- A call in Lua may have some thousand arguments at most. A search of the list takes long if it is for many waiters.
local function drop_waiters(q, waiters, listed, stay)
    local removed = 0
    if listed > 1 then
        replace_list(q, stay)
        removed = listed
    elseif listed == 1 then
        removed = redis.call('lrem', q.waiters, 1, waiters[1])
    end
    -- At most most_dead.
    for from = 1, #waiters, 1000 do
        local to = math.min(from + 999, #waiters)
        redis.call('zrem', q.timeouts, unpack(waiters, from, to))
        redis.call('zrem', q.heartbeats, unpack(waiters, from, to))
        redis.pcall('hdel', q.wishes, unpack(waiters, from, to)) -- as drop_wish does
    end
    if redis.call('zcard', q.heartbeats) == 1 then -- only the '' is left
        redis.call('del', q.heartbeats)
    end
    return removed
end

-- If one waiter leaves and only relock waits, it is enough to read the end of the queue. If a waiter leaves whose
-- timeout counts for Java, the new timeout of the one in front of it is counted from it: its own may not have been
-- corrected yet.
local function moves_behind(q, leaving)
    local queued, one = redis.call('llen', q.waiters), next(leaving)
    local alone = not next(leaving, one) and queued == redis.call('zcard', q.heartbeats) - 1
    local all = redis.call('lrange', q.waiters, alone and -2 or 0, alone and -1 or longest_queue - 1)
    local moves, order, listed, stay = {waiters = {}, left = {}, places = {}, from = {}}, {}, {}, {}
    local left = alone and one ~= all[1] and one ~= all[2] and 1 or 0
    local last, place, last_is_java -- of those that stay
    local is_java = all[1] and not is_relocks(all[1])
    -- At most longest_queue.
    for i, waiter in ipairs(all) do
        local java_is_next = not all[i + 1] or not is_relocks(all[i + 1])
        if leaving[waiter] then
            order[#order + 1], listed[waiter], left = not listed[waiter] and waiter or nil, true, left + 1
        else
            last, place, last_is_java = waiter, i - 1 - left, is_java
            stay[#stay + 1] = waiter
        end
        if (is_java or java_is_next and not last_is_java) and left > 0 and last then
            local n = #moves.from + 1
            moves.waiters[n], moves.left[n], moves.places[n], moves.from[n] = last, left, queued - #all + place, waiter
        end
        is_java = java_is_next
    end
    -- At most most_dead.
    for waiter in pairs(leaving) do
        order[#order + 1] = not listed[waiter] and waiter or nil
    end
    if alone then
        left = 1
    elseif #all < queued then -- no queue of locks
        left = next(leaving, one) and 0 or 1
    end
    return moves, order, left, stay
end

local function new_timeouts(q, moves, first)
    local timeouts = redis.call('zmscore', q.timeouts, unpack(moves.from, first, math.min(first + 999, #moves.from)))
    local new = {}
    -- At most 1000.
    for i, timeout in ipairs(timeouts) do
        local move = first + i - 1
        local waiter = moves.waiters[move]
        timeout = timeout and tonumber(timeout) - moves.left[move] * q.wait_timeout
        if timeout and waiter ~= moves.from[move] then
            local before = tonumber(redis.call('zscore', q.timeouts, waiter) or timeout)
            local least = q.now + moves.places[move] * q.wait_timeout + q.wait_timeout / 2
            timeout = math.max(least, math.min(before, timeout))
        end
        if timeout then
            new[#new + 1], new[#new + 2] = ms(timeout), waiter
        end
    end
    return new
end

local function leave_queue(q, leaving)
    local moves, order, listed, stay = moves_behind(q, leaving)
    local new = {}
    -- At most longest_queue. A call in Lua may have some thousand arguments at most.
    for first = 1, #moves.from, 1000 do
        new[#new + 1] = new_timeouts(q, moves, first)
    end
    local removed = drop_waiters(q, order, listed, stay) -- first: if memory is short, a script that has written nothing may not zadd
    -- At most longest_queue.
    for _, timeouts in ipairs(removed > 0 and new or {}) do
        if #timeouts > 0 then
            redis.call('zadd', q.timeouts, unpack(timeouts))
        end
    end
end

local function client_channel(q, waiter) return q.channel .. 'client:' .. client_of(waiter) end

local function wake(q, waiter)
    announce(q.how, q.channel .. waiter, '0')
    if is_relocks(waiter) then -- it may have only this channel
        announce(q.how, client_channel(q, waiter), 'free ' .. waiter)
    end
end

-- A waiter with a wish belongs to a version of relock that grants.
local function has_legacy(q, wished, holder)
    local wishes = count_wishes(q)
    if not wishes or holder and not is_relocks(holder) then
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

-- The search of a long list takes longer than all the rest of a heartbeat. If only relock waits, the timeouts have
-- each waiter of the queue and no other, and that of a waiter in the middle counts for nobody.
local function find_place(q, waiter, timeout, queued)
    queued = queued > far and redis.call('llen', q.waiters) or 0
    if queued == 0 or queued ~= redis.call('zcard', q.timeouts) or queued ~= redis.call('zcard', q.heartbeats) - 1 then
        return redis.call('lpos', q.waiters, waiter), true
    elseif not timeout then
        return nil, true
    end
    local place = redis.call('lindex', q.waiters, -1) == waiter and queued - 1 or
        redis.call('lpos', q.waiters, waiter, 'maxlen', far)
    return place or far, place
end

-- The last waiter needs the longest lease. Either key may have been evicted, and be new.
local function set_lease(q, timeout)
    if redis.call('llen', q.waiters) > redis.call('zcard', q.heartbeats) - 1 then -- a waiter is of Java
        return keep_for_java(q)
    end
    local left, life = redis.call('pttl', q.waiters), math.max(queue_life, timeout - q.now + q.wait_timeout)
    if left < life - queue_life / 100 or left > for_ever / 2 or redis.call('pttl', q.timeouts) == -1 then
        redis.call('pexpire', q.waiters, ms(life))
        redis.call('pexpire', q.timeouts, ms(life))
    end
end

-- If the user may not ask for the number of subscribers, all clients count as subscribed.
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
        if not waiter or waiter == asker or place == most_passed or not is_relocks(waiter) or
            is_heard(q, waiter, heard) then
            return waiter, place
        end
    end
end

-- The first n waiters leave, because their subscriptions are lost.
local function drop_first(q, n)
    local passed = {}
    -- At most most_passed.
    for _, waiter in ipairs(redis.call('lrange', q.waiters, 0, n - 1)) do
        passed[waiter] = true
    end
    if next(passed) then
        leave_queue(q, passed)
    end
end

-- Many in front of a waiter may leave before it asks again. If no waiter asks soon, none notices that a grant has expired.
-- So one of the first near_head waiters asks now, the last one: it is the longest among them. The client that was granted
-- the lock does not count, because it may be dead, and its other waiters with it.
local function watch_grant(q, granted, heard)
    local soon = q.now and q.now + provisional + q.ttl
    if not (soon and redis.call('zrangebyscore', q.heartbeats, ms(soon), '+inf', 'limit', 0, 1)[1]) then
        return
    end
    local first, late = redis.call('lrange', q.waiters, 0, near_head - 1), nil
    local beats = #first > 0 and redis.call('zmscore', q.heartbeats, unpack(first))
    -- At most near_head.
    for i, waiter in ipairs(first) do
        local counts = beats[i] and client_of(waiter) ~= client_of(granted) and is_heard(q, waiter, heard)
        if counts and tonumber(beats[i]) < soon then
            return
        end
        late = counts and waiter or late
    end
    if late then
        announce(q.how, client_channel(q, late), 'free ' .. late)
    end
end

-- If the user may not ask for the number of subscribers, the answer to the message of the grant tells it.
local function grant_first(q)
    local heard = {}
    local first, place = first_alive(q, nil, heard)
    -- At most most_passed.
    while first and place < most_passed do
        local wish = redis.pcall('hget', q.wishes, first)
        local lease, fenced, asked = (type(wish) == 'string' and wish or ''):match(wish_form)
        if not lease then
            break
        end
        local waiter = {field = first, lease = tonumber(lease), fenced = fenced, asked = asked}
        local granted = grant(q.lock, waiter, q.tokens, client_channel(q, first), q.how)
        if granted then
            leave_queue(q, {[first] = true})
            watch_grant(q, first, heard)
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

-- Another program may have put a waiter into the queue many times. All its entries are removed.
local function evict_silent(q)
    local all, dead = redis.call('lrange', q.waiters, 0, most_passed - 1), {}
    -- At most most_passed.
    for i, beat in ipairs(redis.call('zmscore', q.heartbeats, unpack(all))) do
        if not beat and is_relocks(all[i]) then
            dead[all[i]] = true
        end
    end
    leave_queue(q, dead)
end

-- The timeouts of living waiters are corrected with their next heartbeat. Returns whether all heartbeats have been set
-- back; if there are many, the next script continues.
local function set_back(q, ran, ttl)
    local life = life_of(redis.call('llen', q.waiters), ttl)
    local ahead = redis.call('zrangebyscore', q.heartbeats, ms(q.now + life + 1), '+inf', 'withscores', 'limit', 0, most_passed)
    -- At most most_passed.
    for i = 1, #ahead, 2 do
        if ahead[i] ~= '' then
            local left = math.min(tonumber(ahead[i + 1]) - ran, life_of(far, ttl)) -- it may have been farther behind
            redis.pcall('zadd', q.heartbeats, 'XX', ms(q.now + math.max(life, left)), ahead[i])
        end
    end
    return #ahead < 2 * most_passed
end

-- Removes relock waiters whose heartbeat has expired. If the first waiter of the queue is one without a heartbeat,
-- all of these are removed. Other waiters at the head of the queue are removed if their timeout has expired, or if
-- they have none, because they would stay for ever. If no script ran for half a ttl, Redis was unreachable, or its clock
-- was set forward, and the waiters may be alive: each that has less than a ttl left gets a new heartbeat instead. It
-- lasts for a ttl, or for as long as the old one did when the last script ran: a waiter far behind asks only then. A
-- waiter gets one only, and that is not a whole number, because it has perhaps not asked: a crashed one would stay for
-- ever if all calls are that rare. A run that has not read all heartbeats leaves the time of the last run as it was, so
-- that the next run comes to the same conclusion. Heartbeats are written with pcall, because a release must go on if
-- memory is short.
local function evict_dead(q, now, ttl)
    q.now, q.ran, q.ttl = now, now, ttl
    local dead, spared = {}, false
    local ran = tonumber(redis.call('zscore', q.heartbeats, '') or nil)
    local last_run = ran and ran <= now and ran or nil
    local away = now - (last_run or now) > ttl / 2
    local till = away and now + ttl - 1 or now
    local due = redis.call('zrangebyscore', q.heartbeats, '-inf', ms(till), 'withscores', 'limit', 0, most_dead)
    -- At most most_dead.
    for i = 1, #due, 2 do
        local waiter, beat = due[i], tonumber(due[i + 1])
        if waiter ~= '' then
            if away and beat % 1 == 0 and redis.call('zscore', q.timeouts, waiter) then
                local life = math.max(math.min(beat - last_run, life_of(far, ttl)), ttl)
                redis.pcall('zadd', q.heartbeats, ms(now + life - 1) .. '.5', waiter)
                spared = true
            elseif beat <= now then
                dead[waiter] = true
            end
        end
    end
    local evicted = next(dead) ~= nil
    if evicted then
        leave_queue(q, dead)
    end
    local first = redis.call('lindex', q.waiters, 0)
    local all = not (away and #due == 2 * most_dead and (spared or evicted))
    if first and not last_run then -- the last script ran in the future: the clock was set back
        all = set_back(q, ran or now, ttl)
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
            evict_silent(q)
            left = left - most_passed
        else
            local timeout = redis.call('zscore', q.timeouts, first)
            if timeout and tonumber(timeout) > now then
                keep_for_java(q)
                break
            end
            drop_waiters(q, {first}, 1)
            left = left - 1
        end
        first, evicted = redis.call('lindex', q.waiters, 0), true
    end
    return first, evicted
end

-- No queue of locks is longer, unless thousands of Java waiters joined a full one.
local function check_queue(q)
    local n = redis.call('llen', q.waiters)
    if n > longest_queue then
        refuse(q.waiters, 'type list')
    end
    return n
end
