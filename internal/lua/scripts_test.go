package lua_test

// The scripts, as lock types call them: their contracts, and their bounds. No script runs for long, whatever it finds
// in Redis: a script that runs stops all of Redis, and cannot be stopped once it has written. The tests of the scripts
// that need no lock type are in internal/lua.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/lua"
	"github.com/relock-go/relock/internal/lua/luatest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every script of internal/lua is bound.
func TestEveryScriptIsBound(t *testing.T) {
	t.Parallel()
	assert.ElementsMatch(t, lua.Names(), slices.Collect(maps.Keys(record.Scripts)))
}

// A program that imports relock starts at once: the initialization of its packages, and here of their tests, allocates
// little.
func TestImportIsCheap(t *testing.T) {
	t.Parallel()
	child := exec.Command(os.Args[0], "-test.run=^$")
	child.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := child.CombinedOutput()
	require.NoError(t, err, "%s", out)
	traces := regexp.MustCompile(`(?m)^init github\.com/relock-go/relock\S* @.* (\d+) allocs$`).FindAllSubmatch(out, -1)
	require.NotEmpty(t, traces, "%s", out)
	all := 0
	for _, trace := range traces {
		allocs, err := strconv.Atoi(string(trace[1]))
		require.NoError(t, err)
		all += allocs
	}
	assert.Less(t, all, 20_000, "allocations at init")
}

// declaresRuns matches the line of a header that describes a second run: "-- Repeatable: why", "-- Repeatable, and then
// answers {-1, 0, 0}: why", or "-- Once: why".
var declaresRuns = regexp.MustCompile(`(?m)^-- (Repeatable|Once)(?:, and then answers \{(-?\d), .*\})?: \S`)

// runsOf reads that line of the header of a script. then is the first number of the other answer that a second run may
// give, or "".
func runsOf(t *testing.T, name string) (once bool, then string) {
	all := declaresRuns.FindAllStringSubmatch(lua.Text(name), -1)
	require.Len(t, all, 1, "the header of %s says, once, whether it is Repeatable or Once", name)
	return all[0][1] == "Once", all[0][2]
}

// A situation is a run of a script after other scripts.
type situation struct {
	what   string
	before []send.Call
	call   send.Call
}

// situationsOf returns runs of all scripts of a lock type. mine and theirs are the same lock, of two clients. more is
// what a field has behind its number.
func situationsOf(mine, theirs contract.Record, me, them, more string) []situation {
	my := contract.Attempt{Field: me + ":1:1" + more, Lease: time.Minute, HoldCount: 1, Delivery: contract.Push, Asked: 1}
	their := contract.Attempt{
		Field: them + ":1:1" + more, Lease: time.Minute, HoldCount: 1, Delivery: contract.Push, Asked: 1,
	}
	again, polls, late := my, their, their
	again.HoldCount, polls.Delivery, late.Late = 2, contract.Poll, true
	take, wait := mine.Acquire(my), theirs.Acquire(their)
	detach := contract.Rename{From: my.Field, To: me + ":0:0123456789012345", Lease: time.Hour}
	inAnHour := time.Now().Add(time.Hour).UnixMilli()
	attach := contract.Rename{From: detach.To, To: their.Field, Lease: time.Minute, Until: inAnHour, Ends: inAnHour}
	buried := detach
	buried.Late = true
	all := []situation{
		{"takes it", nil, take},
		{"re-enters it", []send.Call{take}, mine.Acquire(again)},
		{"asks for it", []send.Call{take}, wait},
		{"asks again", []send.Call{take, wait}, wait},
		{"waits without a subscription", []send.Call{take}, theirs.Acquire(polls)},
		{"releases it", []send.Call{take}, mine.Release(locktest.Released(my.Field, 0, false))},
		{"lowers the hold count", []send.Call{take, mine.Acquire(again)}, mine.Release(locktest.Released(my.Field, 1, false))},
		{"releases it to one who waits", []send.Call{take, wait}, mine.Release(locktest.Released(my.Field, 0, false))},
		{"releases it to one who polls", []send.Call{take, theirs.Acquire(polls)}, mine.Release(locktest.Released(my.Field, 0, false))},
		{"releases it, and a request may still run", []send.Call{take, wait}, mine.Release(locktest.Released(my.Field, 0, true))},
		{"rolls back what it has taken", []send.Call{take}, mine.RollBack(my)},
		{"rolls back what it has taken, for one who waits", []send.Call{take, wait}, mine.RollBack(my)},
		{"rolls back its wait", []send.Call{take, wait}, theirs.RollBack(their)},
		{"rolls back its wait, and a request may still run", []send.Call{take, wait}, theirs.RollBack(late)},
		{"renews it", []send.Call{take}, mine.Renew(my.Field, time.Hour, false)},
		{"shortens the lease", []send.Call{take}, mine.Renew(my.Field, time.Second, true)},
		{"is renamed", []send.Call{take}, mine.Rename(detach)},
		{"is renamed for one who waits, and a request may still run", []send.Call{take, wait}, mine.Rename(buried)},
		{"is renamed, and sets its lease again", []send.Call{take, mine.Rename(detach)}, theirs.Rename(attach)},
		{"is not there to be renamed", nil, mine.Rename(detach)},
		{"looks", []send.Call{take}, mine.Inspect(my.Field)},
		{"is released by force", []send.Call{take}, mine.Force()},
		{"is released by force for one who waits", []send.Call{take, wait}, mine.Force()},
	}
	return all
}

