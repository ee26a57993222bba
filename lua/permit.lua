-- Prelude of the scripts that grant permits of a semaphore to waiters: what grant.lua is for locks. It takes the place of grant.lua in
-- the scripts that use permits.lua.
--
-- Defines  grant(taken, waiter, free, channel, how)    grants a permit, of which one is free; returns whether the waiter heard of
--          it on its channel. The answer nil says that this user can grant nothing.
-- Defines  still_held(taken, id)                       whether a permit is taken, and its lease not over.

local function grant(taken, waiter, free, channel, how)
    local lease = granted_lease(waiter)
    if not pcall(take_permit, free, taken, waiter.field, now_ms() + lease) then
        return nil -- no memory
    end
    local heard = tell_granted(waiter, lease, 0, channel, how)
    if not heard then
        redis.call('zrem', taken, waiter.field)
        add(free, 1)
    end
    return heard
end

local function still_held(taken, id) return tonumber(redis.call('zscore', taken, id) or 0) > now_ms() end
