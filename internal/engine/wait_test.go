//go:build go1.25

package engine

import (
	"testing"
	"time"

	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/stretchr/testify/assert"
)

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
