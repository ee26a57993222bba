//go:build go1.25

package engine

import (
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/wake"
)

// A fakeLock is a plain lock on a fakeredis.Redis. Its calls have the name of a command in place of a script.
type fakeLock struct {
	traits contract.Traits
	redis  *fakeredis.Redis
	key    string // the key of the record
}

func newFakeLock(r *fakeredis.Redis, name string) *fakeLock {
	traits := contract.Traits{ID: contract.LockID{Name: name}, Name: name, Type: "lock", Admission: contract.Exclusive}
	return &fakeLock{traits, r, name}
}

func (l *fakeLock) Traits() *contract.Traits { return &l.traits }

func (*fakeLock) BusyText(ttl, left, ago time.Duration) string {
	return contract.BusyText(ttl, left, ago)
}

func (l *fakeLock) call(verb string, args ...any) send.Call {
	return send.Call{Keys: []string{l.key}, Args: append([]any{verb}, args...)}
}

func (l *fakeLock) Channel(contract.Attempt) string { return "channel:" + l.key }
func (l *fakeLock) Grants(contract.Attempt) string  { return "" }
func (l *fakeLock) Acquire(a contract.Attempt) send.Call {
	return l.call("acquire", a.Field, a.Lease, a.HoldCount, a.TokensWanted(l.traits.Fenced))
}
func (l *fakeLock) RollBack(a contract.Attempt) send.Call { return l.Release(a.AsRelease()) }
func (l *fakeLock) Force(...string) send.Call             { return l.call("force") }
func (l *fakeLock) Inspect(field string) send.Call        { return l.call("inspect", field) }

func (l *fakeLock) ReadReply(_ contract.Attempt, r send.Reply) (contract.Outcome, error) {
	return contract.ParseOutcome(r)
}

func (l *fakeLock) Rename(r contract.Rename) send.Call {
	return l.call("rename", r.From, r.To, r.Lease, r.Until, r.Ends, r.Late)
}

func (l *fakeLock) Release(r contract.Release) send.Call {
	return l.call("release", r.Field, r.HoldCount)
}

func (l *fakeLock) Renew(field string, lease time.Duration, exact bool) send.Call {
	return l.call("renew", field, lease, exact)
}

// A bubbleEngine is an engine on a fakeredis.Redis, inside a bubble of synctest.
type bubbleEngine struct {
	*Engine
	redis *fakeredis.Redis
	t     *testing.T
}

func newBubbleEngine(t *testing.T) *bubbleEngine {
	return joinBubbleEngine(t, fakeredis.New(), "client")
}

// oneFake is a set of servers that consists of one fakeredis.Redis.
type oneFake struct{ redis *fakeredis.Redis }

func (f oneFake) Node(string) wake.Node {
	return wake.Node{Dial: func() wake.Subscriber { return f.redis.Subscribe() }}
}
func (oneFake) Reload()            {}
func (oneFake) Refused(error) bool { return false }
func (oneFake) Counts() bool       { return true }

// logged writes events to a log.
type logged struct{ log *slog.Logger }

func (logged) SubscriptionRefused(string, error) {}

func (l logged) Report(_ context.Context, v Event) {
	if v.What == Lost {
		l.log.Warn("lost", "lock", v.Name, "cause", v.Cause)
	}
}

func (l logged) LossesOmitted(n int) { l.log.Warn("more lost", "n", n) }

func (l logged) SlowHold(s Subject, held time.Duration, stack []uintptr) {
	l.log.Warn("slow hold", "lock", s.Name, "owner", s.Owner, "held", held, "stack", stack)
}

func (l logged) SlowWait(w SlowWait) {
	l.log.Warn("slow wait", "lock", w.Name, "waiters", w.Waiters, "waited", w.Waited, "holder", w.Holder)
}

func (l logged) SlowOmitted(n int) { l.log.Warn("omitted", "n", n) }

// A with changes the config of a bubbleEngine.
type with func(*Config)

func withWatchdogTimeout(d time.Duration) with { return func(c *Config) { c.WatchdogTimeout = d } }

func withWindow(d time.Duration) with { return func(c *Config) { c.HandoffWindow = d } }

