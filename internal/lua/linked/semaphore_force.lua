local place_pattern = '^(%a+) (%d+) (%d) (%d+) (%S+) ?(%d*)$'
local grant_format = 'grant %s %s %s %s'
local provisional = 5000
local function refuse(key, what)
    local n = 0
    for i = 1, #KEYS do
        n = KEYS[i] == key and i or n
    end
    error({err = 'NOTALOCK ' .. n .. ' ' .. what}, 0)
end

local function is_hold(field, value)
    local client, more = field:match('^(%x+%-%x+%-%x+%-%x+%-%x+):%-?%d+(.*)$')
    return client and #client == 36 and (more == '' or more:sub(1, 1) == ':') and
        #value < 10 and value:match('^[1-9]%d*$')
end

local function is_relocks(field)
    return field:find('^:%-?%d+:%d+$', 37) or field:find('^:%-?%d+:%d+:write$', 37)
end

local function answer(script, types)
    local done, result = pcall(script)
    if done and type(result) == 'table' and type(result[3]) == 'number' then
        local more = result[4] and ' ' .. table.concat(result, ' ', 4) or ''
        return string.format('%.0f %.0f %.0f', result[1], result[2], result[3]) .. more
    elseif done then
        return result
    end
    local text = type(result) == 'table' and result.err or tostring(result)
    if text:find('WRONGTYPE ', 1, true) then
        text = 'NOTALOCK 0 type ?'
        for n, key in ipairs(KEYS) do
            local found = redis.pcall('type', key).ok
            if found and found ~= 'none' and found ~= types[n] then
                text = 'NOTALOCK ' .. n .. ' type ' .. found
                break
            end
        end
    end
    return {err = text:find('^%u+ ') and text or 'ERR ' .. text}
end

local in_both_ways = 'publish+spublish'

local function announce(how, channel, message, answer)
    if how == in_both_ways then
        local plain = tonumber(redis.pcall('publish', channel, message))
        local sharded = tonumber(redis.pcall('spublish', channel, message))
        local received = math.max(plain or 0, sharded or 0)
        return received, received > 0 or plain ~= nil and sharded ~= nil
    end
    local received = answer or redis.pcall(how, channel, message)
    if how == 'spublish' and type(received) ~= 'number' then
        received = redis.pcall('publish', channel, message)
    end
    local may = type(received) == 'number'
    return may and received or 0, may
end

local function announce_release(how, channel, message, answer)
    local received = announce(how, channel, message, answer)
    local known = received > 0 and how ~= 'spublish' and redis.pcall('pubsub', 'numsub', channel)[2]
    if known and how == in_both_ways then
        known = math.max(known, redis.pcall('pubsub', 'shardnumsub', channel)[2] or received)
    end
    return known and math.min(received, known) or received
end
local function now_ms()
    local clock = redis.call('time')
    return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

local function ms(t) return string.format('%.0f', t) end
local most_taken = 20000 -- permits that one script reads
local most_of_hold = 1000 -- permits of one hold; as mostAtOnce in semaphore.go

local function check_ids(taken, ids)
    for _, id in ipairs(ids) do
        if #id ~= 16 and not is_hold(id, '1') then
            refuse(taken, 'type zset')
        end
    end
end

