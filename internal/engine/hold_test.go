//go:build go1.25

package engine

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
)

// The watchdog renews a hold until its hold count is zero.
func TestEngineRenewsUntilTheLastUnlock(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		e.lock(1, Request{Wait: 0, Lease: time.Second})
		guarded := e.guarded(1)
		time.Sleep(time.Hour)
		e.unlock(1)
		time.Sleep(time.Hour)
		require.NoError(t, guarded.Err(), "lost: %v", context.Cause(guarded))
		e.unlock(1)
		assert.Same(t, context.Canceled, context.Cause(guarded), "the cause of the guard")
		synctest.Wait() // one may have been on its way
		renewals := e.redis.Count("renew")
		time.Sleep(time.Hour)
		n := e.redis.Count("renew")
		assert.Equal(t, renewals, n, "%d renewals after the last unlock", n-renewals)
	})
}

// A re-entered hold has the lease that ends last, and is renewed by the watchdog if one of its acquires asked for that.
// Leases do not add up.
func TestEngineReentryKeepsTheLongerLease(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name   string
		leases []time.Duration // of the acquires, a second apart; 0: the watchdog renews it
		ends   time.Duration   // when the hold ends, from the start; 0: never
	}{
		{"one", []time.Duration{10 * s}, 10 * s},
		{"the longer one counts: later", []time.Duration{10 * s, 20 * s}, 21 * s},
		{"the longer one counts: earlier", []time.Duration{10 * s, 2 * s}, 10 * s},
		{"leases do not add up", []time.Duration{10 * s, 10 * s, 10 * s}, 12 * s},
		{"the watchdog takes over", []time.Duration{10 * s, 0}, 0},
		{"the watchdog stays", []time.Duration{0, 2 * s, 3 * s}, 0},
		{"a long lease is not cut by the watchdog", []time.Duration{100 * s, 0}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				start := time.Now()
				for i, lease := range c.leases {
					if i > 0 {
						time.Sleep(s)
					}
					e.lock(1, leased(lease))
				}
				guarded := e.guarded(1)
				record := func() (expires time.Time) {
					e.redis.Set(func() { expires = e.redis.Records["x"].Expires })
					return expires
				}
				if c.ends == 0 {
					time.Sleep(time.Hour)
					require.NoError(t, guarded.Err(), "lost: %v", context.Cause(guarded))
					e.assertHeld("lost: %v", context.Cause(guarded))
					for range c.leases {
						e.unlock(1)
					}
					return
				}
				got := record().Sub(start)
				assert.Equal(t, c.ends, got, "the record ends %v after the start", got)
				<-guarded.Done()
				early := c.ends - time.Since(start)
				assert.GreaterOrEqual(t, early, 2*time.Millisecond, "the guard ended %v before the record", early)
				assert.LessOrEqual(t, early, lease.Drift(c.ends), "the guard ended %v before the record", early)
				// The hold has expired: it needs no unlock, and the next lock is a new hold.
				time.Sleep(s)
				e.lock(1)
				_, levels := e.holdCount(newFakeLock(e.redis, "x"), 1)
				assert.Equal(t, 1, levels, "levels after a fresh lock")
				e.unlock(1)
			})
		})
	}
}

// When a hold expires, a waiter of its process is admitted, and a late Unlock of the hold returns the loss.
func TestEngineExpiredHoldAdmitsLocalWaiters(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1, Request{Wait: 0, Lease: 5 * time.Second})
		start := time.Now()
		e.lock(2)
		took := time.Since(start)
		assert.LessOrEqual(t, took, 5100*time.Millisecond, "a local waiter got the lock after %v", took)
		assert.ErrorIs(t, e.unlockErr(1), ErrLockLost, "the late unlock of an expired hold")
		e.unlock(2)
	})
}

// The engine remembers the last holds that have expired, or that MaxHold has ended, for their late Unlock, and forgets the
// others.
func TestEngineRemembersFewExpiredHolds(t *testing.T) {
	for _, limited := range []bool{false, true} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			lock := func(o Owner) *fakeLock { return newFakeLock(e.redis, fmt.Sprint("name", o)) }
			last := Owner(3 * expiredKept)
			for o := Owner(1); o <= last; o++ {
				b, ends := lock(o), time.Second+time.Duration(o)*time.Millisecond
				if limited {
					b.traits.Limits.Max, ends = ends, 0
				}
				e.take(b, o, Request{Lease: ends})
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			assert.LessOrEqual(t, e.holds(), expiredKept, "expired holds are remembered")
			assert.ErrorIs(t, e.Release(ctx, lock(last), last), ErrLockLost, "unlock of the last one")
			assert.ErrorIs(t, e.Release(ctx, lock(1), 1), ErrNotHeld, "unlock of the first one")
		})
	}
}

