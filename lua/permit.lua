-- Prelude of the scripts that grant permits of a semaphore to waiters, as grant.lua grants locks. It replaces
-- grant.lua in the scripts that use permits.lua.
--
-- Defines  grant(taken, waiter, free, channel, how)  grants one of the available permits, and publishes that on the
--          channel of the waiter; returns whether the waiter received it. nil: this user cannot grant anything.
-- Defines  still_held(taken, id)                     whether the permit is taken and its lease has not expired.

local function grant(taken, waiter, free, channel, how)
    local lease = granted_lease(waiter)
    if not pcall(take_permit, free, taken, waiter.field, now_ms() + lease) then
        return nil -- Redis has no memory left
    end
    local heard = tell_granted(waiter, lease, 0, channel, how)
    if not heard then
        redis.call('zrem', taken, waiter.field)
        add(free, 1)
    end
    return heard
end

local function still_held(taken, id) return tonumber(redis.call('zscore', taken, id) or 0) > now_ms() end
