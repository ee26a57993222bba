package relock

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
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

// A line is a set of waiters. Each one records its name when it acquires the lock, and releases it.
type line struct {
	*bench
	wg  sync.WaitGroup
	mu  sync.Mutex // guards got
	got []string
}

// join starts a goroutine with the given name that locks l, and returns when the goroutine is in the queue.
func (q *line) join(ctx context.Context, l Locker, name string) {
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

func (q *line) wantOrder(want ...string) {
	q.Helper()
	q.wg.Wait()
	assert.Equal(q, want, q.got, "served")
}

func TestFairOrderHoldsAcrossClients(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		q := line{bench: newBench(t, addr)}
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
		q := line{bench: newBench(t, addr)}
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

// A waiter gives up when Redis has granted it the lock and it does not know yet: the lock passes to the next one.
func TestFairGrantToAWaiterThatGivesUpPassesToTheNext(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	held := b.direct.NewFairLock(b.name)
	b.must(held.Lock(ctx))
	waiting, cancel := context.WithCancel(ctx)
	first := make(chan error, 1)
	go func() { first <- b.shaky().NewFairLock(b.name).Lock(waiting) }()
	b.awaitWishes(1)
	second := make(chan error, 1)
	owner := ContextWithOwner(ctx)
	next := b.client(WithPollInterval(time.Hour)).NewFairLock(b.name)
	go func() { second <- next.Lock(owner) }()
	b.awaitWishes(2)
	queue := b.queue()
	b.proxy.BlackHole(true)
	b.must(held.Unlock(ctx))
	assert.Equal(t, []string{queue[0]}, b.rdb.HKeys(ctx, b.name).Val(), "the record")
	cancel()
	stays(t, "the second has the lock too", second, 300*time.Millisecond)
	b.proxy.BlackHole(false)
	b.mustBe(await(b.bench, "the first gives up", first), context.Canceled)
	b.must(await(b.bench, "the second gets the lock", second))
	b.must(next.Unlock(owner))
}

// A process that has crashed, at the head of the queue or behind it, is evicted within seconds.
func TestFairCrashedWaitersAreEvictedInSeconds(t *testing.T) {
	b := newFaultBench(t)
	q := line{bench: b.bench}
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
		fairLife+2*soon,
		func() bool { return len(b.queue()) == 2 },
	)
	assert.GreaterOrEqual(
		t,
		time.Since(start),
		fairLife-fairHeartbeat-500*time.Millisecond,
		"the dead were evicted too early",
	)
	b.must(held.Unlock(ctx))
	testredis.Await(t, "the living are served", 2*soon, func() bool { return len(q.served()) == 2 })
	cancel()
	b.proxy.BlackHole(false)
	q.wantOrder("1", "2")
}

func (q *line) served() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.got)
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
	assert.LessOrEqual(t, time.Since(start), fairLife+2*fairHeartbeat+soon)
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

func TestFairTryLockDoesNotJumpTheQueue(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		// A Java waiter is in the queue of a lock that is free.
		b.must(b.rdb.RPush(ctx, "redisson_lock_queue:{"+b.name+"}", "java:1").Err())
		b.must(
			b.rdb.ZAdd(
				ctx,
				"redisson_lock_timeout:{"+b.name+"}",
				redis.Z{Score: float64(time.Now().Add(time.Minute).UnixMilli()), Member: "java:1"},
			).Err(),
		)
		l := b.client().NewFairLock(b.name)
		b.tries(l, false)
		assert.Len(t, b.queue(), 1)
		assert.Len(t, b.keys(), 2)
		b.must(b.rdb.Del(ctx, b.keys()...).Err())
	})
}

func TestFairReentryDoesNotQueue(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		q := line{bench: newBench(t, addr)}
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
	q := line{bench: b.bench}
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

// The queue and the timeouts that Java finds, and those that a relock waiter leaves behind when it is served.
func TestFairLockWritesRedissonsRecords(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		q := line{bench: newBench(t, addr)}
		ctx := context.Background()
		timeouts := "redisson_lock_timeout:{" + q.name + "}"
		const worth = 100 * time.Second
		c := q.client(WithFairWaitTimeout(worth))
		l := c.NewFairLock(q.name)
		q.must(l.Lock(ctx))
		q.join(ctx, c.NewFairLock(q.name), "first")
		q.join(ctx, c.NewFairLock(q.name), "second")
		queue := q.queue()
		for i, want := range []time.Duration{30*time.Second + worth, 30*time.Second + 2*worth} {
			score, err := q.rdb.ZScore(ctx, timeouts, queue[i]).Result()
			q.must(err)
			left := time.Until(time.UnixMilli(int64(score)))
			assert.LessOrEqual(t, left, want, "timeout of number %d", i+1)
			assert.GreaterOrEqual(t, left, want-20*time.Second, "timeout of number %d", i+1)
		}
		assert.True(t, strings.HasPrefix(queue[0], c.ID()+":"), "queue %v", queue)
		// A Java waiter behind them moves up with each waiter that is served, and is notified on its own channel.
		java := redis.Z{Score: float64(time.Now().Add(30*time.Second + 3*worth).UnixMilli()), Member: "java:7"}
		q.must(q.rdb.ZAdd(ctx, timeouts, java).Err())
		q.must(q.rdb.RPush(ctx, "redisson_lock_queue:{"+q.name+"}", "java:7").Err())
		messages := q.rdb.Subscribe(ctx, "redisson_lock__channel:{"+q.name+"}:java:7")
		_, err := messages.Receive(ctx)
		q.must(err)
		q.must(l.Unlock(ctx))
		m, err := messages.ReceiveMessage(ctx)
		if assert.NoError(t, err) {
			assert.Equal(t, "0", m.Payload)
		}
		q.must(messages.Close())
		q.wantOrder("first", "second")
		score := q.rdb.ZScore(ctx, timeouts, "java:7").Val()
		assert.Equal(
			t,
			java.Score-2*float64(worth.Milliseconds()),
			score,
			"the timeout of the Java waiter moved by %v ms",
			java.Score-score,
		)
		assert.Equal(t, []string{"java:7"}, q.queue())
		q.must(q.rdb.Del(ctx, q.keys()...).Err())
	})
}

// B7: a head without a timeout, which would stay forever, and a head with an expired timeout are evicted.
func TestFairHeadsWithoutTimeoutAreEvicted(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		b.must(b.rdb.RPush(ctx, "redisson_lock_queue:{"+b.name+"}", "java:1", "java:2", "java:3").Err())
		b.must(b.rdb.ZAdd(ctx, "redisson_lock_timeout:{"+b.name+"}", redis.Z{Score: 1, Member: "java:2"}).Err())
		l := b.client().NewFairLock(b.name)
		b.tries(l, true)
		b.must(l.Unlock(ctx))
	})
}

// A live waiter keeps its position against Java for any time, even if the timeout of a position is short.
func TestFairLiveWaiterKeepsItsPlaceAgainstJava(t *testing.T) {
	t.Parallel()
	for _, worth := range []time.Duration{time.Second, 2 * time.Second} {
		t.Run(worth.String(), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, testredis.Start(t).Addr())
			q := line{bench: b}
			ctx := context.Background()
			held := b.client(WithWatchdogTimeout(2 * time.Second)).NewFairLock(b.name) // adds only 2s to the first timeouts
			b.must(held.Lock(ctx))
			c := b.client(WithFairWaitTimeout(worth), WithPollInterval(time.Hour))
			visitor := b.client().NewFairLock(b.name)
			q.join(ctx, c.NewFairLock(b.name), "first")
			q.join(ctx, c.NewFairLock(b.name), "second")
			b.must(b.rdb.PExpire(ctx, b.name, time.Hour).Err()) // so that the waiters send heartbeats as late as possible
			queue := b.queue()
			keys := []string{b.name, "redisson_lock_queue:{" + b.name + "}", "redisson_lock_timeout:{" + b.name + "}"}
			for start := time.Now(); time.Since(start) < fairLife+2*time.Second; time.Sleep(full(20*time.Millisecond, 2*time.Millisecond)) {
				b.tries(visitor, false) // a relock client tries
				// A Java client tries, evicts waiters that it considers dead, and leaves.
				for _, script := range []string{javaAcquire, javaGiveUp} {
					b.must(
						b.rdb.Eval(ctx, script, keys, "java:1", "channel", 1000, worth.Milliseconds(), time.Now().UnixMilli()).Err(),
					)
				}
				require.Equal(t, queue, b.queue(), "the queue stays as it was")
			}
			b.must(held.Unlock(ctx))
			q.wantOrder("first", "second")
		})
	}
}

