package relock

// Holds of several permits.
//
// Rules: several permits are acquired, renewed, lost and released as one, or not at all. A waiter for several permits
// stops those who come later, but not for long if it does not react, and not if it wants more than there are.

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/record"
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

		for _, n := range []int{-1, 0, 6, record.MostAtOnce + 1} {
			_, err = s.AcquireN(ctx, n)
			b.mustBe(err, ErrInvalid)
			_, _, err = s.TryAcquireN(ctx, n, time.Hour, 0)
			b.mustBe(err, ErrInvalid)
		}
		b.must(s.SetPermits(ctx, record.MostAtOnce))
		h, err = s.AcquireN(ctx, record.MostAtOnce)
		b.must(err)
		require.Zero(t, b.permits(record.MostAtOnce))
		b.must(h.Release(ctx))
		require.Equal(t, record.MostAtOnce, b.permits(record.MostAtOnce))
	})
}

// The field of a hold of one permit, which also is in places and messages, has no number of permits: Java and versions
// that know no holds of several use it as the ID of the permit.
func TestSemaphoreHoldOfOnePermitHasTheOldForm(t *testing.T) {
	b, ctx := newBench(t, testredis.Start(t).Addr()), context.Background()
	s := b.client().NewSemaphore(b.name, 1)
	h, err := s.AcquireN(ctx, 1)
	b.must(err)
	permits := b.rdb.ZRange(ctx, record.PermitsKey(b.name), 0, -1).Val()
	require.Len(t, permits, 1)
	assert.Regexp(t, "^"+s.client.ID()+":-?[0-9]+:0[0-9]+$", permits[0])
	b.must(h.Release(ctx))
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
		require.Equal(t, map[string]int64{"2": 3, "5": 0}[want], b.rdb.ZCard(ctx, record.PermitsKey(b.name)).Val(), what)
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
		members := b.rdb.ZRange(ctx, record.PermitsKey(b.name), 0, -1).Val()
		require.Len(t, members, 3)
		// As Java does it, which removes as many expired permits as it wants.
		b.must(b.rdb.ZRem(ctx, record.PermitsKey(b.name), members[1]).Err())
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

// A living process that asks rarely keeps its turn: it is told to ask before others may go ahead.
func TestSemaphoreWaiterForSeveralThatAsksRarelyKeepsItsTurn(t *testing.T) {
	onEachPermits(t, 2, func(b *bench, s *Semaphore) {
		holder := b.permitClient(s).takes()
		wide := b.client().NewSemaphore(b.name, 2) // the poll interval is an hour
		got := b.acquiresN(wide, 2)
		ctx := context.Background()
		asked := func() uint64 { return b.placeOf(wide.client.ID()).asked }
		before := asked()
		b.mustTry(s, ContextWithOwner(ctx), false)
		b.keptSince(engine.ProvisionalLease / 2)
		b.mustTry(s, ContextWithOwner(ctx), false)
		testredis.Await(b, "it has asked", soon, func() bool { return asked() != before })
		assert.Equal(b, "new", b.placeOf(wide.client.ID()).state)
		require.Equal(b, reply{1, 0, 1}, holder.gives(neverDue))
		b.must(await(b, "AcquireN", got).Release(ctx))
	})
}