func withLogger(l *slog.Logger) with {
	return func(c *Config) { c.Log, c.Events = l, logged{l} }
}

// fakeConfig returns the config of an engine on r, with the default options of a Client.
func fakeConfig(r *fakeredis.Redis, id string, all ...with) Config {
	c := Config{
		ID: id, WatchdogTimeout: 30 * time.Second, PollInterval: time.Second, HandoffWindow: 10 * time.Millisecond,
		UserCalls: func() int64 { return 0 },
		Servers:   oneFake{r},
		Group:     func(string) string { return "" },
		Renewer: func(ctx context.Context, sender *send.Sender, all []Renewal) {
			calls := make([]send.Call, len(all))
			for i, r := range all {
				calls[i] = r.Lock.Renew(r.Field, r.Length, false)
			}
			replies, errs := sender.All(ctx, calls)
			for i := range all {
				all[i].Held, all[i].Err = replies[i][0] == 1, errs[i]
			}
		},
	}
	withLogger(slog.New(slog.DiscardHandler))(&c)
	for _, w := range all {
		w(&c)
	}
	return c
}

// joinBubbleEngine returns the engine of another Client of the same Redis.
func joinBubbleEngine(t *testing.T, r *fakeredis.Redis, id string, all ...with) *bubbleEngine {
	return joinSending(t, r, id, send.Config{Transport: r}, all...)
}

// another returns the engine of another Client, which is called "other".
func (e *bubbleEngine) another() *bubbleEngine { return joinBubbleEngine(e.t, e.redis, "other") }

// joinSending is like joinBubbleEngine, for a Client whose sender has this config.
func joinSending(t *testing.T, r *fakeredis.Redis, id string, config send.Config, all ...with) *bubbleEngine {
	e := &bubbleEngine{New(fakeConfig(r, id, all...), config), r, t}
	t.Cleanup(func() {
		assert.NoError(t, e.Close())
		assert.Zero(t, e.waitQueues(), "wait queues are left")
	})
	return e
}

// abandonedBubbleEngine is like joinBubbleEngine, for a test that closes the engine itself while locks are held.
func abandonedBubbleEngine(t *testing.T, r *fakeredis.Redis, all ...with) *bubbleEngine {
	t.Helper()
	return &bubbleEngine{New(fakeConfig(r, "client", all...), send.Config{Transport: r}), r, t}
}

// acquire calls Engine.Acquire for one lock.
func (e *bubbleEngine) acquire(ctx context.Context, kind contract.Record, o Owner, r Request) (bool, error) {
	return e.Acquire(ctx, o, r, kind)
}

// The methods below use assert instead of require, because goroutines other than that of the test call them too.

// take has o acquire l: with the request r, or else with one that waits for as long as it takes.
func (e *bubbleEngine) take(l contract.Record, o Owner, r ...Request) {
	e.t.Helper()
	ok, err := e.acquire(ctx, l, o, append(r, Request{Wait: forever})[0])
	assert.NoError(e.t, err, "%v does not get the lock", o)
	assert.True(e.t, ok, "%v does not get the lock", o)
}

func (e *bubbleEngine) giveBack(l contract.Lock, o Owner) {
	e.t.Helper()
	assert.NoError(e.t, e.Release(ctx, l, o), "%v cannot unlock", o)
}

// lock and unlock are take and giveBack of the lock x.
func (e *bubbleEngine) lock(o Owner, r ...Request) {
	e.t.Helper()
	e.take(newFakeLock(e.redis, "x"), o, r...)
}

func (e *bubbleEngine) unlock(o Owner) {
	e.t.Helper()
	e.giveBack(newFakeLock(e.redis, "x"), o)
}

// acquiring begins to acquire l as take does, and returns the channel that gets the error.
func (e *bubbleEngine) acquiring(ctx context.Context, l contract.Record, o Owner, r ...Request) chan error {
	return later(func() error {
		_, err := e.acquire(ctx, l, o, append(r, Request{Wait: forever})[0])
		return err
	})
}

// asking is acquiring of the lock x, and locking closes the channel when o has it.
func (e *bubbleEngine) asking(o Owner) chan error {
	return e.acquiring(ctx, newFakeLock(e.redis, "x"), o)
}