// A waiter at the head of the queue of a free lock that gives up notifies the next one.
func TestFairGivingUpWakesTheNext(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewFairLock(b.name).lock.(*fairLock)
		holder, first, last := javaOther+":1", javaOther+":2", javaOther+":3"
		for _, field := range []string{holder, first, last} {
			g, err := sendAttempt(l, contract.Attempt{Field: field, Lease: time.Minute, HoldCount: 1})
			b.must(err)
			if g.Status == contract.Busy {
				assert.Positive(t, g.Wait, field)
				assert.LessOrEqual(t, g.Wait, fairHeartbeat, "%s polls too late to prove that it lives", field)
			}
		}
		b.must(b.rdb.Del(ctx, b.name).Err()) // the holder has crashed
		messages := b.rdb.Subscribe(ctx, l.Channel(contract.Attempt{Field: last}))
		defer messages.Close()
		_, err := messages.Receive(ctx)
		b.must(err)
		_, err = l.client.send(l.RollBack(contract.Attempt{Field: first, HoldCount: 1}))
		require.NoError(t, err)
		got := make(chan error, 1)
		go func() { got <- second(messages.ReceiveMessage(ctx)) }()
		b.must(await(b, "the message to the second", got))
		_, err = l.client.send(l.RollBack(contract.Attempt{Field: last, HoldCount: 1}))
		require.NoError(t, err)
	})
}

// Redis was unavailable for longer than a heartbeat is valid: no waiter loses its position.
func TestFairOrderSurvivesAPauseOfRedis(t *testing.T) {
	b := newFaultBench(t)
	q := line{bench: b.bench}
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
	time.Sleep(fairLife + time.Second) // for longer than a heartbeat is valid
	b.server.Thaw()
	for start := time.Now(); time.Since(start) < 2*fairHeartbeat; time.Sleep(50 * time.Millisecond) {
		require.Equal(t, queue, b.queue(), "the queue stays as it was")
	}
	b.must(held.Unlock(ctx))
	q.wantOrder(want...)
}

// A waiter whose subscription is not confirmed sends heartbeats all the same.
func TestFairWaiterWithoutSubscriptionSendsHeartbeats(t *testing.T) {
	b := newFaultBench(t)
	q := line{bench: b.bench}
	ctx := context.Background()
	held := b.direct.NewFairLock(b.name)
	b.must(held.LockLease(ctx, time.Hour))
	rule := b.proxy.On(testredis.Command("subscribe"), testredis.StallReply).Times(testredis.Always)
	q.join(ctx, b.shaky(WithPollInterval(time.Hour)).NewFairLock(b.name), "first")
	q.join(ctx, b.client().NewFairLock(b.name), "second")
	time.Sleep(fairLife + fairHeartbeat) // a waiter without heartbeats would be evicted
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

// wishes returns what the subscribed waiters of the bench's fair lock ask for, by field.
func (b *bench) wishes() map[string]string {
	b.Helper()
	wishes, err := b.rdb.HGetAll(context.Background(), "relock_line:{"+b.name+"}").Result()
	b.must(err)
	return wishes
}

func (b *bench) awaitWishes(n int) {
	b.Helper()
	testredis.Await(b, fmt.Sprintf("%d wait and listen", n), soon, func() bool { return len(b.wishes()) == n })
}

// A fairWaiter is a waiter whose requests the test sends.
type fairWaiter struct {
	*bench
	lock     *fairLock
	client   string
	field    string
	asked    uint64
	messages *redis.PubSub // on its own channel, and on that of its client
}

// newFairWaiter returns a waiter that is subscribed; its requests have numbers from asked on.
func (b *bench) newFairWaiter(l *FairLock, n int) *fairWaiter {
	b.Helper()
	return b.listeningWaiter(l, n, fmt.Sprint(":7:0", n))
}

// newJavaWaiter returns a Java waiter in the queue, as the scripts of Java add it.
func (b *bench) newJavaWaiter(l *FairLock, n int) *fairWaiter {
	b.Helper()
	w := b.listeningWaiter(l, n, ":7")
	b.must(
		b.rdb.Eval(
			context.Background(),
			javaAcquire,
			w.lock.keys[:3],
			w.field,
			w.lock.announce,
			1000,
			w.lock.waitTimeout(),
			time.Now().UnixMilli(),
		).Err(),
	)
	return w
}

func (b *bench) listeningWaiter(l *FairLock, n int, owner string) *fairWaiter {
	b.Helper()
	w := &fairWaiter{
		bench:  b,
		lock:   l.lock.(*fairLock),
		client: fmt.Sprintf("6b3e8c2f-5d13-4c9f-8e30-1d6b4f20%04d", n),
		asked:  uint64(100 * n),
	}
	w.field = w.client + owner
	w.messages = b.rdb.Subscribe(
		context.Background(),
		w.lock.Channel(contract.Attempt{Field: w.field}),
		w.lock.announce+"client:"+w.client,
	)
	for range 2 {
		b.must(second(w.messages.Receive(context.Background())))
	}
	b.Cleanup(func() { _ = w.messages.Close() })
	return w
}

// asks makes one attempt, with the given delivery.
func (w *fairWaiter) asks(line string, lease time.Duration) contract.Status {
	w.Helper()
	w.asked++
	g, err := sendAttempt(
		w.lock,
		contract.Attempt{Field: w.field, Lease: lease, HoldCount: 1, Delivery: line, Asked: w.asked},
	)
	w.must(err)
	return g.Status
}

func (w *fairWaiter) release() {
	w.Helper()
	_, err := w.lock.client.send(w.lock.Release(released(w.field, 0, false)))
	w.must(err)
}

// leaves makes the waiter give up.
func (w *fairWaiter) leaves() { w.undoes(false) }

// undoes makes the waiter give up. If late is set, one of its requests may still run.
func (w *fairWaiter) undoes(late bool) {
	w.Helper()
	_, err := w.lock.client.send(w.lock.RollBack(contract.Attempt{Field: w.field, HoldCount: 1, Late: late}))
	w.must(err)
}

// goesDeaf closes the connection on which the waiter is subscribed.
func (w *fairWaiter) goesDeaf() {
	w.Helper()
	w.must(w.messages.Close())
	channel := w.lock.announce + "client:" + w.client
	testredis.Await(w, "the server knows", soon, func() bool {
		return w.rdb.PubSubNumSub(context.Background(), channel).Val()[channel] == 0
	})
}

// hears returns the next message to the waiter.
func (w *fairWaiter) hears() string {
	w.Helper()
	got := make(chan string, 1)
	go func() {
		if m, err := w.messages.ReceiveMessage(context.Background()); err == nil {
			got <- m.Payload
		}
	}()
	return await(w.bench, "a message to "+w.field, got)
}

// isGranted checks that the waiter is notified of the grant, has its record for lease, and is in no queue any more.
func (w *fairWaiter) isGranted(lease time.Duration, token int64) {
	w.Helper()
	assert.Equal(w, fmt.Sprintf("grant %s %d %d %d", w.field, w.asked, lease.Milliseconds(), token), w.hears())
	assert.Equal(w, map[string]string{w.field: "1"}, w.rdb.HGetAll(context.Background(), w.name).Val(), "the record")
	pttl := w.rdb.PTTL(context.Background(), w.name).Val()
	assert.LessOrEqual(w, pttl, lease)
	assert.Greater(w, pttl, lease-soon)
	assert.NotContains(w, w.queue(), w.field)
	assert.NotContains(w, w.wishes(), w.field)
	for _, key := range w.lock.keys[2:4] {
		assert.ErrorIs(w, w.rdb.ZScore(context.Background(), key, w.field).Err(), redis.Nil, key)
	}
}

// isWoken checks that the waiter is notified to ask, and that the lock is free.
func (w *fairWaiter) isWoken() {
	w.Helper()
	assert.Equal(w, "0", w.hears())
	w.isFree()
	assert.Equal(w, w.field, w.queue()[0], "the first in the queue")
}

func (b *bench) isFree() {
	b.Helper()
	assert.Zero(b, b.rdb.Exists(context.Background(), b.name).Val(), "the record is there")
}

// From Unlock in one process to Lock in another takes one round trip: a waiter that is subscribed need not ask.
func TestFairGrantNeedsNoRequest(t *testing.T) {
	b := newFaultBench(t)
	ctx, owner := context.Background(), ContextWithOwner(context.Background())
	held := b.direct.NewFairLock(b.name, Fenced())
	b.must(held.Lock(ctx))
	before, err := held.Token(ctx)
	b.must(err)
	l := b.shaky().NewFairLock(b.name, Fenced())
	got := make(chan error, 1)
	go func() { got <- l.Lock(owner) }()
	b.awaitWishes(1)
	wish := b.wishes()
	testredis.Await(t, "the next heartbeat", soon, func() bool { return !maps.Equal(b.wishes(), wish) })
	// There is a second until the next one.
	asks := b.proxy.On(calls(fairAcquire), testredis.DropRequest).Times(testredis.Always)
	b.must(held.Unlock(ctx))
	b.must(await(b.bench, "the waiter holds the lock", got))
	assert.Zero(t, asks.Count(), "requests")
	token, err := l.Token(owner)
	b.must(err)
	assert.Greater(t, token, before)
	assert.Equal(t, fmt.Sprint(token), b.rdb.Get(ctx, tokenKey(b.name)).Val())
	assert.Empty(t, b.queue())
	assert.LessOrEqual(t, b.rdb.PTTL(ctx, b.name).Val(), engine.ProvisionalLease)
	testredis.Await(t, "the watchdog confirms the hold", soon, func() bool {
		return b.rdb.PTTL(ctx, b.name).Val() > 2*engine.ProvisionalLease
	})
	asks.Release()
	b.must(l.Unlock(owner))
}

func TestFairReleaseGrantsToTheFirst(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewFairLock(b.name, Fenced())
		b.must(b.rdb.Set(ctx, tokenKey(b.name), ahead, 0).Err())
		first, next, last := b.newFairWaiter(l, 1), b.newFairWaiter(l, 2), b.newFairWaiter(l, 3)
		b.must(l.Lock(ctx))
		for _, w := range []*fairWaiter{first, next, last} {
			assert.Equal(t, contract.Busy, w.asks(contract.Defer, time.Minute))
			assert.NotContains(t, b.wishes(), w.field, "a waiter that does not listen yet")
		}
		assert.Equal(t, contract.Busy, first.asks(contract.Push, time.Minute))
		assert.Equal(t, contract.Busy, next.asks(contract.Push, 2*time.Second))
		assert.Equal(t, contract.Busy, last.asks(contract.Push, time.Minute))
		left := b.rdb.PTTL(ctx, "relock_line:{"+b.name+"}").Val()
		assert.Greater(t, left, fairLife, "the wishes are there as long as their waiters")
		assert.LessOrEqual(t, left, 4*fairLife, "the wishes of waiters that have died go")
		left = b.rdb.PTTL(ctx, l.lock.(*fairLock).keys[3]).Val()
		assert.Greater(t, left, time.Minute, "heartbeats are there as long as their waiters")
		assert.LessOrEqual(t, left, 5*time.Minute, "the heartbeats of a queue in which all have died go")

		timeouts := "redisson_lock_timeout:{" + b.name + "}"
		before := b.rdb.ZScore(ctx, timeouts, last.field).Val()
		b.must(l.Unlock(ctx))
		first.isGranted(engine.ProvisionalLease, ahead+2)
		assert.Equal(
			t,
			float64(l.lock.(*fairLock).waitTimeout()),
			before-b.rdb.ZScore(ctx, timeouts, last.field).Val(),
			"the last moves up",
		)
		assert.Equal(t, contract.Held, first.asks(contract.Push, time.Minute), "it confirms")
		assert.Greater(t, b.rdb.PTTL(ctx, b.name).Val(), engine.ProvisionalLease)
		first.release()
		next.isGranted(2*time.Second, ahead+4)
		first.release() // again, because its answer was lost
		assert.Equal(t, contract.Busy, first.asks("", time.Minute), "it stands behind the last")
		first.leaves()
		second(l.ForceUnlock(ctx))
		last.isGranted(engine.ProvisionalLease, ahead+5)
		last.leaves()
		b.isFree()
	})
}

