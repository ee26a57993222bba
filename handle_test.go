package relock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
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
	for ms, want := range map[int64]time.Duration{-2: -2 * time.Millisecond, 0: 0, 1: time.Millisecond,
		1 << 62: 1<<63 - 1} {
		assert.Equal(t, want, fromMilliseconds(ms), "duration of %d ms", ms)
	}
}

// Names with a brace are used unchanged.
func TestNamesWithBracesAreKept(t *testing.T) {
	for name, want := range map[string]string{
		"x": "p:{x}", "a:b": "p:{a:b}", "{x}": "p:{x}", "a{x}b": "p:a{x}b", "x{": "p:x{", "x}": "p:{x}}",
	} {
		assert.Equal(t, want, record.PrefixName("p", name), name)
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
		"x": true, "{x}": true, "a{x}b": true, "a:b": true, "x}": false, "x{": false, "{}x": false, "}x": false,
		"{x}{y}": true,
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
				assert.Less(b, time.Since(start), testredis.Scale(start, aboutASecond), "Lock")
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
				assert.Less(b, time.Since(start), testredis.Scale(start, aboutASecond), "Unlock")
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
						"the rollback is done, which the next panic is not for",
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
					most := testredis.Scale(start, 2*time.Second+send.Slack)
					assert.Less(b, time.Since(start), most, "TryLock with a lease of %v: %v", lease, err)
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
func TestHungRequestThatRunsLateIsRolledBack(t *testing.T) {
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
func TestGivenUpAcquireIsRolledBackAtOnce(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		c := b.patientClient()
		l := k.one(c, b.name)
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
		assert.Less(b, time.Since(start), testredis.Scale(start, aboutASecond))
		b.tries(next, true)
		b.must(next.Unlock(context.Background()))
		// It ends with the read timeout. Close would not wait for it for much longer.
		testredis.Await(b, "the hung request has ended", soon, func() bool { return c.engine.Probe().Stats().AtWork == 0 })
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
		rolledBack := b.proxy.On(k.rollsBack, testredis.DropRequest).Times(testredis.Always)
		start := time.Now()
		err := l.Unlock(ctx)
		require.Error(b, err)
		require.NotErrorIs(b, err, ErrNotHeld)
		assert.Less(b, time.Since(start), testredis.Scale(start, engine.UnlockTime+2*time.Second))
		require.NotEmpty(b, b.records(), "the record is gone although no release arrived")
		dropped.Release()
		rolledBack.Release()
		testredis.Await(b, "the record is gone", 4*time.Second, func() bool { return len(b.records()) == 0 })
	})
}

// A rollback that meets a hook which panics, or ends its goroutine, is sent again: neither the lock nor the entry of a
// waiter stays.
func TestRollbackIsSentAgainAfterAHook(t *testing.T) {
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
func TestErrorThatEndsAWaitOfAMultiLockNamesTheLockThatBlocks(t *testing.T) {
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
		`^relock: lock "[^"]*": context deadline exceeded: "`+b.name+`-2": another process \(or Client\) holds it, and `+
			`its lease expires in (5\d(\.\d)?|1m0)s$`,
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

// A watched hold is one that another Client is to release by force.
type watched struct {
	guarded context.Context
	forced  Locker                          // of the other Client
	release func(ctx context.Context) error // by the holder
}

// watch has l held by a new owner.
func (b *bench) watch(l, forced Locker, lock func(l Locker, owner context.Context) error) watched {
	b.Helper()
	owner := ContextWithOwner(context.Background())
	b.must(lock(l, owner))
	guarded, err := l.Guard(owner)
	b.must(err)
	return watched{guarded, forced, func(context.Context) error { return l.Unlock(owner) }}
}

// hears waits until c has subscribed to its channel, which it does while it has an old hold.
func (b *bench) hears(c *Client) {
	b.Helper()
	testredis.Await(b, "the holder listens", soon, func() bool { return b.hearers(record.ClientChannel(c.ID())) == 1 })
}

// rarely is a watchdog timeout with which no hold is renewed while a test runs.
const rarely = 10 * time.Minute

// A forced release by another Client reaches the holder long before its next renewal, whatever the type of the lock and
// the lease of the hold.
func TestForcedReleaseReachesTheHolder(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		c, other := b.client(WithWatchdogTimeout(rarely)), b.client()
		all := make(map[string]watched)
		for _, kind := range append(slices.Clone(recordLocks), lockKind{name: "multi", one: newMultiLock}) {
			for what, lock := range map[string]func(l Locker, owner context.Context) error{
				"renewed":  func(l Locker, owner context.Context) error { return l.Lock(owner) },
				"explicit": func(l Locker, owner context.Context) error { return l.LockLease(owner, time.Hour) },
			} {
				name := b.name + kind.name + what
				all[kind.name+", "+what] = b.watch(kind.one(c, name), kind.one(other, name), lock)
			}
		}
		plain := func(l Locker, owner context.Context) error { return l.Lock(owner) }
		name := b.name + "last"
		all["in its last lease"] = b.watch(c.NewLock(name, MaxHold(time.Hour/10)), other.NewLock(name), plain)
		name = b.name + "part"
		all["a part of a MultiLock"] = b.watch(c.NewMultiLock(c.NewLock(name), c.NewLock(name+"2")), other.NewLock(name), plain)
		for i, n := range []int{1, 2, 3} {
			s, owner := c.NewSemaphore(b.name+"several", 10), other.NewSemaphore(b.name+"several", 10)
			h, err := s.AcquireN(ctx, n)
			b.must(err)
			all[fmt.Sprintf("%d of several permits", n)] = watched{h.Context(), owner, h.Release}
			if i > 0 { // one ForceUnlock releases all permits
				all[fmt.Sprintf("%d of several permits", n)] = watched{h.Context(), nil, h.Release}
			}
		}
		b.hears(c)

		began := time.Now()
		for what, w := range all {
			if w.forced != nil {
				freed, err := w.forced.ForceUnlock(ctx)
				require.NoError(t, err, what)
				require.True(t, freed, what)
			}
		}
		for what, w := range all {
			await(b, what+" learns of the release", w.guarded.Done())
			assert.ErrorIs(t, context.Cause(w.guarded), ErrLockLost, what)
			assert.ErrorIs(t, w.release(ctx), ErrLockLost, what)
		}
		assert.Less(t, time.Since(began), rarely/10)
		b.forget() // the other lock of the MultiLock
	})
}

// The same for a RedLock, whose locks are released one after the other.
func TestForcedReleaseReachesTheHolderOfARedLock(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Mini(t).Addr(), testredis.Mini(t).Addr(), testredis.Mini(t).Addr())
	b.opts = []Option{WithRedLockNodeTimeout(soon)}
	ctx := context.Background()
	l := newRedLock(b.client(WithWatchdogTimeout(rarely)), b.name)
	w := b.watch(l, newRedLock(b.client(), b.name), func(l Locker, owner context.Context) error { return l.Lock(owner) })
	for i, node := range b.nodes {
		testredis.Await(b, fmt.Sprint("listens at node ", i), soon, func() bool {
			return len(node.PubSubChannels(ctx, record.ClientChannel("*")).Val()) == 1
		})
	}
	freed, err := w.forced.ForceUnlock(ctx)
	b.must(err)
	assert.True(t, freed)
	await(b, "the holder learns of the release", w.guarded.Done())
	b.mustBe(w.release(ctx), ErrLockLost)
}

