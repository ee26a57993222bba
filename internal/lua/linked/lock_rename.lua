local place_pattern = '^(%d+) (%a+) (%d+) (%d) (%d+) (%S+) ?(%d*)$'
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
local tombstone_life = 60000
local most_tombstones = 100

local function client_of(field) return field:sub(1, 36) end

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

local function is_buried(over, field, now)
    if tonumber((over or ''):match('^%S+ (%d+)') or 0) <= now then -- all of them have expired
        return false, false
    end
    local _, behind = over:find(field .. ' ', 1, true)
    return behind and tonumber(over:match('^%d+', behind + 1) or 0) > now or false, true
end
local most_numbers = 1e15 -- adding 1 to much larger numbers does not change them
local longest_line = 25000 -- numbers that a script iterates over; older versions have no limit
local most_fields = 100000 -- that a script deletes with the last place; any others expire
local most_over = 100000 -- bytes of the tombstones

local function parse_place(text, client)
    local number, delivery, lease, fenced, asked, field, since = text:match(place_pattern)
    if not number or #number > 15 or #lease > 15 then
        return nil -- the text is not that of a place
    end
    return {number = tonumber(number), delivery = delivery, lease = tonumber(lease), fenced = fenced, asked = asked,
        field = field, since = since, client = client}
end

local function open_line(lock, key, field)
    local client = client_of(field)
    local head = redis.call('hmget', key, 'first', 'last', 'shared', 'over', client)
    local first, last, shared = tonumber(head[1] or 1), tonumber(head[2] or 0), tonumber(head[3] or 0)
    if not (first and last and shared and first >= 0 and last < most_numbers and last - first < longest_line) or
        #(head[4] or '') > most_over then
        refuse(key, 'type hash') -- this bounds the loops over the line: see record.lua
    end
    return {
        key = key, lock = lock,
        exists = head[1], -- the line has more than tombstones
        any = head[1] or head[4],
        first = first, last = last, shared = shared,
        over = head[4], mine = head[5] and parse_place(head[5], client),
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
    local gone = {}
    for _, field in ipairs(line.any and redis.call('hrandfield', line.key, most_fields) or {}) do
        if field ~= 'over' or not line.over then
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
    if line.first > line.last and not (line.stays and line.exists) then
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

local function client_at(line, number)
    local changed = line.changes[ms(number)]
    if changed ~= nil then
        return changed
    end
    return redis.call('hget', line.key, ms(number))
end
local function leave(line, field)
    local p = line.mine
    if p and p.field == field then
        drop_field(line, p.client)
        drop_field(line, ms(p.number))
        redis.call('hdel', line.key, p.client, ms(p.number))
        line.mine = nil
    end
    while line.first <= line.last and not client_at(line, line.first) do
        line.first = line.first + 1
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
local function lease_up_to(lease, limit, now)
    return limit > 0 and math.max(1, math.min(lease, limit - now)) or lease
end

local function past_end(ends, now) return ends > 0 and now >= ends end

local function is_over(key, field, now)
    local over = redis.pcall('hget', key, 'over')
    if type(over) ~= 'string' then
        return false
    end
    local found = is_buried(over, field, now)
    return found
end
return answer(function()

local lock, key, from, to = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
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
local may = not renamed and not past_end(ends, now) and not is_over(key, to, now)
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
    leave_and_pass(lock, key, from, late, function(line) line.stays = true end)
end
return {renamed and 1 or -1, renamed and lease or 0, now}

end, {'hash', 'hash'})
