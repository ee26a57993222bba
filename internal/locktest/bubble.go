//go:build go1.25

package locktest

// Locks in bubbles: engines on a fake Redis, and Clients of servers in virtual time.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/bubble"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fakeLock is a plain lock on a fakeRedis: its calls have a verb instead of a script.
type fakeLock struct {
	traits contract.Traits
	redis  *fakeredis.Redis
	key    string // the key of the record
}

func NewFakeLock(r *fakeredis.Redis, name string) *fakeLock {
	return &fakeLock{
		contract.Traits{
			ID: contract.LockID{Name: name}, Name: name, Type: string(relock.TypeLock), Admission: contract.Exclusive,
		},
		r,
		name,
	}
}

func (l *fakeLock) Traits() *contract.Traits { return &l.traits }

func (*fakeLock) BusyText(ttl, left, ago time.Duration) string {
	return contract.BusyText(ttl, left, ago)
}

func (l *fakeLock) call(verb string, args ...any) send.Call {
	return send.Call{Keys: []string{l.key}, Args: append([]any{verb}, args...)}
}

func (l *fakeLock) Channel(contract.Attempt) string { return "channel:" + l.key }

func (l *fakeLock) Grants(contract.Attempt) string { return "" }

func (l *fakeLock) Rename(contract.Rename) send.Call { return send.Call{} }

func (l *fakeLock) Acquire(a contract.Attempt) send.Call {
	return l.call("acquire", a.Field, a.Lease, a.HoldCount)
}

func (l *fakeLock) RollBack(a contract.Attempt) send.Call { return l.Release(a.AsRelease()) }

func (l *fakeLock) Force(...string) send.Call { return l.call("force") }

func (l *fakeLock) Inspect(field string) send.Call { return l.call("inspect", field) }

func (l *fakeLock) ReadReply(_ contract.Attempt, r send.Reply) (contract.Outcome, error) {
	return contract.ParseOutcome(r)
}

func (l *fakeLock) Release(r contract.Release) send.Call {
	return l.call("release", r.Field, r.HoldCount)
}

func (l *fakeLock) Renew(field string, lease time.Duration, exact bool) send.Call {
	return l.call("renew", field, lease, exact)
}

// A BubbleEngine is an engine on a fakeRedis, inside a bubble.
type BubbleEngine struct {
	*engine.Engine
	Redis *fakeredis.Redis
	T     *testing.T
}

// fakeServers are the servers of a fakeRedis.
type fakeServers struct{ *fakeredis.Redis }

func (s fakeServers) Node(string) wake.Node { return wake.Node{Dial: s.Subscribe} }

func (fakeServers) Counts() bool { return true }

func (fakeServers) Refused(error) bool { return false }

func (fakeServers) Reload() {}

// FakeConfig returns the configuration of an engine on r: that of a Client, without what asks another Redis.
func FakeConfig(t *testing.T, r *fakeredis.Redis, id string, opts ...relock.Option) engine.Config {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{
		Addr:                     "127.0.0.1:1", // a name would be looked up
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	c, err := relock.New(rdb, opts...)
	require.NoError(t, err)
	config := EngineOf(c).Config
	config.ID, config.Channel, config.Servers = id, record.ClientKey(id), fakeServers{r}
	config.Free = (&record.Client{ID: id}).Free
	config.Holder = func(context.Context, engine.Subject) string { return "" }
	config.Tell = func(context.Context, []string, string) {}
	config.OnAcquire, config.OnSlow = nil, nil
	return config
}

// JoinBubbleEngine creates another client of the same Redis.
func JoinBubbleEngine(t *testing.T, r *fakeredis.Redis, id string, opts ...relock.Option) *BubbleEngine {
	return joinSending(t, r, id, send.Config{Transport: r}, opts...)
}

// joinSending is joinBubbleEngine for a client that sends in a certain way.
func joinSending(t *testing.T, r *fakeredis.Redis, id string, config send.Config, opts ...relock.Option) *BubbleEngine {
	opts = append([]relock.Option{relock.WithLogger(slog.New(slog.DiscardHandler))}, opts...)
	e := &BubbleEngine{engine.New(FakeConfig(t, r, id, opts...), config), r, t}
	t.Cleanup(func() {
		assert.NoError(t, e.Close())
		assert.Zero(t, e.Probe().Stats().Queues, "wait queues are left")
	})
	return e
}

// acquire is Acquire of the engine for one lock.
func (e *BubbleEngine) acquire(ctx context.Context, b contract.Record, o engine.Owner, r engine.Request) (bool, error) {
	return e.Acquire(ctx, o, r, b)
}

// Lock asserts, as Unlock and Guarded do, and does not require: goroutines other than the test's call them too.
func (e *BubbleEngine) Lock(o engine.Owner) {
	e.T.Helper()
	ok, err := e.acquire(ctx, NewFakeLock(e.Redis, "x"), o, engine.Request{Wait: Forever})
	assert.NoError(e.T, err, "%v does not get the lock", o)
	assert.True(e.T, ok, "%v does not get the lock", o)
}

func (e *BubbleEngine) Unlock(o engine.Owner) {
	e.T.Helper()
	assert.NoError(e.T, e.Release(ctx, NewFakeLock(e.Redis, "x"), o), "%v cannot unlock", o)
}

func (e *BubbleEngine) LockWith(ctx context.Context, o engine.Owner, r engine.Request) (bool, error) {
	return e.acquire(ctx, NewFakeLock(e.Redis, "x"), o, r)
}

func (e *BubbleEngine) UnlockErr(o engine.Owner) error {
	return e.Release(ctx, NewFakeLock(e.Redis, "x"), o)
}

func (e *BubbleEngine) Guarded(o engine.Owner) context.Context {
	e.T.Helper()
	ctx, err := e.Guard(ctx, NewFakeLock(e.Redis, "x"), o)
	assert.NoError(e.T, err, "no guard for %v", o)
	return ctx
}

// AbandonedBubbleEngine is joinBubbleEngine for a test that closes the engine itself, with locks held.
func AbandonedBubbleEngine(t *testing.T, redis *fakeredis.Redis, opts ...relock.Option) *BubbleEngine {
	t.Helper()
	return &BubbleEngine{engine.New(FakeConfig(t, redis, "client", opts...), send.Config{Transport: redis}), redis, t}
}

// A Virtual belongs to one test in a bubble.
type Virtual struct {
	*testing.T
	Servers []*bubble.Redis
	links   int
}

// InVirtualTime runs f in a bubble with this number of servers.
func InVirtualTime(t *testing.T, servers int, f func(v *Virtual)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		v := &Virtual{T: t}
		for range servers {
			v.Servers = append(v.Servers, bubble.Start())
		}
		t.Cleanup(func() {
			for _, s := range v.Servers {
				s.Close()
			}
			time.Sleep(2 * time.Second) // go-redis keeps trying to reach its server for another second
		})
		f(v)
	})
}

