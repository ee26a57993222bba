-- Prelude of the scripts that draw fencing tokens: the token counter. It may stand in front of the function answer, and
-- does not fail.
--
-- Defines  put_back(counter)           undoes INCR of a number that Lua does not have exactly; returns the error.
-- Defines  take_token(counter, most)  the next fencing token of the counter, and how many tokens after it the caller
--          gets, too: a block of at most most tokens, or one token if most is nil. 0 and 0 if counter is nil; nil and
--          the error if a command fails.
--
-- The last token of a draw is never lower than the time in microseconds. So a counter that does not exist, or that a
-- failover has set back, continues above all tokens that it ever gave out. A block ends at the clock, so that the
-- counter does not run ahead of it. A counter that does not exist gives out one token only: those below may have been
-- given out before.

local too_large = 2 ^ 53 -- the first such number: from there on a token would be that of another hold, too

-- SET returns the value as a text. Users have no permission for DECR.
local function put_back(counter)
    local text = redis.pcall('set', counter, '0', 'xx', 'keepttl', 'get')
    if type(text) == 'string' then
        local head, tail = tonumber(text:sub(1, -16)), tonumber(text:sub(-15))
        if tail == 0 then
            head, tail = head - 1, 1e15
        end
        redis.pcall('set', counter, string.format('%d%015.0f', head, tail - 1), 'keepttl')
    end
    return {err = 'ERR the counter is too large'}
end

local function take_token(counter, most)
    if not counter then
        return 0, 0
    end
    local token, clock = redis.pcall('incr', counter), redis.pcall('time')
    if type(token) == 'table' or clock.err then
        return nil, clock.err and clock or token
    end
    local now = clock[1] * 1000000 + clock[2]
    if token >= too_large then
        return nil, put_back(counter)
    elseif token >= now then
        return token, 0
    end
    local set = redis.pcall('set', counter, string.format('%.0f', now))
    if set.err then
        return nil, set
    end
    token = token > 1 and math.max(token, now - (most or 1) + 1) or now
    return token, now - token
end
