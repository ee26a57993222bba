package locks

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
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
		assert.Equal(t, want, send.Milliseconds(d), "milliseconds of %v", d)
	}
	for ms, want := range map[int64]time.Duration{-2: -2 * time.Millisecond, 0: 0, 1: time.Millisecond,
		1 << 62: 1<<63 - 1} {
		assert.Equal(t, want, send.FromMilliseconds(ms), "duration of %d ms", ms)
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

func TestUnlockTakesAGuardedContextThatHasEnded(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		l := b.Client().NewLock(b.LockName)
		ctx, cancel := context.WithCancel(ctx)
		b.Must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.Must(err)
		cancel()
		assert.Error(t, guarded.Err(), "the guard outlives its parent")
		b.Must(l.Unlock(guarded))
		b.IsLocked(l, false)
	})
}

// L7: a connection that hangs delays Lock, Unlock and a renewal by about a second, whether the request or the answer is
// lost on it.
func TestHungConnectionDelaysByASecond(t *testing.T) {
	t.Parallel()
	faults := map[string]testredis.Fault{"answer": testredis.StallReply}
	if locktest.Full(0, 1) > 0 {
		faults["request"] = testredis.HoldRequest
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			locktest.OnFaultLocks(t, locktest.OneRedis(t), func(b *locktest.FaultBench, k locktest.FaultLock) {
				l := k.One(b.PatientClient(WithWatchdogTimeout(6*time.Second)), b.LockName)
				next := k.Rival(b.Direct, b.LockName)

				takes := b.Proxy.On(k.Takes, fault)
				start := time.Now()
				b.Must(l.Lock(ctx))
				assert.Less(b, time.Since(start), testredis.Scale(start, locktest.AboutASecond), "Lock")
				<-takes.Fired()

				renews := b.Proxy.On(k.Renews, fault)
				guarded, err := l.Guard(ctx)
				b.Must(err)
				select {
				case <-renews.Fired():
				case <-guarded.Done():
					b.Fatal("the lock is lost before it is renewed")
				}
				locktest.Stays(b, "the lock is lost", guarded.Done(), 5*time.Second)

				gives := b.Proxy.On(k.Gives, fault)
				start = time.Now()
				b.Must(l.Unlock(ctx))
				assert.Less(b, time.Since(start), testredis.Scale(start, locktest.AboutASecond), "Unlock")
				<-gives.Fired()
				b.Tries(next, true)
				b.Must(next.Unlock(ctx))
			})
		})
	}
}

// At least half of an explicit lease remains when LockLease returns, for every lock type, although the first answer was
// late.
func TestLateAnswerLeavesHalfOfTheLease(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, locktest.OneRedis(t), func(b *locktest.FaultBench, k locktest.FaultLock) {
		const lease = time.Second
		l, ctx := k.One(b.PatientClient(), b.LockName), ContextWithOwner(ctx)
		rule := b.Proxy.On(k.Takes, testredis.DelayReply(870*time.Millisecond))
		b.Must(l.LockLease(ctx, lease))
		assert.Positive(b, rule.Count())
		guarded, err := l.Guard(ctx)
		b.Must(err)
		locktest.Stays(b, "hardly anything was left of the lease", guarded.Done(), lease/2-50*time.Millisecond)
		_ = l.Unlock(ctx) // the lease may have expired
	})
}

