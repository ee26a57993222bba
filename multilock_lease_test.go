package relock

// How long the locks of a MultiLock last.
//
// Rules: there is one deadline, and one lease, which starts for all locks when the last one is acquired: they end
// together. At least half of it is left when the caller gets the locks, however late the answers are.

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// If its last lock always expires before the others have their lease, that is an error, and nothing of it is left:
// otherwise the next Lock would acquire again a lock that outlived it, and no Unlock would follow.
func TestMultiLockThatExpiresAtOnceIsNotReported(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	proxy := testredis.NewProxy(t, b.addr)
	ctx := context.Background()
	c := b.clientOn(proxy.Client())
	l := c.NewMultiLock(c.NewLock(b.name+"-1"), c.NewFairLock(b.name+"-2")) // in two steps
	b.must(l.LockLease(ctx, time.Second))                                   // loads its scripts
	b.must(l.Unlock(ctx))

	inUse := c.engine.Probe().KeepInUse(b.name + "-1") // so it acquires one step after the other
	const latency = 40 * time.Millisecond
	proxy.Latency(latency)
	ok, err := l.TryLock(ctx, soon, 3*latency) // a step takes two thirds of that
	proxy.Latency(0)
	inUse()
	b.mustBe(err, ErrLockLost)
	assert.False(t, ok, "it is held, and over")
	_, err = l.Guard(ctx)
	b.mustBe(err, ErrNotHeld)
	for _, part := range l.many.locks {
		testredis.Await(
			b,
			part.Name()+" is released",
			soon,
			func() bool { return b.rdb.Exists(ctx, part.Name()).Val() == 0 },
		)
	}
	b.must(l.Lock(ctx))
	b.must(l.Unlock(ctx))
}

// The first try of an attempt on several locks runs late, when its owner has unlocked one of them: the owner does not
// lose the other one.
func TestMultiLockLateTryTakesNoLockFromItsOwner(t *testing.T) {
	b := newFaultBench(t)
	ctx := ContextWithOwner(context.Background())
	c := b.clientOn(b.proxy.Client())
	one, two := c.NewLock(b.name+"1"), c.NewLock(b.name+"2")
	late := b.proxy.On(calls(bundleScript), testredis.HoldRequest)
	b.must(c.NewMultiLock(one, two).Lock(ctx)) // the second try
	<-late.Fired()
	b.must(two.Unlock(ctx))
	guarded, err := one.Guard(ctx)
	b.must(err)
	late.Release()
	testredis.Await(b, "the first try has ended", soon, func() bool { return c.engine.Probe().Stats().Late == 0 })
	held, err := one.HoldCount(ctx)
	b.must(err)
	assert.Equal(t, 1, held)
	b.must(guarded.Err())
	b.must(one.Unlock(ctx))
	assert.Zero(t, b.rdb.Exists(ctx, one.Name(), two.Name()).Val())
}

// At least half of an explicit lease remains when LockLease returns, although an answer was late: that of an attempt,
// or that of the request that starts the leases of all steps together.
func TestMultiLockLateAnswerLeavesHalfOfTheLease(t *testing.T) {
	t.Parallel()
	for what, late := range map[string]testredis.Match{"attempt": calls(fairAcquire), "start": calls(renewScript)} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			const lease = time.Second
			b := newFaultBenchOn(t, testredis.Start(t))
			ctx := ContextWithOwner(context.Background())
			c := b.bench.clientOn(b.proxy.Client())
			l := c.NewMultiLock(c.NewLock(b.name+"-1"), c.NewFairLock(b.name+"-2")) // in two steps
			if what == "start" {
				inUse := c.engine.Probe().KeepInUse(b.name + "-1") // so it acquires one step after the other
				defer inUse()
			}
			rule := b.proxy.On(late, testredis.DelayReply(870*time.Millisecond))
			b.must(l.LockLease(ctx, lease))
			assert.Positive(t, rule.Count())
			guarded, err := l.Guard(ctx)
			b.must(err)
			stays(b, "hardly anything was left of the lease", guarded.Done(), lease/2-50*time.Millisecond)
			_ = l.Unlock(ctx) // the lease may have expired
		})
	}
}

