package relock

// Extend, of single locks and of several at once.
//
// Rules: an Extend never shortens a lease, never goes beyond MaxHold, and leaves half of the lease to its caller. A
// MultiLock needs all its locks, a RedLock a majority, and their locks end together.

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/testredis"
)

// A Lock inside a hold with an explicit lease starts its automatic renewal, and Extend returns an error from then on.
func TestHoldThatTheWatchdogTookOverIsNotExtended(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	l := b.client().NewLock(b.name)
	h := b.holdFor(l, time.Minute)
	b.must(l.Lock(h.Context()))
	b.mustBe(h.Extend(ctx, time.Hour), ErrInvalid)
	b.must(l.Unlock(h.Context()))
	b.must(h.Release(ctx))
}

// MaxHold counts from the beginning of the hold, and an Extend beyond it changes nothing.
func TestExtendGoesNotBeyondMaxHold(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewLock(b.name, MaxHold(time.Minute))
		h := b.holdFor(l, time.Second)
		b.must(h.Extend(ctx, 30*time.Second))
		err := h.Extend(ctx, time.Minute)
		b.mustBe(err, ErrInvalid)
		assert.ErrorContains(t, err, "MaxHold")
		ttl, err := l.TTL(ctx)
		b.must(err)
		assert.LessOrEqual(t, ttl, 30*time.Second, "TTL")
		b.must(h.Context().Err())
		b.must(h.Release(ctx))
	})
}

// S3: an Extend whose answer is lost is sent again.
func TestFaultLostAnswerOfExtend(t *testing.T) {
	t.Parallel()
	server := oneRedis(t)
	for name, fault := range map[string]testredis.Fault{
		"connection closed": testredis.LoseReply,
		"no answer":         testredis.StallReply,
		"not even run":      testredis.DropRequest,
	} {
		t.Run(name, func(t *testing.T) {
			onFaultLocks(t, server, func(b *faultBench, k faultLock) {
				ctx := context.Background()
				h := b.holdFor(k.one(b.patientClient(), b.name), 40*time.Second)
				rule := b.proxy.On(k.renews, fault).Times(k.asks)
				b.must(h.Extend(ctx, 2*time.Minute))
				require.NotZero(b, rule.Count(), "nothing was lost")
				rule.Release()
				ttl, err := k.one(b.direct, b.name).TTL(ctx)
				b.must(err)
				assert.GreaterOrEqual(b, ttl, time.Minute, "TTL")
				b.must(h.Context().Err())
				b.must(h.Release(ctx))
			})
		})
	}
}

// S3, S4: an Extend that was given up and runs late shortens nothing, creates nothing, and leaves nothing.
func TestFaultLateExtend(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		h := b.holdFor(k.one(b.clientOn(b.proxy.Client()), b.name), 40*time.Second)
		late := b.proxy.On(k.renews, testredis.HoldRequest).Times(testredis.Always)
		hurried, cancel := context.WithCancel(ctx)
		given := make(chan error, 1)
		go func() { given <- h.Extend(hurried, time.Second) }()
		await(b.bench, "the request is under way", late.Fired())
		cancel()
		b.mustBe(await(b.bench, "Extend gives up", given), context.Canceled)
		b.must(h.Context().Err())
		ran := b.scriptRuns()
		late.Release()
		testredis.Await(b, "the late request has run", soon, func() bool { return b.scriptRuns() > ran })
		ttl, err := k.one(b.direct, b.name).TTL(ctx)
		b.must(err)
		assert.GreaterOrEqual(b, ttl, 10*time.Second, "TTL")
		b.must(h.Release(ctx))
	})
}

// A RedLock extends its lease at a majority. With too few nodes the error has the answer of each of them, and the
// validity of the hold does not change.
func TestRedLockExtendNeedsAMajority(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	h := b.holdFor(b.lock(WithRedLockNodeTimeout(time.Second)), time.Minute)
	within := h.Context()
	for _, s := range b.servers[:2] {
		s.Freeze()
	}
	b.must(h.Extend(ctx, 2*time.Minute))
	b.servers[2].Freeze()
	err := h.Extend(ctx, time.Hour)
	assert.NotErrorIs(t, err, ErrLockLost)
	assert.Equal(t, 2, b.quorumError(err).Granted, "nodes that extended the lease")
	b.must(within.Err())

	b.back(false, b.servers[:3]...)
	b.forget()
	err = h.Extend(ctx, time.Minute)
	b.mustBe(err, ErrLockLost)
	b.ends(within, ErrLockLost)
	b.mustBe(h.Release(ctx), ErrLockLost)
}