local function free_permits(free)
    local value = redis.call('get', free)
    if value and value ~= '0' and not (value:match('^%-?[1-9]%d*$') and #value <= 11) then
        refuse(free, 'type string')
    end
    return tonumber(value or nil)
end

local function count_free(free) return tonumber(redis.call('get', free) or 0) end

local function add(free, n)
    if redis.call('get', free) then
        redis.call('incrby', free, n)
    end
end

local function size_of(field)
    local at = field:find('+', 1, true)
    local n = at and field:match('^%+(%d+)$', at) -- a search for a text is faster than one for a pattern
    return n and math.max(1, math.min(tonumber(n), most_of_hold)) or 1
end

local function ids_of(field)
    local before, first = field:match('^([%x-]+:%-?%d+:)(%d+)%+%d+$')
    local ids = {field}
    for i = 1, before and size_of(field) or 0 do
        ids[i] = before .. ms(tonumber(first) + i - 1)
    end
    return ids
end

local function lease_until(taken, ids, ends)
    local all = {}
    for i, id in ipairs(ids) do
        all[2 * i - 1], all[2 * i] = ms(ends), id
    end
    return redis.pcall('zadd', taken, unpack(all))
end

local function take_permits(free, taken, ids, ends)
    local pttl = redis.call('pttl', free)
    if pttl > 0 then
        redis.call('pexpire', taken, pttl)
    end
    redis.call('incrby', free, -#ids)
    local added = lease_until(taken, ids, ends)
    if added ~= #ids then
        redis.call('incrby', free, #ids - (tonumber(added) or 0))
    end
    if type(added) == 'table' then
        error(added, 0)
    end
    if pttl > 0 then
        redis.call('pexpire', taken, pttl)
    end
end

local function return_permits(free, taken, ids, there)
    if there == 0 then
        return 0
    end
    redis.call('zrem', taken, '')
    add(free, there)
    local removed = 0
    for from = 1, #ids, 1000 do -- a call in Lua may have some thousand arguments at most
        removed = removed + redis.call('zrem', taken, unpack(ids, from, math.min(from + 999, #ids)))
    end
    if removed ~= there then
        add(free, removed - there)
    end
    return removed
end

local function announce_free(free, channel, how, answer)
    local n = count_free(free)
    return n > 0 and announce_release(how, channel, ms(n), answer) or 0
end

local function client_of(field) return field:sub(1, 36) end

local may_ask = true -- for the number of subscribers, as far as this run has tried

local function subscribers(channels, how)
    local found = {}
    if how == in_both_ways then
        local plain, sharded = subscribers(channels, 'publish'), subscribers(channels, 'spublish')
        for _, channel in ipairs(channels) do
            local n = math.max(plain[channel] or 0, sharded[channel] or 0)
            found[channel] = (n > 0 or plain[channel] and sharded[channel]) and n or nil
        end
        return found
    end
    for from = 1, #channels, 1000 do
        local n = redis.pcall('pubsub', how == 'spublish' and 'shardnumsub' or 'numsub',
            unpack(channels, from, math.min(from + 999, #channels)))
        may_ask = not n.err
        for i = 1, #n, 2 do
            found[n[i]] = n[i + 1]
        end
    end
    return found
end

local function tell_granted(waiter, lease, token, channel, how)
    if waiter.delivery == 'poll' then
        return true
    end
    local grant = string.format(grant_format, waiter.field, waiter.asked, ms(lease), ms(token))
    local heard, may
    if how == in_both_ways then
        heard, may = announce(how, channel, grant)
    else
        heard = redis.pcall(how, channel, grant)
        may = type(heard) == 'number'
    end
    if not may then
        return nil
    elseif heard > 0 and how == 'publish' and not may_ask then
        heard = heard - (tonumber(redis.pcall('publish', channel .. ':nobody', '')) or 0)
    end
    return heard > 0
end
local function with_clients(reply, fields)
    local seen = {}
    for _, field in ipairs(fields) do
        local client = is_relocks(field) and client_of(field)
        if client and not seen[client] then
            seen[client] = true
            reply[#reply + 1] = client
        end
    end
    return reply
end
local most_passed = 1000 -- permits that one script grants, or more if the last grant is for several; the next one

local function still_held(taken, field)
    return tonumber(redis.call('zscore', taken, ids_of(field)[1]) or 0) > now_ms()
end

local function grant(taken, waiter, free, channel, how)
    local lease, ids = waiter.lease, ids_of(waiter.field)
    if still_held(taken, waiter.field) then
        return false
    elseif not pcall(take_permits, free, taken, ids, now_ms() + lease) then
        return nil -- for example, Redis has no memory left
    end
    local heard = tell_granted(waiter, lease, 0, channel, how)
    if not heard then
        pcall(return_permits, free, taken, ids, #ids) -- else they expire
    end
    return heard
end

local function room_of(taken, free)
    return {taken = taken, available = count_free(free), left = most_passed}
end

local function fits(waiter, room)
    local n = size_of(waiter.field)
    if room.available >= n then
        return 'now'
    end
    room.total = room.total or room.available + redis.call('zcard', room.taken)
    return room.total < n and 'never' or 'later'
end

local function goes_on(room, waiter)
    local n = size_of(waiter.field)
    room.available, room.left = room.available - n, room.left - n
    return room.available > 0 and room.left > 0
end
local longest_line = 25000 -- clients that a script iterates over

local function grants_to(channel, p) return channel .. ':' .. p.client end

local function parse_place(text, client)
    local delivery, lease, fenced, asked, field, since = text:match(place_pattern)
    if not delivery or #lease > 15 then
        return nil -- the text is not that of a place
    end
    return {delivery = delivery, lease = tonumber(lease), fenced = fenced, asked = asked, field = field, since = since,
        client = client}
end

local function open_line(lock, order, waits, field)
    local client = client_of(field)
    local head = redis.call('hmget', waits, client, 'shared')
    local mine = head[1] and redis.call('zscore', order, client) and parse_place(head[1], client)
    return {lock = lock, order = order, waits = waits, size = redis.call('zcard', order), shared = tonumber(head[2] or nil),
        mine = mine}
end

local function in_parts(list, run)
    for from = 1, #list, 1000 do
        run(unpack(list, from, math.min(from + 999, #list)))
    end
end

local function remove(line, clients)
    in_parts(clients, function(...)
        line.size = line.size - redis.call('zrem', line.order, ...)
        redis.call('hdel', line.waits, ...)
    end)
end

local function settle(line)
    if line.size == 0 then
        redis.call('hdel', line.waits, 'shared', 'kept')
    end
end

local function places_of(line)
    local clients, places, number, size, after = {}, {}, 0, 1, '-inf'
    local read = 0
    return function()
        number = number + 1
        if number > #clients and read < longest_line then
            local some = redis.call('zrangebyscore', line.order, after, '+inf', 'withscores', 'limit', 0, size)
            clients, places, number, size = {}, {}, 1, math.min(8 * size, 1000)
            for i = 1, #some, 2 do
                clients[#clients + 1], after = some[i], '(' .. some[i + 1]
            end
            read = read + #clients
            local texts, together = #clients > 0 and redis.call('hmget', line.waits, unpack(clients)), {}
            for i, client in ipairs(clients) do
                local p = texts[i] and parse_place(texts[i], client)
                if p then
                    places[i], p.together = p, together
                    together[#together + 1] = p
                end
            end
        end
        return clients[number], places[number]
    end
end
local function is_reachable(p, channel, how)
    if p.delivery == 'poll' then
        return true
    elseif p.reachable == nil then
        local channels = {}
        for i, q in ipairs(p.together) do
            channels[i] = grants_to(channel, q)
        end
        local counts = subscribers(channels, how)
        for i, q in ipairs(p.together) do
            q.reachable = counts[channels[i]] ~= 0
        end
    end
    return p.reachable
end

local function keeps_for(line, p, channel, how)
    local now, half, request = now_ms(), math.max(p.lease, provisional) / 2, p.field .. ' ' .. p.asked .. ' '
    local kept, since, told = redis.call('hget', line.waits, 'kept') or '', nil, nil
    if kept:sub(1, #request) == request then
        since, told = kept:match('^(%d+) ?(%d*)$', #request + 1)
        since, told = tonumber(since), tonumber(told)
    end
    if not since or now < (told or since) then -- the first time since that request, or the clock was set back
        redis.call('hset', line.waits, 'kept', request .. ms(now))
        return true
    elseif not told and now - since < half then
        return true
    end
    announce(how, grants_to(channel, p), 'free')
    if not told then
        redis.call('hset', line.waits, 'kept', request .. ms(since) .. ' ' .. ms(now))
    end
    return not told or now - told < half
end

local function pass_on(lock, line, tokens, channel, how, asker)
    local room, gone, to, is_left = room_of(lock, tokens), {}, nil, true
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
    remove(line, gone)
    if is_left then
        settle(line)
    end
    return to
end

local function pass_permits(free, taken, line, channel, how, asker)
    return count_free(free) > 0 and pass_on(taken, line, free, channel, how, asker) or nil
end

local function offer(free, taken, line, channel, how)
    pass_permits(free, taken, line, channel, how, nil)
    announce_free(free, channel, how)
end
local function seen_from(n)
    if #ARGV < n then
        return nil
    end
    local seen = {}
    for i = n, #ARGV do
        seen[ARGV[i]] = true
    end
    return seen
end

return answer(function()

local free, taken = KEYS[1], KEYS[2]
local channel, how = ARGV[1], ARGV[2]

local function forced(seen)
    local now = now_ms()
    if not seen then
        return redis.call('zrangebyscore', taken, '-inf', '+inf', 'limit', 0, most_taken),
            redis.call('zcount', taken, '(' .. ms(now), '+inf')
    end
    local ids, held, looked = {}, 0, 0
    for field in pairs(seen) do
        if looked >= most_taken then
            break
        end
        for _, id in ipairs(ids_of(field)) do
            looked = looked + 1
            local ends = redis.call('zscore', taken, id)
            if ends then
                ids[#ids + 1], held = id, held + (tonumber(ends) > now and 1 or 0)
            end
        end
    end
    return ids, held
end

free_permits(free)
local ids, held = forced(seen_from(3))
check_ids(taken, ids)
if #ids == 0 then
    return {0, 0, 0}
end
local line = open_line(free, KEYS[3], KEYS[4], '') -- before the first write, because it may refuse
return_permits(free, taken, ids, #ids)
offer(free, taken, line, channel, how)
return with_clients({held > 0 and 1 or 0, #ids == most_taken and 1 or 0, 0}, ids)

end, {'string', 'zset', 'zset', 'hash'})
