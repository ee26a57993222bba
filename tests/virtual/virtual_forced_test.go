//go:build go1.25

package virtual

// Answers that come late, and forced releases of locks that are held by this process.

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/bubble"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ForceUnlock of a RedLock that this process holds, on servers that answer well within the node timeout.
func TestForceUnlockOfOwnRedLock(t *testing.T) {
	locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
		ctx := ContextWithOwner(context.Background())
		clients, links, locks := nodes(v)
		l := clients[0].NewRedLock(locks...)
		require.NoError(v, l.Lock(ctx))
		_, err := l.ForceUnlock(ctx) // Redis has the scripts then
		require.NoError(v, err)
		_ = l.Unlock(ctx)
		for _, link := range links {
			link.Set(func(c *bubble.Conditions) { c.Latency = 75 * time.Millisecond }) // a round trip is 150ms, of 200ms
		}
		require.NoError(v, l.Lock(ctx))
		freed, err := l.ForceUnlock(context.Background())
		assert.NoError(v, err)
		assert.True(v, freed)
	})
}

// A stalls is a context of the user whose Done takes long while slow is set.
type stalls struct {
	context.Context
	slow *atomic.Bool
}

func (p stalls) Done() <-chan struct{} {
	if p.slow.Load() {
		time.Sleep(time.Second)
	}
	return p.Context.Done()
}

// The first try of an acquire is answered late: when the hold has ended in this process, and its release has not begun.
func TestLateAnswerLeavesMinHold(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		ctx := ContextWithOwner(context.Background())
		c, link := v.Client(0)
		other, _ := v.Client(0)
		l := c.NewLock("l", MinHold(20*time.Second))
		warm := c.NewLock("warm")
		require.NoError(v, warm.Lock(ctx))
		require.NoError(v, warm.Unlock(ctx))
		link.Set(func(c *bubble.Conditions) { c.Delayed, c.Late = 1, 2*time.Second })
		time.AfterFunc(10*time.Millisecond, func() { link.Set(func(c *bubble.Conditions) { c.Delayed = 0 }) })
		began := time.Now()
		require.NoError(v, l.Lock(ctx))
		slow := new(atomic.Bool)
		parent, cancel := context.WithCancel(ctx)
		defer cancel()
		_, err := l.Guard(stalls{parent, slow})
		require.NoError(v, err)
		time.Sleep(1500*time.Millisecond - time.Since(began))
		slow.Store(true)
		require.NoError(v, l.Unlock(ctx))
		slow.Store(false)
		time.Sleep(time.Second)
		ok, err := other.NewLock("l").TryLock(ctx, 0, 0)
		require.NoError(v, err)
		assert.False(v, ok, "another owner has the lock after %v", time.Since(began))
	})
}
