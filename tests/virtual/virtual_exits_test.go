//go:build go1.25

package virtual

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An exiting is an Observer that ends the goroutine of the call that has acquired a lock, once.
type exiting struct {
	NopObserver
	left atomic.Int64 // which Acquired ends it
}

func (o *exiting) Acquired(context.Context, AcquiredEvent) {
	if o.left.Add(-1) == 0 {
		runtime.Goexit()
	}
}

// The Observer ends the goroutine of a call when the lock is acquired: it is released, and what the owner had before is
// not.
func TestLockIsReleasedIfTheObserverEndsTheGoroutine(t *testing.T) {
	work := func(context.Context) error { return nil }
	for name, call := range map[string]func(ctx context.Context, c *Client){
		"Lock": func(ctx context.Context, c *Client) { _ = c.NewLock("l").Lock(ctx) },
		"Do":   func(ctx context.Context, c *Client) { _ = c.NewLock("l").Do(ctx, work) },
		"Lead": func(ctx context.Context, c *Client) { _ = c.NewElection("l").Lead(ctx, work) },
		"Acquire": func(ctx context.Context, c *Client) {
			h, _ := c.NewFairLock("l").Acquire(ctx)
			_ = h.Release(ctx)
		},
		"Attach": func(ctx context.Context, c *Client) {
			h, _, _ := c.NewLock("l").TryAcquire(ctx, 0, 0)
			ticket, _ := h.Detach(ctx, time.Hour)
			h, _ = c.Attach(ctx, ticket)
			_ = h.Release(ctx)
		},
		"MultiLock": func(ctx context.Context, c *Client) {
			l := c.NewMultiLock(c.NewLock("l"), c.NewLock("m"))
			_ = l.Lock(ctx)
			_ = l.Unlock(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
				o := new(exiting)
				ctx, cancel := context.WithTimeout(ContextWithOwner(context.Background()), time.Hour)
				defer cancel()
				c, _ := v.Client(0, WithObserver(o))
				held := c.NewLock("m")
				require.NoError(v, held.Lock(ctx))
				for _, which := range []int64{1, 2} {
					o.left.Store(which)
					for range which {
						ended := make(chan struct{})
						go func() {
							defer close(ended)
							call(ctx, c)
							_ = c.NewLock("l").Unlock(ctx) // if it was Lock
						}()
						<-ended
					}
					time.Sleep(2 * time.Minute)
					assert.Zero(v, has(v, "l"), "the lock is held")
					n, err := held.HoldCount(ctx)
					assert.NoError(v, err)
					assert.Equal(v, 1, n, "the hold count of what the owner had before")
				}
			})
		})
	}
}

// A leaving is a Locker whose Guard ends the goroutine.
type leaving struct{ Locker }

func (leaving) Guard(context.Context) (context.Context, error) {
	runtime.Goexit()
	return nil, nil
}

// Code of the user ends the goroutine on which a RedLock asks a node, when the node has granted the lock: nothing of that
// grant is left after Unlock.
func TestRedLockReleasesANodeThatEndsTheGoroutine(t *testing.T) {
	for name, fault := range map[string]func(o *exiting, locks []Locker){
		"an Observer": func(o *exiting, _ []Locker) { o.left.Store(1) },
		"a Guard":     func(_ *exiting, locks []Locker) { locks[1] = leaving{locks[1]} },
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
				ctx := ContextWithOwner(context.Background())
				o := new(exiting)
				clients, _, locks := nodes(v, WithObserver(o))
				fault(o, locks)
				l := clients[0].NewRedLock(locks...)
				require.NoError(v, l.Lock(ctx))
				require.NoError(v, l.Unlock(ctx))
				time.Sleep(2 * time.Minute)
				assert.Zero(v, has(v, "l"), "nodes that are held")
			})
		})
	}
}
