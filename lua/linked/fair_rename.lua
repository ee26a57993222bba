local most_hold_count = 10000 -- of a reader, which may have that many lease keys; as mostHoldCount in rwlock.go

local function refuse(key, what)
    local n = 0
    for i = 1, #KEYS do
        n = KEYS[i] == key and i or n
    end
    error({err = 'NOTALOCK ' .. n .. ' ' .. what}, 0)
end

local function field_text(field)
    local shown = field:sub(1, 80):gsub('[^!#-%[%]-~]', function(c) return string.format('\\x%02x', c:byte()) end)
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

local function answer(script, types)
    local done, result = pcall(script)
    if done then
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
local tombstone_life = 60000
local most_tombstones = 100

local function bury(over, field, now)
    local kept = {field .. ' ' .. ms(now + tombstone_life)}
    for other, till in (over or ''):sub(1, 200 * most_tombstones):gmatch('(%S+) (%d+)') do
        if #kept == most_tombstones then
            break
        elseif other ~= field and tonumber(till) > now then
            kept[#kept + 1] = other .. ' ' .. till
        end
    end
    return table.concat(kept, ' ')
end

local function is_buried(over, field, now)
    if tonumber((over or ''):match('^%S+ (%d+)') or 0) <= now then -- all of them have expired
        return false, false
    end
    local _, behind = over:find(field .. ' ', 1, true)
    return behind and tonumber(over:match('^%d+', behind + 1) or 0) > now or false, true
end
local most_waiters = 20000 -- of a queue
local function drop_wish(q, waiter)
    if q.wishes ~= q.lock then
        redis.pcall('hdel', q.wishes, waiter) -- a release or rollback goes on if the key holds other data
    end
end

local function leave_queue(q, waiter)
    redis.call('lrem', q.waiters, 1, waiter)
    redis.call('zrem', q.timeouts, waiter)
    redis.call('zrem', q.heartbeats, waiter)
    if redis.call('zcard', q.heartbeats) == 1 then -- only the '' is left
        redis.call('del', q.heartbeats)
    end
    drop_wish(q, waiter)
end

local function shift_by(q, waiters, waits)
    for from = 1, #waiters, 1000 do
        local to, shifted = math.min(from + 999, #waiters), {}
        for i, timeout in ipairs(redis.call('zmscore', q.timeouts, unpack(waiters, from, to))) do
            if timeout then
                shifted[#shifted + 1] = ms(tonumber(timeout) - waits[from + i - 1] * q.wait_timeout)
                shifted[#shifted + 1] = waiters[from + i - 1]
            end
        end
        if #shifted > 0 then
            redis.call('zadd', q.timeouts, unpack(shifted))
        end
    end
end

local function give_up(q, leaving, now)
    local all = redis.call('lrange', q.waiters, 0, most_waiters - 1)
    local last = all[#all] and tonumber(redis.call('zscore', q.timeouts, all[#all]) or nil)
    local left, moved, waits = 0, {}, {}
    for _, waiter in ipairs(all) do
        if leaving[waiter] then
            left = left + 1
        elseif left > 0 then
            moved[#moved + 1], waits[#waits + 1] = waiter, left
        end
    end
    for waiter in pairs(leaving) do
        leave_queue(q, waiter) -- first: if memory is short, a script that has written nothing may not zadd
    end
    shift_by(q, moved, waits)
    local final = redis.call('lindex', q.waiters, -1)
    if last and final and leaving[all[#all]] and redis.call('zscore', q.heartbeats, final) then
        local before = tonumber(redis.call('zscore', q.timeouts, final) or last)
        local least = now + (#all - left - 1) * q.wait_timeout + q.wait_timeout / 2
        redis.call('zadd', q.timeouts, ms(math.max(least, math.min(before, last - left * q.wait_timeout))), final)
    end
end

local function end_waiter(q, waiter)
    local over = q.wishes ~= q.lock and redis.pcall('hget', q.wishes, 'over')
    if q.wishes == q.lock or type(over) == 'table' then
        return
    end
    redis.pcall('hset', q.wishes, 'over', bury(over, waiter, q.now)) -- a rollback goes on if memory is short
    if redis.call('pttl', q.wishes) < tombstone_life then
        redis.call('pexpire', q.wishes, tombstone_life)
    end
end

local function lease_up_to(lease, limit, now)
    return limit > 0 and math.max(1, math.min(lease, limit - now)) or lease
end

local function past_end(ends, now) return ends > 0 and now >= ends end

local function is_over(key, field, now)
    local over = key and redis.pcall('hget', key, 'over')
    if type(over) ~= 'string' then
        return false
    end
    local found = is_buried(over, field, now)
    return found
end
return answer(function()

local from, to, ends, late = ARGV[1], ARGV[2], tonumber(ARGV[5]), ARGV[6] == '1'
local now = now_ms()
local q = {
    lock = KEYS[1], waiters = KEYS[2], timeouts = KEYS[3], heartbeats = KEYS[4], wishes = KEYS[5],
    wait_timeout = tonumber(ARGV[7]), now = now,
}
local lock = q.lock
local lease = lease_up_to(tonumber(ARGV[3]), tonumber(ARGV[4]), now)

local renamed = redis.call('hexists', lock, to) == 1
local may = not renamed and not past_end(ends, now) and not is_over(q.wishes ~= lock and q.wishes, to, now)
local hold_count = may and redis.call('hget', lock, from)
if hold_count then
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
if redis.call('lpos', q.waiters, from) then
    give_up(q, {[from] = true}, now)
else
    drop_wish(q, from)
end
if late then
    end_waiter(q, from)
end
return {renamed and 1 or -1, renamed and lease or 0, now}

end, {'hash', 'list', 'zset', 'zset', 'hash'})