// Some of the locks are renewed automatically, because the owner has acquired them by themselves. Extend extends the
// others.
func TestExtendOfSeveralLocksLeavesThoseThatAreRenewed(t *testing.T) {
	for name, newLock := range map[string]func(c *Client, locks []Locker) Locker{
		"MultiLock": func(c *Client, locks []Locker) Locker { return c.NewMultiLock(locks...) },
		"RedLock":   func(c *Client, locks []Locker) Locker { return c.NewRedLock(locks...) },
		"RedLock of MultiLocks": func(c *Client, locks []Locker) Locker {
			return c.NewRedLock(c.NewMultiLock(locks[0]), c.NewMultiLock(locks[1]), locks[2])
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newSmallRedBench(t)
			ctx := context.Background()
			locks := b.nodeLocks()
			h := b.holdFor(newLock(b.client(), locks), time.Minute)
			testredis.Await(b, "all are held", soon, func() bool { return b.has() == 3 })
			for _, renewed := range locks[:2] {
				b.must(renewed.Lock(h.Context()))
				b.must(renewed.Unlock(h.Context()))
			}
			b.must(h.Extend(ctx, time.Hour))
			ttl, err := locks[2].TTL(ctx)
			b.must(err)
			assert.Greater(t, ttl, 2*time.Minute)
			b.must(h.Release(ctx))
		})
	}
}

// A RedLock whose Extend a majority did not answer ends with the lease that it has. Its remaining holds at the nodes
// are released by the hold of the RedLock, which has no record of its own.
func TestRedLockEndsAfterAnExtendInVain(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	h := b.holdFor(b.lock(WithRedLockNodeTimeout(200*time.Millisecond)), time.Second)
	within := h.Context()
	for _, s := range b.servers[:3] {
		s.Freeze()
	}
	assert.NotErrorIs(t, h.Extend(ctx, time.Minute), ErrLockLost)
	b.ends(within, ErrLockLost)
	b.back(false, b.servers[:3]...)
	b.mustBe(h.Release(ctx), ErrLockLost)
}

// A MultiLock that has lost one lock is lost, whatever the other locks return.
func TestMultiLockExtendNeedsAllLocks(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		h := b.holdFor(newMultiLock(b.client(), b.name), time.Minute)
		b.must(h.Extend(ctx, time.Minute))
		b.must(b.rdb.Del(ctx, b.name+"-second").Err())
		b.mustBe(h.Extend(ctx, time.Minute), ErrLockLost)
		b.ends(h.Context(), ErrLockLost)
		b.mustBe(h.Release(ctx), ErrLockLost)
	})
}

// The locks of a MultiLock end together even if one of them was valid for longer.
func TestMultiLockEndsTogetherAfterExtend(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	c := b.client()
	l := newMultiLock(c, b.name).(*MultiLock)
	h := b.holdFor(l, time.Minute)
	b.must(h.Extend(ctx, time.Hour))
	ends := make(map[time.Time]bool)
	for _, s := range l.many.steps {
		for _, id := range s.ids {
			ends[c.engine.Probe().LeasesEnd(id, h.owner())] = true
		}
	}
	assert.Len(t, ends, 1, "times at which the locks end")
	b.must(h.Release(ctx))
}

// An Extend that one of the locks refuses makes none of the others last for longer: they still end together.
func TestMultiLockEndsTogetherAfterAnExtendInVain(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	c := b.client()
	limited, other := c.NewLock(b.name, MaxHold(time.Minute)), c.NewLock(b.name+"-b")
	h := b.holdFor(c.NewMultiLock(limited, other), time.Minute)
	p := c.engine.Probe()
	end := p.LeasesEnd(other.lock, h.owner())
	b.mustBe(h.Extend(ctx, time.Hour), ErrInvalid)
	assert.Equal(t, end, p.LeasesEnd(other.lock, h.owner()))
	assert.Equal(t, end, p.LeasesEnd(limited.lock, h.owner()))
	b.must(h.Context().Err())
	b.must(h.Release(ctx))
}

