package relock

// Every lock type under faults between the client and Redis: requests and answers that are lost, late or repeated, and
// connections that die. The comment of each test has the rows of docs/reliability.md that it covers.
//
// Rule: a fault hits exactly what it is meant for, by a rule of the proxy.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
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

// Rows 1, 2, 5, 6: the answer is lost, and the request has run or has not.
func TestFaultLostAnswersChangeNothingTwice(t *testing.T) {
	t.Parallel()
	server := oneRedis(t)
	for name, fault := range map[string]testredis.Fault{
		"connection closed": testredis.LoseReply,
		"no answer":         testredis.StallReply,
		"not even run":      testredis.DropRequest,
	} {
		t.Run(name, func(t *testing.T) {
			onFaultLocks(t, server, func(b *faultBench, k faultLock) {
				ctx, cancel := context.WithTimeout(context.Background(), 4*soon)
				defer cancel()
				c := b.clientOn(b.proxy.Client())
				if fault == testredis.StallReply {
					c = b.clientOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = time.Second }))
				}
				l := k.one(c, b.name)
				b.proxy.On(calls(inspectScript), fault).Times(2)
				var token int64
				for _, step := range []struct {
					request testredis.Match
					do      func(context.Context) error
					levels  int
					times   int
				}{{k.takes, l.Lock, 1, 2 * k.asks}, {k.takes, l.Lock, 2, 2 * k.asks}, {k.gives, l.Unlock, 1, 2 * k.parts},
					{k.gives, l.Unlock, 0, 2 * k.parts}} {
					rule := b.proxy.On(step.request, fault).Times(step.times)
					b.must(step.do(ctx))
					require.NotZero(b, rule.Count(), "nothing was lost")
					rule.Release()
					b.holds(l, step.levels)
					if step.levels > 0 {
						b.tries(k.rival(b.direct, b.name), false)
						now := b.tokenOf(ctx, l)
						if token != 0 {
							assert.Equal(b, token, now, "a repeated re-entry changed the token")
						}
						token = now
					}
				}
				b.mustBe(l.Unlock(ctx), ErrNotHeld)
				next := k.rival(b.direct, b.name)
				b.tries(next, true)
				b.must(next.Unlock(ctx))
			})
		})
	}
}

// Row 9: ctx is done while the request is in flight.
func TestFaultRequestIsRolledBackWhenCtxIsDone(t *testing.T) {
	t.Parallel()
	server := oneRedis(t)
	for _, timeout := range []time.Duration{time.Minute, 900 * time.Millisecond} {
		t.Run(fmt.Sprint("read timeout ", timeout), func(t *testing.T) {
			onFaultLocks(t, server, func(b *faultBench, k faultLock) { testRollbackWhenCtxIsDone(b, k, timeout) })
		})
	}
}

func testRollbackWhenCtxIsDone(b *faultBench, k faultLock, timeout time.Duration) {
	c := b.clientOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = timeout }))
	rule := b.proxy.On(k.takes, testredis.HoldRequest).Times(testredis.Always)
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() { got <- k.one(c, b.name).Lock(ctx) }()
	await(b.bench, "the request is under way", rule.Fired())
	cancel()
	b.mustBe(await(b.bench, "Lock comes back although Redis says nothing", got), context.Canceled)
	rule.Release() // it runs now, before or after its rollback
	next := k.rival(b.direct, b.name)
	testredis.Await(b, "the lock is free again", 2*soon, func() bool {
		ok, err := next.TryLock(context.Background(), 0, 0)
		return ok && err == nil
	})
	b.must(next.Unlock(context.Background()))
}

