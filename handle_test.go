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

func TestDurationsAreRoundedUpToMilliseconds(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		time.Millisecond: 1, time.Millisecond + 1: 2, 2*time.Millisecond - 1: 2, 30 * time.Second: 30000,
		1<<63 - 1: 9223372036854,
	} {
		assert.Equal(t, want, milliseconds(d), "milliseconds of %v", d)
	}
	for ms, want := range map[int64]time.Duration{-2: -2 * time.Millisecond, 0: 0, 1: time.Millisecond, 1 << 62: 1<<63 - 1} {
		assert.Equal(t, want, fromMilliseconds(ms), "duration of %d ms", ms)
	}
}

// Names with a brace are used unchanged.
func TestNamesWithBracesAreKept(t *testing.T) {
	for name, want := range map[string]string{
		"x": "p:{x}", "a:b": "p:{a:b}", "{x}": "p:{x}", "a{x}b": "p:a{x}b", "x{": "p:x{", "x}": "p:{x}}",
	} {
		assert.Equal(t, want, prefixName("p", name), name)
	}
}

// On a Cluster all keys of a lock must be in one slot.
func TestClusterKeysOfALockShareASlot(t *testing.T) {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer rdb.Close()
	c, err := New(rdb)
	require.NoError(t, err)
	defer c.Close()
	for name, good := range map[string]bool{
		"x": true, "{x}": true, "a{x}b": true, "a:b": true, "x}": false, "x{": false, "{}x": false, "}x": false, "{x}{y}": true,
	} {
		bad := c.NewLock(name, Fenced()).bad
		assert.Equal(t, good, bad == nil, "%s fenced: %v", name, bad)
		bad = c.NewLock(name).bad // of one key, and a channel
		assert.Equal(t, good, bad == nil, "%s: %v", name, bad)
	}
}

func TestUnlockTakesAGuardedContextThatHasEnded(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		l := b.client().NewLock(b.name)
		ctx, cancel := context.WithCancel(context.Background())
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		cancel()
		assert.Error(t, guarded.Err(), "the guard outlives its parent")
		b.must(l.Unlock(guarded))
		b.isLocked(l, false)
	})
}

// L7: a connection that hangs delays Lock, Unlock and a renewal by about a second, whether the request or the answer is
// lost on it.
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

