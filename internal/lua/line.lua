-- Prelude of the scripts of locks that pass from process to process: the line, which is the wait queue in Redis. It has
-- the processes that wait, in order. The lock is a plain lock, or the write lock of a read/write lock, whose fields end
-- with :write; each has a line of its own. Of a semaphore, the zset of the taken permits is the lock, and the counter
-- of the available ones stands for the token counter; a script grants one permit after the other.
--
-- A line has two keys. The order is a zset {client -> number}: the client with the lowest number is the next. A client
-- joins with the highest number plus one, and leaves without a trace. The waits are a hash with
--   <client>  the place of the client: see parse_place
--   <field>   a tombstone: see tombstones.lua
--   shared    epoch ms at which a release last left the lock to everybody, or at which the line began
--   kept      of a semaphore: see keeps_for of passing.lua
--
-- Rules: a client has one place. The place of a later wait replaces that of an earlier one. A place whose client is not
-- in the order does not count, and a client in the order that has no place is removed when its turn comes. Callers that
-- have no place are told that the lock is free once in each hand-off window. Two locks of one name exclude each other
-- by the record: who passes on a lock looks at it first. Their waiters find a lock that the other one has left free
-- when they look at it. A place is granted the lock by a message, with a short lease, and leaves the line: a client
-- that does not use its grant in time joins again at the end. If it has been late like this, its next grants have its
-- whole lease. A client that has lost its subscription loses its place. The script that frees a lock grants it to the
-- next place, and so does every script that finds the lock free. A run that finds the lock granted already grants
-- nothing, so no message is sent twice. Both keys expire after line_life if no client has joined, and the waits after
-- tombstone_life if there was no client. While a lock is held by whom it was granted, shared stays, although no client
-- is in the order. If the lease of this hold ends without a release, shared is older than the next line, and one
-- release too many may be left to everybody.
--
-- The delivery of a caller is how it learns of a grant: barge takes a free lock before all places and gets no place;
-- defer lets the line go first; push and poll wait in the line: see parse_place.
--
-- This file stores the line. passing.lua passes the lock along it.

local most_places = 20000 -- up to which clients join
local most_numbers = 1e15 -- adding 1 to much larger numbers does not change them
local longest_line = 25000 -- clients that a script iterates over

local function wait_number(field) return tonumber(field:match('^[%x-]+:%-?%d+:(%d+)') or 0) end

-- The channel on which the client of a place is told of a grant.
local function grants_to(channel, p) return channel .. ':' .. p.client end

-- Redis stores the place of a client as a text: delivery, lease of its grant in ms, fenced, number of its last request,
-- which is a secret of the client (see internal/engine/line.go), field, since.
--   delivery  push: the client is subscribed to its channel; poll: it may not subscribe, and polls often
--   since     epoch seconds at which the client got its place in the line. Only Inspect reads it.
local function parse_place(text, client)
    local delivery, lease, fenced, asked, field, since = text:match(place_pattern)
    if not delivery or #lease > 15 then
        return nil -- the text is not that of a place
    end
    return {delivery = delivery, lease = tonumber(lease), fenced = fenced, asked = asked, field = field, since = since,
        client = client}
end

-- Returns the line, with the place of the field's client. line.size is the number of clients in it.
local function open_line(lock, order, waits, field)
    local client = client_of(field)
    local head = redis.call('hmget', waits, client, 'shared')
    local mine = head[1] and redis.call('zscore', order, client) and parse_place(head[1], client)
    return {lock = lock, order = order, waits = waits, size = redis.call('zcard', order), shared = tonumber(head[2] or nil),
        mine = mine}
end

local function remove(line, clients)
    line.size = line.size - in_parts('zrem', line.order, clients)
    in_parts('hdel', line.waits, clients)
end

-- Ends a line without clients, of a lock that is free.
local function settle(line)
    if line.size == 0 then
        redis.call('hdel', line.waits, 'shared', 'kept')
    end
