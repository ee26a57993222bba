package relock

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

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A lockMaker creates the lock under test.
type lockMaker func(c *Client, name string) Locker

// A lockKind is a type of lock, and what the tests for every type have to know about it.
type lockKind struct {
	name       string
	one, rival lockMaker // with one name they exclude one another

	record string // the Redis type of the key of the lock
	shared bool   // owners of one do not exclude one another
	// The sorted set of the holds and when their leases expire; nil if both are in the record.
	holds func(name string) string
	// Additional keys of a hold expire with its lease if the record was replaced.
	expires bool
	// Whether a free lock of this type leaves key; nil if it leaves nothing.
	leaves func(rdb redis.UniversalClient, key string) bool
}

// recordLocks are the lock types that have a record in Redis.
var recordLocks = []lockKind{
	{name: "lock", one: newPlainLock, rival: newPlainLock, record: "hash"},
	{name: "fenced", one: newFencedLock, rival: newFencedLock, record: "hash"},
	{name: "fair", one: newFairLock, rival: newFairLock, record: "hash"},
	{name: "read", one: newReadLock, rival: newWriteLock, record: "hash", shared: true, expires: true},
	{name: "write", one: newWriteLock, rival: newReadLock, record: "hash"},
	{
		name:    "semaphore",
		one:     newSemaphore,
		rival:   newSemaphore,
		record:  "string",
		holds:   record.PermitsKey,
		expires: true,
		leaves:  onlyFree,
	},
}

// kindCalled returns the row of recordLocks with this name.
func kindCalled(name string) lockKind {
	for _, k := range recordLocks {
		if k.name == name {
			return k
		}
	}
	panic("bug: no lock type is called " + name)
}

// testLocker runs the suite for the locks that newLock creates: locks that exclude one another, whichever Client
// created them.
func testLocker(t *testing.T, newLock lockMaker) {
	suite{newLock: newLock, rival: newLock}.run(t)
}

// A suite has the tests of every lock type.
type suite struct {
	newLock lockMaker
	rival   lockMaker     // of locks that exclude newLock's
	shared  bool          // the locks of newLock do not exclude one another
	nodes   int           // number of servers that a lock needs; 0 means one
	least   time.Duration // the shortest lease; 0 means 1ms
	without string        // the tests that do not apply to this type, or ""
}

type suiteTest struct {
	name string
	test func(b *bench)
}

