//go:build go1.25

package engine

import (
	"context"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/guard"
	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/send"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// S3: the record of an attempt that runs after its rollback expires with its lease, and is not renewed.
func TestEngineAttemptThatRunsAfterItsRollbackExpires(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.faults(fakeredis.Fault{Block: io.ErrUnexpectedEOF})
		err := e.misses(ctx, 1, Request{Wait: forever})
		require.Error(t, err)
		e.heal()
		time.Sleep(2 * UnlockTime)
		// Now the server runs the request that it had read before.
		e.redis.Set(func() {
			e.redis.Records["x"] = &fakeredis.Record{Field: "client:1:1", Levels: 1, Expires: time.Now().Add(e.WatchdogTimeout)}
		})
		start := time.Now()
		e.lock(2)
		took := time.Since(start)
		assert.LessOrEqual(t, took, e.WatchdogTimeout+20*time.Millisecond, "an orphan blocked for %v", took)
		e.unlock(2)
	})
}

// An attempt was given up, and Redis cannot be reached for longer than its rollback is tried at first. The attempt runs
// when Redis continues, and is rolled back then: the lock is not kept without an owner until the lease is over.
func TestEngineAttemptThatRunsAfterAnOutageIsRolledBack(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		const outage = 3 * UnlockTime
		e.redis.Fault = func(verb string) fakeredis.Fault {
			if verb == "acquire" {
				return fakeredis.Fault{Ghost: outage}
			}
			return fakeredis.Fault{Block: io.ErrUnexpectedEOF}
		}
		err := e.misses(ctx, 1, Request{Wait: time.Second})
		require.Error(t, err)
		time.Sleep(outage)
		e.heal()
		start := time.Now()
		e.lock(2)
		took := time.Since(start)
		assert.LessOrEqual(t, took, 2*clearPause, "an orphan blocked for %v", took)
		e.unlock(2)
	})
}

// The rollback of an attempt goes on while Redis refuses writes, here for a minute. The lock is not kept without an owner
// until the lease, which is an explicit one, is over.
func TestEngineRollbackThatIsRefusedGoesOn(t *testing.T) {
	for _, refusal := range []error{answerError("MISCONF it cannot save to disk"), answerError("OOM command not allowed")} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			const long = time.Minute
			e.redis.Fault = func(verb string) fakeredis.Fault {
				if verb == "acquire" {
					return fakeredis.Fault{Answer: long / 2} // it runs, and its caller has left
				}
				return fakeredis.Fault{Block: refusal}
			}
			err := e.misses(ctx, 1, Request{Wait: time.Second, Lease: time.Hour})
			require.Error(t, err)
			time.Sleep(long)
			e.assertHeld()
			assert.Less(t, e.redis.Count("release"), 2*60, "Redis is asked all the time")
			e.heal()
			start := time.Now()
			e.lock(2)
			took := time.Since(start)
			assert.LessOrEqual(t, took, 2*clearPause, "an attempt that was given up blocked for %v", took)
			e.unlock(2)
		})
	}
}

// Only so many attempts are rolled back in the background at a time.
func TestEngineRollsBackALimitedNumberOfAttemptsInTheBackground(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.faults(fakeredis.Fault{Block: io.ErrUnexpectedEOF})
		e.undoing.Store(mostUndone - 1)
		for owner := range Owner(3) {
			err := e.misses(ctx, owner+1, Request{Wait: time.Second})
			require.Error(t, err)
		}
		time.Sleep(2 * UnlockTime)
		assert.EqualValues(t, mostUndone, e.undoing.Load())
		time.Sleep(e.WatchdogTimeout + late.Life + clearPause)
		assert.EqualValues(t, mostUndone-1, e.undoing.Load(), "the leases have expired")
	})
}

