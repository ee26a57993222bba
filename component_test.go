package relock

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
)

func TestMultiLockRefusesWrongSetsOfLocks(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	c, other := b.client(), b.client()
	var none *Lock
	elsewhere := b.clientOn(testredis.Client(t, b.addr, func(o *redis.Options) { o.DB = 1 }))
	stub := &stubLocker{Locker: c.NewLock(b.name + "-stub")}
	for name, l := range map[string]*MultiLock{
		"none":              c.NewMultiLock(),
		"nil":               c.NewMultiLock(c.NewLock(b.name), nil),
		"typed nil":         c.NewMultiLock(c.NewLock(b.name), none),
		"no lock":           c.NewMultiLock(c.NewLock(b.name), &Lock{}),
		"twice":             c.NewMultiLock(c.NewLock(b.name), c.NewLock(b.name+"-2"), c.NewLock(b.name)),
		"twice, fenced":     c.NewMultiLock(c.NewLock(b.name), c.NewLock(b.name, Fenced())),
		"of another client": c.NewMultiLock(c.NewLock(b.name), other.NewLock(b.name)),
		"of another kind":   c.NewMultiLock(c.NewLock(b.name), c.NewFairLock(b.name)),
		"in another one":    c.NewMultiLock(c.NewLock(b.name), c.NewMultiLock(c.NewLock(b.name))),
		"read and plain":    c.NewMultiLock(newReadLock(c, b.name), c.NewLock(b.name)),
		"plain and write":   c.NewMultiLock(c.NewLock(b.name), newWriteLock(c, b.name)),
		"foreign twice":     c.NewMultiLock(stub, stub),
		"a bad one":         c.NewMultiLock(c.NewLock(b.name), c.NewLock("")),
		"a bad many":        c.NewMultiLock(c.NewLock(b.name), c.NewMultiLock()),
		"no client":         (*Client)(nil).NewMultiLock(c.NewLock(b.name)),
		"made by hand":      {},
	} {
		for method, err := range map[string]error{
			"Lock":    l.Lock(ctx),
			"TryLock": second(l.TryLock(ctx, 0, 0)),
			"Unlock":  l.Unlock(ctx),
			"Guard":   second(l.Guard(ctx)),
			"IsHeld":  second(l.IsHeld(ctx)),
			"TTL":     second(l.TTL(ctx)),
		} {
			assert.ErrorIs(t, err, ErrInvalid, "%s: %s", name, method)
		}
	}
	for _, l := range []*MultiLock{
		c.NewMultiLock(c.NewLock(b.name), elsewhere.NewLock(b.name)),    // of another server
		c.NewMultiLock(newReadLock(c, b.name), newWriteLock(c, b.name)), // both halves
	} {
		b.triesFor(ctx, l, time.Second, true)
		b.must(l.Unlock(ctx))
	}
}

// The order is by record, whatever kind of lock: no two owners wait for each other.
func TestMultiLocksAreTakenInOneOrder(t *testing.T) {
	t.Parallel()
	s, s2 := testredis.Start(t), testredis.Start(t)
	for kind, pair := range map[string]func(c, c2 *Client, x, y string) (Locker, Locker){
		"halves": func(c, _ *Client, x, y string) (Locker, Locker) { return newWriteLock(c, x), newReadLock(c, y) },
		"fair":   func(c, _ *Client, x, y string) (Locker, Locker) { return c.NewFairLock(x), c.NewLock(y) },
		"plain":  func(c, c2 *Client, x, y string) (Locker, Locker) { return c.NewLock(x), c2.NewLock(y) },
		"red": func(c, c2 *Client, x, y string) (Locker, Locker) {
			stub := func(name string) Locker { return stubLocker{Locker: c.NewLock(name)} }
			first := c.NewRedLock(c.NewLock("same"+x), stub(x+"-1"), stub(x+"-2"))
			second := c.NewRedLock(c2.NewLock("same"+x), stub(x+"-3"), stub(x+"-4"))
			if x > y {
				return second, first
			}
			return first, second
		},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, s.Addr())
			b2 := newBench(t, s2.Addr())
			ctx, cancel := context.WithTimeout(context.Background(), 6*soon)
			defer cancel()
			var all sync.WaitGroup
			for i := range 4 {
				c, c2 := b.client(), b2.client()
				x, y := b.name+"-x", b.name+"-y"
				if i%2 == 1 {
					x, y = y, x
				}
				if kind == "red" {
					x = b.name + "-x"
				}
				one, other := pair(c, c2, x, y)
				if kind == "red" && i%2 == 1 {
					one, other = other, one
				}
				waitgroup.Go(&all, func() {
					for range 15 {
						l := c.NewMultiLock(one, other)
						if !assert.NoError(b, l.Lock(ctx)) {
							return
						}
						assert.NoError(b, l.Unlock(ctx))
					}
				})
			}
			all.Wait()
			for _, key := range b2.rdb.Keys(context.Background(), "*").Val() {
				testredis.Await(b, key+" is gone", soon, func() bool { return isLeftFree(b2.rdb, key) || b2.rdb.Exists(context.Background(), key).Val() == 0 })
			}
		})
	}
}

