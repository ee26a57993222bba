package locks

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A Client for which no label was passed has the host name and the process ID as its label. It writes nothing while its
// locks are free and short.
func TestDefaultLabelIsWrittenOnceSomebodyMayLook(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	require.NoError(t, err)
	label := fmt.Sprintf("%s:%d", host, os.Getpid())
	for name, makes := range map[string]func(c *Client, name string) Locker{
		"lock":      func(c *Client, name string) Locker { return c.NewLock(name) },
		"fair":      func(c *Client, name string) Locker { return c.NewFairLock(name) },
		"write":     func(c *Client, name string) Locker { return c.NewRWLock(name).Write() },
		"semaphore": func(c *Client, name string) Locker { return c.NewSemaphore(name, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := locktest.NewBench(t, testredis.Mini(t).Addr())
			holder, waiter := b.Client(locktest.Unlabeled), b.Client(locktest.Unlabeled)
			written := func(c *Client) bool { return b.Rdb.Exists(ctx, record.ClientKey(c.ID())).Val() == 1 }
			l := makes(holder, b.LockName)
			began := time.Now()
			for range 5 {
				require.NoError(t, l.Do(ctx, func(context.Context) error { return nil }))
			}
			require.NoError(t, l.Lock(ctx))
			early := written(holder)
			if time.Since(began) < time.Second { // otherwise this machine has paused, and one of the holds was old
				assert.False(t, early, "before the hold is old")
			}
			waits, stop := context.WithCancel(ctx)
			ended := make(chan error)
			go func() { ended <- makes(waiter, b.LockName).Lock(waits) }()
			testredis.Await(b, "both are written", locktest.Soon, func() bool { return written(waiter) && written(holder) })
			i, err := holder.Inspect(ctx, b.LockName)
			require.NoError(t, err)
			require.Len(t, i.Holders, 1)
			assert.Equal(t, label, i.Holders[0].Label)
			if len(i.Waiters) > 0 { // a semaphore has waiters that are not listed
				assert.Equal(t, label, i.Waiters[0].Label)
			}
			stop()
			assert.ErrorIs(t, <-ended, context.Canceled)
			require.NoError(t, l.Unlock(ctx))
		})
	}
}

// The default label is no part of an error, which may reach a client of the service, and by which errors are grouped.
func TestDefaultLabelIsNotInErrors(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	l := b.Client(locktest.Unlabeled).NewLock(b.LockName)
	require.NoError(t, l.Lock(ctx))
	ctx, cancel := context.WithTimeout(ContextWithOwner(ctx), 100*time.Millisecond)
	defer cancel()
	assert.ErrorContains(t, l.Lock(ctx), "of this process holds it")
	require.NoError(t, l.Unlock(context.Background()))
}