// lasting matches a key in dataOf that begins with relock_, and has no lease. Redisson does not know these keys, so
// nobody but a script of relock, which perhaps no process ever calls again, would delete it.
var lasting = regexp.MustCompile(`(?m)^relock_\S+ \w+ -1: .*`)

// A second run of a script does what its header promises: the run of a repeatable script gives the same answer, or the
// other one that the header has, and leaves the same data. A script announces last, so that a message is true even if a
// later write fails: see announcesLast. And every key that it leaves beside Redisson's has a lease.
func TestScriptContracts(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	c1, c2 := b.Client(), b.Client()
	me, them := c1.ID(), c2.ID()
	names := make(map[*send.Script]string)
	for name, s := range record.Scripts {
		names[s] = name
	}
	did := make(map[string]bool)
	try := func(kind string, s situation) {
		t.Run(kind+" "+s.what, func(t *testing.T) {
			b := &locktest.Bench{T: t, Addr: b.Addr, LockName: b.LockName, Rdb: b.Rdb}
			b.Must(b.Rdb.FlushDB(ctx).Err())
			for _, c := range append(slices.Clone(s.before), s.call) {
				if c.Words != nil {
					require.Equal(t, send.Words(c.Keys), c.Words, "the words of a call are its keys")
				}
			}
			for _, before := range s.before {
				b.Must(b.Rdb.Eval(ctx, before.Script.Source(), before.Keys, before.Args...).Err())
			}
			name, state := names[s.call.Script], dataOf(b)
			once, then := runsOf(t, name)
			first := announcesLast(b, s.call)
			after := dataOf(b)
			reads := strings.HasSuffix(name, "inspect")
			wrote := !alike(after, state)
			assert.False(t, reads && wrote, "%s writes", name)
			assert.NotRegexp(t, lasting, after, "%s leaves a key of relock without a lease", name)
			if did[name] = did[name] || reads || wrote; once {
				return
			}
			second := announcesLast(b, s.call)
			if len(second) == 0 || then == "" || fmt.Sprint(second[0]) != then {
				assert.True(t, alike(fmt.Sprint(first), fmt.Sprint(second)), "%s answers %v, and then %v", name, first, second)
			}
			assert.True(t, alike(after, dataOf(b)), "a second run of %s: from\n%s\nto\n%s", name, after, dataOf(b))
		})
	}
	for kind, of := range map[string]func(c *Client) contract.Record{
		"lock":      func(c *Client) contract.Record { return locktest.RecordOf(c.NewLock(b.LockName)) },
		"fenced":    func(c *Client) contract.Record { return locktest.RecordOf(c.NewLock(b.LockName, Fenced())) },
		"fair":      func(c *Client) contract.Record { return locktest.RecordOf(c.NewFairLock(b.LockName)) },
		"read":      func(c *Client) contract.Record { return locktest.RecordOf(c.NewRWLock(b.LockName).Read()) },
		"write":     func(c *Client) contract.Record { return locktest.RecordOf(c.NewRWLock(b.LockName).Write()) },
		"semaphore": func(c *Client) contract.Record { return locktest.RecordOf(c.NewSemaphore(b.LockName, 1)) },
		"permits":   func(c *Client) contract.Record { return locktest.RecordOf(c.NewSemaphore(b.LockName, 3)) },
		"several":   func(c *Client) contract.Record { return locktest.SeveralOf(c.NewSemaphore(b.LockName, 3), 2) }, // in one hold
		"all":       func(c *Client) contract.Record { return locktest.SeveralOf(c.NewSemaphore(b.LockName, 3), 3) },
	} {
		mine, theirs := of(c1), of(c2)
		if channel := theirs.Grants(contract.Attempt{}); channel != "" {
			hears := b.Rdb.Subscribe(ctx, channel)
			_, err := hears.Receive(ctx)
			b.Must(err)
			defer func() { _ = hears.Close() }()
		}
		more := ""
		if n := mine.Traits().Permits(); n > 1 {
			more = fmt.Sprint("+", n)
		}
		for _, s := range situationsOf(mine, theirs, me, them, more) {
			try(kind, s)
		}
	}

	my, their := contract.Attempt{
		Field:     me + ":1:1",
		Lease:     time.Minute,
		HoldCount: 1,
	}, contract.Attempt{
		Field:     them + ":1:1",
		Lease:     time.Minute,
		HoldCount: 1,
		Delivery:  contract.Push,
		Asked:     1,
	}
	read, write := locktest.RecordOf(c1.NewRWLock(b.LockName).Read()), locktest.RecordOf(c2.NewRWLock(b.LockName).Write())
	try(
		"read",
		situation{
			"passes to a writer",
			[]send.Call{read.Acquire(my), write.Acquire(their)},
			read.Release(locktest.Released(my.Field, 0, false)),
		},
	)
	try("read", situation{"waits for a writer", []send.Call{write.Acquire(their)}, read.Acquire(my)})
	dies := send.Call{
		Script: send.NewScript("return redis.call('del', KEYS[1])"),
		Keys:   []string{record.SuffixName(b.LockName, my.Field+":rwlock_timeout:1")},
	}
	try("read", situation{"looks at a dead reader", []send.Call{read.Acquire(my), dies}, read.Inspect("")})

	permits := c1.NewSemaphore(b.LockName, 2)
	permit := locktest.RecordOf(permits).Acquire(my)
	try("semaphore", situation{"sets the permits", []send.Call{permit}, locktest.SetPermits(locktest.RecordOf(permits), 5)})
	try(
		"semaphore",
		situation{"counts", []send.Call{permit}, send.Call{Script: record.Script("semaphore_inspect"), Keys: locktest.KeysOf(locktest.RecordOf(permits))[:2], Args: []any{"", 2}}},
	)

	one, two := locktest.RecordOf(c1.NewLock(b.LockName)), locktest.RecordOf(c1.NewLock(b.LockName+"-2"))
	alone := func(c send.Call) send.Call { return send.Call{Script: c.Script, Keys: c.Keys[:1], Args: c.Args} }
	try("lock", situation{"is acquired while its slot moves", nil, alone(one.Acquire(my))})
	release := alone(one.Release(locktest.Released(my.Field, 0, false)))
	try("lock", situation{"is released while its slot moves", []send.Call{one.Acquire(my)}, release})
	try(
		"poller",
		situation{
			"finds a free lock",
			[]send.Call{two.Acquire(their)},
			send.Call{
				Script: record.Script("free_inspect"),
				Keys:   []string{b.LockName, b.LockName + "-2", record.LineKeys(b.LockName)[0]},
				Args:   []any{1, me},
			},
		},
	)
	keys := []string{b.LockName, "queue", "timeouts", "places", "writers", "tokens", "permits", "order", "waits", "writers order", "writers waits"}
	try(
		"any",
		situation{
			"looks at everything",
			[]send.Call{one.Acquire(my)},
			send.Call{Script: record.Script("any_inspect"), Keys: keys, Args: []any{record.SuffixName(b.LockName, "")}},
		},
	)

	b.Must(b.Rdb.FlushDB(ctx).Err())
	for _, name := range names {
		assert.True(t, did[name], "%s does something in no situation", name)
	}
}

