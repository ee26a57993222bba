package faults

// Every lock type under faults between the client and Redis: requests and answers that are lost, late or repeated, and
// connections that die. The comment of each test has the rows of tests/faults/README.md that it covers.
//
// Rule: a fault hits exactly what it is meant for, by a rule of the proxy.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
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
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Rows 1, 2, 5, 6: the answer is lost, and the request has run or has not.
func TestFaultLostAnswersChangeNothingTwice(t *testing.T) {
	t.Parallel()
	server := locktest.OneRedis(t)
	for name, fault := range map[string]testredis.Fault{
		"connection closed": testredis.LoseReply,
		"no answer":         testredis.StallReply,
		"not even run":      testredis.DropRequest,
	} {
		t.Run(name, func(t *testing.T) {
			locktest.OnFaultLocks(t, server, func(b *locktest.FaultBench, k locktest.FaultLock) {
				ctx, cancel := context.WithTimeout(ctx, 4*locktest.Soon)
				defer cancel()
				c := b.ClientOn(b.Proxy.Client())
				if fault == testredis.StallReply {
					c = b.ClientOn(b.Proxy.Client(func(o *redis.Options) { o.ReadTimeout = time.Second }))
				}
				l := k.One(c, b.LockName)
				b.Proxy.On(locktest.Calls(record.Script("inspect")), fault).Times(2)
				var token int64
				for _, step := range []struct {
					request testredis.Match
					do      func(context.Context) error
					levels  int
					times   int
				}{{k.Takes, l.Lock, 1, 2 * k.Asks}, {k.Takes, l.Lock, 2, 2 * k.Asks}, {k.Gives, l.Unlock, 1, 2 * k.Parts},
					{k.Gives, l.Unlock, 0, 2 * k.Parts}} {
					rule := b.Proxy.On(step.request, fault).Times(step.times)
					b.Must(step.do(ctx))
					require.NotZero(b, rule.Count(), "nothing was lost")
					rule.Release()
					b.Holds(l, step.levels)
					if step.levels > 0 {
						b.Tries(k.Rival(b.Direct, b.LockName), false)
						now := tokenOf(b, ctx, l)
						if token != 0 {
							assert.Equal(b, token, now, "a repeated re-entry changed the token")
						}
						token = now
					}
				}
				b.MustBe(l.Unlock(ctx), ErrNotHeld)
				next := k.Rival(b.Direct, b.LockName)
				b.Tries(next, true)
				b.Must(next.Unlock(ctx))
			})
		})
	}
}

// Row 9: ctx is done while the request is in flight.
func TestFaultRequestIsRolledBackWhenCtxIsDone(t *testing.T) {
	t.Parallel()
	server := locktest.OneRedis(t)
	for _, timeout := range []time.Duration{time.Minute, 900 * time.Millisecond} {
		t.Run(fmt.Sprint("read timeout ", timeout), func(t *testing.T) {
			locktest.OnFaultLocks(t, server, func(b *locktest.FaultBench, k locktest.FaultLock) { testRollbackWhenCtxIsDone(b, k, timeout) })
		})
	}
}

func testRollbackWhenCtxIsDone(b *locktest.FaultBench, k locktest.FaultLock, timeout time.Duration) {
	c := b.ClientOn(b.Proxy.Client(func(o *redis.Options) { o.ReadTimeout = timeout }))
	rule := b.Proxy.On(k.Takes, testredis.HoldRequest).Times(testredis.Always)
	got := gaveUp(b, rule, k.One(c, b.LockName).Lock)
	b.MustBe(locktest.Await(b.Bench, "Lock comes back although Redis says nothing", got), context.Canceled)
	rule.Release() // it runs now, before or after its rollback
	next := k.Rival(b.Direct, b.LockName)
	testredis.Await(b, "the lock is free again", 2*locktest.Soon, func() bool {
		ok, err := next.TryLock(ctx, 0, 0)
		return ok && err == nil
	})
	b.Must(next.Unlock(ctx))
}

