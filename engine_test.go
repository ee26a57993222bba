//go:build go1.25

package relock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relock-go/relock/internal/send"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// C1: one request to lock, one to unlock, no subscription.
func TestEngineUncontendedCostsTwoRequests(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		e.unlock(1)
		assert.Equal(t, []string{"acquire", "release"}, e.redis.requests, "requests")
		assert.Zero(t, e.redis.pubsub.dials(), "subscription connections")
	})
}

// C3: the engine remembers nothing of a name that has no holder and no waiter.
func TestEngineForgetsNamesNotInUse(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		for i := range 1000 {
			b := newFakeLock(e.redis, fmt.Sprint("name", i))
			ok, err := e.acquire(context.Background(), b, 1, request{wait: forever})
			require.NoError(t, err)
			require.True(t, ok)
			require.NoError(t, e.release(context.Background(), b, 1))
		}
		assert.Zero(t, e.names()+e.leases(), "%d names, %d leases are left", e.names(), e.leases())
	})
}

// L6: local waiters are served in the order in which they came, and only the first one
// sends requests.
func TestEngineServesLocalWaitersInOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		var order []owner
		var wg sync.WaitGroup
		for o := owner(2); o <= 50; o++ {
			wg.Go(func() {
				e.lock(o)
				order = append(order, o)
				time.Sleep(time.Second)
				e.unlock(o)
			})
			synctest.Wait()
		}
		assert.Equal(t, 1, e.redis.count("acquire"), "attempts while a local owner holds the lock")
		e.unlock(1)
		wg.Wait()
		assert.True(t, slices.IsSorted(order), "served in the order %v", order)
		assert.Len(t, order, 49, "served in the order %v", order)
	})
}

// A TryLock fails without a request while another owner of the process holds the lock.
func TestEngineTryLockOfANameHeldHereSendsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		before := len(e.redis.requests)
		ok, err := e.lockWith(context.Background(), 2, request{wait: 0})
		assert.NoError(t, err)
		assert.False(t, ok)
		assert.Zero(t, len(e.redis.requests)-before, "requests")
		e.unlock(1)
	})
}

// L1: a release wakes a waiter of another client.
func TestEngineReleaseWakesAWaiter(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := joinBubbleEngine(t, e.redis, "other")
		e.redis.latency = 500 * time.Microsecond
		other.lock(1)
		go func() {
			time.Sleep(3300 * time.Millisecond)
			other.unlock(1)
		}()
		e.lock(2)
		waited := other.watchdog.now()
		assert.LessOrEqual(t, waited, 3303*time.Millisecond, "got the lock %v after the start, it was released at 3.3s", waited)
		e.unlock(2)
	})
}

// L1: without a wake-up, a waiter notices a release within the max wake delay.
func TestEngineLostWakeUpCostsTheMaxWakeDelay(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := joinBubbleEngine(t, e.redis, "other")
		other.lock(1)
		e.redis.pubsub.set(func() { e.redis.pubsub.down = true })
		const releasedAfter = 7300 * time.Millisecond
		start := time.Now()
		time.AfterFunc(releasedAfter, func() { other.unlock(1) })
		e.lock(2)
		late := time.Since(start) - releasedAfter
		assert.LessOrEqual(t, late, e.maxWakeDelay, "noticed the release after %v", late)
		assert.LessOrEqual(t, e.redis.count("acquire"), 13, "attempts in 8s: it must not poll faster than the max wake delay")
		e.unlock(2)
	})
}

// A waiter does not miss a release between its first attempt and its subscription.
func TestEngineAsksAgainOnceItIsSubscribed(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := joinBubbleEngine(t, e.redis, "other")
		other.lock(1)
		e.redis.pubsub.confirmAfter = 100 * time.Millisecond
		start := time.Now()
		go func() {
			time.Sleep(50 * time.Millisecond)
			other.unlock(1)
		}()
		e.lock(2)
		took := time.Since(start)
		assert.LessOrEqual(t, took, 100*time.Millisecond, "noticed a release before the subscription after %v", took)
		e.unlock(2)
	})
}

// L3: the record of a crashed holder blocks for its lease and not longer.
func TestEngineCrashedHolderBlocksForItsLease(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.records["x"] = &fakeRecord{"crashed", 1, time.Now().Add(5300 * time.Millisecond)}
		start := time.Now()
		e.lock(1)
		took := time.Since(start)
		assert.GreaterOrEqual(t, took, 5300*time.Millisecond, "got the lock after %v", took)
		assert.LessOrEqual(t, took, 5320*time.Millisecond, "got the lock after %v", took)
		e.unlock(1)
	})
}

// A waiter for a record without a lease asks again within the max wake delay.
func TestEngineWaitsForARecordThatNeverEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		d := e.pollDelay(-time.Millisecond)
		assert.Greater(t, d, time.Duration(0), "naps for %v", d)
		assert.LessOrEqual(t, d, e.maxWakeDelay, "naps for %v", d)
		for range 1000 {
			for _, lease := range []time.Duration{0, time.Millisecond, time.Second, time.Hour, math.MaxInt64} {
				d := e.pollDelay(lease)
				require.Greater(t, d, time.Duration(0), "naps for %v at a lease of %v", d, lease)
				require.LessOrEqual(t, d, e.maxWakeDelay, "naps for %v at a lease of %v", d, lease)
			}
		}
	})
}

// A TryLock ends without an error exactly when its wait time is over.
func TestEngineTryLockGivesUpInTime(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := joinBubbleEngine(t, e.redis, "other")
		other.lock(1)
		for _, wait := range []time.Duration{1, time.Millisecond, 300 * time.Millisecond, 5 * time.Second} {
			start := time.Now()
			ok, err := e.lockWith(context.Background(), 2, request{wait: wait})
			took := time.Since(start)
			assert.NoError(t, err, "wait %v: %v, %v after %v", wait, ok, err, took)
			assert.False(t, ok, "wait %v: %v, %v after %v", wait, ok, err, took)
			assert.Equal(t, wait, took, "wait %v: %v, %v after %v", wait, ok, err, took)
		}
		other.unlock(1)
		assert.Zero(t, e.holds(), "a hold is left")
	})
}