// At least half of an explicit lease remains when LockLease returns, for every lock type, although the first answer was
// late.
func TestLateAnswerLeavesHalfOfTheLease(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		const lease = time.Second
		l, ctx := k.one(b.patientClient(), b.name), ContextWithOwner(context.Background())
		rule := b.proxy.On(k.takes, testredis.DelayReply(870*time.Millisecond))
		b.must(l.LockLease(ctx, lease))
		assert.Positive(b, rule.Count())
		guarded, err := l.Guard(ctx)
		b.must(err)
		stays(b, "hardly anything was left of the lease", guarded.Done(), lease/2-50*time.Millisecond)
		_ = l.Unlock(ctx) // the lease may have expired
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
					testredis.Await(
						t,
						"the undo is done, which the next panic is not for",
						soon,
						func() bool { return c.engine.Probe().Stats().AtWork == 0 },
					)

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
				ctx := ContextWithOwner(context.Background())
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

// C1 and C6: if answers take longer than a quarter of a second and ctx limits the wait for them, a critical section
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

// A TryLock without a wait gives up after a moment if Redis does not answer, like one with a short wait. Requests that
// Redis runs later are rolled back.
func TestTryLockGivesUpASilentRedisSoon(t *testing.T) {
	t.Parallel()
	for _, timeout := range []time.Duration{time.Second, 5 * time.Second} {
		t.Run(timeout.String(), func(t *testing.T) {
			onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
				ctx := context.Background()
				c := b.clientOn(
					b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = timeout }),
					WithRedLockNodeTimeout(send.MinWait),
				)
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

// A slow Redis has time to answer, even to a TryLock without a wait.
func TestTryLockWaitsForASlowRedis(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := ContextWithOwner(context.Background())
		l, rival := k.one(b.patientClient(), b.name), k.rival(b.direct, b.name)
		b.must(l.Do(ctx, func(context.Context) error { return nil })) // there are connections
		b.proxy.Latency(150 * time.Millisecond)
		try := func(free bool) bool {
			ok, err := l.TryLock(ctx, 0, 0)
			for tries := 0; errors.Is(err, engine.ErrNoAnswer) && tries < 3; tries++ { // the machine is very busy
				if free {
					b.freeSoon() // it may have been acquired, and not released yet
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

// S3: a request that hung, was sent again over another connection, and runs after its lock was released, leaves nothing
// behind.
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

// S3: an acquire that is given up while its answer hangs is rolled back at once, over another connection.
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

// L7: the release of an Unlock that had to give up is retried in the background until the record is deleted.
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
		assert.Less(b, time.Since(start), engine.UnlockTime+2*time.Second)
		require.NotEmpty(b, b.records(), "the record is gone although no release arrived")
		dropped.Release()
		undone.Release()
		testredis.Await(b, "the record is gone", 4*time.Second, func() bool { return len(b.records()) == 0 })
	})
}

// A rollback that meets a hook which panics, or ends its goroutine, is sent again: neither the lock nor the entry of a
// waiter stays.
func TestUndoIsSentAgainAfterAHook(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(){"panics": func() { panic("a hook") }, "exits": runtime.Goexit} {
		for _, timeout := range []time.Duration{500 * time.Millisecond, 5 * time.Second} {
			t.Run(fmt.Sprint(name, timeout), func(t *testing.T) {
				onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
					if k.red {
						return // its nodes are asked through the other Clients
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

// An error that ends a wait names the goroutine or owner of this process that holds the lock.
func TestErrorThatEndsAWaitNamesTheHolderHere(t *testing.T) {
	t.Parallel()
	rw := func(half func(*RWLock) Locker) lockMaker {
		return func(c *Client, name string) Locker { return half(c.NewRWLock(name)) }
	}
	read := rw(func(l *RWLock) Locker { return l.Read() })
	write := rw(func(l *RWLock) Locker { return l.Write() })
	s := testredis.Start(t)
	for kind, of := range map[string]struct {
		holds, waits lockMaker
		says         string
	}{
		"lock":                     {newPlainLock, newPlainLock, "%v of this process holds it"},
		"fair":                     {newFairLock, newFairLock, "%v of this process holds it"},
		"write behind write":       {write, write, "%v of this process holds it"},
		"write behind read":        {read, write, "%v of this process holds the read lock"},
		"read behind write":        {write, read, "%v of this process holds the write lock"},
		"component of a MultiLock": {newPlainLock, newMultiLock, "%v of this process holds it"},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, s.Addr())
			c := b.client()
			ctx := context.Background()
			holder, waiter := ContextWithOwner(ctx), ContextWithOwner(ctx)
			held, awaited := of.holds(c, b.name), of.waits(c, b.name)
			require.NoError(t, held.Lock(holder))
			deadline, cancel := context.WithTimeout(waiter, time.Second)
			defer cancel()
			err := awaited.Lock(deadline)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			says := "context deadline exceeded: "
			if kind == "component of a MultiLock" {
				says += fmt.Sprintf("%q: ", b.name)
			}
			assert.Equal(
				t,
				fmt.Sprintf("relock: lock %s: %s"+of.says, shortName(awaited.Name()), says, engine.OwnerOf(holder)),
				err.Error(),
			)
			ok, err := awaited.TryLock(waiter, 500*time.Millisecond, 0)
			assert.False(t, ok)
			assert.NoError(t, err, "a held lock is no error of TryLock")
			require.NoError(t, held.Unlock(holder))
		})
	}
}

// The error of a MultiLock names the lock that blocks it, even if one script acquires all of its locks.
func TestErrorThatEndsAWaitOfAMultiLockNamesTheLockInTheWay(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	c, other := b.client(), b.client()
	b.must(other.NewLock(b.name+"-2").LockLease(ctx, time.Minute))
	deadline, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	err := c.NewMultiLock(c.NewLock(b.name+"-1"), c.NewLock(b.name+"-2"), c.NewFairLock(b.name+"-3")).Lock(deadline)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Regexp(
		t,
		`^relock: lock "[^"]*": context deadline exceeded: "`+b.name+`-2": another process \(or Client\) holds it, and its lease expires in (5\d(\.\d)?|1m0)s$`,
		err.Error(),
	)

	b.must(other.NewLock(b.name + "-2").Unlock(ctx))
}

// The error of a RedLock states once that other owners hold too many of its locks.
func TestErrorThatEndsAWaitOfARedLockSaysOthersHoldIt(t *testing.T) {
	red := newRedBench(t)
	ctx := context.Background()
	held, waits := red.lock(), red.lock()
	red.must(held.Lock(ctx))
	short, end := context.WithTimeout(ContextWithOwner(ctx), 2*time.Second)
	defer end()
	err := waits.Lock(short)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Regexp(
		t,
		`^relock: lock "[^"]*": context deadline exceeded: other owners hold too many of its locks$`,
		err.Error(),
	)
	red.must(held.Unlock(ctx))
}
