
local deleted, received -- the answers of Redis

local in_both_ways = 'publish+spublish'

if not ARGV[5] and ARGV[3] ~= in_both_ways and redis.pcall('exists', KEYS[2], KEYS[3]) == 0 then
    deleted = redis.pcall('hdel', KEYS[1], ARGV[1]) -- deleting the only field deletes the record
    received = deleted == 1 and redis.pcall(ARGV[3], ARGV[2], '0')
    if received == 0 then
        return 0
    end
end
local place_pattern = '^(%a+) (%d+) (%d) (%d+) (%S+) ?(%d*)$'
local grant_format = 'grant %s %s %s %s'
local provisional = 5000
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
local too_large = 2 ^ 53 -- the first such number: from there on a token would be that of another hold, too

local function put_back(counter)
    local text = redis.pcall('set', counter, '0', 'xx', 'keepttl', 'get')
    if type(text) == 'string' then
        local head, tail = tonumber(text:sub(1, -16)), tonumber(text:sub(-15))
        if tail == 0 then
            head, tail = head - 1, 1e15
        end
        redis.pcall('set', counter, string.format('%d%015.0f', head, tail - 1), 'keepttl')
    end
    return {err = 'ERR the counter is too large'}
end

local function take_token(counter, most)
    if not counter then
        return 0, 0
    end
    local token, clock = redis.pcall('incr', counter), redis.pcall('time')
    if type(token) == 'table' or clock.err then
        return nil, clock.err and clock or token
    end
    local now = clock[1] * 1000000 + clock[2]
    if token >= too_large then
        return nil, put_back(counter)
    elseif token >= now then
        return token, 0
    end
    local set = redis.pcall('set', counter, string.format('%.0f', now))
    if set.err then
        return nil, set
    end
    token = token > 1 and math.max(token, now - (most or 1) + 1) or now
    return token, now - token
end

local lock, order, waits, tokens = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local field, channel, how, window = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local left, late = ARGV[5] or '0', ARGV[6] == '1'
local ends = left == '0' and not late

if ends and (deleted == 1 or redis.pcall('exists', order) == 0) then
    if not deleted then
        deleted = redis.pcall('hdel', lock, field)
        redis.pcall('hdel', waits, deleted == 1 and 'shared' or '') -- as settle of line.lua
    end
    if deleted == 1 then
        return announce_release(how, channel, '0', received)
    end
elseif ends and how ~= in_both_ways then
    local client = field:sub(1, 36)
    local to = redis.pcall('zrangebyscore', order, '-inf', '+inf', 'limit', 0, 1)[1]
    local head = to and redis.pcall('hmget', waits, to, 'shared', client) or {}
    local shared, own = tonumber(head[2] or ''), head[3]
    own = own and (own .. ' '):find(' ' .. field .. ' ', 1, true) -- a place of this field
    local delivery, lease, fenced, asked, waiter
    if head[1] then
        delivery, lease, fenced, asked, waiter = head[1]:match(place_pattern)
    end
    local clock = redis.pcall('time')
    local kept = shared and not clock.err and clock[1] * 1000 + math.floor(clock[2] / 1000) - shared
    if delivery == 'push' and #lease < 16 and not own and kept and kept >= 0 and kept < window and
        (redis.pcall('pubsub', how == 'spublish' and 'shardnumsub' or 'numsub', channel .. ':' .. to)[2] or 0) ~= 0 then
        deleted = redis.pcall('hdel', lock, field)
        local free, token = deleted == 1 and redis.pcall('exists', lock) == 0, 0
        if free and fenced == '1' then
            token = tokens and take_token(tokens)
        end
        if free and token then
            local grant = string.format(grant_format, waiter, asked, lease, string.format('%.0f', token))
            local heard = type(redis.pcall('hset', lock, waiter, 1)) == 'number' and
                redis.pcall('pexpire', lock, lease) == 1 and redis.pcall(how, channel .. ':' .. to, grant)
            if type(heard) == 'number' then
                redis.pcall('zrem', order, to)
                redis.pcall('hdel', waits, to)
                return '1 0 1'
            end
            redis.pcall('hdel', lock, waiter)
        end
    end
