local grant_format = 'grant %s %s %s %s'
local provisional = 5000
local near_head = 32
local most_holds = 10000 -- fields of a hash that one script reads
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

local in_both_ways = 'publish+spublish'

local function announce(how, channel, message, answer)
    if how == in_both_ways then
        local plain = tonumber(redis.pcall('publish', channel, message))
        local sharded = tonumber(redis.pcall('spublish', channel, message))
        local received = math.max(plain or 0, sharded or 0)
        return received, received > 0 or plain ~= nil and sharded ~= nil
    end
    local received = answer or redis.pcall(how, channel, message)
    if how == 'spublish' and type(received) ~= 'number' then
        received = redis.pcall('publish', channel, message)
    end
    local may = type(received) == 'number'
    return may and received or 0, may
end

local function now_ms()
    local clock = redis.call('time')
    return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

local function ms(t) return string.format('%.0f', t) end
local too_large = 2 ^ 53 -- the first such number: from there on a token would be that of another hold, too

local function put_back(counter)
    local text = redis.pcall('set', counter, '0', 'xx', 'keepttl', 'get')
    if type(text) == 'string' then
        local head, tail = tonumber(text:sub(1, -16)), tonumber(text:sub(-15))
        if tail == 0 then
            head, tail = head - 1, 1e15
        end
        redis.pcall('set', counter, string.format('%d%015.0f', head, tail - 1), 'keepttl')
    end
    return {err = 'ERR the counter is too large'}
end

local function take_token(counter, most)
    if not counter then
        return 0, 0
    end
    local token, clock = redis.pcall('incr', counter), redis.pcall('time')
    if type(token) == 'table' or clock.err then
        return nil, clock.err and clock or token
    end
    local now = clock[1] * 1000000 + clock[2]
    if token >= too_large then
        return nil, put_back(counter)
    elseif token >= now then
        return token, 0
    end
    local set = redis.pcall('set', counter, string.format('%.0f', now))
    if set.err then
        return nil, set
    end
    token = token > 1 and math.max(token, now - (most or 1) + 1) or now
    return token, now - token
end
local function draw_token(counter, most)
    local token, following = take_token(counter, most)
    if token then
        return token, following
    elseif following.err:find('not an integer', 1, true) then
        refuse(counter, 'number')
    elseif following.err:find('too large', 1, true) or following.err:find('overflow', 1, true) then
        refuse(counter, 'large')
    end
    error(following, 0)
end
local function client_of(field) return field:sub(1, 36) end

local may_ask = true -- for the number of subscribers, as far as this run has tried

local function listeners(channel, how)
    if how == in_both_ways then
        local plain, sharded = listeners(channel, 'publish'), listeners(channel, 'spublish')
        local n = math.max(plain or 0, sharded or 0)
        return (n > 0 or plain and sharded) and n or nil
    end
    local n = redis.pcall('pubsub', how == 'spublish' and 'shardnumsub' or 'numsub', channel)
    may_ask = not n.err
    return may_ask and n[2] or nil
end

local function tell_granted(waiter, lease, token, channel, how)
    if waiter.delivery == 'poll' then
        return true
    end
    local grant = string.format(grant_format, waiter.field, waiter.asked, ms(lease), ms(token))
    local heard, may
    if how == in_both_ways then
        heard, may = announce(how, channel, grant)
    else
        heard = redis.pcall(how, channel, grant)
        may = type(heard) == 'number'
    end
    if not may then
        return nil
    elseif heard > 0 and how == 'publish' and not may_ask then
        heard = heard - (tonumber(redis.pcall('publish', channel .. ':nobody', '')) or 0)
    end
    return heard > 0
