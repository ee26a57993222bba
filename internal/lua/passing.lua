-- Prelude of the scripts that free a lock, or find it free: how the lock passes along the line, the wait queue in
-- Redis. See line.lua.
--
-- Rules: a message is sent at once, although the line is changed in memory, because the answer to the message decides
-- which places stay. So a script closes the line after it has passed on the lock.
--
-- For scripts:
-- Defines  pass_on(lock, line, tokens, channel, how, asker)  grants the lock, which is free; returns the client that
--          was granted it, or nil. Of a semaphore it grants permits to one place after the other, and returns the last
--          one. If that is asker, the script must acquire the lock for it, and no message is sent. The record is
--          written and the messages are sent at once. line.to is the field that was granted it. line.short is set if the next place wants more permits of a
--          semaphore than are available: then nobody may acquire them, not even ahead of the line.
-- Defines  passed(line, to)                              the number that the answer to a release has for the
--          hand-off: 1 if pass_on has returned a client, to; 2 if this user may not publish to the next one; else 0.
--          line may be nil.
-- Defines  release_to_all(line, channel, how, message, window, always)  publishes that the lock is free to clients
--          that have no place: once in each hand-off window, or always if any of them is subscribed on this server;
--          returns the number of connections that received it.
-- Defines  leave_and_pass(lock, key, field, late, pass)  ends the wait and the hold of field in the line, if there is
--          a line or late is set, and has pass(line) pass on the lock: that function returns the client that was granted
--          the lock, or nil. Returns the same number as passed.
-- Defines  try(step)                                     what step returns; nil if it fails.
-- Defines  subscription_lost(field, delivery, channel, how)  whether the client of field believes that it is
--          subscribed to its channel, and this server does not know the subscription.
-- For this file, and permits.lua:
-- Defines  is_reachable(p, channel, how)                 whether the client of p learns of a grant: it is subscribed,
--          or it polls. p is from places_of.
-- Defines  keeps_for(line, p, channel, how)              whether permits of a semaphore are kept for p, which wants
--          more of them than are available.
-- Defines  close_up(line, stay, next_number)             sets line.first after a run that has passed over the places in
--          stay, and not reached next_number.

local function subscription_lost(field, delivery, channel, how)
    return delivery == 'push' and listeners(channel .. ':' .. client_of(field), how) == 0
end

-- The places that were read together are asked for together.
local function is_reachable(p, channel, how)
    if p.delivery == 'poll' then
        return true
    elseif p.reachable == nil then
        local channels = {}
        -- At most 1000: see places_of.
        for i, q in ipairs(p.together) do
            channels[i] = grants_to(channel, q)
        end
        local counts = subscribers(channels, how)
        -- At most 1000.
        for i, q in ipairs(p.together) do
            q.reachable = counts[channels[i]] ~= 0
        end
    end
    return p.reachable
end

