package locks

// Extend, of single locks and of several at once.
//
// Rules: an Extend never shortens a lease, never goes beyond MaxHold, and leaves half of the lease to its caller. A
// MultiLock needs all its locks, a RedLock a majority, and their locks end together.

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A Lock inside a hold with an explicit lease starts its automatic renewal, and Extend returns an error from then on.
func TestHoldThatTheWatchdogTookOverIsNotExtended(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	l := b.Client().NewLock(b.LockName)
	h := b.HoldFor(l, time.Minute)
	b.Must(l.Lock(h.Context()))
	b.MustBe(h.Extend(ctx, time.Hour), ErrInvalid)
	b.Must(l.Unlock(h.Context()))
	b.Must(h.Release(ctx))
}

// MaxHold counts from the beginning of the hold, and an Extend beyond it changes nothing.
func TestExtendGoesNotBeyondMaxHold(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		l := b.Client().NewLock(b.LockName, MaxHold(time.Minute))
		h := b.HoldFor(l, time.Second)
		b.Must(h.Extend(ctx, 30*time.Second))
		err := h.Extend(ctx, time.Minute)
		b.MustBe(err, ErrInvalid)
		assert.ErrorContains(t, err, "MaxHold")
		ttl, err := l.TTL(ctx)
		b.Must(err)
		assert.LessOrEqual(t, ttl, 30*time.Second, "TTL")
		b.Must(h.Context().Err())
		b.Must(h.Release(ctx))
	})
}

// S3: an Extend whose answer is lost is sent again.
func TestFaultLostAnswerOfExtend(t *testing.T) {
	t.Parallel()
	server := locktest.OneRedis(t)
	for name, fault := range map[string]testredis.Fault{
		"connection closed": testredis.LoseReply,
		"no answer":         testredis.StallReply,
		"not even run":      testredis.DropRequest,
	} {
		t.Run(name, func(t *testing.T) {
			locktest.OnFaultLocks(t, server, func(b *locktest.FaultBench, k locktest.FaultLock) {
				h := b.HoldFor(k.One(b.PatientClient(), b.LockName), 40*time.Second)
				rule := b.Proxy.On(k.Renews, fault).Times(k.Asks)
				b.Must(h.Extend(ctx, 2*time.Minute))
				require.NotZero(b, rule.Count(), "nothing was lost")
				rule.Release()
				ttl, err := k.One(b.Direct, b.LockName).TTL(ctx)
				b.Must(err)
				assert.GreaterOrEqual(b, ttl, time.Minute, "TTL")
				b.Must(h.Context().Err())
				b.Must(h.Release(ctx))
			})
		})
	}
}

// S3, S4: an Extend that was given up and runs late shortens nothing, creates nothing, and leaves nothing.
func TestFaultLateExtend(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, locktest.OneRedis(t), func(b *locktest.FaultBench, k locktest.FaultLock) {
		h := b.HoldFor(k.One(b.ClientOn(b.Proxy.Client()), b.LockName), 40*time.Second)
		late := b.Proxy.On(k.Renews, testredis.HoldRequest).Times(testredis.Always)
		hurried, cancel := context.WithCancel(ctx)
		given := make(chan error, 1)
		go func() { given <- h.Extend(hurried, time.Second) }()
		locktest.Await(b.Bench, "the request is under way", late.Fired())
		cancel()
		b.MustBe(locktest.Await(b.Bench, "Extend gives up", given), context.Canceled)
		b.Must(h.Context().Err())
		ran := b.ScriptRuns()
		late.Release()
		testredis.Await(b, "the late request has run", locktest.Soon, func() bool { return b.ScriptRuns() > ran })
		ttl, err := k.One(b.Direct, b.LockName).TTL(ctx)
		b.Must(err)
		assert.GreaterOrEqual(b, ttl, 10*time.Second, "TTL")
		b.Must(h.Release(ctx))
	})
}

// A RedLock extends its lease at a majority. With too few nodes the error has the answer of each of them, and the
// validity of the hold does not change.
func TestRedLockExtendNeedsAMajority(t *testing.T) {
	b := newRedBench(t)
	h := b.HoldFor(lock(b, WithRedLockNodeTimeout(time.Second)), time.Minute)
	within := h.Context()
	for _, s := range b.Servers[:2] {
		s.Freeze()
	}
	b.Must(h.Extend(ctx, 2*time.Minute))
	b.Servers[2].Freeze()
	err := h.Extend(ctx, time.Hour)
	assert.NotErrorIs(t, err, ErrLockLost)
	assert.Equal(t, 2, quorumError(b, err).Granted, "nodes that extended the lease")
	b.Must(within.Err())

	back(b, false, b.Servers[:3]...)
	b.Forget()
	err = h.Extend(ctx, time.Minute)
	b.MustBe(err, ErrLockLost)
	b.Ends(within, ErrLockLost)
	b.MustBe(h.Release(ctx), ErrLockLost)
}

// A RedLock whose Extend a majority did not answer ends with the lease that it has. Its remaining holds at the nodes
// are released by the hold of the RedLock, which has no record of its own.
func TestRedLockEndsAfterAnExtendInVain(t *testing.T) {
	b := newRedBench(t)
	h := b.HoldFor(lock(b, WithRedLockNodeTimeout(200*time.Millisecond)), time.Second)
	within := h.Context()
	for _, s := range b.Servers[:3] {
		s.Freeze()
	}
	assert.NotErrorIs(t, h.Extend(ctx, time.Minute), ErrLockLost)
	b.Ends(within, ErrLockLost)
	back(b, false, b.Servers[:3]...)
	b.MustBe(h.Release(ctx), ErrLockLost)
}

// A MultiLock that has lost one lock is lost, whatever the other locks return.
func TestMultiLockExtendNeedsAllLocks(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		h := b.HoldFor(locktest.NewMultiLock(b.Client(), b.LockName), time.Minute)
		b.Must(h.Extend(ctx, time.Minute))
		b.Must(b.Rdb.Del(ctx, b.LockName+"-second").Err())
		b.MustBe(h.Extend(ctx, time.Minute), ErrLockLost)
		b.Ends(h.Context(), ErrLockLost)
		b.MustBe(h.Release(ctx), ErrLockLost)
	})
}

// At least half of the lease remains when Extend returns: if the answer is late, it asks again.
func TestExtendLeavesHalfOfTheLease(t *testing.T) {
	const lease = time.Second
	b := locktest.NewFaultBench(t)
	l := b.Bench.ClientOn(b.Proxy.Client()).NewLock(b.LockName)
	var h *Hold
	for range 5 { // on a busy machine the first lease may have expired before the late answer arrives
		taken, ok, err := l.TryAcquire(ctx, time.Minute, lease+200*time.Millisecond)
		b.Must(err)
		require.True(t, ok)
		late := b.Proxy.On(locktest.Calls(record.Script("renew")), testredis.DelayReply(860*time.Millisecond))
		h, err = taken, taken.Extend(ctx, lease)
		if !errors.Is(err, ErrLockLost) {
			b.Must(err)
			break
		}
		locktest.Await(b.Bench, "the late answer", late.Fired())
		_ = taken.Release(ctx)
	}
	locktest.Stays(b, "the lease was hardly extended", h.Context().Done(), lease/2-50*time.Millisecond)
	b.Must(h.Release(ctx))
}