// After a reconnect the holder listens again.
func TestForcedReleaseReachesTheHolderAfterAReconnect(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	c := b.client(WithWatchdogTimeout(rarely))
	w := b.watch(c.NewLock(b.name), b.client().NewLock(b.name), func(l Locker, owner context.Context) error { return l.Lock(owner) })
	for range 3 {
		b.hears(c)
		b.must(b.rdb.Do(ctx, "client", "kill", "type", "pubsub").Err())
		testredis.Await(b, "the connection is closed", soon, func() bool {
			list, err := b.rdb.Do(ctx, "client", "list", "type", "pubsub").Text()
			return err == nil && strings.Count(list, "\n") <= 1
		})
	}
	b.hears(c)
	_, err := w.forced.ForceUnlock(ctx)
	b.must(err)
	// A connection that has been cut may be replaced twice, and the hint is lost if it was sent in between. So it is sent
	// until it is heard.
	testredis.Await(b, "the holder learns of the release", soon, func() bool {
		b.must(b.rdb.Publish(ctx, record.ClientChannel(c.ID()), "check "+b.name).Err())
		return w.guarded.Err() != nil
	})
	b.mustBe(w.release(ctx), ErrLockLost)
}

// A release in the moment in which the connection of the holder is replaced reaches it, too: no hint does.
func TestForcedReleaseDuringAReconnectReachesTheHolder(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	c := b.client(WithWatchdogTimeout(rarely))
	for n := range 3 {
		name := fmt.Sprint(b.name, n)
		w := b.watch(c.NewLock(name), b.client().NewLock(name), func(l Locker, owner context.Context) error {
			return l.Lock(owner)
		})
		b.hears(c)
		b.must(b.rdb.Do(ctx, "client", "kill", "type", "pubsub").Err())
		_, err := w.forced.ForceUnlock(ctx)
		b.must(err)
		await(b, "the holder learns of the release", w.guarded.Done())
		b.mustBe(w.release(ctx), ErrLockLost)
	}
}

