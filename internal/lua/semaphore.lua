-- Prelude of the scripts of semaphores, whose record is that of Redisson's RPermitExpirableSemaphore: a counter of the
-- available permits, and a zset {id of a permit -> epoch ms at which its lease ends} of the taken ones.
--
-- The counter and the zset change together: available and taken permits always add up to the number of permits of the
-- semaphore. If the user lacks the permission for one of the commands, neither changes. A permit whose lease has
-- expired stays taken until a script of relock or of Redisson returns it to the counter. So a script that acquires
-- permits does that first. A script that only counts permits counts such a permit as available.
--
-- A hold of several permits has as many ids, with consecutive numbers and one score. Its field is the first of them
-- with +n appended: client:owner:7+3 stands for the ids client:owner:7, :8 and :9. A hold of one permit has its field
-- as the id. So a field tells how many permits it stands for, in a place, a message and a tombstone too. A hold has all
-- of its permits, or it is lost: a script that finds some of them grants and renews nothing. Java may leave some,
-- because it removes as many expired ids as it wants permits.
--
-- Other data at the key of the zset is refused, and stays as it is. The counter may be any whole number that INCRBY
-- writes, of at most eleven characters.

local no_lease = 922337203685477 -- of Redisson
local most_taken = 20000 -- permits that one script reads
local most_of_hold = 1000 -- permits of one hold; as mostAtOnce in semaphore.go

-- Whether the lease of a permit ends: that of a Java permit may not.
local function has_lease(ends) return tonumber(ends) < no_lease end

-- Refuses ids that are not those of permits: Redisson's have 16 bytes.
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

-- Returns the number of available permits; nil if nothing has set the number of permits.
local function free_permits(free)
    local value = redis.call('get', free)
    if value and value ~= '0' and not (value:match('^%-?[1-9]%d*$') and #value <= 11) then
        refuse(free, 'type string')
    end
    return tonumber(value or nil)
end

local function count_free(free) return tonumber(redis.call('get', free) or 0) end

local function add(free, n)
    if redis.call('get', free) then
        redis.call('incrby', free, n)
    end
end

-- How many permits the hold of a field has.
local function size_of(field)
    local at = field:find('+', 1, true)
    local n = at and field:match('^%+(%d+)$', at) -- a search for a text is faster than one for a pattern
    return n and math.max(1, math.min(tonumber(n), most_of_hold)) or 1
end

local function ids_of(field)
    local before, first = field:match('^([%x-]+:%-?%d+:)(%d+)%+%d+$')
    local ids = {field}
    -- At most most_of_hold.
    for i = 1, before and size_of(field) or 0 do
        ids[i] = before .. ms(tonumber(first) + i - 1)
    end
    return ids
end

-- Returns the time at which the first lease of the permits ends, nil if not all of them are taken; and how many are.
local function ends_of(taken, ids)
    local first, there = nil, 0
    -- At most most_of_hold.
    for _, id in ipairs(ids) do
        local ends = redis.call('zscore', taken, id)
        if ends then
            first, there = math.min(first or tonumber(ends), tonumber(ends)), there + 1
        end
    end
    return there == #ids and first or nil, there
end

-- Has the leases of all permits end at this time; returns how many of them had not been taken. It is one command, so
-- that all permits have the new lease or none.
local function lease_until(taken, ids, ends)
    local all = {}
    -- At most most_of_hold.
    for i, id in ipairs(ids) do
        all[2 * i - 1], all[2 * i] = ms(ends), id
    end
    return redis.call('zadd', taken, unpack(all))
end

-- Takes available permits, all or none; their leases end at this time. The counter may have an expiry, which Redisson's
-- expire() sets. The permits then expire with it. This is set twice: the first time does nothing if no permit is taken,
-- but fails before anything has changed.
local function take_permits(free, taken, ids, ends)
    local pttl = redis.call('pttl', free)
    if pttl > 0 then
        redis.call('pexpire', taken, pttl)
    end
    redis.call('incrby', free, -#ids)
    local done, added = pcall(lease_until, taken, ids, ends)
    if added ~= #ids then
        redis.call('incrby', free, #ids - (tonumber(added) or 0))
    end
    if not done then
        error(added, 0)
    end
    if pttl > 0 then
        redis.call('pexpire', taken, pttl)
    end
end

-- Returns those of the permits that are taken to the counter, and how many these were. there is their number as the
-- script has just read it; ids may name a permit twice. The first write changes nothing. It needs no memory, and after
-- it Redis accepts the next ones even if memory is short. And if the user may not remove permits, it fails before the
-- counter has changed. If the user may not change the counter, no permit has been removed.
local function return_permits(free, taken, ids, there)
    if there == 0 then
        return 0
    end
    redis.call('zrem', taken, '')
    add(free, there)
    local removed = in_parts('zrem', taken, ids)
    if removed ~= there then
        add(free, removed - there)
    end
    return removed
end

-- Publishes the number of available permits, if there are any, and returns what announce_release returns. Java waiters
-- take the message as a number of permits to wait for, and fail if it is negative.
local function announce_free(free, channel, how, answer)
    local n = count_free(free)
    return n > 0 and announce_release(how, channel, ms(n), answer) or 0
end

-- Returns permits whose lease has expired to the counter, at most a thousand; returns their ids. It must not write if
-- no permit has expired: after its first write a script could take a permit although memory is short.
local function drop_expired(free, taken, now)
    local expired = redis.call('zrangebyscore', taken, '-inf', ms(now), 'limit', 0, 1000)
    check_ids(taken, expired)
    return_permits(free, taken, expired, #expired)
    return expired
end