// A hook of the Redis client panics behind a request: the caller of the lock panics with the same value, on
// whichever goroutine the request was sent. Nothing is left in Redis.
func TestHookPanicReachesTheCaller(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	canEnd, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	acquires := map[string]func(l Locker) error{
		"Lock":             func(l Locker) error { return l.Lock(ctx) },
		"Lock, ctx ends":   func(l Locker) error { return l.Lock(canEnd) },
		"TryLock(2s)":      func(l Locker) error { _, err := l.TryLock(ctx, 2*time.Second, 0); return err },
		"TryLock(0, 1min)": func(l Locker) error { _, err := l.TryLock(canEnd, 0, time.Minute); return err },
	}
	for _, k := range locktest.SlotLocks {
		for how, acquire := range acquires {
			for _, mode := range []string{"alone", "batch"} {
				t.Run(fmt.Sprint(k.Name, "/", how, "/", mode), func(t *testing.T) {
					b := locktest.NewBench(t, s.Addr())
					var panics atomic.Bool
					rdb := testredis.Client(t, s.Addr())
					rdb.AddHook(locktest.ProcessHook(func(send func() error) error {
						err := send()
						if panics.CompareAndSwap(true, false) {
							panic("a hook")
						}
						return err
					}))
					c := b.ClientOn(rdb)
					if mode == "batch" {
						locktest.EngineOf(c).Probe().Sender().BatchAll()
					}
					l := k.One(c, b.LockName)
					b.Must(l.Lock(ctx)) // the scripts are loaded
					b.Must(l.Unlock(ctx))

					panics.Store(true)
					require.PanicsWithValue(t, "a hook", func() { _ = acquire(l) })
					b.FreeSoon()
					testredis.Await(
						t,
						"the rollback is done, which the next panic is not for",
						locktest.Soon,
						func() bool { return locktest.EngineOf(c).Probe().Stats().AtWork == 0 },
					)

					require.NoError(t, acquire(l))
					panics.Store(true)
					require.PanicsWithValue(t, "a hook", func() { _ = l.Unlock(canEnd) })
					b.FreeSoon()
				})
			}
		}
	}
}

// A TryLock without a wait gives up after a moment if Redis does not answer, like one with a short wait. Requests that
// Redis runs later are rolled back.
func TestTryLockGivesUpASilentRedisSoon(t *testing.T) {
	t.Parallel()
	for _, timeout := range []time.Duration{time.Second, 5 * time.Second} {
		t.Run(timeout.String(), func(t *testing.T) {
			locktest.OnFaultLocks(t, locktest.OneRedis(t), func(b *locktest.FaultBench, k locktest.FaultLock) {
				c := b.ClientOn(
					b.Proxy.Client(func(o *redis.Options) { o.ReadTimeout = timeout }),
					WithRedLockNodeTimeout(send.MinWait),
				)
				l := k.One(c, b.LockName)
				b.Must(l.Do(ctx, func(context.Context) error { return nil })) // Redis has answered
				for _, lease := range []time.Duration{0, time.Minute} {
					b.Proxy.BlackHole(true)
					start := time.Now()
					ok, err := l.TryLock(ctx, 0, lease)
					most := testredis.Scale(start, 2*time.Second+send.Slack)
					assert.Less(b, time.Since(start), most, "TryLock with a lease of %v: %v", lease, err)
					assert.Error(b, err)
					assert.False(b, ok)
					b.Proxy.BlackHole(false)
					b.FreeSoon()
				}
			})
		})
	}
}

// S3: a request that hung, was sent again over another connection, and runs after its lock was released, leaves nothing
// behind.
func TestHungRequestThatRunsLateIsRolledBack(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, locktest.OneRedis(t), func(b *locktest.FaultBench, k locktest.FaultLock) {
		l := k.One(b.PatientClient(), b.LockName)
		next := k.Rival(b.Direct, b.LockName)
		takes := b.Proxy.On(k.Takes, testredis.HoldRequest)
		b.Must(l.Lock(ctx))
		b.Must(l.Unlock(ctx))
		takes.Release()
		<-takes.Fired()
		time.Sleep(50 * time.Millisecond) // the request has gone to Redis by then, or a little later
		testredis.Await(b, "the lock is free again", locktest.Soon, func() bool { return len(b.Records()) == 0 })
		b.Tries(next, true)
		b.Must(next.Unlock(ctx))
	})
}

