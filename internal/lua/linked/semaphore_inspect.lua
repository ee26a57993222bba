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
local no_lease = 922337203685477 -- of Redisson
local most_of_hold = 1000 -- permits of one hold; as mostAtOnce in semaphore.go

local function has_lease(ends) return tonumber(ends) < no_lease end

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

local function free_permits(free)
    local value = redis.call('get', free)
    if value and value ~= '0' and not (value:match('^%-?[1-9]%d*$') and #value <= 11) then
        refuse(free, 'type string')
    end
    return tonumber(value or nil)
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

return answer(function()

local free, taken = KEYS[1], KEYS[2]
local field = ARGV[1]

free_permits(free)
local ends = field ~= '' and ends_of(taken, ids_of(field))
if not ends then
    check_permits(taken)
end
local now = now_ms()
local last = redis.call('zrevrange', taken, 0, 0, 'withscores')[2]
local left = -2
if last and not has_lease(last) then
    left = -1
elseif last and tonumber(last) > now then
    left = tonumber(last) - now
end
return {redis.call('zcount', taken, '(' .. ms(now), '+inf'), ends and ends > now and 1 or 0, left}

end, {'string', 'zset'})
