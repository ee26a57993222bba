-- Prelude of the scripts of locks with a line, the wait queue in Redis: its tombstones. See line.lua, and clients.lua
-- for the text that stores them.
--
-- Rules: a field leaves a tombstone when its wait or hold ends, and a request with this field that runs late finds
-- it. The script that finds all tombstones expired removes them. Both changes are made in memory. A tombstone is
-- written even if Redis has no memory left: the request may run when it has some again.
--
-- For scripts:
-- Defines  end_field(line, field)      leaves a tombstone: field never acquires the lock again.
-- Defines  has_tombstone(line, field)  whether field has ended.

-- The write changes nothing. It needs no memory, and after it Redis accepts that of the tombstone even if memory is
-- short.
local function end_field(line, field)
    redis.pcall('hdel', line.key, '')
    line.over = bury(line.over, field, now_ms())
    set_field(line, 'over', line.over)
    if redis.call('pttl', line.key) < tombstone_life then
        line.life = tombstone_life
    end
end

local function has_tombstone(line, field)
    local found, any = is_buried(line.over, field, now_ms())
    if line.over and not any then
        line.over = false
        drop_field(line, 'over')
    end
    return found
end
