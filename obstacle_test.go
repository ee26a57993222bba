//go:build go1.25

package relock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/engine"
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
			assert.Equal(t, fmt.Sprintf("relock: lock %s: %s"+of.says, shortName(awaited.Name()), says, engine.OwnerOf(holder)), err.Error())
			ok, err := awaited.TryLock(waiter, 500*time.Millisecond, 0)
			assert.False(t, ok)
			assert.NoError(t, err, "a held lock is no error of TryLock")
			require.NoError(t, held.Unlock(holder))
		})
	}
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