// A client that may publish on the channel of a Client can make it check a lock once a second, and nothing else: no
// hold ends, and no other message has an effect.
func TestForgedHintsEndNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	c := b.client(WithWatchdogTimeout(rarely))
	lock := func(l Locker, owner context.Context) error { return l.Lock(owner) }
	w := b.watch(c.NewLock(b.name), nil, lock)
	explicit := b.watch(c.NewLock(b.name+"-2"), nil, func(l Locker, owner context.Context) error { return l.LockLease(owner, rarely/2) })
	left := b.rdb.PTTL(ctx, b.name+"-2").Val()
	b.hears(c)
	publish := func(texts ...string) {
		for range 200 {
			for _, text := range texts {
				b.must(b.rdb.Publish(ctx, record.ClientChannel(c.ID()), text).Err())
			}
		}
	}
	runs := b.scriptRuns()
	publish("0", "1", "", b.name, "check", "check "+b.name+"x", "check "+b.name+" ", "grant "+b.name)
	assert.Equal(t, runs, b.scriptRuns(), "requests after messages that name no lock of this Client")
	began := time.Now()
	publish("check "+b.name, "check "+b.name+"-2")
	testredis.Await(b, "both locks are checked", soon, func() bool { return b.scriptRuns() >= runs+2 })
	assert.LessOrEqual(t, b.scriptRuns()-runs, 2*(2+int(time.Since(began)/time.Second)), "requests after %v", time.Since(began))
	assert.NoError(t, w.guarded.Err())
	assert.NoError(t, explicit.guarded.Err())
	assert.LessOrEqual(t, b.rdb.PTTL(ctx, b.name+"-2").Val(), left, "the explicit lease is not longer")
	b.must(w.release(ctx))
	b.must(explicit.release(ctx))
}

// Any number of holds that last longer than a second have one subscription, which Close ends.
func TestOldHoldsShareOneSubscription(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	many, at := full(1_000, 20_000), 64
	// Each of those that acquire at the same time has a connection.
	c := b.clientOn(testredis.Client(t, b.addr, func(o *redis.Options) { o.PoolSize = 2 * at }))
	var all sync.WaitGroup
	for from := range at {
		waitgroup.Go(&all, func() {
			for i := from; i < many; i += at {
				assert.NoError(t, c.NewLock(fmt.Sprint(b.name, "-", i)).Lock(ContextWithOwner(ctx)))
			}
		})
	}
	all.Wait()
	b.hears(c)
	time.Sleep(2 * time.Second) // all of them are old
	assert.Equal(t, []string{record.ClientChannel(c.ID())}, b.rdb.PubSubChannels(ctx, "*").Val())
	list, err := b.rdb.Do(ctx, "client", "list", "type", "pubsub").Text()
	b.must(err)
	assert.Equal(t, 1, strings.Count(list, "\n"), "subscription connections")
	b.must(c.Close())
	testredis.Await(b, "the subscription has ended", soon, func() bool { return b.hearers(record.ClientChannel(c.ID())) == 0 })
	b.must(b.rdb.FlushDB(ctx).Err())
}

