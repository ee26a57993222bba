//go:build go1.25

package engine

// Requests that run late, or whose answers are lost, and that do more than acquire: they extend a lease or rename a
// field. What this process knows of them is in internal/late and in record.expires.
//
// Rules: no request that runs late makes a record shorter than its hold, or longer than its limits.

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/fakeredis"
)

// late makes the n-th request with this verb (from 1) run late.
func runsLate(r *fakeredis.Redis, verb string, n int, f fakeredis.Fault) {
	seen := 0
	r.Set(func() {
		r.Fault = func(v string) (none fakeredis.Fault) {
			if v != verb {
				return none
			}
			if seen++; seen == n {
				return f
			}
			return none
		}
	})
}

// otherGets reports whether another Client gets the lock x now.
func otherGets(t *testing.T, r *fakeredis.Redis) bool {
	other := joinBubbleEngine(t, r, "other")
	ok, err := other.acquire(context.Background(), newFakeLock(r, "x"), 99, Request{})
	assert.NoError(t, err)
	if ok {
		assert.NoError(t, other.Release(context.Background(), newFakeLock(r, "x"), 99))
	}
	return ok
}

// A KeepLease of which a try runs late does not shorten the lease that Extend has set since.
func TestKeepLeaseThatRunsLateAfterExtend(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, l := context.Background(), newFakeLock(e.redis, "x")
		ok, err := e.acquire(ctx, l, 1, Request{Wait: forever, Lease: 5 * time.Second, LeastLease: 30 * time.Second})
		require.NoError(t, err)
		require.True(t, ok)
		runsLate(e.redis, "renew", 1, fakeredis.Fault{Late: 3 * time.Second})
		require.NoError(t, e.KeepLease(ctx, []Lock{l}, 1, 5*time.Second, time.Time{}))
		e.LimitValidity([]Lock{l}, 1, time.Now().Add(4*time.Second))
		require.NoError(t, e.Extend(ctx, l, 1, time.Hour))
		time.Sleep(10 * time.Second)
		assert.Equal(t, 1, levelsOf(e.Engine, l, 1), "the owner believes that it holds the lock")
		assert.False(t, otherGets(t, e.redis), "another Client gets the lock")
		_ = e.Release(ctx, l, 1)
	})
}

// The same, and the owner has acquired the lock again without an explicit lease.
func TestKeepLeaseThatRunsLateAfterAReentry(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, l := context.Background(), newFakeLock(e.redis, "x")
		ok, err := e.acquire(ctx, l, 1, Request{Wait: forever, Lease: 5 * time.Second, LeastLease: 30 * time.Second})
		require.NoError(t, err)
		require.True(t, ok)
		runsLate(e.redis, "renew", 1, fakeredis.Fault{Late: 2 * time.Second})
		require.NoError(t, e.KeepLease(ctx, []Lock{l}, 1, 5*time.Second, time.Time{}))
		e.LimitValidity([]Lock{l}, 1, time.Now().Add(4*time.Second))
		ok, err = e.acquire(ctx, l, 1, Request{Wait: forever})
		require.NoError(t, err)
		require.True(t, ok)
		time.Sleep(7 * time.Second)
		assert.Equal(t, 2, levelsOf(e.Engine, l, 1), "the owner believes that it holds the lock")
		assert.False(t, otherGets(t, e.redis), "another Client gets the lock")
		_ = e.Release(ctx, l, 1)
		_ = e.Release(ctx, l, 1)
	})
}

// Nothing fails: another goroutine of the owner acquires the lock again while the request of KeepLease is on its way.
func TestKeepLeaseBesideAReentry(t *testing.T) {
	for name, again := range map[string]Request{"lease": {Wait: forever, Lease: time.Hour}, "watchdog": {Wait: forever}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				ctx, l := context.Background(), newFakeLock(e.redis, "x")
				ok, err := e.acquire(ctx, l, 1, Request{Wait: forever, Lease: 3 * time.Second, LeastLease: 30 * time.Second})
				require.NoError(t, err)
				require.True(t, ok)
				runsLate(e.redis, "renew", 1, fakeredis.Fault{Late: 20 * time.Millisecond}) // an ordinary delay
				started := make(chan error)
				go func() { started <- e.KeepLease(ctx, []Lock{l}, 1, 3*time.Second, time.Time{}) }()
				synctest.Wait()
				ok, err = e.acquire(ctx, l, 1, again) // another goroutine of the same owner
				require.NoError(t, err)
				require.True(t, ok)
				require.NoError(t, <-started)
				e.LimitValidity([]Lock{l}, 1, time.Now().Add(2900*time.Millisecond))
				time.Sleep(4 * time.Second)
				assert.Equal(t, 2, levelsOf(e.Engine, l, 1), "the owner believes that it holds the lock")
				assert.False(t, otherGets(t, e.redis), "another Client gets the lock")
				_ = e.Release(ctx, l, 1)
				_ = e.Release(ctx, l, 1)
			})
		})
	}
}

