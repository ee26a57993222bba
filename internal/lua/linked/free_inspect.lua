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

return answer(function()

local closely, client = tonumber(ARGV[1]), ARGV[2]
local locks = #KEYS - closely

local function is_told(lock, order, waiting)
    check_record(lock)
    for _, field in ipairs(redis.call('hrandfield', lock, 8)) do
        if field ~= 'mode' and
            (not is_relocks(field) or waiting:find(' ' .. field .. ' ', 1, true)) then
            return false
        end
    end
    return redis.call('zscore', order, client) ~= false
end

local some_are_free = redis.call('exists', unpack(KEYS, 1, locks)) < locks
local found = {}
for n = 1, locks do
    local ends = some_are_free and redis.call('exists', KEYS[n]) == 0
    local read, told = true, true
    if n <= closely and not ends then
        read, told = pcall(is_told, KEYS[n], KEYS[locks + n], ARGV[n + 2])
    end
    if ends or not read or not told then
        found[#found + 1] = '1 ' .. n .. ' 0'
    end
end
return table.concat(found, ' ')

end, {'hash'})
