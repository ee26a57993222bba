//go:build go1.25

package engine

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/stretchr/testify/assert"
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
	ok, err := e.lockWith(ctx, 9, Request{Wait: wait})
	assert.NoError(e.t, err)
	assert.False(e.t, ok)
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
