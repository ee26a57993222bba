-- Prelude of the scripts that free a lock, or find it free: how the lock passes along the line, the wait queue in
-- Redis. See line.lua.
--
-- Rules: a message is sent at once, although the line is changed in memory, because the answer to the message decides
-- which places stay. So a script closes the line after it has passed on the lock.
--
-- For scripts:
-- Defines  plain_waits(line, channel, how)               whether one of the first places is that of a plain lock and
--          may be granted.
-- Defines  note_beside(line, channel, how)               makes the next release of the plain lock look at the line,
--          if anybody is subscribed to channel, which is that of the other lock of the name, and has no place. It
--          writes at once, because its script may not close the line.
-- Defines  announce_beside(channel, how)                 publishes on the channel of the other lock of the name that
--          the lock is free; returns how many of those that received it are subscribed to this channel.
-- Defines  pass_on(lock, line, tokens, channel, how, asker)  grants the lock, which is free; returns the client that
--          was granted it, or nil. If that is asker, the script must acquire the lock for it, and no message is sent.
--          The record is written and the messages are sent at once. line.short is set if the next place wants more
--          permits of a semaphore than are available: then nobody may acquire them, not even ahead of the line.
-- Defines  passed(line, to)                              the number that the answer to a release has for the
--          hand-off: 1 if pass_on has returned a client, to; 2 if this user may not publish to the next one; else 0.
--          line may be nil.
-- Defines  release_to_all(line, channel, how, message, window, always)  publishes that the lock is free to clients
--          that have no place: once in each hand-off window, or always if any of them is subscribed on this server;
--          returns the number of connections that received it.
-- Defines  leave_and_pass(lock, key, field, late, pass)  ends the wait and the hold of field in the line, if there is
--          a line or late is set, and has pass(line) pass on the lock: that function returns the line as it is then,
--          and the client that was granted the lock. Returns the same number as passed.
-- Defines  try(step)                                     what step returns; nil if it fails.
-- Defines  subscription_lost(field, delivery, channel, how)  whether the client of field believes that it is
--          subscribed to its channel, and this server does not know the subscription.
-- For this file:
-- Defines  is_reachable(p, channel, how)                 whether the client of p learns of a grant: it is subscribed,
--          or it polls.

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
    local suspects = {} -- the places that are passed over; also those that fit never
    local to, at = nil, line.last -- at: the number that the loop has reached
    -- At most longest_line.
    for number = line.first, line.last do
        local p, granted = place_at(line, number), false
        local fit = p and p.state ~= 'suspect' and fits(p, lock, tokens)
        if p and p.client == asker and fit == 'now' then
            to, at, line.mine = asker, number, nil
            drop_field(line, asker)
            break
        elseif fit == 'later' and is_reachable(p, channel, how) then
            line.short, at = true, number - 1
            break
        elseif p and fit ~= 'now' and is_reachable(p, channel, how) then
            suspects[#suspects + 1] = p
        elseif fit == 'now' and is_reachable(p, channel, how) then
            granted = grant(lock, p, tokens, grants_to(channel, p), how)
            if granted == nil then -- nothing can be granted: all places stay
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
    -- The places that were passed over move to the numbers in front of the next place, so that the next run has no
    -- gap to iterate over. The place that was granted the lock keeps its number, because it may come back.
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
            if p.state == 'suspect' then
                announce(how, grants_to(channel, p), 'free')
            end
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

-- Places that poll do not count: one of them may belong to a process that has died, which would go unnoticed for
-- minutes.
local function plain_waits(line, channel, how)
    -- At most near_head.
    for number = line.first, math.min(line.last, line.first + near_head - 1) do
        local p = place_at(line, number)
        if p and not of_writer(p.field) and p.state ~= 'suspect' and p.delivery == 'push' and
            is_reachable(p, channel, how) then
            return true
        end
    end
    return false
end

-- The release of a plain lock whose line does not exist takes a short cut, which publishes on its own channel only. If
-- the key of the line exists, it runs the whole script.
local function note_beside(line, channel, how)
    if not line.exists and (listeners(channel, how) or 0) > 0 then
        -- If Redis has no memory left, the caller notices the release when it asks again.
        redis.pcall('hset', line.key, 'beside', 1, 'shared', ms(now_ms()))
        redis.pcall('pexpire', line.key, tombstone_life)
    end
end

-- Every message wakes all clients of this package. Both locks of Redisson know the message '0'.
local function announce_beside(channel, how)
    local other = channel_of(channel, not channel:find('^redisson_rwlock:'))
    local known = other ~= channel and listeners(other, how) or 0
    return known > 0 and math.min(announce(how, other, '0'), known) or 0
end

-- The number of subscribers is not known if a replica may have some, or if the user may not ask. A hand-off window that
-- began in the future has ended: the clock was set back, or another server has taken over.
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
    if not may then -- the user may not publish, so no client was told
        return 0
    end
    local kept = false -- whether a suspect place stays; its process may be paused
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
            line, to = pass(line)
        end)
        answer = passed(line, to)
        close_line(line)
    end)
    return answer
end
