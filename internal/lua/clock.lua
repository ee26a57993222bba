-- Prelude of the scripts that need the time, which is always that of the Redis server.
--
-- Defines  now_ms()  the milliseconds since the epoch.
-- Defines  ms(t)     formats t for a command: a whole number without an exponent.

local function now_ms()
    local clock = redis.call('time')
    return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

local function ms(t) return string.format('%.0f', t) end