// Rows 3, 4: the rollback overtakes the attempt. The late attempt acquires nothing, and is not taken for a later hold.
func TestFaultAttemptRunsAfterItsRollback(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, ownRedis(), func(b *locktest.FaultBench, k locktest.FaultLock) {
		l := k.One(b.PatientClient(WithRedLockNodeTimeout(time.Second)), b.LockName)
		asked := b.Proxy.On(firstOfEachField(k.Takes), testredis.HoldRequest).Times(testredis.Always)
		resent := b.Proxy.On(k.Takes, testredis.HoldRequest).Times(testredis.Always)
		rolledBack := b.Proxy.On(firstOfEachField(k.RollsBack), testredis.DelayReply(0)).Times(testredis.Always)
		again := b.Proxy.On(k.RollsBack, testredis.HoldRequest).Times(testredis.Always)
		canceled, cancel := context.WithCancel(ctx)
		got := make(chan error, 1)
		go func() { got <- l.Lock(canceled) }()
		testredis.Await(b, "the requests are under way", locktest.Soon, func() bool { return asked.Count() >= k.Asks })
		cancel()
		b.MustBe(locktest.Await(b.Bench, "Lock comes back", got), context.Canceled)
		testredis.Await(b, "all are rolled back", locktest.Soon, func() bool { return rolledBack.Count() >= asked.Count() })
		late := b.ScriptRuns() + asked.Count()
		asked.Release()
		resent.Release()
		testredis.Await(b, "the late attempts have run", locktest.Soon, func() bool { return b.ScriptRuns() >= late })
		b.FreeSoon() // a RedLock may have asked a node meanwhile, and rolls that back
		next := k.Rival(b.Direct, b.LockName)
		b.Must(next.Lock(ctx))
		b.MustBe(l.Unlock(ctx), ErrNotHeld)
		late = b.ScriptRuns() + again.Count()
		again.Release()
		testredis.Await(b, "the late rollbacks have run", locktest.Soon, func() bool { return b.ScriptRuns() >= late })
		b.Holds(next, 1)
		b.Must(next.Unlock(ctx))
	})
}

// firstOfEachField matches the first command with each key and field that matches. A request that is sent again because
// its answer is late would otherwise count for another request.
func firstOfEachField(match testredis.Match) testredis.Match {
	var seen sync.Map
	return func(cmd []string) bool {
		if !match(cmd) {
			return false
		}
		keys, _ := strconv.Atoi(cmd[2]) // evalsha, the digest, the number of keys, the keys, and the field
		_, again := seen.LoadOrStore([2]string{cmd[3], cmd[3+keys]}, true)
		return !again
	}
}

// Rows 3, 4: an attempt of a reader that runs when it is no longer rolled back leaves no reader, whether the lock is
// free or other readers hold it.
func TestFaultLateReaderAcquiresNothing(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]func(ctx context.Context, l Locker) error{
		"renewed": func(ctx context.Context, l Locker) error { return l.Lock(ctx) },
		"fixed": func(ctx context.Context, l Locker) error {
			_, err := l.TryLock(ctx, time.Minute, time.Hour)
			return err
		},
	} {
		for _, others := range []int{0, 1} {
			t.Run(fmt.Sprint(name, ", other readers: ", others), func(t *testing.T) {
				b, background := locktest.NewFaultBench(t), ctx
				c := b.Shaky()
				rw := c.NewRWLock(b.LockName)
				rule := b.Proxy.On(locktest.Calls(record.Script("read_acquire")), testredis.HoldRequest).Times(testredis.Always)
				got := gaveUp(b, rule, func(ctx context.Context) error { return lock(ctx, rw.Read()) })
				b.MustBe(locktest.Await(b.Bench, "it comes back", got), context.Canceled)
				testredis.Await(b, "the rollbacks have ended", locktest.Soon, func() bool {
					return locktest.EngineOf(c).Probe().Stats().AtWork == 0
				})
				assert.Empty(b, b.Records())
				var held []*Hold
				for range others {
					held = append(held, b.Hold(b.Direct.NewRWLock(b.LockName).Read()))
				}
				ran := b.ScriptRuns()
				rule.Release()
				testredis.Await(b, "the late attempt has run", locktest.Soon, func() bool { return b.ScriptRuns() > ran })
				i, err := b.Direct.Inspect(background, b.LockName)
				b.Must(err)
				assert.Len(b, i.Holders, others)
				for _, h := range held {
					b.Must(h.Release(background))
				}
				b.Follows(rw.Write())
			})
		}
	}
}

