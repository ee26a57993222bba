package relock

// Processes that wait for a fair lock and crash.
//
// Rules: a crashed waiter blocks the others for seconds, and what its requests have done when they run late goes. What
// the scripts do with dead waiters stands in internal/lua/testdata/fair_dead.txt and fair_unheard.txt.

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
)

// A process that has crashed, at the head of the queue or behind it, is evicted within seconds.
func TestFairCrashedWaitersAreEvictedInSeconds(t *testing.T) {
	b := newFaultBench(t)
	q := servedQueue{bench: b.bench}
	ctx := context.Background()
	held := b.direct.NewFairLock(b.name)
	b.must(held.Lock(ctx))
	crashing, cancel := context.WithCancel(ctx)
	defer cancel()
	doomed := b.shaky(WithWatchdogTimeout(30 * time.Second)) // so that its waiters do not give up before they are evicted
	alive := b.client()
	q.join(crashing, doomed.NewFairLock(b.name), "crashed 1")
	q.join(ctx, alive.NewFairLock(b.name), "1")
	q.join(crashing, doomed.NewFairLock(b.name), "crashed 2")
	q.join(ctx, alive.NewFairLock(b.name), "2")
	wishes, last := b.wishes(), b.queue()[2]
	testredis.Await(
		t,
		"the crashed have had an answer, and asked again",
		soon,
		func() bool { return b.wishes()[last] != wishes[last] },
	)
	b.proxy.BlackHole(true)
	start := time.Now()
	testredis.Await(
		t,
		"the dead are evicted while the lock is held",
		record.FairLife+2*soon,
		func() bool { return len(b.queue()) == 2 },
	)
	assert.GreaterOrEqual(
		t,
		time.Since(start),
		record.FairLife-record.FairHeartbeat-500*time.Millisecond,
		"the dead were evicted too early",
	)
	b.must(held.Unlock(ctx))
	testredis.Await(t, "the living are served", 2*soon, func() bool { return len(q.served()) == 2 })
	cancel()
	b.proxy.BlackHole(false)
	q.wantOrder("1", "2")
}

// The lock is free and the process at the head of the queue has crashed.
func TestFairDeadHeadOfAFreeLockIsEvicted(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	held := b.direct.NewFairLock(b.name)
	b.must(held.Lock(ctx))
	crashing, cancel := context.WithCancel(ctx)
	got := b.startWaiter(crashing, b.shaky(WithWatchdogTimeout(12*time.Second)).NewFairLock(b.name))
	b.awaitQueue(1)
	b.proxy.BlackHole(true)
	b.must(held.Unlock(ctx)) // its message reaches no live waiter
	start := time.Now()
	next := b.direct.NewFairLock(b.name)
	b.tries(next, false) // it is not known to have crashed yet
	b.must(next.Lock(ctx))
	assert.LessOrEqual(t, time.Since(start), record.FairLife+2*record.FairHeartbeat+soon)
	b.must(next.Unlock(ctx))
	cancel()
	b.proxy.BlackHole(false)
	b.mustBe(await(b.bench, "the dead one comes back", got), context.Canceled)
	// All requests that it has sent meanwhile arrive now, in any order, and some of them after their rollback: the
	// record of such a request expires with its lease, or with the waiter's last heartbeat.
	testredis.Await(b, "the records of late requests are gone", 4*soon, func() bool {
		if ok, err := next.TryLock(ctx, 0, 0); ok || err != nil {
			b.must(err)
			b.must(next.Unlock(ctx))
		}
		return len(b.keys()) == 0
	})
}