// The record that MinHold leaves does not last longer because a try of an Extend runs late.
func TestMinHoldEndsInTimeAfterALateExtend(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, l := context.Background(), newLimitedLock(e.redis, Limits{MinHold: 20 * time.Second})
		ok, err := e.acquire(ctx, l, 1, Request{Wait: forever, Lease: 30 * time.Second})
		require.NoError(t, err)
		require.True(t, ok)
		runsLate(e.redis, "renew", 1, fakeredis.Fault{Late: 3 * time.Second})
		require.NoError(t, e.Extend(ctx, l, 1, time.Hour))
		require.NoError(t, e.Release(ctx, l, 1))
		time.Sleep(25 * time.Second)
		assert.Empty(t, e.redis.Holder("x"), "the record after MinHold")
	})
}

// The same for an Extend that got no answer.
func TestMinHoldEndsInTimeAfterAnUnansweredExtend(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, l := context.Background(), newLimitedLock(e.redis, Limits{MinHold: 20 * time.Second})
		ok, err := e.acquire(ctx, l, 1, Request{Wait: forever, Lease: 30 * time.Second})
		require.NoError(t, err)
		require.True(t, ok)
		runsLate(e.redis, "renew", 1, fakeredis.Fault{Late: 3 * time.Second})
		short, cancel := context.WithTimeout(ctx, time.Second/2)
		defer cancel()
		require.Error(t, e.Extend(short, l, 1, time.Hour))
		require.NoError(t, e.Release(ctx, l, 1))
		time.Sleep(25 * time.Second)
		assert.Empty(t, e.redis.Holder("x"), "the record after MinHold")
	})
}

// The same for a re-entry of which a try runs late.
func TestMinHoldEndsInTimeAfterALateReentry(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, l := context.Background(), newLimitedLock(e.redis, Limits{MinHold: 20 * time.Second})
		ok, err := e.acquire(ctx, l, 1, Request{Wait: forever, Lease: 30 * time.Second})
		require.NoError(t, err)
		require.True(t, ok)
		runsLate(e.redis, "acquire", 1, fakeredis.Fault{Late: 3 * time.Second})
		ok, err = e.acquire(ctx, l, 1, Request{Wait: forever, Lease: time.Hour})
		require.NoError(t, err)
		require.True(t, ok)
		require.NoError(t, e.Release(ctx, l, 1))
		require.NoError(t, e.Release(ctx, l, 1))
		time.Sleep(25 * time.Second)
		assert.Empty(t, e.redis.Holder("x"), "the record after MinHold")
	})
}

// A renewal that is under way may give the record a longer lease than the MaxHold of the next owner allows. So the lock is
// released in Redis instead of being handed off.
func TestNoHandoffToMaxHoldWhileARenewalIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := joinBubbleEngine(t, fakeredis.New(), "client", withSlice(time.Hour))
		ctx := context.Background()
		const most = 21 * time.Second
		first, second := newFakeLock(e.redis, "x"), newLimitedLock(e.redis, Limits{Max: most})
		ok, err := e.acquire(ctx, first, 1, Request{Wait: forever})
		require.NoError(t, err)
		require.True(t, ok)
		got := make(chan time.Time)
		go func() {
			ok, err := e.acquire(ctx, second, 2, Request{Wait: forever})
			assert.NoError(t, err)
			assert.True(t, ok)
			got <- time.Now()
		}()
		runsLate(e.redis, "renew", 1, fakeredis.Fault{Late: 500 * time.Millisecond})
		time.Sleep(10*time.Second + 100*time.Millisecond)
		require.Equal(t, 1, e.redis.Count("renew"))
		require.NoError(t, e.Release(ctx, first, 1))
		begin := <-got
		require.Equal(t, 2, e.redis.Count("acquire"), "it was not handed off")
		time.Sleep(time.Until(begin.Add(most + 50*time.Millisecond)))
		assert.Zero(t, levelsOf(e.Engine, second, 2))
		assert.Empty(t, e.redis.Holder("x"), "the record after MaxHold")
		_ = e.Release(ctx, second, 2)
	})
}

