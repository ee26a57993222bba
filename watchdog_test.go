package relock

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

// A hook that panics in a renewal makes that renewal fail, and does not end the process.
func TestHookPanicBehindARenewal(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	rdb := testredis.Client(t, b.addr)
	var held, panicked atomic.Bool
	rdb.AddHook(processHook(func(send func() error) error {
		if held.Load() && panicked.CompareAndSwap(false, true) {
			panic("a hook")
		}
		return send()
	}))
	l := b.clientOn(rdb, WithWatchdogTimeout(time.Second)).NewLock(b.name)
	ctx := context.Background()
	b.must(l.Lock(ctx))
	guarded, err := l.Guard(ctx)
	b.must(err)
	held.Store(true)
	stays(b, "the lock is lost", guarded.Done(), 2*time.Second)
	require.True(t, panicked.Load())
	b.must(l.Unlock(ctx))
}

// Renewals are sent in pipelines.
func TestRenewalsArePipelined(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		rdb := testredis.Client(t, addr)
		pipes := &pipeCounter{}
		rdb.AddHook(pipes)
		c := b.clientOn(rdb, WithWatchdogTimeout(5*time.Second))
		const many = 100
		for i := range many {
			b.must(c.NewLock(fmt.Sprint(b.name, "-", i)).Lock(ctx))
		}
		testredis.Await(t, "everything is renewed twice", 4*soon, func() bool { return pipes.calls() >= 2*many })
		n, calls := pipes.count(), pipes.calls()
		assert.GreaterOrEqual(t, calls, 4*n, "%d renewals in %d pipelines", calls, n)
		b.must(b.rdb.ScriptFlush(ctx).Err())
		before := pipes.calls()
		testredis.Await(
			t,
			"everything is renewed after a flush",
			4*soon,
			func() bool { return pipes.calls() >= before+2*many },
		)
		for i := range many {
			b.must(c.NewLock(fmt.Sprint(b.name, "-", i)).Unlock(ctx))
		}
	})
}
