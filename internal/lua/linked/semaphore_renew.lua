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

return answer(function()

local taken = KEYS[1]
local ids, lease, exact = ids_of(ARGV[1]), tonumber(ARGV[2]), ARGV[3] == '1'

local now = now_ms()
local ends = ends_of(taken, ids)
if not ends or ends <= now then
    return {-1, 0, 0}
end
redis.call('zrem', taken, '')
if exact or ends < now + lease then
    local answer = lease_until(taken, ids, now + lease)
    if type(answer) == 'table' then
        error(answer, 0)
    end
end
return {1, 0, 0}

end, {'zset'})
