//go:build go1.25

package engine

// Code of the user that panics, or ends the goroutine, while a call does something for which no mutex is held.
//
// Rule: a panic goes on to the caller, and nothing stays taken: neither the owner mutex of the hold, nor the local
// queue, nor the lock in Redis.

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/send"
)

// A faultyUser has contexts whose Done panics or, if says is nil, ends the goroutine, while a call of dies runs.
type faultyUser struct {
	t    *testing.T
	says any
	dead atomic.Bool
}

// eachFault runs f for each fault: says is that of a faultyUser.
func eachFault(t *testing.T, f func(t *testing.T, says any)) {
	t.Helper()
	for name, says := range map[string]any{"panics": "a context", "ends the goroutine": nil} {
		t.Run(name, func(t *testing.T) { f(t, says) })
	}
}

// withFaults runs f in a bubble for each fault of the user.
func withFaults(t *testing.T, f func(t *testing.T, e *bubbleEngine, u *faultyUser)) {
	t.Helper()
	eachFault(t, func(t *testing.T, says any) {
		inBubble(t, func(t *testing.T, e *bubbleEngine) { f(t, e, &faultyUser{t: t, says: says}) })
	})
}

// dies asserts that the fault ends call.
func (u *faultyUser) dies(call func()) {
	u.t.Helper()
	returned, said := false, any(nil)
	ended := make(chan struct{})
	u.dead.Store(true)
	go func() {
		defer close(ended)
		defer func() { said = recover() }()
		call()
		returned = true
	}()
	<-ended
	u.dead.Store(false)
	assert.False(u.t, returned, "the call has returned")
	assert.Equal(u.t, u.says, said, "the panic")
}

type faultyCtx struct {
	context.Context
	user *faultyUser
}

// context returns a context that can be canceled.
func (u *faultyUser) context() context.Context { return faultyCtx{u.t.Context(), u} }

func (c faultyCtx) Done() <-chan struct{} {
	switch {
	case !c.user.dead.Load():
	case c.user.says != nil:
		panic(c.user.says)
	default:
		runtime.Goexit()
	}
	return c.Context.Done()
}

// guards makes a guard of the hold of o on x whose context has faults.
func (u *faultyUser) guards(e *bubbleEngine, o Owner) {
	u.t.Helper()
	_, err := e.Guard(u.context(), newFakeLock(e.redis, "x"), o)
	require.NoError(u.t, err)
}

// locksSoon locks and unlocks x, which must be free, or become free without the end of a lease.
func (e *bubbleEngine) locksSoon(o Owner) {
	e.t.Helper()
	ok, err := e.lockWith(ctx, o, Request{Wait: 5 * time.Second})
	assert.NoError(e.t, err, "%v does not get the lock", o)
	if assert.True(e.t, ok, "%v does not get the lock", o) {
		e.unlock(o)
	}
}