// A TryLock that Redis never answers ends in time with an error.
func TestEngineTryLockWithoutAnAnswerIsAnError(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.fault = func(string) fakeFault { return fakeFault{late: 30 * time.Second} }
		start := time.Now()
		ok, err := e.lockWith(context.Background(), 1, request{wait: time.Second})
		assert.False(t, ok)
		assert.Error(t, err)
		assert.Equal(t, time.Second, time.Since(start), "time taken")
		e.redis.set(func() { e.redis.fault = nil })
		time.Sleep(time.Minute) // the attempt runs late, and is undone
		assert.Empty(t, e.redis.holder("x"), "the lock is still held")
	})
}

func TestEngineWaitEndsWithItsContext(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := joinBubbleEngine(t, e.redis, "other")
		other.lock(1)
		mine := errors.New("mine")
		ctx, cancel := context.WithCancelCause(context.Background())
		time.AfterFunc(1234*time.Millisecond, func() { cancel(mine) })
		start := time.Now()
		ok, err := e.lockWith(ctx, 2, request{wait: forever})
		assert.False(t, ok)
		assert.ErrorIs(t, err, context.Canceled)
		assert.ErrorIs(t, err, mine)
		assert.Equal(t, 1234*time.Millisecond, time.Since(start))
		deadline, done := context.WithTimeout(context.Background(), time.Second)
		defer done()
		ok, err = e.lockWith(deadline, 2, request{wait: time.Hour})
		assert.False(t, ok)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		other.unlock(1)
	})
}

func TestEngineSendsNothingForAnEndedContext(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		ok, err := e.lockWith(ctx, 1, request{wait: forever})
		assert.False(t, ok)
		assert.ErrorIs(t, err, context.Canceled)
		assert.Zero(t, len(e.redis.requests), "requests")
	})
}

// S3: an attempt that hangs when ctx ends is abandoned at once. It is undone at once, and again when it has run.
func TestEngineUndoesAnAttemptThatWasGivenUp(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.fault = func(verb string) fakeFault {
			if verb == "acquire" {
				return fakeFault{late: 3 * time.Second}
			}
			return fakeFault{}
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		start := time.Now()
		ok, err := e.lockWith(ctx, 1, request{wait: forever})
		assert.False(t, ok)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		took := time.Since(start)
		assert.Equal(t, time.Second, took, "came back after %v", took)
		time.Sleep(2500 * time.Millisecond)
		assert.Empty(t, e.redis.holder("x"), "holds a lock that was given up")
		n := e.redis.count("release")
		assert.Equal(t, 2, n, "undone %d times", n)
	})
}

// S3: the answer of an acquire is lost, again and again.
func TestEngineLostAnswersOfAnAcquire(t *testing.T) {
	const always = 1000
	for _, lost := range []int{0, 1, 2, 3, 4, 5, always} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			n := 0
			e.redis.fault = func(verb string) fakeFault {
				if verb == "acquire" && n < lost {
					n++
					return fakeFault{err: io.EOF}
				}
				return fakeFault{}
			}
			ok, err := e.lockWith(context.Background(), 1, request{wait: forever})
			if lost == always {
				require.False(t, ok, "%d answers lost", lost)
				require.ErrorIs(t, err, io.EOF, "%d answers lost", lost)
			} else {
				require.NoError(t, err, "%d answers lost", lost)
				require.True(t, ok, "%d answers lost", lost)
				rec := e.redis.records["x"]
				assert.Equal(t, 1, rec.levels, "%d answers lost: %d levels", lost, rec.levels)
				e.unlock(1)
			}
			time.Sleep(time.Second)
			h := e.redis.holder("x")
			assert.Empty(t, h, "%d answers lost: %s holds the lock", lost, h)
		})
	}
}

// S3: the record of an attempt that runs after its undo expires with its lease, and is not renewed.
func TestEngineAttemptThatRunsAfterItsUndoExpires(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.fault = func(verb string) fakeFault {
			return fakeFault{block: io.ErrUnexpectedEOF}
		}
		ok, err := e.lockWith(context.Background(), 1, request{wait: forever})
		require.False(t, ok)
		require.Error(t, err)
		e.redis.set(func() { e.redis.fault = nil })
		time.Sleep(2 * unlockTime)
		// Now the server runs the request that it had read.
		e.redis.set(func() {
			e.redis.records["x"] = &fakeRecord{"client:1:1", 1, time.Now().Add(e.watchdogTimeout)}
		})
		start := time.Now()
		e.lock(2)
		took := time.Since(start)
		assert.LessOrEqual(t, took, e.watchdogTimeout+20*time.Millisecond, "an orphan blocked for %v", took)
		e.unlock(2)
	})
}

// S3: a release whose answer is lost is repeated, and releases one level.
func TestEngineLostAnswersOfARelease(t *testing.T) {
	for _, lost := range []int{1, 2, 5} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			e.lock(1)
			e.lock(1)
			n := 0
			e.redis.set(func() {
				e.redis.fault = func(verb string) fakeFault {
					if verb == "release" && n%(lost+1) < lost {
						n++
						return fakeFault{err: io.EOF}
					}
					n++
					return fakeFault{}
				}
			})
			e.unlock(1)
			assert.Equal(t, 1, e.redis.records["x"].levels, "levels are left after one of two unlocks")
			e.unlock(1)
			assert.Empty(t, e.redis.holder("x"), "the lock is still held")
		})
	}
}

// S3: a repeated release does not free the owner that has acquired the lock between.
func TestEngineRepeatedReleaseFreesNoOtherOwner(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := joinBubbleEngine(t, e.redis, "other")
		e.lock(1)
		first := true
		e.redis.set(func() {
			e.redis.fault = func(verb string) fakeFault {
				if verb == "release" && first {
					first = false
					return fakeFault{err: io.EOF}
				}
				if verb == "release" {
					return fakeFault{late: time.Second}
				}
				return fakeFault{}
			}
		})
		go func() {
			ok, err := other.lockWith(context.Background(), 2, request{wait: forever})
			assert.NoError(t, err)
			assert.True(t, ok)
		}()
		e.unlock(1)
		synctest.Wait()
		_, levels := other.levels(newFakeLock(e.redis, "x"), 2)
		assert.Equal(t, 1, levels, "a repeated release has freed the next holder")
		assert.NotEmpty(t, e.redis.holder("x"), "a repeated release has freed the next holder")
		e.redis.set(func() { e.redis.fault = nil })
		other.unlock(2)
	})
}

