//go:build go1.25

package relock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

// Whatever happens at the same time, Shutdown ends when nothing is held, and leaves no record.
func TestShutdownAmongCallersOfAllTypes(t *testing.T) {
	t.Parallel()
	addr := testredis.Start(t).Addr()
	for range full(5, 40) {
		b := newBench(t, addr)
		c := b.client()
		rw := c.NewRWLock(b.name + ":rw")
		locks := []Locker{c.NewLock(b.name), c.NewLock(b.name+":fenced", Fenced()), c.NewFairLock(b.name + ":fair"), rw.Read(), rw.Write(),
			c.NewMultiLock(c.NewLock(b.name), c.NewFairLock(b.name+":fair"))}
		var wg sync.WaitGroup
		for i := range 4 * len(locks) {
			wg.Go(func() {
				l := locks[i%len(locks)]
				for {
					err := l.Lock(context.Background())
					if errors.Is(err, ErrClosed) {
						return
					}
					if !assert.NoError(b, err) {
						return
					}
					assert.NoError(b, l.Unlock(context.Background()))
				}
			})
		}
		testredis.Await(b, "they work", soon, func() bool { return c.engine.Probe().Stats().Fields > 50 })
		assert.NoError(b, c.Shutdown(context.Background()))
		wg.Wait()
	}
}

func TestShutdownLetsHoldersFinish(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := newBench(t, testredis.Start(t).Addr())
	c := b.client()
	l := c.NewLock(b.name, Fenced())
	require.NoError(t, l.Lock(ctx))
	guarded, err := l.Guard(ctx)
	require.NoError(t, err)
	var nilCtx context.Context
	assert.ErrorIs(t, c.Shutdown(nilCtx), ErrInvalid)
	done := make(chan error, 1)
	go func() { done <- c.Shutdown(ctx) }()
	<-guarded.Done()
	_, err = l.Token(ctx)
	require.NoError(t, err)
	levels, err := l.HoldCount(ctx)
	require.NoError(t, err)
	assert.Equal(t, 1, levels)
	require.NoError(t, l.Unlock(ctx))
	assert.NoError(t, <-done)
	_, err = l.IsLocked(ctx)
	assert.ErrorIs(t, err, ErrClosed)
	assert.NoError(t, (*Client)(nil).Shutdown(ctx))
}

// A holder that finishes its work during Shutdown may extend its lease, of a MultiLock, too.
func TestShutdownLetsHoldersExtend(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	c := b.client()
	for _, l := range []Acquirer{c.NewLock(b.name), c.NewMultiLock(c.NewLock(b.name+"-1"), c.NewFairLock(b.name+"-2"))} {
		hold, ok, err := l.TryAcquire(ctx, soon, time.Minute)
		b.must(err)
		require.True(b, ok)
		defer func() { b.must(hold.Release(ctx)) }()
		defer func() { b.must(hold.Extend(ctx, time.Minute)) }()
	}
	go func() { _ = c.Shutdown(ctx) }()
	<-c.engine.UntilRefused(ctx, time.Time{}).Closed
}