// A script that is declared Once is sent once, even if its answer is lost. Others may be sent again.
func TestScriptsThatRunOnceAreSentOnce(t *testing.T) {
	b := locktest.NewFaultBench(t)
	sent := make(map[string]int)
	for name, l := range map[string]func(c *Client) Locker{
		"force":           func(c *Client) Locker { return c.NewLock(b.LockName) },
		"fair_force":      func(c *Client) Locker { return c.NewFairLock(b.LockName + "fair") },
		"rw_force":        func(c *Client) Locker { return c.NewRWLock(b.LockName + "rw").Write() },
		"semaphore_force": func(c *Client) Locker { return c.NewSemaphore(b.LockName+"semaphore", 1) },
	} {
		c := b.PatientClient()
		var requests atomic.Int64
		b.Proxy.On(func(cmd []string) bool {
			is := locktest.Calls(record.Scripts[name])(cmd)
			if is {
				requests.Add(1)
			}
			return is
		}, testredis.LoseReply).Times(3)
		freed, err := l(c).ForceUnlock(ContextWithOwner(context.Background()))
		assert.Error(t, err, "%s: %t although the answer was lost", name, freed)
		sent[name] = int(requests.Load())
	}
	for name := range record.Scripts {
		if once, _ := runsOf(t, name); once {
			assert.Equal(t, 1, sent[name], "how often %s is sent; 0: this test does not know who sends it", name)
		}
	}
}

