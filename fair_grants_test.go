package relock

// How a fair lock passes to a waiter that is subscribed, without a further request.
//
// Rules: only Redis grants, and only to a waiter that listens and asks for it. A grant is valid from the last request of
// its waiter. A grant that comes too late is released and the next waiter gets the lock.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/testredis"
)

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
func (w *fairWaiter) leaves() { w.rollsBack(false) }

// rollsBack makes the waiter give up. If late is set, one of its requests may still run.
func (w *fairWaiter) rollsBack(late bool) {
	w.Helper()
	_, err := w.lock.client.send(w.lock.RollBack(contract.Attempt{Field: w.field, HoldCount: 1, Late: late}))
	w.must(err)
}

// stopsListening closes the connection on which the waiter is subscribed.
func (w *fairWaiter) stopsListening() {
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
		older, quiet := b.newFairWaiter(l, 2), b.newFairWaiter(l, 3)
		silent, next := b.newFairWaiter(l, 4), b.newFairWaiter(l, 5)
		b.must(l.Lock(ctx))
		java := b.newJavaWaiter(l, 1)
		older.asks("", time.Minute)
		quiet.asks(contract.Push, time.Minute)
		quiet.asks(contract.Defer, time.Minute) // its connection was cut meanwhile
		silent.asks(contract.Push, time.Minute)
		silent.stopsListening()
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
		assert.Equal(t, []string{silent.field}, b.queue(), "a waiter that may be alive keeps its place")
		b.must(all.Close())
		next.leaves()
		silent.leaves()
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
		assert.Equal(t, contract.Busy, first.asks(contract.Push, time.Minute), "a grant that has expired")
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
	q := servedQueue{bench: b}
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
	assert.Positive(t, asks.Count(), "requests, because the grant is older than its lease")
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
func TestFairGrantToAWaitThatHasEndedIsReleased(t *testing.T) {
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
func TestFairGrantWithoutThePermissionToCountListeners(t *testing.T) {
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
	silent, next := b.newFairWaiter(l, 1), b.newFairWaiter(l, 2)
	silent.asks(contract.Push, time.Minute)
	next.asks(contract.Push, time.Minute)
	silent.stopsListening()
	b.must(l.Unlock(ctx))
	next.isGranted(engine.ProvisionalLease, 0)
	assert.Equal(t, []string{silent.field}, b.queue())
	silent.leaves()
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
		silent := b.newFairWaiter(l, 1)
		assert.Equal(t, contract.Busy, silent.asks(contract.Defer, time.Minute), "a waiter that does not listen")
		b.must(l.Unlock(ctx))
		silent.isWoken()
		silent.leaves()
		assert.Equal(t, "other data", b.rdb.GetDel(ctx, line).Val())
	})
}

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
		late.rollsBack(true)
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
			other.rollsBack(true)
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
