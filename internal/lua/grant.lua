-- Prelude of the scripts that grant a lock to a waiter. For permits, permit.lua replaces it.

-- Grants the lock, which is free, and publishes that on the channel of the waiter; returns whether the waiter received
-- it. nil: this user cannot grant anything.
local function grant(lock, waiter, tokens, channel, how)
    local token = 0
    if waiter.fenced == '1' and tokens then
        local drawn, t = pcall(function() return draw_token(tokens) end)
        token = drawn and t or 0 -- the process asks for its token, and gets the error of the counter
    end
    local writes = waiter.field:sub(-6) == ':write' -- of a read/write lock
    local written = writes and redis.pcall('hset', lock, 'mode', 'write', waiter.field, 1) or
        redis.pcall('hset', lock, waiter.field, 1)
    if type(written) == 'table' then
        return nil -- for example, Redis has no memory left
    end
    local heard = nil
    if redis.pcall('pexpire', lock, ms(waiter.lease)) == 1 then
        heard = tell_granted(waiter, waiter.lease, token, channel, how)
    end
    if not heard then
        undo(lock, 'mode', waiter.field)
    end
    return heard
end

-- What follows matters for permits only: the next waiter gets the lock, and no other one.
local function room_of(_, _) return nil end

local function fits(_, _) return 'now' end

local function goes_on(_, _) return false end
