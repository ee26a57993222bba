local place_pattern = '^(%d+) (%a+) (%d+) (%d) (%d+) (%S+) ?(%d*)$'
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
local most_of_hold = 1000 -- permits of one hold; as mostAtOnce in semaphore.go

local function check_ids(taken, ids)
    for _, id in ipairs(ids) do
        if #id ~= 16 and not is_hold(id, '1') then
            refuse(taken, 'type zset')
        end
    end
end

local function check_permits(taken)
    check_ids(taken, redis.call('zrangebyscore', taken, '-inf', '+inf', 'limit', 0, 8))
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

local function ends_of(taken, ids)
    local first, there = nil, 0
    for _, id in ipairs(ids) do
        local ends = redis.call('zscore', taken, id)
        if ends then
            first, there = math.min(first or tonumber(ends), tonumber(ends)), there + 1
        end
    end
    return there == #ids and first or nil, there
end

local function lease_until(taken, ids, ends)
    local all = {}
    for i, id in ipairs(ids) do
        all[2 * i - 1], all[2 * i] = ms(ends), id
    end
    return redis.pcall('zadd', taken, unpack(all))
end

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

local free, taken, key, from, to = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]
local ends_at, late = tonumber(ARGV[5]), ARGV[6] == '1'

local now = now_ms()
local lease = lease_up_to(tonumber(ARGV[3]), tonumber(ARGV[4]), now)
local old, new = ids_of(from), ids_of(to)
check_permits(taken)

local function take_lease()
    local answer = lease_until(taken, new, now + lease)
    if type(answer) == 'table' then
        error(answer, 0)
    end
end

local there = ends_of(taken, new)
local renamed = there and there > now
local may = not renamed and not past_end(ends_at, now) and not is_over(key, to, now)
local ends = may and ends_of(taken, old)
if ends and ends > now and #old == #new then
    redis.call('zrem', taken, '') -- fails before anything has changed if the user may not remove the old permits
    take_lease()
    redis.call('zrem', taken, unpack(old))
    renamed = true
elseif renamed and ends_at > 0 then
    take_lease()
elseif renamed then
    lease = there - now
end
if late then
    leave_and_pass(free, key, from, late, function(line) line.stays = true end)
end
return {renamed and 1 or -1, renamed and lease or 0, now}

end, {'string', 'zset', 'hash'})
