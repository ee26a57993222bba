-- Prelude of the scripts of locks that pass from process to process: the line of processes that wait. The lock is a plain lock,
-- or the write half of a read/write lock, whose fields end with :write. Two such locks of one name share a line, and each has
-- its own channel: a place is granted the lock that its client waits for, on the channel of that lock. For a semaphore,
-- permit.lua is in place of grant.lua. The zset of the permits that are taken is the lock then, and the counter of the free ones
-- is the token counter. A script grants one permit after the other.
--
-- The key of a line is a hash with
--   first, last   the numbers of the first and of the last place; places between them may be missing
--   <number>      the client of the place
--   <client>      the place: see parse_place. It stays while the client holds the lock that it was granted.
--   granted       the field that was granted last and has not given back; if the lock is free, its lease has ended. Of a
--                 semaphore others may be granted a permit, too
--   shared        epoch ms when a release last left the lock to everybody, or the line began
--   over          tombstones: fields that never take the lock again, each with the epoch ms until when; the last one is the
--                 first. A line without places has this field alone: see idle.lua. tombstone_undo.lua takes one away.
--   beside        1 where callers without a place listen for a plain lock, to the channel of the other lock
-- and, of a fair lock, <field>: what a waiter of the queue wants (see queue.lua).
--
-- Rules: a client has one place. The place of a later wait replaces that of an earlier one. But where a client has a place for the
-- plain lock, its wait for the write lock of the name has none, and the other way round: the caller is a guest. A guest takes a free
-- lock before all places, and is told of it once in a slice, like all others that have no place. A place is granted the lock
-- by a message, with a short lease. A place whose grant was not used in time asks before it is granted again, and gets its
-- whole lease then. A client that does not hear its channel loses its place. The script that frees a lock grants it to the
-- next place, and so does every script that finds the lock free. A run that finds the lock granted already grants nothing, so
-- no message is sent twice. A line that no client has joined for line_life is forgotten, and one of tombstones alone after
-- tombstone_life.
-- Of several grants of a semaphore, only the place of the last one comes back when its lease ends: another one waits again at
-- the end.
--
-- A script opens the line for the field of its caller, changes it in memory, and closes it. In memory are line.first, line.last,
-- line.granted, line.shared and line.over, and in line.changes the fields to be written. A place that is not written yet is
-- unsaved: line.mine, that of the caller, or line.back, one that has come back. Three functions write at once: drop_number and
-- close_gaps, because functions that run later look for numbers in Redis, and note_beside, whose line the script may not close.
--
-- This file has the store: opening, closing, fields and places. places.lua has the order of the places, passing.lua how the lock
-- passes along them, and tombstones.lua the fields that have ended.
--
-- For scripts:
-- Defines  open_line(lock, key, field)                         the line, with the place of the field's client; nil where the key
--          is that of the lock: the line cannot be used.
-- Defines  close_line(line)                                    writes what has changed; returns whether this could be done.
-- For the files of the line:
-- Defines  wait_number(field)                                  the number of the wait that a field belongs to.
-- Defines  of_writer(field)                                    whether a field is one of a write lock.
-- Defines  channel_of(channel, of_write)                       the channel of the plain lock, or of the read/write lock of the name
--          whose channel this is. That of a semaphore is its own.
-- Defines  grants_to(channel, p)                               the channel on which the client of a place is told of a grant.
-- Defines  parse_place(text, client)                           the place of a client.
-- Defines  place_of(line, client)                              the same, or nil.
-- Defines  place_at(line, number)                              the place of this number, or nil.
-- Defines  set_field(line, field, value)                       gives a field of the hash a value.
-- Defines  place_text(p)                                       the inverse of parse_place.
-- Defines  put_place(line, p)                                  has p stand in the line.
-- Defines  is_enqueued(line, p)                                whether p stands in the line.
-- Defines  drop_field(line, field)                             takes a field of the hash away.
-- Defines  in_parts(list, run)                                 calls run with the elements of list; returns its last answer,
--          or the first error.

local line_life = 5 * 60 * 1000
local most_places = 20000 -- numbers from the first place to the last one with which a client joins
local most_numbers = 1e15 -- numbers far above are too large for 1 to be added to them
local longest_line = 25000 -- with which a script goes along them; older versions know no limit
local most_over = 100000 -- bytes of the tombstones
local near_head = 32 -- as in internal/poller