// A call cancels a guard, whose context has a fault. The next calls of the owner, and of others, succeed.
func TestFaultyGuardLeavesNothingTaken(t *testing.T) {
	const lease = time.Hour
	unlock := func(e *bubbleEngine) { _ = e.unlockErr(1) }
	detach := func(e *bubbleEngine) { _, _, _ = e.Detach(ctx, newFakeLock(e.redis, "x"), 1, lease) }
	for name, c := range map[string]struct {
		call    func(e *bubbleEngine)
		lease   time.Duration // of the hold
		expired bool          // the lease is over, and only the call notices it
		next    bool          // another owner waits for the lock
	}{
		"Unlock":                    {call: unlock},
		"Unlock beside a waiter":    {call: unlock, next: true},
		"Unlock of an expired hold": {call: unlock, lease: lease, expired: true},
		"Lock of an expired hold": {
			call:  func(e *bubbleEngine) { _, _ = e.lockWith(ctx, 1, Request{Wait: forever}) },
			lease: lease, expired: true,
		},
		"Extend of an expired hold": {
			call:  func(e *bubbleEngine) { _ = e.Extend(ctx, newFakeLock(e.redis, "x"), 1, lease) },
			lease: lease, expired: true,
		},
		"Detach":                    {call: detach},
		"Detach beside a waiter":    {call: detach, next: true},
		"Detach of an expired hold": {call: detach, lease: lease, expired: true},
	} {
		t.Run(name, func(t *testing.T) {
			withFaults(t, func(t *testing.T, e *bubbleEngine, u *faultyUser) {
				e.lock(1, leased(c.lease))
				u.guards(e, 1)
				ended := make(chan struct{})
				if c.next {
					go func() {
						defer close(ended)
						e.locksSoon(2)
					}()
				}
				synctest.Wait() // the watchdog sleeps, and does not notice what follows
				if c.expired {
					e.deleteRecord()
					h, _ := e.holdBy(newFakeLock(e.redis, "x").Traits().ID, 1)
					h.record.lease.SetValidUntil(e.watchdog.Now())
				}
				u.dies(func() { c.call(e) })
				if c.next {
					<-ended
				}
				e.locksSoon(1)
				e.locksSoon(2)
				assert.Zero(t, e.holds(), "holds that are left")
			})
		})
	}
}

// The same for a hold to which the lock was handed off, and which is given up because its caller has run so late. The
// guard is that of another goroutine of its owner.
func TestFaultyGuardOfAHandoffThatIsGivenUpLeavesNothingTaken(t *testing.T) {
	withFaults(t, func(t *testing.T, e *bubbleEngine, u *faultyUser) {
		e.lock(1)
		wakes := make(chan struct{})
		late := lateCtx{ctx, wakes}
		ended := begin(func() {
			u.dies(func() { _, _ = e.lockWith(late, 2, Request{Wait: forever}) })
		})
		synctest.Wait()
		u.dead.Store(false)
		e.unlock(1)
		u.guards(e, 2)
		h, _ := e.holdBy(newFakeLock(e.redis, "x").Traits().ID, 2)
		h.record.lease.SetValidUntil(e.watchdog.Now() + time.Second)
		u.dead.Store(true)
		close(wakes)
		<-ended
		e.locksSoon(2)
		e.locksSoon(1)
		assert.Zero(t, e.holds(), "holds that are left")
	})
}

// A lateCtx returns its channel when wakes is closed.
type lateCtx struct {
	context.Context
	wakes <-chan struct{}
}

func (c lateCtx) Done() <-chan struct{} {
	<-c.wakes
	return c.Context.Done()
}

// An Unlock that does not wait any longer for another goroutine of its owner cancels a guard with a fault. The record is
// deleted all the same, and not only when the other goroutine has its answer.
func TestFaultyGuardOfAnUnconfirmedUnlockLeavesNoRecord(t *testing.T) {
	withFaults(t, func(t *testing.T, e *bubbleEngine, u *faultyUser) {
		l := newFakeLock(e.redis, "x")
		e.lock(1, leased(time.Hour))
		u.guards(e, 1)
		e.faults(fakeredis.Fault{Late: 30 * time.Second}, "renew")
		extended := begin(func() {
			ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
			defer cancel()
			assert.Error(t, e.Extend(ctx, l, 1, 2*time.Hour))
		})
		synctest.Wait()
		u.dies(func() { _ = e.unlockErr(1) })
		time.Sleep(2 * time.Second)
		e.assertFree()
		<-extended
		e.locksSoon(1)
		time.Sleep(time.Minute) // until all tries of Extend have run
	})
}

// The context of an Unlock has a fault: the lock is released.
func TestUnlockWithAFaultyContext(t *testing.T) {
	withFaults(t, func(t *testing.T, e *bubbleEngine, u *faultyUser) {
		e.lock(1)
		u.dead.Store(true)
		assert.NoError(t, e.Release(u.context(), newFakeLock(e.redis, "x"), 1))
		e.locksSoon(2)
	})
}