// A release that Redis never confirms is an error within unlockTime; the hold ends, and is not renewed.
func TestEngineUnconfirmedReleaseIsAnErrorAndEndsTheHold(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		guarded := e.guarded(1)
		e.redis.set(func() { e.redis.fault = func(string) fakeFault { return fakeFault{block: io.EOF} } })
		start := time.Now()
		err := e.unlockErr(1)
		assert.Error(t, err)
		assert.NotErrorIs(t, err, ErrNotHeld)
		assert.ErrorIs(t, err, io.EOF)
		assert.LessOrEqual(t, time.Since(start), unlockTime, "time taken")
		assert.Same(t, context.Canceled, context.Cause(guarded), "the cause of the guard")
		synctest.Wait() // one may have been on its way
		renewals := e.redis.count("renew")
		time.Sleep(time.Hour)
		assert.Equal(t, renewals, e.redis.count("renew"), "what was released is still renewed")
		e.redis.set(func() { e.redis.fault = nil })
		e.lock(1)
		e.unlock(1)
	})
}

// S2: the local timer ends the guard, also if Redis cannot be reached.
func TestEngineGuardEndsWhenTrustIsOver(t *testing.T) {
	for name, fault := range map[string]fakeFault{
		"refused": {block: io.EOF},
		"silent":  {late: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				e.redis.latency = time.Second
				start := time.Now()
				e.lock(1)
				guarded := e.guarded(1)
				e.redis.set(func() { e.redis.fault = func(string) fakeFault { return fault } })
				<-guarded.Done()
				assert.Equal(t, e.watchdogTimeout-drift(e.watchdogTimeout), time.Since(start), "trusted for %v after the request was sent", time.Since(start))
				assert.ErrorIs(t, context.Cause(guarded), ErrLockLost)
				_, err := e.guard(context.Background(), newFakeLock(e.redis, "x"), 1)
				assert.ErrorIs(t, err, ErrLockLost, "a new guard")
				assert.ErrorIs(t, e.unlockErr(1), ErrLockLost, "unlock")
				err = e.unlockErr(1)
				assert.ErrorIs(t, err, ErrNotHeld, "second unlock")
				assert.NotErrorIs(t, err, ErrLockLost, "second unlock")
				e.redis.set(func() { e.redis.fault = nil })
				time.Sleep(2 * time.Hour)
			})
		})
	}
}

// After a pause of the process the clock decides, before any timer has fired.
func TestEngineGuardLooksAtTheClock(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		guarded := e.guarded(1)
		child, cancel := context.WithCancel(guarded)
		defer cancel()
		e.watchdog.close() // as if the watchdog had not been scheduled since
		time.Sleep(e.watchdogTimeout - drift(e.watchdogTimeout) - 1)
		assert.NoError(t, guarded.Err(), "ended while it is trusted")
		time.Sleep(time.Nanosecond)
		assert.Error(t, guarded.Err())
		assert.ErrorIs(t, context.Cause(guarded), ErrLockLost)
		assert.ErrorIs(t, context.Cause(child), ErrLockLost, "a derived ctx says %v", context.Cause(child))
	})
}

// A guard reports a loss that another goroutine has noticed and not yet passed on to the guard.
func TestEngineGuardOfAHoldThatIsBeingLost(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		guarded := e.guarded(1)
		h := guarded.(*guard).hold
		set := func(state holdState, loss error) {
			h.name.mu.Lock()
			defer h.name.mu.Unlock()
			h.state, h.loss = state, loss
		}
		set(lost, lossError(errLapsed))
		defer func() {
			set(holding, nil)
			e.unlock(1)
		}()
		assert.Error(t, guarded.Err())
		assert.ErrorIs(t, context.Cause(guarded), ErrLockLost)
	})
}

// The watchdog renews a hold until its last level is unlocked.
func TestEngineRenewsUntilTheLastUnlock(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		ok, err := e.lockWith(context.Background(), 1, request{wait: 0, lease: time.Second})
		require.NoError(t, err)
		require.True(t, ok)
		guarded := e.guarded(1)
		time.Sleep(time.Hour)
		e.unlock(1)
		time.Sleep(time.Hour)
		require.NoError(t, guarded.Err(), "lost: %v", context.Cause(guarded))
		e.unlock(1)
		assert.Same(t, context.Canceled, context.Cause(guarded), "the cause of the guard")
		synctest.Wait() // one may have been on its way
		renewals := e.redis.count("renew")
		time.Sleep(time.Hour)
		n := e.redis.count("renew")
		assert.Equal(t, renewals, n, "%d renewals after the last unlock", n-renewals)
	})
}

// Of the leases of a re-entered hold the one that ends last counts, and the watchdog if one level has it. Leases do not add up.
func TestEngineReentryKeepsTheLongerLease(t *testing.T) {
	const s = time.Second
	for _, c := range []struct {
		name   string
		leases []time.Duration // taken one after the other, a second apart; 0: the watchdog's
		ends   time.Duration   // from the start; 0: never
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
					ok, err := e.lockWith(context.Background(), 1, request{wait: forever, lease: lease})
					require.NoError(t, err)
					require.True(t, ok)
				}
				guarded := e.guarded(1)
				record := func() time.Time {
					e.redis.mu.Lock()
					defer e.redis.mu.Unlock()
					return e.redis.records["x"].expires
				}
				if c.ends == 0 {
					time.Sleep(time.Hour)
					require.NoError(t, guarded.Err(), "lost: %v", context.Cause(guarded))
					require.NotEmpty(t, e.redis.holder("x"), "lost: %v", context.Cause(guarded))
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
				assert.LessOrEqual(t, early, drift(c.ends), "the guard ended %v before the record", early)
				// The hold has expired: it needs no unlock, and the next lock is a new hold.
				time.Sleep(s)
				e.lock(1)
				_, levels := e.levels(newFakeLock(e.redis, "x"), 1)
				assert.Equal(t, 1, levels, "levels after a fresh lock")
				e.unlock(1)
			})
		})
	}
}

// A hold that expires admits the waiters of its process, and its Unlock is told of the loss.
func TestEngineExpiredHoldAdmitsLocalWaiters(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ok, err := e.lockWith(context.Background(), 1, request{wait: 0, lease: 5 * time.Second})
		require.NoError(t, err)
		require.True(t, ok)
		start := time.Now()
		e.lock(2)
		took := time.Since(start)
		assert.LessOrEqual(t, took, 5100*time.Millisecond, "a local waiter got the lock after %v", took)
		assert.ErrorIs(t, e.unlockErr(1), ErrLockLost, "the late unlock of an expired hold")
		e.unlock(2)
	})
}

