-- Takes a permit of a semaphore, or one more level of a permit that is held.
--
-- KEYS[1]  the permits that are free: a string; see semaphore.lua.
-- KEYS[2]  the permits that are taken: a zset.
-- KEYS[3]  the waiters: a zset with two members for each client that waits: see waiters.lua.
-- ARGV[1]  id of the permit, of its own for every acquisition.
-- ARGV[2]  lease in ms.
-- ARGV[3]  level wanted: 1 takes a permit, more re-enters a held one.
-- ARGV[4]  how many permits a semaphore has that nothing has set the number of.
-- ARGV[5]  channel on which free permits are announced.
-- ARGV[6]  how: see announce.lua.
-- ARGV[7]  how long a sign of life lasts, in ms; 0 where the caller does not wait, and leaves none.
-- Returns  {1, 0, 0} held, {0, pttl, 0} busy: the first lease ends in pttl ms, or none does (-1). {-1, 0, 0} nothing there to
--          re-enter.
--
-- A caller that waits lets the clients go first that came before its own, if there are not enough permits for all. So permits go
-- round: a client that is given one loses its place, and its next waiter comes behind the others.
--
-- Running it twice does what running it once does: an id takes one permit, and a lease is never shortened. A permit that is taken
-- by a request that runs after its undo is given back when its lease is over.

local free, taken, waiters = KEYS[1], KEYS[2], KEYS[3]
local id, lease, level, permits, channel, how = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), ARGV[5], ARGV[6]
local life = tonumber(ARGV[7])

local held_back = 50 -- ms; until then those in front should have asked

local now = now_ms()
local available = free_permits(free)
check_permits(taken)
local dropped = drop_expired(free, taken, now)
local ends = redis.call('zscore', taken, id)
if ends then
    if tonumber(ends) < now + lease then
        redis.call('zadd', taken, ms(now + lease), id)
    end
    return {1, 0, 0}
end
if level ~= '1' then
    return {-1, 0, 0}
end

if available then
    available = available + dropped
else
    available = permits - redis.call('zcard', taken)
    redis.call('set', free, ms(available))
end
local came, in_front = false, 0
if life > 0 then
    came, in_front = look_ahead(waiters, id, now)
end
if available <= in_front then
    if life > 0 then
        keep_waiting(waiters, id, came, now, life)
    end
    if available > 0 then
        return {0, held_back, 0}
    end
    local first = redis.call('zrangebyscore', taken, '-inf', '+inf', 'withscores', 'limit', 0, 1)
    return {0, first[2] and has_lease(first[2]) and tonumber(first[2]) - now or -1, 0}
end

-- The counter first: if the user lacks a right, nothing has changed.
redis.call('incrby', free, -1)
local added = redis.pcall('zadd', taken, ms(now + lease), id)
if type(added) == 'table' then
    redis.call('incrby', free, 1)
    error(added, 0)
end
if came then
    stop_waiting(waiters, id)
end
local pttl = redis.call('pttl', free)
if pttl > 0 then -- Redisson's expire() of a semaphore
    redis.call('pexpire', taken, pttl)
end
if dropped > 1 and available > 1 then
    announce(how, channel, ms(available - 1))
end
return {1, 0, 0}
