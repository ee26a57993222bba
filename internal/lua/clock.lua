-- Prelude of the scripts that need the time, which is always that of the Redis server.

local function now_ms()
    local clock = redis.call('time')
    return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

-- For a command: a whole number without an exponent.
local function ms(t) return string.format('%.0f', t) end
