-- Prelude of the scripts that pass on permits of a semaphore along the line, the wait queue in Redis: see line.lua.
--
-- A script that finds available permits grants them to the line, one after the other. It announces the permits that
-- are left to all clients that have no place, for example Java services.
--
-- Defines  pass_permits(free, taken, line, channel, how, asker)  grants available permits to the line, until it is the turn of asker, which must take its own, or until the next place wants more permits than
--          are available: then line.short is set. Returns asker, or the client that was granted permits last, or nil.
-- Defines  wants_several(line, total, channel, how)  whether the next place that a semaphore of total permits can grant
--          wants several of them. Then no newcomer takes permits ahead of the line: such a place would never see enough
--          of them.
-- Defines  offer(free, taken, line, channel, how)  grants available permits to the line, and announces those that
--          are left.

local function pass_permits(free, taken, line, channel, how, asker)
    return count_free(free) > 0 and pass_on(taken, line, free, channel, how, asker) or nil
end

local function wants_several(line, total, channel, how)
    -- At most longest_line.
    for _, p in places_of(line) do
        if p and size_of(p.field) <= total and is_reachable(p, channel, how) then
            return size_of(p.field) > 1
        end
    end
    return false
end

local function offer(free, taken, line, channel, how)
    pass_permits(free, taken, line, channel, how, nil)
    announce_free(free, channel, how)
end
