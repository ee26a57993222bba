package locks

// The rules that every lock type must keep, whatever its record looks like. The test file of a lock type calls
// testLocker, and adds the rules of that type.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// testLocker runs the suite for the locks that newLock creates: locks that exclude one another, whichever Client
// created them.
func testLocker(t *testing.T, newLock locktest.LockMaker) {
	suite{newLock: newLock, rival: newLock}.run(t)
}

// endsOfDo are what a function returns to Do when its context was canceled, as functions of that context.
var endsOfDo = map[string]func(ctx context.Context) error{
	"the error of its context": context.Context.Err,
	"the cause":                context.Cause,
	"both":                     func(ctx context.Context) error { return errors.Join(ctx.Err(), context.Cause(ctx)) },
	"an error that wraps it":   func(ctx context.Context) error { return fmt.Errorf("stopped: %w", ctx.Err()) },
	"its own error":            func(context.Context) error { return io.ErrNoProgress },
}

// A suite has the tests of every lock type.
type suite struct {
	newLock locktest.LockMaker
	rival   locktest.LockMaker // of locks that exclude newLock's
	shared  bool               // the locks of newLock do not exclude one another
	nodes   int                // number of servers that a lock needs; 0 means one
	least   time.Duration      // the shortest lease; 0 means 1ms
}

type suiteTest struct {
	name string
	test func(b *locktest.Bench)
}

