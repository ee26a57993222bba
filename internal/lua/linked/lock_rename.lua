local place_pattern = '^(%a+) (%d+) (%d) (%d+) (%S+) ?(%d*)$'
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
local function client_of(field) return field:sub(1, 36) end

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

local function is_buried(waits, field)
    local till = redis.call('hget', waits, field)
    return till and (tonumber(till) or 0) > now_ms()
end
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

local function leave(line, field)
    if line.mine and line.mine.field == field then
        remove(line, {line.mine.client})
        line.mine = nil
    end
end

local function passed(line, to)
    if to then
        return 1
    end
    return line and line.mute and 2 or 0
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
local function lease_up_to(lease, limit, now)
    return limit > 0 and math.max(1, math.min(lease, limit - now)) or lease
end

local function past_end(ends, now) return ends > 0 and now >= ends end
return answer(function()

local lock, order, waits, from, to = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]
local ends, late = tonumber(ARGV[5]), ARGV[6] == '1'

local now = now_ms()
local lease = lease_up_to(tonumber(ARGV[3]), tonumber(ARGV[4]), now)

local function set_lease_of(hash)
    local fields = redis.call('hexists', hash, 'mode') + 1
    if redis.call('hlen', hash) == fields or redis.call('pttl', hash) < lease then
        redis.call('pexpire', hash, ms(lease))
    end
end

local renamed = redis.call('hexists', lock, to) == 1
local may = not renamed and not past_end(ends, now) and not is_buried(waits, to)
local hold_count = may and redis.call('hget', lock, from)
if hold_count then
    redis.call('hdel', lock, '') -- fails before anything has changed if the user may not remove the old field
    redis.call('hset', lock, to, hold_count)
    redis.call('hdel', lock, from)
    set_lease_of(lock)
    renamed = true
elseif renamed and ends > 0 then
    set_lease_of(lock)
elseif renamed then
    lease = redis.call('pttl', lock)
elseif not late then
    check_record(lock)
end
if late then
    leave_and_pass(lock, order, waits, from, late, function() end)
end
return {renamed and 1 or -1, renamed and lease or 0, now}

end, {'hash', 'zset', 'hash'})
