package relock

// Waiters of a fair lock that have crashed, or that are no longer subscribed.
//
// Rules: a crashed waiter blocks the others for seconds, also if the clock of Redis goes back, and its queue expires in
// the end. A waiter that does not hear its grant is passed over, and keeps its position
// if it is alive.

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
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

// newStillBench returns a bench on a server whose clock stands still, and a function that moves it.
func newStillBench(t *testing.T) (b *bench, pass func(time.Duration)) {
	mini, now := testredis.StillMini(t), time.Unix(1_700_000_000, 0)
	pass = func(d time.Duration) {
		now = now.Add(d)
		mini.SetTime(now)
	}
	pass(0)
	return newBench(t, mini.Addr()), pass
}

// The clock of Redis goes back: a crashed waiter blocks the others for as long as otherwise, and not for the length of
// the jump.
func TestFairDeadWaiterIsEvictedAfterTheClockWentBack(t *testing.T) {
	b, pass := newStillBench(t)
	ctx := context.Background()
	const worth = time.Minute
	l := b.client(WithFairWaitTimeout(worth)).NewFairLock(b.name)
	keys := l.lock.(*fairLock).keys
	b.must(l.Lock(ctx))
	dead, lives := b.newFairWaiter(l, 1), b.newFairWaiter(l, 2)
	dead.asks("", time.Minute)
	lives.asks(contract.Push, time.Minute)
	pass(-10 * time.Minute)
	lives.asks(contract.Push, time.Minute)
	last := time.UnixMilli(int64(b.rdb.ZScore(ctx, keys[2], lives.field).Val()))
	assert.LessOrEqual(t, last.Sub(b.rdb.Time(ctx).Val()), time.Minute+2*worth+fairLife, "the timeout that Java counts from")
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

// Calls on the lock are so rare that each of them may be the first one after an outage. A waiter that has crashed, and
// that no script passes over because it was not subscribed, is evicted all the same.
func TestFairDeadWaiterIsEvictedByRareCalls(t *testing.T) {
	for name, attempts := range map[string]int{"callers that do not wait": 0, "callers that wait for 3s": 3} {
		t.Run(name, func(t *testing.T) {
			b, pass := newStillBench(t)
			l := b.client().NewFairLock(b.name)
			holder, dead := b.newFairWaiter(l, 1), b.newFairWaiter(l, 2)
			assert.Equal(t, contract.Held, holder.asks("", time.Minute))
			dead.asks("", time.Minute)
			pass(20 * time.Second)
			holder.release()
			calls := func(n int) (got bool) {
				caller := b.newFairWaiter(l, 3+n)
				if attempts == 0 {
					g, err := sendAttempt(
						caller.lock,
						contract.Attempt{Field: caller.field, Lease: time.Minute, HoldCount: 1, NoWait: true},
					)
					b.must(err)
					got = g.Status == contract.Held
				}
				for range attempts {
					if got = caller.asks("", time.Minute) == contract.Held; got {
						break
					}
					pass(fairHeartbeat)
				}
				caller.leaves()
				return got
			}
			calls(0) // it may be the first one after an outage
			pass(20 * time.Second)
			assert.True(t, calls(1), "the lock is free, and nobody waits who is alive")
			assert.Empty(t, b.queue())
		})
	}
}

// A process that was unreachable together with the others may miss the first moments after the outage, and keeps its
// position.
func TestFairWaiterKeepsItsPositionIfItComesLateAfterAnOutage(t *testing.T) {
	b, pass := newStillBench(t)
	l := b.client().NewFairLock(b.name)
	holder, first, second := b.newFairWaiter(l, 1), b.newFairWaiter(l, 2), b.newFairWaiter(l, 3)
	assert.Equal(t, contract.Held, holder.asks("", time.Hour))
	want := []string{first.field, second.field}
	first.asks("", time.Minute)
	second.asks("", time.Minute)
	for range 2 {
		pass(20 * time.Second)
		for range fairLife/fairHeartbeat - 1 {
			second.asks("", time.Minute)
			pass(fairHeartbeat)
		}
		first.asks("", time.Minute)
		assert.Equal(t, want, b.queue())
	}
	first.leaves()
	second.leaves()
	holder.release()
	b.isFree()
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
			waiters[n].stopsListening()
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
		dead.stopsListening()
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
		dead.stopsListening()
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
