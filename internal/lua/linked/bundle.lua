
local scripts = {
    {acquire = function(KEYS, ARGV)

local there = (ARGV[3] or '1') == '1' and redis.pcall('exists', KEYS[1], KEYS[2])
local token, following

if there == 1 then -- the line, if the lock is free
local function is_idle_for(key, field)
    local head = redis.pcall('hmget', key, 'over', 'first', 'beside')
    local over = head[1]
    return over and not head[2] and not head[3] and
        not (over:find(field:sub(37), 1, true) and over:find(field, 1, true))
end
    there = is_idle_for(KEYS[2], ARGV[1]) and 0 or there
end
if there == 0 then
    token = 0
    if KEYS[3] then -- drawn first: if the counter is not a number, the lock must not be acquired
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
        token, following = take_token(KEYS[3])
    end
    if token and redis.pcall('hset', KEYS[1], ARGV[1], '1') == 1 then
        if redis.pcall('pexpire', KEYS[1], ARGV[2]) == 1 then
            return token
        end
        if type(redis.pcall('hdel', KEYS[1], ARGV[1])) == 'table' then -- as undo of record.lua
            redis.pcall('del', KEYS[1])
        end
    end
end
local place_format = '%s %s %s %s %s %s %s %s'
local place_pattern = '^(%d+) (%a+) (%a+) (%d+) (%d) (%d+) (%S+) ?(%d*)$'
local grant_format = 'grant %s %s %s %s'
local provisional = 5000
local line_life = 5 * 60 * 1000
local near_head = 32

local lock, tokens = KEYS[1], KEYS[3]
local field, hold_count, delivery = ARGV[1], ARGV[3] or '1', ARGV[4] or 'defer'
local how, asked, channel = ARGV[6] or 'publish', ARGV[7], ARGV[8]
local fenced = tokens and '1' or '0'
local waits = delivery == 'push' or delivery == 'poll'

if hold_count == '1' and there ~= 0 and KEYS[2] ~= lock then
    local client = field:sub(1, 36)
    local head = redis.pcall('hmget', KEYS[2], 'first', 'last', 'granted', 'over', client)
    local first, last, granted, over = tonumber(head[1] or ''), tonumber(head[2] or ''), head[3], head[4]
    if granted and granted ~= field and not (over and over:find(field, 1, true)) and
        redis.pcall('hexists', lock, granted) == 1 then
        local pttl = not (waits and head[5]) and redis.pcall('pttl', lock)
        local known = type(pttl) == 'number'
        if known and not waits then
            return string.format('0 %.0f 0', pttl)
        end
        local subscribed = known and (delivery == 'poll' or
            redis.pcall('pubsub', how == 'spublish' and 'shardnumsub' or 'numsub', channel .. ':' .. client)[2] ~= 0)
        if subscribed and first and last and first >= 0 and last < 1e15 and
            last - first >= -1 and last - first < near_head - 1 then
            local number = string.format('%.0f', last + 1)
            local since = redis.pcall('time')[1] or ''
            local place = string.format(place_format, number, 'new', delivery, ARGV[2], fenced, asked, field, since)
            if type(redis.pcall('hset', KEYS[2], 'last', number, number, client, client, place)) == 'number' then
                redis.pcall('pexpire', KEYS[2], line_life)
                return string.format('0 %.0f %.0f', pttl, 1 + 4 * (number - first))
            end
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

local function uses_line(field)
    return field:find('^[%x-]+:%-?%d+:0%d+$') or field:find('^[%x-]+:%-?%d+:0%d+:write$')
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

local function may_exist(key) return redis.pcall('exists', key) ~= 0 end

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
local function is_idle_for(key, field)
    local head = redis.pcall('hmget', key, 'over', 'first', 'beside')
    local over = head[1]
    return over and not head[2] and not head[3] and
        not (over:find(field:sub(37), 1, true) and over:find(field, 1, true))
end
return answer(function()
local lease, pttl = tonumber(ARGV[2]), redis.call('pttl', lock)
local mine = pttl ~= -2 and redis.call('hexists', lock, field) == 1
local leave_line -- nil if there is no line
if not mine and hold_count ~= '1' then
    return {-1, 0, 0}
end
if not mine and (pttl ~= -2 or may_exist(KEYS[2]) and not is_idle_for(KEYS[2], field)) then
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

local function now_ms()
    local clock = redis.call('time')
    return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

local function now_s() return redis.call('time')[1] end

local function ms(t) return string.format('%.0f', t) end
local tombstone_life = 60000
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

local function granted_lease(waiter)
    return waiter.state == 'confirmed' and waiter.lease or math.min(waiter.lease, provisional)
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

local function is_buried(over, field, now)
    if tonumber((over or ''):match('^%S+ (%d+)') or 0) <= now then -- all of them have expired
        return false, false
    end
    local _, behind = over:find(field .. ' ', 1, true)
    return behind and tonumber(over:match('^%d+', behind + 1) or 0) > now or false, true
end
local function grant(lock, waiter, tokens, channel, how)
    local lease = granted_lease(waiter)
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
    if redis.pcall('pexpire', lock, ms(lease)) == 1 then
        heard = tell_granted(waiter, lease, token, channel, how)
    end
    if not heard then
        undo(lock, 'mode', waiter.field)
    end
    return heard
end

local function still_held(lock, field) return redis.call('hexists', lock, field) == 1 end

local function comes_back(lock, field) return not still_held(lock, field) end

local function room_of(_, _) return nil end

local function fits(_, _) return 'now' end

local function goes_on(_, _) return false end
local function standing_of(ahead, legacy, lost)
    if legacy then
        return 2
    elseif ahead then
        return 1 + 4 * ahead
    end
    return lost and 3 or 0
end
local most_places = 20000 -- numbers from the first place to the last one up to which clients join
local most_numbers = 1e15 -- adding 1 to much larger numbers does not change them
local longest_line = 25000 -- numbers that a script iterates over; older versions have no limit
local most_fields = 100000 -- that a script deletes with the last place; any others expire
local most_over = 100000 -- bytes of the tombstones

local function wait_number(field) return tonumber(field:match('^[%x-]+:%-?%d+:(%d+)') or 0) end

local function of_writer(field) return field:sub(-6) == ':write' end

local function channel_of(channel, of_write)
    local name = channel:match('^redisson_lock__channel(:.*)') or channel:match('^redisson_rwlock(:.*)')
    return name and (of_write and 'redisson_rwlock' or 'redisson_lock__channel') .. name or channel
end

local function grants_to(channel, p) return channel_of(channel, of_writer(p.field)) .. ':' .. p.client end

local function parse_place(text, client)
    local number, state, delivery, lease, fenced, asked, field, since = text:match(place_pattern)
    if not number or #number > 15 or #lease > 15 then
        return nil -- the text is not that of a place
    end
    return {number = tonumber(number), state = state, delivery = delivery, lease = tonumber(lease), fenced = fenced,
        asked = asked, field = field, since = since, client = client}
end

local function open_line(lock, key, field)
    if not key or key == lock then
        return nil
    end
    local client = client_of(field)
    local head = redis.call('hmget', key, 'first', 'last', 'granted', 'shared', 'over', client, 'beside')
    local first, last, shared = tonumber(head[1] or 1), tonumber(head[2] or 0), tonumber(head[4] or 0)
    if not (first and last and shared and first >= 0 and last < most_numbers and last - first < longest_line) or
        #(head[5] or '') > most_over then
        refuse(key, 'type hash') -- this bounds the loops over the line: see record.lua
    end
    return {
        key = key, lock = lock, beside = head[7],
        exists = first <= last or head[3] or head[7], -- the line has more than tombstones
        any = head[1] or head[3] or head[5] or head[7],
        first = first, last = last, granted = head[3], shared = shared,
        over = head[5], mine = head[6] and parse_place(head[6], client),
        changes = {}, -- written when the line is closed: field -> value, or false to delete it
    }
end

local function set_field(line, field, value) line.changes[field] = value end

local function drop_field(line, field) line.changes[field] = false end

local function in_parts(list, run)
    local answer
    for from = 1, #list, 1000 do
        answer = run(unpack(list, from, math.min(from + 999, #list)))
        if type(answer) == 'table' then
            break
        end
    end
    return answer
end

local function set_life(line, life)
    local answer = redis.pcall('pexpire', line.key, life)
    if type(answer) == 'table' then
        if not line.any then
            redis.call('del', line.key)
        end
        error(answer, 0)
    end
end

local function clear_line(line)
    local beside = line.beside and may_exist(line.lock)
    local stays = {over = line.over, beside = beside, shared = beside}
    local gone = {}
    for _, field in ipairs(line.any and redis.call('hrandfield', line.key, most_fields) or {}) do
        if not field:find(':', 1, true) and not stays[field] then
            gone[#gone + 1] = field
        end
    end
    in_parts(gone, function(...) return redis.call('hdel', line.key, ...) end)
    local written = line.changes.over and redis.pcall('hset', line.key, 'over', line.over)
    if line.over then
        set_life(line, tombstone_life)
    end
    return type(written) ~= 'table'
end

local function close_line(line)
    if line.first > line.last and not line.granted then
        return clear_line(line)
    end
    set_field(line, 'first', ms(line.first))
    set_field(line, 'last', ms(line.last))
    local set, gone = {}, {}
    for field, value in pairs(line.changes) do
        if value then
            set[#set + 1], set[#set + 2] = field, value
        else
            gone[#gone + 1] = field
        end
    end
    local written = in_parts(set, function(...) return redis.pcall('hset', line.key, ...) end)
    in_parts(gone, function(...) return redis.call('hdel', line.key, ...) end)
    if line.life then
        set_life(line, line.life)
    end
    return type(written) ~= 'table' -- an error: Redis has no memory left
end

local function place_of(line, client)
    if line.mine and line.mine.client == client then
        return line.mine
    end
    local text = redis.call('hget', line.key, client)
    return text and parse_place(text, client)
end

local function read_places(line, from, to)
    local clients, places, numbers, some, together = {}, {}, {}, {}, {}
    for number = from, to do
        numbers[#numbers + 1] = ms(number)
    end
    for i, client in ipairs(redis.call('hmget', line.key, unpack(numbers))) do
        clients[from + i - 1] = client
        some[#some + 1] = client or nil
    end
    local texts, n = #some > 0 and redis.call('hmget', line.key, unpack(some)), 0
    for number = from, to do
        local client, p = clients[number], nil
        if client then
            n = n + 1
            p = texts[n] and parse_place(texts[n], client)
        end
        for _, known in ipairs({line.mine or false, line.back or false}) do
            if known and (known.client == client or known.unsaved and known.number == number) then
                p = known
            end
        end
        if p and p.number == number then
            places[number], clients[number], p.together = p, p.client, together
            together[#together + 1] = p
        end
    end
    return clients, places
end

local function places_of(line, last)
    last = math.min(last or line.last, line.last)
    local number = line.first - 1
    local to, size, clients, places = number, 1, nil, nil -- to: the last number that was read
    return function()
        number = number + 1
        if number > last then
            return nil
        elseif number > to then
            to = math.min(number + size - 1, last)
            clients, places = read_places(line, number, to)
            size = math.min(8 * size, 1000)
        end
        return number, clients[number], places[number]
    end
end

local function place_text(p)
    return string.format(place_format, ms(p.number), p.state, p.delivery, ms(p.lease), p.fenced, p.asked, p.field,
        p.since)
end

local function put_place(line, p)
    set_field(line, p.client, place_text(p))
    set_field(line, ms(p.number), p.client)
end

local function client_at(line, number)
    local changed = line.changes[ms(number)]
    if changed ~= nil then
        return changed
    end
    return redis.call('hget', line.key, ms(number))
end

local function is_enqueued(line, p) return p.number >= line.first and client_at(line, p.number) == p.client end
local function drop_number(line, number)
    drop_field(line, ms(number))
    redis.call('hdel', line.key, ms(number)) -- at once, because pass_on looks for numbers in Redis
    while line.first <= line.last and not client_at(line, line.first) do
        line.first = line.first + 1
    end
end

local function drop_place(line, p)
    drop_field(line, p.client)
    if p.unsaved or is_enqueued(line, p) then
        drop_number(line, p.number)
    end
end

local function note_expired_grant(line)
    local field = line.granted
    if not field then
        return
    end
    line.granted = false
    drop_field(line, 'granted')
    local p = place_of(line, client_of(field))
    if not p or p.field ~= field or p.unsaved or is_enqueued(line, p) then
        return
    end
    if p.delivery == 'poll' or line.last - p.number >= most_places then
        drop_field(line, p.client)
        return
    end
    p.state, p.unsaved = 'suspect', true
    put_place(line, p)
    line.back = p
    line.first = math.min(line.first, p.number)
end

local most_missing = 200 -- numbers; each script that iterates over the line looks up all of them

local function close_gaps(line)
    local span = line.last - line.first
    local fields = span >= most_missing and redis.call('hlen', line.key)
    if not fields or span < 2 * fields and (span < most_places or span < fields) then
        return
    end
    local all = redis.call('hrandfield', line.key, fields, 'withvalues') -- all: users may call hrandfield
    local places, numbers = {}, {}
    for i = 1, #all, 2 do
        if #all[i] == 36 then
            places[#places + 1] = parse_place(all[i + 1], all[i]) -- nil adds no element
        elseif tonumber(all[i]) then
            numbers[all[i]] = all[i + 1]
        end
    end
    table.sort(places, function(a, b) return a.number < b.number end)
    for number in pairs(numbers) do
        redis.call('hdel', line.key, number)
    end
    local first
    for i, p in ipairs(places) do
        local was_enqueued = numbers[ms(p.number)] == p.client
        p.number = line.first + i - 1
        redis.call('hset', line.key, p.client, place_text(p))
        if was_enqueued then
            redis.call('hset', line.key, ms(p.number), p.client)
            first = first or p.number
        end
        if line.mine and line.mine.client == p.client then
            line.mine = p
        end
    end
    line.last = line.first + #places - 1
    line.first = first or line.last + 1
end

local function is_guest(line, field)
    local p = line and line.mine
    return p and of_writer(p.field) ~= of_writer(field) and
        (p.unsaved or line.granted == p.field or is_enqueued(line, p)) or false
end

local function join(lock, line, field, wish)
    close_gaps(line)
    local before, client = line.mine, client_of(field)
    local own = before and before.field == field
    if before and line.granted == before.field and (own or comes_back(lock, before.field)) then
        note_expired_grant(line)
    end
    local stays = before and (before.unsaved or is_enqueued(line, before))
    if stays and of_writer(before.field) == of_writer(field) and wait_number(before.field) > wait_number(field) then
        return false
    end
    local p = {state = 'new', delivery = wish.delivery, lease = wish.lease, fenced = wish.fenced, asked = wish.asked,
        field = field, client = client, unsaved = true}
    if own then
        p.state = before.state == 'suspect' and 'confirmed' or before.state
    end
    if stays and before.state == 'suspect' and before.field ~= field then -- the hold of that place was lost
        drop_number(line, before.number)
        stays = false
    end
    if stays then
        p.number, p.since = before.number, before.since
    elseif line.last - line.first >= most_places then
        return false -- the caller polls
    else
        line.last = line.last + 1
        p.number, p.since = line.last, now_s()
    end
    line.mine, line.back, line.life = p, nil, line_life
    put_place(line, p)
    if not line.exists then -- while the line was empty, releases were announced to everybody
        line.shared = now_ms()
        set_field(line, 'shared', ms(line.shared))
    end
    return true
end

local function places_in_front(line)
    local numbers = math.max(0, line.mine.number - line.first)
    return numbers < near_head and numbers or math.min(numbers, math.floor(redis.call('hlen', line.key) / 2))
end

local function standing(line, joined, lost, legacy)
    return standing_of(joined and places_in_front(line) or nil, legacy, lost)
end

local function leave(line, field)
    local p = line.mine
    if p and p.field == field then
        drop_place(line, p)
        line.mine = nil
    end
    if line.granted == field then
        drop_field(line, 'granted')
        line.granted = false
    end
end

local function leave_held(line, field, ...)
    local left, why = pcall(function()
        leave(line, field)
        close_line(line)
    end)
    if not left then
        undo(line.lock, ...)
        error(why, 0)
    end
end

local function has_tombstone(line, field)
    local found, any = is_buried(line.over, field, now_ms())
    if line.over and not any then
        line.over = false
        drop_field(line, 'over')
    end
    return found
end
local function subscription_lost(field, delivery, channel, how)
    return delivery == 'push' and listeners(channel .. ':' .. client_of(field), how) == 0
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
    local now, half, request = now_ms(), provisional / 2, p.field .. ' ' .. p.asked .. ' '
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

local most_told = 100 -- suspects that one script tells of a free lock; the others notice it when they look at the lock

local function close_up(line, stay, next_number)
    line.first = #stay > 0 and stay[1].number or next_number
    local missing = next_number - line.first - #stay
    if missing == 0 or #stay > near_head and missing <= #stay then
        return
    end
    local last = line.granted and place_of(line, client_of(line.granted))
    local granted = last and last.field == line.granted and last.number
    for _, p in ipairs(stay) do
        drop_field(line, ms(p.number))
    end
    local number = next_number
    for i = #stay, 1, -1 do
        number = number - (number - 1 == granted and 2 or 1)
        stay[i].number = number
        put_place(line, stay[i])
    end
    line.first = number
end

local function pass_on(lock, line, tokens, channel, how, asker)
    if line.granted and not still_held(lock, line.granted) then
        note_expired_grant(line)
    end
    local room = room_of(lock, tokens)
    local stay = {} -- the places that are passed over: suspects, and those that fit never
    local to, is_left, next_number = nil, true, line.last + 1
    for number, client, p in places_of(line) do
        local fit = p and (p.state == 'suspect' and 'never' or fits(p, room))
        local leaves = false
        if fit == 'now' and client == asker then
            to, is_left, leaves, line.mine = asker, false, true, nil
        elseif fit and not is_reachable(p, channel, how) then
            fit, leaves = nil, true
        elseif fit == 'later' and (client == asker or keeps_for(line, p, channel, how)) then
            line.short, next_number = true, number
            break
        elseif fit == 'later' and p.delivery == 'poll' then
            fit, leaves = nil, true -- as in note_expired_grant
        elseif fit == 'later' then
            fit, p.state = 'never', 'suspect'
            put_place(line, p)
        elseif fit == 'now' then
            local granted = grant(lock, p, tokens, grants_to(channel, p), how)
            if granted == nil then -- nothing can be granted: this place stays, and all behind it
                line.mute, is_left, next_number = true, false, number
                announce(how, grants_to(channel, p), 'free')
                break
            elseif granted then
                to, is_left, line.granted = client, goes_on(room, p), p.field
                set_field(line, 'granted', p.field)
            else
                leaves = true
            end
        end
        if fit == 'never' then
            stay[#stay + 1] = p
        elseif client then
            drop_field(line, ms(number))
        end
        if leaves then
            drop_field(line, client)
        end
        if not is_left then
            next_number = number + 1
            break
        end
    end
    close_up(line, stay, next_number)
    local may_tell = is_left and most_told or 0
    for _, p in ipairs(stay) do
        if may_tell > 0 and p.state == 'suspect' then
            announce(how, grants_to(channel, p), 'free')
            may_tell = may_tell - 1
        end
    end
    return to
end

    channel = channel or 'redisson_lock__channel:' .. (lock:find('{', 1, true) and lock or '{' .. lock .. '}')
    local _, holder
    if pttl ~= -2 then
        _, holder = check_record(lock)
    end
    local line = open_line(lock, KEYS[2], field)
    if line and has_tombstone(line, field) then
        return {0, pttl, 0}
    end
    local guest = waits and is_guest(line, field)
    local joins = line and waits and not guest and (pttl ~= -2 or line.exists)
    local lost = joins and subscription_lost(field, delivery, channel, how)
    local joined = joins and not lost and
        join(lock, line, field, {delivery = delivery, lease = lease, fenced = fenced, asked = asked})
    if pttl ~= -2 then
        joined = joined and close_line(line)
        return {0, pttl, standing(line, joined, lost, not line or guest or not uses_line(holder))}
    end
    if line and line.exists and delivery ~= 'barge' and not guest then
        local client = client_of(field)
        local to = pass_on(lock, line, tokens, channel, how, joined and client)
        if to and not (joined and to == client) then
            joined = close_line(line) and joined
            return {0, redis.call('pttl', lock), standing(line, joined, lost, false)}
        end
    end
    if line and line.exists then
        leave_line = function() leave_held(line, field, field) end
    end
end

if hold_count == '1' and not token then
    token, following = draw_token(tokens, mine and tonumber(ARGV[5] or 1))
end
redis.call('hset', lock, field, hold_count)
if not mine then
    begin_lease(lock, ARGV[2], field)
elseif pttl < lease then
    redis.call('pexpire', lock, ARGV[2])
end
if leave_line then
    leave_line()
end
return {1, token or 0, following or 0}

end, {'hash', 'hash', 'string'})

end, roll_back = function(KEYS, ARGV)

local deleted, received -- the answers of Redis

local in_both_ways = 'publish+spublish'

if not ARGV[5] and ARGV[3] ~= in_both_ways and redis.pcall('exists', KEYS[2]) == 0 then
    deleted = redis.pcall('hdel', KEYS[1], ARGV[1]) -- deleting the only field deletes the record
    received = deleted == 1 and redis.pcall(ARGV[3], ARGV[2], '0')
    if received == 0 then
        return 0
    end
end
local place_format = '%s %s %s %s %s %s %s %s'
local place_pattern = '^(%d+) (%a+) (%a+) (%d+) (%d) (%d+) (%S+) ?(%d*)$'
local grant_format = 'grant %s %s %s %s'
local provisional = 5000
local near_head = 32
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
local function is_idle(key)
    local fields = redis.pcall('hlen', key)
    return fields == 0 or fields == 1
end


local lock, tokens = KEYS[1], KEYS[3]
local field, channel, how, window = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local left, late = ARGV[5] or '0', ARGV[6] == '1'
local ends = left == '0' and not late and KEYS[2] ~= lock

if ends and (deleted == 1 or is_idle(KEYS[2])) then
    deleted = deleted or redis.pcall('hdel', lock, field)
    if deleted == 1 then
        return announce_release(how, channel, '0', received)
    end
elseif ends and how ~= in_both_ways then
    local client = field:sub(1, 36)
    local head = redis.pcall('hmget', KEYS[2], 'first', 'granted', 'shared', client)
    local first, granted, shared, own = head[1], head[2], tonumber(head[3] or ''), head[4]
    own = own and (own .. ' '):find(' ' .. field .. ' ', 1, true) -- the place of this hold
    local to = first and redis.pcall('hget', KEYS[2], first)
    local place = type(to) == 'string' and to ~= client and redis.pcall('hget', KEYS[2], to)
    local number, state, delivery, lease, fenced, asked, waiter
    if type(place) == 'string' then
        number, state, delivery, lease, fenced, asked, waiter = place:match(place_pattern)
    end
    local clock = redis.pcall('time')
    local kept = shared and not clock.err and clock[1] * 1000 + math.floor(clock[2] / 1000) - shared
    if number and number == first and #number < 16 and #lease < 16 and state ~= 'suspect' and delivery == 'push' and
        waiter:sub(-6) ~= ':write' and kept and kept >= 0 and kept < window and
        (granted == field or not granted and not own) and
        (redis.pcall('pubsub', how == 'spublish' and 'shardnumsub' or 'numsub', channel .. ':' .. to)[2] or 0) ~= 0 then
        deleted = redis.pcall('hdel', lock, field)
        local free, token = deleted == 1 and redis.pcall('exists', lock) == 0, 0
        if free and fenced == '1' then
            token = tokens and take_token(tokens)
        end
        if free and token then
            lease = state == 'confirmed' and lease or string.format('%.0f', math.min(tonumber(lease), provisional))
            local grant = string.format(grant_format, waiter, asked, lease, string.format('%.0f', token))
            local heard = type(redis.pcall('hset', lock, waiter, 1)) == 'number' and
                redis.pcall('pexpire', lock, lease) == 1 and redis.pcall(how, channel .. ':' .. to, grant)
            if type(heard) == 'number' then
                redis.pcall('hset', KEYS[2], 'first', string.format('%.0f', first + 1), 'granted', waiter)
                redis.pcall('hdel', KEYS[2], first, own and client or first)
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

local function may_exist(key) return redis.pcall('exists', key) ~= 0 end

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
local heard, heard_beside, passed_on = 0, 0, 0
if KEYS[2] ~= lock and (late or not is_idle(KEYS[2])) then
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
local tombstone_life = 60000
local most_tombstones = 100

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

local function granted_lease(waiter)
    return waiter.state == 'confirmed' and waiter.lease or math.min(waiter.lease, provisional)
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

local function bury(over, field, now)
    local kept = {field .. ' ' .. ms(now + tombstone_life)}
    for other, till in (over or ''):sub(1, 200 * most_tombstones):gmatch('(%S+) (%d+)') do
        if #kept == most_tombstones then
            break
        elseif other ~= field and tonumber(till) > now then
            kept[#kept + 1] = other .. ' ' .. till
        end
    end
    return table.concat(kept, ' ')
end

local function grant(lock, waiter, tokens, channel, how)
    local lease = granted_lease(waiter)
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
    if redis.pcall('pexpire', lock, ms(lease)) == 1 then
        heard = tell_granted(waiter, lease, token, channel, how)
    end
    if not heard then
        undo(lock, 'mode', waiter.field)
    end
    return heard
end

local function still_held(lock, field) return redis.call('hexists', lock, field) == 1 end

local function room_of(_, _) return nil end

local function fits(_, _) return 'now' end

local function goes_on(_, _) return false end
local most_places = 20000 -- numbers from the first place to the last one up to which clients join
local most_numbers = 1e15 -- adding 1 to much larger numbers does not change them
local longest_line = 25000 -- numbers that a script iterates over; older versions have no limit
local most_fields = 100000 -- that a script deletes with the last place; any others expire
local most_over = 100000 -- bytes of the tombstones

local function of_writer(field) return field:sub(-6) == ':write' end

local function channel_of(channel, of_write)
    local name = channel:match('^redisson_lock__channel(:.*)') or channel:match('^redisson_rwlock(:.*)')
    return name and (of_write and 'redisson_rwlock' or 'redisson_lock__channel') .. name or channel
end

local function grants_to(channel, p) return channel_of(channel, of_writer(p.field)) .. ':' .. p.client end

local function parse_place(text, client)
    local number, state, delivery, lease, fenced, asked, field, since = text:match(place_pattern)
    if not number or #number > 15 or #lease > 15 then
        return nil -- the text is not that of a place
    end
    return {number = tonumber(number), state = state, delivery = delivery, lease = tonumber(lease), fenced = fenced,
        asked = asked, field = field, since = since, client = client}
end

local function open_line(lock, key, field)
    if not key or key == lock then
        return nil
    end
    local client = client_of(field)
    local head = redis.call('hmget', key, 'first', 'last', 'granted', 'shared', 'over', client, 'beside')
    local first, last, shared = tonumber(head[1] or 1), tonumber(head[2] or 0), tonumber(head[4] or 0)
    if not (first and last and shared and first >= 0 and last < most_numbers and last - first < longest_line) or
        #(head[5] or '') > most_over then
        refuse(key, 'type hash') -- this bounds the loops over the line: see record.lua
    end
    return {
        key = key, lock = lock, beside = head[7],
        exists = first <= last or head[3] or head[7], -- the line has more than tombstones
        any = head[1] or head[3] or head[5] or head[7],
        first = first, last = last, granted = head[3], shared = shared,
        over = head[5], mine = head[6] and parse_place(head[6], client),
        changes = {}, -- written when the line is closed: field -> value, or false to delete it
    }
end

local function set_field(line, field, value) line.changes[field] = value end

local function drop_field(line, field) line.changes[field] = false end

local function in_parts(list, run)
    local answer
    for from = 1, #list, 1000 do
        answer = run(unpack(list, from, math.min(from + 999, #list)))
        if type(answer) == 'table' then
            break
        end
    end
    return answer
end

local function set_life(line, life)
    local answer = redis.pcall('pexpire', line.key, life)
    if type(answer) == 'table' then
        if not line.any then
            redis.call('del', line.key)
        end
        error(answer, 0)
    end
end

local function clear_line(line)
    local beside = line.beside and may_exist(line.lock)
    local stays = {over = line.over, beside = beside, shared = beside}
    local gone = {}
    for _, field in ipairs(line.any and redis.call('hrandfield', line.key, most_fields) or {}) do
        if not field:find(':', 1, true) and not stays[field] then
            gone[#gone + 1] = field
        end
    end
    in_parts(gone, function(...) return redis.call('hdel', line.key, ...) end)
    local written = line.changes.over and redis.pcall('hset', line.key, 'over', line.over)
    if line.over then
        set_life(line, tombstone_life)
    end
    return type(written) ~= 'table'
end

local function close_line(line)
    if line.first > line.last and not line.granted then
        return clear_line(line)
    end
    set_field(line, 'first', ms(line.first))
    set_field(line, 'last', ms(line.last))
    local set, gone = {}, {}
    for field, value in pairs(line.changes) do
        if value then
            set[#set + 1], set[#set + 2] = field, value
        else
            gone[#gone + 1] = field
        end
    end
    local written = in_parts(set, function(...) return redis.pcall('hset', line.key, ...) end)
    in_parts(gone, function(...) return redis.call('hdel', line.key, ...) end)
    if line.life then
        set_life(line, line.life)
    end
    return type(written) ~= 'table' -- an error: Redis has no memory left
end

local function place_of(line, client)
    if line.mine and line.mine.client == client then
        return line.mine
    end
    local text = redis.call('hget', line.key, client)
    return text and parse_place(text, client)
end

local function read_places(line, from, to)
    local clients, places, numbers, some, together = {}, {}, {}, {}, {}
    for number = from, to do
        numbers[#numbers + 1] = ms(number)
    end
    for i, client in ipairs(redis.call('hmget', line.key, unpack(numbers))) do
        clients[from + i - 1] = client
        some[#some + 1] = client or nil
    end
    local texts, n = #some > 0 and redis.call('hmget', line.key, unpack(some)), 0
    for number = from, to do
        local client, p = clients[number], nil
        if client then
            n = n + 1
            p = texts[n] and parse_place(texts[n], client)
        end
        for _, known in ipairs({line.mine or false, line.back or false}) do
            if known and (known.client == client or known.unsaved and known.number == number) then
                p = known
            end
        end
        if p and p.number == number then
            places[number], clients[number], p.together = p, p.client, together
            together[#together + 1] = p
        end
    end
    return clients, places
end

local function places_of(line, last)
    last = math.min(last or line.last, line.last)
    local number = line.first - 1
    local to, size, clients, places = number, 1, nil, nil -- to: the last number that was read
    return function()
        number = number + 1
        if number > last then
            return nil
        elseif number > to then
            to = math.min(number + size - 1, last)
            clients, places = read_places(line, number, to)
            size = math.min(8 * size, 1000)
        end
        return number, clients[number], places[number]
    end
end

local function place_text(p)
    return string.format(place_format, ms(p.number), p.state, p.delivery, ms(p.lease), p.fenced, p.asked, p.field,
        p.since)
end

local function put_place(line, p)
    set_field(line, p.client, place_text(p))
    set_field(line, ms(p.number), p.client)
end

local function client_at(line, number)
    local changed = line.changes[ms(number)]
    if changed ~= nil then
        return changed
    end
    return redis.call('hget', line.key, ms(number))
end

local function is_enqueued(line, p) return p.number >= line.first and client_at(line, p.number) == p.client end
local function drop_number(line, number)
    drop_field(line, ms(number))
    redis.call('hdel', line.key, ms(number)) -- at once, because pass_on looks for numbers in Redis
    while line.first <= line.last and not client_at(line, line.first) do
        line.first = line.first + 1
    end
end

local function drop_place(line, p)
    drop_field(line, p.client)
    if p.unsaved or is_enqueued(line, p) then
        drop_number(line, p.number)
    end
end

local function note_expired_grant(line)
    local field = line.granted
    if not field then
        return
    end
    line.granted = false
    drop_field(line, 'granted')
    local p = place_of(line, client_of(field))
    if not p or p.field ~= field or p.unsaved or is_enqueued(line, p) then
        return
    end
    if p.delivery == 'poll' or line.last - p.number >= most_places then
        drop_field(line, p.client)
        return
    end
    p.state, p.unsaved = 'suspect', true
    put_place(line, p)
    line.back = p
    line.first = math.min(line.first, p.number)
end

local function leave(line, field)
    local p = line.mine
    if p and p.field == field then
        drop_place(line, p)
        line.mine = nil
    end
    if line.granted == field then
        drop_field(line, 'granted')
        line.granted = false
    end
end

local function end_field(line, field)
    redis.pcall('hdel', line.key, '')
    line.over = bury(line.over, field, now_ms())
    set_field(line, 'over', line.over)
    if redis.call('pttl', line.key) < tombstone_life then
        line.life = tombstone_life
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
    local now, half, request = now_ms(), provisional / 2, p.field .. ' ' .. p.asked .. ' '
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

local most_told = 100 -- suspects that one script tells of a free lock; the others notice it when they look at the lock

local function close_up(line, stay, next_number)
    line.first = #stay > 0 and stay[1].number or next_number
    local missing = next_number - line.first - #stay
    if missing == 0 or #stay > near_head and missing <= #stay then
        return
    end
    local last = line.granted and place_of(line, client_of(line.granted))
    local granted = last and last.field == line.granted and last.number
    for _, p in ipairs(stay) do
        drop_field(line, ms(p.number))
    end
    local number = next_number
    for i = #stay, 1, -1 do
        number = number - (number - 1 == granted and 2 or 1)
        stay[i].number = number
        put_place(line, stay[i])
    end
    line.first = number
end

local function pass_on(lock, line, tokens, channel, how, asker)
    if line.granted and not still_held(lock, line.granted) then
        note_expired_grant(line)
    end
    local room = room_of(lock, tokens)
    local stay = {} -- the places that are passed over: suspects, and those that fit never
    local to, is_left, next_number = nil, true, line.last + 1
    for number, client, p in places_of(line) do
        local fit = p and (p.state == 'suspect' and 'never' or fits(p, room))
        local leaves = false
        if fit == 'now' and client == asker then
            to, is_left, leaves, line.mine = asker, false, true, nil
        elseif fit and not is_reachable(p, channel, how) then
            fit, leaves = nil, true
        elseif fit == 'later' and (client == asker or keeps_for(line, p, channel, how)) then
            line.short, next_number = true, number
            break
        elseif fit == 'later' and p.delivery == 'poll' then
            fit, leaves = nil, true -- as in note_expired_grant
        elseif fit == 'later' then
            fit, p.state = 'never', 'suspect'
            put_place(line, p)
        elseif fit == 'now' then
            local granted = grant(lock, p, tokens, grants_to(channel, p), how)
            if granted == nil then -- nothing can be granted: this place stays, and all behind it
                line.mute, is_left, next_number = true, false, number
                announce(how, grants_to(channel, p), 'free')
                break
            elseif granted then
                to, is_left, line.granted = client, goes_on(room, p), p.field
                set_field(line, 'granted', p.field)
            else
                leaves = true
            end
        end
        if fit == 'never' then
            stay[#stay + 1] = p
        elseif client then
            drop_field(line, ms(number))
        end
        if leaves then
            drop_field(line, client)
        end
        if not is_left then
            next_number = number + 1
            break
        end
    end
    close_up(line, stay, next_number)
    local may_tell = is_left and most_told or 0
    for _, p in ipairs(stay) do
        if may_tell > 0 and p.state == 'suspect' then
            announce(how, grants_to(channel, p), 'free')
            may_tell = may_tell - 1
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

local function announce_beside(channel, how)
    local other = channel_of(channel, not channel:find('^redisson_rwlock:'))
    local known = other ~= channel and listeners(other, how) or 0
    return known > 0 and math.min(announce(how, other, '0'), known) or 0
end

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
    local stay, next_number = {}, line.last + 1 -- stay: suspects, whose processes may be paused
    for number, client, p in places_of(line) do
        if p and is_reachable(p, channel, how) then
            if p.state ~= 'suspect' or #stay < most_told then
                announce(how, grants_to(channel, p), 'free')
            end
            if p.state ~= 'suspect' then
                next_number = number
                break
            end
            stay[#stay + 1] = p
        elseif client then
            drop_field(line, ms(number))
            if p then
                drop_field(line, client)
            end
        end
    end
    close_up(line, stay, next_number)
    return math.max((known or 1) + beside, 1)
end

local function try(step)
    local done, result = pcall(step)
    return done and result or nil
end

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
    passed_on = leave_and_pass(lock, KEYS[2], field, late, function(line)
        if redis.call('hlen', lock) > 0 then
            if not had and redis.call('hget', lock, 'mode') == 'read' then
                announce_beside(channel, how) -- readers may have waited behind this place
            end
            return line, nil
        end
        heard = had and line.first <= line.last and release_to_all(line, channel, how, '0', window, false) or 0
        local to = heard == 0 and pass_on(lock, line, tokens, channel, how, nil) or nil
        heard_beside = had and heard == 0 and not to and announce_beside(channel, how) or 0
        return line, to
    end)
end
if type(deleted) == 'table' then
    error(deleted, 0)
elseif not had then
    check_record(lock)
elseif heard == 0 and passed_on ~= 1 then
    heard = announce_release(how, channel, '0') + heard_beside
end
return {had and 1 or -1, heard, passed_on}

end, {'hash', 'hash', 'string'})

end},
    {acquire = function(KEYS, ARGV)

local first_lease = ARGV[3] .. ARGV[1] .. ':rwlock_timeout:'
if (ARGV[6] or '1') == '1' and redis.pcall('exists', KEYS[1], KEYS[2], KEYS[3], first_lease .. '0') == 0 then
    local set = redis.pcall('set', first_lease .. '1', '1', 'PX', ARGV[2])
    if not set.err and redis.pcall('hset', KEYS[1], 'mode', 'read', ARGV[1], '1') == 2 then
        if redis.pcall('pexpire', KEYS[1], ARGV[2]) == 1 then
            return 0
        end
        if type(redis.pcall('hdel', KEYS[1], 'mode', ARGV[1])) == 'table' then -- as undo of record.lua
            redis.pcall('del', KEYS[1])
        end
    end
end
local most_holds = 10000 -- fields of a hash that one script reads
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

local function now_ms()
    local clock = redis.call('time')
    return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

local function ms(t) return string.format('%.0f', t) end
local farthest_beat = 6000

local forever = 100 * 365 * 24 * 3600 * 1000

local function extend(key, to)
    if redis.call('pttl', key) < to then
        redis.call('pexpire', key, ms(to))
    end
end

local function lease_key(prefix, reader, n)
    return prefix .. reader .. ':rwlock_timeout:' .. n
end

local function leases_of(reader, hold_count)
    local acquisition = reader:match('^[%x-]+:%-?%d+:(%d+)$')
    return acquisition and #acquisition <= 20 and 1 or hold_count
end

local function lease_left(prefix, reader, hold_count)
    local longest = -2
    for n = 1, math.min(leases_of(reader, hold_count), most_hold_count) do
        local left = redis.call('pttl', lease_key(prefix, reader, n))
        if left == -1 then
            left = forever -- another program has removed the expiry
        end
        longest = math.max(longest, left)
    end
    return longest
end

local function is_buried_reader(prefix, reader)
    return redis.call('exists', lease_key(prefix, reader, 0)) == 1
end

return answer(function()

local lock, writers = KEYS[1], KEYS[2]
local field, lease, prefix, channel, how = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local hold_count, write_field = ARGV[6] or '1', (ARGV[7] or '') .. ':write'

local mode = redis.call('hget', lock, 'mode')
local free = not mode and redis.call('exists', lock) == 0
local plain = not mode and not free -- a plain lock of this name is held
if plain then
    check_record(lock)
end
local joins = mode and redis.call('hexists', lock, field) == 0 -- the caller has no hold yet
local plain_next = false
if KEYS[3] ~= lock and (plain or joins and mode == 'read' and redis.pcall('exists', KEYS[3]) == 1) then
local place_pattern = '^(%d+) (%a+) (%a+) (%d+) (%d) (%d+) (%S+) ?(%d*)$'
local near_head = 32
local in_both_ways = 'publish+spublish'

local tombstone_life = 60000
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

local most_numbers = 1e15 -- adding 1 to much larger numbers does not change them
local longest_line = 25000 -- numbers that a script iterates over; older versions have no limit
local most_over = 100000 -- bytes of the tombstones

local function of_writer(field) return field:sub(-6) == ':write' end

local function channel_of(channel, of_write)
    local name = channel:match('^redisson_lock__channel(:.*)') or channel:match('^redisson_rwlock(:.*)')
    return name and (of_write and 'redisson_rwlock' or 'redisson_lock__channel') .. name or channel
end

local function grants_to(channel, p) return channel_of(channel, of_writer(p.field)) .. ':' .. p.client end

local function parse_place(text, client)
    local number, state, delivery, lease, fenced, asked, field, since = text:match(place_pattern)
    if not number or #number > 15 or #lease > 15 then
        return nil -- the text is not that of a place
    end
    return {number = tonumber(number), state = state, delivery = delivery, lease = tonumber(lease), fenced = fenced,
        asked = asked, field = field, since = since, client = client}
end

local function open_line(lock, key, field)
    if not key or key == lock then
        return nil
    end
    local client = client_of(field)
    local head = redis.call('hmget', key, 'first', 'last', 'granted', 'shared', 'over', client, 'beside')
    local first, last, shared = tonumber(head[1] or 1), tonumber(head[2] or 0), tonumber(head[4] or 0)
    if not (first and last and shared and first >= 0 and last < most_numbers and last - first < longest_line) or
        #(head[5] or '') > most_over then
        refuse(key, 'type hash') -- this bounds the loops over the line: see record.lua
    end
    return {
        key = key, lock = lock, beside = head[7],
        exists = first <= last or head[3] or head[7], -- the line has more than tombstones
        any = head[1] or head[3] or head[5] or head[7],
        first = first, last = last, granted = head[3], shared = shared,
        over = head[5], mine = head[6] and parse_place(head[6], client),
        changes = {}, -- written when the line is closed: field -> value, or false to delete it
    }
end

local function set_life(line, life)
    local answer = redis.pcall('pexpire', line.key, life)
    if type(answer) == 'table' then
        if not line.any then
            redis.call('del', line.key)
        end
        error(answer, 0)
    end
end

local function read_places(line, from, to)
    local clients, places, numbers, some, together = {}, {}, {}, {}, {}
    for number = from, to do
        numbers[#numbers + 1] = ms(number)
    end
    for i, client in ipairs(redis.call('hmget', line.key, unpack(numbers))) do
        clients[from + i - 1] = client
        some[#some + 1] = client or nil
    end
    local texts, n = #some > 0 and redis.call('hmget', line.key, unpack(some)), 0
    for number = from, to do
        local client, p = clients[number], nil
        if client then
            n = n + 1
            p = texts[n] and parse_place(texts[n], client)
        end
        for _, known in ipairs({line.mine or false, line.back or false}) do
            if known and (known.client == client or known.unsaved and known.number == number) then
                p = known
            end
        end
        if p and p.number == number then
            places[number], clients[number], p.together = p, p.client, together
            together[#together + 1] = p
        end
    end
    return clients, places
end

local function places_of(line, last)
    last = math.min(last or line.last, line.last)
    local number = line.first - 1
    local to, size, clients, places = number, 1, nil, nil -- to: the last number that was read
    return function()
        number = number + 1
        if number > last then
            return nil
        elseif number > to then
            to = math.min(number + size - 1, last)
            clients, places = read_places(line, number, to)
            size = math.min(8 * size, 1000)
        end
        return number, clients[number], places[number]
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

local function plain_waits(line, channel, how)
    for _, _, p in places_of(line, line.first + near_head - 1) do
        if p and not of_writer(p.field) and p.state ~= 'suspect' and p.delivery == 'push' and
            is_reachable(p, channel, how) then
            return true
        end
    end
    return false
end

local function note_beside(line, channel, how)
    if line.beside or (listeners(channel, how) or 0) == 0 then
        return
    end
    line.beside = '1'
    local now = ms(now_ms())
    redis.pcall('hset', line.key, 'beside', 1)
    if not line.exists then
        redis.pcall('hset', line.key, 'shared', now)
        set_life(line, tombstone_life)
    end
end

    local line = open_line(lock, KEYS[3], field)
    if plain then
        note_beside(line, channel, how)
    else
        plain_next = plain_waits(line, channel, how)
    end
end
if plain then
    return {0, redis.call('pttl', lock), 0}
end
if free or joins then
    if hold_count ~= '1' then
        return {-1, 0, 0}
    elseif is_buried_reader(prefix, field) then -- this request runs late
        return {0, redis.call('pttl', lock), 0}
    end
    if mode and check_record(lock) == 1 then
        return {0, redis.call('pttl', lock), 0} -- the mode alone, left over from a lock, which expires
    end
    if not free and redis.call('hlen', lock) > most_holds then
        return {0, redis.call('pttl', lock), 0} -- the record is full
    end
    if mode ~= 'write' then
        local last, now = redis.call('zrevrange', writers, 0, 0, 'withscores'), now_ms()
        if last[2] and tonumber(last[2]) > now + farthest_beat then -- does not count: see readers.lua
            local after, to = '(' .. ms(now), ms(now + farthest_beat)
            last = redis.call('zrangebyscore', writers, after, to, 'withscores', 'limit', 0, 1)
        end
        local wait = last[2] and tonumber(last[2]) - now or 0
        if wait > 0 then
            return {0, math.max(1, wait), 0}
        elseif plain_next then
            return {0, redis.call('pttl', lock), 0}
        end
    elseif redis.call('hexists', lock, write_field) == 0 then
        return {0, redis.call('pttl', lock), 0}
    end
end

local longest = free and lease or math.max(lease, lease_left(prefix, field, 1))
redis.call('set', lease_key(prefix, field, 1), '1', 'PX', ms(longest))
if hold_count ~= '1' then
    redis.call('set', lease_key(prefix, field, hold_count), '1', 'PX', ms(longest))
end
if free then
    redis.call('hset', lock, 'mode', 'read', field, hold_count)
    begin_lease(lock, ms(longest), 'mode', field)
else
    extend(lock, longest)
    redis.call('hset', lock, field, hold_count)
end
return {1, 0, 0}

end, {'hash', 'zset', 'hash'})

end, roll_back = function(KEYS, ARGV)

local had, received -- whether the common case has ended the hold, and what Redis said when it told so

local in_both_ways = 'publish+spublish'

if not ARGV[6] and ARGV[4] ~= in_both_ways and ARGV[1]:sub(37, 39) ~= ':0:' and
    redis.pcall('exists', KEYS[3]) == 0 and redis.pcall('hlen', KEYS[1]) == 2 then
    local record = redis.pcall('hmget', KEYS[1], 'mode', ARGV[1])
    had = record[1] == 'read' and record[2] == '1' and
        type(redis.pcall('del', KEYS[1], ARGV[2] .. ARGV[1] .. ':rwlock_timeout:1')) == 'number'
    received = had and redis.pcall(ARGV[4], ARGV[3], '0')
    if received == 0 then
        return 0
    end
end
local place_format = '%s %s %s %s %s %s %s %s'
local place_pattern = '^(%d+) (%a+) (%a+) (%d+) (%d) (%d+) (%S+) ?(%d*)$'
local grant_format = 'grant %s %s %s %s'
local provisional = 5000
local near_head = 32
local most_holds = 10000 -- fields of a hash that one script reads
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

local function fields_of(lock)
    local n = redis.call('hlen', lock)
    if n > most_holds + 1 then -- and the mode
        return nil, 'fields ' .. n
    end
    return redis.call('hgetall', lock)
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

local function may_exist(key) return redis.pcall('exists', key) ~= 0 end

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
local tombstone_life = 60000
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

local function granted_lease(waiter)
    return waiter.state == 'confirmed' and waiter.lease or math.min(waiter.lease, provisional)
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

local function grant(lock, waiter, tokens, channel, how)
    local lease = granted_lease(waiter)
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
    if redis.pcall('pexpire', lock, ms(lease)) == 1 then
        heard = tell_granted(waiter, lease, token, channel, how)
    end
    if not heard then
        undo(lock, 'mode', waiter.field)
    end
    return heard
end

local function still_held(lock, field) return redis.call('hexists', lock, field) == 1 end

local function room_of(_, _) return nil end

local function fits(_, _) return 'now' end

local function goes_on(_, _) return false end
local most_places = 20000 -- numbers from the first place to the last one up to which clients join
local most_numbers = 1e15 -- adding 1 to much larger numbers does not change them
local longest_line = 25000 -- numbers that a script iterates over; older versions have no limit
local most_fields = 100000 -- that a script deletes with the last place; any others expire
local most_over = 100000 -- bytes of the tombstones

local function of_writer(field) return field:sub(-6) == ':write' end

local function channel_of(channel, of_write)
    local name = channel:match('^redisson_lock__channel(:.*)') or channel:match('^redisson_rwlock(:.*)')
    return name and (of_write and 'redisson_rwlock' or 'redisson_lock__channel') .. name or channel
end

local function grants_to(channel, p) return channel_of(channel, of_writer(p.field)) .. ':' .. p.client end

local function parse_place(text, client)
    local number, state, delivery, lease, fenced, asked, field, since = text:match(place_pattern)
    if not number or #number > 15 or #lease > 15 then
        return nil -- the text is not that of a place
    end
    return {number = tonumber(number), state = state, delivery = delivery, lease = tonumber(lease), fenced = fenced,
        asked = asked, field = field, since = since, client = client}
end

local function open_line(lock, key, field)
    if not key or key == lock then
        return nil
    end
    local client = client_of(field)
    local head = redis.call('hmget', key, 'first', 'last', 'granted', 'shared', 'over', client, 'beside')
    local first, last, shared = tonumber(head[1] or 1), tonumber(head[2] or 0), tonumber(head[4] or 0)
    if not (first and last and shared and first >= 0 and last < most_numbers and last - first < longest_line) or
        #(head[5] or '') > most_over then
        refuse(key, 'type hash') -- this bounds the loops over the line: see record.lua
    end
    return {
        key = key, lock = lock, beside = head[7],
        exists = first <= last or head[3] or head[7], -- the line has more than tombstones
        any = head[1] or head[3] or head[5] or head[7],
        first = first, last = last, granted = head[3], shared = shared,
        over = head[5], mine = head[6] and parse_place(head[6], client),
        changes = {}, -- written when the line is closed: field -> value, or false to delete it
    }
end

local function set_field(line, field, value) line.changes[field] = value end

local function drop_field(line, field) line.changes[field] = false end

local function in_parts(list, run)
    local answer
    for from = 1, #list, 1000 do
        answer = run(unpack(list, from, math.min(from + 999, #list)))
        if type(answer) == 'table' then
            break
        end
    end
    return answer
end

local function set_life(line, life)
    local answer = redis.pcall('pexpire', line.key, life)
    if type(answer) == 'table' then
        if not line.any then
            redis.call('del', line.key)
        end
        error(answer, 0)
    end
end

local function clear_line(line)
    local beside = line.beside and may_exist(line.lock)
    local stays = {over = line.over, beside = beside, shared = beside}
    local gone = {}
    for _, field in ipairs(line.any and redis.call('hrandfield', line.key, most_fields) or {}) do
        if not field:find(':', 1, true) and not stays[field] then
            gone[#gone + 1] = field
        end
    end
    in_parts(gone, function(...) return redis.call('hdel', line.key, ...) end)
    local written = line.changes.over and redis.pcall('hset', line.key, 'over', line.over)
    if line.over then
        set_life(line, tombstone_life)
    end
    return type(written) ~= 'table'
end

local function close_line(line)
    if line.first > line.last and not line.granted then
        return clear_line(line)
    end
    set_field(line, 'first', ms(line.first))
    set_field(line, 'last', ms(line.last))
    local set, gone = {}, {}
    for field, value in pairs(line.changes) do
        if value then
            set[#set + 1], set[#set + 2] = field, value
        else
            gone[#gone + 1] = field
        end
    end
    local written = in_parts(set, function(...) return redis.pcall('hset', line.key, ...) end)
    in_parts(gone, function(...) return redis.call('hdel', line.key, ...) end)
    if line.life then
        set_life(line, line.life)
    end
    return type(written) ~= 'table' -- an error: Redis has no memory left
end

local function place_of(line, client)
    if line.mine and line.mine.client == client then
        return line.mine
    end
    local text = redis.call('hget', line.key, client)
    return text and parse_place(text, client)
end

local function read_places(line, from, to)
    local clients, places, numbers, some, together = {}, {}, {}, {}, {}
    for number = from, to do
        numbers[#numbers + 1] = ms(number)
    end
    for i, client in ipairs(redis.call('hmget', line.key, unpack(numbers))) do
        clients[from + i - 1] = client
        some[#some + 1] = client or nil
    end
    local texts, n = #some > 0 and redis.call('hmget', line.key, unpack(some)), 0
    for number = from, to do
        local client, p = clients[number], nil
        if client then
            n = n + 1
            p = texts[n] and parse_place(texts[n], client)
        end
        for _, known in ipairs({line.mine or false, line.back or false}) do
            if known and (known.client == client or known.unsaved and known.number == number) then
                p = known
            end
        end
        if p and p.number == number then
            places[number], clients[number], p.together = p, p.client, together
            together[#together + 1] = p
        end
    end
    return clients, places
end

local function places_of(line, last)
    last = math.min(last or line.last, line.last)
    local number = line.first - 1
    local to, size, clients, places = number, 1, nil, nil -- to: the last number that was read
    return function()
        number = number + 1
        if number > last then
            return nil
        elseif number > to then
            to = math.min(number + size - 1, last)
            clients, places = read_places(line, number, to)
            size = math.min(8 * size, 1000)
        end
        return number, clients[number], places[number]
    end
end

local function place_text(p)
    return string.format(place_format, ms(p.number), p.state, p.delivery, ms(p.lease), p.fenced, p.asked, p.field,
        p.since)
end

local function put_place(line, p)
    set_field(line, p.client, place_text(p))
    set_field(line, ms(p.number), p.client)
end

local function client_at(line, number)
    local changed = line.changes[ms(number)]
    if changed ~= nil then
        return changed
    end
    return redis.call('hget', line.key, ms(number))
end

local function is_enqueued(line, p) return p.number >= line.first and client_at(line, p.number) == p.client end
local function note_expired_grant(line)
    local field = line.granted
    if not field then
        return
    end
    line.granted = false
    drop_field(line, 'granted')
    local p = place_of(line, client_of(field))
    if not p or p.field ~= field or p.unsaved or is_enqueued(line, p) then
        return
    end
    if p.delivery == 'poll' or line.last - p.number >= most_places then
        drop_field(line, p.client)
        return
    end
    p.state, p.unsaved = 'suspect', true
    put_place(line, p)
    line.back = p
    line.first = math.min(line.first, p.number)
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
    local now, half, request = now_ms(), provisional / 2, p.field .. ' ' .. p.asked .. ' '
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

local most_told = 100 -- suspects that one script tells of a free lock; the others notice it when they look at the lock

local function close_up(line, stay, next_number)
    line.first = #stay > 0 and stay[1].number or next_number
    local missing = next_number - line.first - #stay
    if missing == 0 or #stay > near_head and missing <= #stay then
        return
    end
    local last = line.granted and place_of(line, client_of(line.granted))
    local granted = last and last.field == line.granted and last.number
    for _, p in ipairs(stay) do
        drop_field(line, ms(p.number))
    end
    local number = next_number
    for i = #stay, 1, -1 do
        number = number - (number - 1 == granted and 2 or 1)
        stay[i].number = number
        put_place(line, stay[i])
    end
    line.first = number
end

local function pass_on(lock, line, tokens, channel, how, asker)
    if line.granted and not still_held(lock, line.granted) then
        note_expired_grant(line)
    end
    local room = room_of(lock, tokens)
    local stay = {} -- the places that are passed over: suspects, and those that fit never
    local to, is_left, next_number = nil, true, line.last + 1
    for number, client, p in places_of(line) do
        local fit = p and (p.state == 'suspect' and 'never' or fits(p, room))
        local leaves = false
        if fit == 'now' and client == asker then
            to, is_left, leaves, line.mine = asker, false, true, nil
        elseif fit and not is_reachable(p, channel, how) then
            fit, leaves = nil, true
        elseif fit == 'later' and (client == asker or keeps_for(line, p, channel, how)) then
            line.short, next_number = true, number
            break
        elseif fit == 'later' and p.delivery == 'poll' then
            fit, leaves = nil, true -- as in note_expired_grant
        elseif fit == 'later' then
            fit, p.state = 'never', 'suspect'
            put_place(line, p)
        elseif fit == 'now' then
            local granted = grant(lock, p, tokens, grants_to(channel, p), how)
            if granted == nil then -- nothing can be granted: this place stays, and all behind it
                line.mute, is_left, next_number = true, false, number
                announce(how, grants_to(channel, p), 'free')
                break
            elseif granted then
                to, is_left, line.granted = client, goes_on(room, p), p.field
                set_field(line, 'granted', p.field)
            else
                leaves = true
            end
        end
        if fit == 'never' then
            stay[#stay + 1] = p
        elseif client then
            drop_field(line, ms(number))
        end
        if leaves then
            drop_field(line, client)
        end
        if not is_left then
            next_number = number + 1
            break
        end
    end
    close_up(line, stay, next_number)
    local may_tell = is_left and most_told or 0
    for _, p in ipairs(stay) do
        if may_tell > 0 and p.state == 'suspect' then
            announce(how, grants_to(channel, p), 'free')
            may_tell = may_tell - 1
        end
    end
    return to
end

local function announce_beside(channel, how)
    local other = channel_of(channel, not channel:find('^redisson_rwlock:'))
    local known = other ~= channel and listeners(other, how) or 0
    return known > 0 and math.min(announce(how, other, '0'), known) or 0
end

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
    local stay, next_number = {}, line.last + 1 -- stay: suspects, whose processes may be paused
    for number, client, p in places_of(line) do
        if p and is_reachable(p, channel, how) then
            if p.state ~= 'suspect' or #stay < most_told then
                announce(how, grants_to(channel, p), 'free')
            end
            if p.state ~= 'suspect' then
                next_number = number
                break
            end
            stay[#stay + 1] = p
        elseif client then
            drop_field(line, ms(number))
            if p then
                drop_field(line, client)
            end
        end
    end
    close_up(line, stay, next_number)
    return math.max((known or 1) + beside, 1)
end

local function try(step)
    local done, result = pcall(step)
    return done and result or nil
end

local function is_write(field) return field:sub(-6) == ':write' end

local function forget_writer(writers, field)
    if is_write(field) then
        redis.pcall('zrem', writers, field:sub(1, -7))
    end
end

local most_leases = 50000 -- leases that one script reads
local forever = 100 * 365 * 24 * 3600 * 1000

local function hold_count_of(value)
    return value and math.min(tonumber(value) or most_hold_count, most_hold_count) or 0
end

local function lease_key(prefix, reader, n)
    return prefix .. reader .. ':rwlock_timeout:' .. n
end

local function leases_of(reader, hold_count)
    local acquisition = reader:match('^[%x-]+:%-?%d+:(%d+)$')
    return acquisition and #acquisition <= 20 and 1 or hold_count
end

local function lease_left(prefix, reader, hold_count)
    local longest = -2
    for n = 1, math.min(leases_of(reader, hold_count), most_hold_count) do
        local left = redis.call('pttl', lease_key(prefix, reader, n))
        if left == -1 then
            left = forever -- another program has removed the expiry
        end
        longest = math.max(longest, left)
    end
    return longest
end

local function bury_reader(prefix, reader)
    local key, life = lease_key(prefix, reader, 0), '60000' -- as late.Life
    redis.pcall('pexpire', key, life)
    redis.pcall('set', key, '0', 'PX', life)
end

local function drop_leases(prefix, reader, from, to)
    if from == 1 and reader:find('^[%x-]+:0:') then
        bury_reader(prefix, reader)
    end
    for n = from, math.min(to, most_hold_count) do
        redis.call('del', lease_key(prefix, reader, n))
    end
end

local function is_dead(lock, prefix, reader)
    redis.call('exists', lock, lease_key(prefix, reader, 1))
    return true
end

local most_asked = 32 -- readers

local function has_reader(lock, prefix, except, least)
    local fields = redis.call('hlen', lock)
    if fields <= most_asked or fields > most_holds + 1 then
        return false
    end
    local some = redis.call('hrandfield', lock, most_asked, 'withvalues')
    for i = 1, #some, 2 do
        local field, value = some[i], some[i + 1]
        if field ~= 'mode' and field ~= except and not is_write(field) and is_hold(field, value) then
            local left = redis.call('pttl', lease_key(prefix, field, 1))
            if left >= least or left == -1 then
                return true
            end
        end
    end
    return false
end

local function evict_dead_readers(lock, prefix, except)
    local entries, strange = fields_of(lock)
    local living, longest, leases, dead = 0, -2, 0, {}
    entries = entries or {}
    for i = 1, #entries, 2 do
        local field, value = entries[i], entries[i + 1]
        local other = field ~= 'mode' and field ~= except
        if other and (not is_hold(field, value) or too_deep(field, value)) then
            strange = strange or field_text(field)
        elseif other and not strange and not is_write(field) then
            local hold_count = tonumber(value)
            leases = leases + leases_of(field, hold_count)
            local left = leases <= most_leases and lease_left(prefix, field, hold_count) or 0
            if leases > most_leases then
                strange = field_text(field)
            elseif left > 0 then
                living = living + 1
                longest = math.max(longest, left)
            else
                dead[#dead + 1] = field
            end
        end
    end
    if strange then
        local left = redis.call('pttl', lock)
        return living + 1, math.max(longest, left == -1 and forever or left, 1), 0, strange
    end
    for _, field in ipairs(dead) do
        if is_dead(lock, prefix, field) and living > 0 then
            redis.call('hdel', lock, field)
        end
    end
    return living, longest, #dead
end
local function pass_to_writer(lock, writers, line, tokens, channel, how, message, window)
    local heard, to = 0, nil
    if line and line.exists then
        try(function()
            heard = line.first <= line.last and release_to_all(line, channel, how, message, window, true) or 0
            to = heard == 0 and pass_on(lock, line, tokens, channel, how, nil) or nil
        end)
        if to then
            forget_writer(writers, line.granted)
        end
    end
    return heard, to
end

return answer(function()

local lock, writers, tokens = KEYS[1], KEYS[2], KEYS[4]
local field, prefix, channel, how, window = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local left, late, refuse_others = tonumber(ARGV[6] or 0), ARGV[7] == '1', ARGV[8] ~= '0'

if had then
    return {1, announce_release(how, channel, '0', received), 0}
end

local mode = redis.call('hget', lock, 'mode')
local hold_count = hold_count_of(mode and redis.call('hget', lock, field))

if late and left == 0 then
    bury_reader(prefix, field)
end
if hold_count == 0 then
    drop_leases(prefix, field, left + 1, left + 1) -- Redisson's forceUnlock leaves leases behind
    if refuse_others then
        check_record(lock)
    end
    return {-1, 0, 0}
end
if left > 0 then
    drop_leases(prefix, field, left + 1, hold_count)
    note_hold_count(lock, field, left)
    return {1, 0, 0}
end

local function changes_nothing()
    local ends = redis.call('pttl', lock)
    local longest = lease_left(prefix, field, 1) > ends - 1000
    return ends > 0 and has_reader(lock, prefix, field, longest and math.max(1, ends - 1000) or 1)
end

local living, longest
if mode ~= 'write' and not changes_nothing() then
    living, longest = evict_dead_readers(lock, prefix, field)
end
drop_leases(prefix, field, 1, hold_count)
if living == 0 then
    redis.call('del', lock)
    local line = try(function() return open_line(lock, KEYS[3], field) end)
    local heard, to = pass_to_writer(lock, writers, line, tokens, channel, how, '0', window)
    if line and line.exists then
        try(function() close_line(line) end)
    end
    if heard == 0 and not to then
        heard = announce_release(how, channel, '0') + (line and line.exists and announce_beside(channel, how) or 0)
    end
    return {1, heard, to and 1 or 0}
end
redis.call('hdel', lock, field)
if living then
    redis.call('pexpire', lock, ms(longest))
end
return {1, 0, 0}

end, {'hash', 'zset', 'hash', 'string'})

end},
    {acquire = function(KEYS, ARGV)

local token, following

if (ARGV[7] or '1') == '1' and redis.pcall('exists', KEYS[1], KEYS[2], KEYS[3]) == 0 then
    local field = ARGV[1] .. ':write'
    token = 0
    if KEYS[4] then -- drawn first: if the counter is not a number, the lock must not be acquired
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
        token, following = take_token(KEYS[4])
    end
    if token and redis.pcall('hset', KEYS[1], 'mode', 'write', field, '1') == 2 then
        if redis.pcall('pexpire', KEYS[1], ARGV[2]) == 1 then
            return token
        end
        if type(redis.pcall('hdel', KEYS[1], 'mode', field)) == 'table' then -- as undo of record.lua
            redis.pcall('del', KEYS[1])
        end
    end
end
local place_format = '%s %s %s %s %s %s %s %s'
local place_pattern = '^(%d+) (%a+) (%a+) (%d+) (%d) (%d+) (%S+) ?(%d*)$'
local grant_format = 'grant %s %s %s %s'
local provisional = 5000
local line_life = 5 * 60 * 1000
local near_head = 32
local most_holds = 10000 -- fields of a hash that one script reads
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

local function fields_of(lock)
    local n = redis.call('hlen', lock)
    if n > most_holds + 1 then -- and the mode
        return nil, 'fields ' .. n
    end
    return redis.call('hgetall', lock)
end

local function uses_line(field)
    return field:find('^[%x-]+:%-?%d+:0%d+$') or field:find('^[%x-]+:%-?%d+:0%d+:write$')
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

local function may_exist(key) return redis.pcall('exists', key) ~= 0 end

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

local function now_ms()
    local clock = redis.call('time')
    return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

local function now_s() return redis.call('time')[1] end

local function ms(t) return string.format('%.0f', t) end
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
local tombstone_life = 60000
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

local function granted_lease(waiter)
    return waiter.state == 'confirmed' and waiter.lease or math.min(waiter.lease, provisional)
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

local function is_buried(over, field, now)
    if tonumber((over or ''):match('^%S+ (%d+)') or 0) <= now then -- all of them have expired
        return false, false
    end
    local _, behind = over:find(field .. ' ', 1, true)
    return behind and tonumber(over:match('^%d+', behind + 1) or 0) > now or false, true
end
local function grant(lock, waiter, tokens, channel, how)
    local lease = granted_lease(waiter)
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
    if redis.pcall('pexpire', lock, ms(lease)) == 1 then
        heard = tell_granted(waiter, lease, token, channel, how)
    end
    if not heard then
        undo(lock, 'mode', waiter.field)
    end
    return heard
end

local function still_held(lock, field) return redis.call('hexists', lock, field) == 1 end

local function comes_back(lock, field) return not still_held(lock, field) end

local function room_of(_, _) return nil end

local function fits(_, _) return 'now' end

local function goes_on(_, _) return false end
local function standing_of(ahead, legacy, lost)
    if legacy then
        return 2
    elseif ahead then
        return 1 + 4 * ahead
    end
    return lost and 3 or 0
end
local most_places = 20000 -- numbers from the first place to the last one up to which clients join
local most_numbers = 1e15 -- adding 1 to much larger numbers does not change them
local longest_line = 25000 -- numbers that a script iterates over; older versions have no limit
local most_fields = 100000 -- that a script deletes with the last place; any others expire
local most_over = 100000 -- bytes of the tombstones

local function wait_number(field) return tonumber(field:match('^[%x-]+:%-?%d+:(%d+)') or 0) end

local function of_writer(field) return field:sub(-6) == ':write' end

local function channel_of(channel, of_write)
    local name = channel:match('^redisson_lock__channel(:.*)') or channel:match('^redisson_rwlock(:.*)')
    return name and (of_write and 'redisson_rwlock' or 'redisson_lock__channel') .. name or channel
end

local function grants_to(channel, p) return channel_of(channel, of_writer(p.field)) .. ':' .. p.client end

local function parse_place(text, client)
    local number, state, delivery, lease, fenced, asked, field, since = text:match(place_pattern)
    if not number or #number > 15 or #lease > 15 then
        return nil -- the text is not that of a place
    end
    return {number = tonumber(number), state = state, delivery = delivery, lease = tonumber(lease), fenced = fenced,
        asked = asked, field = field, since = since, client = client}
end

local function open_line(lock, key, field)
    if not key or key == lock then
        return nil
    end
    local client = client_of(field)
    local head = redis.call('hmget', key, 'first', 'last', 'granted', 'shared', 'over', client, 'beside')
    local first, last, shared = tonumber(head[1] or 1), tonumber(head[2] or 0), tonumber(head[4] or 0)
    if not (first and last and shared and first >= 0 and last < most_numbers and last - first < longest_line) or
        #(head[5] or '') > most_over then
        refuse(key, 'type hash') -- this bounds the loops over the line: see record.lua
    end
    return {
        key = key, lock = lock, beside = head[7],
        exists = first <= last or head[3] or head[7], -- the line has more than tombstones
        any = head[1] or head[3] or head[5] or head[7],
        first = first, last = last, granted = head[3], shared = shared,
        over = head[5], mine = head[6] and parse_place(head[6], client),
        changes = {}, -- written when the line is closed: field -> value, or false to delete it
    }
end

local function set_field(line, field, value) line.changes[field] = value end

local function drop_field(line, field) line.changes[field] = false end

local function in_parts(list, run)
    local answer
    for from = 1, #list, 1000 do
        answer = run(unpack(list, from, math.min(from + 999, #list)))
        if type(answer) == 'table' then
            break
        end
    end
    return answer
end

local function set_life(line, life)
    local answer = redis.pcall('pexpire', line.key, life)
    if type(answer) == 'table' then
        if not line.any then
            redis.call('del', line.key)
        end
        error(answer, 0)
    end
end

local function clear_line(line)
    local beside = line.beside and may_exist(line.lock)
    local stays = {over = line.over, beside = beside, shared = beside}
    local gone = {}
    for _, field in ipairs(line.any and redis.call('hrandfield', line.key, most_fields) or {}) do
        if not field:find(':', 1, true) and not stays[field] then
            gone[#gone + 1] = field
        end
    end
    in_parts(gone, function(...) return redis.call('hdel', line.key, ...) end)
    local written = line.changes.over and redis.pcall('hset', line.key, 'over', line.over)
    if line.over then
        set_life(line, tombstone_life)
    end
    return type(written) ~= 'table'
end

local function close_line(line)
    if line.first > line.last and not line.granted then
        return clear_line(line)
    end
    set_field(line, 'first', ms(line.first))
    set_field(line, 'last', ms(line.last))
    local set, gone = {}, {}
    for field, value in pairs(line.changes) do
        if value then
            set[#set + 1], set[#set + 2] = field, value
        else
            gone[#gone + 1] = field
        end
    end
    local written = in_parts(set, function(...) return redis.pcall('hset', line.key, ...) end)
    in_parts(gone, function(...) return redis.call('hdel', line.key, ...) end)
    if line.life then
        set_life(line, line.life)
    end
    return type(written) ~= 'table' -- an error: Redis has no memory left
end

local function place_of(line, client)
    if line.mine and line.mine.client == client then
        return line.mine
    end
    local text = redis.call('hget', line.key, client)
    return text and parse_place(text, client)
end

local function read_places(line, from, to)
    local clients, places, numbers, some, together = {}, {}, {}, {}, {}
    for number = from, to do
        numbers[#numbers + 1] = ms(number)
    end
    for i, client in ipairs(redis.call('hmget', line.key, unpack(numbers))) do
        clients[from + i - 1] = client
        some[#some + 1] = client or nil
    end
    local texts, n = #some > 0 and redis.call('hmget', line.key, unpack(some)), 0
    for number = from, to do
        local client, p = clients[number], nil
        if client then
            n = n + 1
            p = texts[n] and parse_place(texts[n], client)
        end
        for _, known in ipairs({line.mine or false, line.back or false}) do
            if known and (known.client == client or known.unsaved and known.number == number) then
                p = known
            end
        end
        if p and p.number == number then
            places[number], clients[number], p.together = p, p.client, together
            together[#together + 1] = p
        end
    end
    return clients, places
end

local function places_of(line, last)
    last = math.min(last or line.last, line.last)
    local number = line.first - 1
    local to, size, clients, places = number, 1, nil, nil -- to: the last number that was read
    return function()
        number = number + 1
        if number > last then
            return nil
        elseif number > to then
            to = math.min(number + size - 1, last)
            clients, places = read_places(line, number, to)
            size = math.min(8 * size, 1000)
        end
        return number, clients[number], places[number]
    end
end

local function place_text(p)
    return string.format(place_format, ms(p.number), p.state, p.delivery, ms(p.lease), p.fenced, p.asked, p.field,
        p.since)
end

local function put_place(line, p)
    set_field(line, p.client, place_text(p))
    set_field(line, ms(p.number), p.client)
end

local function client_at(line, number)
    local changed = line.changes[ms(number)]
    if changed ~= nil then
        return changed
    end
    return redis.call('hget', line.key, ms(number))
end

local function is_enqueued(line, p) return p.number >= line.first and client_at(line, p.number) == p.client end
local function drop_number(line, number)
    drop_field(line, ms(number))
    redis.call('hdel', line.key, ms(number)) -- at once, because pass_on looks for numbers in Redis
    while line.first <= line.last and not client_at(line, line.first) do
        line.first = line.first + 1
    end
end

local function drop_place(line, p)
    drop_field(line, p.client)
    if p.unsaved or is_enqueued(line, p) then
        drop_number(line, p.number)
    end
end

local function note_expired_grant(line)
    local field = line.granted
    if not field then
        return
    end
    line.granted = false
    drop_field(line, 'granted')
    local p = place_of(line, client_of(field))
    if not p or p.field ~= field or p.unsaved or is_enqueued(line, p) then
        return
    end
    if p.delivery == 'poll' or line.last - p.number >= most_places then
        drop_field(line, p.client)
        return
    end
    p.state, p.unsaved = 'suspect', true
    put_place(line, p)
    line.back = p
    line.first = math.min(line.first, p.number)
end

local most_missing = 200 -- numbers; each script that iterates over the line looks up all of them

local function close_gaps(line)
    local span = line.last - line.first
    local fields = span >= most_missing and redis.call('hlen', line.key)
    if not fields or span < 2 * fields and (span < most_places or span < fields) then
        return
    end
    local all = redis.call('hrandfield', line.key, fields, 'withvalues') -- all: users may call hrandfield
    local places, numbers = {}, {}
    for i = 1, #all, 2 do
        if #all[i] == 36 then
            places[#places + 1] = parse_place(all[i + 1], all[i]) -- nil adds no element
        elseif tonumber(all[i]) then
            numbers[all[i]] = all[i + 1]
        end
    end
    table.sort(places, function(a, b) return a.number < b.number end)
    for number in pairs(numbers) do
        redis.call('hdel', line.key, number)
    end
    local first
    for i, p in ipairs(places) do
        local was_enqueued = numbers[ms(p.number)] == p.client
        p.number = line.first + i - 1
        redis.call('hset', line.key, p.client, place_text(p))
        if was_enqueued then
            redis.call('hset', line.key, ms(p.number), p.client)
            first = first or p.number
        end
        if line.mine and line.mine.client == p.client then
            line.mine = p
        end
    end
    line.last = line.first + #places - 1
    line.first = first or line.last + 1
end

local function is_guest(line, field)
    local p = line and line.mine
    return p and of_writer(p.field) ~= of_writer(field) and
        (p.unsaved or line.granted == p.field or is_enqueued(line, p)) or false
end

local function join(lock, line, field, wish)
    close_gaps(line)
    local before, client = line.mine, client_of(field)
    local own = before and before.field == field
    if before and line.granted == before.field and (own or comes_back(lock, before.field)) then
        note_expired_grant(line)
    end
    local stays = before and (before.unsaved or is_enqueued(line, before))
    if stays and of_writer(before.field) == of_writer(field) and wait_number(before.field) > wait_number(field) then
        return false
    end
    local p = {state = 'new', delivery = wish.delivery, lease = wish.lease, fenced = wish.fenced, asked = wish.asked,
        field = field, client = client, unsaved = true}
    if own then
        p.state = before.state == 'suspect' and 'confirmed' or before.state
    end
    if stays and before.state == 'suspect' and before.field ~= field then -- the hold of that place was lost
        drop_number(line, before.number)
        stays = false
    end
    if stays then
        p.number, p.since = before.number, before.since
    elseif line.last - line.first >= most_places then
        return false -- the caller polls
    else
        line.last = line.last + 1
        p.number, p.since = line.last, now_s()
    end
    line.mine, line.back, line.life = p, nil, line_life
    put_place(line, p)
    if not line.exists then -- while the line was empty, releases were announced to everybody
        line.shared = now_ms()
        set_field(line, 'shared', ms(line.shared))
    end
    return true
end

local function places_in_front(line)
    local numbers = math.max(0, line.mine.number - line.first)
    return numbers < near_head and numbers or math.min(numbers, math.floor(redis.call('hlen', line.key) / 2))
end

local function standing(line, joined, lost, legacy)
    return standing_of(joined and places_in_front(line) or nil, legacy, lost)
end

local function leave(line, field)
    local p = line.mine
    if p and p.field == field then
        drop_place(line, p)
        line.mine = nil
    end
    if line.granted == field then
        drop_field(line, 'granted')
        line.granted = false
    end
end

local function leave_held(line, field, ...)
    local left, why = pcall(function()
        leave(line, field)
        close_line(line)
    end)
    if not left then
        undo(line.lock, ...)
        error(why, 0)
    end
end

local function has_tombstone(line, field)
    local found, any = is_buried(line.over, field, now_ms())
    if line.over and not any then
        line.over = false
        drop_field(line, 'over')
    end
    return found
end
local function subscription_lost(field, delivery, channel, how)
    return delivery == 'push' and listeners(channel .. ':' .. client_of(field), how) == 0
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
    local now, half, request = now_ms(), provisional / 2, p.field .. ' ' .. p.asked .. ' '
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

local most_told = 100 -- suspects that one script tells of a free lock; the others notice it when they look at the lock

local function close_up(line, stay, next_number)
    line.first = #stay > 0 and stay[1].number or next_number
    local missing = next_number - line.first - #stay
    if missing == 0 or #stay > near_head and missing <= #stay then
        return
    end
    local last = line.granted and place_of(line, client_of(line.granted))
    local granted = last and last.field == line.granted and last.number
    for _, p in ipairs(stay) do
        drop_field(line, ms(p.number))
    end
    local number = next_number
    for i = #stay, 1, -1 do
        number = number - (number - 1 == granted and 2 or 1)
        stay[i].number = number
        put_place(line, stay[i])
    end
    line.first = number
end

local function pass_on(lock, line, tokens, channel, how, asker)
    if line.granted and not still_held(lock, line.granted) then
        note_expired_grant(line)
    end
    local room = room_of(lock, tokens)
    local stay = {} -- the places that are passed over: suspects, and those that fit never
    local to, is_left, next_number = nil, true, line.last + 1
    for number, client, p in places_of(line) do
        local fit = p and (p.state == 'suspect' and 'never' or fits(p, room))
        local leaves = false
        if fit == 'now' and client == asker then
            to, is_left, leaves, line.mine = asker, false, true, nil
        elseif fit and not is_reachable(p, channel, how) then
            fit, leaves = nil, true
        elseif fit == 'later' and (client == asker or keeps_for(line, p, channel, how)) then
            line.short, next_number = true, number
            break
        elseif fit == 'later' and p.delivery == 'poll' then
            fit, leaves = nil, true -- as in note_expired_grant
        elseif fit == 'later' then
            fit, p.state = 'never', 'suspect'
            put_place(line, p)
        elseif fit == 'now' then
            local granted = grant(lock, p, tokens, grants_to(channel, p), how)
            if granted == nil then -- nothing can be granted: this place stays, and all behind it
                line.mute, is_left, next_number = true, false, number
                announce(how, grants_to(channel, p), 'free')
                break
            elseif granted then
                to, is_left, line.granted = client, goes_on(room, p), p.field
                set_field(line, 'granted', p.field)
            else
                leaves = true
            end
        end
        if fit == 'never' then
            stay[#stay + 1] = p
        elseif client then
            drop_field(line, ms(number))
        end
        if leaves then
            drop_field(line, client)
        end
        if not is_left then
            next_number = number + 1
            break
        end
    end
    close_up(line, stay, next_number)
    local may_tell = is_left and most_told or 0
    for _, p in ipairs(stay) do
        if may_tell > 0 and p.state == 'suspect' then
            announce(how, grants_to(channel, p), 'free')
            may_tell = may_tell - 1
        end
    end
    return to
end

local function note_beside(line, channel, how)
    if line.beside or (listeners(channel, how) or 0) == 0 then
        return
    end
    line.beside = '1'
    local now = ms(now_ms())
    redis.pcall('hset', line.key, 'beside', 1)
    if not line.exists then
        redis.pcall('hset', line.key, 'shared', now)
        set_life(line, tombstone_life)
    end
end

local farthest_beat = 6000

local function is_write(field) return field:sub(-6) == ':write' end

local function forget_writer(writers, field)
    if is_write(field) then
        redis.pcall('zrem', writers, field:sub(1, -7))
    end
end

local most_leases = 50000 -- leases that one script reads
local forever = 100 * 365 * 24 * 3600 * 1000

local function extend(key, to)
    if redis.call('pttl', key) < to then
        redis.call('pexpire', key, ms(to))
    end
end

local function lease_key(prefix, reader, n)
    return prefix .. reader .. ':rwlock_timeout:' .. n
end

local function leases_of(reader, hold_count)
    local acquisition = reader:match('^[%x-]+:%-?%d+:(%d+)$')
    return acquisition and #acquisition <= 20 and 1 or hold_count
end

local function lease_left(prefix, reader, hold_count)
    local longest = -2
    for n = 1, math.min(leases_of(reader, hold_count), most_hold_count) do
        local left = redis.call('pttl', lease_key(prefix, reader, n))
        if left == -1 then
            left = forever -- another program has removed the expiry
        end
        longest = math.max(longest, left)
    end
    return longest
end

local function is_dead(lock, prefix, reader)
    redis.call('exists', lock, lease_key(prefix, reader, 1))
    return true
end

local most_asked = 32 -- readers

local function has_reader(lock, prefix, except, least)
    local fields = redis.call('hlen', lock)
    if fields <= most_asked or fields > most_holds + 1 then
        return false
    end
    local some = redis.call('hrandfield', lock, most_asked, 'withvalues')
    for i = 1, #some, 2 do
        local field, value = some[i], some[i + 1]
        if field ~= 'mode' and field ~= except and not is_write(field) and is_hold(field, value) then
            local left = redis.call('pttl', lease_key(prefix, field, 1))
            if left >= least or left == -1 then
                return true
            end
        end
    end
    return false
end

local function evict_dead_readers(lock, prefix, except)
    local entries, strange = fields_of(lock)
    local living, longest, leases, dead = 0, -2, 0, {}
    entries = entries or {}
    for i = 1, #entries, 2 do
        local field, value = entries[i], entries[i + 1]
        local other = field ~= 'mode' and field ~= except
        if other and (not is_hold(field, value) or too_deep(field, value)) then
            strange = strange or field_text(field)
        elseif other and not strange and not is_write(field) then
            local hold_count = tonumber(value)
            leases = leases + leases_of(field, hold_count)
            local left = leases <= most_leases and lease_left(prefix, field, hold_count) or 0
            if leases > most_leases then
                strange = field_text(field)
            elseif left > 0 then
                living = living + 1
                longest = math.max(longest, left)
            else
                dead[#dead + 1] = field
            end
        end
    end
    if strange then
        local left = redis.call('pttl', lock)
        return living + 1, math.max(longest, left == -1 and forever or left, 1), 0, strange
    end
    for _, field in ipairs(dead) do
        if is_dead(lock, prefix, field) and living > 0 then
            redis.call('hdel', lock, field)
        end
    end
    return living, longest, #dead
end
return answer(function()

local lock, writers, tokens = KEYS[1], KEYS[2], KEYS[4]
local field, lease, prefix, heartbeat_ttl = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local channel, how, hold_count, delivery = ARGV[5], ARGV[6], ARGV[7] or '1', ARGV[8] or 'defer'
local read_field, asked, fenced = ARGV[9] or '', ARGV[10], tokens and '1' or '0'
local write_field, waits = field .. ':write', delivery == 'push' or delivery == 'poll'

local function upgrading()
    local n, now = 1, now_ms()
    local alive = redis.call('zrangebyscore', writers, ms(now), ms(now + farthest_beat), 'limit', 0, most_holds)
    for _, waiting in ipairs(alive) do
        if waiting ~= read_field and redis.call('hexists', lock, waiting) == 1 then
            n = n + 1
        end
    end
    return n
end

local function beat(of)
    redis.call('zadd', writers, ms(now_ms() + heartbeat_ttl), of)
end

local function heartbeat()
    if heartbeat_ttl > 0 then
        beat(field)
        if read_field ~= '' then
            beat(read_field)
        end
        local done, why = pcall(extend, writers, heartbeat_ttl)
        if not done then
            redis.call('zrem', writers, field, read_field)
            error(why, 0)
        end
    end
end

local function has_legacy_holder()
    local entries = fields_of(lock)
    for i = 1, entries and #entries or 0, 2 do
        if entries[i] ~= 'mode' and not uses_line(entries[i]) then
            return true
        end
    end
    return not entries
end

local mode = redis.call('hget', lock, 'mode')
local plain = not mode and redis.call('exists', lock) == 1 -- a plain lock of this name is held
if plain then
    check_record(lock)
end
local mine = mode and redis.call('hexists', lock, write_field) == 1
if hold_count ~= '1' and not mine then
    return {-1, 0, 0}
end
local line
if not mine then
    line = open_line(lock, KEYS[3], write_field) -- before the first write, because it may refuse
    if line and has_tombstone(line, write_field) then
        return {0, redis.call('pttl', lock), 0}
    end
    local free = not mode and not plain
    if mode then
        check_record(lock)
        local living, evicted = -1, 0
        if mode == 'read' then
            redis.call('zrevrange', writers, 0, 0) -- fails if the key holds other data
        end
        if mode == 'read' and (read_field ~= '' or not has_reader(lock, prefix, '', 1)) then
            local _, strange
            living, _, evicted, strange = evict_dead_readers(lock, prefix)
            if strange then
                refuse(lock, strange)
            end
        end
        free = living == 0 and evicted > 0
        if free then
            token, following = draw_token(tokens)
            redis.call('del', lock)
        elseif read_field ~= '' and redis.call('hexists', lock, read_field) == 1 and living == upgrading() then
            return {-2, 0, 0}
        end
    end
    local guest = waits and is_guest(line, write_field)
    local joins = line and waits and not guest and (not free or line.exists)
    local lost = joins and subscription_lost(field, delivery, channel, how)
    local joined = joins and not lost and
        join(lock, line, write_field, {delivery = delivery, lease = lease, fenced = fenced, asked = asked})
    local to
    if free and line and line.exists and delivery ~= 'barge' and not guest then
        local client = client_of(field)
        to = pass_on(lock, line, tokens, channel, how, joined and client)
        if joined and to == client then
            to = nil
        elseif to then
            forget_writer(writers, line.granted)
        end
    end
    if not free or to then
        heartbeat()
        local left = line and delivery == 'barge' and line.mine and line.mine.field == write_field
        if left then
            leave(line, write_field) -- the caller holds the read lock now
        end
        if plain and line and not joined then
            note_beside(line, channel, how)
        end
        if joined or to or left then
            joined = close_line(line) and joined
        end
        local legacy = delivery ~= 'barge' and (not line or guest or has_legacy_holder())
        return {0, redis.call('pttl', lock), standing(line, joined, lost, legacy)}
    end
end

if hold_count == '1' and not token then
    token, following = draw_token(tokens, mine and tonumber(ARGV[11] or 1))
end
redis.call('zrem', writers, field)
if read_field ~= '' then
    redis.call('zrem', writers, read_field)
end
redis.call('hset', lock, 'mode', 'write', write_field, hold_count)
if mine then
    extend(lock, lease)
else
    begin_lease(lock, ms(lease), 'mode', write_field)
end
if line and line.exists then
    leave_held(line, write_field, 'mode', write_field)
end
return {1, token or 0, following or 0}

end, {'hash', 'zset', 'hash', 'string'})

end, roll_back = function(KEYS, ARGV)

local had, received -- whether the common case has ended the hold, and what Redis said when it told so

local in_both_ways = 'publish+spublish'

if not ARGV[6] and ARGV[4] ~= in_both_ways and
    redis.pcall('exists', KEYS[2], KEYS[3]) == 0 and redis.pcall('hlen', KEYS[1]) == 2 then
    local record = redis.pcall('hmget', KEYS[1], 'mode', ARGV[1] .. ':write')
    had = record[1] == 'write' and record[2] and redis.pcall('del', KEYS[1]) == 1
    received = had and redis.pcall(ARGV[4], ARGV[3], '1')
    if received == 0 then
        return 0
    end
end
local place_format = '%s %s %s %s %s %s %s %s'
local place_pattern = '^(%d+) (%a+) (%a+) (%d+) (%d) (%d+) (%S+) ?(%d*)$'
local grant_format = 'grant %s %s %s %s'
local provisional = 5000
local line_life = 5 * 60 * 1000
local near_head = 32
local most_holds = 10000 -- fields of a hash that one script reads
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

local function fields_of(lock)
    local n = redis.call('hlen', lock)
    if n > most_holds + 1 then -- and the mode
        return nil, 'fields ' .. n
    end
    return redis.call('hgetall', lock)
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

local function may_exist(key) return redis.pcall('exists', key) ~= 0 end

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

local function now_s() return redis.call('time')[1] end

local function ms(t) return string.format('%.0f', t) end
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
local tombstone_life = 60000
local most_tombstones = 100

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

local function granted_lease(waiter)
    return waiter.state == 'confirmed' and waiter.lease or math.min(waiter.lease, provisional)
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

local function bury(over, field, now)
    local kept = {field .. ' ' .. ms(now + tombstone_life)}
    for other, till in (over or ''):sub(1, 200 * most_tombstones):gmatch('(%S+) (%d+)') do
        if #kept == most_tombstones then
            break
        elseif other ~= field and tonumber(till) > now then
            kept[#kept + 1] = other .. ' ' .. till
        end
    end
    return table.concat(kept, ' ')
end

local function grant(lock, waiter, tokens, channel, how)
    local lease = granted_lease(waiter)
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
    if redis.pcall('pexpire', lock, ms(lease)) == 1 then
        heard = tell_granted(waiter, lease, token, channel, how)
    end
    if not heard then
        undo(lock, 'mode', waiter.field)
    end
    return heard
end

local function still_held(lock, field) return redis.call('hexists', lock, field) == 1 end

local function comes_back(lock, field) return not still_held(lock, field) end

local function room_of(_, _) return nil end

local function fits(_, _) return 'now' end

local function goes_on(_, _) return false end
local most_places = 20000 -- numbers from the first place to the last one up to which clients join
local most_numbers = 1e15 -- adding 1 to much larger numbers does not change them
local longest_line = 25000 -- numbers that a script iterates over; older versions have no limit
local most_fields = 100000 -- that a script deletes with the last place; any others expire
local most_over = 100000 -- bytes of the tombstones

local function wait_number(field) return tonumber(field:match('^[%x-]+:%-?%d+:(%d+)') or 0) end

local function of_writer(field) return field:sub(-6) == ':write' end

local function channel_of(channel, of_write)
    local name = channel:match('^redisson_lock__channel(:.*)') or channel:match('^redisson_rwlock(:.*)')
    return name and (of_write and 'redisson_rwlock' or 'redisson_lock__channel') .. name or channel
end

local function grants_to(channel, p) return channel_of(channel, of_writer(p.field)) .. ':' .. p.client end

local function parse_place(text, client)
    local number, state, delivery, lease, fenced, asked, field, since = text:match(place_pattern)
    if not number or #number > 15 or #lease > 15 then
        return nil -- the text is not that of a place
    end
    return {number = tonumber(number), state = state, delivery = delivery, lease = tonumber(lease), fenced = fenced,
        asked = asked, field = field, since = since, client = client}
end

local function open_line(lock, key, field)
    if not key or key == lock then
        return nil
    end
    local client = client_of(field)
    local head = redis.call('hmget', key, 'first', 'last', 'granted', 'shared', 'over', client, 'beside')
    local first, last, shared = tonumber(head[1] or 1), tonumber(head[2] or 0), tonumber(head[4] or 0)
    if not (first and last and shared and first >= 0 and last < most_numbers and last - first < longest_line) or
        #(head[5] or '') > most_over then
        refuse(key, 'type hash') -- this bounds the loops over the line: see record.lua
    end
    return {
        key = key, lock = lock, beside = head[7],
        exists = first <= last or head[3] or head[7], -- the line has more than tombstones
        any = head[1] or head[3] or head[5] or head[7],
        first = first, last = last, granted = head[3], shared = shared,
        over = head[5], mine = head[6] and parse_place(head[6], client),
        changes = {}, -- written when the line is closed: field -> value, or false to delete it
    }
end

local function set_field(line, field, value) line.changes[field] = value end

local function drop_field(line, field) line.changes[field] = false end

local function in_parts(list, run)
    local answer
    for from = 1, #list, 1000 do
        answer = run(unpack(list, from, math.min(from + 999, #list)))
        if type(answer) == 'table' then
            break
        end
    end
    return answer
end

local function set_life(line, life)
    local answer = redis.pcall('pexpire', line.key, life)
    if type(answer) == 'table' then
        if not line.any then
            redis.call('del', line.key)
        end
        error(answer, 0)
    end
end

local function clear_line(line)
    local beside = line.beside and may_exist(line.lock)
    local stays = {over = line.over, beside = beside, shared = beside}
    local gone = {}
    for _, field in ipairs(line.any and redis.call('hrandfield', line.key, most_fields) or {}) do
        if not field:find(':', 1, true) and not stays[field] then
            gone[#gone + 1] = field
        end
    end
    in_parts(gone, function(...) return redis.call('hdel', line.key, ...) end)
    local written = line.changes.over and redis.pcall('hset', line.key, 'over', line.over)
    if line.over then
        set_life(line, tombstone_life)
    end
    return type(written) ~= 'table'
end

local function close_line(line)
    if line.first > line.last and not line.granted then
        return clear_line(line)
    end
    set_field(line, 'first', ms(line.first))
    set_field(line, 'last', ms(line.last))
    local set, gone = {}, {}
    for field, value in pairs(line.changes) do
        if value then
            set[#set + 1], set[#set + 2] = field, value
        else
            gone[#gone + 1] = field
        end
    end
    local written = in_parts(set, function(...) return redis.pcall('hset', line.key, ...) end)
    in_parts(gone, function(...) return redis.call('hdel', line.key, ...) end)
    if line.life then
        set_life(line, line.life)
    end
    return type(written) ~= 'table' -- an error: Redis has no memory left
end

local function place_of(line, client)
    if line.mine and line.mine.client == client then
        return line.mine
    end
    local text = redis.call('hget', line.key, client)
    return text and parse_place(text, client)
end

local function read_places(line, from, to)
    local clients, places, numbers, some, together = {}, {}, {}, {}, {}
    for number = from, to do
        numbers[#numbers + 1] = ms(number)
    end
    for i, client in ipairs(redis.call('hmget', line.key, unpack(numbers))) do
        clients[from + i - 1] = client
        some[#some + 1] = client or nil
    end
    local texts, n = #some > 0 and redis.call('hmget', line.key, unpack(some)), 0
    for number = from, to do
        local client, p = clients[number], nil
        if client then
            n = n + 1
            p = texts[n] and parse_place(texts[n], client)
        end
        for _, known in ipairs({line.mine or false, line.back or false}) do
            if known and (known.client == client or known.unsaved and known.number == number) then
                p = known
            end
        end
        if p and p.number == number then
            places[number], clients[number], p.together = p, p.client, together
            together[#together + 1] = p
        end
    end
    return clients, places
end

local function places_of(line, last)
    last = math.min(last or line.last, line.last)
    local number = line.first - 1
    local to, size, clients, places = number, 1, nil, nil -- to: the last number that was read
    return function()
        number = number + 1
        if number > last then
            return nil
        elseif number > to then
            to = math.min(number + size - 1, last)
            clients, places = read_places(line, number, to)
            size = math.min(8 * size, 1000)
        end
        return number, clients[number], places[number]
    end
end

local function place_text(p)
    return string.format(place_format, ms(p.number), p.state, p.delivery, ms(p.lease), p.fenced, p.asked, p.field,
        p.since)
end

local function put_place(line, p)
    set_field(line, p.client, place_text(p))
    set_field(line, ms(p.number), p.client)
end

local function client_at(line, number)
    local changed = line.changes[ms(number)]
    if changed ~= nil then
        return changed
    end
    return redis.call('hget', line.key, ms(number))
end

local function is_enqueued(line, p) return p.number >= line.first and client_at(line, p.number) == p.client end
local function drop_number(line, number)
    drop_field(line, ms(number))
    redis.call('hdel', line.key, ms(number)) -- at once, because pass_on looks for numbers in Redis
    while line.first <= line.last and not client_at(line, line.first) do
        line.first = line.first + 1
    end
end

local function drop_place(line, p)
    drop_field(line, p.client)
    if p.unsaved or is_enqueued(line, p) then
        drop_number(line, p.number)
    end
end

local function note_expired_grant(line)
    local field = line.granted
    if not field then
        return
    end
    line.granted = false
    drop_field(line, 'granted')
    local p = place_of(line, client_of(field))
    if not p or p.field ~= field or p.unsaved or is_enqueued(line, p) then
        return
    end
    if p.delivery == 'poll' or line.last - p.number >= most_places then
        drop_field(line, p.client)
        return
    end
    p.state, p.unsaved = 'suspect', true
    put_place(line, p)
    line.back = p
    line.first = math.min(line.first, p.number)
end

local most_missing = 200 -- numbers; each script that iterates over the line looks up all of them

local function close_gaps(line)
    local span = line.last - line.first
    local fields = span >= most_missing and redis.call('hlen', line.key)
    if not fields or span < 2 * fields and (span < most_places or span < fields) then
        return
    end
    local all = redis.call('hrandfield', line.key, fields, 'withvalues') -- all: users may call hrandfield
    local places, numbers = {}, {}
    for i = 1, #all, 2 do
        if #all[i] == 36 then
            places[#places + 1] = parse_place(all[i + 1], all[i]) -- nil adds no element
        elseif tonumber(all[i]) then
            numbers[all[i]] = all[i + 1]
        end
    end
    table.sort(places, function(a, b) return a.number < b.number end)
    for number in pairs(numbers) do
        redis.call('hdel', line.key, number)
    end
    local first
    for i, p in ipairs(places) do
        local was_enqueued = numbers[ms(p.number)] == p.client
        p.number = line.first + i - 1
        redis.call('hset', line.key, p.client, place_text(p))
        if was_enqueued then
            redis.call('hset', line.key, ms(p.number), p.client)
            first = first or p.number
        end
        if line.mine and line.mine.client == p.client then
            line.mine = p
        end
    end
    line.last = line.first + #places - 1
    line.first = first or line.last + 1
end

local function join(lock, line, field, wish)
    close_gaps(line)
    local before, client = line.mine, client_of(field)
    local own = before and before.field == field
    if before and line.granted == before.field and (own or comes_back(lock, before.field)) then
        note_expired_grant(line)
    end
    local stays = before and (before.unsaved or is_enqueued(line, before))
    if stays and of_writer(before.field) == of_writer(field) and wait_number(before.field) > wait_number(field) then
        return false
    end
    local p = {state = 'new', delivery = wish.delivery, lease = wish.lease, fenced = wish.fenced, asked = wish.asked,
        field = field, client = client, unsaved = true}
    if own then
        p.state = before.state == 'suspect' and 'confirmed' or before.state
    end
    if stays and before.state == 'suspect' and before.field ~= field then -- the hold of that place was lost
        drop_number(line, before.number)
        stays = false
    end
    if stays then
        p.number, p.since = before.number, before.since
    elseif line.last - line.first >= most_places then
        return false -- the caller polls
    else
        line.last = line.last + 1
        p.number, p.since = line.last, now_s()
    end
    line.mine, line.back, line.life = p, nil, line_life
    put_place(line, p)
    if not line.exists then -- while the line was empty, releases were announced to everybody
        line.shared = now_ms()
        set_field(line, 'shared', ms(line.shared))
    end
    return true
end

local function leave(line, field)
    local p = line.mine
    if p and p.field == field then
        drop_place(line, p)
        line.mine = nil
    end
    if line.granted == field then
        drop_field(line, 'granted')
        line.granted = false
    end
end

local function end_field(line, field)
    redis.pcall('hdel', line.key, '')
    line.over = bury(line.over, field, now_ms())
    set_field(line, 'over', line.over)
    if redis.call('pttl', line.key) < tombstone_life then
        line.life = tombstone_life
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
    local now, half, request = now_ms(), provisional / 2, p.field .. ' ' .. p.asked .. ' '
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

local most_told = 100 -- suspects that one script tells of a free lock; the others notice it when they look at the lock

local function close_up(line, stay, next_number)
    line.first = #stay > 0 and stay[1].number or next_number
    local missing = next_number - line.first - #stay
    if missing == 0 or #stay > near_head and missing <= #stay then
        return
    end
    local last = line.granted and place_of(line, client_of(line.granted))
    local granted = last and last.field == line.granted and last.number
    for _, p in ipairs(stay) do
        drop_field(line, ms(p.number))
    end
    local number = next_number
    for i = #stay, 1, -1 do
        number = number - (number - 1 == granted and 2 or 1)
        stay[i].number = number
        put_place(line, stay[i])
    end
    line.first = number
end

local function pass_on(lock, line, tokens, channel, how, asker)
    if line.granted and not still_held(lock, line.granted) then
        note_expired_grant(line)
    end
    local room = room_of(lock, tokens)
    local stay = {} -- the places that are passed over: suspects, and those that fit never
    local to, is_left, next_number = nil, true, line.last + 1
    for number, client, p in places_of(line) do
        local fit = p and (p.state == 'suspect' and 'never' or fits(p, room))
        local leaves = false
        if fit == 'now' and client == asker then
            to, is_left, leaves, line.mine = asker, false, true, nil
        elseif fit and not is_reachable(p, channel, how) then
            fit, leaves = nil, true
        elseif fit == 'later' and (client == asker or keeps_for(line, p, channel, how)) then
            line.short, next_number = true, number
            break
        elseif fit == 'later' and p.delivery == 'poll' then
            fit, leaves = nil, true -- as in note_expired_grant
        elseif fit == 'later' then
            fit, p.state = 'never', 'suspect'
            put_place(line, p)
        elseif fit == 'now' then
            local granted = grant(lock, p, tokens, grants_to(channel, p), how)
            if granted == nil then -- nothing can be granted: this place stays, and all behind it
                line.mute, is_left, next_number = true, false, number
                announce(how, grants_to(channel, p), 'free')
                break
            elseif granted then
                to, is_left, line.granted = client, goes_on(room, p), p.field
                set_field(line, 'granted', p.field)
            else
                leaves = true
            end
        end
        if fit == 'never' then
            stay[#stay + 1] = p
        elseif client then
            drop_field(line, ms(number))
        end
        if leaves then
            drop_field(line, client)
        end
        if not is_left then
            next_number = number + 1
            break
        end
    end
    close_up(line, stay, next_number)
    local may_tell = is_left and most_told or 0
    for _, p in ipairs(stay) do
        if may_tell > 0 and p.state == 'suspect' then
            announce(how, grants_to(channel, p), 'free')
            may_tell = may_tell - 1
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

local function announce_beside(channel, how)
    local other = channel_of(channel, not channel:find('^redisson_rwlock:'))
    local known = other ~= channel and listeners(other, how) or 0
    return known > 0 and math.min(announce(how, other, '0'), known) or 0
end

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
    local stay, next_number = {}, line.last + 1 -- stay: suspects, whose processes may be paused
    for number, client, p in places_of(line) do
        if p and is_reachable(p, channel, how) then
            if p.state ~= 'suspect' or #stay < most_told then
                announce(how, grants_to(channel, p), 'free')
            end
            if p.state ~= 'suspect' then
                next_number = number
                break
            end
            stay[#stay + 1] = p
        elseif client then
            drop_field(line, ms(number))
            if p then
                drop_field(line, client)
            end
        end
    end
    close_up(line, stay, next_number)
    return math.max((known or 1) + beside, 1)
end

local function try(step)
    local done, result = pcall(step)
    return done and result or nil
end

local function is_write(field) return field:sub(-6) == ':write' end

local function forget_writer(writers, field)
    if is_write(field) then
        redis.pcall('zrem', writers, field:sub(1, -7))
    end
end

local function forget_writers(writers)
    if redis.pcall('zrevrange', writers, 0, 0)[1] then
        redis.call('del', writers)
    end
end

local most_leases = 50000 -- leases that one script reads
local forever = 100 * 365 * 24 * 3600 * 1000

local function lease_key(prefix, reader, n)
    return prefix .. reader .. ':rwlock_timeout:' .. n
end

local function leases_of(reader, hold_count)
    local acquisition = reader:match('^[%x-]+:%-?%d+:(%d+)$')
    return acquisition and #acquisition <= 20 and 1 or hold_count
end

local function lease_left(prefix, reader, hold_count)
    local longest = -2
    for n = 1, math.min(leases_of(reader, hold_count), most_hold_count) do
        local left = redis.call('pttl', lease_key(prefix, reader, n))
        if left == -1 then
            left = forever -- another program has removed the expiry
        end
        longest = math.max(longest, left)
    end
    return longest
end

local function is_dead(lock, prefix, reader)
    redis.call('exists', lock, lease_key(prefix, reader, 1))
    return true
end

local function evict_dead_readers(lock, prefix, except)
    local entries, strange = fields_of(lock)
    local living, longest, leases, dead = 0, -2, 0, {}
    entries = entries or {}
    for i = 1, #entries, 2 do
        local field, value = entries[i], entries[i + 1]
        local other = field ~= 'mode' and field ~= except
        if other and (not is_hold(field, value) or too_deep(field, value)) then
            strange = strange or field_text(field)
        elseif other and not strange and not is_write(field) then
            local hold_count = tonumber(value)
            leases = leases + leases_of(field, hold_count)
            local left = leases <= most_leases and lease_left(prefix, field, hold_count) or 0
            if leases > most_leases then
                strange = field_text(field)
            elseif left > 0 then
                living = living + 1
                longest = math.max(longest, left)
            else
                dead[#dead + 1] = field
            end
        end
    end
    if strange then
        local left = redis.call('pttl', lock)
        return living + 1, math.max(longest, left == -1 and forever or left, 1), 0, strange
    end
    for _, field in ipairs(dead) do
        if is_dead(lock, prefix, field) and living > 0 then
            redis.call('hdel', lock, field)
        end
    end
    return living, longest, #dead
end
local function pass_to_writer(lock, writers, line, tokens, channel, how, message, window)
    local heard, to = 0, nil
    if line and line.exists then
        try(function()
            heard = line.first <= line.last and release_to_all(line, channel, how, message, window, true) or 0
            to = heard == 0 and pass_on(lock, line, tokens, channel, how, nil) or nil
        end)
        if to then
            forget_writer(writers, line.granted)
        end
    end
    return heard, to
end

local function release_write(lock, writers, line, tokens, prefix, field, left, late, channel, how, window)
    local found = redis.pcall('hexists', lock, field)
    local had = found == 1
    local wrong = type(found) == 'table' -- the key holds other data: an error, after the field has left the line
    if wrong and left ~= '0' then
        error(found, 0)
    elseif left ~= '0' then
        if had then
            note_hold_count(lock, field, left)
        end
        return {had and 1 or -1, 0, 0}, false
    end
    local free, heard, to = false, 0, nil
    if had then
        local living, longest = evict_dead_readers(lock, prefix, field)
        redis.call('hdel', lock, field)
        forget_writers(writers) -- all that wait have the same chance now, readers too
        free = living == 0
        if free then
            redis.call('del', lock)
        else
            redis.call('hset', lock, 'mode', 'read')
            redis.call('pexpire', lock, ms(longest))
            announce(how, channel, '1') -- a downgrade: other readers may join
        end
    else
        free = redis.call('exists', lock) == 0
    end
    if line and (line.exists or late) then
        try(function()
            leave(line, field)
            if late then
                end_field(line, field)
            end
        end)
        if free then
            heard, to = pass_to_writer(lock, writers, line, tokens, channel, how, '1', window)
        end
        try(function() close_line(line) end)
    end
    if wrong then
        error(found, 0)
    end
    if had and free and heard == 0 and not to then
        heard = announce_release(how, channel, '1') + (line and line.exists and announce_beside(channel, how) or 0)
    end
    return {had and 1 or -1, heard, passed(line, to)}, free and heard == 0 and not to
end
return answer(function()

local lock, writers, tokens = KEYS[1], KEYS[2], KEYS[4]
local field, prefix, channel, how, window = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local left, late, rolls_back, read_field = ARGV[6] or '0', ARGV[7] == '1', ARGV[8] == '1', ARGV[9] or ''
local write_field = field .. ':write'

if rolls_back then
    redis.pcall('zrem', writers, field) -- a rollback goes on if the key holds other data
    if read_field ~= '' then
        redis.pcall('zrem', writers, read_field)
    end
end

if had then
    return {1, announce_release(how, channel, '1', received), 0}
end

local line = left == '0' and try(function() return open_line(lock, KEYS[3], write_field) end) or nil
local answer, free = release_write(lock, writers, line, tokens, prefix, write_field, left, late, channel, how, window)
if answer[1] ~= 1 and not rolls_back then
    check_record(lock)
elseif answer[1] ~= 1 and redis.call('exists', writers) == 0 and
    (free or redis.call('hget', lock, 'mode') == 'read') then
    announce(how, channel, '1') -- readers waited for this writer
end
return answer

end, {'hash', 'zset', 'hash', 'string'})

end},
}

local endings = {'', '', ':write'}

local function part(list, from, n)
    local p = {}
    for i = from, from + n - 1 do
        p[#p + 1] = list[i]
    end
    return p
end

local function with_index(err, key)
    return {err = err:gsub('^(NOTALOCK )(%d+)', function(code, n)
        return code .. (n == '0' and 0 or n + key - 1)
    end)}
end

local answers, acquired = {}, {}
local key, at = 1, 2
for i = 1, tonumber(ARGV[1]) do
    local number, n_keys = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
    local n_acquire, n_roll_back = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    local script, keys, args = scripts[number], part(KEYS, key, n_keys), part(ARGV, at + 4, n_acquire)
    local stays = args[3] == '1' and redis.pcall('hexists', keys[1], args[1] .. endings[number]) == 1
    local answer = script.acquire(keys, args)
    local failed = type(answer) == 'table' and answer.err
    answers[i] = type(answer) == 'number' and string.format('1 %.0f 0', answer) or answer
    if failed or not answers[i]:find('^1 ') then
        answers = failed and with_index(failed, key) or answers
        for j = i - 1, 1, -1 do
            local a = acquired[j]
            if a.stays then
                answers[j] = answers[j] and answers[j]:gsub('%d+$', '-1', 1) -- nil after an error
            else
                local undone = a.roll_back(a.keys, a.args)
                answers = type(undone) == 'table' and with_index(undone.err, a.key) or answers -- that lock may be held
            end
        end
        break
    end
    acquired[i] = {stays = stays, roll_back = script.roll_back, keys = keys, key = key,
        args = part(ARGV, at + 4 + n_acquire, n_roll_back)}
    key, at = key + n_keys, at + 4 + n_acquire + n_roll_back
end
return answers.err and answers or table.concat(answers, ' ')
