-- Prelude of the scripts that acquire locks which may be fenced.
--
-- Defines  draw_token(counter)  the next fencing token of the counter; 0 if counter is nil.
--
-- A token is never lower than the time in microseconds. So a counter that does not exist, or that a failover has set
-- back, continues above all tokens that it ever gave out.

local function draw_token(counter)
    if not counter then
        return 0
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
    if token < now then
        token = now
        redis.call('set', counter, string.format('%.0f', now))
    end
    return token
end

