//go:build go1.25

package engine

// Requests that run late, or whose answers are lost, and that do more than acquire: they extend a lease or rename a
// field. What this process knows of them is in internal/late and in internal/tenancy.
//
// Rules: no request that runs late makes a record shorter than its hold, or longer than its limits.

import (
	"context"
	"io"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/late"
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
		require.NoError(t, e.KeepLease(ctx, []contract.Lock{l}, 1, 5*time.Second, time.Time{}))
		e.LimitValidity([]contract.Lock{l}, 1, time.Now().Add(4*time.Second))
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
		require.NoError(t, e.KeepLease(ctx, []contract.Lock{l}, 1, 5*time.Second, time.Time{}))
		e.LimitValidity([]contract.Lock{l}, 1, time.Now().Add(4*time.Second))
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
				go func() { started <- e.KeepLease(ctx, []contract.Lock{l}, 1, 3*time.Second, time.Time{}) }()
				synctest.Wait()
				ok, err = e.acquire(ctx, l, 1, again) // another goroutine of the same owner
				require.NoError(t, err)
				require.True(t, ok)
				require.NoError(t, <-started)
				e.LimitValidity([]contract.Lock{l}, 1, time.Now().Add(2900*time.Millisecond))
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
		ctx, l := context.Background(), newLimitedLock(e.redis, contract.Limits{MinHold: 20 * time.Second})
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
		ctx, l := context.Background(), newLimitedLock(e.redis, contract.Limits{MinHold: 20 * time.Second})
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

// The same for a KeepLease that is under way while another goroutine of the owner unlocks. It does not have the owner
// mutex.
func TestMinHoldEndsInTimeBesideAKeepLease(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, l := context.Background(), newLimitedLock(e.redis, contract.Limits{MinHold: 5 * time.Second})
		ok, err := e.acquire(ctx, l, 1, Request{Wait: forever, Lease: 10 * time.Second})
		require.NoError(t, err)
		require.True(t, ok)
		runsLate(e.redis, "renew", 1, fakeredis.Fault{Late: 300 * time.Millisecond})
		kept := make(chan error)
		go func() { kept <- e.KeepLease(ctx, []contract.Lock{l}, 1, time.Hour, time.Time{}) }()
		synctest.Wait()
		require.NoError(t, e.Release(ctx, l, 1))
		<-kept
		time.Sleep(6 * time.Second)
		assert.Empty(t, e.redis.Holder("x"), "the record after MinHold")
		time.Sleep(2 * late.Life)
		assert.Zero(t, e.late.Fields())
	})
}

// The same for a re-entry of which a try runs late.
func TestMinHoldEndsInTimeAfterALateReentry(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, l := context.Background(), newLimitedLock(e.redis, contract.Limits{MinHold: 20 * time.Second})
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
		first, second := newFakeLock(e.redis, "x"), newLimitedLock(e.redis, contract.Limits{Max: most})
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
		ctx, l := context.Background(), newLimitedLock(e.redis, contract.Limits{MinHold: 20 * time.Second})
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

// The same for an attempt of a caller that gives up. If there are very many, the record of a lease that is no longer than
// a watchdog timeout is left to its lease, so that an outage does not leave a goroutine for every caller.
func TestRecordIsDeletedAfterAnUnansweredAttempt(t *testing.T) {
	for name, of := range map[string]struct {
		lease  time.Duration
		others int64
		ends   bool
	}{
		"long": {time.Hour, mostUndone, false}, "short": {0, 0, false}, "one of many short ones": {0, mostUndone, true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				e.undoing.Store(of.others)
				partition(e.redis, "acquire", 30*time.Second)
				short, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				ok, err := e.lockWith(short, 1, Request{Wait: forever, Lease: of.lease})
				require.Error(t, err)
				require.False(t, ok)
				time.Sleep(15 * time.Second)
				synctest.Wait()
				assert.Equal(t, of.ends, e.atWork() == 0, "whether the rollback has ended")
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				assert.Empty(t, e.redis.Holder("x"), "the record long after the outage")
				assert.Zero(t, e.atWork())
			})
		})
	}
}

