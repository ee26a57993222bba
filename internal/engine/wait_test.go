//go:build go1.25

package engine

import (
	"testing"
	"time"

	"github.com/relock-go/relock/internal/contract"
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

// A waiter with a place asks before the line forgets it, however long the lease of the holder is.
func TestWaiterInLineAsksInTime(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		grants := e.pubsub.Join("grants")
		defer grants.Leave()
		e.PollInterval = time.Hour
		for _, left := range []time.Duration{-1, time.Second, 10 * time.Minute, 2 * time.Hour} {
			delay, stop := e.awaitInLine("x", grants, Answer{Outcome: contract.Outcome{Wait: left}})
			stop()
			assert.LessOrEqual(t, delay, RareAsk, left)
		}
	})
}
