-- Prelude of the scripts of semaphores, whose record is that of Redisson's RPermitExpirableSemaphore: a counter of
-- the available permits, and a zset {id of a permit -> epoch ms at which its lease ends} of the taken ones.
--
-- The counter and the zset change together: available and taken permits always add up to the number of permits of the
-- semaphore. A permit whose lease has expired stays taken until a script of relock or of Redisson returns it to the
-- counter. So a script that acquires permits does that first. A script that only counts permits counts such a permit
-- as available.
--
-- Other data at the key of the zset is refused, and stays as it is. The counter may be any whole number that INCRBY
-- writes, of at most eleven characters.
--
-- Defines  check_ids(taken, ids)               refuses ids that are not those of permits: Redisson's have 16 bytes.
-- Defines  check_permits(taken)                the same for some of the taken permits.
-- Defines  has_lease(ends)                     whether the lease of a permit ends: that of a Java permit may not.
-- Defines  free_permits(free)                  the number of available permits; nil if nothing has set the number of
--          permits.
-- Defines  count_free(free)                    the same, and 0 instead of nil.
-- Defines  add(free, n)                        adds to the counter, if it exists.
-- Defines  take_permit(free, taken, id, ends)  takes one of the available permits; its lease ends at this time.
-- Defines  announce_free(free, channel, how)   publishes the number of available permits, if there are any; returns
--          the number of connections that received it.
-- Defines  drop_expired(free, taken, now)      returns permits whose lease has expired to the counter, at most a
--          thousand; returns their ids.

local no_lease = 922337203685477 -- of Redisson
local most_taken = 20000 -- permits that one script reads

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

-- The counter comes first: if the user lacks the permission, nothing has changed.
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

-- The zset comes first. After its first write a script may write even if memory is short. So this function must not
-- write if no permit has expired: the script could take a permit although memory is short.
local function drop_expired(free, taken, now)
    local expired = redis.call('zrangebyscore', taken, '-inf', ms(now), 'limit', 0, 1000)
    if #expired > 0 then
        check_ids(taken, expired)
        redis.call('zrem', taken, unpack(expired))
        add(free, #expired)
    end
    return expired
end
