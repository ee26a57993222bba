package relock

// Fair locks as their users see them: the order of waiters, what waiting and giving up cost, and outages.
//
// Rules: the lock goes to the waiters in the order in which they came, in all processes. A TryLock without a wait never
// jumps the queue, and an owner that holds the lock does not stand in it.

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
)

func newFairLock(c *Client, name string) Locker { return c.NewFairLock(name) }

func TestFairLock(t *testing.T) { testLocker(t, newFairLock) }

func TestFencedFairLock(t *testing.T) {
	testLocker(t, func(c *Client, name string) Locker { return c.NewFairLock(name, Fenced()) })
}

// A fair lock and a plain lock of one name share the record and exclude each other.
func TestFairLockAndPlainLockExcludeEachOther(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		plain, fair := b.client().NewLock(b.name), b.client().NewFairLock(b.name)
		b.must(plain.Lock(context.Background()))
		b.tries(fair, false)
		b.must(plain.Unlock(context.Background()))
		b.tries(fair, true)
		b.tries(plain, false)
		b.must(fair.Unlock(context.Background()))
	})
}

// queue returns the queue of the bench's fair lock, as it is in Redis.
func (b *bench) queue() []string {
	b.Helper()
	queue, err := b.rdb.LRange(context.Background(), "redisson_lock_queue:{"+b.name+"}", 0, -1).Result()
	b.must(err)
	return queue
}

func (b *bench) awaitQueue(n int) {
	b.Helper()
	testredis.Await(b, fmt.Sprintf("%d wait in the queue", n), 2*soon, func() bool { return len(b.queue()) == n })
}

// A servedQueue is a set of waiters. Each one records its name when it acquires the lock, and releases it.
type servedQueue struct {
	*bench
	wg  sync.WaitGroup
	mu  sync.Mutex // guards got
	got []string
}

// join starts a goroutine with the given name that locks l, and returns when the goroutine is in the queue.
func (q *servedQueue) join(ctx context.Context, l Locker, name string) {
	q.Helper()
	n := len(q.queue())
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
	q.awaitQueue(n + 1)
}

func (q *servedQueue) wantOrder(want ...string) {
	q.Helper()
	q.wg.Wait()
	assert.Equal(q, want, q.got, "served")
}

func TestFairOrderHoldsAcrossClients(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		q := servedQueue{bench: newBench(t, addr)}
		ctx := context.Background()
		held := q.client().NewFairLock(q.name)
		q.must(held.Lock(ctx))
		clients := []*Client{q.client(), q.client(), q.client(), q.client()}
		var want []string
		for i := range 24 {
			name := fmt.Sprint(i)
			q.join(ctx, clients[newRand(i).IntN(4)].NewFairLock(q.name), name)
			want = append(want, name)
		}
		q.must(held.Unlock(ctx))
		q.wantOrder(want...)
	})
}

func TestFairWaitersThatGiveUpLeaveTheQueue(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		q := servedQueue{bench: newBench(t, addr)}
		ctx := context.Background()
		c := q.client()
		held := c.NewFairLock(q.name)
		q.must(held.Lock(ctx))
		closing := q.client()
		var cancels []context.CancelFunc
		for i := range 6 {
			waiting, cancel := context.WithCancel(ctx)
			cancels = append(cancels, cancel)
			q.join(waiting, c.NewFairLock(q.name), fmt.Sprint(i))
		}
		waitgroup.Go(&q.wg, func() {
			assert.ErrorIs(t, closing.NewFairLock(q.name).Lock(ctx), ErrClosed)
		})
		q.awaitQueue(7)
		waitgroup.Go(&q.wg, func() {
			ok, err := q.client().NewFairLock(q.name).TryLock(ctx, 1500*time.Millisecond, 0)
			assert.False(t, ok)
			if err != nil { // on a machine that is very busy
				assert.ErrorIs(t, err, engine.ErrNoAnswer)
			}
		})
		q.awaitQueue(8)
		q.awaitQueue(7) // the wait of TryLock has ended
		cancels[0]()    // the first in the queue
		q.awaitQueue(6)
		cancels[3]() // one in the middle
		q.awaitQueue(5)
		q.must(closing.Close())
		q.awaitQueue(4)
		q.must(held.Unlock(ctx))
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

func TestFairReentryDoesNotQueue(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		q := servedQueue{bench: newBench(t, addr)}
		ctx := context.Background()
		l := q.client().NewFairLock(q.name)
		q.must(l.Lock(ctx))
		q.join(ctx, q.client().NewFairLock(q.name), "other")
		q.must(l.Lock(ctx))
		q.tries(l, true)
		q.holds(l, 3)
		assert.Len(t, q.queue(), 1, "in the queue")
		for range 3 {
			q.must(l.Unlock(ctx))
		}
		q.wantOrder("other")
	})
}