// KeepLease has run, its answer is lost in an outage that is longer than the lease, and the MultiLock gives up.
func TestRecordIsDeletedAfterAnUnansweredKeepLease(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, l := context.Background(), newFakeLock(e.redis, "x")
		ok, err := e.acquire(ctx, l, 1, Request{Wait: forever, Lease: time.Hour, LeastLease: 30 * time.Second})
		require.NoError(t, err)
		require.True(t, ok)
		partition(e.redis, "renew", time.Minute)
		err = e.KeepLease(ctx, []contract.Lock{l}, 1, time.Hour, time.Now().Add(time.Second))
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
		require.NoError(t, e.KeepLease(ctx, []contract.Lock{l}, 1, 5*time.Second, time.Time{}))
		e.LimitValidity([]contract.Lock{l}, 1, time.Now().Add(4900*time.Millisecond))
		time.Sleep(8 * time.Second)
		assert.Zero(t, levelsOf(e.Engine, l, 1))
		assert.Empty(t, e.redis.Holder("x"), "the record after its lease")
	})
}

// KeepLease of a lock with MaxHold, some time after it was acquired, asks for no more than the rest.
func TestKeepLeaseEndsAtMaxHold(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, l := context.Background(), newLimitedLock(e.redis, contract.Limits{Max: 10 * time.Second})
		ok, err := e.acquire(ctx, l, 1, Request{Wait: forever, Lease: 8 * time.Second, LeastLease: 30 * time.Second})
		require.NoError(t, err)
		require.True(t, ok)
		time.Sleep(7 * time.Second)
		require.NoError(t, e.KeepLease(ctx, []contract.Lock{l}, 1, 8*time.Second, time.Time{}))
		e.LimitValidity([]contract.Lock{l}, 1, time.Now().Add(7900*time.Millisecond))
		time.Sleep(3*time.Second + 100*time.Millisecond)
		assert.Zero(t, levelsOf(e.Engine, l, 1))
		assert.Empty(t, e.redis.Holder("x"), "the record after MaxHold")
	})
}

// LimitValidity of a lock whose lease MaxHold has cut does not prolong it: the allowance for the drift of clocks stays.
func TestLimitValidityProlongsNoLease(t *testing.T) {
	for name, count := range map[string]int{"one": 1, "re-entered": 2} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				ctx, l := context.Background(), newLimitedLock(e.redis, contract.Limits{Max: 10 * time.Second})
				for range count {
					ok, err := e.acquire(ctx, l, 1, Request{Wait: forever, Lease: 10 * time.Second})
					require.NoError(t, err)
					require.True(t, ok)
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

// The same for a renewal that failed and runs late.
func TestMinHoldEndsInTimeAfterALateRenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, l := context.Background(), newLimitedLock(e.redis, contract.Limits{MinHold: 20 * time.Second})
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
		require.NoError(t, e.KeepLease(ctx, []contract.Lock{l}, 1, 5*time.Second, time.Time{}))
		e.LimitValidity([]contract.Lock{l}, 1, time.Now().Add(4900*time.Millisecond))
		require.NoError(t, e.Extend(ctx, l, 1, time.Hour))
		time.Sleep(10 * time.Second)
		assert.Equal(t, 1, levelsOf(e.Engine, l, 1), "the owner believes that it holds the lock")
		assert.False(t, otherGets(t, e.redis), "another Client gets the lock")
		_ = e.Release(ctx, l, 1)
	})
}

// The explicit lease ends while a request that makes it longer is under way: Redis has run the request, and its answer
// comes later, or never. The owner gets the loss, needs no Unlock, and the record is deleted.
func TestRecordIsDeletedIfItsLeaseEndsDuringARequest(t *testing.T) {
	const answers = 500 * time.Millisecond
	for name, c := range map[string]struct {
		verb    string
		fault   fakeredis.Fault
		request func(ctx context.Context, e *bubbleEngine, l *fakeLock) error
	}{
		"Extend": {"renew", fakeredis.Fault{Answer: answers}, func(ctx context.Context, e *bubbleEngine, l *fakeLock) error {
			return e.Extend(ctx, l, 1, time.Hour)
		}},
		"KeepLease": {"renew", fakeredis.Fault{Answer: answers}, func(ctx context.Context, e *bubbleEngine, l *fakeLock) error {
			_ = e.KeepLease(ctx, []contract.Lock{l}, 1, time.Hour, time.Time{})
			return e.Extend(ctx, l, 1, time.Hour)
		}},
		"re-entry":                   {"acquire", fakeredis.Fault{Answer: answers}, reenterForAnHour},
		"re-entry without an answer": {"acquire", fakeredis.Fault{Answer: 7 * time.Second, Err: io.EOF}, reenterForAnHour},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				l := newFakeLock(e.redis, "x")
				ok, err := e.acquire(context.Background(), l, 1, Request{Wait: forever, Lease: 5 * time.Second})
				require.NoError(t, err)
				require.True(t, ok)
				time.Sleep(4700 * time.Millisecond)
				runsLate(e.redis, c.verb, 1, c.fault)
				ctx, cancel := context.WithTimeout(context.Background(), 600*time.Millisecond)
				defer cancel()
				require.Error(t, c.request(ctx, e, l))
				time.Sleep(20 * time.Second)
				assert.Empty(t, e.redis.Holder("x"), "the record that nobody holds")
			})
		})
	}
}