// The engine remembers the last expired holds for their late Unlock, and forgets the others.
func TestEngineRemembersFewExpiredHolds(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		for i := range owner(3 * expiredKept) {
			b := newFakeLock(e.redis, fmt.Sprint("name", i))
			ok, err := e.acquire(context.Background(), b, i+1, request{lease: time.Second + time.Duration(i)*time.Millisecond})
			require.NoError(t, err)
			require.True(t, ok)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.LessOrEqual(t, e.holds(), expiredKept, "expired holds are remembered")
		last := owner(3 * expiredKept)
		assert.ErrorIs(t, e.release(context.Background(), newFakeLock(e.redis, fmt.Sprint("name", last-1)), last), ErrLockLost, "unlock of the last one")
		assert.ErrorIs(t, e.release(context.Background(), newFakeLock(e.redis, "name0"), 1), ErrNotHeld, "unlock of the first one")
	})
}

// S4: a re-entry of a hold whose record has gone reports the loss, and does not acquire the lock anew.
func TestEngineReentryReportsALoss(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		e.lock(1)
		guarded := e.guarded(1)
		e.redis.set(func() { delete(e.redis.records, "x") })
		ok, err := e.lockWith(context.Background(), 1, request{wait: forever})
		require.False(t, ok, "re-entry of a hold whose record has gone")
		require.ErrorIs(t, err, ErrLockLost, "re-entry of a hold whose record has gone")
		assert.ErrorIs(t, context.Cause(guarded), ErrLockLost, "the guard says %v", context.Cause(guarded))
		assert.Empty(t, e.redis.holder("x"), "the re-entry took the lock anew")
		for range 2 {
			assert.ErrorIs(t, e.unlockErr(1), ErrLockLost, "unlock")
		}
		e.lock(1)
		e.unlock(1)
	})
}

// An owner that was told of the loss of its hold gets a new hold.
func TestEngineLocksAfreshOnceTheLossIsReported(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		e.redis.set(func() { delete(e.redis.records, "x") })
		time.Sleep(time.Minute) // the watchdog notices
		ok, err := e.lockWith(context.Background(), 1, request{wait: 0})
		require.False(t, ok)
		require.ErrorIs(t, err, ErrLockLost)
		e.lock(1)
		_, levels := e.levels(newFakeLock(e.redis, "x"), 1)
		assert.Equal(t, 1, levels, "levels")
		e.unlock(1)
	})
}

// S4: a holder that has lost its record never gets it back by renewing.
func TestEngineLossIsNoticedWithinAThirdOfTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := joinBubbleEngine(t, e.redis, "other")
		e.lock(1)
		guarded := e.guarded(1)
		time.Sleep(time.Minute)
		e.redis.set(func() { delete(e.redis.records, "x") })
		start := time.Now()
		other.lock(2)
		<-guarded.Done()
		took := time.Since(start)
		assert.LessOrEqual(t, took, e.watchdogTimeout/3, "noticed after %v: %v", took, context.Cause(guarded))
		assert.ErrorIs(t, context.Cause(guarded), ErrLockLost, "noticed after %v: %v", took, context.Cause(guarded))
		time.Sleep(time.Hour)
		_, levels := other.levels(newFakeLock(e.redis, "x"), 2)
		assert.Equal(t, 1, levels, "the next holder was disturbed")
		assert.ErrorIs(t, e.unlockErr(1), ErrLockLost, "unlock")
		other.unlock(2)
	})
}

// A waiter that has had an answer retries for one watchdog timeout; a caller without an answer is told soon.
func TestEngineOutages(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		down := fakeFault{block: io.EOF}
		e.redis.fault = func(string) fakeFault { return down }
		start := time.Now()
		ok, err := e.lockWith(context.Background(), 1, request{wait: forever})
		assert.False(t, ok)
		assert.ErrorIs(t, err, io.EOF)
		assert.LessOrEqual(t, time.Since(start), 2*time.Second)
		tries := e.redis.count("acquire")
		assert.GreaterOrEqual(t, tries, 4, "tries")
		assert.LessOrEqual(t, tries, 12, "tries")
		time.Sleep(time.Minute) // the undo is given up too

		e.redis.set(func() { e.redis.fault = nil })
		other := joinBubbleEngine(t, e.redis, "other")
		other.lock(1)
		got := make(chan error, 1)
		go func() {
			_, err := e.lockWith(context.Background(), 2, request{wait: forever})
			got <- err
		}()
		time.Sleep(5 * time.Second)
		e.redis.set(func() { e.redis.fault = func(string) fakeFault { return down } })
		time.Sleep(15 * time.Second)
		e.redis.set(func() { e.redis.fault = nil })
		time.Sleep(5 * time.Second)
		other.unlock(1)
		assert.NoError(t, <-got, "a waiter did not ride out an outage of 15s")
		e.unlock(2)

		other.lock(1)
		go func() {
			_, err := e.lockWith(context.Background(), 2, request{wait: forever})
			got <- err
		}()
		time.Sleep(5 * time.Second)
		start = time.Now()
		e.redis.set(func() { e.redis.fault = func(string) fakeFault { return down } })
		err = <-got
		assert.ErrorIs(t, err, io.EOF, "a waiter without any Redis: %v after %v", err, time.Since(start))
		assert.LessOrEqual(t, time.Since(start), 2*e.watchdogTimeout, "a waiter without any Redis: %v after %v", err, time.Since(start))
		e.redis.set(func() { e.redis.fault = nil })
	})
}

// Close ends waiters and guards at once. It releases nothing, and Unlock works after it.
func TestEngineCloseWakesEverybody(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := joinBubbleEngine(t, e.redis, "other")
		other.lock(1)
		var wg sync.WaitGroup
		for o := owner(2); o < 10; o++ {
			wg.Go(func() {
				ok, err := e.lockWith(context.Background(), o, request{wait: forever})
				assert.False(t, ok)
				assert.ErrorIs(t, err, ErrClosed)
			})
		}
		held := newFakeLock(e.redis, "held")
		ok, err := e.acquire(context.Background(), held, 1, request{wait: forever})
		require.NoError(t, err)
		require.True(t, ok)
		guarded, err := e.guard(context.Background(), held, 1)
		require.NoError(t, err)
		synctest.Wait()
		start := time.Now()
		assert.NoError(t, e.close())
		wg.Wait()
		assert.Zero(t, time.Since(start), "time taken")
		assert.ErrorIs(t, context.Cause(guarded), ErrClosed, "the guard says %v", context.Cause(guarded))
		ok, err = e.lockWith(context.Background(), 3, request{wait: 0})
		assert.False(t, ok, "lock after close")
		assert.ErrorIs(t, err, ErrClosed, "lock after close")
		assert.NotEmpty(t, e.redis.holder("held"), "close has released what is held")
		err = e.release(context.Background(), held, 1)
		assert.NoError(t, err, "unlock after close")
		assert.Empty(t, e.redis.holder("held"), "unlock after close")
		other.unlock(1)
	})
}