// A hold is renamed although the queue has other data: the answer must not hide that.
func TestFairRenameNeedsNoQueue(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx, c := context.Background(), b.client()
		l := c.NewFairLock(b.name).lock.(*fairLock)
		a := attemptOf(c)
		_, err := c.send(l.Acquire(a))
		b.must(err)
		b.must(b.rdb.Set(ctx, l.keys[1], "other data", 0).Err())
		to := c.ID() + ":0:0123456789012345"
		r, err := c.send(l.Rename(contract.Rename{From: a.Field, To: to, Lease: time.Hour, Late: true}))
		b.must(err)
		assert.Equal(t, int64(1), r[0])
		assert.Equal(t, to, b.holder())
		assert.True(t, b.ended(a.Field), "a tombstone")
		b.forget()
	})
}

// A script that cannot use the line, for example while a slot moves, leaves what a waiter that leaves has asked for.
func TestFairForgetsWishesOfThoseThatHaveLeft(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewFairLock(b.name)
		first, next := b.newFairWaiter(l, 1), b.newFairWaiter(l, 2)
		b.must(l.Lock(ctx))
		first.asks(contract.Push, time.Minute)
		wish := b.wishes()
		require.Len(t, wish, 1)
		first.leaves()
		line := "relock_line:{" + b.name + "}"
		b.must(b.rdb.HSet(ctx, line, wish).Err())
		b.must(b.rdb.HSet(ctx, line, "first", 1).Err()) // of a lock that is not fair
		next.asks(contract.Push, time.Minute)
		assert.NotContains(t, b.wishes(), first.field)
		assert.Contains(t, b.wishes(), next.field)
		assert.Contains(t, b.wishes(), "first")

		b.must(b.rdb.Del(ctx, next.lock.keys[1]).Err()) // the queue
		next.leaves()
		assert.NotContains(t, b.wishes(), next.field)
		b.must(l.Unlock(ctx))
		b.must(b.rdb.Del(ctx, line, next.lock.keys[2], next.lock.keys[3]).Err())
	})
}

// A Java waiter, a waiter of an older version, and one that is no longer subscribed are notified and not granted the
// lock.
func TestFairGrantsToListenersOnly(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewFairLock(b.name)
		older, quiet, deaf, next := b.newFairWaiter(l, 2), b.newFairWaiter(l, 3), b.newFairWaiter(l, 4), b.newFairWaiter(l, 5)
		b.must(l.Lock(ctx))
		java := b.newJavaWaiter(l, 1)
		older.asks("", time.Minute)
		quiet.asks(contract.Push, time.Minute)
		quiet.asks(contract.Defer, time.Minute) // its connection was cut meanwhile
		deaf.asks(contract.Push, time.Minute)
		deaf.goesDeaf()
		next.asks(contract.Push, time.Minute)
		all := b.rdb.PSubscribe(ctx, "redisson_lock__channel:*") // receives everything, and is not the waiter
		defer all.Close()
		b.must(second(all.Receive(ctx)))

		b.must(l.Unlock(ctx))
		java.isWoken()
		assert.Equal(t, contract.Busy, next.asks(contract.Push, time.Minute))
		java.leaves()
		older.isWoken()
		older.leaves()
		quiet.isWoken()
		quiet.leaves()
		next.isGranted(engine.ProvisionalLease, 0)
		assert.Equal(t, []string{deaf.field}, b.queue(), "a waiter that may be alive keeps its place")
		b.must(all.Close())
		next.leaves()
		deaf.leaves()
	})
}