// S3: an acquire that is given up while its answer hangs is rolled back at once, over another connection.
func TestGivenUpAcquireIsRolledBackAtOnce(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, locktest.OneRedis(t), func(b *locktest.FaultBench, k locktest.FaultLock) {
		c := b.PatientClient()
		l := k.One(c, b.LockName)
		next := k.Rival(b.Direct, b.LockName)
		takes := b.Proxy.On(k.Takes, testredis.StallReply)
		ctx, cancel := context.WithCancel(ctx)
		got := make(chan error, 1)
		go func() { got <- l.Lock(ctx) }()
		<-takes.Fired() // Redis has run the request
		cancel()
		b.MustBe(locktest.Await(b.Bench, "Lock returns", got), context.Canceled)
		start := time.Now()
		testredis.Await(b, "the lock is free again", locktest.Soon, func() bool { return len(b.Records()) == 0 })
		assert.Less(b, time.Since(start), testredis.Scale(start, locktest.AboutASecond))
		b.Tries(next, true)
		b.Must(next.Unlock(context.Background()))
		// It ends with the read timeout. Close would not wait for it for much longer.
		testredis.Await(b, "the hung request has ended", locktest.Soon, func() bool { return locktest.EngineOf(c).Probe().Stats().AtWork == 0 })
	})
}

// L7: the release of an Unlock that had to give up is retried in the background until the record is deleted.
func TestUnlockGoesOnInTheBackground(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, locktest.OneRedis(t), func(b *locktest.FaultBench, k locktest.FaultLock) {
		l := k.One(b.PatientClient(), b.LockName)
		b.Must(l.Lock(ctx))
		dropped := b.Proxy.On(k.Gives, testredis.DropRequest).Times(testredis.Always)
		rolledBack := b.Proxy.On(k.RollsBack, testredis.DropRequest).Times(testredis.Always)
		start := time.Now()
		err := l.Unlock(ctx)
		require.Error(b, err)
		require.NotErrorIs(b, err, ErrNotHeld)
		assert.Less(b, time.Since(start), testredis.Scale(start, engine.UnlockTime+2*time.Second))
		require.NotEmpty(b, b.Records(), "the record is gone although no release arrived")
		dropped.Release()
		rolledBack.Release()
		testredis.Await(b, "the record is gone", 4*time.Second, func() bool { return len(b.Records()) == 0 })
	})
}

// The error of a RedLock states once that other owners hold too many of its locks.
func TestErrorThatEndsAWaitOfARedLockSaysOthersHoldIt(t *testing.T) {
	red := newRedBench(t)
	held, waits := lock(red), lock(red)
	red.Must(held.Lock(ctx))
	short, end := context.WithTimeout(ContextWithOwner(ctx), 2*time.Second)
	defer end()
	err := waits.Lock(short)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Regexp(
		t,
		`^relock: lock "[^"]*": context deadline exceeded: other owners hold too many of its locks$`,
		err.Error(),
	)
	red.Must(held.Unlock(ctx))
}