end

local most_hold_count = 10000 -- of a reader, which may have that many lease keys; as mostHoldCount in rwlock.go

local function refuse(key, what)
    local n = 0
    for i = 1, #KEYS do
        n = KEYS[i] == key and i or n
    end
    error({err = 'NOTALOCK ' .. n .. ' ' .. what}, 0)
end

local function field_text(field)
    local shown = field:sub(1, 80):gsub('[^]!#-[^-~]', function(c) return string.format('\\x%02x', c:byte()) end)
    return 'field ' .. #field .. ' ' .. shown
end

local function refuse_field(lock, field) refuse(lock, field_text(field)) end

local function is_hold(field, value)
    local client, more = field:match('^(%x+%-%x+%-%x+%-%x+%-%x+):%-?%d+(.*)$')
    return client and #client == 36 and (more == '' or more:sub(1, 1) == ':') and
        #value < 10 and value:match('^[1-9]%d*$')
end

local function is_value(field, value)
    local hash, owner = field:match('^([%w+/]+):(.+):expire_time$')
    if hash then
        value = #value < 16 and value:match('^[1-9]%d*$') and '1' or ''
    else
        hash, owner = field:match('^([%w+/]+):(.+):lock_count$')
    end
    if not hash then
        return #field == 22 and field:match('^[%w+/]+$') and is_hold(value, '1')
    end
    return #hash == 22 and is_hold(owner, value)
end

local function too_deep(field, hold_count)
    return tonumber(hold_count) > most_hold_count and field:sub(-6) ~= ':write'
end

local function check_record(lock)
    local some = redis.call('hrandfield', lock, 8, 'withvalues')
    local mode = redis.call('hget', lock, 'mode')
    local bad = mode and mode ~= 'read' and mode ~= 'write' and 'mode'
    local second -- one hold too many: a lock without a mode has one holder
    for i = 1, #some, 2 do
        local field, value = some[i], some[i + 1]
        if is_hold(field, value) and not (mode and too_deep(field, value)) then
            second = not mode and #some > 2 and field
        elseif not (mode and field == 'mode' or not mode and is_value(field, value)) then
            bad = bad or field
        end
    end
    bad = bad or second
    if mode and #some == 2 and redis.call('pttl', lock) == -1 then
        bad = 'mode' -- what is left over from a lock has a lease
    end
    if bad then
        refuse_field(lock, bad)
    end
    return #some / 2, some[1] == 'mode' and some[3] or some[1]
end

local function note_hold_count(lock, field, hold_count)
    local answer = redis.pcall('hset', lock, field, hold_count)
    if type(answer) == 'table' and not answer.err:find('OOM ', 1, true) then
        error(answer, 0)
    end
end

local function undo(lock, ...)
    if type(redis.pcall('hdel', lock, ...)) == 'table' then -- deleting the only fields deletes the record
        redis.call('del', lock)
    end
end

local function begin_lease(lock, lease, ...)
    local answer = redis.pcall('pexpire', lock, lease)
    if type(answer) == 'table' then
        undo(lock, ...)
        error(answer, 0)
    end
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

