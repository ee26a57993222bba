package relock

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
)

// aboutASecond is how long a connection that hangs may delay a call (L7), on a machine that is busy.
const aboutASecond = 3500 * time.Millisecond

// patientClient goes through the proxy with the defaults of go-redis: it waits for an answer for five seconds.
func (b *faultBench) patientClient(opts ...Option) *Client {
	b.Helper()
	return b.clientOn(b.proxy.Client(), opts...)
}

// L7: a connection that hangs delays Lock, Unlock and a renewal by about a second, whether
// the request is lost on it or the answer.
func TestHungConnectionDelaysByASecond(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]testredis.Fault{"request": testredis.HoldRequest, "answer": testredis.StallReply} {
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

// S3: a request that hung, was sent again over another connection, and runs when its lock was given
// back long ago, leaves nothing behind.
func TestHungRequestThatRunsLateIsUndone(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		l := k.one(b.patientClient(), b.name)
		next := k.rival(b.direct, b.name)
		takes := b.proxy.On(k.takes, testredis.HoldRequest)
		b.must(l.Lock(ctx))
		b.must(l.Unlock(ctx))
		takes.Release()
		<-takes.Fired()
		time.Sleep(50 * time.Millisecond) // the request has gone to Redis by then, or a little later
		testredis.Await(b, "the lock is free again", soon, func() bool { return len(b.records()) == 0 })
		b.tries(next, true)
		b.must(next.Unlock(ctx))
	})
}

// S3: an acquire that is given up while its answer hangs is undone at once, over another connection.
func TestGivenUpAcquireIsUndoneAtOnce(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		l := k.one(b.patientClient(), b.name)
		next := k.rival(b.direct, b.name)
		takes := b.proxy.On(k.takes, testredis.StallReply)
		ctx, cancel := context.WithCancel(context.Background())
		got := make(chan error, 1)
		go func() { got <- l.Lock(ctx) }()
		<-takes.Fired() // Redis has run the request
		cancel()
		b.mustBe(await(b.bench, "Lock returns", got), context.Canceled)
		start := time.Now()
		testredis.Await(b, "the lock is free again", soon, func() bool { return len(b.records()) == 0 })
		assert.Less(b, time.Since(start), aboutASecond)
		b.tries(next, true)
		b.must(next.Unlock(context.Background()))
	})
}

// L7: an Unlock that had to give up goes on in the background until the record is gone.
func TestUnlockGoesOnInTheBackground(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		l := k.one(b.patientClient(), b.name)
		b.must(l.Lock(ctx))
		dropped := b.proxy.On(k.gives, testredis.DropRequest).Times(testredis.Always)
		undone := b.proxy.On(k.undoes, testredis.DropRequest).Times(testredis.Always)
		start := time.Now()
		err := l.Unlock(ctx)
		require.Error(b, err)
		require.NotErrorIs(b, err, ErrNotHeld)
		assert.Less(b, time.Since(start), unlockTime+2*time.Second)
		require.NotEmpty(b, b.records(), "the record is gone although no release arrived")
		dropped.Release()
		undone.Release()
		testredis.Await(b, "the record is gone", 4*time.Second, func() bool { return len(b.records()) == 0 })
	})
}

// processHook is a hook of a Redis client around single commands and pipelines.
type processHook func(send func() error) error

func (processHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h processHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if name := cmd.Name(); name != "evalsha" && name != "eval" {
			return next(ctx, cmd)
		}
		return h(func() error { return next(ctx, cmd) })
	}
}

func (h processHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if name := cmds[0].Name(); name != "evalsha" && name != "eval" {
			return next(ctx, cmds)
		}
		return h(func() error { return next(ctx, cmds) })
	}
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
	for _, k := range clusterLocks[:6] {
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
						c.engine.sender.BatchAll()
					}
					l := k.one(c, b.name)
					b.must(l.Lock(context.Background())) // the scripts are loaded
					b.must(l.Unlock(context.Background()))

					panics.Store(true)
					require.PanicsWithValue(t, "a hook", func() { _ = acquire(l) })
					b.freeSoon()
					testredis.Await(t, "the undo is done, which the next panic is not for", soon, func() bool { return c.engine.atWork() == 0 })

					require.NoError(t, acquire(l))
					panics.Store(true)
					require.PanicsWithValue(t, "a hook", func() { _ = l.Unlock(canEnd) })
					b.freeSoon()
				})
			}
		}
	}
}

