-- Prelude of the scripts that release a lock by force: the holders that an operator has seen. Only they lose the lock.
--
-- The last arguments of such a script are their fields. Without them every holder loses the lock.
--
-- Defines  seen_from(n)           the fields in ARGV from the index n on, as a set; nil if there are none.
-- Defines  may_force(lock, seen)  whether each holder of a lock without a mode is in the set, or there is no set. Of
--          Redisson's multi lock of values the owners are in the set.

local function seen_from(n)
    if #ARGV < n then
        return nil
    end
    local seen = {}
    -- At most #ARGV.
    for i = n, #ARGV do
        seen[ARGV[i]] = true
    end
    return seen
end

local function may_force(lock, seen)
    if not seen then
        return true
    end
    -- At most most_holds, and one.
    local entries = redis.call('hrandfield', lock, most_holds + 1, 'withvalues')
    if #entries > 2 * most_holds then
        return false
    end
    -- At most most_holds.
    for i = 1, #entries, 2 do
        local field, value = entries[i], entries[i + 1]
        local owner = is_hold(field, value) and field or is_hold(value, '1') and value
        if owner and not seen[owner] then
            return false
        end
    end
    return true
end
