//go:build go1.25

package engine

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// C3: the engine remembers nothing of a lock without holders and waiters.
func TestEngineForgetsNamesNotInUse(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		for i := range 1000 {
			b := newFakeLock(e.redis, fmt.Sprint("name", i))
			e.take(b, 1)
			e.giveBack(b, 1)
		}
		assert.Zero(t, e.names()+e.leases(), "%d names, %d leases are left", e.names(), e.leases())
	})
}

// C3: the last user of a lock state removes it from the table, however the use ends.
func TestNameIsDroppedWithItsLastUser(t *testing.T) {
	const lease = time.Second
	ctx := context.Background()
	short := leased(lease)
	for how, use := range map[string]func(e *bubbleEngine, other *bubbleEngine){
		"Lock and Unlock": func(e, _ *bubbleEngine) {
			e.lock(1)
			e.lock(1)
			e.unlock(1)
			e.unlock(1)
		},
		"a TryLock that fails here": func(e, _ *bubbleEngine) {
			e.lock(1)
			e.refusedFor(0)
			e.refusedFor(time.Second)
			e.unlock(1)
		},
		"a TryLock that fails elsewhere": func(e, other *bubbleEngine) {
			other.lock(1)
			e.refusedFor(0)
			e.refusedFor(time.Second)
			other.unlock(1)
		},
		"a ctx that ends in the queue": func(e, _ *bubbleEngine) {
			e.lock(1)
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err := e.lockWith(ctx, 2, Request{Wait: forever})
			assert.ErrorIs(e.t, err, context.DeadlineExceeded)
			e.unlock(1)
		},
		"a Redis that does not answer": func(e, _ *bubbleEngine) {
			e.faults(fakeredis.Fault{Block: io.EOF})
			_, err := e.lockWith(ctx, 1, Request{Wait: forever})
			assert.ErrorIs(e.t, err, io.EOF)
			e.heal()
		},
		"Unlock, Guard and Token of what is not held": func(e, _ *bubbleEngine) {
			b := newFakeLock(e.redis, "x")
			assert.ErrorIs(e.t, e.unlockErr(1), ErrNotHeld)
			_, err := e.Guard(ctx, b, 1)
			assert.ErrorIs(e.t, err, ErrNotHeld)
			_, err = e.Token(b, 1)
			assert.ErrorIs(e.t, err, ErrNotHeld)
		},
		"a loss that Unlock reports": func(e, _ *bubbleEngine) {
			e.lock(1)
			e.redis.Set(func() { clear(e.redis.Records) })
			time.Sleep(e.WatchdogTimeout)
			assert.ErrorIs(e.t, e.unlockErr(1), ErrLockLost)
		},
		"a loss that a re-entry reports": func(e, _ *bubbleEngine) {
			e.lock(1)
			e.redis.Set(func() { clear(e.redis.Records) })
			_, err := e.lockWith(ctx, 1, Request{Wait: forever})
			assert.ErrorIs(e.t, err, ErrLockLost)
			assert.ErrorIs(e.t, e.unlockErr(1), ErrLockLost)
		},
		"a force unlock": func(e, _ *bubbleEngine) {
			e.lock(1)
			freed, err := e.Force(ctx, newFakeLock(e.redis, "x"))
			assert.NoError(e.t, err)
			assert.True(e.t, freed)
			assert.ErrorIs(e.t, e.unlockErr(1), ErrLockLost)
		},
		"a lease that has expired, and its late Unlock": func(e, _ *bubbleEngine) {
			_, err := e.lockWith(ctx, 1, short)
			assert.NoError(e.t, err)
			time.Sleep(2 * lease)
			assert.ErrorIs(e.t, e.unlockErr(1), ErrLockLost)
		},
		"a lease that has expired, and so have many since": func(e, _ *bubbleEngine) {
			_, err := e.lockWith(ctx, 1, short)
			assert.NoError(e.t, err)
			time.Sleep(2 * lease)
			for i := range Owner(expiredKept) {
				_, err := e.acquire(ctx, newFakeLock(e.redis, "many"), i+1, short)
				assert.NoError(e.t, err)
				time.Sleep(2 * lease)
			}
			assert.NotContains(e.t, e.textsInUse(), "x")
			for i := range Owner(expiredKept) {
				assert.ErrorIs(e.t, e.Release(ctx, newFakeLock(e.redis, "many"), i+1), ErrLockLost)
			}
		},
		"readers that share a record": func(e, _ *bubbleEngine) {
			for o := range Owner(5) {
				e.shares(o + 1)
			}
			for o := range Owner(5) {
				assert.NoError(e.t, e.Release(ctx, e.shared(), o+1))
			}
			time.Sleep(time.Second) // longer than newcomers may share the record
		},
	} {
		t.Run(how, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				use(e, e.another())
				time.Sleep(2 * UnlockTime) // all rollbacks have ended
				assert.Empty(t, e.textsInUse(), "names in use")
				assert.Zero(t, e.leases(), "leases")
			})
		})
	}
}

