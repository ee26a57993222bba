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
-- A script opens the line for the field of its caller, changes it in memory, and closes it.
--
-- For scripts:
-- Defines  open_line(lock, key, field)                         the line, with the place of the field's client; nil where the key
--          is that of the lock: the line cannot be used.
-- Defines  close_line(line)                                    writes what has changed; returns whether this could be done.
-- Defines  join(line, field, wish)                             gives a wait a place; returns whether it has one.
-- Defines  standing(line, joined, deaf, apart)                 what the answer "busy" says: 1, and four for each place in front,
--          where the caller has joined; 2 where only the channel says when the lock is released; 3 where the caller is deaf.
-- Defines  is_guest(line, field)                              whether the client of field has a place for the other lock.
-- Defines  plain_waits(line, channel, how)                     whether the first places have one of a plain lock that may be granted.
-- Defines  note_beside(line, channel, how)                     has the next release of the plain lock look at the line, where anybody
--          listens to channel, which is that of the other lock, and has no place.
-- Defines  announce_beside(channel, how)                       says that the lock is free to those that listen to the channel of the
--          other lock; returns how many connections heard it.
-- Defines  leave(line, field)                                  takes away the place of a wait or a hold.
-- Defines  leave_granted(line)                                 the same for the field that was granted last.
-- Defines  end_field(line, field)                              field never takes the lock again.
-- Defines  is_over(line, field)                                whether field has ended.
-- Defines  pass_on(lock, line, tokens, channel, how, asker)    grants the lock, which is free; returns whose client got it:
--          asker, which must take it, needs no message.
-- Defines  passed(line, to)                                    what the answer to a release says: 1 where pass_on has returned
--          a client, to; 2 where this user may not tell the next one; else 0. line may be nil.
-- Defines  release_to_all(line, channel, how, message, slice, always)    says that the lock is free to those that have no
--          place: once in a slice, or always if any of them hears this server; returns how many connections heard it.
-- Defines  leave_and_pass(lock, key, field, late, pass)     ends the wait and the hold of field in the line, where there is a line
--          or late is set, and has pass(line) pass on the lock: it returns the line as it is then, and whose client got the lock.
--          Returns what the answer to a release says.
-- Defines  try(step)                                           what step returns; nil where it fails.
-- Defines  is_deaf(field, ear, channel, how)                   whether the client of field believes that it hears its channel
--          on this server, and does not.
-- For this file:
-- Defines  wait_number(field)                                  the number of the wait that a field belongs to.
-- Defines  of_writer(field)                                    whether a field is one of a write lock.
-- Defines  channel_of(channel, of_write)                       the channel of the plain lock, or of the read/write lock of the name
--          whose channel this is. That of a semaphore is its own.
-- Defines  grants_to(channel, p)                               the channel on which the client of a place is told of a grant.
-- Defines  parse_place(text, client)                           the place of a client.
-- Defines  place_of(line, client)                              the same, or nil.
-- Defines  places_in_front(line)                            how many places are in front of that of the caller, about.
-- Defines  place_at(line, number)                              the place of this number, or nil.
-- Defines  set_field(line, field, value)                       gives a field of the hash a value.
-- Defines  place_text(p)                                       the inverse of parse_place.
-- Defines  put_place(line, p)                                  has p stand in the line.
-- Defines  stands(line, p)                                     whether p stands in the line.
-- Defines  drop_place(line, p)                                 takes p away.
-- Defines  drop_number(line, number)                           takes the number of a place away.
-- Defines  drop_field(line, field)                             takes a field of the hash away.
-- Defines  in_parts(list, run)                                 calls run with the elements of list; returns its last answer,
--          or the first error.
-- Defines  close_gaps(line)                                    numbers the places anew where most numbers are missing.
-- Defines  note_lapse(line)                                    finds out whether the lease of a grant has ended.
-- Defines  hears(p, channel, how)                              whether the client of p hears of a grant.

local line_life = 5 * 60 * 1000
local most_places = 20000 -- numbers from the first place to the last one with which a client joins
local most_numbers = 1e15 -- numbers far above are too large for 1 to be added to them
local longest_line = 25000 -- with which a script goes along them; older versions know no limit
local most_over = 100000 -- bytes of the tombstones
local near_head = 32 -- as in lookout.go

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
local function parse_place(text, client)
    local number, state, ear, lease, fenced, asked, field = text:match('^(%d+) (%a+) (%a+) (%d+) (%d) (%d+) (.+)$')
    if not number or #number > 15 or #lease > 15 then
        return nil -- other data
    end
    return {number = tonumber(number), state = state, ear = ear, lease = tonumber(lease), fenced = fenced, asked = asked,
        field = field, client = client}
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
    return string.format('%d %s %s %s %s %s %s', p.number, p.state, p.ear, ms(p.lease), p.fenced, p.asked, p.field)
end

local function put_place(line, p)
    set_field(line, p.client, place_text(p))
    set_field(line, ms(p.number), p.client)
end