func (s suite) run(t *testing.T) {
	t.Parallel()
	newLock, rival, shared := s.newLock, s.rival, s.shared
	ctx := context.Background()
	tests := []suiteTest{
		{"Excludes", func(b *bench) {
			clients := []*Client{b.client(), b.client(), b.client()}
			var together section
			var sections atomic.Int64
			var wg sync.WaitGroup
			for _, c := range clients {
				for i := range 4 {
					l, alone := newLock(c, b.name), !shared
					if i%2 == 0 {
						l, alone = rival(c, b.name), true
					}
					waitgroup.Go(&wg, func() {
						for range 15 {
							if !assert.NoError(b, l.Lock(ctx)) {
								return
							}
							together.visit(b, alone, 0)
							sections.Add(1)
							assert.NoError(b, l.Unlock(ctx))
						}
					})
				}
			}
			wg.Wait()
			assert.Equal(b, int64(180), sections.Load(), "sections")
		}},
		{"Reenters", func(b *bench) {
			c := b.client()
			l, same := newLock(c, b.name), newLock(c, b.name)
			b.must(l.Lock(ctx))
			b.must(same.Lock(ctx)) // another value for the same lock
			b.tries(l, true)
			b.holds(same, 3)
			b.must(l.Unlock(ctx))
			b.must(l.Unlock(ctx))
			b.holds(l, 1)
			b.tries(rival(b.client(), b.name), false)
			b.must(same.Unlock(ctx))
			b.holds(l, 0)
			b.mustBe(l.Unlock(ctx), ErrNotHeld)
			b.isLocked(l, false)
		}},
		{"UnlockIsForTheOwner", func(b *bench) {
			l := newLock(b.client(), b.name)
			b.must(l.Lock(ctx))
			err := elsewhere(func() error { return l.Unlock(ctx) })
			b.mustBe(err, ErrNotHeld)
			assert.NotErrorIs(b, err, ErrLockLost)
			assert.ErrorContains(b, err, b.name)
			assert.ErrorContains(b, err, "unlock")
			b.mustBe(newLock(b.client(), b.name).Unlock(ctx), ErrNotHeld)
			b.holds(l, 1)
			b.must(l.Unlock(ctx))
			b.mustBe(l.Unlock(ctx), ErrNotHeld)
		}},
		{"OwnerOfACtx", func(b *bench) {
			c := b.client()
			l := newLock(c, b.name)
			one, two := ContextWithOwner(ctx), ContextWithOwner(ctx)
			b.must(l.Lock(one))
			ok, err := rival(c, b.name).TryLock(two, 0, 0)
			assert.NoError(b, err)
			assert.False(b, ok, "another owner on the same goroutine")
			b.must(elsewhere(func() error { return l.Lock(one) }))
			n, err := l.HoldCount(one)
			assert.NoError(b, err)
			assert.Equal(b, 2, n, "levels")
			b.mustBe(l.Unlock(ctx), ErrNotHeld)
			b.mustBe(l.Unlock(two), ErrNotHeld)
			derived, cancel := context.WithCancel(one)
			cancel()
			b.must(l.Unlock(derived)) // and a canceled context unlocks
			b.must(elsewhere(func() error { return l.Unlock(one) }))
			b.isLocked(l, false)
		}},
		{"TryLockGivesUp", func(b *bench) {
			held := rival(b.client(), b.name)
			b.must(held.Lock(ctx))
			l := newLock(b.client(), b.name)
			for _, wait := range []time.Duration{0, 1, 20 * time.Millisecond, 300 * time.Millisecond} {
				var took time.Duration
				ok, err := untilAnswered(func() (bool, error) {
					start := time.Now()
					defer func() { took = time.Since(start) }()
					return l.TryLock(ctx, wait, 0)
				})
				assert.NoError(b, err)
				assert.False(b, ok, "wait %v", wait)
				assert.GreaterOrEqual(b, took, wait, "time of a TryLock")
				assert.LessOrEqual(b, took, wait+soon, "time of a TryLock")
			}
			b.must(held.Unlock(ctx))
			b.tries(l, true)
			b.must(l.Unlock(ctx))
		}},
		{"WaiterIsWokenByTheRelease", func(b *bench) {
			held, l := rival(b.client(), b.name), newLock(b.client(WithPollInterval(time.Hour)), b.name)
			for range 3 {
				b.must(held.Lock(ctx))
				got := b.startWaiter(ContextWithOwner(ctx), l)
				b.must(held.Unlock(ctx))
				b.must(await(b, "the waiter is woken", got))
				freed, err := l.ForceUnlock(ctx)
				require.NoError(b, err)
				require.True(b, freed)
			}
		}},
		{"WaiterIsWokenByForce", func(b *bench) {
			held, l := rival(b.client(), b.name), newLock(b.client(WithPollInterval(time.Hour)), b.name)
			b.must(held.Lock(ctx))
			owner := ContextWithOwner(ctx)
			got := b.startWaiter(owner, l)
			freed, err := held.ForceUnlock(ctx)
			require.NoError(b, err)
			require.True(b, freed)
			b.must(await(b, "the waiter is woken", got))
			b.must(l.Unlock(owner))
		}},
		{"CtxEndsTheWait", func(b *bench) {
			held, l := rival(b.client(), b.name), newLock(b.client(), b.name)
			b.must(held.Lock(ctx))
			waiting, cancel := context.WithCancel(ctx)
			got := b.startWaiter(waiting, l)
			local := make(chan error, 1)
			go func() { local <- l.Lock(waiting) }() // behind the first, in the local queue
			cancel()
			for _, c := range []<-chan error{got, local} {
				err := await(b, "the waiter gives up", c)
				b.mustBe(err, context.Canceled)
				assert.ErrorContains(b, err, b.name)
				assert.ErrorContains(b, err, "lock")
			}
			deadline, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
			defer cancel()
			b.mustBe(l.Lock(deadline), context.DeadlineExceeded)
			b.must(held.Unlock(ctx))
			testredis.Await(b, "nobody has it", soon, func() bool { // a caller that gave up may still be on the way out
				locked, err := l.IsLocked(ctx)
				return !locked && err == nil
			})
			ok, err := l.TryLock(ctx, soon, 0)
			assert.NoError(b, err)
			assert.True(b, ok, "TryLock")
			b.must(l.Unlock(ctx))
		}},
		{"EndedCtxSendsNothing", func(b *bench) {
			rdb := testredis.Client(b, b.addr)
			sent := new(counter)
			rdb.AddHook(sent)
			l := newLock(b.clientOn(rdb), b.name)
			ended, cancel := context.WithCancel(ctx)
			cancel()
			b.mustBe(l.Lock(ended), context.Canceled)
			b.mustBe(l.LockLease(ended, time.Second), context.Canceled)
			_, err := l.TryLock(ended, time.Second, 0)
			b.mustBe(err, context.Canceled)
			b.mustBe(l.Do(ended, func(context.Context) error { assert.Fail(b, "called"); return nil }), context.Canceled)
			_, err = l.IsLocked(ended)
			b.mustBe(err, context.Canceled)
			_, err = l.ForceUnlock(ended)
			b.mustBe(err, context.Canceled)
			assert.Zero(b, sent.n.Load(), "requests")
		}},
		{"WatchdogKeepsTheLease", func(b *bench) {
			const lease = 8 * time.Second
			l := newLock(b.client(WithWatchdogTimeout(lease)), b.name)
			b.must(l.Lock(ctx))
			ok, err := l.TryLock(ctx, 0, 10*time.Millisecond)
			require.NoError(b, err)
			require.True(b, ok) // an inner acquire with a short lease changes nothing
			b.must(l.Unlock(ctx))
			guarded, err := l.Guard(ctx)
			b.must(err)
			for start := time.Now(); time.Since(start) < lease+lease/6; time.Sleep(lease / 60) {
				ttl, err := l.TTL(ctx)
				require.NoError(b, err)
				require.Positive(b, ttl, "TTL")
				require.LessOrEqual(b, ttl, lease, "TTL")
			}
			require.NoError(b, context.Cause(guarded))
			b.must(l.Unlock(ctx))
		}},
		{"LeaseLapses", func(b *bench) {
			l, next := newLock(b.client(), b.name), rival(b.client(), b.name)
			start := time.Now()
			lease := b.locksFor(ctx, l, 600*time.Millisecond)
			guarded, err := l.Guard(ctx)
			b.must(err)
			b.must(next.Lock(ctx)) // no message to wait for: there is no Unlock
			// The clock of miniredis advances in steps, and may be behind when the lease begins.
			assert.GreaterOrEqual(b, time.Since(start), lease-lease/10, "the next owner got the lock before the lease was over")
			await(b, "the guard ends", guarded.Done())
			b.mustBe(context.Cause(guarded), ErrLockLost)
			b.holds(l, 0)
			b.mustBe(l.Unlock(ctx), ErrLockLost)
			b.holds(next, 1)
			b.must(next.Unlock(ctx))
			b.must(l.Lock(ctx)) // a new hold
			b.holds(l, 1)
			b.must(l.Unlock(ctx))
		}},
		{"LapsedLeaseNeedsNoUnlock", func(b *bench) {
			l := newLock(b.client(), b.name)
			for range 3 {
				b.locksFor(ctx, l, 500*time.Millisecond)
				guarded, err := l.Guard(ctx)
				if err == nil {
					await(b, "the lease ends", guarded.Done())
				}
			}
			b.must(l.Lock(ctx))
			b.holds(l, 1)
			b.must(l.Unlock(ctx))
		}},
		{"LeasesDoNotAddUp", func(b *bench) {
			l := newLock(b.client(), b.name)
			b.must(l.LockLease(ctx, 60*time.Second))
			b.must(l.LockLease(ctx, 10*time.Second))
			ttl, err := l.TTL(ctx)
			b.must(err)
			assert.LessOrEqual(b, ttl, 60*time.Second, "TTL after leases of 60s and 10s")
			assert.GreaterOrEqual(b, ttl, 50*time.Second, "TTL after leases of 60s and 10s")
			b.must(l.LockLease(ctx, 100*time.Second))
			ttl, err = l.TTL(ctx)
			b.must(err)
			assert.LessOrEqual(b, ttl, 100*time.Second, "TTL after another lease of 100s")
			assert.GreaterOrEqual(b, ttl, 90*time.Second, "TTL after another lease of 100s")
			for range 3 {
				b.must(l.Unlock(ctx))
			}
		}},
		{"LossEndsTheGuard", func(b *bench) {
			const lease = 1500 * time.Millisecond
			l := newLock(b.client(WithWatchdogTimeout(lease)), b.name)
			b.must(l.Lock(ctx))
			guarded, err := l.Guard(ctx)
			b.must(err)
			b.forget()
			await(b, "the guard ends", guarded.Done())
			b.mustBe(context.Cause(guarded), ErrLockLost)
			_, err = l.Guard(ctx)
			b.mustBe(err, ErrLockLost)
			b.holds(l, 0)
			b.mustBe(l.Unlock(ctx), ErrLockLost)
			b.mustBe(l.Unlock(ctx), ErrNotHeld)
			b.must(l.Lock(ctx))
			b.must(l.Unlock(ctx))
		}},
		{"ReentryAfterALoss", func(b *bench) {
			l := newLock(b.client(), b.name)
			b.must(l.Lock(ctx))
			b.forget()
			b.mustBe(l.Lock(ctx), ErrLockLost)
			b.isLocked(l, false)
			b.mustBe(l.Unlock(ctx), ErrLockLost)
			b.must(l.Lock(ctx))
			b.holds(l, 1)
			b.must(l.Unlock(ctx))
		}},
		{"UnlockAfterALoss", func(b *bench) {
			l, next := newLock(b.client(), b.name), rival(b.client(), b.name)
			b.must(l.Lock(ctx))
			b.forget()
			b.must(next.Lock(ctx))
			b.mustBe(l.Unlock(ctx), ErrLockLost)
			b.holds(next, 1)
			b.must(next.Unlock(ctx))
		}},
		{"GuardEndsWithTheLastUnlock", func(b *bench) {
			l := newLock(b.client(), b.name)
			_, err := l.Guard(ctx)
			b.mustBe(err, ErrNotHeld)
			b.must(l.Lock(ctx))
			b.must(l.Lock(ctx))
			type key struct{}
			guarded, err := l.Guard(context.WithValue(ctx, key{}, "value"))
			b.must(err)
			b.must(l.Unlock(ctx))
			require.NoError(b, guarded.Err(), "the guard ended while the lock is held")
			require.Equal(b, "value", guarded.Value(key{}), "the guard lost its values")
			b.must(l.Unlock(ctx))
			assert.Error(b, guarded.Err())
			assert.Equal(b, context.Canceled, context.Cause(guarded), "cause")
		}},
		{"Do", func(b *bench) {
			l := newLock(b.client(), b.name)
			ran := false
			b.must(l.Do(ctx, func(guarded context.Context) error {
				ran = true
				b.holds(l, 1)
				return guarded.Err()
			}))
			assert.True(b, ran, "fn was not called")
			b.holds(l, 0)
			err := l.Do(ctx, func(context.Context) error { return io.ErrNoProgress })
			assert.ErrorIs(b, err, io.ErrNoProgress)
			assert.NotErrorIs(b, err, ErrNotHeld)
			err = l.Do(ctx, func(guarded context.Context) error {
				b.forget()
				return io.ErrNoProgress
			})
			b.mustBe(err, io.ErrNoProgress)
			b.mustBe(err, ErrLockLost)
			b.isLocked(l, false)
		}},
		{"DoTellsALoss", func(b *bench) {
			l := newLock(b.client(), b.name)
			for what, result := range map[string]func(ctx context.Context) error{
				"the error of its context": context.Context.Err,
				"the cause":                context.Cause,
				"both":                     func(ctx context.Context) error { return errors.Join(ctx.Err(), context.Cause(ctx)) },
				"an error that wraps it":   func(ctx context.Context) error { return fmt.Errorf("stopped: %w", ctx.Err()) },
			} {
				err := l.Do(ctx, func(guarded context.Context) error {
					b.forget()
					held, err := l.IsHeld(context.WithoutCancel(guarded)) // notices the loss
					assert.NoError(b, err)
					assert.False(b, held)
					await(b, "the context is canceled", guarded.Done())
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
			b.mustBe(err, context.Canceled)
			assert.NotErrorIs(b, err, ErrLockLost)
			b.isLocked(l, false)
		}},
		{"DoTellsAShutdown", func(b *bench) {
			for what, result := range map[string]func(ctx context.Context) error{
				"the error of its context": context.Context.Err,
				"the cause":                context.Cause,
				"both":                     func(ctx context.Context) error { return errors.Join(ctx.Err(), context.Cause(ctx)) },
				"an error that wraps it":   func(ctx context.Context) error { return fmt.Errorf("stopped: %w", ctx.Err()) },
				"its own error":            func(context.Context) error { return io.ErrNoProgress },
			} {
				c := b.client()
				l, ended := newLock(c, b.name), make(chan error, 1)
				ran, err := l.TryDo(ctx, soon, func(guarded context.Context) error {
					go func() { ended <- c.Shutdown(ctx) }()
					await(b, "the context is canceled", guarded.Done())
					return result(guarded)
				})
				assert.True(b, ran, what)
				b.must(await(b, "Shutdown ends", ended))
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
			c := b.client()
			l, ended := newLock(c, b.name), make(chan error, 1)
			canceled, cancel := context.WithCancel(ctx)
			err := l.Do(canceled, func(guarded context.Context) error {
				cancel()
				err := guarded.Err()
				go func() { ended <- c.Shutdown(ctx) }()
				<-c.engine.UntilShutdown(ctx, time.Time{}).Closed
				return err
			})
			b.mustBe(err, context.Canceled)
			assert.NotErrorIs(b, err, ErrClosed)
			b.must(await(b, "Shutdown ends", ended))
			b.isLocked(newLock(b.client(), b.name), false)
		}},
		{"TryDo", func(b *bench) {
			l, held := newLock(b.client(), b.name), rival(b.client(), b.name)
			called := false
			tries := func(wait time.Duration, f func(context.Context) error) (bool, error) {
				called = false
				ran, err := l.TryDo(ctx, wait, f)
				assert.Equal(b, called, ran, "ran")
				return ran, err
			}
			ran, err := tries(soon, func(guarded context.Context) error {
				called = true
				b.holds(l, 1)
				return guarded.Err()
			})
			b.must(err)
			assert.True(b, ran)
			b.holds(l, 0)
			ran, err = tries(soon, func(context.Context) error {
				called = true
				return io.ErrNoProgress
			})
			assert.True(b, ran)
			b.mustBe(err, io.ErrNoProgress)
			b.must(held.Lock(ctx))
			for _, wait := range []time.Duration{0, 300 * time.Millisecond} {
				for tries := 0; tries < 5; tries++ { // the machine may be very busy
					if ran, err = l.TryDo(ctx, wait, func(context.Context) error { called = true; return nil }); err == nil {
						break
					}
				}
				b.must(err)
				assert.False(b, ran)
			}
			b.must(held.Unlock(ctx))
			ran, err = tries(-1, func(context.Context) error { called = true; return nil })
			assert.False(b, ran)
			b.mustBe(err, ErrInvalid)
			ran, err = tries(soon, nil)
			assert.False(b, ran)
			b.mustBe(err, ErrInvalid)
			assert.ErrorContains(b, err, "trydo ")
			ended, cancel := context.WithCancel(ctx)
			cancel()
			ran, err = l.TryDo(ended, soon, func(context.Context) error { return nil })
			assert.False(b, ran)
			b.mustBe(err, context.Canceled)
			b.isLocked(l, false)
		}},
		{"DoPanics", func(b *bench) {
			l := newLock(b.client(), b.name)
			func() {
				defer func() {
					assert.Equal(b, "mine", recover(), "recovered")
				}()
				_ = l.Do(ctx, func(context.Context) error { panic("mine") })
			}()
			b.isLocked(l, false)
			b.holds(l, 0)
		}},
		{"DoWithoutAFunction", func(b *bench) {
			rdb := testredis.Client(b, b.addr)
			sent := new(counter)
			rdb.AddHook(sent)
			l := newLock(b.clientOn(rdb), b.name)
			err := l.Do(ctx, nil)
			b.mustBe(err, ErrInvalid)
			assert.ErrorContains(b, err, "do ")
			assert.ErrorContains(b, err, b.name)
			assert.Zero(b, sent.n.Load(), "requests")
			b.holds(l, 0)
		}},
		{"Close", func(b *bench) {
			c := b.client()
			l, held := newLock(c, b.name), rival(b.client(), b.name)
			mine := newLock(c, b.name+"-mine")
			b.must(held.Lock(ctx))
			b.must(mine.Lock(ctx))
			guarded, err := mine.Guard(ctx)
			b.must(err)
			got := b.startWaiter(ctx, l)
			local := make(chan error, 1)
			go func() { local <- l.Lock(ctx) }()
			b.must(c.Close())
			b.mustBe(await(b, "the waiter is woken", got), ErrClosed)
			b.mustBe(await(b, "the local waiter is woken", local), ErrClosed)
			await(b, "the guard ends", guarded.Done())
			b.mustBe(context.Cause(guarded), ErrClosed)
			for name, err := range map[string]error{
				"Lock":      l.Lock(ctx),
				"LockLease": l.LockLease(ctx, time.Second),
				"TryLock":   second(l.TryLock(ctx, 0, 0)),
				"Do":        l.Do(ctx, func(context.Context) error { return nil }),
				"TryDo":     second(l.TryDo(ctx, time.Hour, func(context.Context) error { return nil })),
				"Guard":     second(mine.Guard(ctx)),
				"IsLocked":  second(l.IsLocked(ctx)),
				"IsHeld":    second(l.IsHeld(ctx)),
				"HoldCount": second(l.HoldCount(ctx)),
				"TTL":       second(l.TTL(ctx)),
				"Force":     second(l.ForceUnlock(ctx)),
			} {
				assert.ErrorIs(b, err, ErrClosed, "%s after Close", name)
			}
			b.isLocked(newLock(b.client(), b.name+"-mine"), true)
			b.must(mine.Unlock(ctx))
			b.isLocked(newLock(b.client(), b.name+"-mine"), false)
			b.must(held.Unlock(ctx))
			b.must(c.Close())
		}},
		{"ForceUnlock", func(b *bench) {
			c := b.client(WithWatchdogTimeout(time.Hour))
			l, other := newLock(c, b.name), newLock(b.client(), b.name)
			freed, err := l.ForceUnlock(ctx)
			assert.NoError(b, err)
			assert.False(b, freed, "ForceUnlock of a free lock")
			b.must(l.Lock(ctx))
			freed, err = other.ForceUnlock(ctx)
			require.NoError(b, err)
			require.True(b, freed)
			b.isLocked(l, false)
			b.mustBe(l.Unlock(ctx), ErrLockLost)

			// The holders of this client notice the loss at once.
			b.must(l.Lock(ctx))
			guarded, err := l.Guard(ctx)
			b.must(err)
			freed, err = elsewhere(func() pair[bool] { return pairOf(l.ForceUnlock(ctx)) }).get()
			require.NoError(b, err)
			require.True(b, freed)
			await(b, "the guard ends", guarded.Done())
			b.mustBe(context.Cause(guarded), ErrLockLost)
			b.mustBe(l.Unlock(ctx), ErrLockLost)
		}},
		{"Queries", func(b *bench) {
			l, other := newLock(b.client(), b.name), newLock(b.client(), b.name)
			assert.Contains(b, l.Name(), b.name, "name")
			b.isLocked(l, false)
			b.holds(l, 0)
			ttl, err := l.TTL(ctx)
			assert.NoError(b, err)
			assert.Zero(b, ttl, "TTL")
			b.must(l.LockLease(ctx, time.Minute))
			b.isLocked(l, true)
			b.isLocked(other, true)
			b.holds(l, 1)
			b.holds(other, 0)
			assert.Zero(b, elsewhere(func() int { n, _ := l.HoldCount(ctx); return n }), "levels of another goroutine")
			for _, l := range []Locker{l, other} {
				ttl, err := l.TTL(ctx)
				if assert.NoError(b, err) {
					assert.LessOrEqual(b, ttl, time.Minute, "TTL")
					assert.GreaterOrEqual(b, ttl, 50*time.Second, "TTL")
				}
			}
			b.must(l.Unlock(ctx))
		}},
		{"BadInput", func(b *bench) {
			rdb := testredis.Client(b, b.addr)
			sent := new(counter)
			rdb.AddHook(sent)
			c := b.clientOn(rdb)
			l := newLock(c, b.name)
			for name, err := range map[string]error{
				"lease 0":        l.LockLease(ctx, 0),
				"lease -1s":      l.LockLease(ctx, -time.Second),
				"lease 999µs":    l.LockLease(ctx, 999*time.Microsecond),
				"try lease -1s":  second(l.TryLock(ctx, 0, -time.Second)),
				"try lease 1ns":  second(l.TryLock(ctx, 0, 1)),
				"try wait -1ns":  second(l.TryLock(ctx, -1, 0)),
				"nil ctx":        l.Lock(nilCtx),
				"nil ctx unlock": l.Unlock(nilCtx),
				"nil ctx guard":  second(l.Guard(nilCtx)),
				"empty name":     newLock(c, "").Lock(ctx),
				"empty unlock":   newLock(c, "").Unlock(ctx),
				"empty force":    second(newLock(c, "").ForceUnlock(ctx)),
				"empty held":     second(newLock(c, "").IsHeld(ctx)),
				"long name":      newLock(c, strings.Repeat("x", record.LongestName+1)).Lock(ctx),
				"nil client":     newLock(nil, b.name).Lock(ctx),
			} {
				if assert.ErrorIs(b, err, ErrInvalid, name) {
					assert.LessOrEqual(b, len(err.Error()), 300, "%s: length of the error", name)
				}
			}
			assert.Zero(b, sent.n.Load(), "requests")
		}},
		{"Leases", func(b *bench) {
			l := newLock(b.client(), b.name)
			for _, c := range []struct{ lease, most time.Duration }{
				{time.Hour + 1, time.Hour + time.Millisecond},
				{1<<63 - 1, 1<<63 - 1},
			} {
				b.must(l.LockLease(ctx, c.lease))
				ttl, err := l.TTL(ctx)
				b.must(err)
				assert.LessOrEqual(b, ttl, c.most, "TTL for a lease of %v", c.lease)
				assert.GreaterOrEqual(b, ttl, c.most-time.Minute, "TTL for a lease of %v", c.lease)
				b.holds(l, 1)
				b.must(l.Unlock(ctx))
			}
			for range 20 { // expired before it is held, or nearly so
				// It may also expire while it is acquired once more.
				if err := l.LockLease(ctx, max(s.least, time.Millisecond)); err != nil {
					require.ErrorIs(b, err, ErrLockLost)
				}
			}
			testredis.Await(b, "the last lease ends", soon, func() bool {
				locked, err := l.IsLocked(ctx)
				return err == nil && !locked
			})
		}},
		{"Names", func(b *bench) {
			c, other := b.client(), b.client()
			for _, name := range []string{
				"a b", "{tag}", "x{tag}y", "tag}", "{", "}{", "Schlüssel-鎖-🔒", "zero\x00byte", "new\nline", "\xff\xfe",
				"a:b:c", "*", strings.Repeat("long", 2560),
			} {
				name = b.name + name
				l := newLock(c, name)
				b.must(l.Lock(ctx))
				b.must(l.Lock(ctx))
				b.tries(rival(other, name), false)
				b.tries(newLock(other, name+"x"), true)
				b.must(newLock(other, name+"x").Unlock(ctx))
				b.must(l.Unlock(ctx))
				b.holds(l, 1)
				b.must(l.Unlock(ctx))
				b.isLocked(l, false)
			}
		}},
		{"StrangeKey", func(b *bench) {
			for _, rdb := range b.nodes {
				b.must(rdb.Set(ctx, b.name, "somebody else's", 0).Err())
			}
			l := newLock(b.client(), b.name)
			deadline, cancel := context.WithTimeout(ctx, 20*soon)
			defer cancel()
			for name, err := range map[string]error{
				"Lock":     l.Lock(deadline),
				"TryLock":  second(l.TryLock(ctx, time.Hour, 0)),
				"IsLocked": second(l.IsLocked(ctx)),
				"Force":    second(l.ForceUnlock(ctx)),
			} {
				assert.ErrorIs(b, err, ErrNotALock, name)
				assert.NotErrorIs(b, err, context.DeadlineExceeded, name)
			}
			b.mustBe(l.Unlock(ctx), ErrNotHeld)
			v, err := b.rdb.Get(ctx, b.name).Result()
			assert.NoError(b, err)
			assert.Equal(b, "somebody else's", v, "the key is now")
			b.forget()
		}},
		{"ManyOwnersRandomly", func(b *bench) {
			var together section
			var wg sync.WaitGroup
			for i := range 3 {
				c := b.client(WithPollInterval(100 * time.Millisecond))
				for j := range 4 {
					rng := newRand(10*i + j)
					l, exclusive := newLock(c, b.name), !shared
					if j%2 == 0 {
						l, exclusive = rival(c, b.name), true
					}
					waitgroup.Go(&wg, func() {
						for range 20 {
							lockCtx, cancel := ctx, context.CancelFunc(func() {})
							var lease, wait time.Duration = 0, time.Hour
							switch rng.IntN(4) {
							case 0:
								lockCtx, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(int(20*time.Millisecond))))
							case 1:
								wait = time.Duration(rng.IntN(int(20 * time.Millisecond)))
							case 2:
								lease = 10 * time.Second
							}
							ok, err := l.TryLock(lockCtx, wait, lease)
							cancel()
							if err != nil && lockCtx.Err() == nil { // on a machine that is very busy
								assert.ErrorIs(b, err, engine.ErrNoAnswer)
							}
							if !ok {
								continue
							}
							together.visit(b, exclusive, time.Duration(rng.IntN(int(2*time.Millisecond))))
							assert.NoError(b, l.Unlock(ctx))
						}
					})
				}
			}
			wg.Wait()
		}},
	}
	onEachServer(t, func(t *testing.T, addr string) {
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
		if !mini || strings.HasPrefix(t.Name(), "TestLock/") || full(0, 1) > 0 { // a Hold does not depend on the server
			rules = slices.Concat(rules, s.holdTests())
		}
		for _, test := range rules {
			if slices.Contains(strings.Fields(s.without), test.name) {
				continue
			}
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, addr, others...)
				b.opts = []Option{WithRedLockNodeTimeout(2 * time.Second)} // on a machine that is busy with other work
				test.test(b)
			})
		}
	})
}

// A section is protected by the locks of a test: one exclusive owner may be inside, or several shared ones.
type section struct{ alone, shared atomic.Int64 }

func (s *section) visit(b *bench, exclusive bool, stay time.Duration) {
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
	time.Sleep(stay)
	mine.Add(-1)
}

// lockKinds are the lock types that have a record, one more form of a writer, and a lock that consists of others.
var lockKinds = append(slices.Clone(recordLocks),
	lockKind{name: "fenced write", one: newFencedWriteLock, rival: newFencedWriteLock, record: "hash"},
	lockKind{name: "multi", one: newMixedMultiLock, rival: newMixedMultiLock, record: "hash"},
)

func newFencedWriteLock(c *Client, name string) Locker { return c.NewRWLock(name, Fenced()).Write() }

func newMixedMultiLock(c *Client, name string) Locker {
	return c.NewMultiLock(c.NewLock(name+"-before"), c.NewLock(name), c.NewRWLock(name+"-after").Write())
}
