//go:build go1.25

package engine

import (
	"testing"
	"time"

	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/stretchr/testify/assert"
)

// TryLock returns without an error exactly when its wait time has passed.
func TestEngineTryLockGivesUpInTime(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := e.another()
		other.lock(1)
		for _, wait := range []time.Duration{1, time.Millisecond, 300 * time.Millisecond, 5 * time.Second} {
			start := time.Now()
			ok, err := e.lockWith(ctx, 2, Request{Wait: wait})
			took := time.Since(start)
			assert.NoError(t, err, "wait %v: %v, %v after %v", wait, ok, err, took)
			assert.False(t, ok, "wait %v: %v, %v after %v", wait, ok, err, took)
			assert.Equal(t, wait, took, "wait %v: %v, %v after %v", wait, ok, err, took)
		}
		other.unlock(1)
		assert.Zero(t, e.holds(), "a hold is left")
	})
}

// A TryLock that Redis never answers returns an error when its time is up.
func TestEngineTryLockWithoutAnAnswerIsAnError(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.faults(fakeredis.Fault{Late: 30 * time.Second})
		start := time.Now()
		err := e.misses(ctx, 1, Request{Wait: 900 * time.Millisecond})
		assert.Error(t, err)
		assert.Equal(t, 900*time.Millisecond, time.Since(start), "time taken")
		e.heal()
		time.Sleep(time.Minute) // the attempt runs late, and is rolled back
		e.assertFree("the lock is still held")
	})
}
