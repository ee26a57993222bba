-- Prelude of every script: tells the records of locks from other data.
--
-- A script whose key holds something that no lock writes ends with one of these errors, and has left this key as it
-- was, except a counter that is too large, which it has incremented. notalock.go reads the errors:
--   NOTALOCK n type t        KEYS[n] has the type t; ? if the user may not ask for it
--   NOTALOCK n field size f  the hash KEYS[n] has a field f of that size; long ones are cut
--   NOTALOCK n fields count  the hash KEYS[n] has more fields than a lock
--   NOTALOCK n number        the counter KEYS[n] is not a number
--   NOTALOCK n large         the counter KEYS[n] is a number that Lua does not have exactly: see counter.lua
--
-- Every loop of a script has a bound, whatever the data is: a script that runs for long stops all of Redis, and cannot
-- be stopped once it has written. A comment in front of each loop names the bound (see
-- TestEveryLoopOfAScriptHasABound). Larger data is refused as data that no lock writes; only a release goes on, and
-- leaves it alone.

local most_holds = 10000 -- fields of a hash that one script reads
local most_hold_count = 10000 -- of a reader, which has as many lease keys in Java; as MostHoldCount in internal/record

-- Ends the script with this error.
local function refuse(key, what)
    local n = 0
    -- At most #KEYS.
    for i = 1, #KEYS do
        n = KEYS[i] == key and i or n
    end
    error({err = 'NOTALOCK ' .. n .. ' ' .. what}, 0)
end

-- A field in the text of an error. Spaces, control characters, " and \ stand as \x and their code, as Go reads them.
local function field_text(field)
    local shown = field:sub(1, 80):gsub('[^]!#-[^-~]', function(c) return string.format('\\x%02x', c:byte()) end)
    return 'field ' .. #field .. ' ' .. shown
end

local function refuse_field(lock, field) refuse(lock, field_text(field)) end

-- Returns the hold count if the field is a hold. Its field is "client:owner", where the client is a UUID and the owner
-- a number, or "client:owner:" followed by anything, as writers, transactions and relock have it. A hold count has
-- fewer than ten digits.
local function is_hold(field, value)
    local client, more = field:match('^(%x+%-%x+%-%x+%-%x+%-%x+):%-?%d+(.*)$')
    return client and #client == 36 and (more == '' or more:sub(1, 1) == ':') and
        #value < 10 and value:match('^[1-9]%d*$')
end

-- Whether a hold of a read/write lock has a higher hold count than a reader may have.
local function too_deep(field, hold_count)
    return tonumber(hold_count) > most_hold_count and field:sub(-6) ~= ':write'
end

-- Whether the holder, or the waiter, is one of relock, which uses the line. Redisson's fields end with the ID of the
-- thread; those of relock have one number more: see internal/engine/field.go. A pattern for the client in front, which
-- has 36 characters, would take most of the time of move_up.
local function is_relocks(field)
    return field:find('^:%-?%d+:%d+$', 37) or field:find('^:%-?%d+:%d+:write$', 37)
end

-- Refuses a hash that no lock writes; returns how many fields it has read, and one of them: if it has seen holders, one
-- of these, and rather one that does not use the line. A hash that has the caller's field is a lock, and need not be
-- checked. A key that does not exist passes the check. The cost does not depend on the size of the hash: of more than
-- eight fields it reads some at random.
local function check_record(lock)
    local some = redis.call('hrandfield', lock, 8, 'withvalues')
    local mode = redis.call('hget', lock, 'mode')
    local bad = mode and mode ~= 'read' and mode ~= 'write' and 'mode'
    local holder
    -- At most 8 fields.
    for i = 1, #some, 2 do
        local field, value = some[i], some[i + 1]
        if is_hold(field, value) and not (mode and too_deep(field, value)) then
            holder = holder and not is_relocks(holder) and holder or field
        elseif not mode or field ~= 'mode' then
            bad = bad or field
        end
    end
    bad = bad or not mode and #some > 2 and holder -- a lock without a mode has one holder
    if mode and #some == 2 and redis.call('pttl', lock) == -1 then
        bad = 'mode' -- what is left over from a lock has a lease
    end
    if bad then
        refuse_field(lock, bad)
    end
    return #some / 2, holder or some[1]
end

-- The field alone makes the hold. Its hold count is only shown to users, so the old number stays if memory is short: an
-- Unlock must not fail because of it.
local function note_hold_count(lock, field, hold_count)
    local answer = redis.pcall('hset', lock, field, hold_count)
    if type(answer) == 'table' and not answer.err:find('OOM ', 1, true) then
        error(answer, 0)
    end
end

-- Deletes a record that the script has just written: its only fields.
local function undo(lock, ...)
    if type(redis.pcall('hdel', lock, ...)) == 'table' then -- deleting the only fields deletes the record
        redis.call('del', lock)
    end
end

-- Sets the lease of a record that the script has just written. If this user may not, the record is deleted, and the
-- script ends: without a lease it would stay for ever.
local function begin_lease(lock, lease, ...)
    local answer = redis.pcall('pexpire', lock, lease)
    if type(answer) == 'table' then
        undo(lock, ...)
        error(answer, 0)
    end
end

-- Returns what step returns; nil if it fails.
local function try(step)
    local done, result = pcall(step)
    return done and result or nil
end

-- Runs a command with a long list; returns the sum of its answers. A call in Lua may have some thousand arguments at
-- most.
local function in_parts(command, key, list)
    local sum = 0
    -- At most longest_queue.
    for from = 1, #list, 1000 do
        sum = sum + redis.call(command, key, unpack(list, from, math.min(from + 999, #list)))
    end
    return sum
end

-- Runs a script whose KEYS have these types, which it may change. Three numbers, and the texts behind them, become one
-- text, which costs less than a list.
local function answer(script, types)
    local done, result = pcall(script, types)
    if done and type(result) == 'table' and type(result[3]) == 'number' then
        local more = result[4] and ' ' .. table.concat(result, ' ', 4) or ''
        return string.format('%.0f %.0f %.0f', result[1], result[2], result[3]) .. more
    elseif done then
        return result
    end
    local text = type(result) == 'table' and result.err or tostring(result)
    if text:find('WRONGTYPE ', 1, true) then
        text = 'NOTALOCK 0 type ?'
        -- At most #KEYS.
        for n, key in ipairs(KEYS) do
            local found = redis.pcall('type', key).ok
            if found and found ~= 'none' and found ~= types[n] then
                text = 'NOTALOCK ' .. n .. ' type ' .. found
                break
            end
        end
    end
    return {err = text:find('^%u+ ') and text or 'ERR ' .. text}
end