// Rows 3, 4: the rollback overtakes the attempt. The late attempt acquires nothing, and is not taken for a later hold.
func TestFaultAttemptRunsAfterItsRollback(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		const lease = time.Second
		l := k.one(b.shaky(WithWatchdogTimeout(lease)), b.name)
		rule := b.proxy.On(k.takes, testredis.HoldRequest).Times(testredis.Always)
		rolledBack := b.proxy.On(firstOfEachKey(k.rollsBack), testredis.DelayReply(0)).Times(k.parts)
		again := b.proxy.On(k.rollsBack, testredis.HoldRequest).Times(testredis.Always)
		ctx, cancel := context.WithCancel(context.Background())
		got := make(chan error, 1)
		go func() { got <- l.Lock(ctx) }()
		testredis.Await(b, "the requests are under way", soon, func() bool { return rule.Count() >= k.asks })
		cancel()
		b.mustBe(await(b.bench, "Lock comes back", got), context.Canceled)
		testredis.Await(b, "the rollback has run", soon, func() bool { return rolledBack.Count() == k.parts })
		ran := b.scriptRuns()
		rule.Release()
		testredis.Await(b, "the late attempt has run", soon, func() bool { return b.scriptRuns() > ran })
		assert.Empty(b, b.records(), "a late attempt has taken a lock")
		start := time.Now()
		next := k.rival(b.direct, b.name)
		b.must(next.Lock(context.Background()))
		assert.LessOrEqual(b, time.Since(start), lease+soon, "time that the late attempt blocked others")
		b.mustBe(l.Unlock(context.Background()), ErrNotHeld)
		again.Release()
		b.holds(next, 1)
		b.must(next.Unlock(context.Background()))
	})
}

// firstOfEachKey matches the first command for each key that matches. A request that is sent again because its answer
// is late would otherwise count for the request for another key.
func firstOfEachKey(match testredis.Match) testredis.Match {
	var seen sync.Map
	return func(cmd []string) bool {
		if !match(cmd) {
			return false
		}
		_, again := seen.LoadOrStore(cmd[3], true) // evalsha, the digest, the number of keys, and the first key
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
				b, background := newFaultBench(t), context.Background()
				c := b.shaky()
				rw := c.NewRWLock(b.name)
				rule := b.proxy.On(calls(readAcquire), testredis.HoldRequest).Times(testredis.Always)
				ctx, cancel := context.WithCancel(background)
				got := make(chan error, 1)
				go func() { got <- lock(ctx, rw.Read()) }()
				await(b.bench, "the request is under way", rule.Fired())
				cancel()
				b.mustBe(await(b.bench, "it comes back", got), context.Canceled)
				testredis.Await(b, "the rollbacks have ended", soon, func() bool {
					return c.engine.Probe().Stats().AtWork == 0
				})
				assert.Empty(b, b.records())
				var held []*Hold
				for range others {
					held = append(held, b.hold(b.direct.NewRWLock(b.name).Read()))
				}
				ran := b.scriptRuns()
				rule.Release()
				testredis.Await(b, "the late attempt has run", soon, func() bool { return b.scriptRuns() > ran })
				i, err := b.direct.Inspect(background, b.name)
				b.must(err)
				assert.Len(b, i.Holders, others)
				for _, h := range held {
					b.must(h.Release(background))
				}
				b.follows(rw.Write())
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
			if ok || err != nil && !errors.Is(err, errTimeUp) && !errors.Is(err, engine.ErrNoAnswer) {
				return err
			}
			return context.Canceled // it is an error if one of its attempts, or the first one, was not answered
		},
	}
	for name, lock := range ends {
		t.Run(name, func(t *testing.T) {
			b := newFaultBench(t)
			owner := ContextWithOwner(context.Background())
			blocking := b.direct.NewLock(b.name + "2")
			b.must(blocking.Lock(owner))
			client := b.shaky()
			l := client.NewMultiLock(client.NewFairLock(b.name+"1"), client.NewLock(b.name+"2"))
			asked := b.proxy.On(calls(lockAcquire), testredis.DelayReply(0)).Times(testredis.Always)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			got := make(chan error, 1)
			start := time.Now()
			go func() { got <- lock(ctx, l) }()
			testredis.Await(b, "it has the first and waits for the second", soon, func() bool { return asked.Count() > 0 })
			time.Sleep(100 * time.Millisecond) // for the answer, and the wait for the second lock
			b.proxy.BlackHole(true)
			time.Sleep(time.Until(start.Add(time.Second))) // ctx is done at the same time in each case
			cancel()
			ended := time.Now()
			b.mustBe(await(b.bench, "it comes back", got), context.Canceled)
			assert.LessOrEqual(b, time.Since(ended), soon/2, "time until it came back")
			b.proxy.BlackHole(false)
			b.must(blocking.Unlock(owner))
			both := b.direct.NewMultiLock(b.direct.NewFairLock(b.name+"1"), b.direct.NewLock(b.name+"2"))
			within, done := context.WithTimeout(context.Background(), 2*soon)
			defer done()
			b.must(both.Lock(within)) // long before any lease expires
			b.must(both.Unlock(within))
		})
	}
}