func (e *bubbleEngine) locking(o Owner) <-chan struct{} {
	return begin(func() { e.lock(o) })
}

// assertFree asserts that nobody holds the lock x in Redis.
func (e *bubbleEngine) assertFree(why ...any) {
	e.t.Helper()
	assert.Empty(e.t, e.redis.Holder("x"), why...)
}

func (e *bubbleEngine) assertHeld(why ...any) {
	e.t.Helper()
	assert.NotEmpty(e.t, e.redis.Holder("x"), why...)
}

// faults gives all requests with these verbs, or all there are, this fault.
func (e *bubbleEngine) faults(f fakeredis.Fault, verbs ...string) {
	e.fail(func(verb string) (none fakeredis.Fault) {
		if len(verbs) > 0 && !slices.Contains(verbs, verb) {
			return none
		}
		return f
	})
}

// fail gives each request the fault that f returns for its verb.
func (e *bubbleEngine) fail(f func(verb string) fakeredis.Fault) {
	e.redis.Set(func() { e.redis.Fault = f })
}

// outage blocks all requests for d.
func (e *bubbleEngine) outage(d time.Duration) {
	end := time.Now().Add(d)
	e.fail(func(string) (f fakeredis.Fault) {
		if time.Now().Before(end) {
			f.Block = io.EOF
		}
		return f
	})
}

func (e *bubbleEngine) heal() { e.fail(nil) }

// expire ends the validity of the hold of o on the lock x, as a pause of the process does: no timer notices it.
func (e *bubbleEngine) expire(o Owner) {
	e.holdOf(contract.LockID{Name: "x"}, o, func(h *hold) { h.record.lease.SetValidUntil(0) })
}

// deleteRecord deletes the record of the lock x, as an operator does.
func (e *bubbleEngine) deleteRecord() { e.redis.Set(func() { delete(e.redis.Records, "x") }) }

func (e *bubbleEngine) lockWith(ctx context.Context, o Owner, r Request) (bool, error) {
	return e.acquire(ctx, newFakeLock(e.redis, "x"), o, r)
}

// misses asserts that o does not get the lock x, and returns the error.
func (e *bubbleEngine) misses(ctx context.Context, o Owner, r Request) error {
	e.t.Helper()
	ok, err := e.lockWith(ctx, o, r)
	assert.False(e.t, ok, "%v gets the lock", o)
	return err
}

func (e *bubbleEngine) unlockErr(o Owner) error {
	return e.Release(ctx, newFakeLock(e.redis, "x"), o)
}

func (e *bubbleEngine) guarded(o Owner) context.Context {
	e.t.Helper()
	ctx, err := e.Guard(ctx, newFakeLock(e.redis, "x"), o)
	assert.NoError(e.t, err, "no guard for %v", o)
	return ctx
}

// inBubble runs f on a new engine in a bubble of synctest, and asserts afterwards that the engine has no wait queues
// left. It runs f twice. In the first run every request is sent on another goroutine, and can be abandoned. In the
// second run a caller that has the time sends on its own goroutine, after the first request.
func inBubble(t *testing.T, f func(t *testing.T, e *bubbleEngine)) {
	t.Helper()
	for _, name := range []string{"goroutine", "inline"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := fakeredis.New()
				config := send.Config{Transport: r}
				if name == "inline" {
					config = fakeredis.Prompt(r)
				}
				f(t, joinSending(t, r, "client", config))
			})
		})
	}
}

const forever = -1

// leased requests a lease of this length, for as long as it takes.
func leased(length time.Duration) Request { return Request{Wait: forever, Lease: length} }

func newRand(seed int) *rand.Rand { return rand.New(rand.NewPCG(uint64(seed), 1)) }

// begin runs f on another goroutine, and returns a channel that is closed when f has ended.
func begin(f func()) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f()
	}()
	return ended
}

// later runs f on another goroutine, and returns the channel that gets its error.
func later(f func() error) chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// full returns how many cases a test tries, or for how long: plain, or long in the long form: see testredis.Long.
func full[T int | uint64 | time.Duration](plain, long T) T { return testredis.Full(plain, long) }

// An answerError is an error reply of Redis.
type answerError string

func (e answerError) Error() string { return string(e) }
func (answerError) RedisError()     {}
