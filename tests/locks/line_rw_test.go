package locks

// The line of a plain lock and a read/write lock of the same name.
//
// Rules: there is one line for both, and a client has one place in it. Readers, and writers without a place, are
// notified when the plain lock is released, and readers do not share while processes wait for the plain lock.

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
)

// A plain lock and a read/write lock of one name exclude each other, and neither starves the callers of the other.
func TestLineServesTwoTypesOfOneName(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	plain := func(c *Client, name string) Locker { return c.NewLock(name) }
	write := func(c *Client, name string) Locker { return c.NewRWLock(name).Write() }
	read := func(c *Client, name string) Locker { return c.NewRWLock(name).Read() }
	for name, mix := range map[string]struct {
		other    func(c *Client, name string) Locker
		together bool // each Client asks for both
		shared   bool // the other lock does not exclude itself
	}{
		"write":                     {other: write},
		"write of the same Clients": {other: write, together: true},
		"read":                      {other: read, shared: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := locktest.NewBench(t, server.Addr())
			ctx, stop := context.WithTimeout(context.Background(), 2*locktest.Soon) // a limit for a caller that is starved
			defer stop()
			var all sync.WaitGroup
			var inside atomic.Int32 // number of readers; negative for another holder
			var turns [2][8]atomic.Int64
			var longest [2]time.Duration
			var mu sync.Mutex // guards longest
			works := func(l Locker, kind, i int) {
				for {
					asked := time.Now()
					err := l.Lock(ctx)
					mu.Lock()
					longest[kind] = max(longest[kind], time.Since(asked))
					mu.Unlock()
					if err != nil {
						return
					}
					if mix.shared && kind == 1 {
						assert.Positive(t, inside.Add(1), "a reader beside another holder")
						inside.Add(-1)
					} else {
						assert.True(t, inside.CompareAndSwap(0, -1000), "a holder beside another one")
						inside.Store(0)
					}
					turns[kind][i].Add(1)
					assert.NoError(t, l.Unlock(context.WithoutCancel(ctx)))
				}
			}
			for n := range 2 {
				c := b.Client()
				d := c
				if !mix.together {
					d = b.Client()
				}
				for i := range 4 {
					waitgroup.Go(&all, func() { works(plain(c, b.LockName), 0, 4*n+i) })
					waitgroup.Go(&all, func() { works(mix.other(d, b.LockName), 1, 4*n+i) })
				}
			}
			least := func(kind int) int64 {
				n := turns[kind][0].Load()
				for i := range turns[kind] {
					n = min(n, turns[kind][i].Load())
				}
				return n
			}
			enough := time.Now().Add(locktest.Full(time.Second, 10*time.Second))
			for ctx.Err() == nil && (time.Now().Before(enough) || min(least(0), least(1)) < 20) {
				time.Sleep(10 * time.Millisecond)
			}
			stop()
			all.Wait()
			for kind := range turns {
				t.Logf("type %d: at least %d turns each, longest wait %v", kind, least(kind), longest[kind].Round(time.Millisecond))
				assert.GreaterOrEqual(t, least(kind), int64(20), "turns of a caller of type %d", kind)
			}
		})
	}
}
