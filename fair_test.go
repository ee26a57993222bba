package relock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/testredis"
)

func newFairLock(c *Client, name string) Locker { return c.NewFairLock(name) }

func TestFairLock(t *testing.T) { testLocker(t, newFairLock) }

func TestFencedFairLock(t *testing.T) {
	testLocker(t, func(c *Client, name string) Locker { return c.NewFairLock(name, Fenced()) })
}

// A fair and a plain lock of one name share the record, and exclude.
func TestFairLockAndLockExclude(t *testing.T) {
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

// queue is the queue of the bench's fair lock, as it is in Redis.
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

// A line of waiters: who gets the lock is noted, kept for a moment, and passed on.
type line struct {
	*bench
	wg  sync.WaitGroup
	mu  sync.Mutex // guards got
	got []string
}

// join has l waited for by a goroutine called name, and returns when it stands in the queue.
func (q *line) join(ctx context.Context, l Locker, name string) {
	q.Helper()
	n := len(q.queue())
	q.wg.Go(func() {
		if err := l.Lock(ctx); err != nil {
			if ctx.Err() == nil {
				q.Errorf("%s: %v", name, err)
			}
			return
		}
		q.mu.Lock()
		q.got = append(q.got, name)
		q.mu.Unlock()
		if err := l.Unlock(ctx); err != nil {
			q.Errorf("%s: %v", name, err)
		}
	})
	q.awaitQueue(n + 1)
}

func (q *line) wantOrder(want ...string) {
	q.Helper()
	q.wg.Wait()
	if !slices.Equal(q.got, want) {
		q.Errorf("served %v, want %v", q.got, want)
	}
}

func TestFairOrderOverClients(t *testing.T) {
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

func TestFairAbandonedWaiters(t *testing.T) {
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
		q.wg.Go(func() {
			if err := closing.NewFairLock(q.name).Lock(ctx); !errors.Is(err, ErrClosed) {
				t.Errorf("%v", err)
			}
		})
		q.awaitQueue(7)
		q.wg.Go(func() {
			if ok, err := q.client().NewFairLock(q.name).TryLock(ctx, 1500*time.Millisecond, 0); ok || err != nil && !errors.Is(err, errNoAnswer) { // on a machine that is very busy
				t.Errorf("%v, %v", ok, err)
			}
		})
		q.awaitQueue(8)
		q.awaitQueue(7) // its time is up
		cancels[0]()    // the first in line
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

// The first in line gives up just when it was woken: the next one is.
func TestFairTurnIsPassedOn(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	held := b.direct.NewFairLock(b.name)
	b.must(b.rdb.ScriptLoad(ctx, fairAcquire.source).Err())
	b.must(held.Lock(ctx))
	waiting, cancel := context.WithCancel(ctx)
	first := make(chan error, 1)
	go func() { first <- b.shaky().NewFairLock(b.name).Lock(waiting) }()
	b.awaitQueue(1)
	second := make(chan error, 1)
	owner := WithOwner(ctx)
	next := b.client(WithMaxWakeDelay(time.Hour)).NewFairLock(b.name)
	go func() { second <- next.Lock(owner) }()
	b.awaitQueue(2)
	// Whatever the first one asks from here on is held up, so that it cannot take its turn.
	rule := b.proxy.On(calls(fairAcquire), testredis.DropRequest).Times(testredis.Always)
	b.must(held.Unlock(ctx))
	cancel()
	b.mustBe(await(b.bench, "the first gives up", first), context.Canceled)
	b.must(await(b.bench, "the second gets the lock", second))
	rule.Release()
	b.must(next.Unlock(owner))
}

// A process that is gone, at the head or further behind, is noticed in seconds.
func TestFairCrashedWaiters(t *testing.T) {
	b := newFaultBench(t)
	q := line{bench: b.bench}
	ctx := context.Background()
	held := b.direct.NewFairLock(b.name)
	b.must(held.Lock(ctx))
	crashing, cancel := context.WithCancel(ctx)
	defer cancel()
	doomed, alive := b.shaky(), b.client()
	q.join(crashing, doomed.NewFairLock(b.name), "crashed 1")
	q.join(ctx, alive.NewFairLock(b.name), "1")
	q.join(crashing, doomed.NewFairLock(b.name), "crashed 2")
	q.join(ctx, alive.NewFairLock(b.name), "2")
	b.proxy.BlackHole(true)
	start := time.Now()
	testredis.Await(t, "the dead are noticed while the lock is held", fairLife+2*soon, func() bool { return len(b.queue()) == 2 })
	if took := time.Since(start); took < fairLife-fairHeartbeat-500*time.Millisecond {
		t.Errorf("they were given up after %v", took)
	}
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

// The lock is free and the head of the queue is dead.
func TestFairDeadHeadOfAFreeLock(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	held := b.direct.NewFairLock(b.name)
	b.must(held.Lock(ctx))
	crashing, cancel := context.WithCancel(ctx)
	got := b.startWaiter(crashing, b.shaky(WithWatchdogTimeout(12*time.Second)).NewFairLock(b.name))
	b.awaitQueue(1)
	b.proxy.BlackHole(true)
	b.must(held.Unlock(ctx)) // wakes nobody who lives
	start := time.Now()
	next := b.direct.NewFairLock(b.name)
	b.tries(next, false) // it is not known to be dead yet
	b.must(next.Lock(ctx))
	if took := time.Since(start); took > fairLife+2*fairHeartbeat+soon {
		t.Errorf("took %v", took)
	}
	b.must(next.Unlock(ctx))
	cancel()
	b.proxy.BlackHole(false)
	b.mustBe(await(b.bench, "the dead one comes back", got), context.Canceled)
	// All that it has asked for meanwhile arrives now, in any order, and some of it after
	// it was undone: that ends with its lease, or with its last sign of life.
	testredis.Await(b, "what came late is gone", 4*soon, func() bool {
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
		// Somebody of Java's stands in the queue of a lock that is free.
		b.must(b.rdb.RPush(ctx, "redisson_lock_queue:{"+b.name+"}", "java:1").Err())
		b.must(b.rdb.ZAdd(ctx, "redisson_lock_timeout:{"+b.name+"}", redis.Z{Score: float64(time.Now().Add(time.Minute).UnixMilli()), Member: "java:1"}).Err())
		l := b.client().NewFairLock(b.name)
		b.tries(l, false)
		if q := b.queue(); len(q) != 1 {
			t.Errorf("queue %v", q)
		}
		if keys := b.keys(); len(keys) != 2 {
			t.Errorf("keys %v", keys)
		}
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
		if n := len(q.queue()); n != 1 {
			t.Errorf("%d in the queue", n)
		}
		for range 3 {
			q.must(l.Unlock(ctx))
		}
		q.wantOrder("other")
	})
}

// What 20 waiters cost Redis while they wait, also behind a dead head.
func TestFairWaitersAreCheap(t *testing.T) {
	b := newFaultBench(t)
	q := line{bench: b.bench}
	ctx := context.Background()
	held := b.direct.NewFairLock(b.name)
	b.must(held.Lock(ctx))
	b.must(b.rdb.RPush(ctx, "redisson_lock_queue:{"+b.name+"}", "java:1").Err()) // a dead Java head, for a while
	b.must(b.rdb.ZAdd(ctx, "redisson_lock_timeout:{"+b.name+"}", redis.Z{Score: float64(time.Now().Add(8 * time.Second).UnixMilli()), Member: "java:1"}).Err())
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
	time.Sleep(watch)
	stats := b.rdb.Info(ctx, "commandstats").Val()
	var calls int
	for line := range strings.Lines(stats) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_evalsha:calls="); ok {
			fmt.Sscanf(rest, "%d", &calls)
		}
	}
	if most := int(1.5 * waiters * watch.Seconds()); calls > most || calls == 0 {
		t.Errorf("%d waiters made %d calls in %v", waiters, calls, watch)
	}
	q.wantOrder(want...)
}

// WIRE.md 1.3: what Java finds, and what it is left with.
func TestFairRecordIsRedissons(t *testing.T) {
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
			if left := time.Until(time.UnixMilli(int64(score))); left > want || left < want-20*time.Second {
				t.Errorf("number %d has a timeout in %v, want %v", i+1, left, want)
			}
		}
		if !strings.HasPrefix(queue[0], c.engine.id+":") {
			t.Errorf("queue %v", queue)
		}
		// A Java waiter behind them moves up with every one that is served, and is woken on its own channel.
		java := redis.Z{Score: float64(time.Now().Add(30*time.Second + 3*worth).UnixMilli()), Member: "java:7"}
		q.must(q.rdb.ZAdd(ctx, timeouts, java).Err())
		q.must(q.rdb.RPush(ctx, "redisson_lock_queue:{"+q.name+"}", "java:7").Err())
		messages := q.rdb.Subscribe(ctx, "redisson_lock__channel:{"+q.name+"}:java:7")
		_, err := messages.Receive(ctx)
		q.must(err)
		q.must(l.Unlock(ctx))
		m, err := messages.ReceiveMessage(ctx)
		if err != nil || m.Payload != "0" {
			t.Errorf("%v, %v", m, err)
		}
		q.must(messages.Close())
		q.wantOrder("first", "second")
		if score := q.rdb.ZScore(ctx, timeouts, "java:7").Val(); score != java.Score-2*float64(worth.Milliseconds()) {
			t.Errorf("the timeout of the Java waiter moved by %v ms", java.Score-score)
		}
		if queue := q.queue(); !slices.Equal(queue, []string{"java:7"}) {
			t.Errorf("queue %v", queue)
		}
		q.must(q.rdb.Del(ctx, q.keys()...).Err())
	})
}