local function wait_number(field) return tonumber(field:match('^[%x-]+:%-?%d+:(%d+)') or 0) end

local function of_writer(field) return field:sub(-6) == ':write' end

local function channel_of(channel, of_write)
    local name = channel:match('^redisson_lock__channel(:.*)') or channel:match('^redisson_rwlock(:.*)')
    return name and (of_write and 'redisson_rwlock' or 'redisson_lock__channel') .. name or channel
end

local function grants_to(channel, p) return channel_of(channel, of_writer(p.field)) .. ':' .. p.client end

-- A place is a text: number, state, ear, lease in ms, fenced, number of its last request, field.
--   state  new; late: a grant was not used in time; sure: it has asked since
--   ear    hears: it listens to its channel; asks: it may not, and asks often
-- The number of the last request is a secret of the client: see line.go.
local state_of = {new = 'new', late = 'suspect', sure = 'confirmed'}
local word_of = {new = 'new', suspect = 'late', confirmed = 'sure', push = 'hears', poll = 'asks'}

local function parse_place(text, client)
    local number, state, delivery, lease, fenced, asked, field = text:match('^(%d+) (%a+) (%a+) (%d+) (%d) (%d+) (.+)$')
    if not number or #number > 15 or #lease > 15 then
        return nil -- other data
    end
    return {number = tonumber(number), state = state_of[state] or 'new', delivery = delivery == 'asks' and 'poll' or 'push',
        lease = tonumber(lease), fenced = fenced, asked = asked, field = field, client = client}
end

local function open_line(lock, key, field)
    if not key or key == lock then
        return nil
    end
    local client = client_of(field)
    local head = redis.call('hmget', key, 'first', 'last', 'granted', 'shared', 'over', client, 'beside')
    local first, last, shared = tonumber(head[1] or 1), tonumber(head[2] or 0), tonumber(head[4] or 0)
    if not (first and last and shared and first >= 0 and last < most_numbers and last - first < longest_line) or
        #(head[5] or '') > most_over then
        refuse(key, 'type hash') -- see record.lua: no loop below is longer
    end
    return {
        key = key, exists = first <= last or head[3] or head[7], -- there is more than tombstones
        any = head[1] or head[3] or head[5] or head[7],
        first = first, last = last, granted = head[3], shared = shared,
        over = head[5], mine = head[6] and parse_place(head[6], client),
        changes = {}, -- what is written when the line is closed: field -> value, or false where it goes
    }
end

-- Of several changes of a field the last one counts.
local function set_field(line, field, value) line.changes[field] = value end

local function drop_field(line, field) line.changes[field] = false end

-- Lua passes no more than some thousand arguments.
local function in_parts(list, run)
    local answer
    -- At most longest_line.
    for from = 1, #list, 1000 do
        answer = run(unpack(list, from, math.min(from + 999, #list)))
        if type(answer) == 'table' then
            break
        end
    end
    return answer
end

local function close_line(line)
    if line.first > line.last and not line.granted then
        if line.any then
            redis.call('del', line.key)
        end
        local written = line.over and redis.pcall('hset', line.key, 'over', line.over)
        if type(written) == 'number' then
            redis.call('pexpire', line.key, tombstone_life)
        end
        return type(written) ~= 'table'
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
        redis.call('pexpire', line.key, line.life)
    end
    return type(written) ~= 'table' -- else there is no memory
end

local function place_of(line, client)
    if line.mine and line.mine.client == client then
        return line.mine
    end
    local text = redis.call('hget', line.key, client)
    return text and parse_place(text, client)
end

local function place_at(line, number)
    -- At most 2.
    for _, known in ipairs({line.mine or false, line.back or false}) do
        if known and known.unsaved and known.number == number then
            return known
        end
    end
    local client = redis.call('hget', line.key, ms(number))
    local p = client and place_of(line, client)
    return p and p.number == number and p or nil
end

local function place_text(p)
    return string.format('%d %s %s %s %s %s %s', p.number, word_of[p.state], word_of[p.delivery], ms(p.lease), p.fenced,
        p.asked, p.field)
end

local function put_place(line, p)
    set_field(line, p.client, place_text(p))
    set_field(line, ms(p.number), p.client)
end

local function is_enqueued(line, p)
    return p.number >= line.first and redis.call('hget', line.key, ms(p.number)) == p.client
end
