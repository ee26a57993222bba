-- Prelude of the scripts of semaphores, whose record is that of Redisson's RPermitExpirableSemaphore: a counter of the permits
-- that are free, and a zset {id of a permit -> epoch ms when its lease ends} of those that are taken.
--
-- The counter and the zset change together: free permits and taken ones are always the number of permits of the semaphore. A
-- permit whose lease is over is taken until a script of relock or of Redisson gives it back. So a script that asks for permits, or
-- counts them, does that first.
--
-- Other data at the key of the zset are refused, and stay as they are. Any whole number may be the counter.
--
-- Defines  check_ids(taken, ids)               refuses ids that are none of a permit: Redisson's has 16 bytes.
-- Defines  check_permits(taken)                the same for some of the permits that are taken.
-- Defines  has_lease(ends)                     whether the lease of a permit ends: of a Java permit it may not.
-- Defines  free_permits(free)                  how many permits are free; nil where nothing has set the number of permits.
-- Defines  add(free, n)                        adds to the counter, if there is one; returns how many permits are free then.
-- Defines  add_free(free, n, how, channel)     adds, and announces what is free; returns how many connections were told.
-- Defines  drop_expired(free, taken, now)      gives back the permits whose lease is over, at most a thousand; returns how many.

local no_lease = 922337203685477 -- of Redisson

local function has_lease(ends) return tonumber(ends) < no_lease end

local function check_ids(taken, ids)
    for _, id in ipairs(ids) do
        if #id ~= 16 and not is_hold(id, '1') then
            refuse(taken, 'type zset')
        end
    end
end

local function check_permits(taken)
    check_ids(taken, redis.call('zrangebyscore', taken, '-inf', '+inf', 'limit', 0, 8))
end

local function free_permits(free)
    local value = redis.call('get', free)
    if value and not value:match('^%-?%d+$') then
        refuse(free, 'type string')
    end
    return tonumber(value or nil)
end

local function add(free, n) return redis.call('exists', free) == 1 and redis.call('incrby', free, n) or 0 end

-- Java waiters take the message as a number of permits to wait for, and fail if it is negative.
local function add_free(free, n, how, channel)
    local now_free = add(free, n)
    return now_free > 0 and announce(how, channel, ms(now_free)) or 0
end

-- The zset first: from the first write on, a script may write where memory is short, too. So a script that drops nothing must
-- not write here, or it could take a permit where memory is short.
local function drop_expired(free, taken, now)
    local expired = redis.call('zrangebyscore', taken, '-inf', ms(now), 'limit', 0, 1000)
    if #expired > 0 then
        check_ids(taken, expired)
        redis.call('zrem', taken, unpack(expired))
        add(free, #expired)
    end
    return #expired
end