// A free lock that was not passed on, because a lease has expired, is granted to the first waiter by the next one that
// asks.
func TestFairFreeLockIsGrantedToTheFirst(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewFairLock(b.name)
		holder, first, next := b.newFairWaiter(l, 1), b.newFairWaiter(l, 2), b.newFairWaiter(l, 3)
		assert.Equal(t, contract.Held, holder.asks(contract.Push, time.Minute))
		first.asks(contract.Push, time.Minute)
		b.must(b.rdb.Del(ctx, b.name).Err())
		b.tries(l, false)
		first.isGranted(engine.ProvisionalLease, 0)
		assert.Equal(t, contract.Busy, next.asks(contract.Push, time.Minute))
		b.must(b.rdb.Del(ctx, b.name).Err())
		assert.Equal(t, contract.Held, next.asks(contract.Push, time.Minute), "the first itself")
		assert.Equal(t, contract.Busy, first.asks(contract.Push, time.Minute), "a grant that has lapsed")
		next.leaves()
		first.isGranted(engine.ProvisionalLease, 0)
		first.leaves()
		b.isFree()
	})
}

// The waiters of a Client share one channel. Each also listens to its own channel while a client that knows no other
// holds the lock.
func TestFairWaitersOfAClientShareAChannel(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	q := line{bench: b}
	ctx := context.Background()
	held, l := b.client().NewFairLock(b.name), b.client().NewFairLock(b.name)
	channels := func(want ...string) {
		t.Helper()
		slices.Sort(want)
		testredis.Await(t, fmt.Sprintf("the channels %v", want), soon, func() bool {
			return slices.Equal(want, slices.Sorted(slices.Values(ofLocks(b.rdb.PubSubChannels(ctx, "*").Val()))))
		})
	}
	raw := l.lock.(*fairLock)
	b.must(held.Lock(ctx))
	for _, name := range []string{"first", "second", "third"} {
		q.join(ctx, l, name)
	}
	channels(raw.Grants(contract.Attempt{}))
	b.awaitWishes(3)
	before := b.wishes()
	b.must(held.Unlock(ctx))
	q.wantOrder("first", "second", "third")
	for field, wish := range before {
		assert.NotContains(t, b.wishes(), field, "the wish %s", wish)
	}

	b.must(b.rdb.HSet(ctx, b.name, javaThread, 1).Err())
	b.must(b.rdb.PExpire(ctx, b.name, time.Minute).Err())
	q.got = nil
	q.join(ctx, l, "first")
	q.join(ctx, l, "second")
	queue := b.queue()
	channels(raw.announce+queue[0], raw.announce+queue[1], raw.Grants(contract.Attempt{}))
	b.must(b.rdb.Del(ctx, b.name).Err())
	b.must(b.rdb.Publish(ctx, raw.announce+queue[0], 0).Err())
	q.wantOrder("first", "second")
}

// The timeout of a Java waiter is counted from that of the last waiter. If it has crashed, it must not block the queue
// for longer than Redisson's timeout, whichever waiters have left.
func TestFairTimeoutsThatJavaCountsFromAreRight(t *testing.T) {
	const worth, lease = 100 * time.Second, 20 * time.Second
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client(WithFairWaitTimeout(worth)).NewFairLock(b.name)
		var waiters []*fairWaiter
		for n := range 8 {
			w := b.newFairWaiter(l, n+1)
			waiters = append(waiters, w)
			assert.Equal(t, n == 0, w.asks(contract.Push, lease) == contract.Held)
		}
		for n := range 3 {
			waiters[n].release()
			waiters[n+1].isGranted(engine.ProvisionalLease, 0)
		}
		waiters[7].leaves() // the last one

		keys := waiters[0].lock.keys
		b.must(
			b.rdb.Eval(
				ctx,
				javaAcquire,
				keys[:3],
				javaThread,
				waiters[0].lock.announce,
				1000,
				worth.Milliseconds(),
				time.Now().UnixMilli(),
			).Err(),
		)
		ofJava := func(place int) {
			t.Helper()
			assert.Equal(t, javaThread, b.queue()[place])
			left := time.Until(time.UnixMilli(int64(b.rdb.ZScore(ctx, keys[2], javaThread).Val())))
			assert.LessOrEqual(t, left, time.Duration(place+1)*worth+lease+soon)
			assert.Greater(t, left, time.Duration(place+1)*worth-soon)
		}
		ofJava(3)
		waiters[5].leaves()
		ofJava(2)
		now := float64(time.Now().Add(-time.Second).UnixMilli()) // the clock of miniredis moves in steps
		b.must(
			b.rdb.ZAdd(
				ctx,
				keys[3],
				redis.Z{Score: now, Member: ""},
				redis.Z{Score: now, Member: waiters[4].field},
				redis.Z{Score: now, Member: waiters[6].field},
			).Err(),
		)
		b.tries(l, false) // the other two have crashed
		ofJava(0)
		waiters[3].leaves()
		b.must(b.rdb.Del(ctx, b.keys()...).Err())
	})
}

// A fairQueue is a queue whose waiters send nothing by themselves, and the timeouts that they would have if each script
// shortened those of all waiters.
type fairQueue struct {
	*bench
	lock  *fairLock
	worth int64
	all   []string         // fields
	right map[string]int64 // field -> timeout
	last  int              // number of the last waiter that has joined
}

// newFairQueue returns an empty queue of a lock that another client holds.
func (b *bench) newFairQueue() *fairQueue {
	l := b.client(WithFairWaitTimeout(100 * time.Second)).NewFairLock(b.name).lock.(*fairLock)
	q := &fairQueue{bench: b, lock: l, worth: l.waitTimeout(), right: make(map[string]int64)}
	q.isHeld()
	b.Cleanup(b.forget)
	return q
}

func (q *fairQueue) isHeld() {
	q.must(q.rdb.HSet(context.Background(), q.name, javaOther+":01", 1).Err())
	q.must(q.rdb.PExpire(context.Background(), q.name, time.Hour).Err())
}

func (q *fairQueue) isJava(waiter string) bool { return strings.Count(waiter, ":") == 1 }

func (q *fairQueue) now() int64 {
	now, err := q.rdb.Time(context.Background()).Result()
	q.must(err)
	return now.UnixMilli()
}

func (q *fairQueue) timeout(waiter string) int64 {
	return int64(q.rdb.ZScore(context.Background(), q.lock.keys[2], waiter).Val())
}

// join adds waiters of relock, or of Java, whose timeouts are counted from that of the last one.
func (q *fairQueue) join(java bool, n int) {
	ctx, now := context.Background(), q.now()
	timeout := now + time.Hour.Milliseconds()
	if len(q.all) > 0 {
		timeout = q.timeout(q.all[len(q.all)-1])
	}
	pipe := q.rdb.Pipeline()
	for range n {
		q.last++
		timeout += q.worth
		waiter := fmt.Sprintf("6b3e8c2f-5d13-4c9f-8e30-1d6b%08d:7%s", q.last, map[bool]string{false: ":01"}[java])
		pipe.RPush(ctx, q.lock.keys[1], waiter)
		pipe.ZAdd(ctx, q.lock.keys[2], redis.Z{Score: float64(timeout), Member: waiter})
		if !java {
			alive := float64(now + time.Hour.Milliseconds())
			pipe.ZAdd(ctx, q.lock.keys[3], redis.Z{Score: alive, Member: waiter}, redis.Z{Score: float64(now), Member: ""})
		}
		q.all, q.right[waiter] = append(q.all, waiter), timeout
	}
	q.must(second(pipe.Exec(ctx)))
}

// leave notes that waiters have left.
func (q *fairQueue) leave(leaving ...string) {
	left := int64(0)
	q.all = slices.DeleteFunc(q.all, func(waiter string) bool {
		if slices.Contains(leaving, waiter) {
			left++
			return true
		}
		q.right[waiter] -= left * q.worth
		return false
	})
}

func (q *fairQueue) givesUp(waiter string) {
	q.must(second(q.lock.client.send(q.lock.RollBack(contract.Attempt{Field: waiter, HoldCount: 1}))))
}

