//go:build go1.25

package relock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

// shutdownLater calls Shutdown on a goroutine, and returns its error and when it returned.
func (e *bubbleEngine) shutdownLater(ctx context.Context) (errs <-chan error) {
	got := make(chan error, 1)
	go func() { got <- e.shutdown(ctx) }()
	synctest.Wait()
	return got
}

func TestShutdownWaitsForTheLastUnlock(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		e.lock(1)
		guarded := e.guarded(1)
		waiter := make(chan error, 1)
		go func() {
			_, err := e.lockWith(context.Background(), 2, request{wait: forever})
			waiter <- err
		}()
		synctest.Wait()
		start := time.Now()
		done := e.shutdownLater(context.Background())
		assert.ErrorIs(t, <-waiter, ErrClosed, "who waits")
		assert.ErrorIs(t, context.Cause(guarded), ErrClosed, "the guard")
		for o := owner(1); o < 3; o++ {
			_, err := e.lockWith(context.Background(), o, request{})
			assert.ErrorIs(t, err, ErrClosed, "%v asks", o)
		}
		_, err := e.guard(context.Background(), newFakeLock(e.redis, "x"), 1)
		assert.ErrorIs(t, err, ErrClosed, "another guard")
		assert.Zero(t, time.Since(start), "time taken")
		time.Sleep(time.Minute)
		assert.NotEmpty(t, e.redis.Holder("x"), "the record is not renewed")
		e.unlock(1)
		synctest.Wait()
		assert.Empty(t, done, "Shutdown returns before the last Unlock")
		e.unlock(1)
		assert.NoError(t, <-done)
		assert.Equal(t, time.Minute, time.Since(start), "time taken")
		assert.Empty(t, e.redis.Holder("x"))
		assert.NoError(t, e.shutdown(context.Background()), "Shutdown after Close")
	})
}

// When ctx ends, Shutdown says what is left, and is Close: nothing is renewed any more.
func TestShutdownSaysWhatIsLeft(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		ok, err := e.acquire(context.Background(), newFakeLock(e.redis, "other"), -7, request{wait: forever})
		require.True(t, ok)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		err = e.shutdown(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		for _, text := range []string{"relock: shutdown: ", "2 locks are still held", "x by goroutine 1", "other by owner 7"} {
			assert.ErrorContains(t, err, text)
		}
		time.Sleep(31 * time.Second)
		assert.Empty(t, e.redis.Holder("x"), "it is renewed after Shutdown")
		assert.ErrorIs(t, e.unlockErr(1), ErrLockLost)
		assert.ErrorIs(t, e.release(context.Background(), newFakeLock(e.redis, "other"), -7), ErrLockLost)
	})
}

func TestShutdownEndsWithClose(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		first, second := e.shutdownLater(context.Background()), e.shutdownLater(context.Background())
		assert.NoError(t, e.close())
		assert.ErrorIs(t, <-first, ErrClosed)
		assert.ErrorIs(t, <-second, ErrClosed)
		e.unlock(1)
	})
}

// All that wait in a Shutdown return when the last hold has ended, also one that is lost or runs out.
func TestShutdownDoesNotWaitForLostHolds(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		ok, err := e.acquire(context.Background(), newFakeLock(e.redis, "explicit"), 1, request{wait: forever, lease: time.Second})
		require.True(t, ok)
		require.NoError(t, err)
		first, second := e.shutdownLater(context.Background()), e.shutdownLater(context.Background())
		time.Sleep(2 * time.Second)
		assert.Empty(t, first, "it returns while a lock is held")
		e.redis.Set(func() { clear(e.redis.Records) })
		assert.NoError(t, <-first)
		assert.NoError(t, <-second)
		assert.ErrorIs(t, e.unlockErr(1), ErrLockLost)
	})
}

// An attempt that is under way when Shutdown begins holds nothing.
func TestShutdownUndoesAnAttemptUnderWay(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.Latency = 400 * time.Millisecond
		got := make(chan error, 1)
		go func() {
			_, err := e.lockWith(context.Background(), 1, request{wait: forever})
			got <- err
		}()
		time.Sleep(time.Millisecond)
		assert.NoError(t, e.shutdown(context.Background()))
		assert.ErrorIs(t, <-got, ErrClosed)
		assert.Empty(t, e.redis.Holder("x"))
	})
}

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
	<-c.engine.untilRefused(ctx, time.Time{}).Closed
}
