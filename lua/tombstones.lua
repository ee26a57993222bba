-- Prelude of the scripts of locks with a line: its tombstones. See line.lua, and clients.lua for their text.
--
-- Rules: a field leaves a tombstone when it ends, and a request of this field that runs late finds it. The script that finds all of them
-- over takes them away. Both are changes in memory.
--
-- For scripts:
-- Defines  end_field(line, field)                              field never takes the lock again.
-- Defines  has_tombstone(line, field)                          whether field has ended.

local function end_field(line, field)
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
