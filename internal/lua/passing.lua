-- Prelude of the scripts that free a lock, or find it free: how the lock passes along the line. See line.lua.

-- Whether the client of field believes that it is subscribed to its channel, and this server does not know the
-- subscription.
local function subscription_lost(field, delivery, channel, how)
    return delivery == 'push' and listeners(channel .. ':' .. client_of(field), how) == 0
end

-- Whether the client of a place from places_of learns of a grant: it is subscribed, or it polls. The places that were
-- read together are asked for together.
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

-- Whether permits of a semaphore are kept for p, which wants more of them than are available. They are kept for as long
-- as a grant would be that its client does not use: the process may be paused, or, if it polls, may have died. A client
-- that rarely asks is told halfway, and every request has another number. The second half begins when the client is
-- told, however late that is: no script may have run before. So kept has the field, the number of the request, epoch ms
-- since when permits are kept, and epoch ms at which the client was told, if it was.
local function keeps_for(line, p, channel, how)
    local now, half, request = now_ms(), math.max(p.lease, provisional) / 2, p.field .. ' ' .. p.asked .. ' '
    local kept, since, told = redis.call('hget', line.waits, 'kept') or '', nil, nil
    if kept:sub(1, #request) == request then
        since, told = kept:match('^(%d+) ?(%d*)$', #request + 1)
        since, told = tonumber(since), tonumber(told)
    end
    if not since or now < (told or since) then -- the first time since that request, or the clock was set back
        redis.pcall('hset', line.waits, 'kept', request .. ms(now)) -- memory may be short
        return true
    elseif not told and now - since < half then
        return true
    end
    announce(how, grants_to(channel, p), 'free')
    if not told then
        redis.pcall('hset', line.waits, 'kept', request .. ms(since) .. ' ' .. ms(now))
    end
    return not told or now - told < half
end

-- Grants the lock, which is free; returns the client that was granted it, or nil. Of a semaphore it grants permits to
-- one place after the other, and returns the last one. If that is asker, the script must acquire the lock for it, and
-- no message is sent. line.to is the field that was granted it. line.short is set if the next place wants more permits
-- of a semaphore than are available: then nobody may acquire them, not even ahead of the line.
local function pass_on(lock, line, tokens, channel, how, asker)
    local room, gone, to, is_left = room_of(lock, tokens), {}, nil, true
    -- At most longest_line.
    for client, p in places_of(line) do
        local fit = p and fits(p, room)
        local stays = fit == 'never'
        if fit and client ~= asker and not is_reachable(p, channel, how) then
            stays = false
        elseif fit == 'later' and (client == asker or keeps_for(line, p, channel, how)) then
            line.short, is_left, stays = true, false, true
        elseif fit == 'later' then -- it has not asked for what was kept
            tell_granted(p, 0, 0, grants_to(channel, p), how)
        elseif fit == 'now' and client == asker then
            to, line.mine, is_left = asker, nil, false
        elseif fit == 'now' then
            local granted = grant(lock, p, tokens, grants_to(channel, p), how)
            if granted == nil then -- nothing can be granted: this place stays, and all behind it
                line.mute, is_left, stays = true, false, true
                announce(how, grants_to(channel, p), 'free')
            elseif granted then
                to, is_left, line.to = client, goes_on(room, p), p.field
            end
        end
        if not stays then
            gone[#gone + 1] = client
        end
        if not is_left then
            break
        end
    end
    if #gone > 0 and not to then -- a script that has removed something would acquire the lock although memory is short
        redis.call('zadd', line.order, 'xx', 0, '')
    end
    remove(line, gone)
    if is_left then
        settle(line)
    end
    return to
end

-- Publishes that the lock is free to clients that have no place: once in each hand-off window, or always if any of them
-- is subscribed on this server; returns the number of connections that received it. That is not known if a replica may
-- have some, or if the user may not ask. A hand-off window that began in the future has ended: the clock was set back,
-- or another server has taken over.
local function release_to_all(line, channel, how, message, window, always)
    local now, shared = now_ms(), line.shared or 0
    local due = now - shared >= window or shared > now
    if line.size == 0 or not due and not always then
        return 0
    end
    local known = listeners(channel, how)
    if due then
        redis.pcall('hset', line.waits, 'shared', ms(now))
        pcall(drop_tombstones, line.waits, now)
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
    local gone = {}
    -- At most longest_line.
    for client, p in places_of(line) do
        if p and is_reachable(p, channel, how) then
            announce(how, grants_to(channel, p), 'free')
            break
        end
        gone[#gone + 1] = client
    end
    remove(line, gone)
    settle(line)
    return known or 1
end

-- Ends the wait and the hold of field in the line, and has pass(line) pass on the lock: that function returns the
-- client that was granted the lock, or nil. Returns what the answer to a release says of the hand-off: 1 if there is such
-- a client, 2 if this user may not publish to the next one, else 0. An error in the line must not stop a release.
local function leave_and_pass(lock, order, waits, field, late, pass)
    local line, to = nil, nil
    try(function()
        line = open_line(lock, order, waits, field)
        leave(line, field)
        if late then
            bury(line.waits, field)
        end
        to = pass(line)
    end)
    return to and 1 or line and line.mute and 2 or 0
end
