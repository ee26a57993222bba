-- Prelude of the scripts of semaphores with a line: it grants permits to waiters, as grant.lua, which it replaces
-- there, grants locks.

local most_passed = 1000 -- permits that one script grants, or more if the last grant is for several

-- Grants the permits that the waiter wants, which are available, and publishes that on its channel; returns whether the
-- waiter received it. nil: this user cannot grant anything.
local function grant(taken, waiter, free, channel, how)
    local lease, ids = waiter.lease, ids_of(waiter.field)
    if not pcall(take_permits, free, taken, ids, now_ms() + lease) then
        return nil -- for example, Redis has no memory left
    end
    local heard = tell_granted(waiter, lease, 0, channel, how)
    if not heard then
        pcall(return_permits, free, taken, ids, #ids) -- else they expire
    end
    return heard
end

-- Returns, for one run of pass_on, how many permits are available, and how many it may still grant. The total is read
-- once, and only if it is needed: a grant does not change it.
local function room_of(taken, free)
    return {taken = taken, available = count_free(free), left = most_passed}
end

-- Returns 'now' if as many permits are available as the waiter wants; 'later' if it has to wait for more, and nobody
-- behind it may have those that are available, as long as keeps_for of passing.lua allows; 'never' if the semaphore has
-- fewer permits by now: then the waiter is passed over, and keeps its place.
local function fits(waiter, room)
    local n = size_of(waiter.field)
    if room.available >= n then
        return 'now'
    end
    room.total = room.total or room.available + redis.call('zcard', room.taken)
    return room.total < n and 'never' or 'later'
end

-- Notes that the waiter was granted its permits; returns whether others may be granted some.
local function goes_on(room, waiter)
    local n = size_of(waiter.field)
    room.available, room.left = room.available - n, room.left - n
    return room.available > 0 and room.left > 0
end