// S4: explicit leases that expire do not make an engine forget a hold that MaxHold has ended.
func TestEngineRemembersMaxHoldBesideExpiredHolds(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newFakeLock(e.redis, "x")
		l.traits.Limits.Max = time.Second
		e.take(l, 1)
		time.Sleep(2 * time.Second)
		for o := Owner(2); o <= 2*expiredKept; o++ {
			e.take(newFakeLock(e.redis, fmt.Sprint("name", o)), o, Request{Lease: time.Second})
		}
		time.Sleep(2 * time.Second)
		assert.ErrorIs(t, e.misses(ctx, 1, Request{}), ErrLockLost)
		assert.ErrorIs(t, e.unlockErr(1), ErrLockLost)
	})
}

// S4: a re-entry of a hold whose record is gone returns the loss, and does not acquire the lock again.
func TestEngineReentryReportsALoss(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		e.lock(1)
		guarded := e.guarded(1)
		e.deleteRecord()
		err := e.misses(ctx, 1, Request{Wait: forever})
		require.ErrorIs(t, err, ErrLockLost, "re-entry of a hold whose record has gone")
		assert.ErrorIs(t, context.Cause(guarded), ErrLockLost, "the guard says %v", context.Cause(guarded))
		e.assertFree("the re-entry took the lock anew")
		for range 2 {
			assert.ErrorIs(t, e.unlockErr(1), ErrLockLost, "unlock")
		}
		e.lock(1)
		e.unlock(1)
	})
}

// S4: a renewal never restores the record of a holder that has lost it.
func TestEngineLossIsNoticedWithinAThirdOfTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := e.another()
		e.lock(1)
		guarded := e.guarded(1)
		time.Sleep(time.Minute)
		e.deleteRecord()
		start := time.Now()
		other.lock(2)
		<-guarded.Done()
		took := time.Since(start)
		assert.LessOrEqual(t, took, e.WatchdogTimeout/3, "noticed after %v: %v", took, context.Cause(guarded))
		assert.ErrorIs(t, context.Cause(guarded), ErrLockLost, "noticed after %v: %v", took, context.Cause(guarded))
		time.Sleep(time.Hour)
		_, levels := other.holdCount(newFakeLock(e.redis, "x"), 2)
		assert.Equal(t, 1, levels, "the next holder was disturbed")
		assert.ErrorIs(t, e.unlockErr(1), ErrLockLost, "unlock")
		other.unlock(2)
	})
}

// Goroutines of one owner share its hold: each Lock increments the hold count.
func TestEngineGoroutinesOfOneOwnerShareItsHold(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.Latency = time.Millisecond
		other := e.another()
		other.lock(9)
		const o, many = Owner(-1), 20
		var wg sync.WaitGroup
		for range many {
			wg.Go(func() { e.lock(o) })
		}
		synctest.Wait()
		err := e.misses(ctx, o, Request{Wait: 0})
		assert.NoError(t, err)
		assert.ErrorIs(t, e.unlockErr(o), ErrNotHeld, "unlock of what is not held yet")
		other.unlock(9)
		wg.Wait()
		_, levels := e.holdCount(newFakeLock(e.redis, "x"), o)
		assert.Equal(t, many, levels, "%d levels here, %d in Redis", levels, e.redis.Records["x"].Levels)
		assert.Equal(t, many, e.redis.Records["x"].Levels, "%d levels here, %d in Redis", levels, e.redis.Records["x"].Levels)
		for range many {
			wg.Go(func() { e.unlock(o) })
		}
		wg.Wait()
		e.assertFree("not released")
		assert.ErrorIs(t, e.unlockErr(o), ErrNotHeld)
	})
}

// When a waiting goroutine gives up, the next goroutine of its owner replaces it.
func TestEngineNextGoroutineOfAnOwnerReplacesOneThatGivesUp(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := e.another()
		other.lock(9)
		ctx, cancel := context.WithCancel(ctx)
		go func() { _, _ = e.lockWith(ctx, 1, Request{Wait: forever}) }()
		synctest.Wait()
		got := e.asking(1)
		synctest.Wait()
		cancel()
		synctest.Wait()
		other.unlock(9)
		assert.NoError(t, <-got)
		e.unlock(1)
	})
}