// A forced release by another Client reaches the holder long before its next renewal, whatever the type of the lock and
// the lease of the hold.
func TestForcedReleaseReachesTheHolder(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		c, other := b.Client(WithWatchdogTimeout(locktest.Rarely)), b.Client()
		all := make(map[string]locktest.Watched)
		for _, kind := range append(slices.Clone(locktest.RecordLocks), locktest.LockKind{Name: "multi", One: locktest.NewMultiLock}) {
			for what, lock := range map[string]func(l Locker, owner context.Context) error{
				"renewed":  func(l Locker, owner context.Context) error { return l.Lock(owner) },
				"explicit": func(l Locker, owner context.Context) error { return l.LockLease(owner, time.Hour) },
			} {
				name := b.LockName + kind.Name + what
				all[kind.Name+", "+what] = b.Watch(kind.One(c, name), kind.One(other, name), lock)
			}
		}
		plain := func(l Locker, owner context.Context) error { return l.Lock(owner) }
		name := b.LockName + "last"
		all["in its last lease"] = b.Watch(c.NewLock(name, MaxHold(time.Hour/10)), other.NewLock(name), plain)
		name = b.LockName + "part"
		all["a part of a MultiLock"] = b.Watch(c.NewMultiLock(c.NewLock(name), c.NewLock(name+"2")), other.NewLock(name), plain)
		for i, n := range []int{1, 2, 3} {
			s, owner := c.NewSemaphore(b.LockName+"several", 10), other.NewSemaphore(b.LockName+"several", 10)
			h, err := s.AcquireN(ctx, n)
			b.Must(err)
			all[fmt.Sprintf("%d of several permits", n)] = locktest.Watched{Guarded: h.Context(), Forced: owner, Release: h.Release}
			if i > 0 { // one ForceUnlock releases all permits
				all[fmt.Sprintf("%d of several permits", n)] = locktest.Watched{Guarded: h.Context(), Forced: nil, Release: h.Release}
			}
		}
		b.Hears(c)

		began := time.Now()
		for what, w := range all {
			if w.Forced != nil {
				freed, err := w.Forced.ForceUnlock(ctx)
				require.NoError(t, err, what)
				require.True(t, freed, what)
			}
		}
		for what, w := range all {
			locktest.Await(b, what+" learns of the release", w.Guarded.Done())
			assert.ErrorIs(t, context.Cause(w.Guarded), ErrLockLost, what)
			assert.ErrorIs(t, w.Release(ctx), ErrLockLost, what)
		}
		assert.Less(t, time.Since(began), locktest.Rarely/10)
		b.Forget() // the other lock of the MultiLock
	})
}

// The same for a RedLock, whose locks are released one after the other.
func TestForcedReleaseReachesTheHolderOfARedLock(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Mini(t).Addr(), testredis.Mini(t).Addr(), testredis.Mini(t).Addr())
	b.Opts = []Option{WithRedLockNodeTimeout(locktest.Soon)}
	l := newRedLock(b.Client(WithWatchdogTimeout(locktest.Rarely)), b.LockName)
	w := b.Watch(l, newRedLock(b.Client(), b.LockName), func(l Locker, owner context.Context) error { return l.Lock(owner) })
	for i, node := range b.Nodes {
		testredis.Await(b, fmt.Sprint("listens at node ", i), locktest.Soon, func() bool {
			return len(node.PubSubChannels(ctx, record.ClientKey("*")).Val()) == 1
		})
	}
	freed, err := w.Forced.ForceUnlock(ctx)
	b.Must(err)
	assert.True(t, freed)
	locktest.Await(b, "the holder learns of the release", w.Guarded.Done())
	b.MustBe(w.Release(ctx), ErrLockLost)
}

// After a reconnect the holder listens again.
func TestForcedReleaseReachesTheHolderAfterAReconnect(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	c := b.Client(WithWatchdogTimeout(locktest.Rarely))
	w := b.Watch(c.NewLock(b.LockName), b.Client().NewLock(b.LockName), func(l Locker, owner context.Context) error { return l.Lock(owner) })
	for range 3 {
		b.Hears(c)
		b.Must(b.Rdb.Do(ctx, "client", "kill", "type", "pubsub").Err())
		testredis.Await(b, "the connection is closed", locktest.Soon, func() bool {
			list, err := b.Rdb.Do(ctx, "client", "list", "type", "pubsub").Text()
			return err == nil && strings.Count(list, "\n") <= 1
		})
	}
	b.Hears(c)
	_, err := w.Forced.ForceUnlock(ctx)
	b.Must(err)
	// A connection that has been cut may be replaced twice, and the hint is lost if it was sent in between. So it is sent
	// until it is heard.
	testredis.Await(b, "the holder learns of the release", locktest.Soon, func() bool {
		b.Must(b.Rdb.Publish(ctx, record.ClientKey(c.ID()), "check "+b.LockName).Err())
		return w.Guarded.Err() != nil
	})
	b.MustBe(w.Release(ctx), ErrLockLost)
}
