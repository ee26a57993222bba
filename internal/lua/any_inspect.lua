-- Returns everything that Redis stores for a lock of any type, as it is. The script only reads. What it means is decided in
-- inspection.go.
--
-- KEYS[1]  the lock: a hash, which has a field mode if it is a read/write lock; or the counter of a semaphore.
-- KEYS[2]  the queue of a fair lock: a list.
-- KEYS[3]  the timeouts of a fair lock: a zset.
-- KEYS[4]  the places of a fair lock: a hash, see queue.lua.
-- KEYS[5]  the waiting writers of a read/write lock: a zset.
-- KEYS[6]  the token counter: a string.
-- KEYS[7]  the taken permits of a semaphore: a zset; see semaphore.lua. KEYS[1] is then a string: the number of
--          available permits.
-- KEYS[8]  the order of the line of a plain lock or a semaphore, which is the wait queue in Redis: a zset, see line.lua.
-- KEYS[9]  the waits of that line: a hash.
-- KEYS[10]  the order of the line of a read/write lock: a zset.
-- KEYS[11]  the waits of that line: a hash.
-- ARGV[1]  the prefix of the key of a read lease; field:rwlock_timeout:number follows it.
-- ARGV[2]  the channel on which the release of a plain lock is announced.
-- ARGV[3]  that of a semaphore.
-- ARGV[4]  that of a read/write lock.
-- ARGV[5]  the command that publishes: see announce.lua.
-- Returns  {epoch ms, pttl, record, token, available, permits, and three parts for each of the queue of a fair lock and the
--          two lines: how many wait, the waiters, a zset}. record is {field, value, remaining lease in ms, ...}, permits
--          and the zsets are {member, score, ...}, and token and available are '' if there is none. The zset of the queue
--          has the timeouts, and that of the second line the writers. Of a waiter there are
--            name       its field in the queue, or its client in a line
--            field      that of its place in a line; '' if it has none
--            alive      epoch ms at which its place in the queue is overdue, or '0'
--            since      epoch ms since when it waits at least, or '0'
--            listeners  how many connections are subscribed to the channel on which it is told that the lock is its own or
--                       free; -1 if that is not known, or it asks by itself
--
-- Repeatable: it only reads.
-- Only the first most_listed waiters are returned. If there are more than most_shown permits, the last one in the reply is
-- the one that expires last. No number of a request leaves the script, because a grant names that number: see
-- internal/engine/line.go. Data that no lock writes is refused: see record.lua.

--[[with forms record announce clock semaphore clients tombstones readers]]
return answer(function(types)
local lock, tokens, taken = KEYS[1], KEYS[6], KEYS[7]
local prefix, lock_channel, permit_channel, rw_channel, how = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local most_shown = 10000 -- as MostShown in internal/record
local most_listed = 1000 -- as MostWaiters there
local most_queued = 20000 -- waiters that are counted
local now, pttl = now_ms(), redis.call('pttl', lock)

local function scores(key, from, n)
    return redis.call('zrangebyscore', key, '-inf', '+inf', 'withscores', 'limit', from, n)
end

-- Returns how many names there are, and the waiters with the first of them. A client of relock has one channel for all of
-- its waiters, and Java has one for each.
local function waiters(names, places, channel)
    local first, channels, all = {unpack(names, 1, math.min(#names, most_listed))}, {}, {}
    local texts = #first > 0 and redis.call('hmget', places, '', unpack(first))
    local lost = texts and (texts[1] or ''):match('^%d+ (%-?%d+)$') or 0 -- see look of queue.lua
    -- At most most_listed.
    for i, name in ipairs(first) do
        channels[i] = channel .. (is_relocks(name) and ':client:' .. client_of(name) or ':' .. name)
    end
    local counts = subscribers(channels, how)
    -- At most most_listed.
    for i, name in ipairs(first) do
        local text, listeners = texts[i + 1] or '', counts[channels[i]] or -1
        local delivery, _, _, _, field, since = text:match(place_pattern)
        local _, _, asked, joined, at, life = text:match(queue_pattern)
        if delivery == 'poll' or asked == '0' and listeners == 0 then
            listeners = -1
        end
        all[5 * i - 4], all[5 * i - 3], all[5 * i - 2] = name, field or '', at and ms(at + life + lost) or '0'
        all[5 * i - 1], all[5 * i] = ms((joined or tonumber(since) or 0) * 1000), listeners
    end
    return #names, all
end

local function line(order, waits, channel)
    return waiters(redis.call('zrangebyscore', order, '-inf', '+inf', 'limit', 0, most_queued), waits, channel)
end

local record, permits, channel = {}, {}, lock_channel
local counter = redis.pcall('get', lock) -- GET of a hash is an error
if type(counter) == 'string' then
    types[1], channel = 'string', permit_channel -- an error of another key would blame this one
    free_permits(lock)
    permits = scores(taken, 0, most_shown + 1)
    if #permits > 2 * most_shown then -- those that have expired are left out, except one, which shows what the key is
        local expired = math.max(0, redis.call('zcount', taken, '-inf', ms(now)) - 1)
        permits, counter = scores(taken, expired, most_shown + 2), ms(counter + expired)
        local last = redis.call('zrevrange', taken, 0, 0, 'withscores')
        permits[#permits - 1], permits[#permits] = last[1], last[2]
    end
    -- At most most_shown, and two.
    for i = 1, #permits, 2 do
        check_ids(taken, {permits[i]})
    end
else
    check_record(lock)
    -- At most most_holds, and two.
    local entries = redis.call('hrandfield', lock, most_holds + 2, 'withvalues')
    if #entries / 2 > most_holds + 1 then
        refuse(lock, 'fields ' .. #entries / 2)
    end
    local mode, leases = redis.call('hget', lock, 'mode'), 0
    -- At most most_holds, and most_leases of them all.
    for i = 1, #entries, 2 do
        local field, value, left = entries[i], entries[i + 1], pttl
        if mode and field ~= 'mode' and not is_write(field) then
            leases = leases + leases_of(field, hold_count_of(value))
            if not is_hold(field, value) or too_deep(field, value) or leases > most_leases then
                refuse_field(lock, field)
            end
            left = lease_left(prefix, field, tonumber(value))
            left = left < forever and left or -1
        end
        record[#record + 1], record[#record + 2], record[#record + 3] = field, value, left
    end
    counter = ''
end

local token = redis.call('get', tokens) or ''
local queued, in_queue = waiters(redis.call('lrange', KEYS[2], 0, most_queued - 1), KEYS[4], lock_channel)
local n, in_line = line(KEYS[8], KEYS[9], channel)
local writing, in_other = line(KEYS[10], KEYS[11], rw_channel)
return {now, pttl, record, token, counter, permits, queued, in_queue, scores(KEYS[3], 0, most_shown + 1), n, in_line, {},
    writing, in_other, scores(KEYS[5], 0, most_shown + 1)}
end, {'hash', 'list', 'zset', 'hash', 'zset', 'string', 'zset', 'zset', 'hash', 'zset', 'hash'})
