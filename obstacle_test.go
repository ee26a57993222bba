//go:build go1.25

package relock

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/testredis"
)

// An error that ends a wait names the goroutine or owner of this process that has the lock.
func TestErrorThatEndsAWaitNamesTheHolderHere(t *testing.T) {
	t.Parallel()
	rw := func(half func(*RWLock) Locker) lockMaker {
		return func(c *Client, name string) Locker { return half(c.NewRWLock(name)) }
	}
	read := rw(func(l *RWLock) Locker { return l.Read() })
	write := rw(func(l *RWLock) Locker { return l.Write() })
	s := testredis.Start(t)
	for kind, of := range map[string]struct {
		holds, waits lockMaker
		says         string
	}{
		"lock":                     {newPlainLock, newPlainLock, "%v of this process holds it"},
		"fair":                     {newFairLock, newFairLock, "%v of this process holds it"},
		"write behind write":       {write, write, "%v of this process holds it"},
		"write behind read":        {read, write, "%v of this process holds the read lock"},
		"read behind write":        {write, read, "%v of this process holds the write lock"},
		"component of a MultiLock": {newPlainLock, newMultiLock, "%v of this process holds it"},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, s.Addr())
			c := b.client()
			ctx := context.Background()
			holder, waiter := WithOwner(ctx), WithOwner(ctx)
			held, awaited := of.holds(c, b.name), of.waits(c, b.name)
			require.NoError(t, held.Lock(holder))
			deadline, cancel := context.WithTimeout(waiter, time.Second)
			defer cancel()
			err := awaited.Lock(deadline)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			says := "context deadline exceeded: "
			if kind == "component of a MultiLock" {
				says += fmt.Sprintf("%q: ", b.name)
			}
			assert.Equal(t, fmt.Sprintf("relock: lock %s: %s"+of.says, shortName(awaited.Name()), says, ownerOf(holder)), err.Error())
			ok, err := awaited.TryLock(waiter, 500*time.Millisecond, 0)
			assert.False(t, ok)
			assert.NoError(t, err, "a held lock is no error of TryLock")
			require.NoError(t, held.Unlock(holder))
		})
	}
}

// An error that ends a wait says that another process has the lock, and how much of its lease is left after
// the last answer of Redis. A caller that waited behind another caller gets the same error.
func TestErrorThatEndsAWaitNamesTheHolderElsewhere(t *testing.T) {
	for name, fails := range map[string]func(ctx context.Context, e *bubbleEngine) (context.Context, func()){
		"ctx": func(ctx context.Context, _ *bubbleEngine) (context.Context, func()) {
			ctx, cancel := context.WithCancel(ctx)
			return ctx, cancel
		},
		"Close": func(ctx context.Context, e *bubbleEngine) (context.Context, func()) {
			return ctx, func() { _ = e.close() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newBubbleEngine(t)
				e.redis.Records["x"] = &fakeredis.Record{Field: "other:1:1", Levels: 1, Expires: time.Now().Add(25 * time.Second)}
				errs := make(chan error, 2)
				ctx, end := fails(context.Background(), e)
				for o := range owner(2) {
					go func() {
						_, err := e.lockWith(ctx, o+1, request{wait: forever})
						errs <- err
					}()
					synctest.Wait()
				}
				time.Sleep(4 * time.Second)
				asked := e.redis.Count("acquire")
				end()
				for range 2 {
					err := <-errs
					require.Error(t, err)
					assert.Contains(t, err.Error(), ": another process (or Client) holds it, 21s of its lease left")
					if name == "ctx" {
						assert.ErrorIs(t, err, context.Canceled)
					} else {
						assert.ErrorIs(t, err, ErrClosed)
					}
				}
				assert.Equal(t, asked, e.redis.Count("acquire"), "a request was sent for the error")
			})
		})
	}
}

// An error that ends a wait says nothing about a holder that this process does not know.
func TestErrorThatEndsAWaitSaysOnlyWhatIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		e.redis.Latency = 2 * time.Second
		var errs [2]error
		var all sync.WaitGroup
		for i := range errs {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(2-i)*time.Second)
				defer cancel()
				_, errs[i] = e.lockWith(ctx, owner(i+1), request{wait: forever})
			})
			synctest.Wait()
		}
		all.Wait()
		assert.EqualError(t, errs[0], "context deadline exceeded")
		assert.EqualError(t, errs[1], "context deadline exceeded: goroutine 1 of this process is in front, and Redis has not answered it")
		time.Sleep(time.Minute)
	})
}

// The error of a MultiLock names the lock in the way, also if one script acquires all of its locks.
func TestErrorThatEndsAWaitOfAMultiLockNamesTheLockInTheWay(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	c, other := b.client(), b.client()
	b.must(other.NewLock(b.name+"-2").LockLease(ctx, time.Minute))
	deadline, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	err := c.NewMultiLock(c.NewLock(b.name+"-1"), c.NewLock(b.name+"-2"), c.NewFairLock(b.name+"-3")).Lock(deadline)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Regexp(t, `^relock: lock "[^"]*": context deadline exceeded: "`+b.name+`-2": another process \(or Client\) holds it, (5\d(\.\d)?|1m0)s of its lease left$`, err.Error())

	b.must(other.NewLock(b.name + "-2").Unlock(ctx))
}

// The error of a RedLock says once that other owners hold too many of its locks.
func TestErrorThatEndsAWaitOfARedLockSaysOthersHoldIt(t *testing.T) {
	red := newRedBench(t)
	ctx := context.Background()
	held, waits := red.lock(), red.lock()
	red.must(held.Lock(ctx))
	short, end := context.WithTimeout(WithOwner(ctx), 2*time.Second)
	defer end()
	err := waits.Lock(short)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Regexp(t, `^relock: lock "[^"]*": context deadline exceeded: other owners hold too many of its locks$`, err.Error())
	red.must(held.Unlock(ctx))
}