// An attempt that is under way while the client closes is undone.
func TestEngineCloseUndoesAnAttemptUnderWay(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.latency = time.Second
		got := make(chan error, 1)
		go func() {
			_, err := e.lockWith(context.Background(), 1, request{wait: forever})
			got <- err
		}()
		time.Sleep(time.Millisecond)
		assert.NoError(t, e.close())
		assert.ErrorIs(t, <-got, ErrClosed)
		assert.Empty(t, e.redis.holder("x"), "the lock is still held")
	})
}

// Goroutines of one owner share its hold: each Lock is a level of it.
func TestEngineGoroutinesOfOneOwnerShareItsHold(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.latency = time.Millisecond
		other := joinBubbleEngine(t, e.redis, "other")
		other.lock(9)
		const o, many = owner(-1), 20
		var wg sync.WaitGroup
		for range many {
			wg.Go(func() { e.lock(o) })
		}
		synctest.Wait()
		ok, err := e.lockWith(context.Background(), o, request{wait: 0})
		assert.NoError(t, err)
		assert.False(t, ok)
		assert.ErrorIs(t, e.unlockErr(o), ErrNotHeld, "unlock of what is not held yet")
		other.unlock(9)
		wg.Wait()
		_, levels := e.levels(newFakeLock(e.redis, "x"), o)
		assert.Equal(t, many, levels, "%d levels here, %d in Redis", levels, e.redis.records["x"].levels)
		assert.Equal(t, many, e.redis.records["x"].levels, "%d levels here, %d in Redis", levels, e.redis.records["x"].levels)
		for range many {
			wg.Go(func() { e.unlock(o) })
		}
		wg.Wait()
		assert.Empty(t, e.redis.holder("x"), "not released")
		assert.ErrorIs(t, e.unlockErr(o), ErrNotHeld)
	})
}

// When a waiting goroutine gives up, the next goroutine of its owner replaces it.
func TestEngineNextGoroutineOfAnOwnerReplacesOneThatGivesUp(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := joinBubbleEngine(t, e.redis, "other")
		other.lock(9)
		ctx, cancel := context.WithCancel(context.Background())
		go func() { _, _ = e.lockWith(ctx, 1, request{wait: forever}) }()
		synctest.Wait()
		got := make(chan error, 1)
		go func() {
			_, err := e.lockWith(context.Background(), 1, request{wait: forever})
			got <- err
		}()
		synctest.Wait()
		cancel()
		synctest.Wait()
		other.unlock(9)
		assert.NoError(t, <-got)
		e.unlock(1)
	})
}

// A guard ends with its parent, and the hold forgets it.
func TestEngineForgetsGuardsOfEndedContexts(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		b := newFakeLock(e.redis, "x")
		for range 100 {
			ctx, cancel := context.WithCancel(context.Background())
			g, err := e.guard(ctx, b, 1)
			require.NoError(t, err)
			cancel()
			assert.ErrorIs(t, g.Err(), context.Canceled, "a guard outlives its parent")
		}
		synctest.Wait()
		n := 0
		e.holdOf(b.id(), 1, func(h *hold) { n = len(h.guards) })
		assert.Zero(t, n, "guards of ended contexts are remembered")
		e.unlock(1)
	})
}

// S1 under everything at once: random owners, leases, latencies, lost answers and
// late requests; no two trusted holds at a time, and nothing left in the end.
func TestEngineExcludesUnderRandomFaults(t *testing.T) {
	for seed := range 40 {
		synctest.Test(t, func(t *testing.T) { excludesUnderRandomFaults(t, seed) })
	}
}

func excludesUnderRandomFaults(t *testing.T, seed int) {
	r := &fakeRedis{records: make(map[string]*fakeRecord)}
	rng := newRand(seed)
	faulty := true
	r.fault = func(string) fakeFault { // with r.mu held, which also guards rng here
		if !faulty {
			return fakeFault{}
		}
		switch rng.IntN(20) {
		case 0:
			return fakeFault{err: io.EOF}
		case 1:
			return fakeFault{block: io.EOF}
		case 2:
			return fakeFault{late: time.Duration(rng.IntN(int(2 * time.Second)))}
		case 3:
			return fakeFault{late: time.Duration(rng.IntN(int(40 * time.Second))), err: io.EOF}
		}
		return fakeFault{late: time.Duration(rng.IntN(int(20 * time.Millisecond)))}
	}
	var (
		mu     sync.Mutex // guards below
		inside = make(map[string]string)
		held   int
	)
	var wg sync.WaitGroup
	for c := range 3 {
		e := joinBubbleEngine(t, r, fmt.Sprint("client", c))
		for o := owner(1); o <= 4; o++ {
			rng := newRand(seed*1000 + c*10 + int(o))
			wg.Go(func() {
				for range 20 {
					b := newFakeLock(r, "x")
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+rng.IntN(30))*time.Second)
					req := request{wait: forever}
					switch rng.IntN(3) {
					case 0:
						req.wait = time.Duration(rng.IntN(int(3 * time.Second)))
					case 1:
						req.lease = time.Duration(1+rng.IntN(20)) * time.Second
					}
					ok, err := e.acquire(ctx, b, o, req)
					cancel()
					assert.False(t, ok && err != nil, "seed %d: %v", seed, err)
					if !ok {
						continue
					}
					guarded, err := e.guard(context.Background(), b, o)
					if err == nil {
						me := fmt.Sprintf("client %d owner %d", c, o)
						mu.Lock()
						held++
						who := inside["x"]
						assert.Empty(t, who, "seed %d: %s holds the lock together with %s", seed, me, who)
						inside["x"] = me
						mu.Unlock()
						select {
						case <-guarded.Done():
						case <-time.After(time.Duration(rng.IntN(int(15 * time.Second)))):
						}
						mu.Lock()
						inside["x"] = ""
						mu.Unlock()
					}
					err = e.release(context.Background(), b, o)
					assert.True(t, err == nil || errors.Is(err, ErrLockLost) || errors.Is(err, io.EOF) || errors.Is(err, send.ErrSilent), "seed %d", seed)
				}
			})
		}
	}
	wg.Wait()
	mu.Lock()
	assert.GreaterOrEqual(t, held, 10, "seed %d: only %d holds", seed, held)
	mu.Unlock()
	r.set(func() { faulty = false })
	time.Sleep(2 * time.Minute) // abandoned records expire
	h := r.holder("x")
	assert.Empty(t, h, "seed %d: %s still holds the lock", seed, h)
}