// Row 9: also if a MultiLock has acquired some of its locks by then, and cannot release them.
func TestFaultMultiLockIsRolledBackWhenCtxIsDone(t *testing.T) {
	t.Parallel()
	ends := map[string]func(ctx context.Context, l Locker) error{
		"Lock": func(ctx context.Context, l Locker) error { return l.Lock(ctx) },
		"TryLock": func(ctx context.Context, l Locker) error {
			ok, err := l.TryLock(context.WithoutCancel(ctx), time.Second, 0)
			if ok || err != nil && !errors.Is(err, send.ErrTimeUp) && !errors.Is(err, engine.ErrNoAnswer) {
				return err
			}
			return context.Canceled // it is an error if one of its attempts, or the first one, was not answered
		},
	}
	for name, lock := range ends {
		t.Run(name, func(t *testing.T) {
			b := locktest.NewFaultBench(t)
			owner := ContextWithOwner(ctx)
			blocking := b.Direct.NewLock(b.LockName + "2")
			b.Must(blocking.Lock(owner))
			client := b.Shaky()
			l := client.NewMultiLock(client.NewFairLock(b.LockName+"1"), client.NewLock(b.LockName+"2"))
			asked := b.Proxy.On(locktest.Calls(record.Script("lock_acquire")), testredis.DelayReply(0)).Times(testredis.Always)
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			got := make(chan error, 1)
			start := time.Now()
			go func() { got <- lock(ctx, l) }()
			testredis.Await(b, "it has the first and waits for the second", locktest.Soon, func() bool { return asked.Count() > 0 })
			time.Sleep(100 * time.Millisecond) // for the answer, and the wait for the second lock
			b.Proxy.BlackHole(true)
			time.Sleep(time.Until(start.Add(time.Second))) // ctx is done at the same time in each case
			cancel()
			ended := time.Now()
			b.MustBe(locktest.Await(b.Bench, "it comes back", got), context.Canceled)
			assert.LessOrEqual(b, time.Since(ended), locktest.Soon/2, "time until it came back")
			b.Proxy.BlackHole(false)
			b.Must(blocking.Unlock(owner))
			both := b.Direct.NewMultiLock(b.Direct.NewFairLock(b.LockName+"1"), b.Direct.NewLock(b.LockName+"2"))
			within, done := context.WithTimeout(context.Background(), 2*locktest.Soon)
			defer done()
			b.Must(both.Lock(within)) // long before any lease expires
			b.Must(both.Unlock(within))
		})
	}
}

// Row 5: a release that runs late does not release the hold of another owner.
func TestFaultLateReleaseFreesNoOtherHold(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, ownRedis(), func(b *locktest.FaultBench, k locktest.FaultLock) {
		l, next := k.One(b.Shaky(), b.LockName), k.One(b.Direct, b.LockName)
		b.Must(l.Lock(ctx))
		rule := b.Proxy.On(k.Gives, testredis.HoldRequest).Times(k.Parts)
		b.Must(l.Unlock(ctx)) // the second attempt succeeds
		b.Must(next.Lock(ctx))
		before := commands(b, "evalsha")
		rule.Release()
		testredis.Await(b, "the late release has run", locktest.Soon, func() bool { return commands(b, "evalsha") >= before+k.Parts })
		b.Holds(next, 1)
		b.Must(next.Unlock(ctx))
		b.Must(l.Lock(ctx))
		b.Must(l.Unlock(ctx))
	})
}

// Rows 7, 12: Redis cannot be reached, and the holder notices the loss by its own clock.
func TestFaultBlackHoleEndsValidityInTime(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, locktest.OneRedis(t), func(b *locktest.FaultBench, k locktest.FaultLock) {
		const lease = 2 * time.Second
		l := k.One(b.Shaky(WithWatchdogTimeout(lease)), b.LockName)
		b.Must(l.Lock(ctx))
		guarded := guardOf(b, ctx, l)
		b.Proxy.BlackHole(true)
		b.Within(2*lease, "the end of the guard after the last possible renewal", func() {
			locktest.Await(b.Bench, "the guard ends", guarded.Done())
		})
		b.MustBe(context.Cause(guarded), ErrLockLost)
		next := k.Rival(b.Direct, b.LockName)
		b.Must(next.Lock(ctx))
		b.Proxy.BlackHole(false)
		b.MustBe(l.Unlock(ctx), ErrLockLost)
		b.Holds(next, 1)
		b.Must(next.Unlock(ctx))
	})
}