// B7: a head without a timeout would stay for ever; one whose timeout is over is passed by.
func TestFairStrangeHeads(t *testing.T) {
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

// A living waiter keeps its place against Java, however long it waits, and however little a place is worth.
func TestFairPatientWaiterKeepsItsPlace(t *testing.T) {
	t.Parallel()
	for _, worth := range []time.Duration{time.Second, 2 * time.Second} {
		t.Run(worth.String(), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, testredis.Start(t).Addr())
			q := line{bench: b}
			ctx := context.Background()
			held := b.client(WithWatchdogTimeout(time.Second)).NewFairLock(b.name) // so that a place is worth 1s more at first
			b.must(held.Lock(ctx))
			c := b.client(WithFairWaitTimeout(worth), WithMaxWakeDelay(time.Hour))
			visitor := b.client().NewFairLock(b.name)
			q.join(ctx, c.NewFairLock(b.name), "first")
			q.join(ctx, c.NewFairLock(b.name), "second")
			b.must(b.rdb.PExpire(ctx, b.name, time.Hour).Err()) // they show signs of life no sooner than they must
			queue := b.queue()
			keys := []string{b.name, "redisson_lock_queue:{" + b.name + "}", "redisson_lock_timeout:{" + b.name + "}"}
			for start := time.Now(); time.Since(start) < fairLife+2*time.Second; time.Sleep(2 * time.Millisecond) {
				b.tries(visitor, false) // and so does one of ours
				// A Java client comes by, buries whom it takes for dead, and goes.
				for _, script := range []string{javaAcquire, javaGiveUp} {
					b.must(b.rdb.Eval(ctx, script, keys, "java:1", "channel", 1000, worth.Milliseconds(), time.Now().UnixMilli()).Err())
				}
				if now := b.queue(); !slices.Equal(now, queue) {
					t.Fatalf("the queue was %v and is %v", queue, now)
				}
			}
			b.must(held.Unlock(ctx))
			q.wantOrder("first", "second")
		})
	}
}