func reenterForAnHour(ctx context.Context, e *bubbleEngine, l *fakeLock) error {
	_, err := e.acquire(ctx, l, 1, Request{Wait: forever, Lease: time.Hour})
	return err
}

// A lineLock is a fakeLock whose waiters have places in the line, as far as the engine knows.
type lineLock struct{ *fakeLock }

func (l lineLock) Grants(contract.Attempt) string { return "grants:" + l.key }

// leavesPlace has a caller that wants a lease of an hour give up, and leave its place in the line to another one, with
// the request next. The last attempt of the first one has this fault, and is granted. leavesPlace returns when the
// second one has the lock, which is 0.2 seconds after the first one has left.
func leavesPlace(t *testing.T, e *bubbleEngine, fault fakeredis.Fault, next Request) lineLock {
	r := e.redis
	other, l := joinBubbleEngine(t, r, "other"), lineLock{newFakeLock(r, "x")}
	other.lock(99)
	short, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	gaveUp, got := make(chan error), make(chan error)
	go func() {
		_, err := e.acquire(short, l, 1, Request{Wait: forever, Lease: time.Hour})
		gaveUp <- err
	}()
	synctest.Wait()
	go func() {
		_, err := e.acquire(context.Background(), l, 2, next)
		got <- err
	}()
	time.Sleep(4700 * time.Millisecond)
	seen := 0
	r.Set(func() {
		r.Fault = func(verb string) (f fakeredis.Fault) {
			if verb != "acquire" {
				return f
			}
			if seen++; seen == 1 {
				return fault
			}
			return fakeredis.Fault{Answer: 200 * time.Millisecond}
		}
	})
	other.unlock(99)
	r.PubSub.Publish("grants:x")
	require.Error(t, <-gaveUp)
	require.NoError(t, <-got)
	require.Equal(t, 2, seen)
	return l
}

// A caller leaves its place in the line to one that asks for a shorter lease with the same field. The first one was
// granted the lock when it had left: the record does not outlive the shorter lease.
func TestRecordIsDeletedAfterTheLeaseOfTheCallerBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		next := Request{Wait: forever, Lease: 10 * time.Second}
		l := leavesPlace(t, e, fakeredis.Fault{Answer: 400 * time.Millisecond}, next)
		time.Sleep(9 * time.Second)
		assert.Equal(t, 1, levelsOf(e.Engine, l, 2))
		assert.NotEmpty(t, e.redis.Holder("x"))
		time.Sleep(2 * time.Second)
		assert.Zero(t, levelsOf(e.Engine, l, 2))
		assert.Empty(t, e.redis.Holder("x"), "the record after its lease")
	})
}

// The same, and the attempt of the first caller runs after the second one has the lock, which unlocks in an outage.
func TestRecordIsDeletedAfterALateTryOfTheCallerBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		l := leavesPlace(t, e, fakeredis.Fault{Late: 700 * time.Millisecond}, Request{Wait: forever})
		time.Sleep(time.Second)
		end := time.Now().Add(time.Minute)
		e.redis.Set(func() {
			e.redis.Fault = func(string) (f fakeredis.Fault) {
				if time.Now().Before(end) {
					f.Block = io.EOF
				}
				return f
			}
		})
		assert.Error(t, e.Release(context.Background(), l, 2))
		time.Sleep(3 * time.Minute)
		assert.Empty(t, e.redis.Holder("x"), "the record long after the outage")
	})
}

// The same, and the attempt of the first caller runs after the second one has unlocked: no caller needs what it acquires.
func TestLateTryOfTheCallerBeforeIsRolledBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		l := leavesPlace(t, e, fakeredis.Fault{Late: 700 * time.Millisecond}, Request{Wait: forever})
		require.NoError(t, e.Release(context.Background(), l, 2))
		require.Empty(t, e.redis.Holder("x"))
		time.Sleep(2 * time.Second)
		assert.Empty(t, e.redis.Holder("x"), "the record that nobody holds")
	})
}

