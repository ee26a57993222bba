package locks

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

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
)

// A waiter gives up when Redis has granted it the lock and it does not know yet: the lock passes to the next one.
func TestFairGrantToAWaiterThatGivesUpPassesToTheNext(t *testing.T) {
	b := locktest.NewFaultBench(t)
	held := b.Direct.NewFairLock(b.LockName)
	b.Must(held.Lock(ctx))
	waiting, cancel := context.WithCancel(ctx)
	first := make(chan error, 1)
	go func() { first <- b.Shaky().NewFairLock(b.LockName).Lock(waiting) }()
	awaitListening(b.Bench, 1)
	second := make(chan error, 1)
	owner := ContextWithOwner(ctx)
	next := b.Client(WithPollInterval(time.Hour)).NewFairLock(b.LockName)
	go func() { second <- next.Lock(owner) }()
	awaitListening(b.Bench, 2)
	queue := b.Queue()
	b.Proxy.BlackHole(true)
	b.Must(held.Unlock(ctx))
	assert.Equal(t, []string{queue[0]}, b.Rdb.HKeys(ctx, b.LockName).Val(), "the record")
	cancel()
	locktest.Stays(t, "the second has the lock too", second, 300*time.Millisecond)
	b.Proxy.BlackHole(false)
	b.MustBe(locktest.Await(b.Bench, "the first gives up", first), context.Canceled)
	b.Must(locktest.Await(b.Bench, "the second gets the lock", second))
	b.Must(next.Unlock(owner))
}

func awaitListening(b *locktest.Bench, n int) {
	b.Helper()
	testredis.Await(b, fmt.Sprintf("%d wait and listen", n), locktest.Soon, func() bool { return len(b.FairPlaces()) == n })
}

// From Unlock in one process to Lock in another takes one round trip: a waiter that is subscribed need not ask.
func TestFairGrantNeedsNoRequest(t *testing.T) {
	b := locktest.NewFaultBench(t)
	owner := ContextWithOwner(ctx)
	held := b.Direct.NewFairLock(b.LockName, Fenced())
	b.Must(held.Lock(ctx))
	before, err := held.Token(ctx)
	b.Must(err)
	l := b.Shaky().NewFairLock(b.LockName, Fenced())
	got := make(chan error, 1)
	go func() { got <- l.Lock(owner) }()
	awaitListening(b.Bench, 1)
	wish := b.FairPlaces()
	testredis.Await(t, "the next heartbeat", locktest.Soon, func() bool { return !maps.Equal(b.FairPlaces(), wish) })
	// There is a second until the next one.
	asks := b.Proxy.On(locktest.Calls(record.Script("fair_acquire")), testredis.DropRequest).Times(testredis.Always)
	b.Must(held.Unlock(ctx))
	b.Must(locktest.Await(b.Bench, "the waiter holds the lock", got))
	assert.Zero(t, asks.Count(), "requests")
	token, err := l.Token(owner)
	b.Must(err)
	assert.Greater(t, token, before)
	assert.Equal(t, fmt.Sprint(token), b.Rdb.Get(ctx, record.TokenKey(b.LockName)).Val())
	assert.Empty(t, b.Queue())
	assert.LessOrEqual(t, b.Rdb.PTTL(ctx, b.LockName).Val(), engine.ProvisionalLease)
	testredis.Await(t, "the watchdog confirms the hold", locktest.Soon, func() bool {
		return b.Rdb.PTTL(ctx, b.LockName).Val() > 2*engine.ProvisionalLease
	})
	asks.Release()
	b.Must(l.Unlock(owner))
}

// The waiters of a Client share one channel. Each also listens to its own channel while a client that knows no other
// holds the lock.
func TestFairWaitersOfAClientShareAChannel(t *testing.T) {
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	q := servedQueue{Bench: b}
	held, l := b.Client().NewFairLock(b.LockName), b.Client().NewFairLock(b.LockName)
	channels := func(want ...string) {
		t.Helper()
		slices.Sort(want)
		testredis.Await(t, fmt.Sprintf("the channels %v", want), locktest.Soon, func() bool {
			return slices.Equal(want, slices.Sorted(slices.Values(locktest.OfLocks(b.Rdb.PubSubChannels(ctx, "*").Val()))))
		})
	}
	raw := locktest.RecordOf(l)
	b.Must(held.Lock(ctx))
	for _, name := range []string{"first", "second", "third"} {
		q.join(ctx, l, name)
	}
	channels(raw.Grants(contract.Attempt{}))
	awaitListening(b, 3)
	before := b.FairPlaces()
	b.Must(held.Unlock(ctx))
	q.wantOrder("first", "second", "third")
	for field, place := range before {
		assert.NotContains(t, b.FairPlaces(), field, "the place %s", place)
	}

	b.Must(b.Rdb.HSet(ctx, b.LockName, locktest.JavaThread, 1).Err())
	b.Must(b.Rdb.PExpire(ctx, b.LockName, time.Minute).Err())
	q.got = nil
	q.join(ctx, l, "first")
	q.join(ctx, l, "second")
	queue := b.Queue()
	channels(locktest.AnnounceOf(raw)+queue[0], locktest.AnnounceOf(raw)+queue[1], raw.Grants(contract.Attempt{}))
	b.Must(b.Rdb.Del(ctx, b.LockName).Err())
	b.Must(b.Rdb.Publish(ctx, locktest.AnnounceOf(raw)+queue[0], 0).Err())
	q.wantOrder("first", "second")
}

// A holder whose lock draws no token passes the lock on all the same: the next one asks for its token.
func TestFairGrantWithoutATokenIsConfirmed(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		owner := ContextWithOwner(ctx)
		plain, fenced := b.Client().NewFairLock(b.LockName), b.Client().NewFairLock(b.LockName, Fenced())
		b.Must(plain.Lock(ctx))
		got := make(chan error, 1)
		go func() { got <- fenced.Lock(owner) }()
		awaitListening(b, 1)
		b.Must(plain.Unlock(ctx))
		b.Must(locktest.Await(b, "the waiter holds the lock", got))
		token, err := fenced.Token(owner)
		b.Must(err)
		assert.Positive(t, token)
		b.Must(fenced.Unlock(owner))
	})
}
