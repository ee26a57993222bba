-- Says all that is in Redis about a lock of any kind. It only reads.
--
-- KEYS[1]  the lock: a hash; one that has a field mode is a read/write lock; or the counter of a semaphore.
-- KEYS[2]  the queue of a fair lock: a list.
-- KEYS[3]  the timeouts of a fair lock: a zset.
-- KEYS[4]  the heartbeats of a fair lock: a zset.
-- KEYS[5]  the waiting writers of a read/write lock: a zset.
-- KEYS[6]  the token counter: a string.
-- KEYS[7]  the permits of a semaphore that are taken: a zset; see semaphore.lua. Then KEYS[1] is a string: those that are free.
-- ARGV[1]  what the key of a read lease begins with; field:rwlock_timeout:level follows.
-- Returns  {epoch ms, pttl, record, queue, timeouts, heartbeats, writers, token, free, permits}; record is {field, value, ms that
--          its lease lasts, ...}, queue {field, ...}, the zsets {member, score, ...}, and token and free '' where there is none.
--
-- Where the user may not read a key, the answer is an error that names the key. Data that no lock makes are refused:
-- see record.lua.

local lock, queue, timeouts, heartbeats, writers, tokens = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local prefix = ARGV[1]

-- A hash may contain any number, and no owner re-enters so often.
local most_levels = 1000

local wrong
local function read(what, ...)
    local answer = redis.pcall(...)
    if type(answer) == 'table' and answer.err then
        if answer.err:find('WRONGTYPE ', 1, true) then
            error(answer, 0)
        end
        wrong = wrong or answer.err .. ': ' .. what
        return {}
    end
    return answer
end

local function members(what, key)
    return read(what, 'zrangebyscore', key, '-inf', '+inf', 'withscores')
end

-- A counter makes a semaphore; of a hash, GET is an error.
local counter = redis.pcall('get', lock)
if type(counter) == 'string' then
    local free = free_permits(lock)
    local permits = members('the permits of a semaphore', KEYS[7])
    return wrong and redis.error_reply(wrong) or
        {now_ms(), redis.call('pttl', lock), {}, {}, {}, {}, {}, '', ms(free), permits}
end

check_record(lock)
local entries = read('the lock', 'hgetall', lock)
local pttl = redis.call('pttl', lock)
local mode
for i = 1, #entries, 2 do
    mode = mode or entries[i] == 'mode'
end

-- The longest lease of a reader: see readers.lua.
local function lease_left(reader, levels)
    local longest = -2
    local acquisition = reader:match('^[%x-]+:%-?%d+:(%d+)$')
    if acquisition and #acquisition <= 20 then
        levels = 1
    end
    for i = 1, math.min(levels, most_levels) do
        local left = redis.call('pttl', prefix .. reader .. ':rwlock_timeout:' .. i)
        if left == -1 then
            return -1
        end
        longest = math.max(longest, left)
    end
    return longest
end

local record = {}
for i = 1, #entries, 2 do
    local field, value, left = entries[i], entries[i + 1], pttl
    local levels = tonumber(value)
    if mode and levels and field:sub(-6) ~= ':write' then
        left = lease_left(field, levels)
    end
    record[#record + 1] = field
    record[#record + 1] = value
    record[#record + 1] = left
end

local answer = {
    now_ms(),
    pttl,
    record,
    read('the queue of a fair lock', 'lrange', queue, 0, -1),
    members('the timeouts of a fair lock', timeouts),
    members('the heartbeats of a fair lock', heartbeats),
    members('the waiting writers of a read/write lock', writers),
    read('the token counter', 'get', tokens) or '',
    '',
    {},
}
if wrong then
    return redis.error_reply(wrong)
end
return answer