end
local function with_clients(reply, fields)
    local seen = {}
    for _, field in ipairs(fields) do
        local client = is_relocks(field) and client_of(field)
        if client and not seen[client] then
            seen[client] = true
            reply[#reply + 1] = client
        end
    end
    return reply
end
local function grant(lock, waiter, tokens, channel, how)
    local token = 0
    if waiter.fenced == '1' and tokens then
        local drawn, t = pcall(function() return draw_token(tokens) end)
        token = drawn and t or 0 -- the process asks for its token, and gets the error of the counter
    end
    local writes = waiter.field:sub(-6) == ':write' -- of a read/write lock
    local written = writes and redis.pcall('hset', lock, 'mode', 'write', waiter.field, 1) or
        redis.pcall('hset', lock, waiter.field, 1)
    if type(written) == 'table' then
        return nil -- for example, Redis has no memory left
    end
    local heard = nil
    if redis.pcall('pexpire', lock, ms(waiter.lease)) == 1 then
        heard = tell_granted(waiter, waiter.lease, token, channel, how)
    end
    if not heard then
        undo(lock, 'mode', waiter.field)
    end
    return heard
end

local for_ever = 100 * 365 * 24 * 60 * 60 * 1000
local most_waiters = 20000 -- of a queue that relock still joins
local longest_queue = 2 * most_waiters -- that a script reads: Java joins a longer one, too
local far = 24 * near_head -- places: waiters farther behind are alike
local most_dead = 5000 -- dead waiters that one script removes; the next one continues
local most_passed = 1000 -- waiters that one script passes over, or checks for heartbeats, at a time

local wish_form = '^(%d+) (%d) (%d+) ?(%d*)$'

local function life_of(place, ttl) return ttl + math.floor(math.min(place, far) / near_head) * ttl / 4 end

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

local function client_channel(q, waiter) return q.channel .. 'client:' .. client_of(waiter) end

local function wake(q, waiter)
    announce(q.how, q.channel .. waiter, '0')
    if redis.pcall('hexists', q.wishes, waiter) == 1 then -- it may have only this channel
        announce(q.how, client_channel(q, waiter), 'free ' .. waiter)
    end
end

local function keep_for_java(q)
    for _, key in ipairs({q.waiters, q.timeouts}) do
        local left = redis.call('pttl', key)
        if left > 0 and left < for_ever / 2 then
            redis.call('pexpire', key, ms(for_ever))
        end
    end
end

local function is_heard(q, waiter, heard)
    local client = client_of(waiter)
    if heard[client] or type(redis.pcall('hget', q.wishes, waiter)) ~= 'string' then
        return true
    elseif heard[client] == nil then
        heard[client] = listeners(client_channel(q, waiter), q.how) ~= 0
    end
    return heard[client]
end

local function first_alive(q, asker, heard, from)
    heard = heard or {}
    for place = from or 0, most_passed do
        local waiter = redis.call('lindex', q.waiters, place)
        if not waiter or waiter == asker or place == most_passed or not is_relocks(waiter) or
            is_heard(q, waiter, heard) then
            return waiter, place
        end
    end
end

local function drop_first(q, n)
    local passed = {}
    for _, waiter in ipairs(redis.call('lrange', q.waiters, 0, n - 1)) do
        passed[waiter] = true
    end
    if next(passed) then
        leave_queue(q, passed)
    end
end

local function watch_grant(q, granted, heard)
    local soon = q.now and q.now + provisional + q.ttl
    if not (soon and redis.call('zrangebyscore', q.heartbeats, ms(soon), '+inf', 'limit', 0, 1)[1]) then
        return
    end
    local first, late = redis.call('lrange', q.waiters, 0, near_head - 1), nil
    local beats = #first > 0 and redis.call('zmscore', q.heartbeats, unpack(first))
    for i, waiter in ipairs(first) do
        local counts = beats[i] and client_of(waiter) ~= client_of(granted) and is_heard(q, waiter, heard)
        if counts and tonumber(beats[i]) < soon then
            return
        end
        late = counts and waiter or late
    end
    if late then
        announce(q.how, client_channel(q, late), 'free ' .. late)
    end
end

local function grant_first(q)
    local heard = {}
    local first, place = first_alive(q, nil, heard)
    while first and place < most_passed do
        local wish = redis.pcall('hget', q.wishes, first)
        local lease, fenced, asked = (type(wish) == 'string' and wish or ''):match(wish_form)
        if not lease then
            break
        end
        local waiter = {field = first, lease = tonumber(lease), fenced = fenced, asked = asked}
        local granted = grant(q.lock, waiter, q.tokens, client_channel(q, first), q.how)
        if granted then
            leave_queue(q, {[first] = true})
            watch_grant(q, first, heard)
            return true, first
        elseif granted == nil then
            break
        end
        heard[client_of(first)] = false
        first, place = first_alive(q, nil, heard, place + 1)
    end
    if first and place > 0 and not is_relocks(first) then
        drop_first(q, place)
        keep_for_java(q)
    end
    return false, first
end

local function pass_to_first(q)
    local granted, first = grant_first(q)
    if first and not granted then
        wake(q, first)
    elseif not first then
        drop_first(q, most_passed)
    end
    return granted
end

local function evict_silent(q)
    local all, dead = redis.call('lrange', q.waiters, 0, most_passed - 1), {}
    for i, beat in ipairs(redis.call('zmscore', q.heartbeats, unpack(all))) do
        if not beat and is_relocks(all[i]) then
            dead[all[i]] = true
        end
    end
    leave_queue(q, dead)
end

local function set_back(q, ran, ttl)
    local life = life_of(redis.call('llen', q.waiters), ttl)
    local ahead = redis.call('zrangebyscore', q.heartbeats, ms(q.now + life + 1), '+inf', 'withscores', 'limit', 0, most_passed)
    for i = 1, #ahead, 2 do
        if ahead[i] ~= '' then
            local left = math.min(tonumber(ahead[i + 1]) - ran, life_of(far, ttl)) -- it may have been farther behind
            redis.pcall('zadd', q.heartbeats, 'XX', ms(q.now + math.max(life, left)), ahead[i])
        end
    end
    return #ahead < 2 * most_passed
end

local function evict_dead(q, now, ttl)
    q.now, q.ran, q.ttl = now, now, ttl
    local dead, spared = {}, false
    local ran = tonumber(redis.call('zscore', q.heartbeats, '') or nil)
    local last_run = ran and ran <= now and ran or nil
    local away = now - (last_run or now) > ttl / 2
    local till = away and now + ttl - 1 or now
    local due = redis.call('zrangebyscore', q.heartbeats, '-inf', ms(till), 'withscores', 'limit', 0, most_dead)
    for i = 1, #due, 2 do
        local waiter, beat = due[i], tonumber(due[i + 1])
        if waiter ~= '' then
            if away and beat % 1 == 0 and redis.call('zscore', q.timeouts, waiter) then
                local life = math.max(math.min(beat - last_run, life_of(far, ttl)), ttl)
                redis.pcall('zadd', q.heartbeats, ms(now + life - 1) .. '.5', waiter)
                spared = true
            elseif beat <= now then
                dead[waiter] = true
            end
        end
    end
    local evicted = next(dead) ~= nil
    if evicted then
        leave_queue(q, dead)
    end
    local first = redis.call('lindex', q.waiters, 0)
    local all = not (away and #due == 2 * most_dead and (spared or evicted))
    if first and not last_run then -- the last script ran in the future: the clock was set back
        all = set_back(q, ran or now, ttl)
    end
    if not all then
        q.ran = ran or now
    end
    if ran and ran ~= q.ran then
        redis.pcall('zadd', q.heartbeats, 'XX', ms(q.ran), '')
    end
    local left = most_dead
    while left > 0 do
        if not first or redis.call('zscore', q.heartbeats, first) then
            break
        elseif is_relocks(first) then
            evict_silent(q)
            left = left - most_passed
        else
            local timeout = redis.call('zscore', q.timeouts, first)
            if timeout and tonumber(timeout) > now then
                keep_for_java(q)
                break
            end
            drop_waiters(q, {first}, 1)
            left = left - 1
        end
        first, evicted = redis.call('lindex', q.waiters, 0), true
    end
    return first, evicted
end

local function check_queue(q)
    local n = redis.call('llen', q.waiters)
    if n > longest_queue then
        refuse(q.waiters, 'type list')
    end
    return n
end
local function seen_from(n)
    if #ARGV < n then
        return nil
    end
    local seen = {}
    for i = n, #ARGV do
        seen[ARGV[i]] = true
    end
    return seen
end

local function may_force(lock, seen)
    if not seen then
        return true
    end
    local entries = redis.call('hrandfield', lock, most_holds + 1, 'withvalues')
    if #entries > 2 * most_holds then
        return false
    end
    for i = 1, #entries, 2 do
        local field, value = entries[i], entries[i + 1]
        local owner = is_hold(field, value) and field or is_hold(value, '1') and value
        if owner and not seen[owner] then
            return false
        end
    end
    return true
end
return answer(function()

local q = {
    lock = KEYS[1], waiters = KEYS[2], timeouts = KEYS[3], heartbeats = KEYS[4], wishes = KEYS[5], waits = KEYS[6],
    tokens = KEYS[7],
    wait_timeout = tonumber(ARGV[1]), channel = ARGV[3], how = ARGV[4],
}
local heartbeat_ttl = tonumber(ARGV[2])

check_record(q.lock)
if not may_force(q.lock, seen_from(5)) then
    return {0, 0, 0}
end
check_queue(q)
evict_dead(q, now_ms(), heartbeat_ttl)
local fields = redis.call('hrandfield', q.lock, most_holds)
local freed = redis.call('del', q.lock)
pass_to_first(q)
return with_clients({freed, 0, 0}, fields)

end, {'hash', 'list', 'zset', 'zset', 'hash', 'hash', 'string'})