// Giving up at the head of the queue of a free lock wakes the next one by message.
func TestFairGivingUpWakesTheNext(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewFairLock(b.name).lock.(*fairLock)
		holder, first, last := javaOther+":1", javaOther+":2", javaOther+":3"
		for _, field := range []string{holder, first, last} {
			g, err := l.acquire(ctx, attempt{field: field, lease: time.Minute, level: 1})
			if b.must(err); g.state == busy && (g.wait <= 0 || g.wait > fairHeartbeat) {
				t.Errorf("%s is to ask again after %v: too late to show that it lives", field, g.wait)
			}
		}
		b.must(b.rdb.Del(ctx, b.name).Err()) // the holder is gone
		messages := b.rdb.Subscribe(ctx, l.channel(attempt{field: last}))
		defer messages.Close()
		_, err := messages.Receive(ctx)
		b.must(err)
		if _, err := l.abandon(ctx, attempt{field: first, level: 1}); err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() { got <- second(messages.ReceiveMessage(ctx)) }()
		b.must(await(b, "the message to the second", got))
		if _, err := l.abandon(ctx, attempt{field: last, level: 1}); err != nil {
			t.Fatal(err)
		}
	})
}

// Redis was away for longer than a sign of life lasts: nobody loses its place.
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
	time.Sleep(fairLife + time.Second)
	b.server.Thaw()
	for start := time.Now(); time.Since(start) < 2*fairHeartbeat; time.Sleep(50 * time.Millisecond) {
		if now := b.queue(); !slices.Equal(now, queue) {
			t.Fatalf("the queue was %v and is %v", queue, now)
		}
	}
	b.must(held.Unlock(ctx))
	q.wantOrder(want...)
}

// A waiter whose subscription is not confirmed shows that it lives all the same.
func TestFairWaiterWithoutSubscription(t *testing.T) {
	b := newFaultBench(t)
	q := line{bench: b.bench}
	ctx := context.Background()
	held := b.direct.NewFairLock(b.name)
	b.must(held.LockLease(ctx, time.Hour))
	rule := b.proxy.On(testredis.Command("subscribe"), testredis.StallReply).Times(testredis.Always)
	q.join(ctx, b.shaky(WithMaxWakeDelay(time.Hour)).NewFairLock(b.name), "first")
	q.join(ctx, b.client().NewFairLock(b.name), "second")
	time.Sleep(fairLife + fairHeartbeat)
	if n := len(b.queue()); n != 2 {
		t.Errorf("%d in the queue", n)
	}
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
		if err := elsewhere(func() error { return l.Unlock(ctx) }); !strings.Contains(err.Error(), "holds it here") || strings.Contains(err.Error(), "nobody") {
			t.Errorf("%v", err)
		}
		b.must(l.Unlock(ctx))
	})
}

// A try without waiting leaves nothing in the queue, and so is one request.
func TestFairOneTryIsOneRequest(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	held := b.client().NewFairLock(b.name)
	b.must(held.Lock(ctx))
	rdb := testredis.Client(b, b.addr)
	sent := new(counter)
	rdb.AddHook(sent)
	l := b.clientOn(rdb).NewFairLock(b.name)
	if ok, err := l.TryLock(ctx, 0, 0); ok || err != nil { // the script is there afterwards
		t.Fatal(ok, err)
	}
	before := sent.n.Load()
	if ok, err := l.TryLock(ctx, 0, 0); ok || err != nil {
		t.Fatal(ok, err)
	}
	if n := sent.n.Load() - before; n != 1 {
		t.Errorf("%d requests", n)
	}
	b.must(held.Unlock(ctx))
}
