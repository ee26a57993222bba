package relock

// Holds of several permits.
//
// Rules: several permits are acquired, renewed, lost and released as one, or not at all. A waiter for several permits
// stops those who come later, but not for long if it does not react, and not if it wants more than there are.

import (
	"context"
	"fmt"
	"slices"
	"strconv"
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

// AcquireN acquires several permits as one hold, or none, and Java's counts stay right.
func TestSemaphoreAcquiresSeveralAtOnce(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		s := b.client().NewSemaphore(b.name, 5)
		h, err := s.AcquireN(ctx, 3)
		b.must(err)
		require.Equal(t, 2, b.permits(5))
		none, ok, err := s.TryAcquireN(ctx, 3, 0, 0)
		b.must(err)
		require.False(t, ok)
		require.Nil(t, none)
		require.Equal(t, 2, b.permits(5), "nothing is left of an attempt that was not granted")

		all, err := s.Holders(ctx)
		b.must(err)
		require.Len(t, all, 1, "one hold is one holder")
		assert.Equal(t, 3, all[0].Permits)
		assert.Equal(t, 1, all[0].HoldCount)
		assert.Equal(t, s.client.ID(), all[0].Client)
		held, err := s.IsHeld(h.Context())
		b.must(err)
		assert.True(t, held)
		count, err := s.HoldCount(h.Context())
		b.must(err)
		assert.Equal(t, 1, count, "whatever the number of permits is")
		b.must(s.Lock(h.Context()))
		count, err = s.HoldCount(h.Context())
		b.must(err)
		assert.Equal(t, 2, count)
		require.Equal(t, 2, b.permits(5), "a hold is re-entered as a whole")
		b.must(s.Unlock(h.Context()))
		single, err := s.AcquireN(ctx, 1)
		b.must(err)
		pair, ok, err := s.TryAcquireN(ctx, 1, 0, time.Minute)
		b.must(err)
		require.True(t, ok)
		b.must(pair.Extend(ctx, 2*time.Minute))
		b.must(h.Release(ctx))
		b.must(single.Release(ctx))
		pair2, ok, err := s.TryAcquireN(ctx, 4, 0, time.Minute)
		b.must(err)
		require.True(t, ok)
		b.must(pair2.Extend(ctx, 2*time.Minute))
		require.Zero(t, b.permits(5))
		b.must(pair2.Release(ctx))
		b.must(pair.Release(ctx))
		require.Equal(t, 5, b.permits(5))

		for _, n := range []int{-1, 0, 6, mostAtOnce + 1} {
			_, err = s.AcquireN(ctx, n)
			b.mustBe(err, ErrInvalid)
			_, _, err = s.TryAcquireN(ctx, n, time.Hour, 0)
			b.mustBe(err, ErrInvalid)
		}
		b.must(s.SetPermits(ctx, mostAtOnce))
		h, err = s.AcquireN(ctx, mostAtOnce)
		b.must(err)
		require.Zero(t, b.permits(mostAtOnce))
		b.must(h.Release(ctx))
		require.Equal(t, mostAtOnce, b.permits(mostAtOnce))
	})
}

