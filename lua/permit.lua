-- Prelude of the scripts that grant permits of a semaphore to waiters, as grant.lua grants locks. It replaces
-- grant.lua in the scripts that use permits.lua.
--
-- Defines  grant(taken, waiter, free, channel, how)  grants the permits that the waiter wants, which are available, and
--          publishes that on its channel; returns whether the waiter received it. nil: this user cannot grant anything.
-- Defines  still_held(taken, field)                  whether the permit of a field is taken and its lease has not
--          expired; of several permits the first one.
-- Defines  fits(waiter, taken, free)                 'now' if as many permits are available as the waiter wants;
--          'later' if it has to wait for more, and nobody behind it may have those that are available; 'never' if the
--          semaphore has fewer permits by now: then the waiter is passed over, and keeps its place.

local function grant(taken, waiter, free, channel, how)
    local lease, ids = granted_lease(waiter), ids_of(waiter.field)
    if not pcall(take_permits, free, taken, ids, now_ms() + lease) then
        return nil -- Redis has no memory left
    end
    local heard = tell_granted(waiter, lease, 0, channel, how)
    if not heard then
        return_permits(free, taken, ids)
    end
    return heard
end

local function still_held(taken, field)
    return tonumber(redis.call('zscore', taken, ids_of(field)[1]) or 0) > now_ms()
end

local function fits(waiter, taken, free)
    local n = size_of(waiter.field)
    if n == 1 then
        return 'now' -- scripts grant only while a permit is available
    end
    local available = count_free(free)
    if available >= n then
        return 'now'
    end
    return available + redis.call('zcard', taken) < n and 'never' or 'later'
end
