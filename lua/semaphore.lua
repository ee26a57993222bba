-- Prelude of the scripts of semaphores, whose record is that of Redisson's RPermitExpirableSemaphore: a counter of the permits
-- that are free, and a zset {id of a permit -> epoch ms when its lease ends} of those that are taken.
--
-- The counter and the zset change together: free permits and taken ones are always the number of permits of the semaphore. A
-- permit whose lease is over is taken until a script of relock or of Redisson gives it back. So a script that asks for permits
-- does that first. One that only counts them takes such a permit for a free one.
--
-- Other data at the key of the zset are refused, and stay as they are. Any whole number that INCRBY writes, of eleven characters at most,
-- may be the counter.
--
-- Defines  check_ids(taken, ids)               refuses ids that are none of a permit: Redisson's has 16 bytes.
-- Defines  check_permits(taken)                the same for some of the permits that are taken.
-- Defines  has_lease(ends)                     whether the lease of a permit ends: of a Java permit it may not.
-- Defines  free_permits(free)                  how many permits are free; nil where nothing has set the number of permits.
-- Defines  count_free(free)                   the same, and 0 there.
-- Defines  add(free, n)                        adds to the counter, if there is one.
-- Defines  take_permit(free, taken, id, ends)  takes one of the permits that are free; its lease ends at this time.
-- Defines  announce_free(free, channel, how)   says how many permits are free, if any are; returns how many connections heard it.
-- Defines  drop_expired(free, taken, now)      gives back the permits whose lease is over, at most a thousand; returns their ids.

local no_lease = 922337203685477 -- of Redisson
local most_taken = 20000 -- permits that one script looks at

local function has_lease(ends) return tonumber(ends) < no_lease end

local function check_ids(taken, ids)
    -- At most most_taken.
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
    if value and value ~= '0' and not (value:match('^%-?[1-9]%d*$') and #value <= 11) then
        refuse(free, 'type string')
    end
    return tonumber(value or nil)
end

local function count_free(free) return tonumber(redis.call('get', free) or 0) end

local function add(free, n)
    if redis.call('exists', free) == 1 then
        redis.call('incrby', free, n)
    end
end

-- The counter first: if the user lacks a right, nothing has changed.
local function take_permit(free, taken, id, ends)
    redis.call('incrby', free, -1)
    local added = redis.pcall('zadd', taken, ms(ends), id)
    if added ~= 1 then
        redis.call('incrby', free, 1)
    end
    if type(added) == 'table' then
        error(added, 0)
    end
    local pttl = redis.call('pttl', free)
    if pttl > 0 then -- Redisson's expire() of a semaphore
        redis.call('pexpire', taken, pttl)
    end
end

-- Java waiters take the message as a number of permits to wait for, and fail if it is negative.
local function announce_free(free, channel, how)
    local n = count_free(free)
    return n > 0 and announce(how, channel, ms(n)) or 0
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
    return expired
end