// A hold of one permit has the same bytes in Redis, and in the message of a grant, as in versions that know no holds of
// several. So these share a semaphore with this one.
func TestSemaphoreHoldOfOnePermitHasTheOldForm(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		s, other := b.client().NewSemaphore(b.name, 1), b.client().NewSemaphore(b.name, 1)
		me, them := s.client.ID()+":1:07", other.client.ID()+":2:05"
		hears := b.subscribe(other.record.Grants(contract.Attempt{}))
		do := func(c call, want reply) {
			t.Helper()
			r, err := run(ctx, b.rdb, c)
			b.must(err)
			require.Equal(t, want[0], r[0])
		}
		single, err := s.several(1)
		b.must(err)
		take := single.record.Acquire(contract.Attempt{Field: me, Lease: time.Minute, HoldCount: 1})
		assert.Equal(t, []any{me, int64(60_000), 1, 1, "barge", uint64(0), prefixName("redisson_sc", b.name), "publish"}, take.Args)
		do(take, reply{1})
		wait := contract.Attempt{Field: them, Lease: time.Minute, HoldCount: 1, Delivery: contract.Push, Asked: 3}
		do(other.record.Acquire(wait), reply{0})
		permits := func() []string { return b.rdb.ZRange(ctx, permitsKey(b.name), 0, -1).Val() }
		assert.Equal(t, []string{me}, permits())
		assert.Equal(t, "0", b.rdb.Get(ctx, b.name).Val())
		place := b.rdb.HGet(ctx, lineKey(b.name), other.client.ID()).Val()
		assert.Regexp(t, "^1 new push 60000 0 3 "+them+" [0-9]+$", place)

		do(s.record.Renew(me, time.Hour, false), reply{1})
		do(s.record.Release(released(me, 0, false)), reply{1})
		assert.Equal(t, []string{them}, permits())
		assert.Equal(t, them, b.rdb.HGet(ctx, lineKey(b.name), "granted").Val())
		assert.Equal(t, []string{"grant " + them + " 3 5000 0"}, b.received(hears, other.record.Grants(contract.Attempt{})))
		b.must(b.rdb.FlushDB(ctx).Err())

		h, err := s.AcquireN(ctx, 1)
		b.must(err)
		require.Len(t, permits(), 1)
		old := "^" + s.client.ID() + ":-?[0-9]+:0[0-9]+$"
		assert.Regexp(t, old, permits()[0])
		assert.Regexp(t, old, s.client.engine.Probe().NewField(1), "the field of a hold, which also is in places and messages")
		b.must(h.Release(ctx))
	})
}

// Row 25: Redis is out of memory. A hold of several permits is renewed and released as a whole, and an attempt that is
// refused leaves nothing.
func TestSemaphoreHoldOfSeveralNeedsNoMemory(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t, "--maxmemory-policy", "noeviction").Addr())
	ctx := context.Background()
	const lease = 3 * time.Second
	s := b.client(WithWatchdogTimeout(lease)).NewSemaphore(b.name, 5)
	h, err := s.AcquireN(ctx, 3)
	b.must(err)
	free := func(want string, what string) { // without the transaction of b.permits
		t.Helper()
		require.Equal(t, want, b.rdb.Get(ctx, b.name).Val(), what)
		require.Equal(t, map[string]int64{"2": 3, "5": 0}[want], b.rdb.ZCard(ctx, permitsKey(b.name)).Val(), what)
	}
	full := func(limit string) { b.must(b.rdb.ConfigSet(ctx, "maxmemory", limit).Err()) }
	full("1")
	for _, n := range []int{1, 2} {
		_, ok, err := s.TryAcquireN(ctx, n, 0, 0)
		assert.False(t, ok)
		assert.ErrorContains(t, err, "OOM", "%d permits", n)
		free("2", "nothing is left of the attempt")
	}
	select {
	case <-h.Context().Done():
		assert.Fail(t, "lost", context.Cause(h.Context()))
	case <-time.After(lease + lease/6): // renewed
	}
	free("2", "renewed")
	b.must(h.Release(ctx))
	free("5", "all of them are released")
	full("0")
	h, err = s.AcquireN(ctx, 5)
	b.must(err)
	b.must(h.Release(ctx))
}

// acquiresN acquires n permits in a goroutine, and returns when the Client of s has a place for them.
func (b *bench) acquiresN(s *Semaphore, n int) <-chan *Hold {
	b.Helper()
	got := make(chan *Hold, 1)
	go func() {
		h, err := s.AcquireN(context.Background(), n)
		assert.NoError(b, err)
		got <- h
	}()
	testredis.Await(b, "the client has a place", soon, func() bool { return b.placeOf(s.client.ID()).delivery != "" })
	return got
}