local function stands(line, p)
    return p.number >= line.first and redis.call('hget', line.key, ms(p.number)) == p.client
end

local function drop_number(line, number)
    drop_field(line, ms(number))
    redis.call('hdel', line.key, ms(number)) -- at once: pass_on looks there
    local back = line.back and line.back.number
    -- At most longest_line.
    while line.first <= line.last and line.first ~= back and
        (line.first == number or redis.call('hexists', line.key, ms(line.first)) == 0) do
        line.first = line.first + 1
    end
end

local function drop_place(line, p)
    drop_field(line, p.client)
    if p.unsaved or stands(line, p) then
        drop_number(line, p.number)
    end
end

-- The lease of a grant has ended. Its place comes back, and is not granted before its process asks. A process that does not
-- hear comes back by itself: it asks.
local function note_lapse(line)
    local field = line.granted
    if not field then
        return
    end
    line.granted = false
    drop_field(line, 'granted')
    local p = place_of(line, client_of(field))
    if not p or p.field ~= field or p.unsaved or stands(line, p) then
        return
    end
    if p.ear == 'asks' or line.last - p.number >= most_places then
        drop_field(line, p.client)
        return
    end
    p.state, p.unsaved = 'late', true
    put_place(line, p)
    line.back = p
    line.first = math.min(line.first, p.number)
end

local most_missing = 200 -- numbers: each script that goes along the line looks for all of them