// Row 7: a holder survives a short outage.
func TestFaultFailedRenewalIsRepeated(t *testing.T) {
	t.Parallel()
	server := locktest.OneRedis(t)
	var all sync.WaitGroup
	for name, fault := range map[string]testredis.Fault{
		"connection closed": testredis.LoseReply,
		"no answer":         testredis.StallReply,
		"not even run":      testredis.DropRequest,
	} {
		waitgroup.Go(&all, func() {
			t.Run(name, func(t *testing.T) {
				locktest.OnFaultLocks(t, server, func(b *locktest.FaultBench, k locktest.FaultLock) {
					const lease = 5 * time.Second
					l := k.One(b.Shaky(WithWatchdogTimeout(lease)), b.LockName)
					b.Must(l.Lock(ctx))
					guarded := guardOf(b, ctx, l)
					rule := b.Proxy.On(k.Renews, fault).Times(k.Parts)
					locktest.Await(b.Bench, "a renewal fails", rule.Fired())
					staysValid(b, guarded, lease+lease/6)
					b.Must(l.Unlock(ctx))
				})
			})
		})
	}
	all.Wait()
}

// Row 41: a renewal that runs after the release does not renew the hold of another owner, and leaves nothing.
func TestFaultLateRenewalCreatesNoRecord(t *testing.T) {
	t.Parallel()
	for _, taken := range []bool{true, false} { // whether a next holder has acquired the lock meanwhile
		t.Run(map[bool]string{true: "taken", false: "free"}[taken], func(t *testing.T) {
			locktest.OnFaultLocks(t, ownRedis(), func(b *locktest.FaultBench, k locktest.FaultLock) {
				const lease, short = 3 * time.Second, time.Second
				l, next := k.One(b.Shaky(WithWatchdogTimeout(lease)), b.LockName), k.One(b.Direct, b.LockName)
				b.Must(l.Lock(ctx))
				rule := b.Proxy.On(k.Renews, testredis.HoldRequest).Times(testredis.Always)
				testredis.Await(b, "the renewals are under way", locktest.Soon, func() bool { return rule.Count() >= k.Parts })
				b.Must(l.Unlock(ctx))
				if taken {
					b.Must(next.LockLease(ctx, short))
				}
				before := commands(b, "evalsha")
				rule.Release()
				testredis.Await(
					b,
					"the late renewals have run",
					locktest.Soon,
					func() bool { return commands(b, "evalsha") >= before+k.Parts },
				)
				if !taken {
					b.IsLocked(next, false)
					return
				}
				ttl, err := next.TTL(ctx)
				assert.NoError(b, err)
				assert.LessOrEqual(b, ttl, short, "the lease of the next holder")
				if err := next.Unlock(ctx); err != nil { // on a machine that is very busy
					assert.ErrorIs(b, err, ErrLockLost)
				}
			})
		})
	}
}

// Rows 10, 44: a waiter gives up, and the answer to that is lost. The waiter behind it is not delayed.
func TestFaultLostRollbackHoldsUpNoWaiter(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, locktest.OneRedis(t), func(b *locktest.FaultBench, k locktest.FaultLock) {
		held := k.Rival(b.Direct, b.LockName)
		b.Must(held.Lock(ctx))
		fickle, cancel := context.WithCancel(ctx)
		gone := b.StartWaiter(ContextWithOwner(fickle), k.One(b.Shaky(), b.LockName))
		next, owner := k.One(b.Client(WithPollInterval(time.Hour)), b.LockName), ContextWithOwner(ctx)
		got := make(chan error, 1)
		go func() { got <- next.Lock(owner) }()
		locktest.Stays(b, "it is held", got, 100*time.Millisecond)
		b.Proxy.On(k.RollsBack, testredis.LoseReply).Times(k.Parts)
		cancel()
		b.MustBe(locktest.Await(b.Bench, "the waiter gives up", gone), context.Canceled)
		b.Must(held.Unlock(ctx))
		select {
		case err := <-got:
			b.Must(err)
		case <-time.After(record.FairLife - record.FairHeartbeat):
			require.Fail(b, "the waiter that gave up is still in the queue")
		}
		b.Must(next.Unlock(owner))
	})
}

