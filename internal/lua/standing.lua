-- Prelude of the scripts that answer a caller that a lock is busy. The third number of this answer is the standing of
-- the caller, which internal/contract/standing.go decodes.
--
-- Defines  standing_of(ahead, legacy, lost)  the number: 1 plus four for each of the places ahead if the caller has a
--          place; 2 if only the channel of the lock tells when it is released, because a holder does not use the
--          line; 3 if the server does not know the subscription of the caller; else 0.

local function standing_of(ahead, legacy, lost)
    if legacy then
        return 2
    elseif ahead then
        return 1 + 4 * ahead
    end
    return lost and 3 or 0
end