// check checks the queue, and the timeouts that Java counts from.
func (q *fairQueue) check(what string) {
	q.Helper()
	require.Equal(q, q.all, q.queue(), what)
	for i, waiter := range q.all {
		if q.isJava(waiter) || i == len(q.all)-1 || q.isJava(q.all[i+1]) {
			require.Equal(q, q.right[waiter], q.timeout(waiter), "%s: the timeout of waiter %d, %s, of %v", what, i, waiter, q.all)
		} else {
			require.GreaterOrEqual(q, q.timeout(waiter), q.right[waiter], "%s: the timeout of waiter %d, %s", what, i, waiter)
		}
	}
}

// Whoever leaves the queue, in whatever way and order: the timeout of each Java waiter, and each that Java counts from,
// are what Redisson's arithmetic gives.
func TestFairTimeoutsThatCountForJavaAreRightWhoeverLeaves(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for seed := range full(20, 200) {
		q := newBench(t, testredis.StillMini(t).Addr()).newFairQueue()
		rng := newRand(seed)
		of := func(java bool) (all []string) {
			for _, waiter := range q.all {
				if q.isJava(waiter) == java {
					all = append(all, waiter)
				}
			}
			return all
		}
		for step := range 60 {
			what := fmt.Sprintf("seed %d, step %d", seed, step)
			relock, java := of(false), of(true)
			switch op := rng.IntN(12); {
			case op < 4 || len(relock) == 0:
				q.join(op == 0, 1)
			case op < 8:
				waiter := relock[rng.IntN(len(relock))]
				q.givesUp(waiter)
				q.leave(waiter)
			case op == 8 && len(java) > 0:
				waiter := java[rng.IntN(len(java))]
				q.must(q.rdb.Eval(ctx, javaGiveUp, q.lock.keys[:3], waiter, "", 0, q.worth, q.now()).Err())
				q.leave(waiter)
			case op == 9:
				var dead []string
				for _, waiter := range relock {
					if rng.IntN(2) == 0 {
						dead = append(dead, waiter)
						q.must(q.rdb.ZAdd(ctx, q.lock.keys[3], redis.Z{Score: 1, Member: waiter}).Err())
					}
				}
				q.givesUp("nobody")
				q.leave(dead...)
			case q.isJava(q.all[0]):
			default: // the first one acquires the lock
				first := q.all[0]
				q.must(q.rdb.Del(ctx, q.name).Err())
				attempt := contract.Attempt{Field: first, Lease: time.Minute, HoldCount: 1, Delivery: contract.Defer}
				g, err := sendAttempt(q.lock, attempt)
				q.must(err)
				require.Equal(t, contract.Held, g.Status, what)
				q.must(q.rdb.Del(ctx, q.name).Err())
				q.isHeld()
				q.leave(first)
			}
			q.check(what)
		}
		q.forget()
	}
}

// The timeout of the last waiter has nearly expired, because it has died, and it leaves. The one in front of it, which
// counts for Java now, gets no timeout with which Java would evict it.
func TestFairTimeoutOfTheNewLastWaiterIsNotTooShort(t *testing.T) {
	t.Parallel()
	for _, firstIsDead := range []bool{false, true} {
		q := newBench(t, testredis.StillMini(t).Addr()).newFairQueue()
		q.join(false, 6)
		last := q.all[5]
		q.must(q.rdb.ZAdd(context.Background(), q.lock.keys[2], redis.Z{Score: float64(q.now() + 1), Member: last}).Err())
		if firstIsDead {
			q.must(q.rdb.ZAdd(context.Background(), q.lock.keys[3], redis.Z{Score: 1, Member: q.all[0]},
				redis.Z{Score: 1, Member: last}).Err())
			q.givesUp("nobody")
			q.leave(q.all[0], last)
		} else {
			q.givesUp(last)
			q.leave(last)
		}
		require.Equal(t, q.all, q.queue())
		places := int64(len(q.all))
		assert.Equal(t, (places-1)*q.worth+q.worth/2, q.timeout(q.all[places-1])-q.now(), "with %d waiters", places)
		q.forget()
	}
}

// Waiters that give up at the same time, as with a common deadline, or when a process ends, cost the same however many
// wait. With Java in the queue its waiters count, and no others.
func TestFairWaitersThatGiveUpTogetherCostLittle(t *testing.T) {
	t.Parallel()
	const many = 2000
	for what, add := range map[string]func(q *fairQueue){
		"only relock":     func(q *fairQueue) { q.join(false, many) },
		"one Java waiter": func(q *fairQueue) { q.join(false, many); q.join(true, 1) },
		"a few Java waiters": func(q *fairQueue) {
			for range 5 {
				q.join(true, 1)
				q.join(false, many/5)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			q := newBench(t, testredis.Start(t).Addr()).newFairQueue()
			add(q)
			begin, check := q.watchBusy(2 * mostBusy) // one at a time, they cost half of it if the machine is busy
			begin()
			first := q.all[slices.IndexFunc(q.all, func(waiter string) bool { return !q.isJava(waiter) })]
			written := q.commandRuns("zadd")
			assert.Less(t, q.commands(func() { q.givesUp(first) }), 40, "commands of the first one")
			assert.LessOrEqual(t, q.commandRuns("zadd")-written, 2, "writes of timeouts")
			q.leave(first)
			for _, waiter := range slices.Clone(q.all) {
				if !q.isJava(waiter) {
					q.givesUp(waiter)
					q.leave(waiter)
				}
			}
			check("all of them give up")
			q.check("all of relock have left")
		})
	}
}

// A process with many waiters has crashed, and a Java service waits behind them: one script removes all of them, and
// walks through the queue once.
func TestFairManyDeadInFrontOfJavaCostOnePass(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	const dead, worth = 2500, 100 * time.Second
	l := b.client(WithFairWaitTimeout(worth)).NewFairLock(b.name)
	keys := l.lock.(*fairLock).keys
	now := time.Now()
	pipe := b.rdb.Pipeline()
	for n := range dead {
		field := fmt.Sprintf("%s:%d:01", javaOther[:36], n)
		pipe.RPush(ctx, keys[1], field)
		pipe.ZAdd(ctx, keys[2], redis.Z{Score: float64(now.Add(time.Duration(n+1) * worth).UnixMilli()), Member: field})
		pipe.ZAdd(ctx, keys[3], redis.Z{Score: float64(now.Add(-time.Second).UnixMilli()), Member: field})
	}
	pipe.ZAdd(ctx, keys[3], redis.Z{Score: float64(now.UnixMilli()), Member: ""})
	pipe.RPush(ctx, keys[1], javaThread)
	pipe.ZAdd(ctx, keys[2], redis.Z{Score: float64(now.Add((dead + 1) * worth).UnixMilli()), Member: javaThread})
	b.must(second(pipe.Exec(ctx)))
	b.must(b.rdb.ConfigResetStat(ctx).Err())
	b.tries(l, false)
	assert.Equal(t, []string{javaThread}, b.queue())
	assert.Equal(t, now.Add(worth).UnixMilli(), int64(b.rdb.ZScore(ctx, keys[2], javaThread).Val()))
	assert.Contains(t, b.rdb.Info(ctx, "commandstats").Val(), "cmdstat_zmscore:calls=1,")
	b.must(b.rdb.Del(ctx, b.keys()...).Err())
}

// The line of a plain lock has fields, too: they are not taken for waiters that can be granted the lock.
func TestFairWaiterBehindJavaListensToItsChannel(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		w := b.newFairWaiter(b.client().NewFairLock(b.name), 1)
		b.must(b.rdb.HSet(ctx, b.name, w.client+":9:01", 1).Err())
		b.must(b.rdb.PExpire(ctx, b.name, time.Minute).Err())
		b.must(
			b.rdb.HSet(
				ctx,
				lineKey(b.name),
				"first",
				1,
				"last",
				1,
				"shared",
				1,
				"1",
				javaOther[:36],
				javaOther[:36],
				"1 new push 30000 0 1 "+javaOther+":01",
			).Err(),
		)
		for n := range 8 {
			attempt := contract.Attempt{Field: w.field, Lease: time.Minute, HoldCount: 1, Delivery: contract.Push, Asked: 1}
			g, err := sendAttempt(w.lock, attempt)
			b.must(err)
			assert.Equal(t, contract.Busy, g.Status)
			assert.True(t, g.Standing.LegacyHolder(), "behind %d", n)
			w.leaves()
			b.must(
				b.rdb.Eval(
					ctx,
					javaAcquire,
					w.lock.keys[:3],
					fmt.Sprint(javaThread, n),
					w.lock.announce,
					1000,
					100000,
					time.Now().UnixMilli(),
				).Err(),
			)
		}
		b.must(b.rdb.Del(ctx, b.keys()...).Err())
	})
}