// freeSoon makes sure that nothing but token counters is left in Redis, long before any lease ends.
func (b *bench) freeSoon() {
	b.Helper()
	fb := &faultBench{bench: b}
	testredis.Await(b, "nothing is left of the lock", soon, func() bool { return len(fb.records()) == 0 })
}

// An undo that meets a hook which panics, or ends its goroutine, is sent again: neither the lock nor the
// place of a waiter stays.
func TestUndoIsSentAgainAfterAHook(t *testing.T) {
	for name, fault := range map[string]func(){"panics": func() { panic("a hook") }, "exits": runtime.Goexit} {
		for _, timeout := range []time.Duration{500 * time.Millisecond, 5 * time.Second} {
			t.Run(fmt.Sprint(name, timeout), func(t *testing.T) {
				onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
					if k.red {
						return // its nodes are asked through the Clients beside it
					}
					rdb := b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = timeout })
					var faults atomic.Int64
					rdb.AddHook(processHook(func(send func() error) error {
						if faults.Add(-1) >= 0 {
							fault()
						}
						return send()
					}))
					l := k.one(b.bench.clientOn(rdb), b.name)
					takes := b.proxy.On(k.takes, testredis.DelayReply(300*time.Millisecond))
					ctx, cancel := context.WithCancel(context.Background())
					got := make(chan error, 1)
					go func() { got <- l.Lock(ctx) }()
					<-takes.Fired()
					faults.Store(4)
					cancel()
					b.mustBe(await(b.bench, "Lock returns", got), context.Canceled)
					b.freeSoon()

					faults.Store(0)
					gone := make(chan struct{})
					go func() { // a hook may end it
						defer close(gone)
						defer func() { _ = recover() }()
						b.must(l.Lock(context.Background()))
						faults.Store(3)
						_ = l.Unlock(context.Background())
					}()
					await(b.bench, "Unlock ends", gone)
					b.freeSoon()
				})
			})
		}
	}
}

// A hook that panics behind a renewal is a renewal that failed, and no end of the process.
func TestHookPanicBehindARenewal(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	rdb := testredis.Client(t, b.addr)
	var held, panicked atomic.Bool
	rdb.AddHook(processHook(func(send func() error) error {
		if held.Load() && panicked.CompareAndSwap(false, true) {
			panic("a hook")
		}
		return send()
	}))
	l := b.clientOn(rdb, WithWatchdogTimeout(time.Second)).NewLock(b.name)
	ctx := context.Background()
	b.must(l.Lock(ctx))
	guarded, err := l.Guard(ctx)
	b.must(err)
	held.Store(true)
	stays(b, "the lock is lost", guarded.Done(), 2*time.Second)
	require.True(t, panicked.Load())
	b.must(l.Unlock(ctx))
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

// scriptRuns is how many scripts the server has run.
func (b *bench) scriptRuns() int {
	b.Helper()
	stats, err := b.rdb.Info(context.Background(), "commandstats").Result()
	b.must(err)
	var runs int
	for _, line := range strings.Split(stats, "\r\n") {
		var n int
		if _, err := fmt.Sscanf(line, "cmdstat_evalsha:calls=%d,", &n); err == nil {
			runs = n
		}
	}
	return runs
}

// The answer to any try counts, also to the first one of several: a Redis that takes longer than a second
// for each answer is slow, and not gone.
func TestAnswerToAnEarlierTryCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		e.redis.latency = 800 * time.Millisecond
		start := time.Now()
		e.lock(1)
		require.Equal(t, 1600*time.Millisecond, time.Since(start))
		e.unlock(1)
		require.Equal(t, 3200*time.Millisecond, time.Since(start))
		time.Sleep(10 * time.Second)
		require.Empty(t, e.redis.holder("x"))
	})
}

// S3: an earlier try of a Lock is answered while the Unlock is under way. To undo that try would take the record away
// before the release has run, and the Unlock would call the lock lost.
func TestOrphanOfALockDoesNotOvertakeItsUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		slow := map[string]time.Duration{"acquire": 1500 * time.Millisecond, "release": 900 * time.Millisecond}
		e.redis.fault = func(verb string) fakeFault {
			late := slow[verb]
			delete(slow, verb) // only the first one
			return fakeFault{late: late}
		}
		e.lock(1)
		require.NoError(t, e.unlockErr(1))
		time.Sleep(10 * time.Second)
		require.Empty(t, e.redis.holder("x"))
	})
}