// While the first process in the line waits for several permits, no other client acquires those that become free, and
// the release that makes enough of them available grants all of them, with one message.
func TestSemaphoreWaiterForSeveralStopsNewcomers(t *testing.T) {
	onEachPermits(t, 3, func(b *bench, s *Semaphore) {
		ctx := context.Background()
		first, second := b.permitClient(s).takes(), b.permitClient(s).takes()
		wide := b.client().NewSemaphore(b.name, 3)
		got := b.acquiresN(wide, 3)
		b.mustTry(s, ContextWithOwner(ctx), false)
		b.tries(s.client.NewMultiLock(s, s.client.NewLock(b.name+"lock")), false)
		_, ok, err := s.TryAcquireN(ctx, 1, 0, time.Minute)
		b.must(err)
		require.False(b, ok, "a permit is kept for the process that waits for three")
		behind := b.permitContender().joins()
		first.gives(neverDue)
		b.mustTry(s, ContextWithOwner(ctx), false)
		behind.waits()
		stays(b, "AcquireN came back", got, 50*time.Millisecond)
		require.Equal(b, 2, b.permits(3), "permits that are kept")

		require.Equal(b, reply{1, 0, 1}, second.gives(neverDue))
		h := await(b, "AcquireN", got)
		require.Zero(b, b.permits(3))
		behind.waits()
		b.must(h.Release(ctx))
		behind.gets()
		require.Equal(b, 2, b.permits(3))
		behind.unlocks()
		b.emptyLine()
	})
}

// A waiter for more permits than a semaphore has by now blocks no other, and is granted them when there are enough
// again.
func TestSemaphoreWaiterForMoreThanThereAreBlocksNobody(t *testing.T) {
	onEachPermits(t, 3, func(b *bench, s *Semaphore) {
		ctx := context.Background()
		holder := b.permitClient(s).takes()
		wide := b.client().NewSemaphore(b.name, 3)
		got := b.acquiresN(wide, 3)
		b.must(s.SetPermits(ctx, 2))
		b.mustTry(s, ContextWithOwner(ctx), true)
		behind := b.permitContender().joins()
		require.Equal(b, reply{1, 0, 1}, holder.gives(neverDue))
		behind.gets()
		behind.unlocks()
		stays(b, "AcquireN came back", got, 50*time.Millisecond)
		_, err := s.AcquireN(ctx, 3)
		b.mustBe(err, ErrInvalid)
		b.must(s.SetPermits(ctx, 4))
		h := await(b, "AcquireN", got)
		require.Zero(b, b.permits(4))
		b.must(h.Release(ctx))
	})
}

// wantsMore returns a client that waits for three permits of a semaphore that has two by now. Others hold both.
func (b *bench) wantsMore(s *Semaphore) (wide, one, two *permitClient) {
	b.Helper()
	one, two = b.permitClient(s).takes(), b.permitClient(s).takes()
	wide = b.permitClient(s).listens()
	wide.field += "+3"
	wide.joins(contract.Push)
	b.must(s.SetPermits(context.Background(), 2))
	return wide, one, two
}

// The place of such a waiter moves, and never to the number of the place that was granted a permit last: that place
// comes back with its number when the lease of the grant expires.
func TestSemaphorePlaceThatMovesTakesNoNumberOfAGrant(t *testing.T) {
	onEachPermits(t, 3, func(b *bench, s *Semaphore) {
		wide, one, two := b.wantsMore(s)
		granted := b.permitClient(s).listens().joins(contract.Push)
		one.gives(neverDue)
		require.Positive(b, granted.lease())
		two.gives(neverDue)
		granted.expires()
		b.permitClient(s).ask(contract.Defer)
		assert.Equal(b, []string{wide.id, granted.id}, b.clientsInLine())
	})
}

// It also keeps its place if one behind it has lost its subscription, and takes a permit itself.
func TestSemaphorePlaceThatMovesStaysWhenACallerLeaves(t *testing.T) {
	onEachPermits(t, 3, func(b *bench, s *Semaphore) {
		wide, one, _ := b.wantsMore(s)
		silent := b.permitClient(s).listens().joins(contract.Push)
		b.must(silent.hears.Close())
		testredis.Await(b, "it does not listen any more", soon, func() bool {
			return b.hearers(silent.l.announce+":"+silent.id) == 0
		})
		one.expires()
		require.Equal(b, int64(1), silent.ask(contract.Push)[0])
		assert.Equal(b, []string{wide.id}, b.clientsInLine())
	})
}