// A TryLock without a wait gives up soon if Redis stops answering after the first lock was acquired, and releases what
// it has acquired in the background.
func TestMultiLockGivesUpASilentRedisSoon(t *testing.T) {
	t.Parallel()
	for what, silent := range map[string]testredis.Match{"attempt": anyOf(fairAcquire, lockRelease),
		"start": anyOf(renewScript, lockRelease)} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := newFaultBenchOn(t, testredis.Start(t))
			ctx := ContextWithOwner(context.Background())
			c := b.patientClient()
			l := c.NewMultiLock(c.NewLock(b.name+"-1"), c.NewFairLock(b.name+"-2")) // in two steps
			b.must(l.Do(ctx, func(context.Context) error { return nil }))
			rule := b.proxy.On(silent, testredis.HoldRequest).Times(testredis.Always)
			start := time.Now()
			ok, err := l.TryLock(ctx, 0, time.Minute)
			assert.Less(t, time.Since(start), testredis.Scale(start, 2*time.Second+3*send.Slack))
			b.mustBe(err, engine.ErrNoAnswer)
			assert.False(t, ok)
			rule.Release()
			b.freeSoon()
		})
	}
}

// One deadline applies to all locks, and the locks that were acquired are released.
func TestMultiLockHasOneDeadlineForAll(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	c, other := b.client(), b.client()
	kinds := func(c *Client) []Locker {
		return []Locker{c.NewLock(b.name + "-1"), c.NewFairLock(b.name + "-2"), newWriteLock(c, b.name+"-3")}
	}
	l := c.NewMultiLock(kinds(c)...)
	const wait = time.Second
	for _, busy := range kinds(other) {
		b.must(busy.Lock(ctx))
		start := time.Now()
		ok, err := l.TryLock(ctx, wait, 0)
		took := time.Since(start)
		require.NoError(t, err)
		assert.False(t, ok)
		assert.GreaterOrEqual(t, took, wait)
		assert.LessOrEqual(t, took, wait+soon)
		deadline, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		b.mustBe(l.Lock(deadline), context.DeadlineExceeded)
		cancel()
		b.tries(l, false)
		for _, free := range kinds(other) {
			if free.Name() == busy.Name() {
				continue
			}
			b.triesFor(ctx, free, soon, true) // it was released
			b.must(free.Unlock(ctx))
		}
		b.must(busy.Unlock(ctx))
	}
}

// An additional acquire is valid no longer than its lease, which starts before the request is sent, even for the last
// lock.
func TestMultiLockReentryIsValidNoLongerThanItsLease(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	proxy := testredis.NewProxy(t, b.addr)
	ctx := context.Background()
	c := b.clientOn(proxy.Client())
	last := b.name + "-2"
	l := c.NewMultiLock(c.NewLock(b.name+"-1"), c.NewFairLock(last))
	b.must(l.LockLease(ctx, 2500*time.Millisecond))
	proxy.Latency(200 * time.Millisecond)
	err := l.LockLease(ctx, 2*time.Second) // the steps take half of that
	proxy.Latency(0)
	b.must(err)
	guarded, err := l.Guard(ctx)
	b.must(err)
	rival := b.client().NewLock(last)
	b.must(rival.Lock(ctx))
	assert.Error(t, guarded.Err(), "a rival has a lock that is still trusted")
	b.must(rival.Unlock(ctx))
}

// A lease starts for each of them exactly when the last one was acquired.
func TestMultiLockLeaseBeginsWithTheLast(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		for _, lease := range []time.Duration{3 * time.Second, time.Hour} { // shorter and longer than the watchdog timeout
			b := newBench(t, addr)
			ctx := context.Background()
			c, other := b.client(), b.client()
			early := []Locker{c.NewLock(b.name + "-1"), newWriteLock(c, b.name+"-2"), newReadLock(c, b.name+"-3")}
			before := c.NewLock(b.name + "-4")
			b.must(before.LockLease(ctx, 2*time.Hour)) // already held
			last := other.NewFairLock(b.name + "-last")
			b.must(last.Lock(ctx))
			// A fair lock comes before a plain one; a foreign Locker comes last.
			l := c.NewMultiLock(append(early, before, stubLocker{Locker: c.NewFairLock(b.name + "-last")})...)
			got := make(chan error)
			owned := engine.OwnerOf(ctx).In(ctx)
			go func() { got <- l.LockLease(owned, lease) }()
			testredis.Await(b, "the others are held", soon, func() bool {
				for _, e := range early {
					if held, err := e.IsHeld(ctx); !held || err != nil {
						return false
					}
				}
				return true
			})
			time.Sleep(2500 * time.Millisecond)
			b.must(last.Unlock(ctx))
			b.must(await(b, "all are free", got))
			for _, e := range early {
				ttl, err := e.TTL(ctx)
				require.NoError(t, err)
				assert.LessOrEqual(t, ttl, lease, e.Name())
				assert.GreaterOrEqual(t, ttl, lease-2300*time.Millisecond, e.Name())
			}
			ttl, err := before.TTL(ctx)
			require.NoError(t, err)
			assert.GreaterOrEqual(t, ttl, time.Hour+time.Minute, "left of what was held longer")
			b.must(l.Unlock(ctx))
			b.holds(before, 1)
			b.must(before.Unlock(ctx))
		}
	})
}