// A Detach of a hold with MinHold is not confirmed, and runs late: MinHold still ends in time.
func TestMinHoldEndsInTimeAfterALateDetach(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, l := context.Background(), newLimitedLock(e.redis, Limits{MinHold: 20 * time.Second})
		ok, err := e.acquire(ctx, l, 1, Request{Wait: forever})
		require.NoError(t, err)
		require.True(t, ok)
		e.redis.Set(func() {
			e.redis.Fault = func(v string) (f fakeredis.Fault) {
				if v == "rename" {
					f.Ghost = 6 * time.Second
				}
				return f
			}
		})
		_, ended, err := e.Detach(ctx, l, 1, time.Hour)
		require.Error(t, err)
		require.True(t, ended)
		time.Sleep(40 * time.Second)
		assert.Empty(t, e.redis.Holder("x"), "the record after MinHold")
	})
}

// partition loses the answer to the first request with this verb, which runs, and then all requests for d.
func partition(r *fakeredis.Redis, verb string, d time.Duration) {
	var end time.Time
	r.Set(func() {
		r.Fault = func(v string) (f fakeredis.Fault) {
			switch {
			case end.IsZero() && v == verb:
				end = time.Now().Add(d)
				f.Err = io.EOF
			case time.Now().Before(end):
				f.Block = io.EOF
			}
			return f
		}
	})
}

// Extend has run, its answer is lost in an outage that is longer than the old lease, and the owner unlocks: the record is
// deleted after the outage.
func TestRecordIsDeletedAfterAnUnansweredExtend(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, l := context.Background(), newFakeLock(e.redis, "x")
		ok, err := e.acquire(ctx, l, 1, Request{Wait: forever, Lease: 10 * time.Second})
		require.NoError(t, err)
		require.True(t, ok)
		partition(e.redis, "renew", 30*time.Second)
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		require.Error(t, e.Extend(short, l, 1, time.Hour))
		_ = e.Release(ctx, l, 1)
		time.Sleep(2 * time.Minute)
		assert.Empty(t, e.redis.Holder("x"), "the record long after the outage")
	})
}

// The same, and the lease expires in the outage.
func TestRecordIsDeletedAfterItsLeaseAndAnUnansweredExtend(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, l := context.Background(), newFakeLock(e.redis, "x")
		ok, err := e.acquire(ctx, l, 1, Request{Wait: forever, Lease: 10 * time.Second})
		require.NoError(t, err)
		require.True(t, ok)
		partition(e.redis, "renew", 30*time.Second)
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		require.Error(t, e.Extend(short, l, 1, time.Hour))
		time.Sleep(2 * time.Minute)
		assert.Empty(t, e.redis.Holder("x"), "the record long after the outage")
	})
}

// The same for a re-entry with a longer lease.
func TestRecordIsDeletedAfterAnUnansweredReentry(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, l := context.Background(), newFakeLock(e.redis, "x")
		ok, err := e.acquire(ctx, l, 1, Request{Wait: forever, Lease: 10 * time.Second})
		require.NoError(t, err)
		require.True(t, ok)
		partition(e.redis, "acquire", 30*time.Second)
		short, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		ok, err = e.acquire(short, l, 1, Request{Wait: forever, Lease: time.Hour})
		require.Error(t, err)
		require.False(t, ok)
		time.Sleep(2 * time.Minute)
		assert.Empty(t, e.redis.Holder("x"), "the record long after the outage")
	})
}

// KeepLease has run, its answer is lost in an outage that is longer than the lease, and the MultiLock gives up.
func TestRecordIsDeletedAfterAnUnansweredKeepLease(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, l := context.Background(), newFakeLock(e.redis, "x")
		ok, err := e.acquire(ctx, l, 1, Request{Wait: forever, Lease: time.Hour, LeastLease: 30 * time.Second})
		require.NoError(t, err)
		require.True(t, ok)
		partition(e.redis, "renew", time.Minute)
		err = e.KeepLease(ctx, []Lock{l}, 1, time.Hour, time.Now().Add(time.Second))
		require.Error(t, err)
		_ = e.Release(ctx, l, 1)
		time.Sleep(3 * time.Minute)
		assert.Empty(t, e.redis.Holder("x"), "the record long after the outage")
	})
}

