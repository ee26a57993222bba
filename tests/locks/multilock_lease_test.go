package locks

// How long the locks of a MultiLock last.
//
// Rules: there is one deadline, and one lease, which starts for all locks when the last one is acquired: they end
// together. At least half of it is left when the caller gets the locks, however late the answers are.

import (
	"context"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// One deadline applies to all locks, and the locks that were acquired are released.
func TestMultiLockHasOneDeadlineForAll(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	c, other := b.Client(), b.Client()
	kinds := func(c *Client) []Locker {
		return []Locker{c.NewLock(b.LockName + "-1"), c.NewFairLock(b.LockName + "-2"), locktest.NewWriteLock(c, b.LockName+"-3")}
	}
	l := c.NewMultiLock(kinds(c)...)
	const wait = time.Second
	for _, busy := range kinds(other) {
		b.Must(busy.Lock(ctx))
		start := time.Now()
		ok, err := l.TryLock(ctx, wait, 0)
		took := time.Since(start)
		require.NoError(t, err)
		assert.False(t, ok)
		assert.GreaterOrEqual(t, took, wait)
		assert.LessOrEqual(t, took, wait+locktest.Soon)
		deadline, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		b.MustBe(l.Lock(deadline), context.DeadlineExceeded)
		cancel()
		b.Tries(l, false)
		for _, free := range kinds(other) {
			if free.Name() == busy.Name() {
				continue
			}
			triesFor(b, ctx, free, locktest.Soon, true) // it was released
			b.Must(free.Unlock(ctx))
		}
		b.Must(busy.Unlock(ctx))
	}
}

// An additional acquire is valid no longer than its lease, which starts before the request is sent, even for the last
// lock.
func TestMultiLockReentryIsValidNoLongerThanItsLease(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	proxy := testredis.NewProxy(t, b.Addr)
	c := b.ClientOn(proxy.Client())
	last := b.LockName + "-2"
	l := c.NewMultiLock(c.NewLock(b.LockName+"-1"), c.NewFairLock(last))
	b.Must(l.LockLease(ctx, 2500*time.Millisecond))
	proxy.Latency(200 * time.Millisecond)
	err := l.LockLease(ctx, 2*time.Second) // the steps take half of that
	proxy.Latency(0)
	b.Must(err)
	guarded, err := l.Guard(ctx)
	b.Must(err)
	rival := b.Client().NewLock(last)
	b.Must(rival.Lock(ctx))
	assert.Error(t, guarded.Err(), "a rival has a lock that is still trusted")
	b.Must(rival.Unlock(ctx))
}