end

-- Gives a wait a place, whose wish is {delivery, lease, most, fenced, asked}: see grant_lease; returns whether it has
-- one. The caller does not hold the lock. A client that is in the order without a place, because Redis has lost the
-- waits, keeps its number.
local function join(line, field, wish)
    local before, client = line.mine, client_of(field)
    if before and wait_number(before.field) > wait_number(field) or not before and line.size >= most_places then
        return false -- the caller polls
    end
    local last = line.size > 0 and redis.call('zrevrange', line.order, 0, 0, 'withscores')[2]
    if last and not (tonumber(last) >= 0 and tonumber(last) < most_numbers) then
        refuse(line.order, 'type zset')
    end
    local kept, now = before and before.field == field and before.lease, now_ms()
    local p = {delivery = wish.delivery, lease = grant_lease(wish, kept), fenced = wish.fenced, asked = wish.asked, field = field,
        since = before and before.since or ms(math.floor(now / 1000)), client = client}
    local begins = line.shared and {} or {'shared', ms(now)} -- while the line was empty, releases were announced to everybody
    line.shared = line.shared or now
    local place = string.format(place_format, p.delivery, ms(p.lease), p.fenced, p.asked, p.field, p.since)
    local size = line.size
    local joined, why = pcall(function()
        line.size = size + redis.call('zadd', line.order, 'nx', ms((last or 0) + 1), client)
        redis.call('hset', line.waits, client, place, unpack(begins))
        redis.call('pexpire', line.order, line_life)
        redis.call('pexpire', line.waits, line_life)
    end)
    if not joined and line.size > size then
        remove(line, {client})
        settle(line)
    end
    if not joined and not (type(why) == 'table' and why.err or why):find('OOM ', 1, true) then
        error(why, 0)
    end
    line.mine = joined and p or before
    return joined
end

-- Removes the place of a wait, if it has one.
local function leave(line, field)
    if line.mine and line.mine.field == field then
        remove(line, {line.mine.client})
        line.mine = nil
    end
end

-- The third number of the answer "busy", which internal/contract/standing.go takes apart:
--   3  the server does not know the subscription of the caller
--   2  only the channel of the lock tells when it is released: a holder does not use the line, and no client is ahead
--   1  the caller has a place; four is added for each of the places ahead
--   0  none of these
-- Behind a holder that does not use the line all ask as often as near the head: any of them may be the next to listen.
local function standing(line, joined, lost, legacy)
    if lost then
        return 3
    end
    local ahead = joined and redis.call('zrank', line.order, line.mine.client)
    if legacy and (ahead or 0) == 0 then
        return 2
    elseif ahead then
        return 1 + 4 * (legacy and math.min(ahead, near_head - 1) or ahead)
    end
    return 0
end

-- Iterates over the clients of the line in order: the client, and its place, or nil. The first place is usually enough.
-- The farther a script gets, the more places it reads at a time. Those that are read together have a list of them,
-- together: see is_reachable of passing.lua.
local function places_of(line)
    local clients, places, number, size, after = {}, {}, 0, 1, '-inf'
    local read = 0
    return function()
        number = number + 1
        if number > #clients and read < longest_line then
            local some = redis.call('zrangebyscore', line.order, after, '+inf', 'withscores', 'limit', 0, size)
            clients, places, number, size = {}, {}, 1, math.min(8 * size, 1000)
            -- At most 1000.
            for i = 1, #some, 2 do
                clients[#clients + 1], after = some[i], '(' .. some[i + 1]
            end
            read = read + #clients
            local texts, together = #clients > 0 and redis.call('hmget', line.waits, unpack(clients)), {}
            -- At most 1000.
            for i, client in ipairs(clients) do
                local p = texts[i] and parse_place(texts[i], client)
                if p then
                    places[i], p.together = p, together
                    together[#together + 1] = p
                end
            end
        end
        return clients[number], places[number]
    end
end