-- Permits are kept from others for as long as a grant would be that its client does not use: the process may be paused,
-- or, if it polls, may have died. A client that rarely asks is told halfway, and every request has another number. The
-- second half begins when the client is told, however late that is: no script may have run before.
local function keeps_for(line, p, channel, how)
    local now, half, request = now_ms(), math.max(p.lease, provisional) / 2, p.field .. ' ' .. p.asked .. ' '
    local kept, since, told = redis.call('hget', line.key, 'kept') or '', nil, nil
    if kept:sub(1, #request) == request then
        since, told = kept:match('^(%d+) ?(%d*)$', #request + 1)
        since, told = tonumber(since), tonumber(told)
    end
    if not since or now < (told or since) then -- the first time since that request, or the clock was set back
        set_field(line, 'kept', request .. ms(now))
        return true
    elseif not told and now - since < half then
        return true
    end
    announce(how, grants_to(channel, p), 'free')
    if not told then
        set_field(line, 'kept', request .. ms(since) .. ' ' .. ms(now))
    end
    return not told or now - told < half
end

-- If places stay in front of one that was granted the lock, its number is missing then. They move to the numbers in
-- front of the next place, so that the next run has no gap to iterate over. Where many stay, they move once more
-- numbers are missing than places are there.
local function close_up(line, stay, next_number)
    line.first = #stay > 0 and stay[1].number or next_number
    local missing = next_number - line.first - #stay
    if missing == 0 or #stay > near_head and missing <= #stay then
        return
    end
    -- At most longest_line.
    for _, p in ipairs(stay) do
        drop_field(line, ms(p.number))
    end
    line.first = next_number - #stay
    -- At most longest_line.
    for i, p in ipairs(stay) do
        p.number = line.first + i - 1
        put_place(line, p)
    end
end

local function pass_on(lock, line, tokens, channel, how, asker)
    local room = room_of(lock, tokens)
    local stay = {} -- the places that are passed over: those that fit never
    local to, is_left, next_number = nil, true, line.last + 1
    -- At most longest_line.
    for number, client, p in places_of(line) do
        local fit = p and fits(p, room)
        if fit == 'now' and client == asker then
            to, is_left, line.mine = asker, false, nil
        elseif fit and not is_reachable(p, channel, how) then
            fit = nil
        elseif fit == 'later' and (client == asker or keeps_for(line, p, channel, how)) then
            line.short, next_number = true, number
            break
        elseif fit == 'later' then -- it has not asked for what was kept
            tell_granted(p, 0, 0, grants_to(channel, p), how)
        elseif fit == 'now' then
            local granted = grant(lock, p, tokens, grants_to(channel, p), how)
            if granted == nil then -- nothing can be granted: this place stays, and all behind it
                line.mute, is_left, next_number = true, false, number
                announce(how, grants_to(channel, p), 'free')
                break
            elseif granted then
                to, is_left, line.to = client, goes_on(room, p), p.field
                line.stays = not is_left
            end
        end
        if fit == 'never' then
            stay[#stay + 1] = p
        elseif client then
            drop_field(line, ms(number))
            if p then
                drop_field(line, client)
            end
        end
        if not is_left then
            next_number = number + 1
            break
        end
    end
    close_up(line, stay, next_number)
    return to
end

local function passed(line, to)
    if to then
        return 1
    end
    return line and line.mute and 2 or 0
end

-- The number of subscribers is not known if a replica may have some, or if the user may not ask. A hand-off window that
-- began in the future has ended: the clock was set back, or another server has taken over.
local function release_to_all(line, channel, how, message, window, always)
    local now = now_ms()
    local due = now - line.shared >= window or line.shared > now
    if not due and not always then
        return 0
    end
    local known = listeners(channel, how)
    if due then
        set_field(line, 'shared', ms(now))
        if known == 0 then
            local info = redis.pcall('info', 'replication')
            known = type(info) == 'string' and info:find('connected_slaves:0', 1, true) and 0
        end
    end
    if known == 0 then
        return 0
    end
    local _, may = announce(how, channel, message)
    if not may then -- the user may not publish, so no client was told
        return 0
    end
    -- At most longest_line.
    for number, client, p in places_of(line) do
        if p and is_reachable(p, channel, how) then
            announce(how, grants_to(channel, p), 'free')
            break
        elseif client then
            drop_field(line, ms(number))
            if p then
                drop_field(line, client)
            end
        end
        line.first = number + 1
    end
    return known or 1
end

local function try(step)
    local done, result = pcall(step)
    return done and result or nil
end

-- An error in the line must not stop a release.
local function leave_and_pass(lock, key, field, late, pass)
    local answer = 0
    try(function()
        local line, to = open_line(lock, key, field), nil
        if not (late or line.exists or line.mine) then
            return
        end
        try(function()
            leave(line, field)
            if late then
                end_field(line, field)
            end
            to = pass(line)
        end)
        answer = passed(line, to)
        close_line(line)
    end)
    return answer
end
