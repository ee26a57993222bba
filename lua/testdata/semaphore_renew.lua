local function answer(script, types)
    local done, result = pcall(script)
    if done then
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
return answer(function()

local taken = KEYS[1]
local id, lease, exact = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'

local now = now_ms()
local ends = tonumber(redis.call('zscore', taken, id) or 0)
if ends <= now then
    return {-1, 0, 0}
end
redis.call('zrem', taken, '')
if exact or ends < now + lease then
    redis.call('zadd', taken, ms(now + lease), id)
end
return {1, 0, 0}

end, {'zset'})