// Every Unlock counts, also one that does not get the owner mutex while other goroutines of the
// owner wait for Redis: a hold whose last Unlock was called is not renewed.
func TestEngineUnlockCountsWhileRedisHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t) // the time limit of an abandoned request is the engine's, that of others is go-redis'
		const o, many = owner(-1), 5
		for range many {
			e.lock(o)
		}
		guarded := e.guarded(o)
		e.redis.set(func() {
			e.redis.fault = func(verb string) fakeFault { return fakeFault{late: 12 * time.Second} }
		})
		var wg sync.WaitGroup
		start := time.Now()
		for range many {
			wg.Go(func() { _ = e.unlockErr(o) })
		}
		wg.Wait()
		assert.LessOrEqual(t, time.Since(start), unlockTime+send.MinWait, "time taken")
		assert.Error(t, guarded.Err(), "the hold goes on")
		e.redis.set(func() { e.redis.fault = nil })
		time.Sleep(2 * e.watchdogTimeout)
		assert.Empty(t, e.redis.holder("x"), "is still renewed")
		e.lock(1)
		e.unlock(1)
	})
}

// An undo that reaches Redis before its attempt is sent again.
func TestEngineUndoThatOvertakesItsAttempt(t *testing.T) {
	for _, late := range []time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			e.redis.fault = func(verb string) fakeFault {
				if verb == "acquire" {
					return fakeFault{ghost: late}
				}
				return fakeFault{}
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			defer cancel()
			ok, err := e.lockWith(ctx, 1, request{wait: forever})
			require.False(t, ok)
			require.Error(t, err)
			e.redis.set(func() { e.redis.fault = nil })
			time.Sleep(1500 * time.Millisecond)
			h := e.redis.holder("x")
			assert.Empty(t, h, "%s, which ran %v late, holds the lock", h, late)
		})
	}
}

// Several attempts go unanswered, and run one after the other while they are undone.
func TestEngineUndoesSeveralAttemptsOfUnknownOutcome(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		lates := []time.Duration{30 * time.Millisecond, 300 * time.Millisecond, 900 * time.Millisecond}
		e.redis.fault = func(verb string) fakeFault {
			if verb != "acquire" || len(lates) == 0 {
				return fakeFault{}
			}
			late := lates[0]
			lates = lates[1:]
			return fakeFault{ghost: late}
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		ok, err := e.lockWith(ctx, 1, request{wait: forever})
		require.False(t, ok)
		require.Error(t, err)
		require.LessOrEqual(t, len(lates), 1, "tried %d times", 3-len(lates))
		time.Sleep(1500 * time.Millisecond)
		assert.Empty(t, e.redis.holder("x"), "the lock is still held")
	})
}

// A re-entry whose answer comes after the hold has expired leaves no record behind.
func TestEngineLateReentryLeavesNoLease(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ok, err := e.lockWith(context.Background(), 1, request{wait: 0, lease: 200 * time.Millisecond})
		require.NoError(t, err)
		require.True(t, ok)
		e.redis.latency = 150 * time.Millisecond
		ok, err = e.lockWith(context.Background(), 1, request{wait: forever, lease: time.Hour})
		assert.False(t, ok)
		assert.ErrorIs(t, err, ErrLockLost)
		time.Sleep(time.Second)
		assert.Empty(t, e.redis.holder("x"), "the lock is still held")
	})
}

// An abandoned re-entry may have extended the lease in Redis: the record is deleted when the hold expires.
func TestEngineAbandonedReentryLeavesNoLease(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ok, err := e.lockWith(context.Background(), 1, request{wait: 0, lease: 500 * time.Millisecond})
		require.NoError(t, err)
		require.True(t, ok)
		e.redis.set(func() { e.redis.latency = 50 * time.Millisecond })
		ctx, cancel := context.WithTimeout(context.Background(), 70*time.Millisecond)
		defer cancel()
		ok, err = e.lockWith(ctx, 1, request{wait: forever, lease: time.Hour})
		assert.False(t, ok)
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(2 * time.Second)
		assert.Empty(t, e.redis.holder("x"), "the lock is still held")
	})
}

// Close waits for callers with a request under way, so that the Redis client can be closed after it.
func TestEngineCloseWaitsForCallers(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.latency = 500 * time.Millisecond
		got := make(chan error, 1)
		go func() {
			_, err := e.lockWith(context.Background(), 1, request{wait: forever})
			got <- err
		}()
		time.Sleep(100 * time.Millisecond)
		assert.NoError(t, e.close())
		requests := len(e.redis.requests)
		assert.ErrorIs(t, <-got, ErrClosed)
		time.Sleep(time.Hour)
		n := len(e.redis.requests)
		assert.Equal(t, requests, n, "%d requests after Close, %q holds the lock", n-requests, e.redis.holder("x"))
		assert.Empty(t, e.redis.holder("x"), "%d requests after Close, %q holds the lock", n-requests, e.redis.holder("x"))
	})
}

// When Redis cannot be reached, all waiters of a lock learn it at the same time, each by its own request.
func TestEngineEveryCallerLearnsOfADeadServerAtOnce(t *testing.T) {
	for name, fault := range map[string]fakeFault{"refused": {block: io.EOF}, "hangs": {block: io.EOF, late: 5 * time.Second}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				e.redis.fault = func(string) fakeFault { return fault }
				var wg sync.WaitGroup
				start := time.Now()
				for o := range owner(100) {
					wg.Go(func() {
						ok, err := e.lockWith(context.Background(), o+1, request{wait: forever})
						assert.False(t, ok, "%v", err)
						assert.True(t, errors.Is(err, io.EOF) || errors.Is(err, send.ErrSilent), "%v", err)
					})
				}
				wg.Wait()
				took := time.Since(start)
				assert.LessOrEqual(t, took, 11*time.Second, "the last one was told after %v", took)
				e.redis.set(func() { e.redis.fault = nil })
				e.lock(1)
				e.unlock(1)
			})
		})
	}
}

// A refusingLock is a fakeLock that answers attempts with an error of its own.
type refusingLock struct {
	*fakeLock
	err error
}

func (l refusingLock) granted(attempt, reply) (grant, error) { return grant{}, l.err }

