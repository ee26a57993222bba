package relock

// How a fair lock passes to a waiter that is subscribed, without a further request.
//
// Rules: only Redis grants. A grant is valid from the last request of its waiter. A grant that comes too late is
// released and the next waiter gets the lock. internal/lua/testdata/fair_grants.txt tells whom the scripts grant it.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/record"
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
	assert.Equal(t, fmt.Sprint(token), b.rdb.Get(ctx, record.TokenKey(b.name)).Val())
	assert.Empty(t, b.queue())
	assert.LessOrEqual(t, b.rdb.PTTL(ctx, b.name).Val(), engine.ProvisionalLease)
	testredis.Await(t, "the watchdog confirms the hold", soon, func() bool {
		return b.rdb.PTTL(ctx, b.name).Val() > 2*engine.ProvisionalLease
	})
	asks.Release()
	b.must(l.Unlock(owner))
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
		b.must(l.Unlock(ctx))
		assert.Equal(t, "other data", b.rdb.GetDel(ctx, line).Val())
	})
}
