package lua_test

// The rules of the fair queue, tested in every order of events: two relock waiters and a Java waiter arrive, leave,
// give up, crash and are slow. The second relock waiter never receives a message, although Redis believes so: it learns
// of a grant when it asks, and its connection outlives it.
//
// The scripts are the real ones, on a miniredis whose clock the model moves. The part of Java is written down here from
// the description of Redisson's records.

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/tests/seeds"
	"github.com/stretchr/testify/require"
)

const (
	modelWorth = time.Minute             // the fair wait timeout of all clients
	modelLease = 7 * time.Second         // the lease of a hold
	modelTick  = 1900 * time.Millisecond // a live relock waiter asks at least this often
)

const javaRelease = locktest.JavaEvict + `
if redis.call('hexists', KEYS[1], me) == 0 then return 0 end
redis.call('del', KEYS[1])
return 1`

type modelActor struct {
	name   string
	java   bool
	slow   bool   // its subscription is not confirmed yet
	state  string // idle, waiting, granted (and it does not know), holding, dead
	listed bool   // whether it is subscribed to its channel, as far as Redis knows
	wishes bool   // the last request that ran asked for grants
	apart  bool   // the reply said that its holder is a legacy client
	asked  uint64 // the number of that request
	polled time.Time
}

type fairModel struct {
	t      *testing.T
	mini   *miniredis.Miniredis
	rdb    *redis.Client
	client *Client
	lock   contract.Record
	now    time.Time
	actors []*modelActor
	order  []*modelActor // live waiters, first come first
	events []string

	ear      *miniredis.Subscriber
	mu       sync.Mutex                // guards messages
	messages []miniredis.PubsubMessage // the messages that were published, except those on synced
}

const synced = "synced" // a channel

// listen collects messages until the test ends.
func (m *fairModel) listen() {
	m.ear = m.mini.NewSubscriber()
	m.ear.Subscribe(synced)
	go func() {
		for message := range m.ear.Messages() {
			m.mu.Lock()
			if message.Channel != synced {
				m.messages = append(m.messages, message)
			}
			m.mu.Unlock()
		}
	}()
}

// list sets whether Redis considers a to be subscribed.
func (m *fairModel) list(a *modelActor, listens bool) {
	a.listed = listens
	for _, channel := range m.channels(a) {
		if listens {
			m.ear.Subscribe(channel)
		} else {
			m.ear.Unsubscribe(channel)
		}
	}
}

// channels returns the channel of a, and that of its client.
func (m *fairModel) channels(a *modelActor) []string {
	client, _, _ := strings.Cut(a.name, ":")
	return []string{locktest.AnnounceOf(m.lock) + a.name, locktest.AnnounceOf(m.lock) + "client:" + client}
}

func (m *fairModel) reset() {
	m.mini.FlushAll()
	for _, a := range m.actors {
		m.list(a, false)
	}
	m.now = time.Unix(1_700_000_000, 0)
	m.mini.SetTime(m.now)
	m.actors = []*modelActor{
		{name: locktest.JavaOther + ":1"},
		{name: "c" + locktest.JavaOther[1:] + ":2", slow: true},
		{name: locktest.JavaThread, java: true},
	}
	for _, a := range m.actors {
		a.state = "idle"
	}
	m.order, m.events = nil, nil
}

func (m *fairModel) fail(format string, args ...any) {
	m.t.Helper()
	require.Fail(
		m.t,
		fmt.Sprintf(format, args...),
		"after %s\nqueue %v, timeouts %v, places %v, lock %v",
		strings.Join(m.events, ", "),
		m.rdb.LRange(context.Background(), locktest.KeysOf(m.lock)[1], 0, -1).Val(),
		m.rel(locktest.KeysOf(m.lock)[2]),
		m.places(),
		m.rdb.HGetAll(context.Background(), locktest.KeysOf(m.lock)[0]).Val(),
	)
}

// rel returns a sorted set of times, in seconds from now.
func (m *fairModel) rel(key string) (all []string) {
	for _, z := range m.rdb.ZRangeWithScores(context.Background(), key, 0, -1).Val() {
		all = append(all, fmt.Sprintf("%v%+d", z.Member, (int64(z.Score)-m.now.UnixMilli())/1000))
	}
	return all
}

// places returns the places, and when a script last looked at them, with times in seconds from now.
func (m *fairModel) places() string {
	text := fmt.Sprint(m.rdb.HGetAll(context.Background(), locktest.KeysOf(m.lock)[3]).Val())
	return regexp.MustCompile(`\b\d{13}\b`).ReplaceAllStringFunc(text, func(at string) string {
		ms, _ := strconv.ParseInt(at, 10, 64)
		return fmt.Sprintf("%+d", (ms-m.now.UnixMilli())/1000)
	})
}