// Row 11: the subscription connection is killed, and the message is lost with it.
func TestFaultWaiterSurvivesAKilledSubscription(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, ownRedis(), func(b *locktest.FaultBench, k locktest.FaultLock) {
		for range 3 {
			end := waits(b, k, WithPollInterval(time.Hour))
			b.Must(b.Rdb.Do(ctx, "client", "kill", "type", "pubsub").Err())
			end(0)
		}
	})
}

// Row 11: go-redis connects anew by itself, and the Dialer of the user panics, while go-redis holds a mutex.
func TestFaultSubscriptionSurvivesADialerThatPanics(t *testing.T) {
	b := locktest.NewFaultBench(t)
	var panics atomic.Bool
	c := b.ClientOn(b.Server.Client(func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if panics.CompareAndSwap(true, false) {
				panic("a mistake in the Dialer")
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
	}))
	l := locktest.EngineOf(c).Hub().Join(b.LockName)
	defer l.Leave()
	testredis.Await(b, "it is subscribed", locktest.Soon, l.Confirmed)
	panics.Store(true)
	b.Must(b.Rdb.Do(context.Background(), "client", "kill", "type", "pubsub").Err())
	testredis.Await(b, "it is subscribed again", locktest.Soon, func() bool { return !panics.Load() && len(l.Wake) > 0 })
}

// Row 12: the subscription connection stops delivering.
func TestFaultWaiterSurvivesASilentSubscription(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, locktest.OneRedis(t), func(b *locktest.FaultBench, k locktest.FaultLock) {
		held := k.Rival(b.Direct, b.LockName)
		b.Must(held.Lock(ctx))
		owner := ContextWithOwner(ctx)
		waiting := k.One(b.Shaky(WithPollInterval(time.Hour)), b.LockName)
		got := b.StartWaiter(owner, waiting)
		b.Proxy.BlackHole(true)
		b.Must(held.Unlock(ctx))
		time.Sleep(100 * time.Millisecond) // the message is lost in the black hole, and leaves nothing to wait for
		b.Proxy.CutAll()                   // data in flight are lost
		b.Proxy.BlackHole(false)
		select {
		case err := <-got:
			b.Must(err)
		case <-time.After(4 * locktest.Soon):
			require.Fail(b, "the waiter sleeps while the lock is free")
		}
		b.Must(waiting.Unlock(owner))
	})
}

// Row 13: a waiter polls even if its subscription is never confirmed.
func TestFaultWaiterPollsWithoutASubscription(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, locktest.OneRedis(t), func(b *locktest.FaultBench, k locktest.FaultLock) {
		held := k.Rival(b.Direct, b.LockName)
		b.Must(held.Lock(ctx))
		rule := b.Proxy.On(testredis.Command("subscribe"), testredis.StallReply).Times(testredis.Always)
		got := make(chan error, 1)
		owner := ContextWithOwner(ctx)
		waiting := k.One(b.Shaky(WithPollInterval(100*time.Millisecond)), b.LockName)
		go func() { got <- waiting.Lock(owner) }()
		locktest.Await(b.Bench, "the subscription is not answered", rule.Fired())
		b.Must(held.Unlock(ctx))
		b.Must(locktest.Await(b.Bench, "the waiter notices by itself", got))
		b.Must(waiting.Unlock(owner))
		rule.Release()
	})
}

// Row 39: the pool has no connection available.
func TestFaultExhaustedPoolDelaysNoRenewal(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, locktest.OneRedis(t), func(b *locktest.FaultBench, k locktest.FaultLock) {
		rdb := b.Server.Client(func(o *redis.Options) {
			o.PoolSize, o.PoolTimeout = 1, time.Minute
			if strings.HasPrefix(redis.Version(), "9.22.") { // which has a pool for pipelines only if one of its options is set
				o.PipelineReadBufferSize = 32 << 10
			}
		})
		const lease = 3 * time.Second
		l := k.One(b.ClientOn(rdb, WithWatchdogTimeout(lease)), b.LockName)
		b.Must(l.Lock(ctx))
		guarded := guardOf(b, ctx, l)
		conn := rdb.Conn()
		b.Must(conn.Ping(ctx).Err())
		if !k.Red { // a RedLock works without one node of three
			deadline, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			start := time.Now()
			b.MustBe(k.One(b.ClientOn(rdb), b.LockName+"-other").Lock(deadline), context.DeadlineExceeded)
			took := time.Since(start)
			assert.LessOrEqual(b, took, locktest.Soon)
		}
		staysValid(b, guarded, lease+lease/4)
		b.Must(conn.Close())
		b.Must(l.Unlock(ctx))
	})
}