// Nor does it block the other goroutines of its own process: it waits beside them until there are enough permits again,
// and is not passed over then.
func TestSemaphoreWaiterForMoreThanThereAreBlocksNobodyOfItsProcess(t *testing.T) {
	onEachPermits(t, 3, func(b *bench, s *Semaphore) {
		ctx := context.Background()
		const poll = 50 * time.Millisecond
		c := b.permitContender(WithPollInterval(poll))
		all := c.client.NewSemaphore(b.name, 3)
		acquires := func(n int, got chan<- *Hold) {
			go func() {
				h, err := all.AcquireN(ctx, n)
				assert.NoError(b, err)
				got <- h
			}()
		}
		behind := func(n int) {
			b.Helper()
			testredis.Await(b, "waiters in the queue of the process", soon, func() bool { return b.waitersInQueue(all) == n })
		}
		one, three := make(chan *Hold), make(chan *Hold)

		holder := b.permitClient(s).takes()
		acquires(3, three)
		testredis.Await(b, "the client has a place", soon, func() bool { return b.placeOf(c.client.ID()).delivery != "" })
		acquires(3, three)
		behind(1)
		acquires(1, one)
		behind(2)
		b.must(s.SetPermits(ctx, 2))
		first := await(b, "a permit for the goroutine behind the two", one)
		acquires(1, one)
		asked := c.asked.Load()
		stays(b, "a third permit of two", one, 10*poll)
		assert.Less(b, c.asked.Load()-asked, int64(40), "requests of three waiters in ten poll intervals")
		holder.gives(neverDue)
		b.must(await(b, "a permit for a newcomer", one).Release(ctx))
		stays(b, "AcquireN came back", three, 2*poll)

		b.must(s.SetPermits(ctx, 3))
		testredis.Await(b, "one of them is at the front", soon, func() bool { return b.asks(all) })
		behind(1)
		acquires(1, one)
		stays(b, "a permit that is kept for AcquireN", one, 2*poll)
		b.must(first.Release(ctx))
		for range 2 {
			b.must(await(b, "AcquireN", three).Release(ctx))
		}
		b.must(await(b, "a permit at last", one).Release(ctx))
		require.Equal(b, 3, b.permits(3))
		b.emptyLine()
	})
}

// Such a waiter has a place again as soon as there are enough permits again, also while a later caller of its process
// holds a permit, so that no newcomer of another process acquires the others.
func TestSemaphoreWaiterForSeveralHasAPlaceWhileALaterCallerHoldsAPermit(t *testing.T) {
	onEachPermits(t, 2, func(b *bench, s *Semaphore) {
		ctx := context.Background()
		one, two := b.permitClient(s).takes(), b.permitClient(s).takes()
		c := b.permitContender(WithPollInterval(50 * time.Millisecond))
		both := b.acquiresN(c.client.NewSemaphore(b.name, 2), 2)
		b.must(s.SetPermits(ctx, 1))
		later := c.sibling().asks()
		testredis.Await(b, "the place of the later caller", soon, func() bool {
			p := b.placeOf(c.client.ID())
			return p.field != "" && !strings.Contains(p.field, "+")
		})
		one.gives(neverDue)
		two.gives(neverDue)
		later.gets()
		b.must(s.SetPermits(ctx, 2))
		testredis.Await(b, "the place of the earlier caller", soon, func() bool {
			return strings.HasSuffix(b.placeOf(c.client.ID()).field, "+2")
		})
		b.mustTry(s, ContextWithOwner(ctx), false)
		later.unlocks()
		b.must(await(b, "AcquireN", both).Release(ctx))
		require.Equal(b, 2, b.permits(2))
	})
}

// A hold that has lost one of its permits is lost as a whole: its next renewal finds that, and the other permits are
// released, and pass to the line.
func TestSemaphoreSeveralPermitsAreLostTogether(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		s := b.client(WithWatchdogTimeout(900*time.Millisecond)).NewSemaphore(b.name, 3)
		h, err := s.AcquireN(ctx, 3)
		b.must(err)
		waiting := b.permitContender(WithPollInterval(time.Hour)).joins()
		members := b.rdb.ZRange(ctx, permitsKey(b.name), 0, -1).Val()
		require.Len(t, members, 3)
		// As Java does it, which removes as many expired permits as it wants.
		b.must(b.rdb.ZRem(ctx, permitsKey(b.name), members[1]).Err())
		b.must(b.rdb.Incr(ctx, b.name).Err())
		await(b, "the hold is lost", h.Context().Done())
		require.ErrorIs(t, context.Cause(h.Context()), ErrLockLost)
		waiting.gets()
		require.Equal(t, 2, b.permits(3), "the other permits are released")
		b.mustBe(h.Release(ctx), ErrLockLost)
		waiting.unlocks()
		require.Equal(t, 3, b.permits(3))
	})
}

