//go:build go1.25

package sim

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
)

// A paused process sends no script and receives no answer, and its hold has expired when it is resumed. (Its
// subscription goes on.)
func TestPausedProcessStops(t *testing.T) {
	plan := Plan{Seed: 1, Processes: 2, Servers: 1, Watchdog: 30 * time.Second, WakeDelay: time.Second,
		ReadTimeout: time.Second, Latency: time.Millisecond}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(plan)
		defer w.close()
		ctx := relock.ContextWithOwner(context.Background())
		l := w.process(0).clients[0].NewLock("x")
		require.NoError(t, l.Lock(ctx))
		guard, err := l.Guard(ctx)
		require.NoError(t, err)
		began := time.Now()
		resume := w.pause(Fault{Process: 0})
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			_, _ = w.process(0).clients[0].NewLock("y").TryLock(context.Background(), 0, 0)
		}()
		time.Sleep(time.Minute)
		for _, c := range w.redis[0].Recent() {
			assert.False(t, c.At.After(began) && strings.HasPrefix(c.Args[0], "eval"), "%v", c.Args)
		}
		assert.Error(t, guard.Err())
		assert.Equal(t, time.Minute, w.pausedFor(w.process(0), began))
		assert.Zero(t, w.pausedFor(w.process(1), began))
		ok, err := w.process(1).clients[0].NewLock("x").TryLock(context.Background(), 0, 0)
		require.NoError(t, err)
		assert.True(t, ok, "the lock of the process that is paused")
		resume()
		paused := time.Since(began)
		<-returned
		assert.ErrorIs(t, l.Unlock(ctx), relock.ErrLockLost)
		time.Sleep(time.Minute)
		assert.Equal(t, paused, w.pausedFor(w.process(0), began))
	})
}
