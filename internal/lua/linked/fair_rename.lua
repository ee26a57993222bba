local most_hold_count = 10000 -- of a reader, which may have that many lease keys; as mostHoldCount in rwlock.go

local function refuse(key, what)
    local n = 0
    for i = 1, #KEYS do
        n = KEYS[i] == key and i or n
    end
    error({err = 'NOTALOCK ' .. n .. ' ' .. what}, 0)
end

local function field_text(field)
    local shown = field:sub(1, 80):gsub('[^]!#-[^-~]', function(c) return string.format('\\x%02x', c:byte()) end)
    return 'field ' .. #field .. ' ' .. shown
end

local function refuse_field(lock, field) refuse(lock, field_text(field)) end

local function is_hold(field, value)
    local client, more = field:match('^(%x+%-%x+%-%x+%-%x+%-%x+):%-?%d+(.*)$')
    return client and #client == 36 and (more == '' or more:sub(1, 1) == ':') and
        #value < 10 and value:match('^[1-9]%d*$')
end

local function is_value(field, value)
    local hash, owner = field:match('^([%w+/]+):(.+):expire_time$')
    if hash then
        value = #value < 16 and value:match('^[1-9]%d*$') and '1' or ''
    else
        hash, owner = field:match('^([%w+/]+):(.+):lock_count$')
    end
    if not hash then
        return #field == 22 and field:match('^[%w+/]+$') and is_hold(value, '1')
    end
    return #hash == 22 and is_hold(owner, value)
end

local function too_deep(field, hold_count)
    return tonumber(hold_count) > most_hold_count and field:sub(-6) ~= ':write'
end

local function is_relocks(field)
    return field:find('^:%-?%d+:%d+$', 37) or field:find('^:%-?%d+:%d+:write$', 37)
end

local function check_record(lock)
    local some = redis.call('hrandfield', lock, 8, 'withvalues')
    local mode = redis.call('hget', lock, 'mode')
    local bad = mode and mode ~= 'read' and mode ~= 'write' and 'mode'
    local second -- one hold too many: a lock without a mode has one holder
    for i = 1, #some, 2 do
        local field, value = some[i], some[i + 1]
        if is_hold(field, value) and not (mode and too_deep(field, value)) then
            second = not mode and #some > 2 and field
        elseif not (mode and field == 'mode' or not mode and is_value(field, value)) then
            bad = bad or field
        end
    end
    bad = bad or second
    if mode and #some == 2 and redis.call('pttl', lock) == -1 then
        bad = 'mode' -- what is left over from a lock has a lease
    end
    if bad then
        refuse_field(lock, bad)
    end
    return #some / 2, some[1] == 'mode' and some[3] or some[1]
end

local function undo(lock, ...)
    if type(redis.pcall('hdel', lock, ...)) == 'table' then -- deleting the only fields deletes the record
        redis.call('del', lock)
    end
end

local function begin_lease(lock, lease, ...)
    local answer = redis.pcall('pexpire', lock, lease)
    if type(answer) == 'table' then
        undo(lock, ...)
        error(answer, 0)
    end
end

local function answer(script, types)
    local done, result = pcall(script)
    if done and type(result) == 'table' and type(result[3]) == 'number' then
        local more = result[4] and ' ' .. table.concat(result, ' ', 4) or ''
        return string.format('%.0f %.0f %.0f', result[1], result[2], result[3]) .. more
    elseif done then
        return result
    end
    local text = type(result) == 'table' and result.err or tostring(result)
    if text:find('WRONGTYPE ', 1, true) then
        text = 'NOTALOCK 0 type ?'
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

local function now_ms()
    local clock = redis.call('time')
    return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

local function ms(t) return string.format('%.0f', t) end
local tombstone_life = 60000 -- in ms: longer than a request may be on its way