// A release that Redis, or a proxy in front of it, answers with an error of any kind goes on in the background.
func TestReleaseGoesOnAfterAnyError(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1, leased(time.Hour))
		e.faults(fakeredis.Fault{Block: answerError("ERR upstream failure")}, "release")
		assert.Error(t, e.unlockErr(1))
		time.Sleep(3 * time.Second)
		e.heal()
		time.Sleep(2 * clearPause)
		e.assertFree("the record")
	})
}

// S3: if an acquire was sent again, its first try may run while the hold is being released, and be answered before the
// release. The record that this try makes is released.
func TestEngineTryThatRunsDuringTheReleaseIsRolledBack(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		first := true
		e.fail(func(verb string) fakeredis.Fault {
			switch {
			case verb == "acquire" && first:
				first = false
				return fakeredis.Fault{Late: 3 * time.Second}
			case verb == "release" && e.redis.Record("x") != nil:
				return fakeredis.Fault{Answer: 900 * time.Millisecond}
			}
			return fakeredis.Fault{}
		})
		e.lock(1)
		time.Sleep(1500 * time.Millisecond)
		e.unlock(1) // runs half a second before the first try of the acquire does
		time.Sleep(2 * time.Second)
		e.assertFree("the record of a try that ran after the release")
	})
}

// A release that Redis never confirms returns an error within UnlockTime. The hold ends, and is not renewed any more.
func TestEngineUnconfirmedReleaseIsAnErrorAndEndsTheHold(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		guarded := e.guarded(1)
		e.faults(fakeredis.Fault{Block: io.EOF})
		start := time.Now()
		err := e.unlockErr(1)
		assert.Error(t, err)
		assert.NotErrorIs(t, err, ErrNotHeld)
		assert.ErrorIs(t, err, io.EOF)
		assert.LessOrEqual(t, time.Since(start), UnlockTime, "time taken")
		assert.Same(t, context.Canceled, context.Cause(guarded), "the cause of the guard")
		synctest.Wait() // one may have been on its way
		renewals := e.redis.Count("renew")
		time.Sleep(time.Hour)
		assert.Equal(t, renewals, e.redis.Count("renew"), "what was released is still renewed")
		e.heal()
		e.lock(1)
		e.unlock(1)
	})
}

// Every Unlock decrements the hold count, even one that does not get the owner mutex because other goroutines of the
// owner wait for Redis: a hold whose last Unlock was called is not renewed any more.
func TestEngineUnlockCountsWhileRedisHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t) // the time limit of an abandoned request is the engine's, that of others is go-redis'
		const o, many = Owner(-1), 5
		for range many {
			e.lock(o)
		}
		guarded := e.guarded(o)
		e.faults(fakeredis.Fault{Late: 12 * time.Second})
		var wg sync.WaitGroup
		start := time.Now()
		for range many {
			wg.Go(func() { _ = e.unlockErr(o) })
		}
		wg.Wait()
		assert.LessOrEqual(t, time.Since(start), UnlockTime+send.MinWait, "time taken")
		assert.Error(t, guarded.Err(), "the hold goes on")
		e.heal()
		time.Sleep(2 * e.WatchdogTimeout)
		e.assertFree("is still renewed")
		e.lock(1)
		e.unlock(1)
	})
}