// Several permits are granted one time, however often Redis runs the requests of a hold.
func TestSemaphoreLostAnswersAboutSeveralPermits(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]testredis.Fault{
		"connection closed": testredis.LoseReply, "not even run": testredis.DropRequest,
	} {
		t.Run(name, func(t *testing.T) {
			b := newFaultBench(t)
			ctx := context.Background()
			s := b.shaky().NewSemaphore(b.name, 7)
			for range 3 {
				rule := b.proxy.On(calls(semaphoreAcquire), fault).Times(2)
				h, err := s.AcquireN(ctx, 3)
				b.must(err)
				require.NotZero(t, rule.Count(), "no answer was lost")
				rule.Release()
				require.Equal(t, 4, b.permits(7))
				rule = b.proxy.On(calls(semaphoreRelease), fault).Times(2)
				b.must(h.Release(ctx))
				require.NotZero(t, rule.Count(), "no answer was lost")
				rule.Release()
				require.Equal(t, 7, b.permits(7))
			}
		})
	}
}

// An attempt for several permits that runs after its caller has given up takes nothing.
func TestSemaphoreLateAttemptForSeveralTakesNothing(t *testing.T) {
	b := newFaultBench(t)
	s := b.shaky().NewSemaphore(b.name, 3)
	b.must(s.SetPermits(context.Background(), 3))
	late := b.proxy.On(calls(semaphoreAcquire), testredis.HoldRequest)
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() {
		_, err := s.AcquireN(ctx, 2)
		got <- err
	}()
	await(b.bench, "the attempt", late.Fired())
	cancel()
	b.mustBe(await(b.bench, "AcquireN", got), context.Canceled)
	testredis.Await(b, "its rollback has ended", 2*soon, func() bool {
		return s.client.engine.Probe().Stats().AtWork == 0
	})
	ran := b.scriptRuns()
	late.Release()
	testredis.Await(b, "the attempt has run", soon, func() bool { return b.scriptRuns() > ran })
	assert.Equal(t, 3, b.permits(3), "permits that are free")
}

// The goroutines of a process that want different numbers of permits are served in order, and the place of a caller
// that gives up is not used for another number.
func TestSemaphoreServesLocalWaitersForSeveralInOrder(t *testing.T) {
	onEachPermits(t, 3, func(b *bench, s *Semaphore) {
		holder := b.permitClient(s).takes()
		mine := b.client().NewSemaphore(b.name, 3)
		ctx, cancel := context.WithCancel(context.Background())
		quits := make(chan error, 1)
		go func() {
			_, err := mine.AcquireN(ctx, 3)
			quits <- err
		}()
		testredis.Await(b, "a place", soon, func() bool { return b.placeOf(mine.client.ID()).delivery != "" })
		var got []<-chan *Hold
		for i, n := range []int{2, 3, 1} {
			hold := make(chan *Hold, 1)
			go func() {
				h, err := mine.AcquireN(context.Background(), n)
				assert.NoError(b, err)
				hold <- h
			}()
			testredis.Await(b, "it waits", soon, func() bool {
				waits, _, _ := waitersOf(mine)
				return waits == i+1
			})
			got = append(got, hold)
		}
		cancel()
		b.mustBe(await(b, "AcquireN", quits), context.Canceled)
		two := await(b, "the two permits that are free", got[0])
		require.Zero(b, b.permits(3))
		stays(b, "a later caller came first", got[2], 50*time.Millisecond)
		b.must(two.Release(context.Background()))
		stays(b, "a later caller came first", got[2], 50*time.Millisecond)
		require.Equal(b, reply{1, 0, 1}, holder.gives(neverDue))
		three := await(b, "all permits", got[1])
		stays(b, "a later caller came first", got[2], 50*time.Millisecond)
		b.must(three.Release(context.Background()))
		b.must(await(b, "the last one", got[2]).Release(context.Background()))
		require.Equal(b, 3, b.permits(3))
		b.emptyLine()
	})
}

