-- Acquires a fair lock, or sets the hold count of a hold. If the lock is busy, the caller may wait in the queue.
--
-- KEYS[1]  the lock: a hash {field of the hold -> hold count}.
-- KEYS[2]  the queue: a list, see queue.lua.
-- KEYS[3]  the timeouts of the queue: a zset.
-- KEYS[4]  the heartbeats of the queue: a zset.
-- KEYS[5]  the wishes of the queue: a hash.
-- KEYS[6]  the waits of the line of the plain lock: a hash, which has the tombstones.
-- KEYS[7]  the token counter: a string; only for a fenced lock.
-- ARGV[1]  the field of the hold.
-- ARGV[2]  the lease in ms.
-- ARGV[3]  how long Redisson keeps a place in the queue, in ms: its fairLockWaitTimeout.
-- ARGV[4]  how long a heartbeat lasts, in ms.
-- ARGV[5]  the channel of a waiter, without its field: see queue.lua.
-- ARGV[6]  the command that publishes: see announce.lua.
-- ARGV[7]  the hold count to reach: 1, which is the default, is a new hold, more re-enters an existing one.
-- ARGV[8]  1, which is the default, to wait in the queue if the lock is busy, 0 to leave nothing behind.
-- ARGV[9]  the number of this request within its wait if the caller is subscribed to its channel; 0, which is the
--          default, if it cannot be granted the lock by a message.
-- ARGV[10]  how long a grant lasts at most, in ms, if the client has been late for one.
-- Returns  {1, token, 0} held (token 0: not fenced), {0, pttl, legacy} busy (pttl -1: it is not the caller's turn),
--          {-1, 0, 0} there is no hold to re-enter. legacy is 2 if the release may be announced on the channel of the
--          waiter alone, 3 if it will be because this server does not know the subscription of the caller's client,
--          else 0. Four is added for each place in front of a caller that can be granted the lock by a message, up to
--          far of them (see queue.lua): it asks the more rarely.
--
-- Repeatable: the hold count is set and not incremented, a lease is never shortened, and a waiter has one place. The
-- script refuses a hash that no lock writes before it writes anything: see record.lua.

local token

--[[common case]]
-- The lock is free, the queue is empty, and there is no tombstone. After
-- an error the code below runs, and reports it.
if (ARGV[7] or '1') == '1' and redis.pcall('exists', KEYS[1], KEYS[2], KEYS[6]) == 0 then
    token = 0
    if KEYS[7] then -- drawn first: if the counter is not a number, the lock must not be acquired
        --[[with counter]]
        token = take_token(KEYS[7])
    end
    if token and redis.pcall('hset', KEYS[1], ARGV[1], '1') == 1 then
        if redis.pcall('pexpire', KEYS[1], ARGV[2]) == 1 then
            return token
        end
        if type(redis.pcall('hdel', KEYS[1], ARGV[1])) == 'table' then -- as undo of record.lua
            redis.pcall('del', KEYS[1])
        end
    end
end
--[[end]]

--[[with forms record announce clock counter token clients grant standing tombstones queue]]
return answer(function()
local q = {
    lock = KEYS[1], waiters = KEYS[2], timeouts = KEYS[3], heartbeats = KEYS[4], wishes = KEYS[5], waits = KEYS[6],
    tokens = KEYS[7],
    wait_timeout = tonumber(ARGV[3]), channel = ARGV[5], how = ARGV[6],
}
local lock, wait_timeout = q.lock, q.wait_timeout
local field, lease, heartbeat_ttl, hold_count = ARGV[1], ARGV[2], tonumber(ARGV[4]), ARGV[7] or '1'
local enqueue, asked, fenced = ARGV[8] ~= '0', ARGV[9] or '0', q.tokens and '1' or '0'

local now = now_ms()

-- Refuses other data in place of the wishes, if the caller is to have one.
local function check_wishes()
    if enqueue and asked ~= '0' then
        redis.call('hlen', q.wishes)
    end
end

local joins = false -- whether the caller was put into the queue

-- Puts the caller at the end of the queue, or renews the heartbeat of its place. Returns the position, which counts
-- from 0, as find_place does, or nil if the queue is full.
local function wait_in_queue(pttl, queued)
    check_wishes()
    local timeout = redis.call('zscore', q.timeouts, field)
    local place, exact = find_place(q, field, timeout, queued)
    local held = math.max(pttl, 0)
    if not place and queued >= most_waiters then
        return nil
    elseif not place then
        local last = redis.call('lindex', q.waiters, -1)
        local base = last and redis.call('zscore', q.timeouts, last)
        timeout = wait_timeout + (base and tonumber(base) or now + held)
        joins, place = true, redis.call('rpush', q.waiters, field) - 1
        redis.call('zadd', q.timeouts, ms(timeout), field)
    end
    local life = asked ~= '0' and life_of(place, heartbeat_ttl) or heartbeat_ttl
    -- Every waiter ahead may shorten the timeout by wait_timeout when it acquires the lock. The timeout must last until
    -- the next heartbeat, however short wait_timeout is.
    local enough = math.max(wait_timeout, 2 * life - heartbeat_ttl)
    local safe = now + place * wait_timeout + enough
    if not timeout or tonumber(timeout) < safe - enough / 2 then
        timeout = safe
        redis.call('zadd', q.timeouts, ms(timeout), field)
    elseif exact and tonumber(timeout) > safe + held + heartbeat_ttl then -- waiters ahead have left, or the clock was set back
        timeout = safe + held
        redis.call('zadd', q.timeouts, ms(timeout), field)
    end
    redis.call('zadd', q.heartbeats, ms(now + life), field, ms(q.ran), '')
    redis.call('pexpire', q.heartbeats, queue_life)
    set_lease(q, tonumber(timeout))
    if asked ~= '0' then
        note_wish(q, field, {lease = lease, most = ARGV[10], fenced = fenced, asked = asked}, life)
    else
        drop_wish(q, field)
    end
    return place
end

local pttl = redis.call('pttl', lock)
local mine = pttl ~= -2 and redis.call('hexists', lock, field) == 1
local _, holder
if pttl ~= -2 and not mine then
    _, holder = check_record(lock)
end
local queued = mine and 0 or check_queue(q)
if not mine then
    redis.call('zcard', q.timeouts) -- before the first write: it refuses other data, and this user may not be allowed to
end
q.now = now
local over = not mine and hold_count == '1' and is_buried(q.waits, field) -- this request runs late
if pttl ~= -2 and not mine and not over then -- the caller is going to wait
    check_wishes() -- before the first write
end

local may_hold = hold_count == '1' and not over and (mine or pttl == -2)
token = token or may_hold and draw_token(q.tokens) or 0 -- before the first write, because it may refuse

local first, evicted = evict_dead(q, now, heartbeat_ttl)
local passed = 0 -- waiters in front of first whose subscriptions are lost

if not mine then
    if hold_count ~= '1' then
        return {-1, 0, 0}
    end
    if over then
        return {0, pttl, 0}
    end
    if pttl == -2 and first and first ~= field then
        first, passed = first_alive(q, field)
    end
    if pttl ~= -2 or first and first ~= field then
        local lost = enqueue and asked ~= '0' and listeners(client_channel(q, field), q.how) == 0
        if lost then
            asked = '0'
        end
        local done, place = pcall(function() return enqueue and wait_in_queue(pttl, queued) end)
        if not done then
            if joins then
                leave_queue(q, {[field] = true})
            end
            error(place, 0)
        end
        local standing = standing_of(nil, not lost and enqueue and has_legacy(q, asked ~= '0', holder), lost)
        if enqueue and asked ~= '0' then
            standing = standing + 4 * math.min(place or far, far)
        end
        if pttl == -2 then
            local granted, head = grant_first(q)
            if granted then
                return {0, place == 1 and redis.call('pttl', lock) or -1, standing}
            end
            if head and (evicted or passed > 0) then
                wake(q, head) -- the message of the release went to the dead waiter
            end
        end
        return {0, place == 0 and pttl or -1, standing}
    end
end

if not mine and first then
    leave_queue(q, {[field] = true})
end
redis.call('hset', lock, field, hold_count)
if not mine then
    begin_lease(lock, lease, field)
elseif pttl < tonumber(lease) then
    redis.call('pexpire', lock, lease)
end
return {1, token, 0}
end, {'hash', 'list', 'zset', 'zset', 'hash', 'hash', 'string'})