// An Unlock that has waited in vain for another goroutine of its owner hands nothing off: the re-entry of that goroutine
// may still be granted, and is then rolled back. The next owner acquires the lock when the record was deleted, and keeps
// it.
func TestUnlockBesideAReentryHandsNothingOff(t *testing.T) {
	for name, fenced := range map[string]bool{"fenced": true, "not fenced": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := fakeredis.New()
				e, other := joinBubbleEngine(t, r, "client", withWindow(time.Minute)), joinBubbleEngine(t, r, "other")
				l := newFakeLock(r, "x")
				l.traits.Fenced = fenced
				take := func(o Owner) <-chan struct{} {
					taken := begin(func() {
						e.take(l, o)
					})
					synctest.Wait()
					return taken
				}
				<-take(1)
				_, field := e.holdBy(l.Traits().ID, 1)
				next := take(2)
				r.Set(func() {
					r.Fault = func(string) fakeredis.Fault {
						return fakeredis.Fault{Block: answerError("LOADING Redis is loading the dataset in memory")}
					}
				})
				again := take(1)
				require.ErrorContains(t, e.Release(ctx, l, 1), "not confirmed")
				synctest.Wait()
				assert.Zero(t, holdCountOf(e.Engine, l, 1), "the Unlock has counted")
				assert.Zero(t, holdCountOf(e.Engine, l, 2), "the lock was handed off while a re-entry was under way")
				r.Set(func() { r.Fault = nil })
				<-next
				time.Sleep(2 * time.Second) // the re-entry was answered
				synctest.Wait()
				assert.Equal(t, 1, holdCountOf(e.Engine, l, 2))
				assert.NotEqual(t, field, r.Holder("x"), "the next owner has a field of its own")
				ok, err := other.acquire(ctx, l, 1, Request{})
				require.NoError(t, err)
				assert.False(t, ok, "two processes hold the lock")
				e.giveBack(l, 2)
				<-again // as a new hold
				e.giveBack(l, 1)
			})
		})
	}
}

// The goroutine for which an Unlock has waited in vain has released the owner mutex just now: so the Unlock itself forgets
// the hold that it ends.
func TestUnconfirmedUnlockForgetsAHoldThatNobodyUses(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		h, _ := e.holdBy(contract.LockID{Name: "x"}, 1)
		assert.Zero(t, lowerUnconfirmed(h))
		synctest.Wait()
		e.assertFree()
		assert.Zero(t, e.holds(), "holds that are left")
		assert.Zero(t, e.names(), "lock states that are left")
		assert.ErrorIs(t, e.unlockErr(1), ErrNotHeld)
	})
}

// The engine treats a panic of a hook as an error: it rolls the request back at once, and leaves nothing behind.
// TestHookPanicReachesTheCaller checks what callers see.
func TestEngineRollsBackARequestThatPanics(t *testing.T) {
	for _, verb := range []string{"acquire", "release"} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			b := newFakeLock(e.redis, "x")
			e.redis.Set(func() {
				e.redis.Fault = func(v string) fakeredis.Fault { return fakeredis.Fault{Panics: v == verb} }
			})
			_, err := e.acquire(ctx, b, 1, Request{Wait: forever})
			if verb == "release" {
				require.NoError(t, err)
				err = e.Release(ctx, b, 1)
			}
			var p *send.HookPanic
			require.ErrorAs(t, err, &p)
			require.Equal(t, "a hook", p.Value)
			start := time.Now()
			if verb == "acquire" {
				e.heal()
				e.lock(2)
				e.unlock(2)
				require.Less(t, time.Since(start), time.Second, "the record stays")
			} else { // every release panics: the record expires
				time.Sleep(2 * e.WatchdogTimeout)
				e.heal()
				e.lock(2)
				e.unlock(2)
			}
			require.Zero(t, e.names())
			require.Zero(t, e.leases())
		})
	}
}

// An Unlock that has waited for the owner mutex still has the full time for its request. It returns the loss of the
// lock, and does not count a request that was never sent as one that may have run.
func TestEngineUnlockAfterTheOwnerMutexHasFullTime(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		const o = Owner(-1)
		b := newFakeLock(e.redis, "x")
		e.redis.Bound = true
		for range 2 {
			e.take(b, o)
		}
		time.Sleep(time.Second) // the time limit of the next request begins later
		e.redis.Set(func() { e.redis.Latency = 300 * time.Millisecond })
		first := later(func() error { return e.Release(ctx, b, o) })
		synctest.Wait()
		second := later(func() error { return e.Release(ctx, b, o) })
		synctest.Wait()
		time.Sleep(500 * time.Millisecond) // the first one has run, and is not answered yet
		e.deleteRecord()
		assert.NoError(t, <-first)
		err := <-second
		assert.ErrorIs(t, err, ErrLockLost)
	})
}

