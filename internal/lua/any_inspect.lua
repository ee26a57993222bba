-- Returns everything that Redis stores for a lock of any type. The script only reads.
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
-- Returns  {epoch ms, pttl, record, fair, waiters, number of waiters, token, available, permits}. record is
--          {field, value, remaining lease in ms, ...}, fair is 1 if there is a queue of a fair lock, waiters are as in
--          waiters.lua, permits is {member, score, ...}, and token and available are '' if there is none.
--
-- Repeatable: it only reads.
-- If there are more than most_shown permits, the last one in the reply is the one that expires last. The waiters of a
-- fair lock are counted up to most_queued, and writers without a place up to most_shown.
-- Data that no lock writes is refused: see record.lua.

--[[with forms record announce clock semaphore clients tombstones line readers waiters]]
return answer(function(types)
local lock, queue, timeouts, places, writers, tokens = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local prefix, lock_channel, permit_channel, rw_channel, how = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local most_shown = 10000 -- as mostShown in inspect.go
local most_queued = 20000 -- the longest queue of a fair lock: see queue.lua

local function members(key, from, n)
    return redis.call('zrangebyscore', key, '-inf', '+inf', 'withscores', 'limit', from, n)
end

-- A counter belongs to a semaphore. GET of a hash is an error.
local counter = redis.pcall('get', lock)
if type(counter) == 'string' then
    types[1] = 'string' -- else an error of another key would blame this one
    local free, taken, now = free_permits(lock), KEYS[7], now_ms()
    check_permits(taken)
    local permits, expired = members(taken, 0, most_shown + 1), 0
    if #permits > 2 * most_shown then -- those that have expired are left out, except one, which shows what the key is
        expired = math.max(0, redis.call('zcount', taken, '-inf', ms(now)) - 1)
        permits = members(taken, expired, most_shown + 2)
        local last = redis.call('zrevrange', taken, 0, 0, 'withscores')
        permits[#permits - 1], permits[#permits] = last[1], last[2]
    end
    -- At most most_shown, and two. Every one is checked, where the other scripts of a semaphore check some.
    for i = 1, #permits, 2 do
        check_ids(taken, {permits[i]})
    end
    local waiters = {}
    local n = line_waiters(waiters, KEYS[8], KEYS[9], {}, {}, permit_channel, how)
    return {now, redis.call('pttl', lock), {}, 0, waiters, n, '', ms(free + expired), permits}
end

check_record(lock)
-- At most most_holds, and two.
local entries = redis.call('hrandfield', lock, most_holds + 2, 'withvalues')
if #entries / 2 > most_holds + 1 then
    refuse(lock, 'fields ' .. #entries / 2)
end
local pttl, mode = redis.call('pttl', lock), redis.call('hget', lock, 'mode')

local record, held, leases = {}, {}, 0
-- At most most_holds, and most_leases of them all.
for i = 1, #entries, 2 do
    local field, value, left = entries[i], entries[i + 1], pttl
    local hold_count = mode and field ~= 'mode' and not is_write(field) and is_hold(field, value) and tonumber(value)
    if hold_count then
        leases = leases + leases_of(field, hold_count)
        if too_deep(field, hold_count) or leases > most_leases then
            refuse_field(lock, field)
        end
        left = lease_left(prefix, field, hold_count)
        left = left < forever and left or -1
    end
    record[#record + 1] = field
    record[#record + 1] = value
    record[#record + 1] = left
    held[field] = true
end

local queued = redis.call('lrange', queue, 0, most_queued - 1)
local ends, writing = members(timeouts, 0, most_shown + 1), members(writers, 0, most_shown + 1)
local token = redis.call('get', tokens) or ''
local fair = not mode and #queued + #ends > 0
local waiters, n = {}, #queued
if fair then
    waiters = queue_waiters(queued, ends, places, lock_channel, how)
else
    n = line_waiters(waiters, KEYS[8], KEYS[9], held, {}, lock_channel, how) +
        line_waiters(waiters, KEYS[10], KEYS[11], held, writing, rw_channel, how)
end
return {now_ms(), pttl, record, fair and 1 or 0, waiters, n, token, '', {}}
end, {'hash', 'list', 'zset', 'hash', 'zset', 'string', 'zset', 'zset', 'hash', 'zset', 'hash'})