// While 20 waiters wait, they send about one request per second each, even behind a head that has crashed.
func TestFairWaitersPollOncePerSecond(t *testing.T) {
	b := newFaultBench(t)
	q := servedQueue{bench: b.bench}
	ctx := context.Background()
	held := b.direct.NewFairLock(b.name)
	b.must(held.Lock(ctx))
	// A Java head that has crashed, for a while.
	b.must(b.rdb.RPush(ctx, "redisson_lock_queue:{"+b.name+"}", "java:1").Err())
	b.must(
		b.rdb.ZAdd(
			ctx,
			"redisson_lock_timeout:{"+b.name+"}",
			redis.Z{Score: float64(time.Now().Add(8 * time.Second).UnixMilli()), Member: "java:1"},
		).Err(),
	)
	c := b.client()
	const waiters = 20
	var want []string
	for i := range waiters {
		q.join(ctx, c.NewFairLock(b.name), fmt.Sprint(i))
		want = append(want, fmt.Sprint(i))
	}
	b.must(held.Unlock(ctx))
	b.must(b.rdb.ConfigResetStat(ctx).Err())
	const watch = 3 * time.Second
	time.Sleep(watch) // the requests of this period are counted
	stats := b.rdb.Info(ctx, "commandstats").Val()
	var calls int
	for line := range strings.Lines(stats) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_evalsha:calls="); ok {
			fmt.Sscanf(rest, "%d", &calls)
		}
	}
	assert.LessOrEqual(t, calls, int(1.5*waiters*watch.Seconds()), "calls of %d waiters in %v", waiters, watch)
	assert.NotZero(t, calls, "calls of %d waiters in %v", waiters, watch)
	q.wantOrder(want...)
}

// Redis was unavailable for longer than a heartbeat is valid: no waiter loses its position.
func TestFairOrderSurvivesAPauseOfRedis(t *testing.T) {
	b := newFaultBench(t)
	q := servedQueue{bench: b.bench}
	ctx := context.Background()
	held := b.direct.NewFairLock(b.name)
	b.must(held.LockLease(ctx, time.Hour))
	var want []string
	for i := range 8 {
		q.join(ctx, b.client().NewFairLock(b.name), fmt.Sprint(i))
		want = append(want, fmt.Sprint(i))
	}
	queue := b.queue()
	b.server.Freeze()
	time.Sleep(record.FairLife + time.Second) // for longer than a heartbeat is valid
	b.server.Thaw()
	for start := time.Now(); time.Since(start) < 2*record.FairHeartbeat; time.Sleep(50 * time.Millisecond) {
		require.Equal(t, queue, b.queue(), "the queue stays as it was")
	}
	b.must(held.Unlock(ctx))
	q.wantOrder(want...)
}

// A waiter whose subscription is not confirmed sends heartbeats all the same.
func TestFairWaiterWithoutSubscriptionSendsHeartbeats(t *testing.T) {
	b := newFaultBench(t)
	q := servedQueue{bench: b.bench}
	ctx := context.Background()
	held := b.direct.NewFairLock(b.name)
	b.must(held.LockLease(ctx, time.Hour))
	rule := b.proxy.On(testredis.Command("subscribe"), testredis.StallReply).Times(testredis.Always)
	q.join(ctx, b.shaky(WithPollInterval(time.Hour)).NewFairLock(b.name), "first")
	q.join(ctx, b.client().NewFairLock(b.name), "second")
	time.Sleep(record.FairLife + record.FairHeartbeat) // a waiter without heartbeats would be evicted
	assert.Len(t, b.queue(), 2)
	b.must(held.Unlock(ctx))
	q.wantOrder("first", "second")
	rule.Release()
}

func TestFairUnlockByAnotherSaysWhoHoldsIt(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewFairLock(b.name)
		b.must(l.Lock(ctx))
		err := elsewhere(func() error { return l.Unlock(ctx) })
		require.ErrorContains(t, err, "but held by")
		assert.NotContains(t, err.Error(), "no owner")
		b.must(l.Unlock(ctx))
	})
}

// A TryLock without a wait leaves nothing in the queue, and therefore is one request.
func TestFairTryLockWithoutWaitIsOneRequest(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	held := b.client().NewFairLock(b.name)
	b.must(held.Lock(ctx))
	rdb := testredis.Client(b, b.addr)
	sent := new(counter)
	rdb.AddHook(sent)
	l := b.clientOn(rdb).NewFairLock(b.name)
	ok, err := l.TryLock(ctx, 0, 0)
	require.NoError(t, err)
	require.False(t, ok) // Redis knows the script from here on
	before := sent.n.Load()
	ok, err = l.TryLock(ctx, 0, 0)
	require.NoError(t, err)
	require.False(t, ok)
	assert.Equal(t, int64(1), sent.n.Load()-before, "requests")
	b.must(held.Unlock(ctx))
}

// If Redis was unavailable, or its clock went back, all waiters keep their positions, however many they are: one script
// handles some thousands, and the next one continues.
func TestFairVeryManyWaitersSurviveAnOutage(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	for what, beat := range map[string]time.Duration{"an outage": -time.Minute, "the clock went back": time.Hour} {
		t.Run(what, func(t *testing.T) {
			q := newBench(t, s.Addr()).newFairQueue()
			q.join(false, 6000) // more than one script handles
			now := q.now()
			q.beats(now+beat.Milliseconds(), now+beat.Milliseconds())
			for range 8 {
				q.givesUp("nobody")
				q.check(what)
			}
			within := q.rdb.ZCount(t.Context(), q.lock.keys[3], fmt.Sprint(now), fmt.Sprint(q.now()+record.FairLife.Milliseconds())).Val()
			assert.Equal(t, int64(len(q.all)+1), within, "heartbeats that are neither over nor last for too long")
		})
	}
}