// alike reports whether texts are equal except for times and tokens. Times differ by the time between two runs, and so
// do tokens, because each run may draw one.
func alike(a, b string) bool {
	number := regexp.MustCompile(`\d+`)
	as, bs := number.FindAllString(a, -1), number.FindAllString(b, -1)
	if number.ReplaceAllString(a, "") != number.ReplaceAllString(b, "") || len(as) != len(bs) {
		return false
	}
	for i := range as {
		x, _ := strconv.ParseFloat(as[i], 64)
		y, _ := strconv.ParseFloat(bs[i], 64)
		if as[i] != bs[i] && (min(x, y) < 500 || math.Abs(x-y) > 10_000+x/1e8) {
			return false
		}
	}
	return true
}

// dataOf returns all data of Redis.
func dataOf(b *locktest.Bench) string {
	text, err := b.Rdb.Eval(context.Background(), luatest.Dump, nil).Text()
	b.Must(err)
	return text
}

// announcesLast runs a script, and fails if it writes to the data of a lock after it has published a message about this
// lock. There are two exceptions. A grant is a message, too, but has no effect if no connection receives it: the record
// is written before it, and deleted after it if it was not received. And the line, which is the wait queue in Redis, is
// written last: the clients that receive the message that a lock is free decide which places stay in it.
func announcesLast(b *locktest.Bench, c send.Call) []any {
	const watching = `
local server, told, late = redis, {}, {}
local writes = {WRITES}
local function watch(run)
    return function(...)
        local command, key, message = ...
        local answer = run(...)
        if (command == 'publish' or command == 'spublish') and message:sub(1, 6) ~= 'grant ' then
            told[#told + 1] = key
        elseif writes[command] and key:sub(1, 12) ~= 'relock_line:' then
            local name = key:match('{(.*)}') or key
            for _, channel in ipairs(told) do
                if channel:find('{' .. name .. '}', 1, true) then
                    late[#late + 1] = command .. ' ' .. key .. ' after a message to ' .. channel
                end
            end
        end
        return answer
    end
end
local redis = setmetatable({call = watch(server.call), pcall = watch(server.pcall)}, {__index = server})
local function script(KEYS, ARGV)
SCRIPT
end
local answer = script(KEYS, ARGV)
return type(answer) == 'table' and answer.err and answer or {answer, late}`
	ctx := context.Background()
	commands, err := b.Rdb.Command(ctx).Result()
	b.Must(err)
	var writes strings.Builder
	for name, command := range commands {
		if slices.Contains(command.Flags, "write") {
			fmt.Fprintf(&writes, "['%s'] = true, ", name)
		}
	}
	source := strings.NewReplacer("WRITES", writes.String(), "SCRIPT", c.Script.Source()).Replace(watching)
	answer, err := b.Rdb.Eval(ctx, source, c.Keys, c.Args...).Slice()
	b.Must(err)
	assert.Empty(
		b,
		answer[1],
		"writes after an announcement, in a script that ends with\n%.200s",
		c.Script.Source()[max(0, len(c.Script.Source())-200):],
	)
	return luatest.Reply(answer[0])
}

