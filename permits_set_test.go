package relock

// SetPermits: its tries that run late.

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
)

// The first try of SetPermits hangs, and another one is answered. When the first one runs after all, the number has
// been set again, and stays.
func TestSetPermitsThatRunsLateChangesNothing(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	s, operator := b.clientOn(b.proxy.Client()).NewSemaphore(b.name, 4), b.direct.NewSemaphore(b.name, 4)
	b.must(s.SetPermits(ctx, 4))
	held := b.proxy.On(calls(semaphoreSet), testredis.HoldRequest)
	b.must(s.SetPermits(ctx, 9))
	<-held.Fired()
	b.must(operator.SetPermits(ctx, 2))
	before := b.scriptRuns()
	held.Release()
	testredis.Await(t, "the first try runs", soon, func() bool { return b.scriptRuns() > before })
	n, err := operator.Permits(ctx)
	b.must(err)
	assert.Equal(t, 2, n, "permits after a late SetPermits(9)")
	b.forget()
}

// A SetPermits that Redis has not answered sets nothing any more once Redis answers again.
func TestSetPermitsWithoutAnAnswerIsEnded(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	c := b.clientOn(b.proxy.Client())
	s, operator := c.NewSemaphore(b.name, 4), b.direct.NewSemaphore(b.name, 4)
	b.must(s.SetPermits(ctx, 4))
	b.awaitTombstone(false)
	held := b.proxy.On(calls(semaphoreSet), testredis.HoldRequest).Times(testredis.Always)
	deadline, cancel := context.WithCancel(ctx)
	go func() {
		<-held.Fired()
		cancel()
	}()
	b.mustBe(s.SetPermits(deadline, 9), context.Canceled)
	b.awaitTombstone(true)
	b.must(operator.SetPermits(ctx, 2))
	before := b.scriptRuns()
	held.Release()
	testredis.Await(t, "the try runs", soon, func() bool { return b.scriptRuns() > before })
	n, err := operator.Permits(ctx)
	b.must(err)
	assert.Equal(t, 2, n, "permits after a late SetPermits(9)")
	b.forget()
}

// SetPermits leaves nothing in Redis if none of its tries can run late.
func TestSetPermitsLeavesNoTombstone(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	b.must(b.client().NewSemaphore(b.name, 4).SetPermits(ctx, 4))
	b.awaitTombstone(false)
}

// awaitTombstone waits until the line has a tombstone, or none.
func (b *bench) awaitTombstone(want bool) {
	b.Helper()
	testredis.Await(b, "tombstones in the line", soon, func() bool {
		return b.rdb.HExists(context.Background(), record.LineKey(b.name), "over").Val() == want
	})
}