// Row 5: a release that runs late does not release the hold of another owner.
func TestFaultLateReleaseFreesNoOtherHold(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		l, next := k.one(b.shaky(), b.name), k.one(b.direct, b.name)
		b.must(l.Lock(ctx))
		rule := b.proxy.On(k.gives, testredis.HoldRequest).Times(k.parts)
		b.must(l.Unlock(ctx)) // the second attempt succeeds
		b.must(next.Lock(ctx))
		before := b.commands("evalsha")
		rule.Release()
		testredis.Await(b, "the late release has run", soon, func() bool { return b.commands("evalsha") >= before+k.parts })
		b.holds(next, 1)
		b.must(next.Unlock(ctx))
		b.must(l.Lock(ctx))
		b.must(l.Unlock(ctx))
	})
}

// Rows 7, 12: Redis cannot be reached, and the holder notices the loss by its own clock.
func TestFaultBlackHoleEndsValidityInTime(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		const lease = 2 * time.Second
		l := k.one(b.shaky(WithWatchdogTimeout(lease)), b.name)
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		b.proxy.BlackHole(true)
		b.within(2*lease, "the end of the guard after the last possible renewal", func() {
			await(b.bench, "the guard ends", guarded.Done())
		})
		b.mustBe(context.Cause(guarded), ErrLockLost)
		next := k.rival(b.direct, b.name)
		b.must(next.Lock(ctx))
		b.proxy.BlackHole(false)
		b.mustBe(l.Unlock(ctx), ErrLockLost)
		b.holds(next, 1)
		b.must(next.Unlock(ctx))
	})
}