// hostileData is in Redis before a lock of that name is used. A script without bounds would run for long.
var hostileData = []struct {
	name    string
	key     func(name string) string
	put     string // what put runs
	kinds   string // that read these data
	refused bool   // every method answers ErrNotALock, and leaves all as it is
}{
	{"a big hash", sameKey,
		"for i = 1, 30000 do redis.call('hset', KEYS[1], 'field' .. i, i) end", "lock fair read write semaphore", false},
	{"a reader of very many levels", sameKey,
		"redis.call('hset', KEYS[1], 'mode', 'read', holder, VERYMANY) expire(KEYS[1])", "lock fair read write", true},
	{"a reader of relock of very many levels", sameKey,
		"redis.call('hset', KEYS[1], 'mode', 'read', holder .. ':17', VERYMANY) expire(KEYS[1])", "lock fair read write", true},
	{"a reader of too many levels", sameKey,
		"redis.call('hset', KEYS[1], 'mode', 'read', holder, TOOMANY) expire(KEYS[1])", "lock fair read write", true},
	{"a writer of very many levels", sameKey,
		"redis.call('hset', KEYS[1], 'mode', 'write', holder .. ':write', VERYMANY) expire(KEYS[1])", "lock fair read write", true},
	{"a holder of very many levels", sameKey,
		"redis.call('hset', KEYS[1], holder, VERYMANY) expire(KEYS[1])", "lock fair read write", true},
	{"many readers of many levels", sameKey,
		"redis.call('hset', KEYS[1], 'mode', 'read') expire(KEYS[1]) for i = 1, 9000 do redis.call('hset', KEYS[1], holder .. i, 1000) end", "read write lock", false},
	{"too many readers", sameKey,
		"redis.call('hset', KEYS[1], 'mode', 'read') expire(KEYS[1]) for i = 1, 30000 do redis.call('hset', KEYS[1], holder .. i, 1) end", "read write lock", false},
	{"a writer among too many readers", sameKey,
		"redis.call('hset', KEYS[1], 'mode', 'write', other .. ':write', 1) expire(KEYS[1]) for i = 1, 30000 do redis.call('hset', KEYS[1], holder .. i, 1) end", "read write lock", false},
	{"a line at the end of all numbers", orderKey,
		"redis.call('zadd', KEYS[1], '+inf', holder:sub(1, 36))", "lock write semaphore", false},
	{"a line of equal numbers", orderKey,
		"for i = 1, 30000 do redis.call('zadd', KEYS[1], 1, i) end", "lock write semaphore", false},
	{"a long line of dead places", orderKey,
		"places(24000)", "lock write semaphore", false},
	{"a line of too many places", orderKey,
		"places(30000)", "lock write semaphore", false},
	{"very many tombstones", waitsKey,
		"for i = 1, 30000 do redis.call('hset', KEYS[1], holder .. ':' .. i, 9999999999999) end", "lock write semaphore", false},
	{"a place that is none", orderKey,
		"local client = holder:sub(1, 36) redis.call('zadd', KEYS[1], 1, client) redis.call('hset', KEYS[3], client, 'a place')", "lock write semaphore", false},
	{"a very long queue", locktest.QueueKey,
		"for i = 1, 30000 do redis.call('rpush', KEYS[1], holder .. i) end", "fair", false},
	{"a waiter that is in the queue very often", locktest.QueueKey,
		"for i = 1, 19000 do redis.call('rpush', KEYS[1], holder .. ':1') end", "fair", false},
	{"waiters that are in the queue twice", locktest.QueueKey,
		"for i = 1, 19000 do redis.call('rpush', KEYS[1], holder .. ':0' .. math.floor(i / 2)) end", "fair", false},
	{"very many places", record.PlacesKey,
		"for i = 1, 30000 do redis.call('hset', KEYS[1], holder .. i, '5000 0 1 1 1 4000 0') end", "fair", false},
	{"very many writers that wait", locktest.WritersKey,
		"for i = 1, 30000 do redis.call('zadd', KEYS[1], 9e12, holder .. i) end", "read write", false},
	{"very many permits", record.PermitsKey,
		"redis.call('set', KEYS[2], 0) for i = 1, 30000 do redis.call('zadd', KEYS[1], 9e12 + i, holder .. i) end", "semaphore", false},
	{"very many permits that have lapsed", record.PermitsKey,
		"redis.call('set', KEYS[2], 0) for i = 1, 30000 do redis.call('zadd', KEYS[1], i, holder .. i) end", "semaphore", false},
}

