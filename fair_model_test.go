package relock

// The rules of the fair queue, tried in every order of events: two relock
// waiters and a Java one come, go, give up, crash and are slow.
//
// The scripts are the real ones, on a miniredis whose clock the model moves. Java's
// half is written down here from the description of Redisson's records.

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

const (
	modelWorth = time.Minute             // the fair wait timeout of all
	modelLease = 7 * time.Second         // of a hold
	modelTick  = 1900 * time.Millisecond // a live relock waiter sends heartbeats at least as often
)

// Java's half: KEYS lock, queue, timeouts; ARGV field, channel prefix, lease, worth, now.
const javaEvict = `
local function evict(now)
	while true do
		local head = redis.call('lindex', KEYS[2], 0)
		if not head then return end
		local timeout = redis.call('zscore', KEYS[3], head)
		if not timeout or tonumber(timeout) > now then return end
		redis.call('zrem', KEYS[3], head)
		redis.call('lpop', KEYS[2])
	end
end
evict(tonumber(ARGV[5]))
local me, now, worth = ARGV[1], tonumber(ARGV[5]), tonumber(ARGV[4])
`

const javaAcquire = javaEvict + `
local head = redis.call('lindex', KEYS[2], 0)
if redis.call('exists', KEYS[1]) == 0 and (not head or head == me) then
	redis.call('lpop', KEYS[2])
	redis.call('zrem', KEYS[3], me)
	for _, w in ipairs(redis.call('zrange', KEYS[3], 0, -1)) do
		redis.call('zincrby', KEYS[3], -worth, w)
	end
	redis.call('hset', KEYS[1], me, 1)
	redis.call('pexpire', KEYS[1], ARGV[3])
	return 1
end
if redis.call('zscore', KEYS[3], me) then return 0 end
local last = redis.call('lindex', KEYS[2], -1)
local base = math.max(redis.call('pttl', KEYS[1]), 0)
if last and last ~= me and redis.call('zscore', KEYS[3], last) then
	base = tonumber(redis.call('zscore', KEYS[3], last)) - now
end
if redis.call('zadd', KEYS[3], base + worth + now, me) == 1 then
	redis.call('rpush', KEYS[2], me)
end
return 0`

const javaRelease = javaEvict + `
if redis.call('hexists', KEYS[1], me) == 0 then return 0 end
redis.call('del', KEYS[1])
return 1`

const javaGiveUp = javaEvict + `
local found = false
for _, w in ipairs(redis.call('lrange', KEYS[2], 0, -1)) do
	if found then redis.call('zincrby', KEYS[3], -worth, w) end
	if w == me then found = true end
end
redis.call('zrem', KEYS[3], me)
redis.call('lrem', KEYS[2], 0, me)
return 1`

type modelActor struct {
	name  string
	java  bool
	state string // idle, waiting, holding, dead
}

type fairModel struct {
	t      *testing.T
	mini   *miniredis.Miniredis
	rdb    *redis.Client
	lock   *fairLock
	now    time.Time
	actors []*modelActor
	order  []*modelActor // live waiters, first come first
	events []string
}

func (m *fairModel) reset() {
	m.mini.FlushAll()
	m.now = time.Unix(1_700_000_000, 0)
	m.mini.SetTime(m.now)
	m.actors = []*modelActor{{name: javaOther + ":1"}, {name: javaOther + ":2"}, {name: javaThread, java: true}}
	for _, a := range m.actors {
		a.state = "idle"
	}
	m.order, m.events = nil, nil
}

func (m *fairModel) fail(format string, args ...any) {
	m.t.Helper()
	require.Fail(m.t, fmt.Sprintf(format, args...), "after %s\nqueue %v, timeouts %v, heartbeats %v, lock %v", strings.Join(m.events, ", "),
		m.rdb.LRange(context.Background(), m.lock.keys[1], 0, -1).Val(), m.rel(m.lock.keys[2]), m.rel(m.lock.keys[3]),
		m.rdb.HGetAll(context.Background(), m.lock.keys[0]).Val())
}

