-- Prelude of the scripts that release a lock by force: who loses it.
--
-- The last arguments of such a script are the fields of the holders that an operator has seen. Only they lose the lock.
-- Without them every holder does.

-- Returns the fields in ARGV from the index n on, as a set; nil if there are none.
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

-- Appends the IDs of the clients that have lost one of these holds to the reply, each once. Only clients of relock
-- count, because others do not listen: see forced.go of the engine.
local function with_clients(reply, fields)
    local seen = {}
    -- At most most_taken, and most_of_hold.
    for _, field in ipairs(fields) do
        local client = is_relocks(field) and client_of(field)
        if client and not seen[client] then
            seen[client] = true
            reply[#reply + 1] = client
        end
    end
    return reply
end