// Readers that share a record lose it together. A fault of the guard of one of them keeps nothing from the others: their
// guards end, and all losses are reported.
func TestFaultyGuardKeepsNoLossFromOthers(t *testing.T) {
	withFaults(t, func(t *testing.T, e *bubbleEngine, u *faultyUser) {
		n := 0
		e.Events = lostEvents{logged{e.Log}, &n}
		for o := Owner(1); o <= 3; o++ {
			e.shares(o)
		}
		u.guards(e, 1)
		other, err := e.Guard(ctx, e.shared(), 3)
		require.NoError(t, err)
		h, _ := e.holdBy(e.shared().Traits().ID, 1)
		e.deleteRecord()
		u.dies(func() { h.lose(errGone) })
		synctest.Wait()
		select {
		case <-other.Done(): // Err would look at the hold
		default:
			assert.Fail(t, "the guard of another reader goes on")
		}
		assert.Equal(t, 3, n, "losses that were reported")
		for o := Owner(1); o <= 3; o++ {
			assert.ErrorIs(t, e.Release(ctx, e.shared(), o), ErrLockLost)
		}
	})
}

// The lock was handed off to a caller that has not run since, and another goroutine of its owner releases it. The
// caller is ended while the release is under way, and a late try of the first owner is granted with the same field: it
// is rolled back after the release, which finds what it releases.
func TestCallerThatEndsBesideTheReleaseOfItsHandoff(t *testing.T) {
	eachFault(t, func(t *testing.T, says any) {
		synctest.Test(t, func(t *testing.T) {
			e, u := joinBubbleEngine(t, fakeredis.New(), "client", withWindow(time.Minute)), &faultyUser{t: t, says: says}
			start, seen := time.Now(), make(map[string]int)
			e.fail(func(verb string) (f fakeredis.Fault) {
				switch seen[verb]++; {
				case verb == "acquire" && seen[verb] == 1:
					f.Late = 3 * time.Second
				case verb == "release" && seen[verb] == 1:
					f.Late = 900 * time.Millisecond // too short to be sent again
				}
				return f
			})
			e.lock(1)
			wakes, ended, released := make(chan struct{}), make(chan struct{}), make(chan struct{})
			late := lateCtx{u.context(), wakes}
			go func() {
				defer close(ended)
				u.dies(func() { _, _ = e.lockWith(late, 2, Request{Wait: forever}) })
			}()
			synctest.Wait()
			e.unlock(1)
			require.Zero(t, e.redis.Count("release"), "it was handed off")
			time.Sleep(time.Until(start.Add(2500 * time.Millisecond)))
			go func() {
				defer close(released)
				e.unlock(2)
			}()
			time.Sleep(200 * time.Millisecond)
			close(wakes)
			<-ended
			time.Sleep(500 * time.Millisecond)
			require.Equal(t, 2, e.redis.Count("acquire"))
			<-released
			e.locksSoon(2)
			e.locksSoon(1)
			assert.Zero(t, e.holds(), "holds that are left")
		})
	})
}

// The same, and the other goroutine has re-entered the hold, and releases that level: the record is deleted because of
// the caller that is ended, and was not lost.
func TestCallerThatEndsBesideTheReleaseOfAReentry(t *testing.T) {
	withFaults(t, func(t *testing.T, e *bubbleEngine, u *faultyUser) {
		e.HandoffWindow = time.Minute
		e.lock(1)
		wakes, ended, released := make(chan struct{}), make(chan struct{}), make(chan struct{})
		late := lateCtx{u.context(), wakes}
		go func() {
			defer close(ended)
			u.dies(func() { _, _ = e.lockWith(late, 2, Request{Wait: forever}) })
		}()
		synctest.Wait()
		e.unlock(1)
		e.lock(2)
		runsLate(e.redis, "release", 1, fakeredis.Fault{Late: 900 * time.Millisecond})
		go func() {
			defer close(released)
			e.unlock(2)
		}()
		time.Sleep(200 * time.Millisecond)
		close(wakes)
		<-ended
		<-released
		e.locksSoon(2)
		e.locksSoon(1)
		assert.Zero(t, e.holds(), "holds that are left")
	})
}

