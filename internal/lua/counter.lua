-- Prelude of the scripts that draw fencing tokens: the token counter. It may stand in front of the function answer, and
-- does not fail.

local too_large = 2 ^ 53 -- the first such number: from there on a token would be that of another hold, too

-- Returns the next fencing token of the counter, and how many tokens after it the caller gets, too: a block of at most
-- most tokens, or one token if most is nil. 0 and 0 if counter is nil; nil and the error if a command fails.
--
-- The last token of a draw is never lower than the time in microseconds. So a counter that does not exist, or that a
-- failover has set back, continues above all tokens that it ever gave out. A block ends at the clock, so that the
-- counter does not run ahead of it. A counter that does not exist gives out one token only: those below may have been
-- given out before.
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
        return nil, {err = 'ERR the counter is too large'}
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