// A re-entry waits while another goroutine of its owner has the owner mutex, even with a wait of 0.
func TestEngineTryReentryWaitsForTheOwnerMutex(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.Latency = time.Millisecond
		const o = Owner(-1)
		e.lock(o)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				e.lock(o, Request{Wait: 0})
			})
		}
		wg.Wait()
		for range 21 {
			e.unlock(o)
		}
	})
}

// If Redis does not answer the other goroutine of its owner, a re-entry with a wait of 0 waits no longer than it would
// wait for an answer.
func TestEngineTryReentryGivesUpASilentRedisSoon(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		const o = Owner(-1)
		e.lock(o)
		e.faults(fakeredis.Fault{Late: 3 * time.Second}, "acquire")
		got := e.asking(o)
		synctest.Wait()
		start := time.Now()
		err := e.misses(ctx, o, Request{Wait: 0})
		assert.ErrorIs(t, err, ErrNoAnswer)
		assert.Less(t, time.Since(start), time.Second+send.Slack)
		require.NoError(t, <-got)
		for range 2 {
			e.unlock(o)
		}
	})
}

// S2: the validity of an extended lease counts from before the request was sent, and a shorter lease changes nothing.
func TestExtendIsValidFromBeforeTheRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		lock := newFakeLock(e.redis, "x")
		e.lock(1, leased(10*time.Second))
		guarded := e.guarded(1)
		time.Sleep(3 * time.Second)
		sent := time.Now()
		e.redis.Set(func() { e.redis.Latency = 200 * time.Millisecond })
		require.NoError(t, e.Extend(ctx, lock, 1, 20*time.Second))
		require.Equal(t, 400*time.Millisecond, time.Since(sent))
		require.NoError(t, e.Extend(ctx, lock, 1, 5*time.Second))
		<-guarded.Done()
		assert.Equal(t, lease.Validity(20*time.Second), time.Since(sent), "trust")
		assert.ErrorIs(t, e.Extend(ctx, lock, 1, 20*time.Second), ErrLockLost)
		assert.Equal(t, 2, e.redis.Count("renew"), "requests")
	})
}

// S5: a hold whose lease expires while Extend waits for its answer is lost, although Redis has extended the record.
func TestExtendThatIsAnsweredTooLateIsALoss(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		lock := newFakeLock(e.redis, "x")
		e.lock(1, leased(600*time.Millisecond))
		e.faults(fakeredis.Fault{Answer: 700 * time.Millisecond}, "renew")
		assert.ErrorIs(t, e.Extend(ctx, lock, 1, time.Hour), ErrLockLost)
		assert.ErrorIs(t, e.unlockErr(1), ErrLockLost)
		e.assertFree("Redis keeps the record")
	})
}

// If an Extend was given up, the record may last longer than the hold: it is deleted when the hold has ended.
func TestExtendThatWasGivenUpLeavesNoRecord(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		lock := newFakeLock(e.redis, "x")
		e.lock(1, leased(10*time.Second))
		e.faults(fakeredis.Fault{Answer: 2 * time.Second}, "renew")
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		assert.ErrorIs(t, e.Extend(ctx, lock, 1, time.Hour), context.DeadlineExceeded)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		e.assertFree("Redis keeps the record")
	})
}

// The same for the longest lease that there is, and for a re-entry. Redis does not forget such a record by itself.
func TestEndlessLeaseThatWasGivenUpLeavesNoRecord(t *testing.T) {
	for name, ask := range map[string]func(ctx context.Context, e *bubbleEngine) error{
		"Extend": func(ctx context.Context, e *bubbleEngine) error {
			return e.Extend(ctx, newFakeLock(e.redis, "x"), 1, math.MaxInt64)
		},
		"re-entry": func(ctx context.Context, e *bubbleEngine) error {
			_, err := e.lockWith(ctx, 1, leased(math.MaxInt64))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				e.lock(1, leased(10*time.Minute))
				e.faults(fakeredis.Fault{Answer: 2 * time.Second})
				ctx, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				assert.ErrorIs(t, ask(ctx, e), context.DeadlineExceeded)
				time.Sleep(11 * time.Minute)
				e.assertFree("Redis keeps the record")
			})
		})
	}
}