// Row 7: a holder survives a short outage.
func TestFaultFailedRenewalIsRepeated(t *testing.T) {
	t.Parallel()
	server := oneRedis(t)
	var all sync.WaitGroup
	for name, fault := range map[string]testredis.Fault{
		"connection closed": testredis.LoseReply,
		"no answer":         testredis.StallReply,
		"not even run":      testredis.DropRequest,
	} {
		waitgroup.Go(&all, func() {
			t.Run(name, func(t *testing.T) {
				onFaultLocks(t, server, func(b *faultBench, k faultLock) {
					ctx := context.Background()
					const lease = 5 * time.Second
					l := k.one(b.shaky(WithWatchdogTimeout(lease)), b.name)
					b.must(l.Lock(ctx))
					guarded, err := l.Guard(ctx)
					b.must(err)
					rule := b.proxy.On(k.renews, fault).Times(k.parts)
					await(b.bench, "a renewal fails", rule.Fired())
					select {
					case <-guarded.Done():
						assert.Fail(b, "one failed renewal lost the lock", context.Cause(guarded))
					case <-time.After(lease + lease/6):
					}
					b.must(l.Unlock(ctx))
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
			onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
				ctx := context.Background()
				const lease, short = 3 * time.Second, time.Second
				l, next := k.one(b.shaky(WithWatchdogTimeout(lease)), b.name), k.one(b.direct, b.name)
				b.must(l.Lock(ctx))
				rule := b.proxy.On(k.renews, testredis.HoldRequest).Times(testredis.Always)
				testredis.Await(b, "the renewals are under way", soon, func() bool { return rule.Count() >= k.parts })
				b.must(l.Unlock(ctx))
				if taken {
					b.must(next.LockLease(ctx, short))
				}
				before := b.commands("evalsha")
				rule.Release()
				testredis.Await(
					b,
					"the late renewals have run",
					soon,
					func() bool { return b.commands("evalsha") >= before+k.parts },
				)
				if !taken {
					b.isLocked(next, false)
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
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		held := k.rival(b.direct, b.name)
		b.must(held.Lock(ctx))
		fickle, cancel := context.WithCancel(ctx)
		gone := b.startWaiter(ContextWithOwner(fickle), k.one(b.shaky(), b.name))
		next, owner := k.one(b.client(WithPollInterval(time.Hour)), b.name), ContextWithOwner(ctx)
		got := make(chan error, 1)
		go func() { got <- next.Lock(owner) }()
		stays(b, "it is held", got, 100*time.Millisecond)
		b.proxy.On(k.rollsBack, testredis.LoseReply).Times(k.parts)
		cancel()
		b.mustBe(await(b.bench, "the waiter gives up", gone), context.Canceled)
		b.must(held.Unlock(ctx))
		select {
		case err := <-got:
			b.must(err)
		case <-time.After(record.FairLife - record.FairHeartbeat):
			require.Fail(b, "the waiter that gave up is still in the queue")
		}
		b.must(next.Unlock(owner))
	})
}

// Row 11: the subscription connection is killed, and the message is lost with it.
func TestFaultWaiterSurvivesAKilledSubscription(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		held := k.rival(b.direct, b.name)
		waiting := k.one(b.client(WithPollInterval(time.Hour)), b.name)
		for range 3 {
			owner := ContextWithOwner(ctx)
			b.must(held.Lock(ctx))
			got := b.startWaiter(owner, waiting)
			b.must(b.rdb.Do(ctx, "client", "kill", "type", "pubsub").Err())
			b.must(held.Unlock(ctx))
			b.must(await(b.bench, "the waiter notices", got))
			b.must(waiting.Unlock(owner))
		}
	})
}

// Row 12: the subscription connection stops delivering.
func TestFaultWaiterSurvivesASilentSubscription(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		held := k.rival(b.direct, b.name)
		b.must(held.Lock(ctx))
		owner := ContextWithOwner(ctx)
		waiting := k.one(b.shaky(WithPollInterval(time.Hour)), b.name)
		got := b.startWaiter(owner, waiting)
		b.proxy.BlackHole(true)
		b.must(held.Unlock(ctx))
		time.Sleep(100 * time.Millisecond) // the message is lost in the black hole, and leaves nothing to wait for
		b.proxy.CutAll()                   // data in flight are lost
		b.proxy.BlackHole(false)
		select {
		case err := <-got:
			b.must(err)
		case <-time.After(4 * soon):
			require.Fail(b, "the waiter sleeps while the lock is free")
		}
		b.must(waiting.Unlock(owner))
	})
}

// Row 13: a waiter polls even if its subscription is never confirmed.
func TestFaultWaiterPollsWithoutASubscription(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		held := k.rival(b.direct, b.name)
		b.must(held.Lock(ctx))
		rule := b.proxy.On(testredis.Command("subscribe"), testredis.StallReply).Times(testredis.Always)
		got := make(chan error, 1)
		owner := ContextWithOwner(ctx)
		waiting := k.one(b.shaky(WithPollInterval(100*time.Millisecond)), b.name)
		go func() { got <- waiting.Lock(owner) }()
		await(b.bench, "the subscription is not answered", rule.Fired())
		b.must(held.Unlock(ctx))
		b.must(await(b.bench, "the waiter notices by itself", got))
		b.must(waiting.Unlock(owner))
		rule.Release()
	})
}