// An Extend of a MultiLock does not end one of its locks because the owner has released another one meanwhile, as a
// Release under way does.
func TestMultiLockIsReleasedWhileItIsExtended(t *testing.T) {
	b, ctx := newFaultBench(t), ContextWithOwner(context.Background())
	early, late := b.direct.NewLock(b.name), b.patientClient().NewLock(b.name+"-b")
	l := b.direct.NewMultiLock(early, late)
	b.must(l.LockLease(ctx, time.Minute))
	rule := b.proxy.On(calls(renewScript), testredis.HoldRequest)
	extended := make(chan error, 1)
	go func() { extended <- l.many.extend(ctx, time.Hour) }()
	await(b.bench, "the request for the second lock is under way", rule.Fired())
	testredis.Await(b, "the first one is extended", soon, func() bool {
		return time.Until(early.client.engine.Probe().LeasesEnd(early.lock, engine.OwnerOf(ctx))) > time.Minute
	})
	b.must(early.Unlock(ctx))
	rule.Release()
	b.must(await(b.bench, "both are extended", extended))
	b.must(late.Unlock(ctx))
}

// A Locker of another package is extended by acquiring it once more. It may have lost its hold without an error.
func TestExtendOfForeignLockers(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	c := b.client()
	foreign := stubLocker{Locker: c.NewLock(b.name)}
	h := b.holdFor(c.NewMultiLock(foreign, c.NewLock(b.name+"-b")), time.Minute)
	b.must(h.Extend(ctx, time.Hour))
	ttl, err := c.NewLock(b.name).TTL(ctx)
	b.must(err)
	assert.GreaterOrEqual(t, ttl, 50*time.Minute, "TTL")
	b.must(h.Release(ctx))

	l := c.NewLock(b.name)
	owner := ContextWithOwner(ctx)
	b.must(l.LockLease(owner, time.Minute))
	ended, end := context.WithCancel(ctx)
	foreign.guard = func(context.Context) (context.Context, error) { return ended, nil }
	foreign.tryLock = func(context.Context, time.Duration, time.Duration) (bool, error) {
		end()
		return l.TryLock(owner, 0, time.Minute)
	}
	b.mustBe(extendLocker(owner, foreign, time.Minute), ErrLockLost)
	foreign.guard = nil
	foreign.tryLock = func(context.Context, time.Duration, time.Duration) (bool, error) { return false, nil }
	b.mustBe(extendLocker(owner, foreign, time.Minute), ErrLockLost)
	b.must(l.Unlock(owner))

	h = b.hold(c.NewMultiLock(stubLocker{Locker: l}))
	b.mustBe(h.Extend(ctx, time.Hour), ErrInvalid) // it is renewed automatically
	b.must(h.Release(ctx))
}

// At least half of the lease remains when Extend returns: if the answer is late, it asks again.
func TestExtendLeavesHalfOfTheLease(t *testing.T) {
	const lease = time.Second
	b := newFaultBench(t)
	ctx := context.Background()
	l := b.bench.clientOn(b.proxy.Client()).NewLock(b.name)
	var h *Hold
	for range 5 { // on a busy machine the first lease may have expired before the late answer arrives
		taken, ok, err := l.TryAcquire(ctx, time.Minute, lease+200*time.Millisecond)
		b.must(err)
		require.True(t, ok)
		late := b.proxy.On(calls(renewScript), testredis.DelayReply(860*time.Millisecond))
		h, err = taken, taken.Extend(ctx, lease)
		if !errors.Is(err, ErrLockLost) {
			b.must(err)
			break
		}
		await(b.bench, "the late answer", late.Fired())
		_ = taken.Release(ctx)
	}
	stays(b, "the lease was hardly extended", h.Context().Done(), lease/2-50*time.Millisecond)
	b.must(h.Release(ctx))
}
