-- Prelude of the scripts that answer a caller that a lock is busy: the third number of the answer, which standing.go takes
-- apart.
--
-- Defines  standing_of(ahead, legacy, lost)   the number: 1, and four for each of the places ahead, where the caller has a
--          place; 2 where only the channel of the lock says when it is released; 3 where the caller does not hear; 0 else.

local function standing_of(ahead, legacy, lost)
    if legacy then
        return 2
    elseif ahead then
        return 1 + 4 * ahead
    end
    return lost and 3 or 0
end