// A hookedCtx calls a function whenever Done is called.
type hookedCtx struct {
	context.Context
	done *atomic.Pointer[func()]
}

func (c hookedCtx) Done() <-chan struct{} {
	if f := c.done.Load(); f != nil {
		(*f)()
	}
	return c.Context.Done()
}

// The watchdog finds that a lease has expired, or that a record is gone, and a guard is canceled whose context ends the
// goroutine, or does not return for long. The watchdog goes on: other guards end in time, and other leases are renewed.
func TestFaultyGuardDoesNotStopTheWatchdog(t *testing.T) {
	const lease = 5 * time.Second
	for name, expires := range map[string]bool{"expired": true, "gone": false} {
		for fault, blocks := range map[string]bool{"ends the goroutine": false, "does not return": true} {
			t.Run(name+", "+fault, func(t *testing.T) {
				inBubble(t, func(t *testing.T, e *bubbleEngine) {
					acquire := func(name string, lease time.Duration) *fakeLock {
						l := newFakeLock(e.redis, name)
						ok, err := e.acquire(t.Context(), l, 1, leased(lease))
						require.NoError(t, err)
						require.True(t, ok)
						return l
					}
					length := time.Duration(0)
					if expires {
						length = lease
					}
					var done atomic.Pointer[func()]
					faulty := acquire("faulty", length)
					_, err := e.Guard(hookedCtx{t.Context(), &done}, faulty, 1)
					require.NoError(t, err)
					time.Sleep(time.Millisecond) // the watchdog comes to it first
					var guards []context.Context
					for _, name := range []string{"a", "b", "c"} {
						guard, err := e.Guard(ctx, acquire(name, length), 1)
						require.NoError(t, err)
						guards = append(guards, guard)
					}
					kept := acquire("kept", 0)
					end := make(chan struct{})
					hook := func() { runtime.Goexit() }
					if blocks {
						hook = func() { <-end }
					}
					done.Store(&hook)
					if !expires {
						e.redis.Set(func() {
							for _, name := range []string{"faulty", "a", "b", "c"} {
								delete(e.redis.Records, name)
							}
						})
					}
					time.Sleep(e.WatchdogTimeout/3 + lease)
					for _, guard := range guards {
						select {
						case <-guard.Done(): // Err would look at the hold
						default:
							assert.Fail(t, "the guard of a hold that is lost goes on")
						}
					}
					time.Sleep(3 * e.WatchdogTimeout)
					assert.NotEmpty(t, e.redis.Holder("kept"), "the lease is not renewed any more")
					done.Store(nil)
					close(end)
					assert.NoError(t, e.Release(t.Context(), kept, 1))
				})
			})
		}
	}
}

// Shutdown cancels a guard whose context has a fault. The next Shutdown ends with the last Unlock.
func TestShutdownAfterOneWithAFaultyGuard(t *testing.T) {
	withFaults(t, func(t *testing.T, e *bubbleEngine, u *faultyUser) {
		e.lock(1)
		u.guards(e, 1)
		u.dies(func() { _ = e.Shutdown(ctx) })
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		start, done := time.Now(), e.shutdownLater(ctx)
		e.unlock(1)
		assert.NoError(t, <-done)
		assert.Less(t, time.Since(start), time.Second, "the hold has ended, and Shutdown waits")
	})
}