// rel is a zset of times, in seconds from now.
func (m *fairModel) rel(key string) (all []string) {
	for _, z := range m.rdb.ZRangeWithScores(context.Background(), key, 0, -1).Val() {
		all = append(all, fmt.Sprintf("%v%+d", z.Member, (int64(z.Score)-m.now.UnixMilli())/1000))
	}
	return all
}

func (m *fairModel) javaRun(script string, a *modelActor) bool {
	n, err := m.rdb.Eval(context.Background(), script, m.lock.keys[:3], a.name, m.lock.announce,
		modelLease.Milliseconds(), modelWorth.Milliseconds(), m.now.UnixMilli()).Int()
	if err != nil {
		m.fail("%v", err)
	}
	return n == 1
}

// attempt has a ask for the lock once, and checks that it may have it.
func (m *fairModel) attempt(a *modelActor) {
	overdue := make(map[string]bool) // of Java, whose time Redisson says is over
	for _, z := range m.rdb.ZRangeWithScores(context.Background(), m.lock.keys[2], 0, -1).Val() {
		overdue[z.Member.(string)] = int64(z.Score) <= m.now.UnixMilli()
	}
	var got bool
	if a.java {
		got = m.javaRun(javaAcquire, a)
	} else {
		g, err := sendAttempt(m.lock, attempt{field: a.name, lease: modelLease, level: 1})
		if err != nil {
			m.fail("%v", err)
		}
		got = g.state == held
	}
	for _, other := range m.order { // Redisson's own rule: it has been away for too long
		if other != a && other.java && overdue[other.name] {
			other.state = "idle"
			defer m.leaveOrder(other)
		}
	}
	if !got {
		if a.state == "idle" {
			a.state = "waiting"
			m.order = append(m.order, a)
		}
		return
	}
	for _, other := range m.order {
		if other == a {
			break
		}
		if !other.java || !overdue[other.name] {
			m.fail("%s has the lock, but %s was there before it", a.name, other.name)
		}
	}
	for _, other := range m.actors {
		if other.state == "holding" {
			m.fail("%s and %s hold the lock", a.name, other.name)
		}
	}
	m.leaveOrder(a)
	a.state = "holding"
}

func (m *fairModel) leaveOrder(a *modelActor) {
	m.order = slices.DeleteFunc(m.order, func(o *modelActor) bool { return o == a })
}

// pass lets time pass; live relock waiters poll meanwhile, and leases of holds expire.
func (m *fairModel) pass(d time.Duration) {
	for d > 0 {
		step := min(d, modelTick)
		d -= step
		m.now = m.now.Add(step)
		m.mini.SetTime(m.now)
		if m.rdb.Exists(context.Background(), m.lock.keys[0]).Val() == 0 {
			for _, a := range m.actors {
				if a.state == "holding" {
					a.state = "idle"
				}
			}
		}
		for _, a := range slices.Clone(m.order) {
			if !a.java && a.state == "waiting" {
				m.attempt(a)
			}
		}
	}
}

// events lists the events that are possible now.
func (m *fairModel) possible() (all []string) {
	for _, a := range m.actors {
		switch a.state {
		case "idle":
			all = append(all, a.name+" asks")
		case "waiting":
			all = append(all, a.name+" asks", a.name+" gives up", a.name+" crashes")
		case "holding":
			all = append(all, a.name+" unlocks", a.name+" crashes")
		}
	}
	return append(all, "a moment passes", "a long time passes")
}

func (m *fairModel) do(event string) {
	m.events = append(m.events, event)
	name, what, _ := strings.Cut(event, " ")
	var a *modelActor
	for _, other := range m.actors {
		if other.name == name {
			a = other
		}
	}
	ctx := context.Background()
	switch what {
	case "moment passes":
		m.pass(fairLife + time.Second)
		return
	case "long time passes":
		m.pass(modelWorth * 2 / 3)
		return
	case "asks":
		m.attempt(a)
	case "crashes":
		m.leaveOrder(a)
		a.state = "dead"
	case "unlocks":
		there := false
		if a.java {
			there = m.javaRun(javaRelease, a)
		} else {
			r, _ := m.lock.client.send(m.lock.release(a.name, 0))
			there = r[0] == 1
		}
		if !there {
			m.fail("%s cannot unlock", a.name)
		}
		a.state = "idle"
	case "gives up":
		if a.java {
			m.javaRun(javaGiveUp, a)
		} else if _, err := m.lock.client.send(m.lock.undo(attempt{field: a.name, level: 1})); err != nil {
			m.fail("%v", err)
		}
		m.leaveOrder(a)
		a.state = "idle"
	}
	if n := m.rdb.HLen(ctx, m.lock.keys[0]).Val(); n > 1 {
		m.fail("%d hold the lock", n)
	}
}

