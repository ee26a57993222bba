-- Prelude of the scripts that pass on permits of a semaphore along the line: see line.lua.

-- Grants available permits to the line, until it is the turn of asker, which must take its own, or until the next place
-- wants more permits than are available. Returns the same as pass_on.
local function pass_permits(free, taken, line, channel, how, asker)
    return count_free(free) > 0 and pass_on(taken, line, free, channel, how, asker) or nil
end

-- Whether the next place that a semaphore of total permits can grant wants several of them. Then no newcomer takes
-- permits ahead of the line: such a place would never see enough of them.
local function wants_several(line, total, channel, how)
    -- At most longest_line.
    for _, p in places_of(line) do
        if p and size_of(p.field) <= total and is_reachable(p, channel, how) then
            return size_of(p.field) > 1
        end
    end
    return false
end

-- Grants available permits to the line, and announces those that are left to all clients that have no place, for
-- example Java services.
local function offer(free, taken, line, channel, how)
    pass_permits(free, taken, line, channel, how, nil)
    announce_free(free, channel, how)
end