// No caller gets the error of another caller's request. An answer that refuses one caller says
// nothing about the waiters behind it.
func TestEngineEveryCallerGetsItsOwnAnswer(t *testing.T) {
	for _, refused := range []error{errUpgrade, ErrNotALock, invalid("lease 1ms"), errReply, ErrNotSynced} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			e.lock(1)
			results := make(chan error, 1)
			go func() {
				b := refusingLock{newFakeLock(e.redis, "x"), refused}
				_, err := e.acquire(context.Background(), b, 2, request{wait: forever, lease: time.Minute})
				results <- err
			}()
			synctest.Wait()
			var behind sync.WaitGroup
			for o := range owner(10) {
				r := request{wait: forever}
				if o%2 == 0 {
					r.lease = time.Minute
				}
				behind.Go(func() {
					ok, err := e.lockWith(context.Background(), 3+o, r)
					if !assert.NoError(t, err, "%v is behind a caller who was told %v", 3+o, refused) || !assert.True(t, ok, "%v is behind a caller who was told %v", 3+o, refused) {
						return
					}
					time.Sleep(time.Millisecond)
					e.unlock(3 + o)
				})
			}
			synctest.Wait()
			e.unlock(1)
			behind.Wait()
			err := <-results
			assert.ErrorIs(t, err, refused, "the caller in front")
		})
	}
}

// Redis does not answer a TryLock that does not wait, and answers the waiters behind it. These
// get the lock in the order in which they came.
func TestEngineWaitersBehindAnUnansweredTrySendTheirOwn(t *testing.T) {
	for _, lease := range []time.Duration{0, time.Minute} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			other := joinBubbleEngine(t, e.redis, "other")
			e.redis.latency = time.Millisecond
			e.redis.fault = func(string) fakeFault { return fakeFault{block: io.EOF} }
			tried := make(chan error, 1)
			go func() {
				_, err := e.lockWith(context.Background(), 1, request{wait: 0})
				e.redis.set(func() { e.redis.fault = nil })
				tried <- err
			}()
			synctest.Wait()
			var behind sync.WaitGroup
			var order []owner
			for o := owner(2); o < 12; o++ {
				behind.Go(func() {
					ok, err := e.lockWith(context.Background(), o, request{wait: forever, lease: lease})
					if !assert.NoError(t, err, "owner %v", o) || !assert.True(t, ok, "owner %v", o) {
						return
					}
					order = append(order, o)
					time.Sleep(time.Second)
					e.unlock(o)
				})
				synctest.Wait()
			}
			// Another client has the lock when the waiters send their attempts.
			e.redis.set(func() { e.redis.records["x"] = &fakeRecord{"other:1:1", 1, time.Now().Add(time.Minute)} })
			err := <-tried
			assert.ErrorIs(t, err, io.EOF, "the TryLock")
			time.Sleep(time.Second)
			answer, err := e.redis.Run(context.Background(), newFakeLock(e.redis, "x").release("other:1:1", 0), false)
			require.NoError(t, err)
			require.EqualValues(t, 1, answer.([]any)[0])
			behind.Wait()
			assert.True(t, slices.IsSorted(order), "served in the order %v", order)
			assert.Len(t, order, 10, "served in the order %v", order)
			other.lock(1)
			other.unlock(1)
		})
	}
}

// Lock does not return a hold that is trusted for hardly any time: it sends the attempt again, which restores the lease.
func TestEngineLateAnswerIsAskedForAgain(t *testing.T) {
	const lease = 600 * time.Millisecond // less than send.ResendTime
	for name, late := range map[string]time.Duration{"nearly over": lease - 40*time.Millisecond, "over": lease + 40*time.Millisecond} {
		for _, explicit := range []time.Duration{0, lease} {
			for levels := range 2 {
				t.Run(fmt.Sprint(name, explicit, levels), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						e := joinBubbleEngine(t, &fakeRedis{records: make(map[string]*fakeRecord)}, "client", WithWatchdogTimeout(lease))
						if levels > 0 {
							ok, err := e.lockWith(context.Background(), 1, request{wait: forever, lease: time.Hour})
							require.NoError(t, err)
							require.True(t, ok)
						}
						asked := 0
						e.redis.set(func() {
							e.redis.fault = func(verb string) fakeFault {
								if asked++; verb == "acquire" && asked <= 2 {
									return fakeFault{answer: late}
								}
								return fakeFault{}
							}
						})
						ok, err := e.lockWith(context.Background(), 1, request{wait: forever, lease: explicit})
						require.NoError(t, err)
						require.True(t, ok)
						guarded := e.guarded(1)
						time.Sleep(lease / 2)
						assert.NoError(t, guarded.Err(), "Lock returned a hold that is over: %v", context.Cause(guarded))
						if explicit > 0 { // with the watchdog, the rest is renewals
							assert.Equal(t, 3-2*levels, asked, "requests: an hour is left of the lease of the first level")
						}
						for range levels + 1 {
							e.unlock(1)
						}
						assert.Empty(t, e.redis.holder("x"), "the lock is still held")
					})
				})
			}
		}
	}
}

// When Redis always takes longer to answer than the lease lasts, Lock returns an error after a few attempts,
// and no record is left. A lease of 1ms expires at once, as documented, and is no error.
func TestEngineLeaseShorterThanAnAnswerIsAnError(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.latency = 50 * time.Millisecond
		start := time.Now()
		ok, err := e.lockWith(context.Background(), 1, request{wait: forever, lease: 60 * time.Millisecond})
		assert.False(t, ok)
		assert.ErrorIs(t, err, ErrLockLost)
		assert.ErrorIs(t, err, errLate)
		n := e.redis.count("acquire")
		assert.Equal(t, mostAsked, n, "asked %d times", n)
		assert.LessOrEqual(t, time.Since(start), 10*2*e.redis.latency, "time taken")
		assert.Empty(t, e.redis.holder("x"), "is left")
		ok, err = e.lockWith(context.Background(), 1, request{wait: forever, lease: time.Millisecond})
		assert.NoError(t, err, "a lease of 1ms")
		assert.True(t, ok, "a lease of 1ms")
		e.lock(1)
		e.unlock(1)
	})
}

