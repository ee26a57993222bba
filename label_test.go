package relock

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
)

// unlabeled is the default of WithLabel, which the Clients of most tests do not have.
func unlabeled(o *options) { o.label, o.labels = "", false }

// A Client for which no label was passed has the host name and the process ID as its label. It writes nothing while its
// locks are free and short.
func TestDefaultLabelIsWrittenOnceSomebodyMayLook(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
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
			b := newBench(t, testredis.Mini(t).Addr())
			holder, waiter := b.client(unlabeled), b.client(unlabeled)
			written := func(c *Client) bool { return b.rdb.Exists(ctx, record.LabelKey(c.ID())).Val() == 1 }
			l := makes(holder, b.name)
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
			go func() { ended <- makes(waiter, b.name).Lock(waits) }()
			testredis.Await(b, "both are written", soon, func() bool { return written(waiter) && written(holder) })
			i, err := holder.Inspect(ctx, b.name)
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
	b := newBench(t, testredis.Mini(t).Addr())
	l := b.client(unlabeled).NewLock(b.name)
	require.NoError(t, l.Lock(context.Background()))
	ctx, cancel := context.WithTimeout(ContextWithOwner(context.Background()), 100*time.Millisecond)
	defer cancel()
	assert.ErrorContains(t, l.Lock(ctx), "of this process holds it")
	require.NoError(t, l.Unlock(context.Background()))
}

// A host name that cannot be a label is left out.
func TestDefaultLabelWithoutAHost(t *testing.T) {
	for host, named := range map[string]bool{
		"orders-7": true, "": false, "a\nb": false, "\xff": false, strings.Repeat("x", longestLabel): false,
	} {
		label := defaultLabel(host)
		assert.Equal(t, named, strings.HasPrefix(label, host+":"), "%q", host)
		assert.Contains(t, label, fmt.Sprint(os.Getpid()))
		assert.NoError(t, checkLabel(label))
	}
}

// noPermission is what Redis answers to a user who lacks a permission.
type noPermission struct{}

func (noPermission) Error() string { return "NOPERM this user has no permissions to run the command" }
func (noPermission) RedisError()   {}

// refuser is a hook that refuses some commands, and counts them.
type refuser struct {
	is    func(redis.Cmder) bool
	tries atomic.Int64
}

func (r *refuser) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *refuser) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !r.is(cmd) {
			return next(ctx, cmd)
		}
		r.tries.Add(1)
		cmd.SetErr(noPermission{})
		return noPermission{}
	}
}

func (r *refuser) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if r.is(cmd) {
				r.tries.Add(1)
				cmd.SetErr(noPermission{})
				return noPermission{}
			}
		}
		return next(ctx, cmds)
	}
}

// A user who may not look for the holders of locks, or read their labels, tries it once for all warnings.
func TestHolderIsNotLookedForAgainWithoutPermission(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, is := range map[string]func(redis.Cmder) bool{
		"labels": func(cmd redis.Cmder) bool { return cmd.Name() == "hmget" },
		"inspect": func(cmd redis.Cmder) bool {
			return bytes.Contains([]byte(fmt.Sprint(cmd.Args())), []byte("inspect-me"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, testredis.Mini(t).Addr())
			lock := b.client().NewLock("inspect-me")
			require.NoError(t, lock.Lock(ctx))
			r := &refuser{is: is}
			rdb := testredis.Client(b, b.addr)
			rdb.AddHook(r)
			c := b.clientOn(rdb)
			describe := func() { c.describeHolder(ctx, engine.Subject{Name: "inspect-me", Type: string(TypeLock)}) }
			describe()
			once := r.tries.Load()
			assert.NotZero(t, once)
			for range 5 {
				describe()
			}
			assert.Equal(t, once, r.tries.Load())
			require.NoError(t, lock.Unlock(ctx))
		})
	}
}
