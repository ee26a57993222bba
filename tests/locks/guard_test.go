package locks

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// heapInUse returns the number of bytes in use after a garbage collection.
func heapInUse() int64 {
	var m runtime.MemStats
	for range 2 { // the second collection frees what the cleanups after the first have released
		runtime.GC()
		time.Sleep(5 * time.Millisecond)
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// C3: a nested Do or Guard costs nothing once it has returned, however many there were in one hold.
// It is not parallel: it measures the heap of the process.
func TestNestedDoAndGuardCostNothing(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	red := func(c *Client) Locker {
		var nodes []Locker
		for range 3 {
			nodes = append(
				nodes,
				b.ClientOn(testredis.Client(t, testredis.Mini(t).Addr()), WithRedLockNodeTimeout(locktest.Soon)).NewLock(b.LockName),
			)
		}
		return c.NewRedLock(nodes...)
	}
	other := b.Client()
	kinds := []struct {
		name   string
		nested int
		lock   func(c *Client) Locker
	}{
		{"lock", locktest.Full(100, 500), func(c *Client) Locker { return c.NewLock(b.LockName) }},
		{"read", locktest.Full(100, 200), func(c *Client) Locker { return c.NewRWLock(b.LockName).Read() }},
		{
			"multi",
			locktest.Full(100, 200),
			func(c *Client) Locker { return c.NewMultiLock(c.NewLock(b.LockName), c.NewFairLock("f"+b.LockName)) },
		},
		{
			"multi of two clients",
			locktest.Full(100, 200),
			func(c *Client) Locker { return c.NewMultiLock(c.NewLock(b.LockName), other.NewLock("o"+b.LockName)) },
		},
		{"redlock", locktest.Full(50, 100), red},
	}
	const most = 300 // bytes for each: a guard has 700, and the rest of the heap grows and shrinks
	type key struct{}
	for _, kind := range kinds {
		nests := map[string]func(l Locker, ctx, guarded context.Context) error{
			"Do": func(l Locker, ctx, _ context.Context) error {
				return l.Do(ctx, func(ctx context.Context) error {
					_ = ctx.Done()
					return nil
				})
			},
			"Do of a guarded ctx": func(l Locker, _, guarded context.Context) error {
				return l.Do(guarded, func(ctx context.Context) error {
					_, err := l.Guard(ctx)
					return err
				})
			},
			"Lock, Guard, Unlock": func(l Locker, ctx, _ context.Context) error {
				if err := l.Lock(ctx); err != nil {
					return err
				}
				guarded, err := l.Guard(context.WithValue(ctx, key{}, 1))
				if err == nil {
					_ = guarded.Done()
				}
				return errors.Join(err, l.Unlock(ctx))
			},
			"Guard of a ctx that ends": func(l Locker, ctx, _ context.Context) error {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				guarded, err := l.Guard(ctx)
				if err == nil {
					_ = guarded.Done()
				}
				return err
			},
		}
		for name, nest := range nests {
			if (kind.name == "read" || kind.name == "multi") && name != "Do of a guarded ctx" {
				continue // the code is the code of a lock
			}
			if kind.name == "multi of two clients" && name == "Lock, Guard, Unlock" {
				continue // each of these guards is ended by Close of one of the Clients separately
			}
			t.Run(kind.name+"/"+name, func(t *testing.T) {
				l := kind.lock(b.Client())
				ctx, cancel := context.WithCancel(ContextWithOwner(ctx))
				defer cancel()
				require.NoError(t, l.Do(ctx, func(guarded context.Context) error {
					for range 20 { // buffers, pools and scripts
						require.NoError(t, nest(l, ctx, guarded))
					}
					each := int64(most)
					for round := 0; each >= most && round < 5; round++ {
						before := heapInUse()
						for range kind.nested {
							require.NoError(t, nest(l, ctx, guarded))
						}
						each = (heapInUse() - before) / int64(kind.nested)
						t.Logf("%d bytes each", each)
					}
					assert.Less(t, each, int64(most), "bytes that are left of each")
					return nil
				}))
			})
		}
	}
}

// C3: Hold.Guard of one context costs one guard, however often it is called, and nothing after its context or the hold
// has ended. It starts no goroutine.
func TestHoldGuardCostsNothing(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	c := b.Client()
	l := c.NewLock(b.LockName)
	h := b.Hold(l)
	guards := func() int { return locktest.EngineOf(c).Probe().Look(locktest.LockOf(l), locktest.OwnerOf(h)).Guards }
	parent, cancel := context.WithCancel(ctx)
	before := runtime.NumGoroutine()
	for range 100 {
		_, err := h.Guard(parent)
		b.Must(err)
		_, err = h.Guard(ctx)
		b.Must(err)
		request, end := context.WithTimeout(parent, time.Hour)
		guarded, err := h.Guard(request)
		b.Must(err)
		end()
		locktest.Await(b, "the guard ends with its ctx", guarded.Done())
	}
	testredis.Await(b, "guards of contexts that go on", locktest.Soon, func() bool { return guards() == 2 })
	cancel()
	testredis.Await(b, "the hold forgets the guards of ended contexts", locktest.Soon, func() bool { return guards() == 1 })
	testredis.Await(b, "no goroutine is left", locktest.Soon, func() bool { return runtime.NumGoroutine() <= before })
	b.Must(h.Release(ctx))
}

// The context that Do passes to its function is canceled when the function has returned. The context of an outer Do is
// not.
func TestDoContextEndsWithItsFunction(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	l := b.Client().NewLock(b.LockName)
	var inner context.Context
	require.NoError(t, l.Do(ctx, func(outer context.Context) error {
		err := l.Do(outer, func(ctx context.Context) error {
			inner = ctx
			assert.NoError(t, ctx.Err())
			return nil
		})
		assert.ErrorIs(t, inner.Err(), context.Canceled)
		assert.ErrorIs(t, context.Cause(inner), context.Canceled)
		assert.NoError(t, outer.Err())
		return err
	}))
}
