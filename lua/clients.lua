-- Prelude of the scripts that grant something to a client that waits, by a message on its channel. Needs clock.lua.
--
-- A waiter is {field, lease in ms, fenced ('1' where it wants a token), asked (the number of its last request)}; the
-- number is a secret of its client: see line.go. A waiter whose ear is 'asks' gets no message. One whose state is 'sure'
-- gets its whole lease.
--
-- Defines  client_of(field)                             the client of a field.
-- Defines  listeners(channel, how)                         how many connections hear a channel of this server. Patterns do not
--          count. nil where the user may not ask.
-- Defines  granted_lease(waiter)                        the lease of a grant.
-- Defines  tell_granted(waiter, lease, token, channel, how)    tells a waiter of its grant; returns whether it heard. nil: this
--          user may not tell it.

local provisional = 5000 -- the lease of a grant that its process has not confirmed

local function client_of(field) return field:sub(1, 36) end

local function listeners(channel, how)
    local n = redis.pcall('pubsub', how == 'spublish' and 'shardnumsub' or 'numsub', channel)
    return not n.err and n[2] or nil
end

local function granted_lease(waiter)
    return waiter.state == 'sure' and waiter.lease or math.min(waiter.lease, provisional)
end

local function tell_granted(waiter, lease, token, channel, how)
    if waiter.ear == 'asks' then
        return true
    end
    local heard = redis.pcall(how, channel, string.format('grant %s %s %s %s', waiter.field, waiter.asked, ms(lease), ms(token)))
    if type(heard) == 'table' then
        return nil
    end
    return heard ~= 0
end
