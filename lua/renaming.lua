-- Prelude of the scripts that rename a hold: see lock_rename.lua.
--
-- Defines  lease_up_to(lease, limit, now)  the lease, or what is left until limit if that is less, and at least 1 ms. A
--          limit of 0 is none.
-- Defines  is_over(key, field, now)        whether field has a tombstone in the line, or among the wishes of a fair
--          lock, whose key this is; key may be false.

local function lease_up_to(lease, limit, now)
    return limit > 0 and math.max(1, math.min(lease, limit - now)) or lease
end

local function is_over(key, field, now)
    local over = key and redis.pcall('hget', key, 'over')
    if type(over) ~= 'string' then
        return false
    end
    local found = is_buried(over, field, now)
    return found
end
