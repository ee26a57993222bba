package locks

// Processes that wait for a fair lock and crash.
//
// Rules: a crashed waiter blocks the others for seconds, and what its requests have done when they run late goes. What
// the scripts do with dead waiters stands in internal/lua/testdata/fair_dead.txt and fair_unheard.txt.

import (
	"context"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
)

// A process that has crashed, at the head of the queue or behind it, does not delay the others once its requests are overdue, although
// Redis still has its connection.
func TestFairCrashedWaitersDelayNobody(t *testing.T) {
	b := locktest.NewFaultBench(t)
	q := servedQueue{Bench: b.Bench}
	held := b.Direct.NewFairLock(b.LockName)
	b.Must(held.Lock(ctx))
	crashing, cancel := context.WithCancel(ctx)
	defer cancel()
	doomed := b.Shaky(WithWatchdogTimeout(30 * time.Second)) // so that its waiters do not give up
	alive := b.Client()
	q.join(crashing, doomed.NewFairLock(b.LockName), "crashed 1")
	q.join(ctx, alive.NewFairLock(b.LockName), "1")
	q.join(crashing, doomed.NewFairLock(b.LockName), "crashed 2")
	q.join(ctx, alive.NewFairLock(b.LockName), "2")
	awaitListening(b.Bench, 4)
	b.Proxy.BlackHole(true)
	time.Sleep(record.FairLife + time.Second) // until they are overdue
	start := time.Now()
	b.Must(held.Unlock(ctx))
	testredis.Await(t, "the living are served", 2*locktest.Soon, func() bool { return len(q.served()) == 2 })
	assert.Less(t, time.Since(start), testredis.Scale(start, time.Second))
	cancel()
	b.Proxy.BlackHole(false)
	q.wantOrder("1", "2")
}

// The lock is free and the process at the head of the queue has crashed.
func TestFairDeadHeadOfAFreeLockIsEvicted(t *testing.T) {
	b := locktest.NewFaultBench(t)
	held := b.Direct.NewFairLock(b.LockName)
	b.Must(held.Lock(ctx))
	crashing, cancel := context.WithCancel(ctx)
	got := b.StartWaiter(crashing, b.Shaky(WithWatchdogTimeout(12*time.Second)).NewFairLock(b.LockName))
	b.AwaitQueue(1)
	b.Proxy.BlackHole(true)
	b.Must(held.Unlock(ctx)) // its message reaches no live waiter
	start := time.Now()
	next := b.Direct.NewFairLock(b.LockName)
	b.Tries(next, false) // it is not known to have crashed yet
	b.Must(next.Lock(ctx))
	assert.LessOrEqual(t, time.Since(start), record.FairLife+2*record.FairHeartbeat+locktest.Soon)
	b.Must(next.Unlock(ctx))
	cancel()
	b.Proxy.BlackHole(false)
	b.MustBe(locktest.Await(b.Bench, "the dead one comes back", got), context.Canceled)
	// All requests that it has sent meanwhile arrive now, in any order, and some of them after their rollback: the
	// record of such a request expires with its lease, or with the waiter's last heartbeat.
	testredis.Await(b, "the records of late requests are gone", 4*locktest.Soon, func() bool {
		if ok, err := next.TryLock(ctx, 0, 0); ok || err != nil {
			b.Must(err)
			b.Must(next.Unlock(ctx))
		}
		return len(b.Keys()) == 0
	})
}
