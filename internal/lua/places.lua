-- Prelude of the scripts in which callers join or leave the line, the wait queue in Redis: the order of its places.
-- See line.lua.
--
-- Rules: a place has a number, and the place with the lowest one is the next. Numbers may be missing: the other
-- places keep theirs when a place is removed, until most numbers are missing. Changes are made in memory, unless the
-- description of a function says that it writes at once.
--
-- For scripts:
-- Defines  join(line, field, wish)               gives a wait a place; returns whether it has one. It may write at
--          once: see close_gaps.
-- Defines  standing(line, joined, lost, legacy)  the third number of the answer "busy": see standing.lua.
-- Defines  leave(line, field)                    removes the place of a wait, if it has one, and the numbers that are
--          missing in front. It writes at once, because pass_on looks for numbers in Redis.
-- Defines  leave_held(line, field, ...)        the same, of a lock that the script has just acquired, and closes the
--          line; if this fails, the record is deleted, whose only fields follow, and the script ends.
-- For this file, and passing.lua:
-- Defines  places_in_front(line)                 the approximate number of places in front of that of the caller.
-- Defines  close_gaps(line)                      renumbers the places if most numbers are missing. It writes at once,
--          for the same reason.

local most_missing = 200 -- numbers; each script that iterates over the line looks up all of them

-- More and more numbers are missing behind a place that waits long while many others come and go.
local function close_gaps(line)
    local span = line.last - line.first
    local fields = span >= most_missing and redis.call('hlen', line.key)
    if not fields or span < 2 * fields and (span < most_places or span < fields) then
        return
    end
    -- At most longest_line: see above.
    local all = redis.call('hrandfield', line.key, fields, 'withvalues') -- all: users may call hrandfield
    local places, numbers = {}, {}
    -- At most longest_line: there are no more fields than half of the numbers.
    for i = 1, #all, 2 do
        if #all[i] == 36 then
            places[#places + 1] = parse_place(all[i + 1], all[i]) -- nil adds no element
        elseif tonumber(all[i]) then
            numbers[all[i]] = all[i + 1]
        end
    end
    table.sort(places, function(a, b) return a.number < b.number end)
    -- At most longest_line.
    for number in pairs(numbers) do
        redis.call('hdel', line.key, number)
    end
    -- At most longest_line.
    for i, p in ipairs(places) do
        p.number = line.first + i - 1
        redis.call('hset', line.key, p.client, place_text(p), ms(p.number), p.client)
        if line.mine and line.mine.client == p.client then
            line.mine = p
        end
    end
    line.last = line.first + #places - 1
end

-- wish is {delivery, lease, most, fenced, asked} of a place: see grant_lease. The caller does not hold the lock.
local function join(line, field, wish)
    close_gaps(line)
    local before = line.mine
    if before and wait_number(before.field) > wait_number(field) then
        return false
    end
    local kept = before and before.field == field and before.lease
    local p = {delivery = wish.delivery, lease = grant_lease(wish, kept), fenced = wish.fenced, asked = wish.asked, field = field,
        client = client_of(field)}
    if before then
        p.number, p.since = before.number, before.since
    elseif line.last - line.first >= most_places then
        return false -- the caller polls
    else
        line.last = line.last + 1
        p.number, p.since = line.last, now_s()
    end
    line.mine, line.life = p, line_life
    put_place(line, p)
    if not line.exists then -- while the line was empty, releases were announced to everybody
        line.shared = now_ms()
        set_field(line, 'shared', ms(line.shared))
    end
    return true
end

-- Numbers in front of the place may be missing. If there are many numbers, the fields of the line limit the result: a
-- place has two of them.
local function places_in_front(line)
    local numbers = math.max(0, line.mine.number - line.first)
    return numbers < near_head and numbers or math.min(numbers, math.floor(redis.call('hlen', line.key) / 2))
end

local function standing(line, joined, lost, legacy)
    return standing_of(joined and places_in_front(line) or nil, legacy, lost)
end

local function leave(line, field)
    local p = line.mine
    if p and p.field == field then
        drop_field(line, p.client)
        drop_field(line, ms(p.number))
        redis.call('hdel', line.key, p.client, ms(p.number))
        line.mine = nil
    end
    -- At most longest_line.
    while line.first <= line.last and not client_at(line, line.first) do
        line.first = line.first + 1
    end
end

local function leave_held(line, field, ...)
    local left, why = pcall(function()
        leave(line, field)
        close_line(line)
    end)
    if not left then
        undo(line.lock, ...)
        error(why, 0)
    end
end
