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

local function is_write(field) return field:sub(-6) == ':write' end

local most_leases = 50000 -- leases that one script reads
local forever = 100 * 365 * 24 * 3600 * 1000

local function hold_count_of(value)
    return value and math.min(tonumber(value) or most_hold_count, most_hold_count) or 0
end

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

local function drop_leases(waits, prefix, reader, from, to)
    if from == 1 and reader:find('^[%x-]+:0:') then
        pcall(bury, waits, reader) -- an error there must not stop a release
    end
    for n = from, math.min(to, most_hold_count) do
        redis.call('del', lease_key(prefix, reader, n))
    end
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
return answer(function()

local lock = KEYS[1]
local field, lease, exact, prefix = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1', ARGV[4]

local mode = redis.call('hget', lock, 'mode')
if not mode then
    check_record(lock)
    return {-1, 0, 0}
end
local hold_count = hold_count_of(redis.call('hget', lock, field))
if hold_count == 0 or lease_left(prefix, field, 1) <= 0 and is_dead(lock, prefix, field) then
    return {-1, 0, 0}
end

if not exact then
    extend(lease_key(prefix, field, 1), lease)
    extend(lease_key(prefix, field, hold_count), lease)
    extend(lock, lease)
    return {1, 0, 0}
end
drop_leases(nil, prefix, field, 2, hold_count) -- Java would count a longer one
redis.call('pexpire', lease_key(prefix, field, 1), ms(lease))
if mode == 'read' then
    local _, longest = evict_dead_readers(lock, prefix)
    redis.call('pexpire', lock, ms(longest))
else
    extend(lock, lease)
end
return {1, 0, 0}

end, {'hash'})