// Row 50: the Redis client is closed before the relock client.
func TestFaultClosedRedisClientIsAnError(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, locktest.OneRedis(t), func(b *locktest.FaultBench, k locktest.FaultLock) {
		rdb := b.Server.Client()
		c := b.ClientOn(rdb)
		l := k.One(c, b.LockName)
		b.Must(l.LockLease(ctx, 3*time.Second))
		b.Must(rdb.Close())
		if k.Red { // a RedLock works without one node of three
			b.Must(l.Lock(ctx))
			b.Must(l.Unlock(ctx))
			b.Must(l.Unlock(ctx))
			b.Must(c.Close())
			return
		}
		assert.ErrorIs(b, k.One(c, b.LockName+"-2").Lock(ctx), redis.ErrClosed, "Lock")
		start := time.Now()
		assert.ErrorIs(b, l.Unlock(ctx), redis.ErrClosed, "Unlock")
		assert.LessOrEqual(b, time.Since(start), locktest.Soon/2, "Unlock")
		b.Must(c.Close())
	})
}

// Row 57: locks of different kinds have one name. They exclude one another, or return an error.
func TestFaultLocksOfDifferentKindsExclude(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	for _, one := range locktest.FaultLocks {
		for _, other := range locktest.FaultLocks {
			if one.Asks+one.Parts+other.Asks+other.Parts > 4 || one.Shared && other.Shared {
				continue // it consists of others, or is meant to be shared
			}
			t.Run(one.Name+" and "+other.Name, func(t *testing.T) {
				b := locktest.NewFaultBenchOn(t, s)
				if one.Record != other.Record {
					l, next := one.One(b.Direct, b.LockName), other.One(b.Client(), b.LockName)
					b.Must(l.Lock(ctx))
					b.MustBe(next.Lock(ctx), ErrNotALock)
					b.Must(l.Unlock(ctx))
					return
				}
				l, next := one.One(b.Direct, b.LockName), other.One(b.Client(WithPollInterval(50*time.Millisecond)), b.LockName)
				b.Must(l.Lock(ctx))
				ok, err := next.TryLock(ctx, 0, 0)
				require.False(t, ok, "a second holder")
				require.NotErrorIs(t, err, context.DeadlineExceeded)
				owner := ContextWithOwner(ctx)
				got := make(chan error, 1)
				go func() { got <- next.Lock(owner) }()
				locktest.Stays(b, "a second holder, or an error", got, 20*time.Millisecond)
				assert.ErrorIs(t, next.Unlock(ctx), ErrNotHeld, "Unlock of a lock of another kind")
				b.Holds(l, 1)
				b.Must(l.Unlock(ctx))
				b.Must(locktest.Await(b.Bench, "the next one notices", got))
				b.Tries(l, false)
				b.Must(next.Unlock(owner))
			})
		}
	}
}

// A host that is down accepts no connection and refuses none: no call takes longer than documented.
func TestFaultUnreachableHostDelaysCallsNoLongerThanDocumented(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	h := newHole(t)
	defer h.end()
	server := testredis.Start(t)
	c := b.ClientOn(server.Client(func(o *redis.Options) { o.Dialer = h.dialer }))
	l := c.NewLock(b.LockName)
	b.Must(l.Lock(ctx))
	h.addr.Store(server.Addr())
	server.Kill()
	start := time.Now()
	assert.Error(t, l.Unlock(ctx), "Unlock was confirmed")
	took := time.Since(start)
	assert.LessOrEqual(t, took, testredis.Scale(start, send.ConnectTime+2*time.Second), "time of Unlock")
	start = time.Now()
	ok, err := l.TryLock(ctx, 0, 0)
	assert.False(t, ok, "TryLock")
	assert.Error(t, err, "TryLock")
	took = time.Since(start)
	assert.LessOrEqual(t, took, testredis.Scale(start, send.ConnectTime+2*time.Second), "time of TryLock")
}

