-- Prelude of the scripts of locks whose requests may run late: tombstones, which are in the waits of the line (see
-- line.lua). A fair lock, which has no line, has the same hash.
--
-- A field leaves a tombstone when its wait or hold ends, and a request with this field that runs late finds it, and
-- acquires nothing. Its value is the epoch ms at which it expires. The scripts that leave another one, and the release
-- that begins a hand-off window, look at some fields, and drop the tombstones among them that have expired.

local tombstone_life = 60000 -- in ms: longer than a request may be on its way

local function drop_tombstones(waits, now)
    local some, old = redis.call('hrandfield', waits, 8, 'withvalues'), {}
    -- At most 8 fields.
    for i = 1, #some, 2 do
        if #some[i] > 36 and (tonumber(some[i + 1]) or now) < now then
            old[#old + 1] = some[i]
        end
    end
    if #old > 0 then
        redis.call('hdel', waits, unpack(old))
    end
end

-- Leaves a tombstone, even if Redis has no memory left: the request may run when it has some again. The first command
-- changes nothing, and after it Redis accepts the tombstone.
local function bury(waits, field)
    pcall(function()
        redis.pcall('hdel', waits, '')
        local now, left = now_ms(), redis.call('pttl', waits)
        redis.call('hset', waits, field, ms(now + tombstone_life))
        if left < tombstone_life then
            begin_lease(waits, tombstone_life, field)
        end
        drop_tombstones(waits, now) -- last: while a slot moves on a Cluster, Redis creates no key again that is gone
    end)
end

local function is_buried(waits, field)
    local till = redis.call('hget', waits, field)
    return till and (tonumber(till) or 0) > now_ms()
end
