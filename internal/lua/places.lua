-- Prelude of the scripts in which callers join or leave the line, the wait queue in Redis: the order of its places.
-- See line.lua.
--
-- Rules: a place has a number, and the place with the lowest one is the next. Numbers may be missing: the other
-- places keep theirs when a place is removed, until most numbers are missing. A place that comes back keeps its
-- number. Changes are made in memory, unless the description of a function says that it writes at once.
--
-- For scripts:
-- Defines  join(lock, line, field, wish)         gives a wait a place; returns whether it has one. It may write at
--          once: see close_gaps and drop_number.
-- Defines  standing(line, joined, lost, legacy)  the third number of the answer "busy": see standing.lua.
-- Defines  is_guest(line, field)                 whether the client of field has a place for the other lock of this
--          name.
-- Defines  leave(line, field)                    removes the place of a wait or a hold. It writes at once: see
--          drop_number.
-- Defines  leave_held(line, field, ...)        the same, of a lock that the script has just acquired, and closes the
--          line; if this fails, the record is deleted, whose only fields follow, and the script ends.
-- Defines  leave_granted(line)                   the same for the field that was granted last.
-- For this file, and passing.lua:
-- Defines  places_in_front(line)                 the approximate number of places in front of that of the caller.
-- Defines  drop_place(line, p)                   removes p. Its number is removed at once.
-- Defines  drop_number(line, number)             removes the number of a place. It writes at once, because pass_on
--          looks for numbers in Redis.
-- Defines  close_gaps(line)                      renumbers the places if most numbers are missing. It writes at once,
--          for the same reason.
-- Defines  note_expired_grant(line)              has the place of the last grant come back, because the lease of the
--          grant has expired.

local function drop_number(line, number)
    drop_field(line, ms(number))
    redis.call('hdel', line.key, ms(number)) -- at once, because pass_on looks for numbers in Redis
    -- At most longest_line.
    while line.first <= line.last and not client_at(line, line.first) do
        line.first = line.first + 1
    end
end

local function drop_place(line, p)
    drop_field(line, p.client)
    if p.unsaved or is_enqueued(line, p) then
        drop_number(line, p.number)
    end
end

-- The lease of a grant has expired. Its place comes back as a suspect, and is not granted again before its process
-- asks. The place of a process that polls is removed: the process joins again when it asks.
local function note_expired_grant(line)
    local field = line.granted
    if not field then
        return
    end
    line.granted = false
    drop_field(line, 'granted')
    local p = place_of(line, client_of(field))
    if not p or p.field ~= field or p.unsaved or is_enqueued(line, p) then
        return
    end
    if p.delivery == 'poll' or line.last - p.number >= most_places then
        drop_field(line, p.client)
        return
    end
    p.state, p.unsaved = 'suspect', true
    put_place(line, p)
    line.back = p
    line.first = math.min(line.first, p.number)
end

local most_missing = 200 -- numbers; each script that iterates over the line looks up all of them

-- More and more numbers are missing behind a place that waits long while many others come and go. The place that was
-- granted the lock has a number, and is not in the line.
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
    local first
    -- At most longest_line.
    for i, p in ipairs(places) do
        local was_enqueued = numbers[ms(p.number)] == p.client
        p.number = line.first + i - 1
        redis.call('hset', line.key, p.client, place_text(p))
        if was_enqueued then
            redis.call('hset', line.key, ms(p.number), p.client)
            first = first or p.number
        end
        if line.mine and line.mine.client == p.client then
            line.mine = p
        end
    end
    line.last = line.first + #places - 1
    line.first = first or line.last + 1
end

-- A place that is neither in the line nor was granted the lock has been left behind by a hold that was lost.
local function is_guest(line, field)
    local p = line and line.mine
    return p and of_writer(p.field) ~= of_writer(field) and
        (p.unsaved or line.granted == p.field or is_enqueued(line, p)) or false
end

-- wish is {delivery, lease, fenced, asked} of a place. The caller does not hold the lock, and is not a guest. A place
-- of a later wait keeps it out only while it is in the line: that of a permit stays for as long as the permit is held.
local function join(lock, line, field, wish)
    close_gaps(line)
    local before, client = line.mine, client_of(field)
    local own = before and before.field == field
    if before and line.granted == before.field and (own or comes_back(lock, before.field)) then
        note_expired_grant(line)
    end
    local stays = before and (before.unsaved or is_enqueued(line, before))
    if stays and of_writer(before.field) == of_writer(field) and wait_number(before.field) > wait_number(field) then
        return false
    end
    local p = {state = 'new', delivery = wish.delivery, lease = wish.lease, fenced = wish.fenced, asked = wish.asked,
        field = field, client = client, unsaved = true}
    if own then
        p.state = before.state == 'suspect' and 'confirmed' or before.state
    end
    if stays and before.state == 'suspect' and before.field ~= field then -- the hold of that place was lost
        drop_number(line, before.number)
        stays = false
    end
    if stays then
        p.number, p.since = before.number, before.since
    elseif line.last - line.first >= most_places then
        return false -- the caller polls
    else
        line.last = line.last + 1
        p.number, p.since = line.last, now_s()
    end
    line.mine, line.back, line.life = p, nil, line_life
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
        drop_place(line, p)
        line.mine = nil
    end
    if line.granted == field then
        drop_field(line, 'granted')
        line.granted = false
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

local function leave_granted(line)
    if line.granted then
        line.mine = place_of(line, client_of(line.granted))
        leave(line, line.granted)
    end
end