// Row 13: a TryLock whose subscription is never confirmed asks once more when its time is up, so that it does not
// report a free lock as busy.
func TestFaultTryLockWithoutASubscriptionAsksOnceMore(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		held := k.rival(b.direct, b.name)
		b.must(held.Lock(ctx))
		rule := b.proxy.On(testredis.Command("subscribe"), testredis.StallReply).Times(testredis.Always)
		type result struct {
			ok  bool
			err error
		}
		got := make(chan result, 1)
		owner := ContextWithOwner(ctx)
		waiting := k.one(b.patientClient(WithPollInterval(time.Hour)), b.name)
		go func() {
			ok, err := waiting.TryLock(owner, 3*time.Second, 0)
			got <- result{ok, err}
		}()
		await(b.bench, "the subscription is not answered", rule.Fired())
		b.must(held.Unlock(ctx))
		r := await(b.bench, "TryLock", got)
		b.must(r.err)
		if assert.True(b, r.ok, "the lock is free") {
			b.must(waiting.Unlock(owner))
		}
		rule.Release()
	})
}

// Row 39: the pool has no connection available.
func TestFaultExhaustedPoolDelaysNoRenewal(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		rdb := b.server.Client(func(o *redis.Options) {
			o.PoolSize, o.PoolTimeout = 1, time.Minute
			if strings.HasPrefix(redis.Version(), "9.22.") { // which has a pool for pipelines only if one of its options is set
				o.PipelineReadBufferSize = 32 << 10
			}
		})
		const lease = 3 * time.Second
		l := k.one(b.clientOn(rdb, WithWatchdogTimeout(lease)), b.name)
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		conn := rdb.Conn()
		b.must(conn.Ping(ctx).Err())
		if !k.red { // a RedLock works without one node of three
			deadline, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			start := time.Now()
			b.mustBe(k.one(b.clientOn(rdb), b.name+"-other").Lock(deadline), context.DeadlineExceeded)
			took := time.Since(start)
			assert.LessOrEqual(b, took, soon)
		}
		select {
		case <-guarded.Done():
			assert.Fail(b, "the watchdog starved", context.Cause(guarded))
		case <-time.After(lease + lease/4):
		}
		b.must(conn.Close())
		b.must(l.Unlock(ctx))
	})
}

// Row 50: the Redis client is closed before the relock client.
func TestFaultClosedRedisClientIsAnError(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		rdb := b.server.Client()
		c := b.clientOn(rdb)
		l := k.one(c, b.name)
		b.must(l.LockLease(ctx, 3*time.Second))
		b.must(rdb.Close())
		if k.red { // a RedLock works without one node of three
			b.must(l.Lock(ctx))
			b.must(l.Unlock(ctx))
			b.must(l.Unlock(ctx))
			b.must(c.Close())
			return
		}
		assert.ErrorIs(b, k.one(c, b.name+"-2").Lock(ctx), redis.ErrClosed, "Lock")
		start := time.Now()
		assert.ErrorIs(b, l.Unlock(ctx), redis.ErrClosed, "Unlock")
		assert.LessOrEqual(b, time.Since(start), soon/2, "Unlock")
		b.must(c.Close())
	})
}

// Row 57: locks of different kinds have one name. They exclude one another, or return an error.
func TestFaultLocksOfDifferentKindsExclude(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	for _, one := range faultLocks {
		for _, other := range faultLocks {
			if one.asks+one.parts+other.asks+other.parts > 4 || one.shared && other.shared {
				continue // it consists of others, or is meant to be shared
			}
			t.Run(one.name+" and "+other.name, func(t *testing.T) {
				b := newFaultBenchOn(t, s)
				ctx := context.Background()
				if one.record != other.record {
					l, next := one.one(b.direct, b.name), other.one(b.client(), b.name)
					b.must(l.Lock(ctx))
					b.mustBe(next.Lock(ctx), ErrNotALock)
					b.must(l.Unlock(ctx))
					return
				}
				l, next := one.one(b.direct, b.name), other.one(b.client(WithPollInterval(50*time.Millisecond)), b.name)
				b.must(l.Lock(ctx))
				ok, err := next.TryLock(ctx, 0, 0)
				require.False(t, ok, "a second holder")
				require.NotErrorIs(t, err, context.DeadlineExceeded)
				owner := ContextWithOwner(ctx)
				got := make(chan error, 1)
				go func() { got <- next.Lock(owner) }()
				stays(b, "a second holder, or an error", got, 20*time.Millisecond)
				assert.ErrorIs(t, next.Unlock(ctx), ErrNotHeld, "Unlock of a lock of another kind")
				b.holds(l, 1)
				b.must(l.Unlock(ctx))
				b.must(await(b.bench, "the next one notices", got))
				b.tries(l, false)
				b.must(next.Unlock(owner))
			})
		}
	}
}