// No answer is lost: an explicit lease, a re-entry without one, and an outage at Unlock.
func TestRecordIsDeletedAfterALongLeaseThatIsRenewed(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, l := context.Background(), newFakeLock(e.redis, "x")
		for _, lease := range []time.Duration{time.Hour, 0} {
			ok, err := e.acquire(ctx, l, 1, Request{Wait: forever, Lease: lease})
			require.NoError(t, err)
			require.True(t, ok)
		}
		end := time.Now().Add(time.Minute)
		e.redis.Set(func() {
			e.redis.Fault = func(string) (f fakeredis.Fault) {
				if time.Now().Before(end) {
					f.Block = io.EOF
				}
				return f
			}
		})
		_ = e.Release(ctx, l, 1)
		_ = e.Release(ctx, l, 1)
		time.Sleep(3 * time.Minute)
		assert.Empty(t, e.redis.Holder("x"), "the record long after the outage")
	})
}

// A late try of the attempt gives the record its lease again, after a part of it has passed.
func TestRecordIsDeletedAfterALateTry(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, l := context.Background(), newFakeLock(e.redis, "x")
		runsLate(e.redis, "acquire", 1, fakeredis.Fault{Ghost: 3 * time.Second})
		ok, err := e.acquire(ctx, l, 1, Request{Wait: forever, Lease: 5 * time.Second, LeastLease: 30 * time.Second})
		require.NoError(t, err)
		require.True(t, ok)
		require.NoError(t, e.KeepLease(ctx, []Lock{l}, 1, 5*time.Second, time.Time{}))
		e.LimitValidity([]Lock{l}, 1, time.Now().Add(4900*time.Millisecond))
		time.Sleep(8 * time.Second)
		assert.Zero(t, levelsOf(e.Engine, l, 1))
		assert.Empty(t, e.redis.Holder("x"), "the record after its lease")
	})
}

// KeepLease of a lock with MaxHold, some time after it was acquired, asks for no more than the rest.
func TestKeepLeaseEndsAtMaxHold(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, l := context.Background(), newLimitedLock(e.redis, Limits{Max: 10 * time.Second})
		ok, err := e.acquire(ctx, l, 1, Request{Wait: forever, Lease: 8 * time.Second, LeastLease: 30 * time.Second})
		require.NoError(t, err)
		require.True(t, ok)
		time.Sleep(7 * time.Second)
		require.NoError(t, e.KeepLease(ctx, []Lock{l}, 1, 8*time.Second, time.Time{}))
		e.LimitValidity([]Lock{l}, 1, time.Now().Add(7900*time.Millisecond))
		time.Sleep(3*time.Second + 100*time.Millisecond)
		assert.Zero(t, levelsOf(e.Engine, l, 1))
		assert.Empty(t, e.redis.Holder("x"), "the record after MaxHold")
	})
}

// The same for a renewal that failed and runs late.
func TestMinHoldEndsInTimeAfterALateRenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, l := context.Background(), newLimitedLock(e.redis, Limits{MinHold: 20 * time.Second})
		ok, err := e.acquire(ctx, l, 1, Request{Wait: forever})
		require.NoError(t, err)
		require.True(t, ok)
		runsLate(e.redis, "renew", 1, fakeredis.Fault{Ghost: 8 * time.Second})
		time.Sleep(16 * time.Second)
		require.NoError(t, e.Release(ctx, l, 1))
		time.Sleep(5 * time.Second)
		assert.Empty(t, e.redis.Holder("x"), "the record after MinHold")
	})
}

// As TestKeepLeaseThatRunsLateAfterExtend, with a request whose connection fails.
func TestKeepLeaseThatRunsLateAfterItsConnectionFailed(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, l := context.Background(), newFakeLock(e.redis, "x")
		ok, err := e.acquire(ctx, l, 1, Request{Wait: forever, Lease: 5 * time.Second, LeastLease: 30 * time.Second})
		require.NoError(t, err)
		require.True(t, ok)
		runsLate(e.redis, "renew", 1, fakeredis.Fault{Ghost: time.Second})
		require.NoError(t, e.KeepLease(ctx, []Lock{l}, 1, 5*time.Second, time.Time{}))
		e.LimitValidity([]Lock{l}, 1, time.Now().Add(4900*time.Millisecond))
		require.NoError(t, e.Extend(ctx, l, 1, time.Hour))
		time.Sleep(10 * time.Second)
		assert.Equal(t, 1, levelsOf(e.Engine, l, 1), "the owner believes that it holds the lock")
		assert.False(t, otherGets(t, e.redis), "another Client gets the lock")
		_ = e.Release(ctx, l, 1)
	})
}
