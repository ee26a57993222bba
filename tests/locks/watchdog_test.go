package locks

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A hook that panics in a renewal makes that renewal fail, and does not end the process.
func TestHookPanicBehindARenewal(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	rdb := testredis.Client(t, b.Addr)
	var held, panicked atomic.Bool
	rdb.AddHook(locktest.ProcessHook(func(send func() error) error {
		if held.Load() && panicked.CompareAndSwap(false, true) {
			panic("a hook")
		}
		return send()
	}))
	l := b.ClientOn(rdb, WithWatchdogTimeout(time.Second)).NewLock(b.LockName)
	b.Must(l.Lock(ctx))
	guarded, err := l.Guard(ctx)
	b.Must(err)
	held.Store(true)
	locktest.Stays(b, "the lock is lost", guarded.Done(), 2*time.Second)
	require.True(t, panicked.Load())
	b.Must(l.Unlock(ctx))
}

// Renewals are sent in pipelines.
func TestRenewalsArePipelined(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		rdb := testredis.Client(t, addr)
		pipes := &locktest.PipeCounter{}
		rdb.AddHook(pipes)
		c := b.ClientOn(rdb, WithWatchdogTimeout(5*time.Second))
		const many = 100
		for i := range many {
			b.Must(c.NewLock(fmt.Sprint(b.LockName, "-", i)).Lock(ctx))
		}
		renewedTwice := func() (calls, n int) {
			calls, n = pipes.Calls(), pipes.Count() // not 0 if the machine is busy: the first locks have been renewed
			testredis.Await(t, "renewals", 4*locktest.Soon, func() bool { return pipes.Calls() >= calls+2*many })
			return pipes.Calls() - calls, pipes.Count() - n
		}
		calls, n := renewedTwice()
		assert.GreaterOrEqual(t, calls, 4*n, "%d renewals in %d pipelines", calls, n)
		b.Must(b.Rdb.ScriptFlush(ctx).Err())
		renewedTwice()
		for i := range many {
			b.Must(c.NewLock(fmt.Sprint(b.LockName, "-", i)).Unlock(ctx))
		}
	})
}
