local place_pattern = '^(%a+) (%d+) (%d) (%d+) (%S+) ?(%d*)$'
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

local function is_relocks(field)
    return field:find('^:%-?%d+:%d+$', 37) or field:find('^:%-?%d+:%d+:write$', 37)
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

local function now_ms()
    local clock = redis.call('time')
    return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

local function ms(t) return string.format('%.0f', t) end
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

local wish_form = '^(%d+) (%d) (%d+) ?(%d*)$'

local function is_write(field) return field:sub(-6) == ':write' end

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

local most_listed = 1000 -- as mostWaiters in inspect.go

local function values_of(key, fields)
    return #fields == 0 and fields or redis.call('hmget', key, unpack(fields))
end

local function scores(list)
    local of = {}
    for i = 1, #list, 2 do
        of[list[i]] = list[i + 1]
    end
    return of
end

local function add_waiter(waiters, ...)
    for _, part in ipairs({...}) do
        waiters[#waiters + 1] = part
    end
end

local function queue_waiters(all, timeouts, heartbeats, wishes, channel, how)
    local ends, beats = scores(timeouts), scores(heartbeats)
    local fields, channels = {}, {}
    for i = 1, math.min(#all, most_listed) do
        fields[i] = all[i]
        channels[2 * i - 1], channels[2 * i] = channel .. ':' .. all[i], channel .. ':client:' .. client_of(all[i])
    end
    local wished, counts = values_of(wishes, fields), subscribers(channels, how)
    local waiters = {}
    for i, field in ipairs(fields) do
        local lease, _, _, since = (wished[i] or ''):match(wish_form)
        local own, shared = counts[channels[2 * i - 1]], is_relocks(field) and counts[channels[2 * i]] or 0
        local reachable = -1
        if (own or 0) + shared > 0 then
            reachable = 1
        elseif own and (lease or not is_relocks(field)) then
            reachable = 0
        end
        add_waiter(waiters, field, ends[field] or '0', beats[field] or '0', since or '', reachable)
    end
    return waiters
end

local function first_places(waits, clients)
    local some, places = {}, {}
    for i = 1, math.min(#clients, most_listed) do
        some[i] = clients[i]
    end
    local texts, n = values_of(waits, some), #clients
    for i, client in ipairs(some) do
        local p = texts[i] and parse_place(texts[i], client)
        if p and client_of(p.field) == client then
            places[#places + 1] = p
        else
            n = n - 1
        end
    end
    return places, n
end

local function line_waiters(order, waits, held, writers, channel, how)
    local beats, now = scores(writers), now_ms()
    local clients = redis.call('zrangebyscore', order, '-inf', '+inf', 'limit', 0, longest_line)
    local places, n = first_places(waits, clients)
    local in_line, channels, waiters = {}, {}, {}
    for _, client in ipairs(clients) do
        in_line[client] = true
    end
    for i, p in ipairs(places) do
        channels[i] = grants_to(channel, p)
        in_line[p.client] = p.field
    end
    local counts = subscribers(channels, how)
    for i, p in ipairs(places) do
        local count = p.delivery ~= 'poll' and counts[channels[i]] or nil
        local reachable = count and math.min(count, 1) or -1
        add_waiter(waiters, p.field, '0', beats[p.field:gsub(':write$', '')] or '0', p.since, reachable)
    end
    for i = 1, #writers, 2 do
        local field, alive = writers[i], writers[i + 1]
        local place = in_line[client_of(field)]
        if tonumber(alive) > now and not held[field] and place ~= true and place ~= field .. ':write' then
            n = n + 1
            if #waiters < 5 * most_listed then
                add_waiter(waiters, field .. ':write', '0', alive, '', -1)
            end
        end
    end
    return waiters, n
end
return answer(function()

local lock, queue, timeouts, heartbeats, writers, tokens = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local wishes = KEYS[12]
local prefix, lock_channel, permit_channel, rw_channel, how = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local most_shown = 10000 -- as mostShown in inspect.go
local most_queued = 20000 -- the longest queue of a fair lock: see queue.lua

local wrong
local function read(what, ...)
    local answer = redis.pcall(...)
    if type(answer) == 'table' and answer.err then
        if answer.err:find('WRONGTYPE ', 1, true) then
            error(answer, 0)
        end
        wrong = wrong or answer.err .. ': ' .. what
        return {}
    end
    return answer
end

local function members(what, key)
    return read(what, 'zrangebyscore', key, '-inf', '+inf', 'withscores', 'limit', 0, most_shown + 1)
end

local function permits_of(taken, now)
    local what = 'the permits of a semaphore'
    local found = redis.pcall('type', taken).ok
    if found and found ~= 'none' and found ~= 'zset' then
        refuse(taken, 'type ' .. found) -- answer() would blame the counter, which is not a hash
    end
    local all, expired = members(what, taken), 0
    if #all > 2 * most_shown then
        local first = {all[1], all[2]}
        expired = read(what, 'zcount', taken, '-inf', ms(now))
        all = read(what, 'zrangebyscore', taken, '(' .. ms(now), '+inf', 'withscores', 'limit', 0, most_shown + 1)
        if #all > 2 * most_shown then
            local last = read(what, 'zrevrange', taken, 0, 0, 'withscores')
            all[#all - 1], all[#all] = last[1] or all[#all - 1], last[2] or all[#all]
        elseif #all == 0 and type(expired) == 'number' then
            all, expired = first, expired - 1 -- one permit shows what the key is
        end
    end
    for i = 1, #all, 2 do
        check_ids(taken, {all[i]})
    end
    return all, type(expired) == 'number' and expired or 0
end

local counter = redis.pcall('get', lock)
if type(counter) == 'string' then
    local free = free_permits(lock)
    local now = now_ms()
    local permits, expired = permits_of(KEYS[7], now)
    local waiters, n = line_waiters(KEYS[8], KEYS[9], {}, {}, permit_channel, how)
    return wrong and redis.error_reply(wrong) or
        {now, redis.call('pttl', lock), {}, 0, waiters, n, '', ms(free + expired), permits}
end

if check_record(lock) == 8 and #redis.call('hrandfield', lock, most_holds + 2) > most_holds + 1 then
    refuse(lock, 'fields ' .. most_holds + 2)
end
local entries = read('the lock', 'hgetall', lock)
local pttl = redis.call('pttl', lock)
local mode
for i = 1, #entries, 2 do
    mode = mode or entries[i] == 'mode'
end

local record, held, leases = {}, {}, 0
for i = 1, #entries, 2 do
    local field, value, left = entries[i], entries[i + 1], pttl
    local hold_count = mode and field ~= 'mode' and not is_write(field) and is_hold(field, value) and tonumber(value)
    if hold_count then
        leases = leases + leases_of(field, hold_count)
        if too_deep(field, hold_count) or leases > most_leases then
            refuse_field(lock, field)
        end
        left = lease_left(prefix, field, hold_count)
        left = left < forever and left or -1
    end
    record[#record + 1] = field
    record[#record + 1] = value
    record[#record + 1] = left
    held[field] = true
end

local queued = read('the queue of a fair lock', 'lrange', queue, 0, most_queued - 1)
local ends = members('the timeouts of a fair lock', timeouts)
local beats = members('the heartbeats of a fair lock', heartbeats)
local writing = members('the waiting writers of a read/write lock', writers)
local token = read('the token counter', 'get', tokens) or ''
if wrong then
    return redis.error_reply(wrong)
end
local fair = not mode and #queued + #ends + #beats > 0
local waiters, n = {}, #queued
if fair then
    waiters = queue_waiters(queued, ends, beats, wishes, lock_channel, how)
else
    waiters, n = line_waiters(KEYS[8], KEYS[9], held, {}, lock_channel, how)
    local others, more = line_waiters(KEYS[10], KEYS[11], held, writing, rw_channel, how)
    for i = 1, math.min(#others, 5 * most_listed - #waiters) do
        waiters[#waiters + 1] = others[i]
    end
    n = n + more
end
return {now_ms(), pttl, record, fair and 1 or 0, waiters, n, token, '', {}}

end, {'hash', 'list', 'zset', 'zset', 'zset', 'string', 'zset', 'zset', 'hash', 'zset', 'hash', 'hash'})