// Client returns a Client of a server, with a round trip of a millisecond, and its link to the server.
func (v *Virtual) Client(server int, opts ...relock.Option) (*relock.Client, *bubble.Link) {
	v.Helper()
	rdb, link := v.Redis(server)
	return v.ClientOn(rdb, opts...), link
}

func (v *Virtual) ClientOn(rdb redis.UniversalClient, opts ...relock.Option) *relock.Client {
	v.Helper()
	c, err := relock.New(rdb, quietly(opts)...)
	require.NoError(v, err)
	v.Cleanup(func() { assert.NoError(v, c.Close()) })
	return c
}

// Redis returns a go-redis client of a server, and its link to the server.
func (v *Virtual) Redis(server int) (*redis.Client, *bubble.Link) {
	v.links++
	link := v.Servers[server].Link(fmt.Sprint("link ", v.links), uint64(v.links))
	link.Set(func(c *bubble.Conditions) { c.Latency = 500 * time.Microsecond })
	rdb := redis.NewClient(&redis.Options{
		Addr: bubble.Addr(server), Dialer: link.Dial, DialerRetries: 1, // between retries it sleeps with a mutex held
		PoolSize:                 bubble.PoolSize,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	v.Cleanup(func() { assert.NoError(v, rdb.Close()) })
	return rdb, link
}

// Silent makes links hold up all traffic while f runs.
func Silent(f func(), links ...*bubble.Link) {
	hold := func(held bool) {
		for _, link := range links {
			link.Set(func(c *bubble.Conditions) { c.Held = [2]bool{held, held} })
		}
	}
	hold(true)
	defer hold(false)
	f()
}

// Refusing makes links refuse all connections while f runs.
func Refusing(f func(), links ...*bubble.Link) {
	refuse := func(on bool) {
		for _, link := range links {
			link.Set(func(c *bubble.Conditions) { c.Refused = on })
			link.Cut()
		}
	}
	refuse(true)
	defer refuse(false)
	f()
}

// RedLock returns a RedLock called l, of three servers, and its locks.
func (v *Virtual) RedLock() (l *relock.RedLock, locks []relock.Locker) {
	v.Helper()
	for i := range 3 {
		c, _ := v.Client(i)
		locks = append(locks, c.NewLock("l"))
	}
	c, _ := v.Client(0)
	return c.NewRedLock(locks...), locks
}

// Waiter has another goroutine wait for l, and then release it. The function that it returns waits for that.
func (v *Virtual) Waiter(l relock.Locker) (released func()) {
	ended := make(chan error)
	go func() {
		ctx := relock.ContextWithOwner(ctx)
		ended <- errors.Join(l.Lock(ctx), l.Unlock(ctx))
	}()
	time.Sleep(time.Second)
	return func() { assert.NoError(v, <-ended) }
}