// The same, and the second one waits when the attempt of the first one runs, and is granted: the second one has the lock
// at once.
func TestLateGrantToTheCallerBeforeWakesTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := fakeredis.New()
		e := joinBubbleEngine(t, r, "client", func(c *Config) { c.PollInterval = time.Minute })
		other, l, start := joinBubbleEngine(t, r, "other"), lineLock{newFakeLock(r, "x")}, time.Now()
		other.lock(99)
		short, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		gaveUp, got := make(chan error), make(chan error)
		for o, c := range map[Owner]struct {
			context.Context
			done chan error
		}{1: {short, gaveUp}, 2: {context.Background(), got}} {
			go func() {
				time.Sleep(time.Duration(o) * time.Millisecond)
				_, err := e.acquire(c, l, o, Request{Wait: forever})
				c.done <- err
			}()
		}
		time.Sleep(4700 * time.Millisecond)
		runsLate(r, "acquire", 1, fakeredis.Fault{Late: 2 * time.Second})
		r.PubSub.Publish("grants:x")
		require.Error(t, <-gaveUp)
		time.Sleep(time.Second)
		r.Set(func() { delete(r.Records, "x") }) // no waiter is told
		require.NoError(t, <-got)
		assert.Equal(t, 6700*time.Millisecond, time.Since(start))
		require.NoError(t, e.Release(context.Background(), l, 2))
		_ = other.unlockErr(99)
	})
}

// A renewal is under way when a fenced lock is handed off, so that the next owner makes a record of its own with the same
// field. It unlocks at once, and MinHold ends in time.
func TestMinHoldEndsInTimeAfterAHandoffDuringARenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := joinBubbleEngine(t, fakeredis.New(), "client", withSlice(time.Hour))
		ctx, l := context.Background(), newLimitedLock(e.redis, contract.Limits{MinHold: 5 * time.Second})
		l.traits.Fenced, l.traits.DrawsSingly = true, true
		ok, err := e.acquire(ctx, l, 1, Request{Wait: forever})
		require.NoError(t, err)
		require.True(t, ok)
		got := make(chan error)
		go func() {
			_, err := e.acquire(ctx, l, 2, Request{Wait: forever})
			got <- err
		}()
		runsLate(e.redis, "renew", 1, fakeredis.Fault{Late: 500 * time.Millisecond})
		time.Sleep(10*time.Second + 100*time.Millisecond)
		require.Equal(t, 1, e.redis.Count("renew"))
		require.NoError(t, e.Release(ctx, l, 1))
		require.NoError(t, <-got)
		require.Zero(t, e.redis.Count("release"), "it was handed off")
		require.NoError(t, e.Release(ctx, l, 2))
		time.Sleep(6 * time.Second)
		assert.Empty(t, e.redis.Holder("x"), "the record after MinHold")
	})
}

// MaxHold ends while a re-entry is under way, which asks for the rest of it: Redis has run the request late, so that the
// record would outlive MaxHold, and the answer is lost. The record is deleted, although the owner has yet to call Unlock.
func TestRecordIsDeletedIfMaxHoldEndsDuringAReentry(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		const most = 10 * time.Second
		l, end := newLimitedLock(e.redis, contract.Limits{Max: most}), time.Now().Add(most)
		ok, err := e.acquire(context.Background(), l, 1, Request{Wait: forever})
		require.NoError(t, err)
		require.True(t, ok)
		time.Sleep(7 * time.Second)
		first := fakeredis.Fault{Late: 2500 * time.Millisecond, Answer: 700 * time.Millisecond, Err: io.EOF}
		e.redis.Set(func() {
			e.redis.Fault = func(string) (f fakeredis.Fault) {
				f, first = first, fakeredis.Fault{}
				if f == first && time.Now().Before(end.Add(500*time.Millisecond)) {
					f.Block = io.EOF
				}
				return f
			}
		})
		ctx, cancel := context.WithTimeout(context.Background(), 3500*time.Millisecond)
		defer cancel()
		ok, err = e.acquire(ctx, l, 1, Request{Wait: forever})
		require.Error(t, err)
		require.False(t, ok)
		time.Sleep(time.Until(end.Add(time.Second)))
		assert.Empty(t, e.redis.Holder("x"), "the record after MaxHold")
		assert.ErrorIs(t, e.Release(context.Background(), l, 1), ErrMaxHold)
	})
}

