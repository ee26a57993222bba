-- A lock with a queue: takes it or waits in line, gives it back, gives up, or forces it open.
--
-- KEYS[1]  the lock: a hash {field of the hold -> levels}
-- KEYS[2]  the queue: a list of fields, the first one first
-- KEYS[3]  the timeouts: a zset {field -> epoch ms when Redisson gives its place away}
-- KEYS[4]  the heartbeats: a zset {field of a relock waiter -> epoch ms when it counts as dead};
--          and '' -> epoch ms when this script last ran
-- KEYS[5]  the token counter: a string; only for a fenced lock
-- ARGV[1]  what to do: acquire, release, abandon or force
-- ARGV[2]  channel of a waiter, without its field
-- ARGV[3]  field of the hold; '' to force
-- ARGV[4]  acquire: level wanted, 1 is a fresh hold; else: levels left
-- ARGV[5]  acquire: lease in ms
-- ARGV[6]  what a place in the queue is worth, in ms: Redisson's fairLockWaitTimeout
-- ARGV[7]  how long a sign of life lasts, in ms
-- ARGV[8]  acquire: 1 to stand in line when it is busy, 0 to leave nothing behind
-- ARGV[9]  how a waiter is woken: see announce.lua
-- Returns  acquire: {1, 0, token} held, {0, pttl, 0} busy (pttl -1: it is not the caller's turn), {-1, 0, 0} nothing there to re-enter
-- Returns  else: {1, 0, 0} done, {0, 0, 0} or {-1, 0, 0} nothing there
--
-- Rules: a list entry has a timeout, as Redisson's arithmetic wants it; if it is of
-- a relock waiter it has a heartbeat too, and then that alone says whether the
-- waiter lives, wherever it stands. Java looks at timeouts only, so that of a
-- living relock waiter is kept far enough ahead. Where nobody was heard of for a
-- while, Redis was away and not the waiters: all of them get another chance. All
-- times are the server's.
-- Running it twice does what running it once does.
-- A hash that no lock makes is refused before anything else is looked at: see record.lua.

local lock, queue, timeouts, beats, tokens = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local verb, channel, field = ARGV[1], ARGV[2], ARGV[3]
local level, lease, worth, life = ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local stand, how = ARGV[8] == '1', ARGV[9]

local clock = redis.call('time')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function ms(t) return string.format('%.0f', t) end

local function remove(waiter)
    redis.call('lrem', queue, 1, waiter)
    redis.call('zrem', timeouts, waiter)
    redis.call('zrem', beats, waiter)
    if redis.call('zcard', beats) == 1 then -- only the '' is left
        redis.call('del', beats)
    end
end

local function wake_head()
    local head = redis.call('lindex', queue, 0)
    if head then
        announce(how, channel .. head, '0')
    end
end

-- pcall: where memory is short, a release must go on without its signs of life.
-- Removes the dead: relock waiters without a sign of life; and at the head,
-- others whose timeout is over or who have none and would stand there for ever.
local function bury()
    local buried = false
    local heard = tonumber(redis.call('zscore', beats, '') or now)
    for _, waiter in ipairs(redis.call('zrangebyscore', beats, '-inf', ms(now))) do
        if waiter ~= '' then
            if now - heard > life / 2 and redis.call('lpos', queue, waiter) then
                redis.pcall('zadd', beats, ms(now + life), waiter)
            else
                remove(waiter)
                buried = true
            end
        end
    end
    redis.pcall('zadd', beats, 'XX', ms(now), '')
    while true do
        local head = redis.call('lindex', queue, 0)
        if not head or redis.call('zscore', beats, head) then
            break
        end
        local timeout = redis.call('zscore', timeouts, head)
        if timeout and tonumber(timeout) > now then
            break
        end
        remove(head)
        buried = true
    end
    return buried
end

-- Moves the timeouts of all who stand behind a place nearer, as Redisson does when it is left.
local function close_up(place)
    for _, waiter in ipairs(redis.call('lrange', queue, place, -1)) do
        if redis.call('zscore', timeouts, waiter) then
            redis.call('zincrby', timeouts, -worth, waiter)
        end
    end
end

-- Puts the caller in the queue, or shows that it is still there.
local function stand_in_line(pttl)
    local place = redis.call('lpos', queue, field)
    local timeout = redis.call('zscore', timeouts, field)
    if not place then
        local last = redis.call('lindex', queue, -1)
        local base = last and redis.call('zscore', timeouts, last)
        timeout = worth + (base and tonumber(base) or now + math.max(pttl, 0))
        redis.call('zadd', timeouts, ms(timeout), field)
        place = redis.call('rpush', queue, field) - 1
    end
    -- Everyone ahead may take worth from the timeout when it gets the lock; and
    -- however little a place is worth, it must last until the next signs of life.
    local enough = math.max(worth, life)
    local safe = now + place * worth + enough
    if not timeout or tonumber(timeout) < safe - enough / 2 then
        redis.call('zadd', timeouts, ms(safe), field)
    end
    redis.call('zadd', beats, ms(now + life), field, ms(now), '')
    return place
end

local pttl = redis.call('pttl', lock)
local mine = pttl ~= -2 and redis.pcall('hexists', lock, field)
if verb ~= 'abandon' and type(mine) == 'table' then -- a waiter that gives up leaves the queue whatever the lock is
    error(mine, 0)
end
mine = mine == 1
if verb ~= 'abandon' and pttl ~= -2 and not mine then
    check_record(lock)
end

local buried = bury()

if verb == 'acquire' then
    if level ~= '1' and not mine then
        return {-1, 0, 0}
    end
    if not mine then
        local head = redis.call('lindex', queue, 0)
        if pttl ~= -2 or head and head ~= field then
            local place = stand and stand_in_line(pttl)
            if pttl == -2 and buried then
                wake_head() -- the dead one was woken in vain
            end
            return {0, place == 0 and pttl or -1, 0}
        end
    end
    local token = level == '1' and draw_token(tokens) or 0
    if not mine and redis.call('llen', queue) > 0 then
        remove(field)
        close_up(0)
    end
    redis.call('hset', lock, field, level)
    if pttl < tonumber(lease) then
        redis.call('pexpire', lock, lease)
    end
    return {1, 0, token}
end

if verb == 'abandon' then
    local place = redis.call('lpos', queue, field)
    if place then
        redis.call('zrem', timeouts, field) -- first: where memory is short, scripts that have written nothing may not zincrby
        close_up(place + 1)
        remove(field)
    end
end

local there
if verb == 'force' then
    there = redis.call('hlen', lock) > 0 and redis.call('del', lock) or 0
elseif not mine then
    there = -1
elseif level ~= '0' then
    note_levels(lock, field, level)
    return {1, 0, 0}
else
    redis.call('del', lock)
    there = 1
end
if there == 1 or redis.call('exists', lock) == 0 then
    wake_head()
end
return {there, 0, 0}