local function bury(waits, field)
    redis.pcall('hdel', waits, '')
    local now, old = now_ms(), {}
    local some = redis.call('hrandfield', waits, 8, 'withvalues')
    for i = 1, #some, 2 do
        if #some[i] > 36 and (tonumber(some[i + 1]) or now) < now then
            old[#old + 1] = some[i]
        end
    end
    if #old > 0 then
        redis.call('hdel', waits, unpack(old))
    end
    local left = redis.call('pttl', waits)
    redis.pcall('hset', waits, field, ms(now + tombstone_life))
    if left < tombstone_life then
        begin_lease(waits, tombstone_life, field)
    end
end

local function is_buried(waits, field)
    local till = redis.call('hget', waits, field)
    return till and (tonumber(till) or 0) > now_ms()
end
local most_waiters = 20000 -- of a queue that relock still joins
local longest_queue = 2 * most_waiters -- that a script reads: Java joins a longer one, too
local function drop_wish(q, waiter)
    redis.pcall('hdel', q.wishes, waiter) -- a release or rollback goes on if the key holds other data
end

local function replace_list(q, stay)
    local left = redis.call('pttl', q.waiters)
    local function keep_lease()
        if left > 0 then
            redis.call('pexpire', q.waiters, left)
        end
    end
    keep_lease()
    redis.call('rpush', q.waiters, '')
    redis.call('del', q.waiters)
    for from = 1, #stay, 1000 do
        redis.call('rpush', q.waiters, unpack(stay, from, math.min(from + 999, #stay)))
    end
    keep_lease()
end

local function drop_waiters(q, waiters, listed, stay)
    local removed = 0
    if listed > 1 then
        replace_list(q, stay)
        removed = listed
    elseif listed == 1 then
        removed = redis.call('lrem', q.waiters, 1, waiters[1])
    end
    for from = 1, #waiters, 1000 do
        local to = math.min(from + 999, #waiters)
        redis.call('zrem', q.timeouts, unpack(waiters, from, to))
        redis.call('zrem', q.heartbeats, unpack(waiters, from, to))
        redis.pcall('hdel', q.wishes, unpack(waiters, from, to)) -- as drop_wish does
    end
    if redis.call('zcard', q.heartbeats) == 1 then -- only the '' is left
        redis.call('del', q.heartbeats)
    end
    return removed
end

local function moves_behind(q, leaving)
    local queued, one = redis.call('llen', q.waiters), next(leaving)
    local alone = not next(leaving, one) and queued == redis.call('zcard', q.heartbeats) - 1
    local all = redis.call('lrange', q.waiters, alone and -2 or 0, alone and -1 or longest_queue - 1)
    local moves, order, listed, stay = {waiters = {}, left = {}, places = {}, from = {}}, {}, {}, {}
    local left = alone and one ~= all[1] and one ~= all[2] and 1 or 0
    local last, place, last_is_java -- of those that stay
    local is_java = all[1] and not is_relocks(all[1])
    for i, waiter in ipairs(all) do
        local java_is_next = not all[i + 1] or not is_relocks(all[i + 1])
        if leaving[waiter] then
            order[#order + 1], listed[waiter], left = not listed[waiter] and waiter or nil, true, left + 1
        else
            last, place, last_is_java = waiter, i - 1 - left, is_java
            stay[#stay + 1] = waiter
        end
        if (is_java or java_is_next and not last_is_java) and left > 0 and last then
            local n = #moves.from + 1
            moves.waiters[n], moves.left[n], moves.places[n], moves.from[n] = last, left, queued - #all + place, waiter
        end
        is_java = java_is_next
    end
    for waiter in pairs(leaving) do
        order[#order + 1] = not listed[waiter] and waiter or nil
    end
    if alone then
        left = 1
    elseif #all < queued then -- no queue of locks
        left = next(leaving, one) and 0 or 1
    end
    return moves, order, left, stay
end

local function new_timeouts(q, moves, first)
    local timeouts = redis.call('zmscore', q.timeouts, unpack(moves.from, first, math.min(first + 999, #moves.from)))
    local new = {}
    for i, timeout in ipairs(timeouts) do
        local move = first + i - 1
        local waiter = moves.waiters[move]
        timeout = timeout and tonumber(timeout) - moves.left[move] * q.wait_timeout
        if timeout and waiter ~= moves.from[move] then
            local before = tonumber(redis.call('zscore', q.timeouts, waiter) or timeout)
            local least = q.now + moves.places[move] * q.wait_timeout + q.wait_timeout / 2
            timeout = math.max(least, math.min(before, timeout))
        end
        if timeout then
            new[#new + 1], new[#new + 2] = ms(timeout), waiter
        end
    end
    return new
end

local function leave_queue(q, leaving)
    local moves, order, listed, stay = moves_behind(q, leaving)
    local new = {}
    for first = 1, #moves.from, 1000 do
        new[#new + 1] = new_timeouts(q, moves, first)
    end
    local removed = drop_waiters(q, order, listed, stay) -- first: if memory is short, a script that has written nothing may not zadd
    for _, timeouts in ipairs(removed > 0 and new or {}) do
        if #timeouts > 0 then
            redis.call('zadd', q.timeouts, unpack(timeouts))
        end
    end
end

local function lease_up_to(lease, limit, now)
    return limit > 0 and math.max(1, math.min(lease, limit - now)) or lease
end

local function past_end(ends, now) return ends > 0 and now >= ends end
return answer(function()

local from, to, ends, late = ARGV[1], ARGV[2], tonumber(ARGV[5]), ARGV[6] == '1'
local now = now_ms()
local q = {
    lock = KEYS[1], waiters = KEYS[2], timeouts = KEYS[3], heartbeats = KEYS[4], wishes = KEYS[5], waits = KEYS[6],
    wait_timeout = tonumber(ARGV[7]), now = now,
}
local lock = q.lock
local lease = lease_up_to(tonumber(ARGV[3]), tonumber(ARGV[4]), now)

local renamed = redis.call('hexists', lock, to) == 1
local may = not renamed and not past_end(ends, now) and not is_buried(q.waits, to)
local hold_count = may and redis.call('hget', lock, from)
if hold_count then
    redis.call('hdel', lock, '') -- fails before anything has changed if the user may not remove the old field
    redis.call('hset', lock, to, hold_count)
    redis.call('hdel', lock, from)
end
if hold_count or renamed and ends > 0 then
    redis.call('pexpire', lock, ms(lease))
    renamed = true
elseif renamed then
    lease = redis.call('pttl', lock)
elseif not late then
    check_record(lock)
end
pcall(function()
    if redis.call('lpos', q.waiters, from) then
        leave_queue(q, {[from] = true})
    else
        drop_wish(q, from)
    end
end)
if late then
    pcall(bury, q.waits, from)
end
return {renamed and 1 or -1, renamed and lease or 0, now}

end, {'hash', 'list', 'zset', 'zset', 'hash', 'hash'})
