-- Prelude of the scripts that release a lock by force.
--
-- Defines  with_clients(reply, fields)  the reply with the IDs of the clients appended that have lost one of these
--          holds, each once. Only clients of relock count, because others do not listen: see forced.go of the engine.

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