// S3: an earlier try of a Lock is answered while the Unlock is under way. A rollback of that try would delete the
// record before the release has run, and the Unlock would report the lock as lost.
func TestOrphanOfALockDoesNotOvertakeItsUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		slow := map[string]time.Duration{"acquire": 1500 * time.Millisecond, "release": 900 * time.Millisecond}
		e.redis.Fault = func(verb string) fakeredis.Fault {
			late := slow[verb]
			delete(slow, verb) // only the first one
			return fakeredis.Fault{Late: late}
		}
		e.lock(1)
		require.NoError(t, e.unlockErr(1))
		time.Sleep(10 * time.Second)
		e.assertFree()
	})
}

// lostEvents counts the Lost events.
type lostEvents struct {
	logged
	n *int
}

func (e lostEvents) Report(_ context.Context, v Event) {
	if v.What == Lost {
		*e.n++
	}
}

// An Unlock cancels the contexts of Guard before it hands the lock off. A hold that is lost meanwhile is lost once: the
// Unlock returns the loss, and the event is not repeated.
func TestHoldThatIsLostWhileItsGuardsEndIsLostOnce(t *testing.T) {
	for _, cause := range []error{errGone, ErrExpired} {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			e := joinBubbleEngine(t, fakeredis.New(), "client", withWindow(time.Hour), func(c *Config) {
				c.Events = lostEvents{logged{c.Log}, &n}
			})
			e.lock(1)
			h, _ := e.holdBy(contract.LockID{Name: "x"}, 1)
			got := e.locking(2)
			synctest.Wait()
			guard.Intercept(e.guarded(1), func() {
				e.deleteRecord()
				h.record.lease.SetValidUntil(e.watchdog.Now())
				h.lose(cause)
			})
			assert.ErrorIs(t, e.unlockErr(1), ErrLockLost)
			<-got
			e.unlock(2)
			synctest.Wait()
			assert.Equal(t, 1, n, "%v: events", cause)
		})
	}
}

// An Unlock of a hold that is known to be lost does not wait for a Redis that does not answer, which has usually caused
// the loss. What is left of the hold is deleted in the background.
func TestUnlockOfALostHoldDoesNotWaitForASilentRedis(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		guarded := e.guarded(1)
		time.Sleep(9 * time.Second)
		e.faults(fakeredis.Fault{Block: answerError("LOADING")})
		e.redis.Set(func() {
			e.redis.Records["x"].Expires = time.Now().Add(time.Hour) // as if a late renewal had done that
		})
		<-guarded.Done()
		e.faults(fakeredis.Fault{Late: time.Minute})
		start := time.Now()
		assert.ErrorIs(t, e.unlockErr(1), ErrLockLost)
		assert.LessOrEqual(t, time.Since(start), e.Patience())
		e.heal()
		time.Sleep(2 * time.Minute)
		e.assertFree()
	})
}

// A goroutine leaves that has just been given the owner mutex, and the hold was ended by an Unlock that has waited for
// the mutex in vain. Nothing of the hold stays.
func TestHoldIsForgottenIfTheNextGoroutineOfItsOwnerLeaves(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newFakeLock(e.redis, "x")
		e.lock(1)
		h, _ := e.holdBy(l.Traits().ID, 1)
		require.NoError(t, h.enterHold(e.waitOptionsFor(ctx))) // the first goroutine
		next, err := enterHoldStep(h, e.waitOptionsFor(ctx))
		require.NoError(t, err)
		h.unlockHold()
		require.Zero(t, lowerUnconfirmed(h))
		e.waitOptionsFor(ctx).leaveOwners(next.waiter, false)
		time.Sleep(time.Second)
		assert.Zero(t, e.holds())
		assert.Zero(t, e.names())
		assert.ErrorIs(t, e.unlockErr(1), ErrNotHeld)
	})
}
