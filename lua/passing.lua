-- Prelude of the scripts that free a lock, or find it free: how it passes along the line. See line.lua.
--
-- Rules: a message is sent at once, and the line is changed in memory, because who hears the message says which places stay. So a script
-- closes the line after it has passed on the lock.
--
-- For scripts:
-- Defines  plain_waits(line, channel, how)                     whether the first places have one of a plain lock that may be granted.
-- Defines  note_beside(line, channel, how)                     has the next release of the plain lock look at the line, where anybody
--          listens to channel, which is that of the other lock, and has no place. It writes that at once.
-- Defines  announce_beside(channel, how)                       says that the lock is free to those that listen to the channel of the
--          other lock; returns how many connections heard it.
-- Defines  pass_on(lock, line, tokens, channel, how, asker)    grants the lock, which is free; returns whose client got it:
--          asker, which must take it, needs no message.
-- Defines  passed(line, to)                                    what the answer to a release says: 1 where pass_on has returned
--          a client, to; 2 where this user may not tell the next one; else 0. line may be nil.
-- Defines  release_to_all(line, channel, how, message, window, always)   says that the lock is free to those that have no
--          place: once in a slice, or always if any of them hears this server; returns how many connections heard it.
-- Defines  leave_and_pass(lock, key, field, late, pass)     ends the wait and the hold of field in the line, where there is a line
--          or late is set, and has pass(line) pass on the lock: it returns the line as it is then, and whose client got the lock.
--          Returns what the answer to a release says.
-- Defines  try(step)                                           what step returns; nil where it fails.
-- Defines  subscription_lost(field, delivery, channel, how)    whether the client of field believes that it hears its channel
--          on this server, and does not.
-- For this file:
-- Defines  is_reachable(p, channel, how)                       whether the client of p hears of a grant.

local function subscription_lost(field, delivery, channel, how)
    return delivery == 'push' and listeners(channel .. ':' .. client_of(field), how) == 0
end

local function is_reachable(p, channel, how)
    return p.delivery == 'poll' or listeners(grants_to(channel, p), how) ~= 0
end

local function pass_on(lock, line, tokens, channel, how, asker)
    if line.granted and not still_held(lock, line.granted) then
        note_expired_grant(line)
    end
    local suspects, to, at = {}, nil, line.last -- suspects: places that are passed over; at: the number that was reached
    -- At most longest_line.
    for number = line.first, line.last do
        local p, granted = place_at(line, number), false
        if p and p.client == asker then
            to, at, line.mine = asker, number, nil
            drop_field(line, asker)
            break
        elseif p and p.state == 'suspect' and is_reachable(p, channel, how) then
            suspects[#suspects + 1] = p
        elseif p and p.state ~= 'suspect' and is_reachable(p, channel, how) then
            granted = grant(lock, p, tokens, grants_to(channel, p), how)
            if granted == nil then -- all stay
                line.mute = true
                -- At most longest_line.
                for _, q in ipairs(suspects) do
                    put_place(line, q)
                end
                announce(how, grants_to(channel, p), 'free')
                return nil
            elseif granted then
                to, at, line.granted = p.client, number, p.field
                set_field(line, 'granted', p.field)
                break
            end
        end
        if p and suspects[#suspects] ~= p then
            drop_field(line, p.client)
        end
        drop_field(line, ms(number))
    end
    -- The places that were passed over close up, so that the next run has no gap to look through. The place that was
    -- granted keeps its number: it may come back.
    local free = to and #suspects > 0 and at - 1 or at
    if to then
        drop_field(line, ms(at))
    end
    -- At most longest_line.
    for i, p in ipairs(suspects) do
        p.number = free - #suspects + i
        put_place(line, p)
    end
    line.first = free - #suspects + 1
    if not to then
        -- At most longest_line.
        for _, p in ipairs(suspects) do
            announce(how, grants_to(channel, p), 'free')
        end
    end
    return to
end

local function passed(line, to)
    if to then
        return 1
    end
    return line and line.mute and 2 or 0
end

-- A place that asks may be that of a process that has died: nobody would notice for minutes.
local function plain_waits(line, channel, how)
    -- At most near_head.
    for number = line.first, math.min(line.last, line.first + near_head - 1) do
        local p = place_at(line, number)
        if p and not of_writer(p.field) and p.state ~= 'suspect' and p.delivery == 'push' and is_reachable(p, channel, how) then
            return true
        end
    end
    return false
end

-- A plain lock whose line is empty is released by a short script, which tells only its own channel. It runs the whole script where
-- the key of the line exists.
local function note_beside(line, channel, how)
    if not line.exists and (listeners(channel, how) or 0) > 0 then
        -- Where there is no memory, the caller finds out when it asks again.
        redis.pcall('hset', line.key, 'beside', 1, 'shared', ms(now_ms()))
        redis.pcall('pexpire', line.key, tombstone_life)
    end
end

-- Every message wakes all clients of this package. '0' is one of both locks of Redisson.
local function announce_beside(channel, how)
    local other = channel_of(channel, not channel:find('^redisson_rwlock:'))
    return other ~= channel and (listeners(other, how) or 0) > 0 and announce(how, other, '0') or 0
end

-- The count of those that hear is not known where a replica may have some, or where the user may not ask. A slice that
-- began in the future is over: the clock was set back, or another server has taken over.
local function release_to_all(line, channel, how, message, window, always)
    local now = now_ms()
    local due = now - line.shared >= window or line.shared > now
    if not due and not always then
        return 0
    end
    local known, beside = listeners(channel, how), 0
    if due then
        set_field(line, 'shared', ms(now))
        beside = announce_beside(channel, how)
        if known == 0 and beside == 0 then
            local info = redis.pcall('info', 'replication')
            known = type(info) == 'string' and info:find('connected_slaves:0', 1, true) and 0
        end
    end
    if known == 0 and beside == 0 then
        return 0
    end
    local _, may = announce(how, channel, message)
    if not may then -- nobody was told
        return 0
    end
    local kept = false -- a late place: its process may be frozen
    -- At most longest_line.
    for number = line.first, line.last do
        local p = place_at(line, number)
        local told = p and is_reachable(p, channel, how)
        if told then
            announce(how, grants_to(channel, p), 'free')
            kept = true
            if p.state ~= 'suspect' then
                break
            end
        else
            if p then
                drop_field(line, p.client)
            end
            drop_field(line, ms(number))
            if not kept then
                line.first = number + 1
            end
        end
    end
    return math.max((known or 1) + beside, 1)
end

local function try(step)
    local done, result = pcall(step)
    return done and result or nil
end

-- Nothing that goes wrong in the line may stop a release.
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
            line, to = pass(line)
        end)
        answer = passed(line, to)
        close_line(line)
    end)
    return answer
end