// put has Redis run Lua that writes data to KEYS[1], and for a semaphore to KEYS[2], its counter; KEYS[3] are the waits of
// a line. holder and other are threads
// of Java; places makes that many places of the line, expire has a key expire in an hour.
func put(b *locktest.Bench, source, key string) {
	b.Helper()
	const words = `
local holder, other = unpack(ARGV)
local function expire(key) redis.call('expire', key, 3600) end
local function places(n)
	for i = 1, n do
		local client = string.format('00000000-0000-0000-0000-%012d', i)
		redis.call('zadd', KEYS[1], i, client)
		redis.call('hset', KEYS[3], client, 'push 30000 0 1 ' .. client .. ':1:1')
	end
	expire(KEYS[1])
	expire(KEYS[3])
end
`
	source = strings.NewReplacer("VERYMANY", fmt.Sprint(locktest.VeryMany), "TOOMANY", fmt.Sprint(record.MostHoldCount+1)).Replace(source)
	b.Must(b.Rdb.Eval(context.Background(), words+source+" return 1", []string{key, b.LockName, waitsKey(b.LockName)}, locktest.JavaThread, locktest.JavaOther).Err())
}

func sameKey(name string) string { return name }

func orderKey(name string) string { return record.LineKeys(name)[0] }

func waitsKey(name string) string { return record.LineKeys(name)[1] }