// refusedFor asserts that owner 9 does not get the lock within wait.
func (e *bubbleEngine) refusedFor(wait time.Duration) {
	e.t.Helper()
	ok, err := e.lockWith(context.Background(), 9, Request{Wait: wait})
	assert.NoError(e.t, err)
	assert.False(e.t, ok)
}

// A lock state stays in the table while it has a user, and is the same object for all its users.
func TestNameStaysWhileItIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		s := e.retain("x")
		e.lock(1)
		s.release()
		assert.Same(t, s, e.retain("x"), "the name of a hold")
		s.release()
		e.unlock(1)
		assert.NotSame(t, s, e.retain("x"), "the name after the last use")
		e.retain("x").release()
		assert.Equal(t, []string{"x"}, e.textsInUse(), "one user is left")
	})
}

// A lock state that is made after Close is closed from the start.
func TestNameAfterCloseIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		before := e.retain("before")
		defer before.release()
		require.NoError(t, e.Close())
		after := e.retain("after")
		defer after.release()
		for _, s := range []*lockState{before, after} {
			s.locked(func() { assert.True(t, s.closed, s.name) })
		}
	})
}

// No call walks over all lock states: the error for a caller that holds nothing costs the same while 100,000 locks of
// other names are held as while one is.
func TestErrNotHeldCostsTheSameBesideManyHolds(t *testing.T) {
	const few, calls, factor = 1, 1001, 10
	many := full(20_000, 100_000)
	ctx := context.Background()
	r := fakeredis.New()
	e := abandonedBubbleEngine(t, r, withLogger(slog.New(slog.DiscardHandler)))
	defer func() { assert.NoError(t, e.Close()) }()
	holds := 0
	hold := func(n int) {
		for ; holds < n; holds++ {
			e.take(newFakeLock(r, fmt.Sprint("name", holds)), 1, Request{Lease: time.Hour})
		}
		require.Equal(t, n, e.names(), "names in use")
	}
	stranger, free, held := Owner(2), newFakeLock(r, "free"), newFakeLock(r, "name0")
	ask := map[string]func(kind contract.Record) error{
		"Unlock": func(kind contract.Record) error { return e.Release(ctx, kind, stranger) },
		"Guard":  func(kind contract.Record) error { _, err := e.Guard(ctx, kind, stranger); return err },
		"Token":  func(kind contract.Record) error { _, err := e.Token(kind, stranger); return err },
	}
	costs := func() map[string]time.Duration {
		medians := make(map[string]time.Duration)
		for method, f := range ask {
			for what, b := range map[string]*fakeLock{"a free lock": free, "a lock of another owner": held} {
				took := make([]time.Duration, calls)
				for i := range took {
					start := time.Now()
					err := f(b)
					took[i] = time.Since(start)
					require.ErrorIs(t, err, ErrNotHeld)
				}
				slices.Sort(took)
				medians[method+" of "+what] = took[calls/2]
			}
		}
		return medians
	}
	hold(few)
	before := costs()
	hold(many)
	for what, cost := range costs() {
		assert.LessOrEqual(
			t,
			cost,
			factor*max(before[what], time.Microsecond),
			"%s, %v beside %d holds",
			what,
			before[what],
			few,
		)
	}
}

// A holdSet finds the holds that are in it, and no others, whatever the order in which they come and go.
func TestHoldSetFindsItsHolds(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	var set holdSet
	model := make(map[holdKey]*hold)
	for range 3000 {
		key := holdKey{[]string{"", "read", "write"}[random.IntN(3)], Owner(random.IntN(4))}
		switch h := model[key]; {
		case h == nil:
			lock := newFakeLock(nil, "x")
			lock.traits.ID.Half = key.half
			model[key] = &hold{claim: claim{lock: lock, owner: key.owner}}
			set.put(model[key])
		case random.IntN(2) == 0:
			set.remove(h)
			delete(model, key)
		}
		for _, half := range []string{"", "read", "write"} {
			other := holdKey{half, key.owner}
			require.Same(t, model[other], set.get(other), "the hold of %v", other)
		}
		require.ElementsMatch(t, slices.Collect(maps.Values(model)), slices.Collect(set.all()), "all holds")
	}
	for h := range set.all() {
		set.remove(h)
	}
	require.Empty(t, slices.Collect(set.all()), "after all were removed in a loop over them")
}

// Each time that an uncontended Lock takes the mutex of its lock state costs time, and the next step has to look again
// at what may have changed. It takes it when the caller is admitted, before the attempt, and after the answer.
func TestUncontendedLockTakesItsMutexThreeTimes(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		s := e.retain("x")
		defer s.release()
		before := s.times
		e.lock(1)
		assert.LessOrEqual(t, s.times-before, uint32(3))
		e.unlock(1)
	})
}
