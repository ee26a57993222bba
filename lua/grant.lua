-- Prelude of the scripts that grant a lock to a waiter by a message. Needs clock.lua and token.lua.
--
-- A waiter is {field, lease in ms, fenced ('1' where it wants a token), asked (the number of its last request)}; the
-- number is a secret of its client: see line.go. A waiter whose ear is 'asks' gets no message. One whose state is 'sure'
-- gets its whole lease.
--
-- Defines  client_of(field)                             the client of a field.
-- Defines  listeners(channel, how)                         how many connections hear a channel of this server. Patterns do not
--          count. nil where the user may not ask.
-- Defines  grant(lock, waiter, tokens, channel, how)       grants the lock, which is free; returns whether the waiter heard of
--          it on its channel. The answer nil says that this user can grant nothing.

local provisional = 5000 -- the lease of a grant that its process has not confirmed

local function client_of(field) return field:sub(1, 36) end

local function listeners(channel, how)
    local n = redis.pcall('pubsub', how == 'spublish' and 'shardnumsub' or 'numsub', channel)
    return not n.err and n[2] or nil
end

local function grant(lock, waiter, tokens, channel, how)
    local lease = waiter.state == 'sure' and waiter.lease or math.min(waiter.lease, provisional)
    local token = 0
    if waiter.fenced == '1' and tokens then
        local drawn, t = pcall(function() return draw_token(tokens) end)
        token = drawn and t or 0 -- the process asks for its token, and is told what is wrong with the counter
    end
    local writes = waiter.field:sub(-6) == ':write' -- of a read/write lock
    local written = writes and redis.pcall('hset', lock, 'mode', 'write', waiter.field, 1) or redis.pcall('hset', lock, waiter.field, 1)
    if type(written) == 'table' then
        return nil -- no memory
    end
    redis.call('pexpire', lock, ms(lease))
    if waiter.ear == 'asks' then
        return true
    end
    local heard = redis.pcall(how, channel, string.format('grant %s %s %s %s', waiter.field, waiter.asked, ms(lease), ms(token)))
    if heard == 0 or type(heard) == 'table' then
        redis.call('del', lock)
        return heard == 0 and false or nil
    end
    return true
end