// A host that is down accepts no connection and refuses none: no call takes longer than documented.
func TestFaultUnreachableHostDelaysCallsNoLongerThanDocumented(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	h := newHole(t)
	defer h.end()
	server := testredis.Start(t)
	c := b.clientOn(server.Client(func(o *redis.Options) { o.Dialer = h.dialer }))
	l := c.NewLock(b.name)
	ctx := context.Background()
	b.must(l.Lock(ctx))
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
			b := &bench{T: t, name: "unlock-time"}
			rdb := server.Client(func(o *redis.Options) { o.ReadTimeout, o.PoolSize = readTimeout, 1 })
			c := b.clientOn(rdb)
			l := c.NewLock(b.name)
			ctx := context.Background()
			b.must(l.Lock(ctx))
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
	processHook      // a hook for pipelines and connections, which it passes on
	obeys       bool // whether it respects NoRetry
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

// If a hook sends an Unlock again by itself, it hides that the first one has run: docs/client.md. The lock is free all
// the same.
func TestHookThatRepeatsMakesUnlockReportALoss(t *testing.T) {
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		first := k.one(b.client(), b.name) // loads the scripts
		b.must(first.Lock(ctx))
		b.must(first.Unlock(ctx))
		for _, obeys := range []bool{false, true} {
			rdb := testredis.Client(b, b.addr)
			rdb.AddHook(repeatingHook{func(send func() error) error { return send() }, obeys})
			l := k.one(b.clientOn(rdb), b.name)
			b.must(l.Lock(ctx))
			err := l.Unlock(ctx)
			if obeys {
				b.must(err)
			} else if !k.red { // the nodes of a RedLock have clients without the hook
				b.mustBe(err, ErrLockLost)
			}
			b.isLocked(k.one(b.client(), b.name), false)
		}
	})
}

// Row 76: the network loses answers for a while, and connections stay as they are. Without a read timeout go-redis waits
// for these answers for ever, and soon has no connection left.
func TestFaultSilentNetworkWithoutAReadTimeout(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	c := b.clientOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout, o.PoolSize = -1, 3 }))
	l := c.NewLock(b.name)
	b.must(l.Lock(ctx))
	b.must(l.Unlock(ctx))
	silent := b.proxy.On(func([]string) bool { return true }, testredis.StallReply).Times(testredis.Always)
	for range 4 {
		deadline, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		assert.Error(b, l.Lock(deadline))
		cancel()
	}
	silent.Release()
	testredis.Await(b, "the lock is acquired again", soon+send.ConnectTime, func() bool {
		deadline, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		return l.Lock(deadline) == nil
	})
	b.must(l.Unlock(ctx))
}

// deadlinelessConn is a connection that does not support deadlines, such as one over SSH.
type deadlinelessConn struct{ net.Conn }

var errNoDeadlines = errors.New("deadline not supported")

func (deadlinelessConn) SetDeadline(time.Time) error      { return errNoDeadlines }
func (deadlinelessConn) SetReadDeadline(time.Time) error  { return errNoDeadlines }
func (deadlinelessConn) SetWriteDeadline(time.Time) error { return errNoDeadlines }

// With a timeout of -2 go-redis sets no deadlines, and relock sets none either.
func TestConnectionsWithoutDeadlines(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b, ctx := newBench(t, addr), context.Background()
		c := b.clientOn(testredis.Client(t, addr, func(o *redis.Options) {
			o.ReadTimeout, o.WriteTimeout = -2, -2
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				var d net.Dialer
				conn, err := d.DialContext(ctx, network, addr)
				return deadlinelessConn{conn}, err
			}
		}))
		l := c.NewLock(b.name)
		for range 20 {
			b.must(l.Lock(ctx))
			b.must(l.Unlock(ctx))
		}
	})
}