// A script of a forced release answers which clients of this package have lost a hold, each once. Java services are not
// among them, because they do not listen.
func TestForcedReleaseNamesTheClients(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		c := b.client()
		one, two, java := c.ID(), b.client().ID(), b.client().ID()
		s := c.NewSemaphore(b.name, 5)
		end := float64(time.Now().Add(time.Hour).UnixMilli())
		hash := func(values ...any) func() { return func() { b.must(b.rdb.HSet(ctx, b.name, values...).Err()) } }
		for what, row := range map[string]struct {
			record func()
			force  call
			want   []string
		}{
			"a lock":           {hash(one+":1:01", 1), c.NewLock(b.name).record.Force(), []string{one}},
			"a fair lock":      {hash(one+":1:01", 1), c.NewFairLock(b.name).record.Force(), []string{one}},
			"a lock of Java":   {hash(java+":1", 1), c.NewLock(b.name).record.Force(), nil},
			"a free lock":      {func() {}, c.NewLock(b.name).record.Force(), nil},
			"a free fair lock": {func() {}, c.NewFairLock(b.name).record.Force(), nil},
			"readers": {
				hash("mode", "read", one+":1:01", 1, one+":2:02", 1, two+":1:03", 2, java+":1", 1),
				c.NewRWLock(b.name).Read().record.Force(), []string{one, two},
			},
			"readers beside a writer": {
				hash("mode", "write", one+":1:01:write", 1, two+":1:03", 2),
				c.NewRWLock(b.name).Read().record.Force(), []string{two},
			},
			"a writer": {
				hash("mode", "write", one+":1:01:write", 1, two+":1:03", 2),
				c.NewRWLock(b.name).Write().record.Force(), []string{one},
			},
			"a writer of Java": {
				hash("mode", "write", java+":1:write", 1), c.NewRWLock(b.name).Write().record.Force(), nil,
			},
			"a read/write lock, released as a plain lock": {
				hash("mode", "read", one+":1:01", 1, two+":1:03", 2), c.NewLock(b.name).record.Force(), []string{one, two},
			},
			"a semaphore": {
				func() {
					b.must(b.rdb.Set(ctx, b.name, 1, 0).Err())
					for _, id := range []string{one + ":1:01", one + ":2:02", two + ":1:01", "0123456789abcdef"} {
						b.must(b.rdb.ZAdd(ctx, record.PermitsKey(b.name), redis.Z{Score: end, Member: id}).Err())
					}
				},
				s.handle.record.Force(), []string{one, two},
			},
		} {
			b.must(b.rdb.FlushDB(ctx).Err())
			row.record()
			// A release of what was seen, which is nothing here, names no holder.
			none := forSeen(row.force, []string{java + ":9"}, "")
			r, clients, err := send.ParseForced(send.NewRedis(b.rdb, send.Synced{}).Run(ctx, none, false))
			b.must(err)
			assert.Zero(t, r[0], what)
			assert.Empty(t, clients, what)
			r, clients, err = send.ParseForced(send.NewRedis(b.rdb, send.Synced{}).Run(ctx, row.force, false))
			b.must(err)
			assert.Equal(t, what != "a free lock" && what != "a free fair lock", r[0] == 1, what)
			assert.ElementsMatch(t, row.want, clients, what)
		}
		b.must(b.rdb.FlushDB(ctx).Err())
	})
}