// The only connection is in use, and the server is paused: all waits of Unlock together last no longer than documented.
func TestFaultUnlockWaitsNoLongerThanDocumented(t *testing.T) {
	t.Parallel()
	for _, readTimeout := range []time.Duration{3 * time.Second, 5 * time.Second, -1} {
		t.Run(readTimeout.String(), func(t *testing.T) {
			t.Parallel()
			server := testredis.Start(t)
			b := &locktest.Bench{T: t, LockName: "unlock-time"}
			rdb := server.Client(func(o *redis.Options) { o.ReadTimeout, o.PoolSize = readTimeout, 1 })
			c := b.ClientOn(rdb)
			l := c.NewLock(b.LockName)
			b.Must(l.Lock(ctx))
			server.Freeze()
			t.Cleanup(server.Thaw)
			go rdb.Get(ctx, "x")
			start := time.Now()
			assert.Error(t, l.Unlock(ctx), "Unlock was confirmed")
			took := time.Since(start)
			assert.LessOrEqual(t, took, testredis.Scale(start, send.ConnectTime+2*time.Second), "time of Unlock")
			start = time.Now()
			ok, err := l.TryLock(ctx, 0, 0)
			assert.False(t, ok)
			assert.Error(t, err)
			took = time.Since(start)
			assert.LessOrEqual(t, took, testredis.Scale(start, 3*send.ConnectTime), "time of TryLock")
		})
	}
}

// A repeatingHook loses the answer to each command that runs a script, and sends the command again, as hooks of users
// do.
type repeatingHook struct {
	redis.Hook      // for pipelines and connections, which it passes on
	obeys      bool // whether it respects NoRetry
}

func (h repeatingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && cmd.Name() == "evalsha" && !(h.obeys && cmd.NoRetry()) {
			err = next(ctx, cmd)
		}
		return err
	}
}

// If a hook sends an Unlock again by itself, it hides that the first one has run: docs/configuration.md#hooks-that-retry. The lock is free all
// the same.
func TestHookThatRepeatsMakesUnlockReportALoss(t *testing.T) {
	locktest.OnFaultLocks(t, locktest.OneRedis(t), func(b *locktest.FaultBench, k locktest.FaultLock) {
		first := k.One(b.Client(), b.LockName) // loads the scripts
		b.Must(first.Lock(ctx))
		b.Must(first.Unlock(ctx))
		for _, obeys := range []bool{false, true} {
			rdb := testredis.Client(b, b.Addr)
			rdb.AddHook(repeatingHook{locktest.ProcessHook(func(send func() error) error { return send() }), obeys})
			l := k.One(b.ClientOn(rdb), b.LockName)
			b.Must(l.Lock(ctx))
			err := l.Unlock(ctx)
			if obeys {
				b.Must(err)
			} else if !k.Red { // the nodes of a RedLock have clients without the hook
				b.MustBe(err, ErrLockLost)
			}
			b.IsLocked(k.One(b.Client(), b.LockName), false)
		}
	})
}

// deadlinelessConn is a connection that does not support deadlines, such as one over SSH.
type deadlinelessConn struct{ net.Conn }

var errNoDeadlines = errors.New("deadline not supported")

func (deadlinelessConn) SetDeadline(time.Time) error { return errNoDeadlines }

func (deadlinelessConn) SetReadDeadline(time.Time) error { return errNoDeadlines }

func (deadlinelessConn) SetWriteDeadline(time.Time) error { return errNoDeadlines }

// With a timeout of -2 go-redis sets no deadlines, and relock sets none either.
func TestConnectionsWithoutDeadlines(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		c := b.ClientOn(testredis.Client(t, addr, func(o *redis.Options) {
			o.ReadTimeout, o.WriteTimeout = -2, -2
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				var d net.Dialer
				conn, err := d.DialContext(ctx, network, addr)
				return deadlinelessConn{conn}, err
			}
		}))
		l := c.NewLock(b.LockName)
		for range 20 {
			b.Must(l.Lock(ctx))
			b.Must(l.Unlock(ctx))
		}
	})
}
