-- Prelude of the scripts that rename a hold: see lock_rename.lua.
--
-- Defines  lease_up_to(lease, limit, now)  the lease, or what is left until limit if that is less, and at least 1 ms. A
--          limit of 0 is none.
-- Defines  past_end(ends, now)              whether a detached hold that ends at this time is over; 0: there is no such
--          time. Its field may be there: an Attach that gives up late puts it back, for 1 ms.
-- Defines  is_over(key, field, now)        whether field has a tombstone in the line, or among the wishes of a fair
--          lock, whose key this is.

local function lease_up_to(lease, limit, now)
    return limit > 0 and math.max(1, math.min(lease, limit - now)) or lease
end

local function past_end(ends, now) return ends > 0 and now >= ends end

local function is_over(key, field, now)
    local over = redis.pcall('hget', key, 'over')
    if type(over) ~= 'string' then
        return false
    end
    local found = is_buried(over, field, now)
    return found
end