// No method of a lock keeps Redis busy for long, whatever the keys of the lock hold. Data that no lock writes is
// refused.
func TestHostileDataDoNotStopRedis(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	for n, hostile := range hostileData {
		t.Run(hostile.name, func(t *testing.T) {
			b := locktest.NewBench(t, s.Addr())
			ctx := context.Background()
			key := hostile.key(b.LockName)
			begin, check := b.WatchBusy(locktest.MostBusy)
			var before string // what is there
			kinds := strings.Fields(hostile.kinds)
			if !testredis.Long() { // another one for each row
				kinds = kinds[n%len(kinds):][:1]
			}
			for _, kind := range kinds {
				c := b.Client(WithPollInterval(50 * time.Millisecond))
				for _, method := range []string{"Lock", "TryLock(0)", "IsLocked", "TTL", "ForceUnlock", "Inspect"} {
					what := kind + " " + method
					if before == "" || before != b.Rdb.Dump(ctx, key).Val() {
						b.Must(b.Rdb.FlushAll(ctx).Err())
						put(b, hostile.put, key)
						before = b.Rdb.Dump(ctx, key).Val() // a late script of the last method may have ended what is not refused
						require.True(t, before != "" || !hostile.refused)
					}
					l, me := locktest.KindCalled(kind).One(c, b.LockName), ContextWithOwner(ctx)
					wait := 100 * time.Millisecond
					if hostile.refused {
						wait = locktest.Soon
					}
					within, cancel := context.WithTimeout(me, wait)
					begin()
					err := locktest.AskingMethods[method](within, c, l, b.LockName)
					cancel()
					if hostile.refused {
						assert.ErrorIs(t, err, ErrNotALock, what)
						assert.Equal(t, before, b.Rdb.Dump(ctx, key).Val(), what)
					} else if err != nil && !errors.Is(err, ErrNotALock) {
						assert.ErrorIs(t, err, context.DeadlineExceeded, what)
					}
					if held, _ := l.IsHeld(me); held {
						assert.NoError(t, l.Unlock(me), what)
					}
					check(what)
				}
				assert.NoError(t, c.Close())
				check(kind + " Close")
			}
			b.Must(b.Rdb.FlushAll(ctx).Err())
		})
	}
}

// A process that looks for its holds, for example after a forced release, finds them beside other data, as it renews them
// beside it: otherwise it would report them as lost.
func TestHoldIsFoundBesideOtherData(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	for _, k := range locktest.RecordLocks {
		t.Run(k.Name, func(t *testing.T) {
			b, ctx := locktest.NewBench(t, s.Addr()), context.Background()
			c := b.Client()
			l, a := locktest.RecordOf(k.One(c, b.LockName)), locktest.AttemptOf(c)
			r, err := locktest.Send(c, l.Acquire(a))
			b.Must(err)
			require.Equal(t, int64(1), r[0])
			if k.Holds != nil {
				b.Must(b.Rdb.ZAdd(ctx, k.Holds(b.LockName), redis.Z{Score: 1, Member: "colour"}).Err())
			} else {
				b.Must(b.Rdb.HSet(ctx, b.LockName, "colour", "red").Err())
			}
			for _, looks := range []*Client{c, b.Client(WithSyncedReplicas(1, time.Millisecond))} { // there are no replicas
				looked := []engine.Renewal{{Lock: l, Field: a.Field}, {Lock: l, Field: a.Field + "9"}}
				locktest.Renew(ctx, looks, looked)
				b.Must(looked[0].Err)
				assert.True(t, looked[0].Held, "the hold")
				assert.False(t, looked[1].Held, "another one")
			}
			_, err = locktest.Send(c, l.Release(locktest.Released(a.Field, 0, false)))
			b.Must(err)
			b.Must(b.Rdb.Del(ctx, b.LockName, record.PermitsKey(b.LockName)).Err())
		})
	}
}

// The hold count of a reader has a limit. A Lock that would exceed it is refused before anything is sent.
func TestReadersHaveHoldCountsWithinBounds(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		c, me := b.Client(), ContextWithOwner(context.Background())
		l := c.NewRWLock(b.LockName).Read()
		b.Must(l.Lock(me))
		setLevels := func(n int) {
			locktest.EngineOf(c).Probe().SetHoldCount(locktest.LockOf(l), engine.OwnerOf(me), n)
		}
		setLevels(record.MostHoldCount - 1)
		b.Must(l.Lock(me))
		for _, err := range []error{
			l.Lock(me), locktest.Second(l.TryLock(me, 0, 0)), l.LockLease(me, time.Minute),
			locktest.Second(l.TryLock(me, time.Second, time.Minute)),
			c.NewMultiLock(c.NewLock(b.LockName+"-other"), l).Lock(me),
		} {
			require.ErrorIs(t, err, ErrInvalid)
			assert.ErrorContains(t, err, "already holds the read lock 10000 times")
		}
		n, err := l.HoldCount(me)
		b.Must(err)
		assert.Equal(t, record.MostHoldCount, n)
		i := b.Inspect(c)
		require.Len(t, i.Holders, 1)
		assert.Equal(t, record.MostHoldCount, i.Holders[0].HoldCount)
		b.Must(l.Unlock(me))
		b.Must(l.Lock(me))
		setLevels(1)
		b.Must(l.Unlock(me))
		assert.ErrorIs(t, l.Unlock(me), ErrNotHeld)
	})
}

