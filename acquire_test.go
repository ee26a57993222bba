//go:build go1.25

package relock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// L7: a connection that hangs delays Lock, Unlock and a renewal by about a second, whether
// the request is lost on it or the answer.
func TestHungConnectionDelaysByASecond(t *testing.T) {
	t.Parallel()
	faults := map[string]testredis.Fault{"answer": testredis.StallReply}
	if full(0, 1) > 0 {
		faults["request"] = testredis.HoldRequest
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
				ctx := context.Background()
				l := k.one(b.patientClient(WithWatchdogTimeout(6*time.Second)), b.name)
				next := k.rival(b.direct, b.name)

				takes := b.proxy.On(k.takes, fault)
				start := time.Now()
				b.must(l.Lock(ctx))
				assert.Less(b, time.Since(start), aboutASecond, "Lock")
				<-takes.Fired()

				renews := b.proxy.On(k.renews, fault)
				guarded, err := l.Guard(ctx)
				b.must(err)
				select {
				case <-renews.Fired():
				case <-guarded.Done():
					b.Fatal("the lock is lost before it is renewed")
				}
				stays(b, "the lock is lost", guarded.Done(), 5*time.Second)

				gives := b.proxy.On(k.gives, fault)
				start = time.Now()
				b.must(l.Unlock(ctx))
				assert.Less(b, time.Since(start), aboutASecond, "Unlock")
				<-gives.Fired()
				b.tries(next, true)
				b.must(next.Unlock(ctx))
			})
		})
	}
}

// At least half of an explicit lease is left when LockLease returns, of every lock type, although the first answer was
// late.
func TestLateAnswerLeavesHalfOfTheLease(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		const lease = time.Second
		l, ctx := k.one(b.patientClient(), b.name), WithOwner(context.Background())
		rule := b.proxy.On(k.takes, testredis.DelayReply(870*time.Millisecond))
		b.must(l.LockLease(ctx, lease))
		assert.Positive(b, rule.Count())
		guarded, err := l.Guard(ctx)
		b.must(err)
		stays(b, "hardly anything was left of the lease", guarded.Done(), lease/2-50*time.Millisecond)
		_ = l.Unlock(ctx) // the lease may be over
	})
}

// A hook of the Redis client panics behind a request: the caller of the lock panics with the same value, on
// whichever goroutine the request was sent. Nothing is left in Redis.
func TestHookPanicReachesTheCaller(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	canEnd, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	acquires := map[string]func(l Locker) error{
		"Lock":             func(l Locker) error { return l.Lock(context.Background()) },
		"Lock, ctx ends":   func(l Locker) error { return l.Lock(canEnd) },
		"TryLock(2s)":      func(l Locker) error { _, err := l.TryLock(context.Background(), 2*time.Second, 0); return err },
		"TryLock(0, 1min)": func(l Locker) error { _, err := l.TryLock(canEnd, 0, time.Minute); return err },
	}
	for _, k := range slotLocks {
		for how, acquire := range acquires {
			for _, mode := range []string{"own goroutine", "prompt", "batch"} {
				t.Run(fmt.Sprint(k.name, "/", how, "/", mode), func(t *testing.T) {
					b := newBench(t, s.Addr())
					var panics atomic.Bool
					rdb := testredis.Client(t, s.Addr(), func(o *redis.Options) {
						if mode == "prompt" {
							o.ReadTimeout = 500 * time.Millisecond
						}
					})
					rdb.AddHook(processHook(func(send func() error) error {
						err := send()
						if panics.CompareAndSwap(true, false) {
							panic("a hook")
						}
						return err
					}))
					c := b.clientOn(rdb)
					if mode == "batch" {
						c.engine.Probe().Sender().BatchAll()
					}
					l := k.one(c, b.name)
					b.must(l.Lock(context.Background())) // the scripts are loaded
					b.must(l.Unlock(context.Background()))

					panics.Store(true)
					require.PanicsWithValue(t, "a hook", func() { _ = acquire(l) })
					b.freeSoon()
					testredis.Await(t, "the undo is done, which the next panic is not for", soon, func() bool { return c.engine.Probe().Stats().AtWork == 0 })

					require.NoError(t, acquire(l))
					panics.Store(true)
					require.PanicsWithValue(t, "a hook", func() { _ = l.Unlock(canEnd) })
					b.freeSoon()
				})
			}
		}
	}
}

