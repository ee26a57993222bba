// Package luatest runs Lua scripts by a clock of the test, and tells what they have done.
//
// Rules: the time that a script sees, the leases that it reads and those that end depend on the clock alone, and not on
// how long the test takes. The clock is in Redis, too, in the key ClockKey: a hash {"ends KEY" -> epoch ms at which the
// lease of this key ends, "denied" -> commands that the user may not run}.
package luatest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// ClockKey is the key of the clock.
const ClockKey = "clock"

// Dump is a script that returns all data of Redis, as a text: each line has a key, its type and its lease in ms, and
// what it holds.
const Dump = `
local function before(a, b) -- by bytes: Lua compares texts as the language of the server does
    for i = 1, math.min(#a, #b) do
        if a:byte(i) ~= b:byte(i) then return a:byte(i) < b:byte(i) end
    end
    return #a < #b
end
local all, keys = {}, redis.call('keys', '*')
table.sort(keys, before)
for _, key in ipairs(keys) do
    local kind, list = redis.call('type', key).ok, {}
    if kind == 'hash' then
        local fields = redis.call('hgetall', key)
        for i = 1, #fields, 2 do list[#list + 1] = fields[i] .. '=' .. fields[i + 1] end
        table.sort(list, before)
    elseif kind == 'zset' then
        local members = redis.call('zrange', key, 0, -1, 'withscores')
        for i = 1, #members, 2 do list[#list + 1] = members[i] .. '=' .. members[i + 1] end
    elseif kind == 'list' then
        list = redis.call('lrange', key, 0, -1)
    elseif kind == 'string' then
        list = {redis.call('get', key)}
    end
    all[#all + 1] = key .. ' ' .. kind .. ' ' .. redis.call('pttl', key) .. ': ' .. table.concat(list, ', ')
end
return table.concat(all, '\n')`

// clocked sets the clock to ARGV[1] seconds and ARGV[2] microseconds, and then runs a script with the other arguments.
// It answers what the script has answered, the messages that it has sent, the commands that it has run, and all data.
const clocked = `
local server, told, ran = redis, {}, {}
local s, us = ARGV[1], ARGV[2]
local now, never = s * 1000 + math.floor(us / 1000), 100000000
local clock, ends, denied = server.call('hgetall', 'clock'), {}, {}
for i = 1, #clock, 2 do
    local key = clock[i]:match('^ends (.*)')
    if key then
        ends[key] = tonumber(clock[i + 1])
        if ends[key] <= now and server.call('pttl', key) > 0 then
            server.call('del', key)
        end
    else
        for command in clock[i + 1]:gmatch('%a+') do denied[command] = true end
    end
end
local function set_end(key, lease)
    ends[key] = now + lease
    server.call('hset', 'clock', 'ends ' .. key, string.format('%.0f', ends[key]))
end
local function pttl(run, key)
    local left = run('pttl', key)
    return type(left) == 'number' and left > 0 and ends[key] - now or left
end
local function watch(run)
    return function(command, ...)
        ran[#ran + 1] = command
        local key, value, px, lease = ...
        if denied[command] then
            local err = {err = 'NOPERM ' .. command}
            if run == server.call then
                error(err, 0)
            end
            return err
        elseif command == 'time' then
            return {s, us}
        elseif command == 'pttl' then
            return pttl(run, key)
        elseif command == 'pexpire' then
            set_end(key, value)
            return run('pexpire', key, never)
        elseif command == 'set' and px == 'PX' then
            set_end(key, lease)
            return run('set', key, value, px, never)
        end
        local answer = run(command, ...)
        if (command == 'publish' or command == 'spublish') and type(answer) == 'number' then
            told[#told + 1] = table.concat({command, ...}, ' ') .. ' ' .. answer
        end
        return answer
    end
end
local redis = setmetatable({call = watch(server.call), pcall = watch(server.pcall)}, {__index = server})
local function script(KEYS, ARGV)
SCRIPT
end
local function dump(redis)
DUMP
end
local answer = script(KEYS, {unpack(ARGV, 3)})
local data = dump({call = function(command, ...)
    return command == 'pttl' and pttl(server.call, ...) or server.call(command, ...)
end})
if type(answer) == 'table' and answer.err then
    answer = {'error', answer.err}
end
return {answer, told, ran, (data:gsub('^clock [^\n]*\n?', ''))}`

// New returns a script that runs source by the clock, for Run.
func New(source string) *redis.Script {
	return redis.NewScript(strings.NewReplacer("SCRIPT", source, "DUMP", Dump).Replace(clocked))
}

// NewQuiet returns a script as New does, which tells no data.
func NewQuiet(source string) *redis.Script {
	return redis.NewScript(strings.NewReplacer("SCRIPT", source, "DUMP", "return ''").Replace(clocked))
}

// An Effect is what a run of a script has done.
type Effect struct {
	Reply    []any    // its integers and texts; "error" and its text, if the script has failed
	Messages []string // each with the command, the channel, and how many connections have received it
	Commands []string // that it has run, those that were refused too
	Data     string   // all data afterwards, as Dump returns them, without the clock
}

// Run runs a script that New has returned, at the time now of its clock.
func Run(
	ctx context.Context, rdb redis.Scripter, s *redis.Script, now time.Time, keys []string, args ...any,
) (Effect, error) {
	args = append([]any{now.Unix(), now.Nanosecond() / 1000}, args...)
	answer, err := s.Run(ctx, rdb, keys, args...).Slice()
	if err != nil {
		return Effect{}, err
	}
	e := Effect{Reply: Reply(answer[0]), Data: answer[3].(string)}
	for _, command := range answer[2].([]any) {
		e.Commands = append(e.Commands, command.(string))
	}
	for _, message := range answer[1].([]any) {
		e.Messages = append(e.Messages, fmt.Sprint(message))
	}
	return e, nil
}

// Reply returns the parts of an answer, whatever its form: see send.Reply.
func Reply(answer any) (parts []any) {
	switch answer := answer.(type) {
	case int64:
		return []any{int64(1), answer, int64(0)}
	case string:
		for _, word := range strings.Fields(answer) {
			if n, err := strconv.ParseInt(word, 10, 64); err == nil {
				parts = append(parts, n)
			} else {
				parts = append(parts, word)
			}
		}
		return parts
	}
	return answer.([]any)
}
