//go:build go1.25

package engine

// Requests that run late, or whose answers are lost, and that do more than acquire: they extend a lease or rename a
// field. What this process knows of them is in internal/late and in internal/tenancy.
//
// Rules: no request that runs late makes a record shorter than its hold, or longer than its limits. What this means
// after the hold is in lateness_minhold_test.go and lateness_deleted_test.go.

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
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
		other.unlock(99)
	}
	return ok
}

// A KeepLease of which a try runs late shortens no lease that was set since: by Extend, or by the watchdog, because the
// owner has acquired the lock again without an explicit lease.
func TestKeepLeaseThatRunsLateShortensNoLaterLease(t *testing.T) {
	for name, c := range map[string]struct {
		try   fakeredis.Fault
		valid time.Duration
		later func(ctx context.Context, e *bubbleEngine, l *fakeLock) error
		count int
	}{
		"Extend":                           {fakeredis.Fault{Late: 3 * time.Second}, 4 * time.Second, extendForAnHour, 1},
		"Extend after a broken connection": {fakeredis.Fault{Ghost: time.Second}, 4900 * time.Millisecond, extendForAnHour, 1},
		"re-entry":                         {fakeredis.Fault{Late: 2 * time.Second}, 4 * time.Second, reenter, 2},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				l := newFakeLock(e.redis, "x")
				e.take(l, 1, Request{Wait: forever, Lease: 5 * time.Second, LeastLease: 30 * time.Second})
				runsLate(e.redis, "renew", 1, c.try)
				require.NoError(t, e.KeepLease(context.Background(), []contract.Lock{l}, 1, 5*time.Second, time.Time{}))
				e.LimitValidity([]contract.Lock{l}, 1, time.Now().Add(c.valid))
				require.NoError(t, c.later(context.Background(), e, l))
				time.Sleep(7500 * time.Millisecond)
				e.staysHeld(l, c.count)
			})
		})
	}
}

// reenter acquires the lock again, without an explicit lease.
func reenter(ctx context.Context, e *bubbleEngine, l *fakeLock) error {
	_, err := e.acquire(ctx, l, 1, Request{Wait: forever})
	return err
}

// staysHeld asserts that owner 1 believes that it holds l with this hold count, and is right, and ends the hold.
func (e *bubbleEngine) staysHeld(l *fakeLock, levels int) {
	e.t.Helper()
	assert.Equal(e.t, levels, holdCountOf(e.Engine, l, 1), "the owner believes that it holds the lock")
	assert.False(e.t, otherGets(e.t, e.redis), "another Client gets the lock")
	for range levels {
		_ = e.Release(context.Background(), l, 1)
	}
}

// Nothing fails: another goroutine of the owner acquires the lock again while the request of KeepLease is on its way.
func TestKeepLeaseBesideAReentry(t *testing.T) {
	for name, again := range map[string]Request{"lease": {Wait: forever, Lease: time.Hour}, "watchdog": {Wait: forever}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				ctx, l := context.Background(), newFakeLock(e.redis, "x")
				e.take(l, 1, Request{Wait: forever, Lease: 3 * time.Second, LeastLease: 30 * time.Second})
				runsLate(e.redis, "renew", 1, fakeredis.Fault{Late: 20 * time.Millisecond}) // an ordinary delay
				started := later(func() error { return e.KeepLease(ctx, []contract.Lock{l}, 1, 3*time.Second, time.Time{}) })
				synctest.Wait()
				e.take(l, 1, again) // another goroutine of the same owner
				require.NoError(t, <-started)
				e.LimitValidity([]contract.Lock{l}, 1, time.Now().Add(2900*time.Millisecond))
				time.Sleep(4 * time.Second)
				e.staysHeld(l, 2)
			})
		})
	}
}

// KeepLease of a lock with MaxHold, some time after it was acquired, asks for no more than the rest.
func TestKeepLeaseEndsAtMaxHold(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, l := context.Background(), newLimitedLock(e.redis, contract.Limits{Max: 10 * time.Second})
		e.take(l, 1, Request{Wait: forever, Lease: 8 * time.Second, LeastLease: 30 * time.Second})
		time.Sleep(7 * time.Second)
		require.NoError(t, e.KeepLease(ctx, []contract.Lock{l}, 1, 8*time.Second, time.Time{}))
		e.LimitValidity([]contract.Lock{l}, 1, time.Now().Add(7900*time.Millisecond))
		time.Sleep(3*time.Second + 100*time.Millisecond)
		assert.Zero(t, holdCountOf(e.Engine, l, 1))
		e.assertFree("the record after MaxHold")
	})
}

// LimitValidity of a lock whose lease MaxHold has cut does not prolong it: the allowance for the drift of clocks stays.
func TestLimitValidityProlongsNoLease(t *testing.T) {
	for name, count := range map[string]int{"one": 1, "re-entered": 2} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				ctx, l := context.Background(), newLimitedLock(e.redis, contract.Limits{Max: 10 * time.Second})
				for range count {
					e.take(l, 1, leased(10*time.Second))
				}
				time.Sleep(5 * time.Second)
				require.NoError(t, e.KeepLease(ctx, []contract.Lock{l}, 1, 10*time.Second, time.Time{}))
				end := time.Now().Add(time.Minute)
				valid := e.ValidUntil([]contract.Lock{l}, 1, end)
				e.LimitValidity([]contract.Lock{l}, 1, end)
				assert.Equal(t, valid, e.ValidUntil([]contract.Lock{l}, 1, end))
				time.Sleep(6 * time.Second)
			})
		})
	}
}

// A Detach asks for the rest of MaxHold, and runs late: the detached hold does not outlive MaxHold.
func TestDetachedHoldEndsAtMaxHoldAfterASlowDetach(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		const most = 10 * time.Second
		ctx, l, end := context.Background(), newLimitedLock(e.redis, contract.Limits{Max: most}), time.Now().Add(most)
		e.take(l, 1)
		time.Sleep(6 * time.Second)
		runsLate(e.redis, "rename", 1, fakeredis.Fault{Late: 900 * time.Millisecond})
		d, _, err := e.Detach(ctx, l, 1, time.Hour)
		require.NoError(t, err)
		assert.Equal(t, d.Field, e.redis.Holder("x"))
		assert.LessOrEqual(t, d.KeepEnd, end.UnixMilli())
		time.Sleep(time.Until(end.Add(10 * time.Millisecond)))
		e.assertFree("the record after MaxHold")
	})
}