// Places that want more permits than there are cost a run few commands, however many they are. They keep their order,
// and those behind them are granted permits, all of them in one run.
func TestSemaphorePlacesForMoreThanThereAreCostFewCommands(t *testing.T) {
	t.Parallel()
	b := newLineBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	s := b.client().NewSemaphore(b.name, 100)
	b.must(s.SetPermits(ctx, 100))
	b.Cleanup(b.forget)
	const many, others = 4000, 50
	wide := b.fillLine(1, many, "new", "+900")
	one := b.permitClient(s)
	few := func(what string, most int, do func()) {
		b.Helper()
		written := b.commandRuns("hset")
		assert.Less(b, b.commands(do), most, "commands of %s", what)
		assert.LessOrEqual(b, b.commandRuns("hset")-written, 2, "writes to the line, by %s", what)
		require.Equal(b, wide, b.clientsInLine())
	}
	for _, delivery := range []string{contract.Defer, contract.Barge} {
		few("an acquire, "+delivery, 100, func() { require.Equal(b, int64(1), one.ask(delivery)[0]) })
		few("a release", 100, func() { one.gives(neverDue) })
	}

	begin, check := b.watchBusy(mostBusy)
	b.fillLine(many+1, many+others, "new", "")
	begin()
	few("grants", 100+10*others, func() { b.must(s.SetPermits(ctx, 100)) })
	check("SetPermits")
	require.Equal(b, 100-others, b.permits(100))
	b.must(s.SetPermits(ctx, 900+others))
	require.Equal(b, wide[1:], b.clientsInLine(), "the first one fits")
	require.Zero(b, b.permits(900+others))
}

// Of the grants that have expired, a place for several permits goes as others do.
func TestSemaphoreExpiredGrantOfSeveralLeavesNoPlace(t *testing.T) {
	onEachPermits(t, 3, func(b *bench, s *Semaphore) {
		one, two, three := b.permitClient(s).takes(), b.permitClient(s).takes(), b.permitClient(s).takes()
		wide := b.permitClient(s).listens()
		wide.field += "+2"
		wide.joins(contract.Push)
		last, asks := b.permitClient(s).listens().joins(contract.Push), b.permitClient(s)
		one.gives(neverDue)
		two.gives(neverDue)
		assert.Equal(b, []string{fmt.Sprintf("grant %s 1 5000 0", wide.field)}, wide.messages(), "one message for both")
		three.gives(neverDue)
		require.Positive(b, last.lease())
		for _, member := range b.rdb.ZRange(context.Background(), permitsKey(b.name), 0, -1).Val() {
			b.must(b.rdb.ZAdd(context.Background(), permitsKey(b.name), redis.Z{Score: 1, Member: member}).Err())
		}
		require.Equal(b, int64(1), asks.ask(contract.Defer)[0])
		assert.Equal(b, 2, b.permits(3))
		assert.False(b, b.rdb.HExists(context.Background(), b.lineKey(), wide.id).Val(), "what the line has of the client")
	})
}

// keptSince has permits be kept for a place, if they are kept for one, since this time ago, and if its client was told,
// it was told then.
func (b *bench) keptSince(ago time.Duration) {
	b.Helper()
	ctx := context.Background()
	kept := strings.Fields(b.rdb.HGet(ctx, b.lineKey(), "kept").Val())
	if len(kept) >= 3 {
		for i := range kept[2:] {
			kept[2+i] = fmt.Sprint(time.Now().Add(-ago).UnixMilli())
		}
		b.must(b.rdb.HSet(ctx, b.lineKey(), "kept", strings.Join(kept, " ")).Err())
	}
}

