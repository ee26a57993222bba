-- Prelude of the scripts of locks that pass from process to process: the line, which is the wait queue in Redis. It
-- has the processes that wait, in order. The lock is a plain lock, or the write lock of a read/write lock, whose
-- fields end with :write. Each has a line of its own. For a semaphore, permit.lua replaces grant.lua.
-- The zset of the taken permits is the lock then, and the counter of the available ones stands for the token counter.
-- A script grants one permit after the other.
--
-- The key of a line is a hash with
--   first, last   the numbers of the first and of the last place; places between them may be missing
--   <number>      the client of the place
--   <client>      the place: see parse_place
--   shared        epoch ms at which a release last left the lock to everybody, or at which the line began
--   over          tombstones: fields that never acquire the lock again, each with the epoch ms at which the tombstone
--                 expires; the latest one is the first. A line without places has this field alone: see idle.lua.
--                 tombstone_remove.lua removes a tombstone.
--   kept          of a semaphore: the field and the request for which permits are kept, epoch ms since when, and, if
--                 its client was told halfway, epoch ms at which it was: see keeps_for of passing.lua
--
-- Rules: a client has one place. The place of a later wait replaces that of an earlier one. Callers that have no place
-- are told that the lock is free once in each hand-off window. Two locks of one name exclude each other by the record:
-- who passes on a lock looks at it first. Their waiters find a lock that the other one has left free when they look at
-- it. A place is granted the lock by a message, with a short lease, and leaves the
-- line: a client that does not use its grant in time joins again at the end. If it has been late like this, its next
-- grants have its whole lease. A client that has lost its subscription loses its place. The script that frees a lock
-- grants it to the next place, and so does every script that finds the lock free. A run that finds the lock granted
-- already grants nothing, so no message is sent twice. A line expires after line_life if no client has joined it, and a
-- line of tombstones alone after tombstone_life. An empty line stays while the lock is held by whom it was granted,
-- because it has shared.
--
-- A script opens the line for the field of its caller, changes it in memory, and closes it. In memory are line.first,
-- line.last, line.shared and line.over, in line.changes the fields to be written, and in line.mine the place of the
-- caller. Although the line is changed in memory, two functions write to Redis at once, leave and close_gaps, because
-- functions that run later look for numbers in Redis.
--
-- This file stores the line: opening, closing, fields and places. places.lua has the order of the places, passing.lua
-- passes the lock along them, and tombstones.lua has the fields that have ended.
--
-- For scripts:
-- Defines  open_line(lock, key, field)    the line, with the place of the field's client.
-- Defines  close_line(line)               writes all changes at once; returns whether they could be written. An empty line
--          is deleted unless line.stays is set: the lock is held.
-- For the files of the line:
-- Defines  wait_number(field)             the number of the wait that a field belongs to.
-- Defines  grants_to(channel, p)          the channel on which the client of a place is told of a grant.
-- Defines  parse_place(text, client)      the place of a client.
-- Defines  place_of(line, client)         the same, or nil.
-- Defines  places_of(line, last)          an iterator over the numbers of the line, from the first one to last, which is
--          that of the line if it is nil: the number; its client, or false if the number is missing; and its place, or
--          nil. The places that are read together have a list of them, together: see is_reachable of passing.lua.
-- Defines  read_places(line, from, to)    for places_of: the clients and the places of these numbers.
-- Defines  set_field(line, field, value)  sets a field of the hash, in memory.
-- Defines  place_text(p)                  the inverse of parse_place.
-- Defines  put_place(line, p)             enqueues p, in memory.
-- Defines  client_at(line, number)        the client that has this number, as the line is in memory; false if it is
--          missing.
-- Defines  drop_field(line, field)        removes a field of the hash, in memory.
-- Defines  clear_line(line)               deletes the line, in which no client has a place; returns whether its tombstones
--          could be written.
-- Defines  set_life(line, life)           sets the lease of the line, which has been written; if this user may not,
--          deletes a new line, and ends the script.
-- Defines  in_parts(list, run)            calls run with the elements of list; returns its last answer, or the first
--          error.

local most_places = 20000 -- numbers from the first place to the last one up to which clients join
local most_numbers = 1e15 -- adding 1 to much larger numbers does not change them
local longest_line = 25000 -- numbers that a script iterates over; older versions have no limit
local most_fields = 100000 -- that a script deletes with the last place; any others expire
local most_over = 100000 -- bytes of the tombstones

local function wait_number(field) return tonumber(field:match('^[%x-]+:%-?%d+:(%d+)') or 0) end

local function grants_to(channel, p) return channel .. ':' .. p.client end

-- Redis stores a place as a text: number, delivery, lease of its grant in ms, fenced, number of its last request,
-- field, since.
--   delivery  push: the client is subscribed to its channel; poll: it may not subscribe, and polls often
--   since     epoch seconds at which the client got its place in the line. Only Inspect reads it.
-- The number of the last request is a secret of the client: see internal/engine/line.go.
local function parse_place(text, client)
    local number, delivery, lease, fenced, asked, field, since = text:match(place_pattern)
    if not number or #number > 15 or #lease > 15 then
        return nil -- the text is not that of a place
    end
    return {number = tonumber(number), delivery = delivery, lease = tonumber(lease), fenced = fenced, asked = asked,
        field = field, since = since, client = client}
