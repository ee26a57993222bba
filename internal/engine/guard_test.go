//go:build go1.25

package engine

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/lease"
)

// S2: a local timer cancels the guard, even if Redis cannot be reached.
func TestEngineGuardEndsWithItsValidity(t *testing.T) {
	for name, fault := range map[string]fakeredis.Fault{
		"refused": {Block: io.EOF},
		"silent":  {Late: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				e.redis.Latency = time.Second
				start := time.Now()
				e.lock(1)
				guarded := e.guarded(1)
				e.faults(fault)
				<-guarded.Done()
				assert.Equal(
					t,
					e.WatchdogTimeout-lease.Drift(e.WatchdogTimeout),
					time.Since(start),
					"trusted for %v after the request was sent",
					time.Since(start),
				)
				assert.ErrorIs(t, context.Cause(guarded), ErrLockLost)
				_, err := e.Guard(ctx, newFakeLock(e.redis, "x"), 1)
				assert.ErrorIs(t, err, ErrLockLost, "a new guard")
				assert.ErrorIs(t, e.unlockErr(1), ErrLockLost, "unlock")
				err = e.unlockErr(1)
				assert.ErrorIs(t, err, ErrNotHeld, "second unlock")
				assert.NotErrorIs(t, err, ErrLockLost, "second unlock")
				e.heal()
				time.Sleep(2 * time.Hour)
			})
		})
	}
}

// After a pause of the process the clock decides whether a hold is valid, before any timer has fired.
func TestEngineGuardLooksAtTheClock(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		guarded := e.guarded(1)
		child, cancel := context.WithCancel(guarded)
		defer cancel()
		e.watchdog.Close() // as if the goroutine of the watchdog had not been scheduled since
		time.Sleep(e.WatchdogTimeout - lease.Drift(e.WatchdogTimeout) - 1)
		assert.NoError(t, guarded.Err(), "ended while it is trusted")
		time.Sleep(time.Nanosecond)
		assert.Error(t, guarded.Err())
		assert.ErrorIs(t, context.Cause(guarded), ErrLockLost)
		assert.ErrorIs(t, context.Cause(child), ErrLockLost, "a derived ctx says %v", context.Cause(child))
	})
}

// A guard reports a loss that another goroutine has noticed, even if that goroutine has not canceled the guard yet.
func TestEngineGuardOfAHoldThatIsBeingLost(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		guarded := e.guarded(1)
		var h *hold
		e.holdOf(contract.LockID{Name: "x"}, 1, func(held *hold) { h = held })
		before := h.Hold
		h.lockState.locked(func() {
			h.Lost(true)
			h.loss = LossError(ErrExpired)
		})
		defer func() {
			h.lockState.locked(func() {
				h.Field().Use()
				h.Hold, h.loss = before, nil
			})
			e.unlock(1)
		}()
		assert.Error(t, guarded.Err())
		assert.ErrorIs(t, context.Cause(guarded), ErrLockLost)
	})
}

// A guard is canceled with its parent, and the hold forgets it.
func TestEngineForgetsGuardsOfEndedContexts(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		b := newFakeLock(e.redis, "x")
		for range 100 {
			ctx, cancel := context.WithCancel(ctx)
			g, err := e.Guard(ctx, b, 1)
			require.NoError(t, err)
			cancel()
			assert.ErrorIs(t, g.Err(), context.Canceled, "a guard outlives its parent")
		}
		synctest.Wait()
		n := 0
		e.holdOf(b.Traits().ID, 1, func(h *hold) { n = len(h.guards) })
		assert.Zero(t, n, "guards of ended contexts are remembered")
		e.unlock(1)
	})
}