// A process that waits for several permits, and is paused, keeps those that are available from others for no longer
// than a grant. They are kept for it again when it has asked.
func TestSemaphorePausedWaiterForSeveralKeepsPermitsForAMoment(t *testing.T) {
	onEachPermits(t, 4, func(b *bench, s *Semaphore) {
		owner := ContextWithOwner(context.Background())
		holder := b.permitClient(s).takes()
		b.permitClient(s).takes()
		paused := b.permitClient(s).listens()
		paused.field += "+3"
		paused.joins(contract.Push)
		next := b.permitContender(WithPollInterval(50 * time.Millisecond)).joins()
		b.keptSince(engine.ProvisionalLease / 4)
		b.mustTry(s, owner, false)
		assert.Empty(b, paused.messages())
		b.keptSince(engine.ProvisionalLease / 2)
		b.mustTry(s, owner, false)
		next.waits()
		assert.Contains(b, paused.messages(), "free", "halfway, the process is told to ask")

		b.keptSince(engine.ProvisionalLease)
		next.gets()
		b.mustTry(s, owner, true)
		b.must(s.Unlock(owner))
		next.unlocks()
		assert.Equal(b, "suspect", b.placeOf(paused.id).state, "the place of the process")

		paused.joins(contract.Push)
		b.mustTry(s, owner, false)
		require.Equal(b, reply{1, 0, 1}, holder.gives(neverDue))
		assert.Zero(b, b.permits(4))
	})
}

// The clock of Redis is set back while permits are kept for a process that is paused. They are not kept until the clock
// has caught up: the time begins anew.
func TestSemaphoreKeepsPermitsForNoLongerAfterItsClockWasSetBack(t *testing.T) {
	onEachPermits(t, 2, func(b *bench, s *Semaphore) {
		b.permitClient(s).takes()
		paused := b.permitClient(s).listens()
		paused.field += "+2"
		paused.joins(contract.Push)
		next := b.permitContender(WithPollInterval(50 * time.Millisecond)).joins()
		next.waits()
		for range 2 { // before the process is told to ask, and after that
			b.keptSince(-time.Hour)
			testredis.Await(b, "the time begins anew", soon, func() bool {
				kept := strings.Fields(b.rdb.HGet(context.Background(), b.lineKey(), "kept").Val())
				since, _ := strconv.ParseInt(kept[2], 10, 64)
				return time.Until(time.UnixMilli(since)) < time.Minute
			})
			b.keptSince(engine.ProvisionalLease / 2)
			testredis.Await(b, "it is told to ask", soon, func() bool {
				return slices.Contains(paused.messages(), "free")
			})
		}
		b.keptSince(engine.ProvisionalLease)
		next.gets()
		next.unlocks()
	})
}

// A process that waits for several permits without a subscription, and has died, loses its place.
func TestSemaphoreDeadWaiterForSeveralThatPolledLosesItsPlace(t *testing.T) {
	onEachPermits(t, 2, func(b *bench, s *Semaphore) {
		b.permitClient(s).takes()
		dead := b.permitClient(s)
		dead.field += "+2"
		dead.joins(contract.Poll)
		next := b.permitContender(WithPollInterval(50 * time.Millisecond)).joins()
		next.waits()
		b.keptSince(engine.ProvisionalLease)
		next.gets()
		next.unlocks()
		assert.Empty(b, b.clientsInLine(), "the line")
	})
}

// A living process that asks rarely keeps its turn: it is told to ask before others may go ahead.
func TestSemaphoreWaiterForSeveralThatAsksRarelyKeepsItsTurn(t *testing.T) {
	asksRarelyAndKeepsItsTurn(t, engine.ProvisionalLease/2)
}

// The same if no script runs before the time after which others may go ahead.
func TestSemaphoreWaiterForSeveralIsToldBeforeOthersGoAhead(t *testing.T) {
	asksRarelyAndKeepsItsTurn(t, 2*engine.ProvisionalLease)
}

func asksRarelyAndKeepsItsTurn(t *testing.T, ago time.Duration) {
	onEachPermits(t, 2, func(b *bench, s *Semaphore) {
		holder := b.permitClient(s).takes()
		wide := b.client().NewSemaphore(b.name, 2) // the poll interval is an hour
		got := b.acquiresN(wide, 2)
		ctx := context.Background()
		asked := func() uint64 { return b.placeOf(wide.client.ID()).asked }
		before := asked()
		b.mustTry(s, ContextWithOwner(ctx), false)
		b.keptSince(ago)
		b.mustTry(s, ContextWithOwner(ctx), false)
		testredis.Await(b, "it has asked", soon, func() bool { return asked() != before })
		assert.Equal(b, "new", b.placeOf(wide.client.ID()).state)
		require.Equal(b, reply{1, 0, 1}, holder.gives(neverDue))
		b.must(await(b, "AcquireN", got).Release(ctx))
	})
}