// If a queue, a line or a record is as large as a script can handle, no caller joins it. That is not an error.
func TestNobodyJoinsWhatIsFull(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	ctx := context.Background()
	for what, full := range map[string]struct {
		kind  string
		fill  func(b *locktest.Bench)
		count func(b *locktest.Bench) int64 // of those that have joined
		leave func(b *locktest.Bench)       // as one of them does; nil: the lock is held
	}{
		"a queue": {"fair", func(b *locktest.Bench) {
			put(b, "for i = 1, 20000 do redis.call('rpush', KEYS[1], holder .. i) end", locktest.QueueKey(b.LockName))
			put(b, "for i = 1, 20000 do redis.call('zadd', KEYS[1], 9e12 + i, holder .. i) end", record.PrefixName("redisson_lock_timeout", b.LockName))
		}, func(b *locktest.Bench) int64 { return int64(b.CommandRuns("rpush")) }, nil},
		"a line": {"lock", func(b *locktest.Bench) {
			put(b, "redis.call('hset', KEYS[2], other .. ':17', 1) expire(KEYS[2]) places(20001)", orderKey(b.LockName))
		}, func(b *locktest.Bench) int64 {
			return b.Rdb.ZCard(ctx, orderKey(b.LockName)).Val()
		}, nil},
		"a record": {"read", func(b *locktest.Bench) {
			put(b, "redis.call('hset', KEYS[1], 'mode', 'read') expire(KEYS[1]) "+
				"for i = 1, 10000 do redis.call('hset', KEYS[1], holder .. i, 1) end", b.LockName)
		}, func(b *locktest.Bench) int64 { return b.Rdb.HLen(ctx, b.LockName).Val() }, func(b *locktest.Bench) {
			b.Must(b.Rdb.HDel(ctx, b.LockName, locktest.JavaThread+"1").Err())
		}},
	} {
		t.Run(what, func(t *testing.T) {
			b := locktest.NewBench(t, s.Addr())
			begin, check := b.WatchBusy(locktest.MostBusy)
			full.fill(b)
			before := full.count(b)
			begin()
			l := locktest.KindCalled(full.kind).One(b.Client(WithPollInterval(50*time.Millisecond)), b.LockName)
			for _, wait := range []time.Duration{0, 300 * time.Millisecond} {
				ok, err := l.TryLock(ctx, wait, 0)
				b.Must(err)
				assert.False(t, ok)
				assert.Equal(t, before, full.count(b))
			}
			if full.leave != nil {
				full.leave(b)
				b.Tries(l, true)
				b.Must(l.Unlock(ctx))
			}
			check(what)
			b.Forget()
		})
	}
}

// ForceUnlock releases all permits, in several requests where there are very many.
func TestForceUnlockReturnsVeryManyPermits(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	begin, check := b.WatchBusy(locktest.MostBusy)
	const many = 45_000
	put(b, fmt.Sprintf("redis.call('set', KEYS[2], 1) for i = 1, %d do redis.call('zadd', KEYS[1], 9e12, holder .. i) end", many),
		record.PermitsKey(b.LockName))
	l := b.Client().NewSemaphore(b.LockName, 5)
	begin()
	freed, err := l.ForceUnlock(ctx)
	b.Must(err)
	assert.True(t, freed)
	assert.Equal(t, strconv.Itoa(many+1), b.Rdb.Get(ctx, b.LockName).Val())
	assert.Zero(t, b.Rdb.Exists(ctx, record.PermitsKey(b.LockName)).Val())
	freed, err = l.ForceUnlock(ctx)
	b.Must(err)
	assert.False(t, freed)
	check("ForceUnlock")
}
