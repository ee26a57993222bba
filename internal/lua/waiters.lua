-- Prelude of the script of Inspect: who waits for a lock.
--
-- A waiter is five texts or numbers, one after the other in a flat list:
--   field      that of the hold that it waits for; it ends with :write if that is a write lock
--   deadline   epoch ms at which Java gives its place in the queue of a fair lock away; 0 if there is none
--   alive      epoch ms at which it is overdue, or the heartbeat of a writer expires; 0 if there is none
--   since      epoch seconds since when it waits at least; '' if it is not known
--   reachable  1 if its process is subscribed to a channel on which it is told that the lock is its own or free, 0 if
--              it is not, -1 if that is not known
--
-- Rules: nothing is written. No number of a request leaves the script, because a grant names that number: see
-- internal/engine/line.go. At most most_listed waiters are returned, the first ones. If the user may not ask for the
-- number of subscribers, the rest of the answer is right all the same.

local most_listed = 1000 -- as mostWaiters in inspect.go

local function scores(list)
    local of = {}
    -- At most most_shown, and one.
    for i = 1, #list, 2 do
        of[list[i]] = list[i + 1]
    end
    return of
end

local function add_waiter(waiters, ...)
    -- At most 5.
    for _, part in ipairs(#waiters < 5 * most_listed and {...} or {}) do
        waiters[#waiters + 1] = part
    end
end

-- The waiters of a fair lock. all has the fields of its queue, timeouts is {member, score, ...}, and places the key of
-- the places: see queue.lua. A waiter that is not subscribed asks by itself. It may be subscribed to the channel of its
-- own that Redisson uses, and Java is.
local function queue_waiters(all, timeouts, places, channel, how)
    local ends, fields, channels = scores(timeouts), {}, {}
    -- At most most_listed.
    for i = 1, math.min(#all, most_listed) do
        fields[i] = all[i]
        channels[2 * i - 1], channels[2 * i] = channel .. ':' .. all[i], channel .. ':client:' .. client_of(all[i])
    end
    local texts, counts = #fields > 0 and redis.call('hmget', places, unpack(fields)), subscribers(channels, how)
    local waiters = {}
    -- At most most_listed.
    for i, field in ipairs(fields) do
        local _, _, asked, since, at, life = (texts[i] or ''):match(queue_pattern)
        local own, shared = counts[channels[2 * i - 1]], is_relocks(field) and counts[channels[2 * i]] or 0
        local reachable = -1
        if (own or 0) + shared > 0 then
            reachable = 1
        elseif own and asked ~= '0' then
            reachable = 0
        end
        add_waiter(waiters, field, ends[field] or '0', at and ms(at + life) or '0', since or '', reachable)
    end
    return waiters
end

-- Adds the waiters of any other lock, and returns how many there are: those in the line, in order, and behind them the
-- writers that have no place, if all of the line are returned. held has true for the fields that hold the lock, and
-- writers is {member, score, ...}. A writer that has a heartbeat and a place is one waiter.
local function line_waiters(waiters, order, waits, held, writers, channel, how)
    local beats, now = scores(writers), now_ms()
    local listed, channels, in_line = {}, {}, {}
    local clients = redis.call('zrangebyscore', order, '-inf', '+inf', 'limit', 0, longest_line)
    local n = #clients
    local texts = n > 0 and redis.call('hmget', waits, unpack(clients, 1, math.min(n, most_listed))) or {}
    -- At most most_listed.
    for i, text in ipairs(texts) do
        local client = clients[i]
        local p = text and parse_place(text, client)
        if p and client_of(p.field) == client then
            listed[#listed + 1], channels[#channels + 1], in_line[client] = p, grants_to(channel, p), p.field
        else
            n, in_line[client] = n - 1, true -- it has no place, and does not count
        end
    end
    local counts = subscribers(channels, how)
    -- At most most_listed.
    for i, p in ipairs(listed) do
        local count = p.delivery ~= 'poll' and counts[channels[i]] or nil
        local reachable = count and math.min(count, 1) or -1
        add_waiter(waiters, p.field, '0', beats[p.field:gsub(':write$', '')] or '0', p.since, reachable)
    end
    -- At most most_shown, and one.
    for i = 1, n <= most_listed and #writers or 0, 2 do
        local field, alive = writers[i], writers[i + 1]
        local place = in_line[client_of(field)]
        if tonumber(alive) > now and not held[field] and place ~= true and place ~= field .. ':write' then
            n = n + 1
            add_waiter(waiters, field .. ':write', '0', alive, '', -1)
        end
    end
    return n
end