end

local function open_line(lock, key, field)
    local client = client_of(field)
    local head = redis.call('hmget', key, 'first', 'last', 'shared', 'over', client)
    local first, last, shared = tonumber(head[1] or 1), tonumber(head[2] or 0), tonumber(head[3] or 0)
    if not (first and last and shared and first >= 0 and last < most_numbers and last - first < longest_line) or
        #(head[4] or '') > most_over then
        refuse(key, 'type hash') -- this bounds the loops over the line: see record.lua
    end
    return {
        key = key, lock = lock,
        exists = head[1], -- the line has more than tombstones
        any = head[1] or head[4],
        first = first, last = last, shared = shared,
        over = head[4], mine = head[5] and parse_place(head[5], client),
        changes = {}, -- written when the line is closed: field -> value, or false to delete it
    }
end

-- A later change of the same field replaces an earlier one.
local function set_field(line, field, value) line.changes[field] = value end

local function drop_field(line, field) line.changes[field] = false end

-- A call in Lua may have some thousand arguments at most.
local function in_parts(list, run)
    local answer
    -- At most most_fields.
    for from = 1, #list, 1000 do
        answer = run(unpack(list, from, math.min(from + 999, #list)))
        if type(answer) == 'table' then
            break
        end
    end
    return answer
end

-- A new line without a lease would stay for ever.
local function set_life(line, life)
    local answer = redis.pcall('pexpire', line.key, life)
    if type(answer) == 'table' then
        if not line.any then
            redis.call('del', line.key)
        end
        error(answer, 0)
    end
end

local function clear_line(line)
    local gone = {}
    -- At most most_fields.
    for _, field in ipairs(line.any and redis.call('hrandfield', line.key, most_fields) or {}) do
        if field ~= 'over' or not line.over then
            gone[#gone + 1] = field
        end
    end
    in_parts(gone, function(...) return redis.call('hdel', line.key, ...) end)
    local written = line.changes.over and redis.pcall('hset', line.key, 'over', line.over)
    if line.over then
        set_life(line, tombstone_life)
    end
    return type(written) ~= 'table'
end

local function close_line(line)
    if line.first > line.last and not (line.stays and line.exists) then
        return clear_line(line)
    end
    set_field(line, 'first', ms(line.first))
    set_field(line, 'last', ms(line.last))
    local set, gone = {}, {}
    -- At most longest_line.
    for field, value in pairs(line.changes) do
        if value then
            set[#set + 1], set[#set + 2] = field, value
        else
            gone[#gone + 1] = field
        end
    end
    local written = in_parts(set, function(...) return redis.pcall('hset', line.key, ...) end)
    in_parts(gone, function(...) return redis.call('hdel', line.key, ...) end)
    if line.life then
        set_life(line, line.life)
    end
    return type(written) ~= 'table' -- an error: Redis has no memory left
end

local function place_of(line, client)
    if line.mine and line.mine.client == client then
        return line.mine
    end
    local text = redis.call('hget', line.key, client)
    return text and parse_place(text, client)
end

local function read_places(line, from, to)
    local clients, places, numbers, some, together = {}, {}, {}, {}, {}
    -- At most 1000: see places_of.
    for number = from, to do
        numbers[#numbers + 1] = ms(number)
    end
    -- At most 1000.
    for i, client in ipairs(redis.call('hmget', line.key, unpack(numbers))) do
        clients[from + i - 1] = client
        some[#some + 1] = client or nil
    end
    local texts, n = #some > 0 and redis.call('hmget', line.key, unpack(some)), 0
    -- At most 1000.
    for number = from, to do
        local client, p = clients[number], nil
        if client then
            n = n + 1
            p = texts[n] and parse_place(texts[n], client)
        end
        if line.mine and line.mine.number == number then -- it may not be in Redis yet
            p = line.mine
        end
        if p and p.number == number then
            places[number], clients[number], p.together = p, p.client, together
            together[#together + 1] = p
        end
    end
    return clients, places
end

-- The first place is usually enough. The farther a script gets, the more places it reads at a time.
local function places_of(line, last)
    last = math.min(last or line.last, line.last)
    local number = line.first - 1
    local to, size, clients, places = number, 1, nil, nil -- to: the last number that was read
    return function()
        number = number + 1
        if number > last then
            return nil
        elseif number > to then
            to = math.min(number + size - 1, last)
            clients, places = read_places(line, number, to)
            size = math.min(8 * size, 1000)
        end
        return number, clients[number], places[number]
    end
end

local function place_text(p)
    return string.format(place_format, ms(p.number), p.delivery, ms(p.lease), p.fenced, p.asked, p.field, p.since)
end

local function put_place(line, p)
    set_field(line, p.client, place_text(p))
    set_field(line, ms(p.number), p.client)
end

local function client_at(line, number)
    local changed = line.changes[ms(number)]
    if changed ~= nil then
        return changed
    end
    return redis.call('hget', line.key, ms(number))
end
