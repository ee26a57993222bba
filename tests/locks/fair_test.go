package locks

// Fair locks as their users see them: the order of waiters, what waiting and giving up cost, and outages.
//
// Rules: the lock goes to the waiters in the order in which they came, in all processes. A TryLock without a wait never
// jumps the queue, and an owner that holds the lock does not stand in it.

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFairLock(t *testing.T) { testLocker(t, locktest.NewFairLock) }

func TestFencedFairLock(t *testing.T) {
	testLocker(t, func(c *Client, name string) Locker { return c.NewFairLock(name, Fenced()) })
}

// A fair lock and a plain lock of one name share the record and exclude each other.
func TestFairLockAndPlainLockExcludeEachOther(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		plain, fair := b.Client().NewLock(b.LockName), b.Client().NewFairLock(b.LockName)
		b.Must(plain.Lock(ctx))
		b.Tries(fair, false)
		b.Must(plain.Unlock(ctx))
		b.Tries(fair, true)
		b.Tries(plain, false)
		b.Must(fair.Unlock(ctx))
	})
}

// A servedQueue is a set of waiters. Each one records its name when it acquires the lock, and releases it.
type servedQueue struct {
	*locktest.Bench
	wg  sync.WaitGroup
	mu  sync.Mutex // guards got
	got []string
}

// join starts a goroutine with the given name that locks l, and returns when the goroutine is in the queue.
func (q *servedQueue) join(ctx context.Context, l Locker, name string) {
	q.Helper()
	n := len(q.Queue())
	waitgroup.Go(&q.wg, func() {
		if err := l.Lock(ctx); err != nil {
			assert.Error(q, ctx.Err(), "%s, whose ctx has not ended: %v", name, err)
			return
		}
		q.mu.Lock()
		q.got = append(q.got, name)
		q.mu.Unlock()
		assert.NoError(q, l.Unlock(ctx), name)
	})
	q.AwaitQueue(n + 1)
}

func (q *servedQueue) wantOrder(want ...string) {
	q.Helper()
	q.wg.Wait()
	assert.Equal(q, want, q.got, "served")
}

func TestFairWaitersThatGiveUpLeaveTheQueue(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		q := servedQueue{Bench: locktest.NewBench(t, addr)}
		c := q.Client()
		held := c.NewFairLock(q.LockName)
		q.Must(held.Lock(ctx))
		closing := q.Client()
		var cancels []context.CancelFunc
		for i := range 6 {
			waiting, cancel := context.WithCancel(ctx)
			cancels = append(cancels, cancel)
			q.join(waiting, c.NewFairLock(q.LockName), fmt.Sprint(i))
		}
		waitgroup.Go(&q.wg, func() {
			assert.ErrorIs(t, closing.NewFairLock(q.LockName).Lock(ctx), ErrClosed)
		})
		q.AwaitQueue(7)
		waitgroup.Go(&q.wg, func() {
			ok, err := q.Client().NewFairLock(q.LockName).TryLock(ctx, 1500*time.Millisecond, 0)
			assert.False(t, ok)
			if err != nil { // on a machine that is very busy
				assert.ErrorIs(t, err, engine.ErrNoAnswer)
			}
		})
		q.AwaitQueue(8)
		q.AwaitQueue(7) // the wait of TryLock has ended
		cancels[0]()    // the first in the queue
		q.AwaitQueue(6)
		cancels[3]() // one in the middle
		q.AwaitQueue(5)
		q.Must(closing.Close())
		q.AwaitQueue(4)
		q.Must(held.Unlock(ctx))
		q.wantOrder("1", "2", "4", "5")
		for _, cancel := range cancels {
			cancel()
		}
	})
}

func (q *servedQueue) served() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.got)
}

// Redis was unavailable for longer than a heartbeat is valid: no waiter loses its position.
func TestFairOrderSurvivesAPauseOfRedis(t *testing.T) {
	b := locktest.NewFaultBench(t)
	q := servedQueue{Bench: b.Bench}
	held := b.Direct.NewFairLock(b.LockName)
	b.Must(held.LockLease(ctx, time.Hour))
	var want []string
	for i := range 8 {
		q.join(ctx, b.Client().NewFairLock(b.LockName), fmt.Sprint(i))
		want = append(want, fmt.Sprint(i))
	}
	queue := b.Queue()
	b.Server.Freeze()
	time.Sleep(record.FairLife + time.Second) // for longer than a heartbeat is valid
	b.Server.Thaw()
	for start := time.Now(); time.Since(start) < 2*record.FairHeartbeat; time.Sleep(50 * time.Millisecond) {
		require.Equal(t, queue, b.Queue(), "the queue stays as it was")
	}
	b.Must(held.Unlock(ctx))
	q.wantOrder(want...)
}

// A waiter whose subscription is not confirmed sends heartbeats all the same.
func TestFairWaiterWithoutSubscriptionSendsHeartbeats(t *testing.T) {
	b := locktest.NewFaultBench(t)
	q := servedQueue{Bench: b.Bench}
	held := b.Direct.NewFairLock(b.LockName)
	b.Must(held.LockLease(ctx, time.Hour))
	rule := b.Proxy.On(testredis.Command("subscribe"), testredis.StallReply).Times(testredis.Always)
	q.join(ctx, b.Shaky(WithPollInterval(time.Hour)).NewFairLock(b.LockName), "first")
	q.join(ctx, b.Client().NewFairLock(b.LockName), "second")
	time.Sleep(record.FairLife + record.FairHeartbeat) // a waiter without heartbeats would be evicted
	assert.Len(t, b.Queue(), 2)
	b.Must(held.Unlock(ctx))
	q.wantOrder("first", "second")
	rule.Release()
}