func (s suite) run(t *testing.T) {
	t.Parallel()
	newLock, rival, shared := s.newLock, s.rival, s.shared
	tests := []suiteTest{
		{"Excludes", func(b *locktest.Bench) {
			clients := []*Client{b.Client(), b.Client(), b.Client()}
			var together section
			var sections atomic.Int64
			var wg sync.WaitGroup
			for _, c := range clients {
				for i := range 4 {
					l, alone := newLock(c, b.LockName), !shared
					if i%2 == 0 {
						l, alone = rival(c, b.LockName), true
					}
					waitgroup.Go(&wg, func() {
						for range 15 {
							if !assert.NoError(b, l.Lock(ctx)) {
								return
							}
							together.visit(b, alone)
							sections.Add(1)
							assert.NoError(b, l.Unlock(ctx))
						}
					})
				}
			}
			wg.Wait()
			assert.Equal(b, int64(180), sections.Load(), "sections")
		}},
		{"Reenters", func(b *locktest.Bench) {
			c := b.Client()
			l, same := newLock(c, b.LockName), newLock(c, b.LockName)
			b.Must(l.Lock(ctx))
			b.Must(same.Lock(ctx)) // another value for the same lock
			b.Tries(l, true)
			b.Holds(same, 3)
			b.Must(l.Unlock(ctx))
			b.Must(l.Unlock(ctx))
			b.Holds(l, 1)
			b.Tries(rival(b.Client(), b.LockName), false)
			b.Must(same.Unlock(ctx))
			b.Holds(l, 0)
			b.MustBe(l.Unlock(ctx), ErrNotHeld)
			b.IsLocked(l, false)
		}},
		{"UnlockIsForTheOwner", func(b *locktest.Bench) {
			l := newLock(b.Client(), b.LockName)
			b.Must(l.Lock(ctx))
			err := locktest.Elsewhere(func() error { return l.Unlock(ctx) })
			b.MustBe(err, ErrNotHeld)
			assert.NotErrorIs(b, err, ErrLockLost)
			assert.ErrorContains(b, err, b.LockName)
			assert.ErrorContains(b, err, "unlock")
			b.MustBe(newLock(b.Client(), b.LockName).Unlock(ctx), ErrNotHeld)
			b.Holds(l, 1)
			b.Must(l.Unlock(ctx))
			b.MustBe(l.Unlock(ctx), ErrNotHeld)
		}},
		{"OwnerOfACtx", func(b *locktest.Bench) {
			c := b.Client()
			l := newLock(c, b.LockName)
			one, two := ContextWithOwner(ctx), ContextWithOwner(ctx)
			b.Must(l.Lock(one))
			ok, err := rival(c, b.LockName).TryLock(two, 0, 0)
			assert.NoError(b, err)
			assert.False(b, ok, "another owner on the same goroutine")
			b.Must(locktest.Elsewhere(func() error { return l.Lock(one) }))
			n, err := l.HoldCount(one)
			assert.NoError(b, err)
			assert.Equal(b, 2, n, "levels")
			b.MustBe(l.Unlock(ctx), ErrNotHeld)
			b.MustBe(l.Unlock(two), ErrNotHeld)
			derived, cancel := context.WithCancel(one)
			cancel()
			b.Must(l.Unlock(derived)) // and a canceled context unlocks
			b.Must(locktest.Elsewhere(func() error { return l.Unlock(one) }))
			b.IsLocked(l, false)
		}},
		{"TryLockGivesUp", func(b *locktest.Bench) {
			held := rival(b.Client(), b.LockName)
			b.Must(held.Lock(ctx))
			l := newLock(b.Client(), b.LockName)
			for _, wait := range []time.Duration{0, 1, 20 * time.Millisecond, 300 * time.Millisecond} {
				var took time.Duration
				ok, err := locktest.UntilAnswered(func() (bool, error) {
					start := time.Now()
					defer func() { took = time.Since(start) }()
					return l.TryLock(ctx, wait, 0)
				})
				assert.NoError(b, err)
				assert.False(b, ok, "wait %v", wait)
				assert.GreaterOrEqual(b, took, wait, "time of a TryLock")
				assert.LessOrEqual(b, took, wait+locktest.Soon, "time of a TryLock")
			}
			b.Must(held.Unlock(ctx))
			b.Tries(l, true)
			b.Must(l.Unlock(ctx))
		}},
		{"WaiterIsWoken", func(b *locktest.Bench) {
			held, l := rival(b.Client(), b.LockName), newLock(b.Client(WithPollInterval(time.Hour)), b.LockName)
			for i := range 3 {
				b.Must(held.Lock(ctx))
				got := b.StartWaiter(ContextWithOwner(ctx), l)
				if i < 2 {
					b.Must(held.Unlock(ctx))
				} else {
					_, err := held.ForceUnlock(ctx)
					b.Must(err)
				}
				b.Must(locktest.Await(b, "the waiter is woken", got))
				freed, err := l.ForceUnlock(ctx)
				require.NoError(b, err)
				require.True(b, freed)
			}
		}},
		{"CtxEndsTheWait", func(b *locktest.Bench) {
			held, l := rival(b.Client(), b.LockName), newLock(b.Client(), b.LockName)
			b.Must(held.Lock(ctx))
			waiting, cancel := context.WithCancel(ctx)
			got := b.StartWaiter(waiting, l)
			local := make(chan error, 1)
			go func() { local <- l.Lock(waiting) }() // behind the first, in the local queue
			cancel()
			for _, c := range []<-chan error{got, local} {
				err := locktest.Await(b, "the waiter gives up", c)
				b.MustBe(err, context.Canceled)
				assert.ErrorContains(b, err, b.LockName)
				assert.ErrorContains(b, err, "lock")
			}
			deadline, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
			defer cancel()
			b.MustBe(l.Lock(deadline), context.DeadlineExceeded)
			b.Must(held.Unlock(ctx))
			testredis.Await(b, "nobody has it", locktest.Soon, func() bool { // a caller that gave up may still be on the way out
				locked, err := l.IsLocked(ctx)
				return !locked && err == nil
			})
			ok, err := l.TryLock(ctx, locktest.Soon, 0)
			assert.NoError(b, err)
			assert.True(b, ok, "TryLock")
			b.Must(l.Unlock(ctx))
		}},
		{"EndedCtxSendsNothing", func(b *locktest.Bench) {
			rdb := testredis.Client(b, b.Addr)
			sent := new(locktest.Counter)
			rdb.AddHook(sent)
			l := newLock(b.ClientOn(rdb), b.LockName)
			ended, cancel := context.WithCancel(ctx)
			cancel()
			b.MustBe(l.Lock(ended), context.Canceled)
			b.MustBe(l.LockLease(ended, time.Second), context.Canceled)
			_, err := l.TryLock(ended, time.Second, 0)
			b.MustBe(err, context.Canceled)
			b.MustBe(l.Do(ended, func(context.Context) error { assert.Fail(b, "called"); return nil }), context.Canceled)
			_, err = l.IsLocked(ended)
			b.MustBe(err, context.Canceled)
			_, err = l.ForceUnlock(ended)
			b.MustBe(err, context.Canceled)
			assert.Zero(b, sent.N.Load(), "requests")
		}},
		{"WatchdogKeepsTheLease", func(b *locktest.Bench) {
			const lease = 8 * time.Second
			l := newLock(b.Client(WithWatchdogTimeout(lease)), b.LockName)
			b.Must(l.Lock(ctx))
			ok, err := l.TryLock(ctx, 0, 10*time.Millisecond)
			require.NoError(b, err)
			require.True(b, ok) // an inner acquire with a short lease changes nothing
			b.Must(l.Unlock(ctx))
			guarded, err := l.Guard(ctx)
			b.Must(err)
			for start := time.Now(); time.Since(start) < lease+lease/6; time.Sleep(lease / 60) {
				ttl, err := l.TTL(ctx)
				require.NoError(b, err)
				require.Positive(b, ttl, "TTL")
				require.LessOrEqual(b, ttl, lease, "TTL")
			}
			require.NoError(b, context.Cause(guarded))
			b.Must(l.Unlock(ctx))
		}},
		{"LeaseLapses", func(b *locktest.Bench) {
			l, next := newLock(b.Client(), b.LockName), rival(b.Client(), b.LockName)
			start := time.Now()
			lease := b.LocksFor(ctx, l, 600*time.Millisecond)
			guarded, err := l.Guard(ctx)
			b.Must(err)
			b.Must(next.Lock(ctx)) // no message to wait for: there is no Unlock
			// The clock of miniredis advances in steps, and may be behind when the lease begins.
			assert.GreaterOrEqual(b, time.Since(start), lease-lease/10, "the next owner got the lock before the lease was over")
			locktest.Await(b, "the guard ends", guarded.Done())
			b.MustBe(context.Cause(guarded), ErrLockLost)
			b.Holds(l, 0)
			b.MustBe(l.Unlock(ctx), ErrLockLost)
			b.Holds(next, 1)
			b.Must(next.Unlock(ctx))
			b.Must(l.Lock(ctx)) // a new hold
			b.Holds(l, 1)
			b.Must(l.Unlock(ctx))
		}},
		{"LeasesDoNotAddUp", func(b *locktest.Bench) {
			l := newLock(b.Client(), b.LockName)
			b.Must(l.LockLease(ctx, 60*time.Second))
			b.Must(l.LockLease(ctx, 10*time.Second))
			ttl, err := l.TTL(ctx)
			b.Must(err)
			assert.LessOrEqual(b, ttl, 60*time.Second, "TTL after leases of 60s and 10s")
			assert.GreaterOrEqual(b, ttl, 50*time.Second, "TTL after leases of 60s and 10s")
			b.Must(l.LockLease(ctx, 100*time.Second))
			ttl, err = l.TTL(ctx)
			b.Must(err)
			assert.LessOrEqual(b, ttl, 100*time.Second, "TTL after another lease of 100s")
			assert.GreaterOrEqual(b, ttl, 90*time.Second, "TTL after another lease of 100s")
			for range 3 {
				b.Must(l.Unlock(ctx))
			}
		}},
		{"LossEndsTheGuard", func(b *locktest.Bench) {
			const lease = 1500 * time.Millisecond
			l := newLock(b.Client(WithWatchdogTimeout(lease)), b.LockName)
			b.Must(l.Lock(ctx))
			guarded, err := l.Guard(ctx)
			b.Must(err)
			b.Forget()
			locktest.Await(b, "the guard ends", guarded.Done())
			b.MustBe(context.Cause(guarded), ErrLockLost)
			_, err = l.Guard(ctx)
			b.MustBe(err, ErrLockLost)
			b.Holds(l, 0)
			b.MustBe(l.Unlock(ctx), ErrLockLost)
			b.MustBe(l.Unlock(ctx), ErrNotHeld)
			b.Must(l.Lock(ctx))
			b.Must(l.Unlock(ctx))
		}},
		{"ReentryAfterALoss", func(b *locktest.Bench) {
			l := newLock(b.Client(), b.LockName)
			b.Must(l.Lock(ctx))
			b.Forget()
			b.MustBe(l.Lock(ctx), ErrLockLost)
			b.IsLocked(l, false)
			b.MustBe(l.Unlock(ctx), ErrLockLost)
			b.Must(l.Lock(ctx))
			b.Holds(l, 1)
			b.Must(l.Unlock(ctx))
		}},
		{"GuardEndsWithTheLastUnlock", func(b *locktest.Bench) {
			l := newLock(b.Client(), b.LockName)
			_, err := l.Guard(ctx)
			b.MustBe(err, ErrNotHeld)
			b.Must(l.Lock(ctx))
			b.Must(l.Lock(ctx))
			type key struct{}
			guarded, err := l.Guard(context.WithValue(ctx, key{}, "value"))
			b.Must(err)
			b.Must(l.Unlock(ctx))
			require.NoError(b, guarded.Err(), "the guard ended while the lock is held")
			require.Equal(b, "value", guarded.Value(key{}), "the guard lost its values")
			b.Must(l.Unlock(ctx))
			assert.Error(b, guarded.Err())
			assert.Equal(b, context.Canceled, context.Cause(guarded), "cause")
		}},
		{"Do", func(b *locktest.Bench) {
			l := newLock(b.Client(), b.LockName)
			ran := false
			b.Must(l.Do(ctx, func(guarded context.Context) error {
				ran = true
				b.Holds(l, 1)
				return guarded.Err()
			}))
			assert.True(b, ran, "fn was not called")
			b.Holds(l, 0)
			err := l.Do(ctx, func(context.Context) error { return io.ErrNoProgress })
			assert.ErrorIs(b, err, io.ErrNoProgress)
			assert.NotErrorIs(b, err, ErrNotHeld)
			err = l.Do(ctx, func(guarded context.Context) error {
				b.Forget()
				return io.ErrNoProgress
			})
			b.MustBe(err, io.ErrNoProgress)
			b.MustBe(err, ErrLockLost)
			b.IsLocked(l, false)
		}},
		{"DoTellsALoss", func(b *locktest.Bench) {
			l := newLock(b.Client(), b.LockName)
			for what, result := range endsOfDo {
				err := l.Do(ctx, func(guarded context.Context) error {
					b.Forget()
					held, err := l.IsHeld(context.WithoutCancel(guarded)) // notices the loss
					assert.NoError(b, err)
					assert.False(b, held)
					locktest.Await(b, "the context is canceled", guarded.Done())
					return result(guarded)
				})
				assert.ErrorIs(b, err, ErrLockLost, what)
				assert.NotErrorIs(b, err, context.Canceled, what)
				if what == "an error that wraps it" {
					assert.ErrorContains(b, err, "stopped: ")
				}
				if _, several := l.(*MultiLock); !several {
					assert.Equal(b, 1, strings.Count(err.Error(), "the lock was lost"), "%s: %v", what, err)
				}
			}
			canceled, cancel := context.WithCancel(ctx)
			err := l.Do(canceled, func(guarded context.Context) error {
				cancel()
				return guarded.Err()
			})
			b.MustBe(err, context.Canceled)
			assert.NotErrorIs(b, err, ErrLockLost)
			b.IsLocked(l, false)
		}},
		{"DoTellsAShutdown", func(b *locktest.Bench) {
			for what, result := range endsOfDo {
				c := b.Client()
				l, ended := newLock(c, b.LockName), make(chan error, 1)
				ran, err := l.TryDo(ctx, locktest.Soon, func(guarded context.Context) error {
					go func() { ended <- c.Shutdown(ctx) }()
					locktest.Await(b, "the context is canceled", guarded.Done())
					return result(guarded)
				})
				assert.True(b, ran, what)
				b.Must(locktest.Await(b, "Shutdown ends", ended))
				assert.NotErrorIs(b, err, context.Canceled, what)
				assert.NotErrorIs(b, err, ErrLockLost, what)
				switch what {
				case "its own error":
					assert.Equal(b, io.ErrNoProgress, err, what)
					continue
				case "an error that wraps it":
					assert.ErrorContains(b, err, "stopped: ")
				}
				assert.ErrorIs(b, err, ErrClosed, what)
				assert.Equal(b, 1, strings.Count(err.Error(), ErrClosed.Error()), "%s: %v", what, err)
			}
			c := b.Client()
			l, ended := newLock(c, b.LockName), make(chan error, 1)
			canceled, cancel := context.WithCancel(ctx)
			err := l.Do(canceled, func(guarded context.Context) error {
				cancel()
				err := guarded.Err()
				go func() { ended <- c.Shutdown(ctx) }()
				<-locktest.EngineOf(c).UntilShutdown(ctx, time.Time{}).Closed
				return err
			})
			b.MustBe(err, context.Canceled)
			assert.NotErrorIs(b, err, ErrClosed)
			b.Must(locktest.Await(b, "Shutdown ends", ended))
			b.IsLocked(newLock(b.Client(), b.LockName), false)
		}},
		{"TryDo", func(b *locktest.Bench) {
			l, held := newLock(b.Client(), b.LockName), rival(b.Client(), b.LockName)
			called := false
			tries := func(wait time.Duration, f func(context.Context) error) (bool, error) {
				called = false
				ran, err := l.TryDo(ctx, wait, f)
				assert.Equal(b, called, ran, "ran")
				return ran, err
			}
			ran, err := tries(locktest.Soon, func(guarded context.Context) error {
				called = true
				b.Holds(l, 1)
				return guarded.Err()
			})
			b.Must(err)
			assert.True(b, ran)
			b.Holds(l, 0)
			ran, err = tries(locktest.Soon, func(context.Context) error {
				called = true
				return io.ErrNoProgress
			})
			assert.True(b, ran)
			b.MustBe(err, io.ErrNoProgress)
			b.Must(held.Lock(ctx))
			for _, wait := range []time.Duration{0, 300 * time.Millisecond} {
				for tries := 0; tries < 5; tries++ { // the machine may be very busy
					if ran, err = l.TryDo(ctx, wait, func(context.Context) error { called = true; return nil }); err == nil {
						break
					}
				}
				b.Must(err)
				assert.False(b, ran)
			}
			b.Must(held.Unlock(ctx))
			ran, err = tries(-1, func(context.Context) error { called = true; return nil })
			assert.False(b, ran)
			b.MustBe(err, ErrInvalid)
			ran, err = tries(locktest.Soon, nil)
			assert.False(b, ran)
			b.MustBe(err, ErrInvalid)
			assert.ErrorContains(b, err, "trydo ")
			ended, cancel := context.WithCancel(ctx)
			cancel()
			ran, err = l.TryDo(ended, locktest.Soon, func(context.Context) error { return nil })
			assert.False(b, ran)
			b.MustBe(err, context.Canceled)
			b.IsLocked(l, false)
		}},
		{"DoPanics", func(b *locktest.Bench) {
			l := newLock(b.Client(), b.LockName)
			func() {
				defer func() {
					assert.Equal(b, "mine", recover(), "recovered")
				}()
				_ = l.Do(ctx, func(context.Context) error { panic("mine") })
			}()
			b.IsLocked(l, false)
			b.Holds(l, 0)
		}},
		{"Close", func(b *locktest.Bench) {
			c := b.Client()
			l, held := newLock(c, b.LockName), rival(b.Client(), b.LockName)
			mine := newLock(c, b.LockName+"-mine")
			b.Must(held.Lock(ctx))
			b.Must(mine.Lock(ctx))
			guarded, err := mine.Guard(ctx)
			b.Must(err)
			got := b.StartWaiter(ctx, l)
			local := make(chan error, 1)
			go func() { local <- l.Lock(ctx) }()
			b.Must(c.Close())
			b.MustBe(locktest.Await(b, "the waiter is woken", got), ErrClosed)
			b.MustBe(locktest.Await(b, "the local waiter is woken", local), ErrClosed)
			locktest.Await(b, "the guard ends", guarded.Done())
			b.MustBe(context.Cause(guarded), ErrClosed)
			for name, err := range map[string]error{
				"Lock":      l.Lock(ctx),
				"LockLease": l.LockLease(ctx, time.Second),
				"TryLock":   locktest.Second(l.TryLock(ctx, 0, 0)),
				"Do":        l.Do(ctx, func(context.Context) error { return nil }),
				"TryDo":     locktest.Second(l.TryDo(ctx, time.Hour, func(context.Context) error { return nil })),
				"Guard":     locktest.Second(mine.Guard(ctx)),
				"IsLocked":  locktest.Second(l.IsLocked(ctx)),
				"IsHeld":    locktest.Second(l.IsHeld(ctx)),
				"HoldCount": locktest.Second(l.HoldCount(ctx)),
				"TTL":       locktest.Second(l.TTL(ctx)),
				"Force":     locktest.Second(l.ForceUnlock(ctx)),
			} {
				assert.ErrorIs(b, err, ErrClosed, "%s after Close", name)
			}
			b.IsLocked(newLock(b.Client(), b.LockName+"-mine"), true)
			b.Must(mine.Unlock(ctx))
			b.IsLocked(newLock(b.Client(), b.LockName+"-mine"), false)
			b.Must(held.Unlock(ctx))
			b.Must(c.Close())
		}},
		{"ForceUnlock", func(b *locktest.Bench) {
			c := b.Client(WithWatchdogTimeout(time.Hour))
			l, other := newLock(c, b.LockName), newLock(b.Client(), b.LockName)
			freed, err := l.ForceUnlock(ctx)
			assert.NoError(b, err)
			assert.False(b, freed, "ForceUnlock of a free lock")
			b.Must(l.Lock(ctx))
			freed, err = other.ForceUnlock(ctx)
			require.NoError(b, err)
			require.True(b, freed)
			b.IsLocked(l, false)
			b.MustBe(l.Unlock(ctx), ErrLockLost)

			// The holders of this client notice the loss at once.
			b.Must(l.Lock(ctx))
			guarded, err := l.Guard(ctx)
			b.Must(err)
			freed, err = locktest.Elsewhere(func() locktest.Pair[bool] { return locktest.PairOf(l.ForceUnlock(ctx)) }).Get()
			require.NoError(b, err)
			require.True(b, freed)
			locktest.Await(b, "the guard ends", guarded.Done())
			b.MustBe(context.Cause(guarded), ErrLockLost)
			b.MustBe(l.Unlock(ctx), ErrLockLost)
		}},
		{"Queries", func(b *locktest.Bench) {
			l, other := newLock(b.Client(), b.LockName), newLock(b.Client(), b.LockName)
			assert.Contains(b, l.Name(), b.LockName, "name")
			b.IsLocked(l, false)
			b.Holds(l, 0)
			ttl, err := l.TTL(ctx)
			assert.NoError(b, err)
			assert.Zero(b, ttl, "TTL")
			b.Must(l.LockLease(ctx, time.Minute))
			b.IsLocked(l, true)
			b.IsLocked(other, true)
			b.Holds(l, 1)
			b.Holds(other, 0)
			assert.Zero(b, locktest.Elsewhere(func() int { n, _ := l.HoldCount(ctx); return n }), "levels of another goroutine")
			for _, l := range []Locker{l, other} {
				ttl, err := l.TTL(ctx)
				if assert.NoError(b, err) {
					assert.LessOrEqual(b, ttl, time.Minute, "TTL")
					assert.GreaterOrEqual(b, ttl, 50*time.Second, "TTL")
				}
			}
			b.Must(l.Unlock(ctx))
		}},
		{"BadInput", func(b *locktest.Bench) {
			rdb := testredis.Client(b, b.Addr)
			sent := new(locktest.Counter)
			rdb.AddHook(sent)
			c := b.ClientOn(rdb)
			l := newLock(c, b.LockName)
			for name, err := range map[string]error{
				"lease 0":        l.LockLease(ctx, 0),
				"lease -1s":      l.LockLease(ctx, -time.Second),
				"lease 999µs":    l.LockLease(ctx, 999*time.Microsecond),
				"try lease -1s":  locktest.Second(l.TryLock(ctx, 0, -time.Second)),
				"try lease 1ns":  locktest.Second(l.TryLock(ctx, 0, 1)),
				"try wait -1ns":  locktest.Second(l.TryLock(ctx, -1, 0)),
				"nil fn":         l.Do(ctx, nil),
				"nil ctx":        l.Lock(locktest.NilCtx),
				"nil ctx unlock": l.Unlock(locktest.NilCtx),
				"nil ctx guard":  locktest.Second(l.Guard(locktest.NilCtx)),
				"empty name":     newLock(c, "").Lock(ctx),
				"empty unlock":   newLock(c, "").Unlock(ctx),
				"empty force":    locktest.Second(newLock(c, "").ForceUnlock(ctx)),
				"empty held":     locktest.Second(newLock(c, "").IsHeld(ctx)),
				"long name":      newLock(c, strings.Repeat("x", record.LongestName+1)).Lock(ctx),
				"nil client":     newLock(nil, b.LockName).Lock(ctx),
			} {
				if assert.ErrorIs(b, err, ErrInvalid, name) {
					assert.LessOrEqual(b, len(err.Error()), 300, "%s: length of the error", name)
				}
			}
			assert.Zero(b, sent.N.Load(), "requests")
		}},
		{"Leases", func(b *locktest.Bench) {
			l := newLock(b.Client(), b.LockName)
			for _, c := range []struct{ lease, most time.Duration }{
				{time.Hour + 1, time.Hour + time.Millisecond},
				{1<<63 - 1, 1<<63 - 1},
			} {
				b.Must(l.LockLease(ctx, c.lease))
				ttl, err := l.TTL(ctx)
				b.Must(err)
				assert.LessOrEqual(b, ttl, c.most, "TTL for a lease of %v", c.lease)
				assert.GreaterOrEqual(b, ttl, c.most-time.Minute, "TTL for a lease of %v", c.lease)
				b.Holds(l, 1)
				b.Must(l.Unlock(ctx))
			}
			for range 20 { // expired before it is held, or nearly so
				// It may also expire while it is acquired once more.
				if err := l.LockLease(ctx, max(s.least, time.Millisecond)); err != nil {
					require.ErrorIs(b, err, ErrLockLost)
				}
			}
			testredis.Await(b, "the last lease ends", locktest.Soon, func() bool {
				locked, err := l.IsLocked(ctx)
				return err == nil && !locked
			})
		}},
		{"Names", func(b *locktest.Bench) {
			c, other := b.Client(), b.Client()
			for _, name := range []string{
				"a b", "{tag}", "x{tag}y", "tag}", "{", "}{", "Schlüssel-鎖-🔒", "zero\x00byte", "new\nline", "\xff\xfe",
				"a:b:c", "*", strings.Repeat("long", 2560),
			} {
				name = b.LockName + name
				l := newLock(c, name)
				b.Must(l.Lock(ctx))
				b.Must(l.Lock(ctx))
				b.Tries(rival(other, name), false)
				b.Tries(newLock(other, name+"x"), true)
				b.Must(newLock(other, name+"x").Unlock(ctx))
				b.Must(l.Unlock(ctx))
				b.Holds(l, 1)
				b.Must(l.Unlock(ctx))
				b.IsLocked(l, false)
			}
		}},
	}
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		var others []string
		mini := strings.HasSuffix(t.Name(), "miniredis")
		for range s.nodes - 1 {
			if mini {
				others = append(others, testredis.Mini(t).Addr())
			} else {
				others = append(others, testredis.Start(t).Addr())
			}
		}
		rules := tests
		if !mini || strings.HasPrefix(t.Name(), "TestLock/") || locktest.Full(0, 1) > 0 { // a Hold does not depend on the server
			rules = slices.Concat(rules, s.holdTests())
		}
		for _, test := range rules {
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				b := locktest.NewBench(t, addr, others...)
				b.Opts = []Option{WithRedLockNodeTimeout(2 * time.Second)} // on a machine that is busy with other work
				test.test(b)
			})
		}
	})
}

// A section is protected by the locks of a test: one exclusive owner may be inside, or several shared ones.
type section struct{ alone, shared atomic.Int64 }

func (s *section) visit(b *locktest.Bench, exclusive bool) {
	mine := &s.shared
	if exclusive {
		mine = &s.alone
	}
	mine.Add(1)
	alone, others := s.alone.Load(), s.shared.Load()
	assert.LessOrEqual(b, alone, int64(1), "exclusive owners inside, with %d shared ones", others)
	if alone == 1 {
		assert.Zero(b, others, "shared owners inside with an exclusive one")
	}
	mine.Add(-1)
}
