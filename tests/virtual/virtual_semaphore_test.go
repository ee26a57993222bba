//go:build go1.25

package virtual

// How semaphores share what is free.

import (
	"sync"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/bubble"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// All permits of a semaphore become free at once, and many callers of one process wait for them: they do not ask one
// after the other.
func TestWaitersAskTogetherForPermitsThatAreFree(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		const n, trip = 300, 10 * time.Millisecond
		c, link := v.Client(0)
		other, _ := v.Client(0)
		holder := ContextWithOwner(ctx)
		h, err := other.NewSemaphore("s", n).AcquireN(holder, n)
		require.NoError(v, err)
		link.Set(func(c *bubble.Conditions) { c.Latency = trip / 2 })
		s := c.NewSemaphore("s", n)
		var all sync.WaitGroup
		for range n {
			waitgroup.Go(&all, func() {
				h, err := s.Acquire(ContextWithOwner(ctx))
				if assert.NoError(v, err) {
					assert.NoError(v, h.Release(ctx))
				}
			})
		}
		time.Sleep(5 * time.Second)
		start := time.Now()
		require.NoError(v, h.Release(holder))
		all.Wait()
		assert.Less(v, time.Since(start), 20*trip)
	})
}