// The last renewal before the end of MaxHold asks for the rest of it, and runs late: the record is deleted in time.
func TestRecordIsDeletedAtMaxHoldAfterASlowRenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		const most = 35 * time.Second
		l, begin := newLimitedLock(e.redis, contract.Limits{Max: most}), time.Now()
		ok, err := e.acquire(context.Background(), l, 1, Request{Wait: forever})
		require.NoError(t, err)
		require.True(t, ok)
		e.redis.Set(func() {
			e.redis.Fault = func(string) (f fakeredis.Fault) {
				if time.Since(begin) < 15*time.Second {
					f.Late = 3 * time.Second
				}
				return f
			}
		})
		time.Sleep(time.Until(begin.Add(most - time.Second)))
		assert.Equal(t, 1, levelsOf(e.Engine, l, 1), "the hold before the end of MaxHold")
		time.Sleep(1300 * time.Millisecond)
		assert.Empty(t, e.redis.Holder("x"), "the record after MaxHold")
		assert.ErrorIs(t, e.Release(context.Background(), l, 1), ErrMaxHold)
	})
}

// Unlock leaves the record to the rest of MinHold. A try of this request runs late, and would make it last longer.
func TestMinHoldEndsInTimeAfterALateTryOfItsRelease(t *testing.T) {
	for name, f := range map[string]fakeredis.Fault{
		"answered last": {Late: 3 * time.Second}, "lost": {Ghost: 3 * time.Second}, "slow": {Late: 900 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				const least = 20 * time.Second
				ctx, l, begin := context.Background(), newLimitedLock(e.redis, contract.Limits{MinHold: least}), time.Now()
				ok, err := e.acquire(ctx, l, 1, Request{Wait: forever})
				require.NoError(t, err)
				require.True(t, ok)
				runsLate(e.redis, "renew", 1, f)
				require.NoError(t, e.Release(ctx, l, 1))
				time.Sleep(time.Until(begin.Add(least - 100*time.Millisecond)))
				assert.NotEmpty(t, e.redis.Holder("x"), "the record before its time is over")
				time.Sleep(400 * time.Millisecond)
				assert.Empty(t, e.redis.Holder("x"), "the record after its time")
			})
		})
	}
}

// The renewals of a hold run until it is lost, and none of their answers comes. The owner needs no Unlock, because Lock has
// told it of the loss, and the record is deleted.
func TestRecordIsDeletedIfLockReturnsTheLoss(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		e.redis.Set(func() {
			e.redis.Fault = func(verb string) (f fakeredis.Fault) {
				if verb == "renew" {
					f.Err = io.EOF
				}
				return f
			}
		})
		time.Sleep(e.WatchdogTimeout)
		require.NotEmpty(t, e.redis.Holder("x"), "the renewals have run")
		_, err := e.lockWith(context.Background(), 1, Request{Wait: forever})
		require.ErrorIs(t, err, ErrLockLost)
		synctest.Wait()
		assert.Empty(t, e.redis.Holder("x"), "the record that nobody holds")
		e.lock(1)
		e.unlock(1)
	})
}

// A Detach asks for the rest of MaxHold, and runs late: the detached hold does not outlive MaxHold.
func TestDetachedHoldEndsAtMaxHoldAfterASlowDetach(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		const most = 10 * time.Second
		ctx, l, end := context.Background(), newLimitedLock(e.redis, contract.Limits{Max: most}), time.Now().Add(most)
		ok, err := e.acquire(ctx, l, 1, Request{Wait: forever})
		require.NoError(t, err)
		require.True(t, ok)
		time.Sleep(6 * time.Second)
		runsLate(e.redis, "rename", 1, fakeredis.Fault{Late: 900 * time.Millisecond})
		d, _, err := e.Detach(ctx, l, 1, time.Hour)
		require.NoError(t, err)
		assert.Equal(t, d.Field, e.redis.Holder("x"))
		assert.LessOrEqual(t, d.KeepEnd, end.UnixMilli())
		time.Sleep(time.Until(end.Add(10 * time.Millisecond)))
		assert.Empty(t, e.redis.Holder("x"), "the record after MaxHold")
	})
}