// settle lets all actors finish: holders die, Java is gone, and each remaining
// waiter must get the lock in its turn; in the end nothing is left.
func (m *fairModel) settle() {
	for _, a := range m.actors {
		if a.java || a.state == "holding" {
			m.leaveOrder(a)
			a.state = "dead"
		}
	}
	m.events = append(m.events, "everybody else dies")
	for range 4 * int(modelWorth/modelTick) {
		if len(m.order) == 0 {
			break
		}
		first := m.order[0]
		m.pass(modelTick)
		if first.state == "holding" {
			if r, err := m.lock.client.send(m.lock.release(first.name, 0)); r[0] != 1 || err != nil {
				m.fail("%s cannot unlock: %v", first.name, err)
			}
			first.state = "idle"
		}
	}
	if len(m.order) > 0 {
		m.fail("%s waits for ever", m.order[0].name)
	}
	m.pass(4 * modelWorth)
	visitor := &modelActor{name: "visitor", state: "idle"}
	m.actors = append(m.actors, visitor)
	m.attempt(visitor)
	for range 5 { // dead relock waiters get another chance, because no waiter sent a heartbeat
		if visitor.state != "holding" {
			m.pass(modelTick)
		}
	}
	if visitor.state != "holding" {
		m.fail("a lock that nobody holds or waits for is not to be had")
	}
	if _, err := m.lock.client.send(m.lock.release(visitor.name, 0)); err != nil {
		m.fail("%v", err)
	}
	if keys := m.mini.Keys(); len(keys) > 0 {
		m.fail("%v are left", keys)
	}
}

// key is the state, so that the same one is not tried twice.
func (m *fairModel) key() string {
	var s strings.Builder
	for _, a := range m.actors {
		fmt.Fprint(&s, a.state, " ")
	}
	for _, a := range m.order {
		fmt.Fprint(&s, a.name)
	}
	ctx := context.Background()
	fmt.Fprint(&s, m.rdb.LRange(ctx, m.lock.keys[1], 0, -1).Val(), m.rel(m.lock.keys[2]), m.rel(m.lock.keys[3]),
		m.rdb.HKeys(ctx, m.lock.keys[0]).Val(), m.rdb.PTTL(ctx, m.lock.keys[0]).Val().Round(time.Second))
	return s.String()
}

func TestFairQueueKeepsItsRulesInEveryOrderOfEvents(t *testing.T) {
	depth := full(4, 5)
	if d := os.Getenv("RELOCK_MODEL_DEPTH"); d != "" {
		depth, _ = strconv.Atoi(d)
	}
	mini := testredis.StillMini(t)
	rdb := testredis.Client(t, mini.Addr())
	c, err := New(rdb, WithFairWaitTimeout(modelWorth))
	require.NoError(t, err)
	defer c.Close()
	m := &fairModel{t: t, mini: mini, rdb: rdb, lock: c.NewFairLock("model").lock.(*fairLock)}
	seen := make(map[string]bool)
	replay := func(events []string) {
		m.reset()
		for _, e := range events {
			m.do(e)
		}
	}
	paths := [][]string{nil}
	tried := 0
	for range depth {
		var longer [][]string
		for _, path := range paths {
			replay(path)
			for _, event := range m.possible() {
				replay(append(slices.Clone(path), event))
				tried++
				if key := m.key(); !seen[key] {
					seen[key] = true
					longer = append(longer, slices.Clone(m.events))
					m.settle()
				}
			}
		}
		paths = longer
	}
	t.Logf("%d events tried, %d states", tried, len(seen))
}