// A holder whose lock draws no token passes the lock on all the same: the next one asks for its token.
func TestFairGrantWithoutATokenIsConfirmed(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx, owner := context.Background(), ContextWithOwner(context.Background())
		plain, fenced := b.client().NewFairLock(b.name), b.client().NewFairLock(b.name, Fenced())
		b.must(plain.Lock(ctx))
		got := make(chan error, 1)
		go func() { got <- fenced.Lock(owner) }()
		b.awaitWishes(1)
		b.must(plain.Unlock(ctx))
		b.must(await(b, "the waiter holds the lock", got))
		token, err := fenced.Token(owner)
		b.must(err)
		assert.Positive(t, token)
		b.must(fenced.Unlock(owner))
	})
}

// Validity begins with the last request of the waiter, and not with the message: a grant with a lease that is too short
// is confirmed by a request.
func TestFairGrantIsValidFromTheRequest(t *testing.T) {
	b := newFaultBench(t)
	ctx, owner := context.Background(), ContextWithOwner(context.Background())
	const lease = 400 * time.Millisecond
	held := b.direct.NewFairLock(b.name)
	b.must(held.Lock(ctx))
	l := b.shaky().NewFairLock(b.name)
	got := make(chan error, 1)
	go func() { got <- l.LockLease(owner, lease) }()
	b.awaitWishes(1)
	wish := b.wishes()
	testredis.Await(t, "the next heartbeat", soon, func() bool { return !maps.Equal(b.wishes(), wish) })
	time.Sleep(lease + lease/4)
	asks := b.proxy.On(calls(fairAcquire), testredis.DelayReply(0)).Times(testredis.Always)
	b.must(held.Unlock(ctx))
	b.must(await(b.bench, "the waiter holds the lock", got))
	assert.Equal(t, 1, asks.Count(), "requests")
	b.must(l.Unlock(owner))
}

// Only Redis grants: the number of the request is known to clients that may read the key, and not to those that may
// publish.
func TestFairGrantThatRedisDidNotMakeIsNoHold(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx, owner := context.Background(), ContextWithOwner(context.Background())
		held := b.client().NewFairLock(b.name)
		b.must(held.Lock(ctx))
		l := b.client().NewFairLock(b.name)
		got := make(chan error, 1)
		go func() { got <- l.Lock(owner) }()
		b.awaitWishes(1)
		field := b.queue()[0]
		for _, message := range []string{
			fmt.Sprintf("grant %s 0 5000 0", field), fmt.Sprintf("grant %s 1 5000 0", field), "grant " + field, "grant", "",
		} {
			b.must(b.rdb.Publish(ctx, l.lock.(*fairLock).Grants(contract.Attempt{}), message).Err())
			stays(b, "a forged grant", got, 50*time.Millisecond)
		}
		b.must(held.Unlock(ctx))
		b.must(await(b, "the waiter holds the lock", got))
		b.must(l.Unlock(owner))
	})
}

// A grant for a wait that has ended is released at once.
func TestFairGrantToAWaitThatIsOverIsGivenBack(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx, owner := context.Background(), ContextWithOwner(context.Background())
		l := b.client().NewFairLock(b.name)
		raw := l.lock.(*fairLock)
		b.must(l.Lock(ctx))
		waiting, cancel := context.WithCancel(owner)
		got := make(chan error, 1)
		c := b.client()
		go func() { got <- c.NewFairLock(b.name).Lock(waiting) }()
		b.awaitWishes(1)
		field := b.queue()[0]
		cancel()
		b.mustBe(await(b, "the waiter gives up", got), context.Canceled)
		// A request of the wait that runs late, while its channel is still subscribed.
		g, err := sendAttempt(
			raw,
			contract.Attempt{Field: field, Lease: time.Minute, HoldCount: 1, Delivery: contract.Push, Asked: 7},
		)
		b.must(err)
		assert.Equal(t, contract.Busy, g.Status)
		b.must(l.Unlock(ctx))
		testredis.Await(t, "the lock is free again", engine.ProvisionalLease/2, func() bool {
			return b.rdb.Exists(ctx, b.name).Val() == 0
		})
		assert.Empty(t, b.queue())
	})
}

// A user that may not ask who is subscribed learns it from the answer to the grant.
func TestFairGrantWithoutTheRightToCountListeners(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	b.must(
		b.rdb.Do(
			ctx,
			"acl",
			"setuser",
			"blind",
			"reset",
			"on",
			">pass",
			"allkeys",
			"allchannels",
			"allcommands",
			"-pubsub",
		).Err(),
	)
	l := b.clientOn(
		testredis.Client(t, b.addr, func(o *redis.Options) { o.Username, o.Password = "blind", "pass" }),
	).NewFairLock(
		b.name,
	)
	b.must(l.Lock(ctx))
	deaf, next := b.newFairWaiter(l, 1), b.newFairWaiter(l, 2)
	deaf.asks(contract.Push, time.Minute)
	next.asks(contract.Push, time.Minute)
	deaf.goesDeaf()
	b.must(l.Unlock(ctx))
	next.isGranted(engine.ProvisionalLease, 0)
	assert.Equal(t, []string{deaf.field}, b.queue())
	deaf.leaves()
	next.leaves()
}

// If the key of the line holds other data, a subscribed waiter gets an error, and everything else works.
func TestFairLineThatIsNoLine(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx, owner := context.Background(), ContextWithOwner(context.Background())
		line := "relock_line:{" + b.name + "}"
		b.must(b.rdb.Set(ctx, line, "other data", 0).Err())
		l := b.client().NewFairLock(b.name)
		b.must(l.Lock(ctx))
		err := b.client().NewFairLock(b.name).Lock(owner)
		b.mustBe(err, ErrNotALock)
		assert.ErrorContains(t, err, "the key "+shortName(line)+" holds a string")
		testredis.Await(t, "the waiter has left", soon, func() bool { return len(b.queue()) == 0 })
		deaf := b.newFairWaiter(l, 1)
		assert.Equal(t, contract.Busy, deaf.asks(contract.Defer, time.Minute), "a waiter that does not listen")
		b.must(l.Unlock(ctx))
		deaf.isWoken()
		deaf.leaves()
		assert.Equal(t, "other data", b.rdb.GetDel(ctx, line).Val())
	})
}

// fairQueueKeys returns the keys of the waiters and the timeouts of a fair lock, which Redisson has, too.
func (b *bench) fairQueueKeys() []string {
	return []string{"redisson_lock_queue:{" + b.name + "}", "redisson_lock_timeout:{" + b.name + "}"}
}

// Relock waiters whose heartbeats have all expired have crashed, and no client used the lock for minutes afterwards.
// Java waiters keep their positions, and their timeouts count from the live waiters ahead of them.
func TestFairWaitersWithoutHeartbeatsAreDead(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewFairLock(b.name)
		raw := l.lock.(*fairLock)
		vanish := func() {
			t.Helper()
			b.must(b.rdb.Del(ctx, b.name, raw.keys[3], raw.keys[4]).Err()) // the record, the heartbeats and the requests
		}
		holder := b.newFairWaiter(l, 9)
		assert.Equal(t, contract.Held, holder.asks("", time.Minute))
		for n := range 3 {
			b.newFairWaiter(l, n+1).asks(contract.Push, time.Minute)
		}
		vanish()
		b.tries(l, true)
		assert.Empty(t, b.queue())
		b.must(l.Unlock(ctx))

		assert.Equal(t, contract.Held, holder.asks("", time.Minute))
		ahead := b.newJavaWaiter(l, 4)
		dead := b.newFairWaiter(l, 5)
		dead.asks("", time.Minute)
		java := b.newJavaWaiter(l, 6)
		vanish()
		b.tries(l, false)
		assert.Equal(t, []string{ahead.field, dead.field, java.field}, b.queue(), "behind a head that may live")
		b.must(b.rdb.LPop(ctx, raw.keys[1]).Err())
		b.must(b.rdb.ZRem(ctx, raw.keys[2], ahead.field).Err())
		before := b.rdb.ZScore(ctx, raw.keys[2], java.field).Val()
		b.tries(l, false)
		java.isWoken()
		assert.Equal(t, []string{java.field}, b.queue())
		assert.Equal(t, float64(raw.waitTimeout()), before-b.rdb.ZScore(ctx, raw.keys[2], java.field).Val(), "Java moves up")
		java.leaves()
		b.isFree()
	})
}

