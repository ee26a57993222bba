-- Prelude of the scripts that acquire locks which may be fenced.
--
-- Defines  draw_token(counter, most)  the next fencing token of the counter, and how many tokens after it the caller
--          gets, too: a block of at most most tokens, or one token if most is nil. 0 and 0 if counter is nil.
--
-- The last token of a draw is never lower than the time in microseconds. So a counter that does not exist, or that a
-- failover has set back, continues above all tokens that it ever gave out. A block ends at the clock, so that the
-- counter does not run ahead of it. A counter that does not exist gives out one token only: those below may have been
-- given out before.

local function draw_token(counter, most)
    if not counter then
        return 0, 0
    end
    local token = redis.pcall('incr', counter)
    if type(token) == 'table' then
        if token.err:find('not an integer', 1, true) then
            refuse(counter, 'number')
        end
        error(token, 0)
    end
    local clock = redis.call('time')
    local now = clock[1] * 1000000 + clock[2]
    if token >= now then
        return token, 0
    end
    token = token > 1 and math.max(token, now - (most or 1) + 1) or now
    redis.call('set', counter, string.format('%.0f', now))
    return token, now - token
end