func (m *fairModel) javaRun(script string, a *modelActor) bool {
	n, err := m.rdb.Eval(context.Background(), script, locktest.KeysOf(m.lock)[:3], a.name, locktest.AnnounceOf(m.lock),
		modelLease.Milliseconds(), modelWorth.Milliseconds(), m.now.UnixMilli()).Int()
	if err != nil {
		m.fail("%v", err)
	}
	return n == 1
}

// run runs a script for a, and records what else it has done.
func (m *fairModel) run(a *modelActor, script func()) {
	overdue := make(map[string]bool) // Java waiters whose time has expired by Redisson's rules
	for _, z := range m.rdb.ZRangeWithScores(context.Background(), locktest.KeysOf(m.lock)[2], 0, -1).Val() {
		overdue[z.Member.(string)] = int64(z.Score) <= m.now.UnixMilli()
	}
	script()
	for _, other := range slices.Clone(m.order) { // Redisson's own rule: it has been absent for too long
		if other != a && other.java && overdue[other.name] {
			other.state = "idle"
			m.list(other, false)
			m.leaveOrder(other)
		}
	}
	m.hear(a)
}

// hear records what the last script, that of asker, has granted.
func (m *fairModel) hear(asker *modelActor) {
	m.ear.Publish(synced, "")
	m.mu.Lock()
	messages := m.messages
	m.messages = nil
	m.mu.Unlock()
	for _, message := range messages {
		at := slices.IndexFunc(m.actors, func(a *modelActor) bool { return slices.Contains(m.channels(a), message.Channel) })
		a := m.actors[at]
		g, granted := engine.ParseLineGrant(message.Message, "")
		switch {
		case message.Message == "0" && a.wishes && a.state == "waiting":
			m.fail("%s is woken and could be granted the lock", a.name)
		case message.Message == "0", message.Message == "free "+a.name:
			continue
		case !granted || g.Field != a.name || g.Asked != a.asked || g.Lease != min(modelLease, engine.ProvisionalLease) ||
			g.Token != 0:
			m.fail("%s is told %q, and has asked with number %d", a.name, message.Message, a.asked)
		case a.java || !a.wishes || a.state != "waiting" && a.state != "dead":
			m.fail("%s is granted the lock", a.name)
		case m.rdb.HGet(context.Background(), locktest.KeysOf(m.lock)[0], a.name).Val() != "1":
			m.fail("%s is granted the lock, and has no record", a.name)
		}
		a.wishes = false
		if a.state != "dead" {
			m.gets(a, map[bool]string{false: "holding", true: "granted"}[a.slow])
		}
	}
	for _, a := range m.actors { // who polls is not told
		if a != asker && !a.java && a.state == "waiting" && m.rdb.HExists(context.Background(), locktest.KeysOf(m.lock)[0], a.name).Val() {
			m.gets(a, "granted")
		}
	}
}

// attempt makes a ask for the lock once, and checks that it may acquire it.
func (m *fairModel) attempt(a *modelActor) {
	before := a.state
	var got bool
	m.run(a, func() {
		if a.java {
			got = m.javaRun(locktest.JavaAcquire, a)
			return
		}
		line := contract.Defer
		if a.listed {
			line = contract.Push
		}
		a.asked++
		g, err := locktest.SendAttempt(
			m.client, m.lock,
			contract.Attempt{Field: a.name, Lease: modelLease, HoldCount: 1, Delivery: line, Asked: a.asked},
		)
		if err != nil {
			m.fail("%v", err)
		}
		got = g.Status == contract.Held
		a.wishes = !got && a.listed
		a.apart = g.Standing.LegacyHolder()
	})
	switch {
	case got && before == "granted":
		a.state = "holding"
		m.list(a, false)
	case got:
		m.gets(a, "holding")
	case before == "granted":
		m.fail("%s was granted the lock and has lost it", a.name)
	case before == "idle":
		a.state = "waiting"
		m.order = append(m.order, a)
		m.list(a, true) // Java too
		if !a.java && !a.slow {
			m.attempt(a) // as a waiter whose subscription is confirmed
		}
	}
}