// The queue of a fair lock stays no longer than Redisson keeps the position of a Java service behind the last waiter.
// If a Java service waits, it stays.
func TestFairQueueOfRelockAloneExpires(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		for _, worth := range []time.Duration{2 * time.Second, 10 * time.Minute} {
			b := newBench(t, addr)
			ctx := context.Background()
			l := b.client(WithFairWaitTimeout(worth)).NewFairLock(b.name)
			lasts := func(from, to time.Duration) {
				t.Helper()
				for _, key := range b.fairQueueKeys() {
					left := b.rdb.PTTL(ctx, key).Val()
					assert.Greater(t, left, from-soon, key)
					assert.LessOrEqual(t, left, to, key)
				}
			}
			b.must(l.LockLease(ctx, time.Minute))
			first, last := b.newFairWaiter(l, 1), b.newFairWaiter(l, 2)
			first.asks("", time.Minute)
			lasts(max(queueLife, time.Minute+2*worth), max(queueLife, time.Minute+2*worth+soon))
			last.asks("", time.Minute)
			lasts(max(queueLife, time.Minute+3*worth), max(queueLife, time.Minute+3*worth+soon))
			first.asks("", time.Minute)
			lasts(max(queueLife, time.Minute+3*worth), max(queueLife, time.Minute+3*worth+soon))
			for _, evicted := range b.fairQueueKeys() {
				b.must(b.rdb.Persist(ctx, evicted).Err()) // as one that is new
				last.asks("", time.Minute)
				lasts(max(queueLife, time.Minute+3*worth), max(queueLife, time.Minute+3*worth+soon))
			}

			// The entries of some waiters are missing, and their heartbeats are left: this is not a Java waiter.
			stale := make([]redis.Z, 3)
			for i := range stale {
				stale[i] = redis.Z{
					Score:  float64(time.Now().Add(time.Minute).UnixMilli()),
					Member: fmt.Sprintf("%s:%d:01", b.client().ID(), i),
				}
			}
			b.must(b.rdb.ZAdd(ctx, first.lock.keys[3], stale...).Err())
			for _, key := range b.fairQueueKeys() {
				b.must(b.rdb.Persist(ctx, key).Err())
			}
			last.asks("", time.Minute)
			lasts(max(queueLife, time.Minute+3*worth), max(queueLife, time.Minute+3*worth+soon))
			for _, z := range stale {
				b.must(b.rdb.ZRem(ctx, first.lock.keys[3], z.Member).Err())
			}

			java := b.newJavaWaiter(l, 3)
			last.asks("", time.Minute)
			lasts(10000*time.Hour, 1e6*time.Hour)
			b.must(
				b.rdb.Eval(
					ctx,
					javaGiveUp,
					first.lock.keys[:3],
					java.field,
					"",
					1000,
					worth.Milliseconds(),
					time.Now().UnixMilli(),
				).Err(),
			)
			last.asks("", time.Minute)
			lasts(max(queueLife, 2*worth), max(queueLife, time.Minute+3*worth+soon))

			// The waiters ahead of Java have crashed: the next script of any kind notices.
			java = b.newJavaWaiter(l, 4)
			b.must(b.rdb.Del(ctx, first.lock.keys[3]).Err())
			b.tries(b.client(WithFairWaitTimeout(worth)).NewFairLock(b.name), false)
			assert.Equal(t, []string{java.field}, b.queue())
			lasts(10000*time.Hour, 1e6*time.Hour)
			java.leaves()
			b.must(l.Unlock(ctx))
		}
	})
}

const queueLife = 5 * time.Minute // in internal/lua/queue.lua

// The clock of Redis goes back: a crashed waiter blocks the others for as long as otherwise, and not for the length of
// the jump.
func TestFairDeadWaiterIsEvictedAfterTheClockWentBack(t *testing.T) {
	mini := testredis.StillMini(t)
	b := newBench(t, mini.Addr())
	ctx := context.Background()
	now := time.Unix(1_700_000_000, 0)
	const worth = time.Minute
	l := b.client(WithFairWaitTimeout(worth)).NewFairLock(b.name)
	keys := l.lock.(*fairLock).keys
	pass := func(d time.Duration) {
		now = now.Add(d)
		mini.SetTime(now)
	}
	pass(0)
	b.must(l.Lock(ctx))
	dead, lives := b.newFairWaiter(l, 1), b.newFairWaiter(l, 2)
	dead.asks("", time.Minute)
	lives.asks(contract.Push, time.Minute)
	pass(-10 * time.Minute)
	lives.asks(contract.Push, time.Minute)
	last := time.UnixMilli(int64(b.rdb.ZScore(ctx, keys[2], lives.field).Val()))
	assert.LessOrEqual(t, last.Sub(now), time.Minute+2*worth+fairLife, "the timeout that Java counts from")
	assert.LessOrEqual(t, b.rdb.PTTL(ctx, keys[4]).Val(), queueLife, "the wishes of waiters that have died go")
	b.must(l.Unlock(ctx))
	b.isFree()
	for range fairLife/fairHeartbeat + 1 {
		assert.Equal(t, []string{dead.field, lives.field}, b.queue())
		pass(fairHeartbeat)
		if lives.asks(contract.Push, time.Minute) == contract.Held {
			break
		}
	}
	assert.Equal(t, map[string]string{lives.field: "1"}, b.rdb.HGetAll(ctx, b.name).Val(), "the record")
	assert.Empty(t, b.queue())
	lives.leaves()
}

// A waiter that Redis knows to be disconnected is passed over, and keeps its position: its process has crashed, or its
// connection was cut for a moment.
func TestFairLockPassesOverWaitersThatNobodyHears(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewFairLock(b.name)
		keys := l.lock.(*fairLock).keys
		waiters := make([]*fairWaiter, 7)
		b.must(l.Lock(ctx))
		for n := range waiters {
			waiters[n] = b.newFairWaiter(l, n+1)
			waiters[n].asks(contract.Push, time.Minute)
		}
		for _, n := range []int{0, 1, 2, 4} {
			waiters[n].goesDeaf()
		}
		fields := func(of ...int) (all []string) {
			for _, n := range of {
				all = append(all, waiters[n].field)
			}
			return all
		}
		timeout := func(n int) float64 { return b.rdb.ZScore(ctx, keys[2], waiters[n].field).Val() }
		worth, front, behind := float64(l.lock.(*fairLock).waitTimeout()), timeout(2), timeout(6)
		b.must(l.Unlock(ctx))
		waiters[3].isGranted(engine.ProvisionalLease, 0)
		assert.Equal(t, fields(0, 1, 2, 4, 5, 6), b.queue())
		assert.Equal(t, front, timeout(2), "nobody in front of it was served")
		assert.Equal(t, worth, behind-timeout(6), "it moves up")
		waiters[3].release()
		waiters[5].isGranted(engine.ProvisionalLease, 0)

		// A live waiter learns of it, and is no longer passed over.
		g, err := sendAttempt(
			waiters[1].lock,
			contract.Attempt{Field: waiters[1].field, Lease: time.Minute, HoldCount: 1, Delivery: contract.Push, Asked: 1},
		)
		b.must(err)
		assert.True(t, g.Standing.SubscriptionLost())
		waiters[5].release()
		b.isFree()
		assert.Equal(t, contract.Busy, waiters[6].asks(contract.Push, time.Minute))
		assert.Equal(t, contract.Held, waiters[1].asks(contract.Defer, time.Minute))
		assert.Equal(t, fields(0, 2, 4, 6), b.queue())
		second(waiters[1].lock.client.send(waiters[1].lock.Force()))
		waiters[6].isGranted(engine.ProvisionalLease, 0)
		waiters[6].release()
		b.isFree()
		assert.Empty(t, b.queue(), "nothing stays of waiters that nobody hears")
	})
}

