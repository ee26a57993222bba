//go:build !race

package locks

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A section, a Lock and its Unlock, allocates no more than this often, and no more than these bytes, with what go-redis
// allocates. A section takes longer with each allocation, which the tests of time do not notice.
func TestSectionsAllocateLittle(t *testing.T) { // not in parallel: the counter is that of the whole process
	addr := testredis.Start(t).Addr()
	one := func(c *Client, _ int) Locker { return c.NewLock("allocates") }
	own := func(c *Client, i int) Locker { return c.NewLock(fmt.Sprint("allocates", i)) }
	readers := func(c *Client, _ int) Locker { return c.NewRWLock("allocates-rw").Read() }
	for name, of := range map[string]struct {
		lock        func(c *Client, goroutine int) Locker
		goroutines  int
		most, bytes float64
	}{
		// On a busy machine a few calls take other ways, and the bytes vary by some percent.
		"alone":          {one, 1, 28, 3200},
		"in batches":     {own, 64, 24, 3300},
		"handed off":     {one, 16, 6, 900},
		"shared readers": {readers, 16, 6, 900},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := New(testredis.Client(t, addr), WithLabel(""))
			require.NoError(t, err)
			defer c.Close()
			sections := func(n int) (allocations, bytes float64) {
				var before, after runtime.MemStats
				var all sync.WaitGroup
				runtime.ReadMemStats(&before)
				for i := range of.goroutines {
					all.Add(1)
					go func() {
						defer all.Done()
						l, ctx := of.lock(c, i), ContextWithOwner(ctx)
						for range n / of.goroutines {
							if !assert.NoError(t, l.Lock(ctx)) || !assert.NoError(t, l.Unlock(ctx)) {
								return
							}
						}
					}()
				}
				all.Wait()
				runtime.ReadMemStats(&after)
				return float64(after.Mallocs-before.Mallocs) / float64(n), float64(after.TotalAlloc-before.TotalAlloc) / float64(n)
			}
			const n = 3200
			least, bytes := sections(n)
			for round := 0; round < 5 && (least > of.most || bytes > of.bytes); round++ { // something else may allocate beside it
				again, others := sections(n)
				least, bytes = min(least, again), min(bytes, others)
			}
			t.Logf("%.1f allocations, %.0f bytes", least, bytes)
			assert.LessOrEqual(t, least, of.most)
			assert.LessOrEqual(t, bytes, of.bytes)
		})
	}
}