// A process that is paused during a handover does not report the lock when it resumes: the waiter
// that was next acquires a hold of its own. So does a waiter that was admitted to a shared hold.
func TestEngineLateHandoverIsNotReported(t *testing.T) {
	type stopped func(e *bubbleEngine, before *hold)
	handOver := func(e *bubbleEngine, before *hold) {
		assert.True(e.t, before.handOverLocked(), "not handed over")
	}
	letIn := func(e *bubbleEngine, before *hold) {
		before.queue = before.name.findQueueLocked(before.key.id)
		before.openLocked()
	}
	for name, left := range map[string]time.Duration{"over": -time.Second, "nearly over": time.Millisecond, "noticed": 0} {
		for way, pass := range map[string]stopped{"handover": handOver, "let in": letIn} {
			t.Run(name+", "+way, func(t *testing.T) {
				inBubble(t, func(t *testing.T, e *bubbleEngine) {
					events := &lossCounter{}
					e.observer = events
					b := lockType(newFakeLock(e.redis, "x"))
					if way == "let in" {
						b = newSharedFake(e.redis, "x")
					}
					take := func(o owner) {
						ok, err := e.acquire(context.Background(), b, o, request{wait: forever})
						assert.NoError(t, err)
						assert.True(t, ok)
					}
					take(1)
					var before *hold
					e.holdOf(b.id(), 1, func(h *hold) {
						if before = h; way == "let in" { // the gate is open by now
							before.queue = nil
							g := h.name.queueLocked(b.id())
							g.shared = nil
							g.TryEnter()
						}
					})
					got := make(chan struct{})
					go func() { take(2); close(got) }()
					synctest.Wait()

					before.name.mu.Lock()
					record := before.record
					pass(e, before)
					record.lease.until.Store(int64(e.watchdog.now() + left))
					before.name.mu.Unlock()
					if name == "noticed" {
						record.leaseEnded(errLapsed)
					}
					<-got
					h := before.name.find(b.id(), 2)
					require.NotNil(t, h, "no hold")
					require.NotEqual(t, before.field, h.field, "Lock returned with the record of the holder before")
					ctx, err := e.guard(context.Background(), b, 2)
					require.NoError(t, err)
					time.Sleep(time.Second)
					assert.NoError(t, ctx.Err(), "Lock returned a hold that is over")
					assert.Zero(t, events.of(2), "a loss was reported of a hold that Lock never returned")
					_ = e.release(context.Background(), b, 1)
					assert.NoError(t, e.release(context.Background(), b, 2))
					time.Sleep(time.Minute)
					assert.Empty(t, e.redis.holder("x"), "the lock is still held")
				})
			})
		}
	}
}

// A lossCounter counts losses.
type lossCounter struct {
	NopObserver
	mu   sync.Mutex // guards below
	lost map[Owner]int
}

func (c *lossCounter) Lost(_ context.Context, e LostEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost == nil {
		c.lost = make(map[Owner]int)
	}
	c.lost[e.Lock.Owner]++
}

func (c *lossCounter) of(o Owner) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost[o]
}

// A re-entry waits while another goroutine of its owner has the owner mutex, also with wait 0.
func TestEngineTryReentryWaitsForTheOwnerMutex(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.latency = time.Millisecond
		const o = owner(-1)
		e.lock(o)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				ok, err := e.lockWith(context.Background(), o, request{wait: 0})
				assert.NoError(t, err)
				assert.True(t, ok)
			})
		}
		wg.Wait()
		for range 21 {
			e.unlock(o)
		}
	})
}

// A panic of a hook is an error to the engine, which undoes the request at once and leaves nothing behind.
// TestHookPanicReachesTheCaller holds what callers see.
func TestEngineUndoesARequestThatPanics(t *testing.T) {
	for _, verb := range []string{"acquire", "release"} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			b := newFakeLock(e.redis, "x")
			e.redis.set(func() {
				e.redis.fault = func(v string) fakeFault { return fakeFault{panics: v == verb} }
			})
			_, err := e.acquire(context.Background(), b, 1, request{wait: forever})
			if verb == "release" {
				require.NoError(t, err)
				err = e.release(context.Background(), b, 1)
			}
			var p *send.HookPanic
			require.ErrorAs(t, err, &p)
			require.Equal(t, "a hook", p.Value)
			start := time.Now()
			if verb == "acquire" {
				e.redis.set(func() { e.redis.fault = nil })
				e.lock(2)
				e.unlock(2)
				require.Less(t, time.Since(start), time.Second, "the record stays")
			} else { // every release panics: the record expires
				time.Sleep(2 * e.watchdogTimeout)
				e.redis.set(func() { e.redis.fault = nil })
				e.lock(2)
				e.unlock(2)
			}
			require.Zero(t, e.names())
			require.Zero(t, e.leases())
		})
	}
}

// An Unlock that has waited for the owner mutex has the full time of a request. It is told of the
// loss of the lock, and does not take a request that was never sent for one that was.
func TestEngineUnlockAfterTheOwnerMutexHasFullTime(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		const o = owner(-1)
		b := newFakeLock(e.redis, "x")
		e.redis.bound = true
		for range 2 {
			ok, err := e.acquire(context.Background(), b, o, request{wait: forever})
			require.NoError(t, err)
			require.True(t, ok)
		}
		time.Sleep(time.Second) // the limit of the next request is a new one
		e.redis.set(func() { e.redis.latency = 300 * time.Millisecond })
		first := make(chan error, 1)
		go func() { first <- e.release(context.Background(), b, o) }()
		synctest.Wait()
		second := make(chan error, 1)
		go func() { second <- e.release(context.Background(), b, o) }()
		synctest.Wait()
		time.Sleep(500 * time.Millisecond) // the first one has run, and is not answered yet
		e.redis.set(func() { delete(e.redis.records, "x") })
		assert.NoError(t, <-first)
		err := <-second
		assert.ErrorIs(t, err, ErrLockLost)
	})
}

// C4: a waiter that may not subscribe polls often while the lock changes hands, and rarely while one owner keeps it.
func TestPollingSlowsDownForALockThatIsKept(t *testing.T) {
	t.Parallel()
	const lease, most = 30 * time.Second, time.Second
	start := time.Now()
	count := func(holds time.Duration) int {
		var p polling
		polls := 0
		for now := start; now.Sub(start) < time.Minute; polls++ {
			since := now.Sub(start) % holds // renewed, or acquired by the next owner
			now = now.Add(min(most, p.next(now, lease-since)))
		}
		return polls
	}
	assert.LessOrEqual(t, count(10*time.Second), 6*30+60, "requests in a minute for a lock that is kept and renewed")
	assert.GreaterOrEqual(t, count(20*time.Millisecond), 5000, "requests in a minute for a lock that changes hands")
}
