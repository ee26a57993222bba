-- Acquires a fair lock, or sets the hold count of a hold. If the lock is busy, the caller may wait in the queue.
--
-- KEYS[1]  the lock: a hash {field of the hold -> hold count}.
-- KEYS[2]  the queue: a list, see queue.lua.
-- KEYS[3]  the timeouts of the queue: a zset.
-- KEYS[4]  the places of the queue: a hash.
-- KEYS[5]  the waits of the line of the plain lock: a hash, which has the tombstones.
-- KEYS[6]  the token counter: a string; only for a fenced lock.
-- ARGV[1]  the field of the hold.
-- ARGV[2]  the lease in ms.
-- ARGV[3]  how long Redisson keeps a place in the queue, in ms: its fairLockWaitTimeout.
-- ARGV[4]  the channel of a waiter, without its field: see queue.lua.
-- ARGV[5]  the command that publishes: see announce.lua.
-- ARGV[6]  the hold count to reach: 1, which is the default, is a new hold, more re-enters an existing one.
-- ARGV[7]  1, which is the default, to wait in the queue if the lock is busy, 0 to leave nothing behind.
-- ARGV[8]  the number of this request within its wait if the caller is subscribed to its channel; 0, which is the
--          default, if it cannot be granted the lock by a message.
-- ARGV[9]  how long a grant lasts at most, in ms, if the client has been late for one.
-- Returns  {1, token, 0} held (token 0: not fenced), {0, pttl, legacy} busy (pttl -1: it is not the caller's turn),
--          {-1, 0, 0} there is no hold to re-enter. legacy is 2 if the release may be announced on the channel of the
--          waiter alone, 3 if it will be because this server does not know the subscription of the caller's client,
--          else 0. Four is added for each place in front of a caller that can be granted the lock by a message, up to
--          far of them (see queue.lua): it asks the more rarely.
--
-- Repeatable: as lock_acquire.lua, and a waiter has one place.

local token

--[[common case]]
-- The lock is free, the queue is empty, and there is no tombstone.
if (ARGV[6] or '1') == '1' and redis.pcall('exists', KEYS[1], KEYS[2], KEYS[5]) == 0 then
    token = 0
    if KEYS[6] then -- drawn first: if the counter is not a number, the lock must not be acquired
        --[[with counter]]
        token = take_token(KEYS[6])
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

--[[with forms record announce clock counter token clients grant tombstones queue]]
return answer(function()
local q = open_queue(KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], ARGV[3], ARGV[4], ARGV[5])
local lock, wait_timeout = q.lock, q.wait_timeout
local field, lease, hold_count = ARGV[1], ARGV[2], ARGV[6] or '1'
local enqueue, asked, fenced = ARGV[7] ~= '0', ARGV[8] or '0', q.tokens and '1' or '0'

local joins, lost = false, false -- whether the caller was put into the queue, and whether its subscription is lost

-- Puts the caller at the end of the queue, or renews its place. Returns how many are in front of it, as find_place does,
-- or nil if the queue is full, and its place.
local function wait_in_queue(held, queued)
    local timeout = redis.call('zscore', q.timeouts, field)
    local ahead, exact = find_place(q, field, timeout, queued)
    local before = ahead and place_of(q, field)
    local number = asked == '0' and before and before.asked or asked -- a request without a number may run late
    lost = number ~= '0' and listeners(client_channel(q, field), q.how) == 0
    number = lost and '0' or number
    if not ahead and queued >= most_waiters then
        return nil
    end
    local p, last = before, nil
    if not before then
        local java
        java, last = java_waits(q)
        p = {field = field, since = ms(math.floor(q.now / 1000)), java = java and '1' or '0'}
    end
    if not ahead then
        local base = last and redis.call('zscore', q.timeouts, last)
        timeout = wait_timeout + (base and tonumber(base) or q.now + held)
        joins, ahead = true, redis.call('rpush', q.waiters, field) - 1
        redis.call('zadd', q.timeouts, ms(timeout), field)
    end
    p.lease = grant_lease({lease = tonumber(lease), most = tonumber(ARGV[9])}, p.lease)
    p.fenced, p.asked, p.at, p.life = fenced, number, q.now - q.lost, life_of(number ~= '0' and ahead or 0)
    p.java = ahead == 0 and '0' or p.java
    note_place(q, p, '', looked(q))
    redis.call('pexpire', q.places, line_life)
    -- Every waiter ahead may shorten the timeout by wait_timeout when it acquires the lock. The timeout must last until
    -- the next request, however short wait_timeout is.
    local enough = math.max(wait_timeout, 2 * p.life - life_of(0))
    local safe = q.now + ahead * wait_timeout + enough
    if not timeout or tonumber(timeout) < safe - enough / 2 then
        timeout = safe
        redis.call('zadd', q.timeouts, ms(timeout), field)
        -- A waiter of Java that joins sleeps for what is left of the last timeout, and without an end if that is negative.
        redis.call('zadd', q.timeouts, 'xx', 'gt', ms(timeout), redis.call('lindex', q.waiters, -1))
    elseif exact and p.java == '0' and tonumber(timeout) > safe + held + life_of(0) then
        -- Waiters ahead have left, or the clock was set back. One of Java ahead may have come with a longer wait_timeout,
        -- by which it will shorten all others.
        timeout = safe + held
        redis.call('zadd', q.timeouts, ms(timeout), field)
    end
    redis.call('pexpire', q.waiters, queue_life)
    redis.call('pexpire', q.timeouts, queue_life)
    return ahead, p
end

local pttl = redis.call('pttl', lock)
local mine = pttl ~= -2 and redis.call('hexists', lock, field) == 1
if not mine and hold_count ~= '1' then
    return {-1, 0, 0}
end
local holder, queued, _
if not mine then
    if pttl ~= -2 then
        _, holder = check_record(lock)
    end
    queued = check_queue(q)
    if is_buried(q.waits, field) then -- this request runs late
        return {0, pttl, 0}
    end
end
if hold_count == '1' and (mine or pttl == -2) then
    token = token or draw_token(q.tokens) -- before the first write, because it may refuse
end

if not mine and (pttl ~= -2 or queued > 0) then
    local ahead, p, to
    if enqueue then
        redis.call('zcard', q.timeouts) -- before the first write: these refuse other data, and this user may not be allowed to
        redis.call('hlen', q.places)
        look(q)
        local done
        done, ahead, p = pcall(wait_in_queue, math.max(pttl, 0), queued)
        if not done then
            if joins then
                leave_queue(q, {[field] = true})
            end
            error(ahead, 0)
        end
    end
    if pttl == -2 then
        to = pass_on(q, field, false)
    end
    if pttl ~= -2 or to and to ~= field then
        if ahead and to then
            ahead = redis.call('lpos', q.waiters, field, 'maxlen', far) or far
        end
        local legacy = p and p.java == '1' or holder and not is_relocks(holder)
        local place = lost and 3 or enqueue and legacy and 2 or 0
        if enqueue and asked ~= '0' and not lost then
            place = place + 4 * math.min(ahead or far, far)
        end
        return {0, ahead == 0 and redis.call('pttl', lock) or -1, place}
    elseif ahead then
        leave_queue(q, {[field] = true})
    end
end

redis.call('hset', lock, field, hold_count)
if not mine then
    begin_lease(lock, lease, field)
elseif pttl < tonumber(lease) then
    redis.call('pexpire', lock, lease)
end
return {1, token or 0, 0}
end, {'hash', 'list', 'zset', 'hash', 'hash', 'string'})
