-- Prelude of the scripts that check the line, the wait queue in Redis, before they open it: see line.lua. It may
-- stand in front of the function answer, and does not fail.
--
-- A line in which no client has a place has one field: its tombstones. Most scripts have nothing to do with those.
--
-- Defines  is_idle(key)             whether no client has a place in the line; also true if there is no line.
-- Defines  is_idle_for(key, field)  whether there is a line, no client has a place in it, and field has no tombstone
--          there.

local function is_idle(key)
    local fields = redis.pcall('hlen', key)
    return fields == 0 or fields == 1
end

-- The search for the end of the field comes first. The end begins with a colon, and a search for a text is faster if
-- its first character is rare.
local function is_idle_for(key, field)
    local head = redis.pcall('hmget', key, 'over', 'first')
    local over = head[1]
    return over and not head[2] and not (over:find(field:sub(37), 1, true) and over:find(field, 1, true))
end
