
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
local place_pattern = '^(%d+) (%a+) (%d+) (%d) (%d+) (%S+) ?(%d*)$'
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
    local number, delivery, lease, fenced, asked, field, since = text:match(place_pattern)
    if not number or #number > 15 or #lease > 15 then
        return nil -- the text is not that of a place
    end
    return {number = tonumber(number), delivery = delivery, lease = tonumber(lease), fenced = fenced, asked = asked,
        field = field, since = since, client = client}
end

local function open_line(lock, key, field)
    if not key or key == lock then
        return nil
    end
    local client = client_of(field)
    local head = redis.call('hmget', key, 'first', 'last', 'shared', 'over', client, 'beside')
    local first, last, shared = tonumber(head[1] or 1), tonumber(head[2] or 0), tonumber(head[3] or 0)
    if not (first and last and shared and first >= 0 and last < most_numbers and last - first < longest_line) or
        #(head[4] or '') > most_over then
        refuse(key, 'type hash') -- this bounds the loops over the line: see record.lua
    end
    return {
        key = key, lock = lock, beside = head[6],
        exists = head[1] or head[6], -- the line has more than tombstones
        any = head[1] or head[4] or head[6],
        first = first, last = last, shared = shared,
        over = head[4], mine = head[5] and parse_place(head[5], client),
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
        if line.mine and line.mine.number == number then -- it may not be in Redis yet
            p = line.mine
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
        if p and not of_writer(p.field) and p.delivery == 'push' and
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