// An Unlock waits in vain for the goroutine that re-enters the lock, and ends the hold. The re-entry has run, and its answer
// comes neither then nor until the record of the first lease would have expired: the record is deleted all the same, also
// if the re-entry gives up while the last try to delete the record of the first lease is under way.
func TestRecordIsDeletedAfterAReentryBesideItsUnlock(t *testing.T) {
	for name, c := range map[string]struct{ answers, givesUp time.Duration }{
		"after the deletion":  {12 * time.Second, 20 * time.Second},
		"during the deletion": {8500 * time.Millisecond, 9500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newBubbleEngine(t)
				l, begin := newFakeLock(e.redis, "x"), time.Now()
				ok, err := e.acquire(context.Background(), l, 1, Request{Wait: forever, Lease: 8 * time.Second})
				require.NoError(t, err)
				require.True(t, ok)
				first := fakeredis.Fault{Answer: c.answers, Err: io.EOF}
				e.redis.Set(func() {
					e.redis.Fault = func(verb string) (f fakeredis.Fault) {
						if verb == "acquire" {
							f, first = first, fakeredis.Fault{Block: answerError("LOADING Redis is loading the dataset in memory")}
						} else if time.Since(begin) < 40*time.Second {
							f.Block = io.EOF
						}
						return f
					}
				})
				ctx, cancel := context.WithTimeout(context.Background(), c.givesUp)
				defer cancel()
				again := make(chan error)
				go func() { again <- reenterForAnHour(ctx, e, l) }()
				synctest.Wait()
				require.ErrorContains(t, e.Release(context.Background(), l, 1), "not confirmed")
				require.ErrorIs(t, <-again, context.DeadlineExceeded)
				assert.NotEmpty(t, e.redis.Holder("x"))
				time.Sleep(2 * time.Minute)
				assert.Empty(t, e.redis.Holder("x"), "the record that nobody holds")
			})
		})
	}
}

// The same with the longest watchdog timeout: the time now plus the timeout overflows.
func TestRecordIsDeletedAfterAnOutageWithAnEndlessWatchdogTimeout(t *testing.T) {
	for name, takes := range map[string]func(ctx context.Context, e *bubbleEngine){
		"Lock": func(_ context.Context, e *bubbleEngine) { e.lock(2) },
		"Attach": func(ctx context.Context, e *bubbleEngine) {
			d, err := e.detached(ctx, time.Hour)
			require.NoError(e.t, err)
			require.NoError(e.t, e.attach(ctx, 2, d))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := joinBubbleEngine(t, fakeredis.New(), "client", withWatchdogTimeout(math.MaxInt64))
				time.Sleep(time.Second)
				takes(context.Background(), e)
				end := time.Now().Add(time.Minute)
				e.redis.Set(func() {
					e.redis.Fault = func(string) (f fakeredis.Fault) {
						if time.Now().Before(end) {
							f.Block = io.EOF
						}
						return f
					}
				})
				require.ErrorContains(t, e.unlockErr(2), "not confirmed")
				time.Sleep(2 * time.Minute)
				assert.Empty(t, e.redis.Holder("x"), "the record long after the outage")
			})
		})
	}
}

// An Unlock in an outage deletes the record in the background until its lease is over, and not for as long as the outage
// lasts: there may be many of them. The requests for MinHold, whose outcome is not known, may have set a longer lease.
func TestDeletionInTheBackgroundEndsWithTheLease(t *testing.T) {
	for name, limits := range map[string]contract.Limits{"no limits": {}, "MinHold": {MinHold: 2 * time.Minute}} {
		for _, length := range []time.Duration{0, 40 * time.Second} {
			t.Run(name+", lease "+length.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					e := newBubbleEngine(t)
					l := newLimitedLock(e.redis, limits)
					ok, err := e.acquire(context.Background(), l, 1, Request{Wait: forever, Lease: length})
					require.NoError(t, err)
					require.True(t, ok)
					time.Sleep(e.WatchdogTimeout / 2) // a lease that is renewed has been renewed
					e.redis.Set(func() { e.redis.Fault = func(string) fakeredis.Fault { return fakeredis.Fault{Block: io.EOF} } })
					require.ErrorContains(t, e.Release(context.Background(), l, 1), "not confirmed")
					time.Sleep(2*limits.MinHold + 2*late.Life + 2*UnlockTime)
					assert.Zero(t, e.atWork(), "goroutines in the outage")
				})
			})
		}
	}
}