// A hook that ends the goroutine of a request leaves nothing behind.
func TestHookThatEndsTheGoroutine(t *testing.T) {
	t.Parallel()
	for _, timeout := range []time.Duration{500 * time.Millisecond, 5 * time.Second} {
		for _, verb := range []string{"acquire", "release"} {
			t.Run(fmt.Sprint(timeout, verb), func(t *testing.T) {
				b := newBench(t, testredis.Start(t).Addr())
				rdb := testredis.Client(t, b.addr, func(o *redis.Options) { o.ReadTimeout = timeout })
				var exits atomic.Bool
				rdb.AddHook(processHook(func(send func() error) error {
					err := send()
					if exits.CompareAndSwap(true, false) {
						runtime.Goexit()
					}
					return err
				}))
				l := b.clientOn(rdb).NewLock(b.name)
				ctx := WithOwner(context.Background())
				if verb == "release" {
					b.must(l.Lock(ctx))
				}
				exits.Store(true)
				done := make(chan struct{})
				go func() {
					defer close(done)
					if verb == "acquire" {
						assert.ErrorIs(t, l.Lock(ctx), send.ErrHookExited)
					} else {
						assert.ErrorIs(t, l.Unlock(ctx), send.ErrHookExited)
					}
				}()
				await(b, "the goroutine ends", done)
				b.freeSoon()
				b.must(l.Lock(ctx))
				b.must(l.Unlock(ctx))
			})
		}
	}
}

// C1 and C6: where answers take longer than a quarter of a second and ctx bounds the wait for them, a section
// costs two requests, and no connection is closed.
func TestContextTimeoutEnabledFarFromRedis(t *testing.T) {
	t.Parallel()
	b := newFaultBenchOn(t, testredis.Start(t))
	for _, timeout := range []time.Duration{900 * time.Millisecond, 5 * time.Second} {
		rdb := b.proxy.Client(func(o *redis.Options) { o.ReadTimeout, o.ContextTimeoutEnabled = timeout, true })
		l := b.bench.clientOn(rdb).NewLock(b.name)
		ctx := context.Background()
		b.must(l.Lock(ctx)) // there is a connection
		b.must(l.Unlock(ctx))
		b.proxy.Latency(150 * time.Millisecond)
		dials := rdb.PoolStats().Misses
		before := b.scriptRuns()
		b.must(l.Lock(ctx))
		b.must(l.Unlock(ctx))
		assert.Equal(t, 2, b.scriptRuns()-before, "requests with a read timeout of %v", timeout)
		assert.Equal(t, dials, rdb.PoolStats().Misses, "new connections with a read timeout of %v", timeout)
		b.proxy.Latency(0)
	}
}

// A TryLock that does not wait gives up a Redis that does not answer within a moment, as one with a short wait does.
// What Redis runs later is undone.
func TestTryLockGivesUpASilentRedisSoon(t *testing.T) {
	t.Parallel()
	for _, timeout := range []time.Duration{time.Second, 5 * time.Second} {
		t.Run(timeout.String(), func(t *testing.T) {
			onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
				ctx := context.Background()
				c := b.clientOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = timeout }), WithNodeTimeout(send.MinWait))
				l := k.one(c, b.name)
				b.must(l.Do(ctx, func(context.Context) error { return nil })) // Redis has answered
				for _, lease := range []time.Duration{0, time.Minute} {
					b.proxy.BlackHole(true)
					start := time.Now()
					ok, err := l.TryLock(ctx, 0, lease)
					assert.Less(b, time.Since(start), 2*time.Second+send.Slack, "TryLock with a lease of %v: %v", lease, err)
					assert.Error(b, err)
					assert.False(b, ok)
					b.proxy.BlackHole(false)
					b.freeSoon()
				}
			})
		})
	}
}

// A Redis that is slow has the time to answer yes or no, also to a TryLock that does not wait.
func TestTryLockWaitsForASlowRedis(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := WithOwner(context.Background())
		l, rival := k.one(b.patientClient(), b.name), k.rival(b.direct, b.name)
		b.must(l.Do(ctx, func(context.Context) error { return nil })) // there are connections
		b.proxy.Latency(150 * time.Millisecond)
		try := func(free bool) bool {
			ok, err := l.TryLock(ctx, 0, 0)
			for tries := 0; errors.Is(err, engine.ErrNoAnswer) && tries < 3; tries++ { // the machine is very busy
				if free {
					b.freeSoon() // it may have been taken, and not given back yet
				}
				ok, err = l.TryLock(ctx, 0, 0)
			}
			b.must(err)
			return ok
		}
		assert.True(b, try(true))
		b.must(l.Unlock(ctx))
		b.must(rival.Lock(ctx))
		assert.False(b, try(false))
		b.must(rival.Unlock(ctx))
	})
}
