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

// Permits expire without a message. The waiters of one process ask together for what is free, but none in front of the
// first one gets what that one needs.
func TestPermitsThatAreFreeGoToTheFirst(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		c, _ := v.Client(0)
		other, _ := v.Client(0)
		for range 20 {
			_, ok, err := other.NewSemaphore("s", 4).TryAcquireN(ContextWithOwner(ctx), 4, 0, 3*time.Second)
			require.NoError(v, err)
			require.True(v, ok)
			held, order := make(chan *Hold, 4), make(chan int, 4)
			for _, n := range []int{1, 3, 1, 2} {
				go func() {
					h, err := c.NewSemaphore("s", 4).AcquireN(ctx, n)
					assert.NoError(v, err)
					order <- n
					held <- h
				}()
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(30 * time.Second)
			if assert.Len(v, order, 2) {
				assert.Equal(v, 1+3, <-order+<-order)
			}
			for range 4 {
				assert.NoError(v, (<-held).Release(ctx))
			}
		}
	})
}