-- A place that waits long in front of many that come and go has more and more missing numbers behind it. The place that was
-- granted the lock has a number and does not stand in the line.
local function close_gaps(line)
    local span = line.last - line.first
    local fields = span >= most_missing and redis.call('hlen', line.key)
    if not fields or span < 2 * fields and (span < most_places or span < fields) then
        return
    end
    -- At most longest_line: see above.
    local all = redis.call('hrandfield', line.key, fields, 'withvalues') -- all of them, with the rights that users have
    local places, numbers = {}, {}
    -- At most longest_line: no more fields than half of the numbers.
    for i = 1, #all, 2 do
        if #all[i] == 36 then
            places[#places + 1] = parse_place(all[i + 1], all[i]) -- nil adds nothing
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
        local stood = numbers[ms(p.number)] == p.client
        p.number = line.first + i - 1
        redis.call('hset', line.key, p.client, place_text(p))
        if stood then
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

-- A place that neither stands in the line nor was granted the lock is the rest of a hold that was lost.
local function is_guest(line, field)
    local p = line and line.mine
    return p and of_writer(p.field) ~= of_writer(field) and (p.unsaved or line.granted == p.field or stands(line, p)) or false
end

-- wish is {ear, lease, fenced, asked} of a place. The caller does not hold the lock, and is no guest.
local function join(line, field, wish)
    close_gaps(line)
    local before, client = line.mine, client_of(field)
    if before and of_writer(before.field) == of_writer(field) and wait_number(before.field) > wait_number(field) then
        return false
    end
    if before and before.field == field and line.granted == field then
        note_lapse(line)
    end
    local p = {state = 'new', ear = wish.ear, lease = wish.lease, fenced = wish.fenced, asked = wish.asked, field = field,
        client = client, unsaved = true}
    if before and before.field == field then
        p.state = before.state == 'late' and 'sure' or before.state
    end
    local stays = before and (before.unsaved or stands(line, before))
    if stays and before.state == 'late' and before.field ~= field then -- the hold of that place was lost
        drop_number(line, before.number)
        stays = false
    end
    if stays then
        p.number = before.number
    elseif line.last - line.first >= most_places then
        return false -- it asks from time to time
    else
        line.last = line.last + 1
        p.number = line.last
    end
    line.mine, line.back, line.life = p, nil, line_life
    put_place(line, p)
    if not line.exists then -- a release to an empty line was for everybody
        line.shared = now_ms()
        set_field(line, 'shared', ms(line.shared))
    end
    return true
end

-- A place has two fields. Numbers in front of it may be missing: where these are many, places are counted by the fields.
local function places_in_front(line)
    local numbers = math.max(0, line.mine.number - line.first)
    return numbers < near_head and numbers or math.min(numbers, math.floor(redis.call('hlen', line.key) / 2))
end

local function standing(line, joined, deaf, apart)
    if apart then
        return 2
    elseif joined then
        return 1 + 4 * places_in_front(line)
    end
    return deaf and 3 or 0
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

local function leave_granted(line)
    if line.granted then
        line.mine = place_of(line, client_of(line.granted))
        leave(line, line.granted)
    end
end

local function end_field(line, field)
    line.over = bury(line.over, field, now_ms())
    set_field(line, 'over', line.over)
    if redis.call('pttl', line.key) < tombstone_life then
        line.life = tombstone_life
    end
end

local function is_over(line, field)
    local found, any = is_buried(line.over, field, now_ms())
    if line.over and not any then
        line.over = false
        drop_field(line, 'over')
    end
    return found
end

local function is_deaf(field, ear, channel, how)
    return ear == 'hears' and listeners(channel .. ':' .. client_of(field), how) == 0
end

local function hears(p, channel, how)
    return p.ear == 'asks' or listeners(grants_to(channel, p), how) ~= 0
end

local function pass_on(lock, line, tokens, channel, how, asker)
    if line.granted and not still_held(lock, line.granted) then
        note_lapse(line)
    end
    local late, to, at = {}, nil, line.last -- late: places that are passed over; at: the number that was reached
    -- At most longest_line.
    for number = line.first, line.last do
        local p, granted = place_at(line, number), false
        if p and p.client == asker then
            to, at, line.mine = asker, number, nil
            drop_field(line, asker)
            break
        elseif p and p.state == 'late' and hears(p, channel, how) then
            late[#late + 1] = p
        elseif p and p.state ~= 'late' and hears(p, channel, how) then
            granted = grant(lock, p, tokens, grants_to(channel, p), how)
            if granted == nil then -- all stay
                line.mute = true
                -- At most longest_line.
                for _, q in ipairs(late) do
                    put_place(line, q)
                end
                announce(how, grants_to(channel, p), 'free')
                return nil
            elseif granted then
                to, at, line.granted = p.client, number, p.field
                set_field(line, 'granted', p.field)
                break
            end
        end
        if p and late[#late] ~= p then
            drop_field(line, p.client)
        end
        drop_field(line, ms(number))
    end
    -- The places that were passed over close up, so that the next run has no gap to look through. The place that was
    -- granted keeps its number: it may come back.
    local free = to and #late > 0 and at - 1 or at
    if to then
        drop_field(line, ms(at))
    end
    -- At most longest_line.
    for i, p in ipairs(late) do
        p.number = free - #late + i
        put_place(line, p)
    end
    line.first = free - #late + 1
    if not to then
        -- At most longest_line.
        for _, p in ipairs(late) do
            announce(how, grants_to(channel, p), 'free')
        end
    end
    return to
end

local function passed(line, to)
    if to then
        return 1
    end
    return line and line.mute and 2 or 0
end

-- A place that asks may be that of a process that has died: nobody would notice for minutes.
local function plain_waits(line, channel, how)
    -- At most near_head.
    for number = line.first, math.min(line.last, line.first + near_head - 1) do
        local p = place_at(line, number)
        if p and not of_writer(p.field) and p.state ~= 'late' and p.ear == 'hears' and hears(p, channel, how) then
            return true
        end
    end
    return false
end

-- A plain lock whose line is empty is released by a short script, which tells only its own channel. It runs the whole script where
-- the key of the line exists.
local function note_beside(line, channel, how)
    if not line.exists and (listeners(channel, how) or 0) > 0 then
        -- Where there is no memory, the caller finds out when it asks again.
        redis.pcall('hset', line.key, 'beside', 1, 'shared', ms(now_ms()))
        redis.pcall('pexpire', line.key, tombstone_life)
    end
end

-- Every message wakes all clients of this package. '0' is one of both locks of Redisson.
local function announce_beside(channel, how)
    local other = channel_of(channel, not channel:find('^redisson_rwlock:'))
    return other ~= channel and (listeners(other, how) or 0) > 0 and announce(how, other, '0') or 0
end

-- The count of those that hear is not known where a replica may have some, or where the user may not ask. A slice that
-- began in the future is over: the clock was set back, or another server has taken over.
local function release_to_all(line, channel, how, message, slice, always)
    local now = now_ms()
    local due = now - line.shared >= slice or line.shared > now
    if not due and not always then
        return 0
    end
    local known, beside = listeners(channel, how), 0
    if due then
        set_field(line, 'shared', ms(now))
        beside = announce_beside(channel, how)
        if known == 0 and beside == 0 then
            local info = redis.pcall('info', 'replication')
            known = type(info) == 'string' and info:find('connected_slaves:0', 1, true) and 0
        end
    end
    if known == 0 and beside == 0 then
        return 0
    end
    local _, may = announce(how, channel, message)
    if not may then -- nobody was told
        return 0
    end
    local kept = false -- a late place: its process may be frozen
    -- At most longest_line.
    for number = line.first, line.last do
        local p = place_at(line, number)
        local told = p and hears(p, channel, how)
        if told then
            announce(how, grants_to(channel, p), 'free')
            kept = true
            if p.state ~= 'late' then
                break
            end
        else
            if p then
                drop_field(line, p.client)
            end
            drop_field(line, ms(number))
            if not kept then
                line.first = number + 1
            end
        end
    end
    return math.max((known or 1) + beside, 1)
end

local function try(step)
    local done, result = pcall(step)
    return done and result or nil
end

-- Nothing that goes wrong in the line may stop a release.
local function leave_and_pass(lock, key, field, late, pass)
    local answer = 0
    try(function()
        local line, to = open_line(lock, key, field), nil
        if not (late or line.exists or line.mine) then
            return
        end
        try(function()
            leave(line, field)
            if late then
                end_field(line, field)
            end
            line, to = pass(line)
        end)
        answer = passed(line, to)
        close_line(line)
    end)
    return answer
end