// While a MultiLock of several steps waits for the last one, it extends an explicit lease of the others, however long
// that takes, and shortens none. When the lease ends, nothing stays in Redis.
func TestMultiLockKeepsAnExplicitLeaseWhileItWaits(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t, testredis.Start(t).Addr()), context.Background()
	c, other := b.client(), b.client()
	last := other.NewFairLock(b.name + "-last")
	b.must(last.Lock(ctx))
	const lease = 500 * time.Millisecond
	got := make(chan error)
	owned := ContextWithOwner(ctx)
	early := b.name + "-1"
	l := c.NewMultiLock(c.NewFairLock(early), stubLocker{Locker: c.NewFairLock(b.name + "-last")})
	go func() { got <- l.LockLease(owned, lease) }()
	extended, left := 0, time.Duration(0)
	testredis.Await(b, "the lease was extended beyond its first end", time.Minute, func() bool {
		now := b.rdb.PTTL(ctx, early).Val()
		assert.LessOrEqual(b, now, leastKept)
		if now > left && left > 0 {
			extended++
		}
		left = now
		return extended >= 4
	})
	b.must(last.Unlock(ctx))
	b.must(await(b, "all are free", got))
	testredis.Await(b, "its lease has ended", time.Minute, func() bool { return len(b.keys()) == 0 })
	assert.Zero(b, c.engine.Probe().Stats().Late)
}

// The same for a step that is a RedLock: its lease is extended at each of the nodes.
func TestMultiLockKeepsTheLeaseOfARedLockWhileItWaits(t *testing.T) {
	b, ctx := newSmallRedBench(t), ContextWithOwner(context.Background())
	red := b.lock()
	others := make(chan struct{})
	last := stubLocker{Locker: b.client().NewLock(b.name + "-last")}
	last.tryLock = func(ctx context.Context, wait, lease time.Duration) (bool, error) {
		<-others // hold it until then
		return last.Locker.TryLock(ctx, wait, lease)
	}
	l := b.client().NewMultiLock(red, last)
	const lease = 500 * time.Millisecond
	got := make(chan error)
	go func() {
		ok, err := l.TryLock(ctx, time.Minute, lease)
		assert.True(b, ok)
		got <- err
	}()
	left := make([]time.Duration, len(b.nodes))
	extended := make([]int, len(b.nodes))
	testredis.Await(b, "the lease was extended at all nodes", soon, func() bool {
		for i, rdb := range b.nodes {
			now := rdb.PTTL(ctx, b.name).Val()
			if now > left[i] && left[i] > 0 {
				extended[i]++
			}
			left[i] = now
		}
		return slices.Min(extended) >= 2
	})
	close(others)
	b.must(await(b.bench, "all are free", got))
	testredis.Await(b, "its lease has ended", soon, func() bool { return b.has() == 0 })
	b.mustBe(l.Unlock(ctx), ErrLockLost)
}

// The locks end together also if MaxHold ends one of the first steps sooner than the lease of the last one.
func TestMultiLockEndsTogetherAtMaxHold(t *testing.T) {
	t.Parallel()
	b, ctx := newBench(t, testredis.Start(t).Addr()), ContextWithOwner(context.Background())
	c := b.client()
	const lease = time.Minute
	first, second := c.NewFairLock(b.name+"-1", MaxHold(lease)), c.NewFairLock(b.name+"-2")
	l := c.NewMultiLock(first, second)
	b.must(second.Lock(context.Background()))
	got := make(chan error)
	go func() { got <- l.LockLease(ctx, lease) }()
	testredis.Await(b, "the first one is held", soon, func() bool {
		held, err := first.IsHeld(ctx)
		return held && err == nil
	})
	b.must(second.Unlock(context.Background()))
	b.must(await(b, "both are free", got))
	p, o := c.engine.Probe(), engine.OwnerOf(ctx)
	assert.Equal(t, p.LeasesEnd(first.lock, o), p.LeasesEnd(second.lock, o))
	b.must(l.Unlock(ctx))
}
