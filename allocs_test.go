//go:build !race

package relock

import (
	"context"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

// A section, a Lock and its Unlock, allocates no more than this often, with what go-redis allocates. A section takes
// longer with each allocation, which the tests of time do not notice.
func TestSectionsAllocateLittle(t *testing.T) { // not in parallel: the counter is that of the whole process
	addr := testredis.Start(t).Addr()
	lock := func(c *Client) Locker { return c.NewLock("allocates") }
	for name, of := range map[string]struct {
		lock       func(c *Client) Locker
		goroutines int
		most       float64
	}{
		"alone":          {lock, 1, 34},
		"handed off":     {lock, 16, 6},
		"shared readers": {func(c *Client) Locker { return c.NewRWLock("allocates-rw").Read() }, 16, 6},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := New(testredis.Client(t, addr), WithLabel(""))
			require.NoError(t, err)
			defer c.Close()
			l := of.lock(c)
			sections := func(n int) float64 {
				var before, after runtime.MemStats
				var all sync.WaitGroup
				runtime.ReadMemStats(&before)
				for range of.goroutines {
					all.Add(1)
					go func() {
						defer all.Done()
						ctx := ContextWithOwner(context.Background())
						for range n / of.goroutines {
							if !assert.NoError(t, l.Lock(ctx)) || !assert.NoError(t, l.Unlock(ctx)) {
								return
							}
						}
					}()
				}
				all.Wait()
				runtime.ReadMemStats(&after)
				return float64(after.Mallocs-before.Mallocs) / float64(n)
			}
			least := sections(2000)
			for range 5 { // something else may allocate beside it
				least = min(least, sections(2000))
			}
			t.Logf("%.1f allocations", least)
			assert.LessOrEqual(t, least, of.most)
		})
	}
}