func TestRedLockRefusesWrongSetsOfLocks(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	b.opts = []Option{WithNodeTimeout(soon)} // all nodes are needed
	ctx := context.Background()
	c, other := b.client(), b.client()
	onServer := func() *Client { return b.clientOn(testredis.Client(t, testredis.Mini(t).Addr())) }
	c2, c3, c4 := onServer(), onServer(), onServer()
	n := b.name
	for name, l := range map[string]*RedLock{
		"none":               c.NewRedLock(),
		"two":                c.NewRedLock(c.NewLock(n), c2.NewLock(n)),
		"nil":                c.NewRedLock(c.NewLock(n), c2.NewLock(n), nil),
		"of one client":      c.NewRedLock(c.NewLock(n), c2.NewLock(n), c.NewLock(n+"2")),
		"on one server":      c.NewRedLock(c.NewLock(n), c2.NewLock(n), other.NewLock(n+"2")),
		"a bad one":          c.NewRedLock(c.NewLock(n), c2.NewLock(n), c3.NewLock("")),
		"no client":          (*Client)(nil).NewRedLock(c.NewLock(n), c2.NewLock(n), c3.NewLock(n)),
		"a bad MultiLock":    c.NewRedLock(c.NewLock(n), c2.NewLock(n), c3.NewMultiLock()),
		"made by hand":       {},
		"on three databases": c.NewRedLock(c.NewLock(n), c2.NewLock(n), b.clientOn(testredis.Client(t, b.addr, func(o *redis.Options) { o.DB = 1 })).NewLock(n)),
		"on one, in many":    c.NewRedLock(c.NewLock(n), c2.NewLock(n), c3.NewMultiLock(c3.NewLock(n), c2.NewLock(n+"2"))),
		"a RedLock of two":   c.NewRedLock(c.NewLock(n), c2.NewLock(n), c3.NewRedLock(c3.NewLock(n), c4.NewLock(n))),
	} {
		for method, err := range map[string]error{
			"Lock": l.Lock(ctx), "Unlock": l.Unlock(ctx), "IsHeld": second(l.IsHeld(ctx)), "Force": second(l.ForceUnlock(ctx)),
		} {
			assert.ErrorIs(t, err, ErrInvalid, "%s: %s", name, method)
		}
	}
	// Four are good, and need three; other kinds are, too.
	l := c.NewRedLock(c.NewFairLock(n), newWriteLock(c2, n), c3.NewMultiLock(c3.NewLock(n), c3.NewLock(n+"2")), c4.NewLock(n, Fenced()))
	b.must(l.Lock(ctx))
	b.must(l.Lock(ctx))
	b.holds(l, 2)
	b.must(l.Unlock(ctx))
	guarded, err := l.Guard(ctx)
	b.must(err)
	for i, m := range []Locker{c.NewFairLock(n), newWriteLock(c2, n)} {
		freed, err := m.ForceUnlock(ctx)
		require.NoError(t, err)
		assert.True(t, freed)
		if i == 0 {
			assert.NoError(t, guarded.Err(), "three of four are left")
		}
	}
	await(b, "the guard ends", guarded.Done())
	b.mustBe(l.Unlock(ctx), ErrLockLost)
}
