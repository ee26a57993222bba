-- Prelude of the scripts that grant something to a waiting client by a message on its channel.
--
-- A waiter is {field, lease of its grant in ms, fenced ('1' if it needs a token), asked (the number of its last
-- request)}. The number is a secret of its client: see internal/engine/line.go. A waiter whose delivery is 'poll' gets
-- no message.

local function client_of(field) return field:sub(1, 36) end

local may_ask = true -- for the number of subscribers, as far as this run has tried

-- Returns how many connections of this server are subscribed to each of the channels, as a table: an empty one if the
-- user may not ask. Pattern subscriptions do not count. A call in Lua may have some thousand arguments at most.
local function subscribers(channels, how)
    local found = {}
    if how == in_both_ways then
        local plain, sharded = subscribers(channels, 'publish'), subscribers(channels, 'spublish')
        -- At most longest_line.
        for _, channel in ipairs(channels) do
            local n = math.max(plain[channel] or 0, sharded[channel] or 0)
            found[channel] = (n > 0 or plain[channel] and sharded[channel]) and n or nil
        end
        return found
    end
    -- At most longest_line.
    for from = 1, #channels, 1000 do
        local n = redis.pcall('pubsub', how == 'spublish' and 'shardnumsub' or 'numsub',
            unpack(channels, from, math.min(from + 999, #channels)))
        may_ask = may_ask and not n.err
        -- At most 1000 channels; an error has no elements.
        for i = 1, #n, 2 do
            found[n[i]] = n[i + 1]
        end
    end
    return found
end

local function listeners(channel, how) return subscribers({channel}, how)[channel] end

-- The lease of a grant to a waiter with this wish, which has the lease that the caller wants, and most: the limit of a
-- new place if its client may have been late for a grant, else nil. kept is the lease that the place of the waiter has
-- already.
local function grant_lease(wish, kept)
    return math.min(wish.lease, math.max(kept or wish.most or 0, provisional))
end

-- Publishes a grant to its waiter; returns whether it was received. The lease is 0 if the waiter has missed its turn.
-- nil: this user may not publish it. A grant that was published cannot be taken back: a waiter whose subscription is at
-- a replica receives it, and is not counted. So a connection of this server has to be subscribed: the caller has asked
-- for that, or else a message that grants nothing is counted before. A program that is subscribed to a pattern receives
-- messages, too, also on a channel without subscribers. It is no waiter.
local function tell_granted(waiter, lease, token, channel, how)
    if waiter.delivery == 'poll' then
        return true
    end
    local function tell(message)
        if how == in_both_ways then
            return announce(how, channel, message)
        end
        local heard = redis.pcall(how, channel, message)
        return heard, type(heard) == 'number'
    end
    local heard, may = 1, true
    if not may_ask then
        heard, may = tell('count -')
        if may and heard > 0 and how == 'publish' then
            heard = heard - (tonumber(redis.pcall('publish', channel .. ':nobody', '')) or 0)
        end
    end
    if may and heard > 0 then
        heard, may = tell(string.format(grant_format, waiter.field, waiter.asked, ms(lease), ms(token)))
    end
    if not may then
        return nil
    end
    return heard > 0
end
