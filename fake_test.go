//go:build go1.25

package relock

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/send"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fakeLock is a plain lock on a fakeRedis: its calls have a verb instead of a script.
type fakeLock struct {
	traits contract.Traits
	redis  *fakeredis.Redis
	key    string // the key of the record
}

func newFakeLock(r *fakeredis.Redis, name string) *fakeLock {
	return &fakeLock{
		contract.Traits{
			ID: contract.LockID{Name: name}, Name: name, Type: string(TypeLock), Admission: contract.Exclusive,
		},
		r,
		name,
	}
}

func (l *fakeLock) Traits() *contract.Traits { return &l.traits }

func (*fakeLock) BusyText(ttl, left, ago time.Duration) string {
	return contract.BusyText(ttl, left, ago)
}

func (l *fakeLock) call(verb string, args ...any) call {
	return call{Keys: []string{l.key}, Args: append([]any{verb}, args...)}
}

func (l *fakeLock) Channel(contract.Attempt) string { return "channel:" + l.key }
func (l *fakeLock) Grants(contract.Attempt) string  { return "" }
func (l *fakeLock) Rename(contract.Rename) call     { return call{} }
func (l *fakeLock) Unbury(string) call              { return call{} }
func (l *fakeLock) Acquire(a contract.Attempt) call {
	return l.call("acquire", a.Field, a.Lease, a.HoldCount)
}
func (l *fakeLock) RollBack(a contract.Attempt) call { return l.Release(a.AsRelease()) }
func (l *fakeLock) Force(...string) call             { return l.call("force") }
func (l *fakeLock) Inspect(field string) call        { return l.call("inspect", field) }

func (l *fakeLock) ReadReply(_ contract.Attempt, r reply) (contract.Outcome, error) {
	return contract.ParseOutcome(r)
}

func (l *fakeLock) Release(r contract.Release) call {
	return l.call("release", r.Field, r.HoldCount)
}

func (l *fakeLock) Renew(field string, lease time.Duration, exact bool) call {
	return l.call("renew", field, lease, exact)
}

// A bubbleEngine is an engine on a fakeRedis, inside a bubble.
type bubbleEngine struct {
	*engine.Engine
	redis *fakeredis.Redis
	t     *testing.T
}

// fakeConfig returns the configuration of an engine on r.
func fakeConfig(r *fakeredis.Redis, id string, o options) engine.Config {
	o.labels = true // no label: the Client has no engine that could write it
	c := new(Client).config(id, o)
	c.Servers = oneServer(r.Subscribe)
	return c
}

// joinBubbleEngine creates another client of the same Redis.
func joinBubbleEngine(t *testing.T, r *fakeredis.Redis, id string, opts ...Option) *bubbleEngine {
	return joinSending(t, r, id, send.Config{Transport: r}, opts...)
}

// joinSending is joinBubbleEngine for a client that sends in a certain way.
func joinSending(t *testing.T, r *fakeredis.Redis, id string, config send.Config, opts ...Option) *bubbleEngine {
	o, err := newOptions(append([]Option{WithLogger(slog.New(slog.DiscardHandler))}, opts...))
	require.NoError(t, err)
	e := &bubbleEngine{engine.New(fakeConfig(r, id, o), config), r, t}
	t.Cleanup(func() {
		assert.NoError(t, e.Close())
		assert.Zero(t, e.Probe().Stats().Queues, "wait queues are left")
	})
	return e
}

// acquire is Acquire of the engine for one lock.
func (e *bubbleEngine) acquire(ctx context.Context, b contract.Record, o engine.Owner, r engine.Request) (bool, error) {
	return e.Acquire(ctx, o, r, b)
}

// lock, unlock and guarded assert, and do not require: goroutines other than the test's call them too.
func (e *bubbleEngine) lock(o engine.Owner) {
	e.t.Helper()
	ok, err := e.acquire(context.Background(), newFakeLock(e.redis, "x"), o, engine.Request{Wait: forever})
	assert.NoError(e.t, err, "%v does not get the lock", o)
	assert.True(e.t, ok, "%v does not get the lock", o)
}

func (e *bubbleEngine) unlock(o engine.Owner) {
	e.t.Helper()
	assert.NoError(e.t, e.Release(context.Background(), newFakeLock(e.redis, "x"), o), "%v cannot unlock", o)
}

func (e *bubbleEngine) lockWith(ctx context.Context, o engine.Owner, r engine.Request) (bool, error) {
	return e.acquire(ctx, newFakeLock(e.redis, "x"), o, r)
}

func (e *bubbleEngine) unlockErr(o engine.Owner) error {
	return e.Release(context.Background(), newFakeLock(e.redis, "x"), o)
}

func (e *bubbleEngine) guarded(o engine.Owner) context.Context {
	e.t.Helper()
	ctx, err := e.Guard(context.Background(), newFakeLock(e.redis, "x"), o)
	assert.NoError(e.t, err, "no guard for %v", o)
	return ctx
}

// abandonedBubbleEngine is joinBubbleEngine for a test that closes the engine itself, with locks held.
func abandonedBubbleEngine(t *testing.T, redis *fakeredis.Redis, opts ...Option) *bubbleEngine {
	t.Helper()
	o, err := newOptions(opts)
	require.NoError(t, err)
	return &bubbleEngine{engine.New(fakeConfig(redis, "client", o), send.Config{Transport: redis}), redis, t}
}
