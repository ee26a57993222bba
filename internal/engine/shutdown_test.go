//go:build go1.25

package engine

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/send"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// shutdownLater calls Shutdown on another goroutine, and returns a channel that receives its error.
func (e *bubbleEngine) shutdownLater(ctx context.Context) (errs <-chan error) {
	got := later(func() error { return e.Shutdown(ctx) })
	synctest.Wait()
	return got
}

func TestShutdownWaitsForTheLastUnlock(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		e.lock(1)
		guarded := e.guarded(1)
		waiter := e.asking(2)
		synctest.Wait()
		start := time.Now()
		done := e.shutdownLater(ctx)
		assert.ErrorIs(t, <-waiter, send.ErrClosed, "who waits")
		assert.ErrorIs(t, context.Cause(guarded), send.ErrClosed, "the guard")
		for o := Owner(1); o < 3; o++ {
			_, err := e.lockWith(ctx, o, Request{})
			assert.ErrorIs(t, err, send.ErrClosed, "%v asks", o)
		}
		_, err := e.Guard(ctx, newFakeLock(e.redis, "x"), 1)
		assert.ErrorIs(t, err, send.ErrClosed, "another guard")
		assert.Zero(t, time.Since(start), "time taken")
		time.Sleep(time.Minute)
		e.assertHeld("the record is not renewed")
		e.unlock(1)
		synctest.Wait()
		assert.Empty(t, done, "Shutdown returns before the last Unlock")
		e.unlock(1)
		assert.NoError(t, <-done)
		assert.InDelta(t, time.Minute, time.Since(start), float64(heldPause), "time taken")
		e.assertFree()
		assert.NoError(t, e.Shutdown(ctx), "Shutdown after Close")
	})
}

// When ctx is done, Shutdown closes the engine and returns which holds are left: nothing is renewed any more.
func TestShutdownSaysWhatIsLeft(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		e.take(newFakeLock(e.redis, "other"), -7)
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		err := e.Shutdown(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		for _, text := range []string{"relock: shutdown: ", "2 locks are still held", "x by goroutine 1",
			"other by owner 7"} {
			assert.ErrorContains(t, err, text)
		}
		time.Sleep(31 * time.Second)
		e.assertFree("it is renewed after Shutdown")
		assert.ErrorIs(t, e.unlockErr(1), ErrLockLost)
		assert.ErrorIs(t, e.Release(context.Background(), newFakeLock(e.redis, "other"), -7), ErrLockLost)
	})
}

func TestShutdownEndsWithClose(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		first, second := e.shutdownLater(ctx), e.shutdownLater(ctx)
		assert.NoError(t, e.Close())
		assert.ErrorIs(t, <-first, send.ErrClosed)
		assert.ErrorIs(t, <-second, send.ErrClosed)
		e.unlock(1)
	})
}

// All calls of Shutdown return when the last hold has ended, even if it was lost or has expired.
func TestShutdownDoesNotWaitForLostHolds(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		e.take(newFakeLock(e.redis, "explicit"), 1, leased(time.Second))
		first, second := e.shutdownLater(ctx), e.shutdownLater(ctx)
		time.Sleep(2 * time.Second)
		assert.Empty(t, first, "it returns while a lock is held")
		e.redis.Set(func() { clear(e.redis.Records) })
		assert.NoError(t, <-first)
		assert.NoError(t, <-second)
		assert.ErrorIs(t, e.unlockErr(1), ErrLockLost)
	})
}

// The loss of the last hold, which lets Shutdown return, is told as others are.
func TestLossThatEndsShutdownIsTold(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			e := abandonedBubbleEngine(t, fakeredis.New(), func(c *Config) { c.Events = lostEvents{logged{c.Log}, &n} })
			a := NewAgent(1)
			defer a.End()
			e.lock(a.Owner)
			_, err := e.Guard(t.Context(), newFakeLock(e.redis, "x"), a.Owner) // Shutdown does not cancel it
			require.NoError(t, err)
			e.deleteRecord()
			assert.NoError(t, e.Shutdown(ctx))
			time.Sleep(time.Minute)
			assert.Equal(t, 1, n, "events")
		})
	}
}

// An attempt that is under way when Shutdown begins does not acquire the lock.
func TestShutdownRollsBackAnAttemptUnderWay(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.Latency = 400 * time.Millisecond
		got := e.asking(1)
		time.Sleep(time.Millisecond)
		assert.NoError(t, e.Shutdown(ctx))
		assert.ErrorIs(t, <-got, send.ErrClosed)
		e.assertFree()
	})
}