// A newcomer does not wait for disconnected waiters either, if a lease has expired and no release has run.
func TestFairNewcomerPassesOverWaitersThatNobodyHears(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewFairLock(b.name)
		holder, dead := b.newFairWaiter(l, 1), b.newFairWaiter(l, 2)
		assert.Equal(t, contract.Held, holder.asks(contract.Push, time.Minute))
		dead.asks(contract.Push, time.Minute)
		dead.goesDeaf()
		b.must(b.rdb.Del(ctx, b.name).Err())
		b.tries(l, true)
		assert.Equal(t, []string{dead.field}, b.queue())
		b.must(l.Unlock(ctx))
		assert.Empty(t, b.queue())
	})
}

// A waiter that may not subscribe, or has not subscribed yet, polls, and acquires the lock although waiters ahead of it
// are disconnected.
func TestFairWaiterThatAsksTakesTheLockBehindThoseThatNobodyHears(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewFairLock(b.name)
		dead, asks, last := b.newFairWaiter(l, 1), b.newFairWaiter(l, 2), b.newFairWaiter(l, 3)
		b.must(l.Lock(ctx))
		dead.asks(contract.Push, time.Minute)
		asks.asks(contract.Poll, time.Minute)
		last.asks(contract.Push, time.Minute)
		dead.goesDeaf()
		b.must(l.Unlock(ctx))
		assert.Equal(t, "0", asks.hears())
		b.isFree()
		assert.Equal(t, contract.Busy, last.asks(contract.Push, time.Minute), "it is not its turn")
		b.isFree()
		assert.Equal(t, contract.Held, asks.asks(contract.Poll, time.Minute))
		assert.Equal(t, []string{dead.field, last.field}, b.queue())
		asks.release()
		last.isGranted(engine.ProvisionalLease, 0)
		last.leaves()
		dead.leaves()
	})
}

// Java cannot pass over a waiter: disconnected waiters are removed from the queue if Java is the next.
func TestFairWaitersThatNobodyHearsLetJavaPass(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewFairLock(b.name)
		raw := l.lock.(*fairLock)
		b.must(l.Lock(ctx))
		for n := range 2 {
			w := b.newFairWaiter(l, n+1)
			w.asks(contract.Push, time.Minute)
			w.goesDeaf()
		}
		java := b.newJavaWaiter(l, 3)
		b.must(l.Unlock(ctx))
		java.isWoken()
		left := time.Until(time.UnixMilli(int64(b.rdb.ZScore(ctx, raw.keys[2], java.field).Val())))
		assert.LessOrEqual(t, left, 30*time.Second+b.clientTimeout(raw), "the timeout of the first waiter")
		got, err := b.rdb.Eval(
			ctx,
			javaAcquire,
			raw.keys[:3],
			java.field,
			raw.announce,
			1000,
			raw.waitTimeout(),
			time.Now().UnixMilli(),
		).Int()
		b.must(err)
		assert.Equal(t, 1, got, "Java has the lock")
		b.must(b.rdb.Del(ctx, b.name).Err())
	})
}

// clientTimeout is the timeout of a position in the queue.
func (b *bench) clientTimeout(l *fairLock) time.Duration { return fromMilliseconds(l.waitTimeout()) }

// A request that runs after its caller has left neither acquires the lock nor enters the queue. If no request can run
// late, nothing stays.
func TestFairLateRequestOfACallerThatHasLeft(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewFairLock(b.name)
		line := lineKey(b.name)
		holder, late, next := b.newFairWaiter(l, 1), b.newFairWaiter(l, 2), b.newFairWaiter(l, 3)
		assert.Equal(t, contract.Held, holder.asks(contract.Push, time.Minute))
		late.asks(contract.Push, time.Minute)
		late.leaves()
		assert.Zero(t, b.rdb.Exists(ctx, line).Val(), "a tombstone where no request can run")
		late.undoes(true)
		assert.Equal(t, contract.Busy, late.asks(contract.Push, time.Minute))
		assert.Empty(t, b.queue(), "it queues again")
		left := b.rdb.PTTL(ctx, line).Val()
		assert.Greater(t, left, 30*time.Second)
		assert.LessOrEqual(t, left, time.Minute)

		// Other waiters are not affected.
		g, err := sendAttempt(
			next.lock,
			contract.Attempt{Field: next.field, Lease: time.Minute, HoldCount: 1, Delivery: contract.Push, Asked: 1},
		)
		b.must(err)
		assert.False(t, g.Standing.LegacyHolder(), "it has to listen to a channel of its own")
		next.leaves()
		_, err = holder.lock.client.send(holder.lock.Release(released(holder.field, 0, true)))
		b.must(err)
		for _, w := range []*fairWaiter{late, holder} {
			assert.Equal(t, contract.Busy, w.asks(contract.Push, time.Minute), "a late request takes the lock")
			b.isFree()
		}
		b.tries(l, true)
		b.must(l.Unlock(ctx))

		const most = 100 // in internal/lua/queue.lua
		for n := range most {
			other := *next
			other.field = fmt.Sprint(next.client, ":7:00", n)
			other.undoes(true)
		}
		assert.Equal(t, contract.Held, late.asks(contract.Push, time.Minute), "tombstones have a bound: the oldest goes")
		late.leaves()
		over := b.rdb.HGet(ctx, line, "over").Val()
		assert.Len(t, strings.Fields(over), 2*most)
		b.must(b.rdb.HSet(ctx, line, "over", holder.field+" 1").Err())
		assert.Equal(t, contract.Held, holder.asks(contract.Push, time.Minute), "a tombstone whose time is over")
		holder.leaves()
		assert.Zero(t, b.rdb.Exists(ctx, line).Val())
	})
}

// If Redis was unavailable, or its clock went back, all waiters keep their positions, however many they are: one script
// handles some thousands, and the next one continues.
func TestFairVeryManyWaitersSurviveAnOutage(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	ctx := context.Background()
	const many = 6000 // more than one script handles
	for what, beat := range map[string]time.Duration{"an outage": -time.Minute, "the clock went back": time.Hour} {
		t.Run(what, func(t *testing.T) {
			b := newBench(t, s.Addr())
			l := b.client().NewFairLock(b.name)
			keys := l.lock.(*fairLock).keys
			b.must(b.client().NewFairLock(b.name).Lock(ctx))
			now := time.Now()
			b.must(b.rdb.Eval(ctx, `
				for i = 1, ARGV[1] do
					local field = ARGV[2] .. ':' .. i .. ':0' .. i
					redis.call('rpush', KEYS[1], field)
					redis.call('zadd', KEYS[2], ARGV[3] + i, field)
					redis.call('zadd', KEYS[3], ARGV[4] + i, field)
				end
				redis.call('zadd', KEYS[3], ARGV[4], '')
				return 1`, keys[1:4], many, uuid.NewString(), now.Add(time.Hour).UnixMilli(), now.Add(beat).UnixMilli()).Err())
			other := b.newFairWaiter(l, 1)
			for range 8 {
				other.asks("", time.Minute)
				assert.Equal(t, int64(many+1), b.rdb.LLen(ctx, keys[1]).Val(), "waiters")
			}
			until := strconv.FormatInt(time.Now().Add(fairLife).UnixMilli(), 10)
			assert.Zero(t, b.rdb.ZCount(ctx, keys[3], "("+until, "+inf").Val(), "heartbeats that last for too long")
			assert.Zero(
				t,
				b.rdb.ZCount(ctx, keys[3], "-inf", strconv.FormatInt(now.UnixMilli()-1, 10)).Val(),
				"heartbeats that are over",
			)
			b.rdb.Del(ctx, append(keys, b.name)...)
		})
	}
}
