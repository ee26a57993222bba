-- Prelude of the scripts that pass on permits of a semaphore along the line, the wait queue in Redis: see line.lua.
--
-- A script that finds available permits grants them to the line, one after the other. It announces the permits that
-- are left to all clients that have no place, for example Java services.
--
-- Defines  pass_permits(free, taken, line, channel, how, asker)  grants available permits to the line, which may be
--          nil, until it is the turn of asker, which must take its own, or until the next place wants more permits than
--          are available: then line.short is set. Returns asker, or the client that was granted permits last, or nil.
-- Defines  wants_several(line, total, channel, how)  whether the next place that a semaphore of total permits can grant
--          wants several of them. Then no newcomer takes permits ahead of the line: such a place would never see enough
--          of them.
-- Defines  forget_expired(line, expired, id)       removes the places of permits whose leases have expired, except
--          those of id and of the permit that was granted last.
-- Defines  offer(free, taken, line, channel, how)  grants available permits to the line, closes it, and announces the
--          permits that are left.

local function pass_permits(free, taken, line, channel, how, asker)
    return line and line.exists and count_free(free) > 0 and pass_on(taken, line, free, channel, how, asker) or nil
end

local function wants_several(line, total, channel, how)
    -- At most longest_line.
    for _, _, p in places_of(line) do
        if p and p.state ~= 'suspect' and size_of(p.field) <= total and is_reachable(p, channel, how) then
            return size_of(p.field) > 1
        end
    end
    return false
end

-- A place that was granted a permit stays until the permit is released, or until this function removes it. The place of
-- the last grant may come back: see note_expired_grant.
local function forget_expired(line, expired, id)
    local kept = line.granted and ids_of(line.granted)[1]
    id = ids_of(id)[1]
    -- At most 1000: see drop_expired.
    for _, other in ipairs(expired) do
        local p = other ~= id and other ~= kept and place_of(line, client_of(other))
        if p and ids_of(p.field)[1] == other and not is_enqueued(line, p) then
            drop_field(line, p.client)
        end
    end
end

local function offer(free, taken, line, channel, how)
    pass_permits(free, taken, line, channel, how, nil)
    if line and (line.exists or next(line.changes)) then
        close_line(line)
    end
    announce_free(free, channel, how)
end
