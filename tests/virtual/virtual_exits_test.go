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
				ctx, cancel := context.WithTimeout(ContextWithOwner(ctx), time.Hour)
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

// An Observer ends the goroutine on which a RedLock asks a node, when the node has granted the lock: nothing of that grant
// is left after Unlock.
func TestRedLockReleasesANodeThatEndsTheGoroutine(t *testing.T) {
	locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
		ctx := ContextWithOwner(ctx)
		o := new(exiting)
		clients, _, locks := nodes(v, WithObserver(o))
		o.left.Store(1)
		l := clients[0].NewRedLock(locks...)
		require.NoError(v, l.Lock(ctx))
		require.NoError(v, l.Unlock(ctx))
		time.Sleep(2 * time.Minute)
		assert.Zero(v, has(v, "l"), "nodes that are held")
	})
}

// A watching is a Locker whose guards are contexts of the user.
type watching struct {
	Locker
	faulty
}

func (w watching) Guard(ctx context.Context) (_ context.Context, err error) {
	w.count()
	w.Context, err = w.Locker.Guard(ctx)
	return w.faulty, err
}

// The Guard of a node, or the context that it returns, ends the goroutine at any of its calls: nothing is left.
func TestRedLockWithAFaultyGuard(t *testing.T) {
	for at, calls := int64(1), int64(1); at <= calls+1; at++ {
		locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
			ctx := ContextWithOwner(ctx)
			clients, _, locks := nodes(v)
			f := faulty{calls: new(atomic.Int64), at: at, end: runtime.Goexit}
			locks[1] = watching{locks[1], f}
			l, ended := clients[0].NewRedLock(locks...), make(chan struct{})
			go func() {
				defer close(ended)
				assert.NoError(v, l.Lock(ctx))
				assert.NoError(v, l.Unlock(ctx))
			}()
			<-ended
			calls = f.calls.Load()
			time.Sleep(2 * time.Minute)
			assert.Zero(v, has(v, "l"), "nodes that are held after the call %d of %d", at, calls)
		})
	}
}