return answer(function()
if left ~= '0' then
    if redis.call('hexists', lock, field) == 0 then
        check_record(lock)
        return {-1, 0, 0}
    end
    note_hold_count(lock, field, left)
    return {1, 0, 0}
end

deleted = deleted or redis.pcall('hdel', lock, field)
local had = deleted == 1
local heard, passed_on = 0, 0
if late or redis.pcall('exists', order, waits) ~= 0 then
local function now_ms()
    local clock = redis.call('time')
    return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

local function ms(t) return string.format('%.0f', t) end
local function draw_token(counter, most)
    local token, following = take_token(counter, most)
    if token then
        return token, following
    elseif following.err:find('not an integer', 1, true) then
        refuse(counter, 'number')
    elseif following.err:find('too large', 1, true) or following.err:find('overflow', 1, true) then
        refuse(counter, 'large')
    end
    error(following, 0)
end
local function client_of(field) return field:sub(1, 36) end

local may_ask = true -- for the number of subscribers, as far as this run has tried

local function listeners(channel, how)
    if how == in_both_ways then
        local plain, sharded = listeners(channel, 'publish'), listeners(channel, 'spublish')
        local n = math.max(plain or 0, sharded or 0)
        return (n > 0 or plain and sharded) and n or nil
    end
    local n = redis.pcall('pubsub', how == 'spublish' and 'shardnumsub' or 'numsub', channel)
    may_ask = not n.err
    return may_ask and n[2] or nil
end

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
local tombstone_life = 60000 -- in ms: longer than a request may be on its way

local function bury(waits, field)
    redis.pcall('hdel', waits, '')
    local now, old = now_ms(), {}
    local some = redis.call('hrandfield', waits, 8, 'withvalues')
    for i = 1, #some, 2 do
        if #some[i] > 36 and (tonumber(some[i + 1]) or now) < now then
            old[#old + 1] = some[i]
        end
    end
    if #old > 0 then
        redis.call('hdel', waits, unpack(old))
    end
    local left = redis.call('pttl', waits)
    redis.pcall('hset', waits, field, ms(now + tombstone_life))
    if left < tombstone_life then
        begin_lease(waits, tombstone_life, field)
    end
end

local function grant(lock, waiter, tokens, channel, how)
    local token = 0
    if waiter.fenced == '1' and tokens then
        local drawn, t = pcall(function() return draw_token(tokens) end)
        token = drawn and t or 0 -- the process asks for its token, and gets the error of the counter
    end
    local writes = waiter.field:sub(-6) == ':write' -- of a read/write lock
    local written = writes and redis.pcall('hset', lock, 'mode', 'write', waiter.field, 1) or
        redis.pcall('hset', lock, waiter.field, 1)
    if type(written) == 'table' then
        return nil -- for example, Redis has no memory left
    end
    local heard = nil
    if redis.pcall('pexpire', lock, ms(waiter.lease)) == 1 then
        heard = tell_granted(waiter, waiter.lease, token, channel, how)
    end
    if not heard then
        undo(lock, 'mode', waiter.field)
    end
    return heard
end

local function room_of(_, _) return nil end

local function fits(_, _) return 'now' end

local function goes_on(_, _) return false end
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

local function leave(line, field)
    if line.mine and line.mine.field == field then
        remove(line, {line.mine.client})
        line.mine = nil
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

local function passed(line, to)
    if to then
        return 1
    end
    return line and line.mute and 2 or 0
end

local function release_to_all(line, channel, how, message, window, always)
    local now, shared = now_ms(), line.shared or 0
    local due = now - shared >= window or shared > now
    if line.size == 0 or not due and not always then
        return 0
    end
    local known = listeners(channel, how)
    if due then
        redis.call('hset', line.waits, 'shared', ms(now))
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

local function try(step)
    local done, result = pcall(step)
    return done and result or nil
end

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
    return passed(line, to)
end
    passed_on = leave_and_pass(lock, order, waits, field, late, function(line)
        if redis.call('hlen', lock) > 0 then
            return had and settle(line) or nil
        end
        heard = had and release_to_all(line, channel, how, '0', window, false) or 0
        return heard == 0 and pass_on(lock, line, tokens, channel, how, nil) or nil
    end)
end
if type(deleted) == 'table' then
    error(deleted, 0)
elseif not had then
    check_record(lock)
elseif heard == 0 and passed_on ~= 1 then
    heard = announce_release(how, channel, '0')
end
return {had and 1 or -1, heard, passed_on}

end, {'hash', 'zset', 'hash', 'string'})