// gets checks that it is the turn of a, which holds the lock from now on.
func (m *fairModel) gets(a *modelActor, state string) {
	if at := slices.Index(m.order, a); at > 0 || at < 0 && len(m.order) > 0 {
		m.fail("%s has the lock, but %s was there before it", a.name, m.order[0].name)
	}
	for _, other := range m.actors {
		if other != a && (other.state == "holding" || other.state == "granted") {
			m.fail("%s and %s hold the lock", a.name, other.name)
		}
	}
	m.leaveOrder(a)
	if a.state = state; state == "holding" {
		m.list(a, false)
	}
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
		if m.rdb.Exists(context.Background(), locktest.KeysOf(m.lock)[0]).Val() == 0 {
			for _, a := range m.actors {
				if a.state == "holding" {
					a.state = "idle"
				}
			}
		}
		for _, a := range slices.Concat(m.order, m.actors) {
			if !a.java && (a.state == "waiting" && slices.Contains(m.order, a) || a.state == "granted") && a.polled != m.now {
				a.polled = m.now
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
		case "waiting", "granted":
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
		m.pass(record.FairLife + time.Second)
		return
	case "long time passes":
		m.pass(modelWorth * 2 / 3)
		return
	case "asks":
		m.attempt(a)
	case "crashes":
		m.leaveOrder(a)
		a.state = "dead"
		m.list(a, a.listed && a.slow)
	case "unlocks":
		m.release(a)
	case "gives up":
		m.leaveOrder(a)
		a.state = "idle"
		m.run(a, func() {
			if a.java {
				m.javaRun(locktest.JavaGiveUp, a)
			} else if _, err := locktest.Send(m.client, m.lock.RollBack(contract.Attempt{Field: a.name, HoldCount: 1})); err != nil {
				m.fail("%v", err)
			}
		})
		m.list(a, false)
	}
	if n := m.rdb.HLen(ctx, locktest.KeysOf(m.lock)[0]).Val(); n > 1 {
		m.fail("%d hold the lock", n)
	}
}

// release makes the holder a unlock.
func (m *fairModel) release(a *modelActor) {
	a.state = "idle"
	m.run(a, func() {
		if a.java {
			if !m.javaRun(javaRelease, a) {
				m.fail("%s cannot unlock", a.name)
			}
			if len(m.order) > 0 && m.order[0].wishes && !m.order[0].apart {
				m.fail("%s does not listen to the channel on which Java wakes it", m.order[0].name)
			}
		} else if r, err := locktest.Send(m.client, m.lock.Release(locktest.Released(a.name, 0, false))); r[0] != 1 || err != nil {
			m.fail("%s cannot unlock: %v", a.name, err)
		}
	})
}

// settle lets all actors finish: holders crash, Java is gone, and each remaining waiter must acquire the lock in its
// turn; in the end nothing is left.
func (m *fairModel) settle() {
	for _, a := range m.actors {
		if a.java || a.state == "holding" {
			m.leaveOrder(a)
			a.state = "dead"
			m.list(a, false)
		}
	}
	m.events = append(m.events, "everybody else dies")
	for range 4 * int(modelWorth/modelTick) {
		waits := false
		for _, a := range m.actors {
			if a.state == "holding" {
				m.release(a)
			}
			waits = waits || a.state == "waiting" || a.state == "granted"
		}
		if !waits {
			break
		}
		m.pass(modelTick)
	}
	if len(m.order) > 0 {
		m.fail("%s waits for ever", m.order[0].name)
	}
	m.pass(4 * modelWorth)
	visitor := &modelActor{name: "visitor", state: "idle"}
	m.actors = append(m.actors, visitor)
	m.attempt(visitor)
	for range 5 { // crashed relock waiters get another chance, and one may be granted the lock
		if visitor.state != "holding" {
			m.pass(modelTick)
		}
	}
	if visitor.state != "holding" {
		m.fail("a lock that nobody holds or waits for is not to be had")
	}
	m.release(visitor)
	if keys := m.mini.Keys(); len(keys) > 0 {
		m.fail("%v are left", keys)
	}
}

// key returns the state, so that the same state is not tested twice.
func (m *fairModel) key() string {
	var s strings.Builder
	for _, a := range m.actors {
		fmt.Fprint(&s, a.state, a.listed, a.wishes, " ")
	}
	for _, a := range m.order {
		fmt.Fprint(&s, a.name)
	}
	ctx := context.Background()
	fmt.Fprint(&s, m.rdb.LRange(ctx, locktest.KeysOf(m.lock)[1], 0, -1).Val(), m.rel(locktest.KeysOf(m.lock)[2]), m.places(),
		m.rdb.HKeys(ctx, locktest.KeysOf(m.lock)[0]).Val(), m.rdb.PTTL(ctx, locktest.KeysOf(m.lock)[0]).Val().Round(time.Second))
	return s.String()
}

func TestFairQueueKeepsItsRulesInEveryOrderOfEvents(t *testing.T) {
	t.Parallel()
	depth := locktest.Full(4, 5)
	if d := os.Getenv("RELOCK_MODEL_DEPTH"); d != "" {
		depth, _ = strconv.Atoi(d)
	}
	mini := testredis.StillMini(t)
	rdb := testredis.Client(t, mini.Addr())
	c, err := New(rdb, WithFairWaitTimeout(modelWorth))
	require.NoError(t, err)
	defer c.Close()
	m := &fairModel{t: t, mini: mini, rdb: rdb, client: c, lock: locktest.RecordOf(c.NewFairLock("model"))}
	m.listen()
	defer m.ear.Close()
	seen := make(map[string]bool)
	digest := seeds.NewDigest(t, "fair")
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
				digest.Note(m.events, m.key())
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
