//go:build go1.25

package relock

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/send"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fakeLock is a plain lock on a fakeRedis: its calls have a verb instead of a script.
type fakeLock struct {
	traits
	redis *fakeredis.Redis
	key   string // of the record
}

func newFakeLock(r *fakeredis.Redis, name string) *fakeLock {
	return &fakeLock{traits{lock: lockID{name: name}, kind: string(TypeLock), admits: exclusive}, r, name}
}

func (l *fakeLock) call(verb string, args ...any) call {
	return call{Keys: []string{l.key}, Args: append([]any{verb}, args...)}
}

func (l *fakeLock) channel(attempt) string    { return "channel:" + l.key }
func (l *fakeLock) grants(attempt) string     { return "" }
func (l *fakeLock) unbury(string) call        { return call{} }
func (l *fakeLock) acquire(a attempt) call    { return l.call("acquire", a.field, a.lease, a.level) }
func (l *fakeLock) undo(a attempt) call       { return l.release(a.asRelease()) }
func (l *fakeLock) force() call               { return l.call("force") }
func (l *fakeLock) inspect(field string) call { return l.call("inspect", field) }

func (l *fakeLock) granted(_ attempt, r reply) (grant, error) { return parseGrant(r) }

func (l *fakeLock) release(r release) call {
	return l.call("release", r.field, r.left)
}

func (l *fakeLock) renew(field string, lease time.Duration, exact bool) call {
	return l.call("renew", field, lease, exact)
}

// A bubbleEngine is an engine on a fakeRedis, inside a bubble.
type bubbleEngine struct {
	*engine
	redis *fakeredis.Redis
	t     *testing.T
}

func newBubbleEngine(t *testing.T) *bubbleEngine {
	r := fakeredis.New()
	return joinBubbleEngine(t, r, "client")
}

// fakeConfig is the config of an engine on r.
func fakeConfig(r *fakeredis.Redis, id string, o options) config {
	c := new(Client).config(id, o)
	c.servers = oneServer(r.Subscribe)
	return c
}

// joinBubbleEngine makes another client of the same Redis.
func joinBubbleEngine(t *testing.T, r *fakeredis.Redis, id string, opts ...Option) *bubbleEngine {
	return joinSending(t, r, id, send.Config{Transport: r}, opts...)
}

// joinSending is joinBubbleEngine for a client that sends in a certain way.
func joinSending(t *testing.T, r *fakeredis.Redis, id string, config send.Config, opts ...Option) *bubbleEngine {
	o, err := newOptions(append([]Option{WithLogger(slog.New(slog.DiscardHandler))}, opts...))
	require.NoError(t, err)
	e := &bubbleEngine{newEngine(fakeConfig(r, id, o), config), r, t}
	t.Cleanup(func() {
		assert.NoError(t, e.close())
		assert.Zero(t, e.waitQueues(), "wait queues are left")
	})
	return e
}

// acquire is that of the engine for one lock.
func (e *bubbleEngine) acquire(ctx context.Context, b lockType, o owner, r request) (bool, error) {
	return e.engine.acquire(ctx, o, r, b)
}

// lock, unlock and guarded assert, and do not require: goroutines other than the test's call them too.
func (e *bubbleEngine) lock(o owner) {
	e.t.Helper()
	ok, err := e.acquire(context.Background(), newFakeLock(e.redis, "x"), o, request{wait: forever})
	assert.NoError(e.t, err, "%v does not get the lock", o)
	assert.True(e.t, ok, "%v does not get the lock", o)
}

func (e *bubbleEngine) unlock(o owner) {
	e.t.Helper()
	assert.NoError(e.t, e.release(context.Background(), newFakeLock(e.redis, "x"), o), "%v cannot unlock", o)
}

func (e *bubbleEngine) lockWith(ctx context.Context, o owner, r request) (bool, error) {
	return e.acquire(ctx, newFakeLock(e.redis, "x"), o, r)
}

func (e *bubbleEngine) unlockErr(o owner) error {
	return e.release(context.Background(), newFakeLock(e.redis, "x"), o)
}

func (e *bubbleEngine) guarded(o owner) context.Context {
	e.t.Helper()
	ctx, err := e.guard(context.Background(), newFakeLock(e.redis, "x"), o)
	assert.NoError(e.t, err, "no guard for %v", o)
	return ctx
}

// inBubble runs f on a new engine in a bubble, and asserts afterwards that the engine has no wait queues left.
// It runs f twice: once every request may be abandoned, as after a request without an answer;
// once a request of a caller who has the time runs on the goroutine of that caller.
func inBubble(t *testing.T, f func(t *testing.T, e *bubbleEngine)) {
	t.Helper()
	for name, inline := range map[string]time.Duration{"goroutine": 0, "inline": send.ResendTime} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := fakeredis.New()
				f(t, joinSending(t, r, "client", send.Config{Transport: r, Inline: inline}))
			})
		})
	}
}

// abandonedBubbleEngine is joinBubbleEngine for a test that closes the engine itself, with locks held.
func abandonedBubbleEngine(t *testing.T, redis *fakeredis.Redis, opts ...Option) *bubbleEngine {
	t.Helper()
	o, err := newOptions(opts)
	require.NoError(t, err)
	return &bubbleEngine{newEngine(fakeConfig(redis, "client", o), send.Config{Transport: redis}), redis, t}
}
