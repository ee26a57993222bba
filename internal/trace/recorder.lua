-- Runs a script, and notes what it did. The recorder inserts the script and its verb.
--
-- KEYS, ARGV   those of the script; KEYS[1] is the lock.
-- Returns      what the script returns.

local server, told = redis, {}

local function noting(run)
    return function(...)
        local how, channel, message = ...
        local answer = run(...)
        if (how == 'publish' or how == 'spublish') and type(answer) == 'number' and answer > 0 then
            told[#told + 1] = {channel, message}
        end
        return answer
    end
end

local redis = setmetatable({call = noting(server.call), pcall = noting(server.pcall)}, {__index = server})

local function script(KEYS, ARGV)
--[[script]]
end

local lock = KEYS[1]

-- cjson would encode an empty table as an object.
local function list(t) return #t > 0 and t or nil end

-- The line is {client, place, ...}, in order.
local function state()
    local line, key = {}, 'relock_line:{' .. lock .. '}:'
    for _, client in ipairs(server.call('zrange', key .. 'order', 0, -1)) do
        line[#line + 1], line[#line + 2] = client, server.call('hget', key .. 'waits', client) or ''
    end
    return {record = list(server.call('hgetall', lock)), expires = server.call('pexpiretime', lock), line = list(line)}
end

-- The caller, and the clients with a place, if they are subscribed to their channel.
local function listeners(line)
    local all, clients = {}, {[ARGV[1]:sub(1, 36)] = true}
    for i = 1, #(line or {}), 2 do
        clients[line[i]] = true
    end
    for client in pairs(clients) do
        if server.call('pubsub', 'numsub', 'redisson_lock__channel:{' .. lock .. '}:' .. client)[2] > 0 then
            all[#all + 1] = client
        end
    end
    return list(all)
end

local time, before = server.call('time'), state()
local heard = listeners(before.line)
local answer = script(KEYS, ARGV)
local numbers = type(answer) == 'number' and {1, answer, 0} or {}
if type(answer) == 'string' then
    for n in answer:gmatch('%S+') do
        numbers[#numbers + 1] = tonumber(n)
    end
end
server.call('rpush', 'relock_trace', cjson.encode({verb = 'VERB', lock = lock, args = ARGV, time = time,
    before = before, after = state(), heard = heard, told = list(told),
    answer = list(numbers), err = type(answer) == 'table' and answer.err or nil}))
return answer
