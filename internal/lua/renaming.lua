-- Prelude of the scripts that rename a hold: see lock_rename.lua.

-- The lease, or what is left until limit if that is less, and at least 1 ms. A limit of 0 is none.
local function lease_up_to(lease, limit, now)
    return limit > 0 and math.max(1, math.min(lease, limit - now)) or lease
end

-- Whether a detached hold that ends at this time is over; 0: there is no such time. Its field may be there: an Attach
-- that gives up late puts it back, for 1 ms.
local function past_end(ends, now) return ends > 0 and now >= ends end