// A forced release ends several holds of this Client, and the guard of one of them has a fault. The others end, too: no
// renewal would tell them, because their leases are explicit.
func TestFaultyGuardKeepsNoForcedReleaseFromOthers(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		u := &faultyUser{t: t} // it ends a goroutine of the Client
		semaphore := func(o Owner) *fakeLock {
			l := newFakeLock(e.redis, "x")
			l.traits.Admission, l.key = contract.Counting, fmt.Sprint("permit ", o)
			return l
		}
		var guards []context.Context
		for o := Owner(1); o <= 4; o++ {
			ok, err := e.acquire(t.Context(), semaphore(o), o, leased(time.Hour))
			require.NoError(t, err)
			require.True(t, ok)
			ctx := ctx
			if o == 1 { // the first one that is ended
				ctx = u.context()
			}
			guard, err := e.Guard(ctx, semaphore(o), o)
			require.NoError(t, err)
			guards = append(guards, guard)
		}
		time.Sleep(time.Second)
		u.dead.Store(true)
		_, _ = e.ForceBy(ctx, semaphore(1), func() (bool, error) {
			e.redis.Set(func() { clear(e.redis.Records) })
			return true, nil
		})
		time.Sleep(time.Millisecond) // guards are canceled on another goroutine
		u.dead.Store(false)
		for _, guard := range guards[1:] {
			select {
			case <-guard.Done(): // Err would look at the hold
			default:
				assert.Fail(t, "the guard of a hold that was released by force goes on")
			}
		}
		s := e.retain("x")
		defer s.release()
		s.locked(func() { assert.NotZero(t, s.forced, "holds that begin beside it are checked") })
	})
}

// Close cancels a guard whose context has a fault. It closes the Client all the same: no lease is renewed any more.
func TestCloseWithAFaultyGuard(t *testing.T) {
	withFaults(t, func(t *testing.T, e *bubbleEngine, u *faultyUser) {
		e.lock(1)
		u.guards(e, 1)
		u.dies(func() { _ = e.Close() })
		assert.NotNil(t, e.Alive(), "the Client is not closed")
		time.Sleep(e.WatchdogTimeout + time.Second)
		e.assertFree("its lease is renewed")
		assert.ErrorIs(t, e.unlockErr(1), ErrLockLost)
	})
}

// A hookedError calls a function whenever its text is asked for.
type hookedError struct{ text *atomic.Pointer[func()] }

func (e hookedError) Error() string {
	if f := e.text.Load(); f != nil {
		(*f)()
	}
	return "an error of a hook"
}

// The renewals of a hold fail with an error of a hook whose text ends the goroutine, or does not return for long. When
// the hold is lost, the watchdog goes on.
func TestFaultyErrorDoesNotStopTheWatchdog(t *testing.T) {
	for fault, blocks := range map[string]bool{"ends the goroutine": false, "does not return": true} {
		t.Run(fault, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var text atomic.Pointer[func()]
				e := joinBubbleEngine(t, fakeredis.New(), "client", func(c *Config) {
					renew := c.Renewer
					c.Renewer = func(ctx context.Context, sender *send.Sender, all []Renewal) {
						renew(ctx, sender, all)
						for i := range all {
							if all[i].Lock.Traits().Name == "x" {
								all[i].Err = hookedError{&text}
							}
						}
					}
				})
				e.lock(1)
				kept := newFakeLock(e.redis, "kept")
				ok, err := e.acquire(t.Context(), kept, 1, Request{Wait: forever})
				require.NoError(t, err)
				require.True(t, ok)
				end := make(chan struct{})
				hook := func() { runtime.Goexit() }
				if blocks {
					hook = func() { <-end }
				}
				text.Store(&hook)
				time.Sleep(5 * e.WatchdogTimeout)
				assert.NotEmpty(t, e.redis.Holder("kept"), "the lease is not renewed any more")
				text.Store(nil)
				close(end)
				assert.NoError(t, e.Release(t.Context(), kept, 1))
				assert.ErrorIs(t, e.unlockErr(1), ErrLockLost)
			})
		})
	}
}
