
local there = (ARGV[4] or '1') == '1' and redis.pcall('exists', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
if there == 1 and redis.pcall('exists', KEYS[1], KEYS[2], KEYS[3]) == 0 and redis.pcall('hexists', KEYS[4], ARGV[1]) == 0 then
    there = 0
end
if there == 0 then
    local set = redis.pcall('set', ARGV[3] .. ARGV[1] .. ':rwlock_timeout:1', '1', 'PX', ARGV[2])
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
local function is_buried(waits, field)
    local till = redis.call('hget', waits, field)
    return till and (tonumber(till) or 0) > now_ms()
end
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

return answer(function()

local lock, writers = KEYS[1], KEYS[2]
local field, lease, prefix = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local hold_count, write_field = ARGV[4] or '1', (ARGV[5] or '') .. ':write'

local mode = redis.call('hget', lock, 'mode')
local free = not mode and redis.call('exists', lock) == 0
if not mode and not free then -- a plain lock of this name is held
    check_record(lock)
    return {0, redis.call('pttl', lock), 0}
end
local joins = mode and redis.call('hexists', lock, field) == 0 -- the caller has no hold yet
if free or joins then
    if hold_count ~= '1' then
        return {-1, 0, 0}
    elseif is_buried(KEYS[4], field) then -- this request runs late
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

end, {'hash', 'zset', 'zset', 'hash'})
