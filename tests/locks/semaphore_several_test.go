package locks

// Holds of several permits.
//
// Rules: several permits are acquired, renewed, lost and released as one, or not at all. A waiter for several permits
// stops those who come later, but not for long if it does not react, and not if it wants more than there are.

import (
	"context"
	"strings"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// AcquireN acquires several permits as one hold, or none, and Java's counts stay right.
func TestSemaphoreAcquiresSeveralAtOnce(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		s := b.Client().NewSemaphore(b.LockName, 5)
		h, err := s.AcquireN(ctx, 3)
		b.Must(err)
		require.Equal(t, 2, b.Permits(5))
		none, ok, err := s.TryAcquireN(ctx, 3, 0, 0)
		b.Must(err)
		require.False(t, ok)
		require.Nil(t, none)
		require.Equal(t, 2, b.Permits(5), "nothing is left of an attempt that was not granted")

		all, err := s.Holders(ctx)
		b.Must(err)
		require.Len(t, all, 1, "one hold is one holder")
		assert.Equal(t, 3, all[0].Permits)
		assert.Equal(t, 1, all[0].HoldCount)
		assert.Equal(t, locktest.ClientOf(s).ID(), all[0].Client)
		held, err := s.IsHeld(h.Context())
		b.Must(err)
		assert.True(t, held)
		count, err := s.HoldCount(h.Context())
		b.Must(err)
		assert.Equal(t, 1, count, "whatever the number of permits is")
		b.Must(s.Lock(h.Context()))
		count, err = s.HoldCount(h.Context())
		b.Must(err)
		assert.Equal(t, 2, count)
		require.Equal(t, 2, b.Permits(5), "a hold is re-entered as a whole")
		b.Must(s.Unlock(h.Context()))
		single, err := s.AcquireN(ctx, 1)
		b.Must(err)
		pair, ok, err := s.TryAcquireN(ctx, 1, 0, time.Minute)
		b.Must(err)
		require.True(t, ok)
		b.Must(pair.Extend(ctx, 2*time.Minute))
		b.Must(h.Release(ctx))
		b.Must(single.Release(ctx))
		pair2, ok, err := s.TryAcquireN(ctx, 4, 0, time.Minute)
		b.Must(err)
		require.True(t, ok)
		b.Must(pair2.Extend(ctx, 2*time.Minute))
		require.Zero(t, b.Permits(5))
		b.Must(pair2.Release(ctx))
		b.Must(pair.Release(ctx))
		require.Equal(t, 5, b.Permits(5))

		for _, n := range []int{-1, 0, 6, record.MostAtOnce + 1} {
			_, err = s.AcquireN(ctx, n)
			b.MustBe(err, ErrInvalid)
			_, _, err = s.TryAcquireN(ctx, n, time.Hour, 0)
			b.MustBe(err, ErrInvalid)
		}
		b.Must(s.SetPermits(ctx, record.MostAtOnce))
		h, err = s.AcquireN(ctx, record.MostAtOnce)
		b.Must(err)
		require.Zero(t, b.Permits(record.MostAtOnce))
		b.Must(h.Release(ctx))
		require.Equal(t, record.MostAtOnce, b.Permits(record.MostAtOnce))
	})
}

// acquiresN acquires n permits in a goroutine, and returns when the Client of s has a place for them.
func acquiresN(b *locktest.Bench, s *Semaphore, n int) <-chan *Hold {
	b.Helper()
	got := make(chan *Hold, 1)
	go func() {
		h, err := s.AcquireN(ctx, n)
		assert.NoError(b, err)
		got <- h
	}()
	testredis.Await(b, "the client has a place", locktest.Soon, func() bool { return placeOf(b, locktest.ClientOf(s).ID()).Delivery != "" })
	return got
}

// A waiter that wants more permits than there are by now does not block the other goroutines of its process: it waits
// beside them until there are enough permits again, and is not passed over then.
func TestSemaphoreWaiterForMoreThanThereAreBlocksNobodyOfItsProcess(t *testing.T) {
	onEachPermits(t, 3, func(b *locktest.Bench, s *Semaphore) {
		const poll = 50 * time.Millisecond
		c := newPermitContender(b, WithPollInterval(poll))
		all := c.client.NewSemaphore(b.LockName, 3)
		acquires := func(n int, got chan<- *Hold) {
			go func() {
				h, err := all.AcquireN(ctx, n)
				assert.NoError(b, err)
				got <- h
			}()
		}
		behind := func(n int) {
			b.Helper()
			testredis.Await(b, "waiters in the queue of the process", locktest.Soon, func() bool { return b.WaitersInQueue(all) == n })
		}
		one, three := make(chan *Hold), make(chan *Hold)

		holder := newPermitClient(b, s).takes()
		acquires(3, three)
		testredis.Await(b, "the client has a place", locktest.Soon, func() bool { return placeOf(b, c.client.ID()).Delivery != "" })
		acquires(3, three)
		behind(1)
		acquires(1, one)
		behind(2)
		b.Must(s.SetPermits(ctx, 2))
		first := locktest.Await(b, "a permit for the goroutine behind the two", one)
		acquires(1, one)
		asked := c.asked.Load()
		locktest.Stays(b, "a third permit of two", one, 10*poll)
		assert.Less(b, c.asked.Load()-asked, int64(40), "requests of three waiters in ten poll intervals")
		holder.gives(neverDue)
		b.Must(locktest.Await(b, "a permit for a newcomer", one).Release(ctx))
		locktest.Stays(b, "AcquireN came back", three, 2*poll)

		b.Must(s.SetPermits(ctx, 3))
		testredis.Await(b, "one of them is at the front", locktest.Soon, func() bool { return b.Asks(all) })
		behind(1)
		acquires(1, one)
		locktest.Stays(b, "a permit that is kept for AcquireN", one, 2*poll)
		b.Must(first.Release(ctx))
		for range 2 {
			b.Must(locktest.Await(b, "AcquireN", three).Release(ctx))
		}
		b.Must(locktest.Await(b, "a permit at last", one).Release(ctx))
		require.Equal(b, 3, b.Permits(3))
		emptyLine(b)
	})
}

// Such a waiter has a place again as soon as there are enough permits again, also while a later caller of its process
// holds a permit, so that no newcomer of another process acquires the others.
func TestSemaphoreWaiterForSeveralHasAPlaceWhileALaterCallerHoldsAPermit(t *testing.T) {
	onEachPermits(t, 2, func(b *locktest.Bench, s *Semaphore) {
		one, two := newPermitClient(b, s).takes(), newPermitClient(b, s).takes()
		c := newPermitContender(b, WithPollInterval(50*time.Millisecond))
		both := acquiresN(b, c.client.NewSemaphore(b.LockName, 2), 2)
		b.Must(s.SetPermits(ctx, 1))
		later := c.sibling().asks()
		testredis.Await(b, "the place of the later caller", locktest.Soon, func() bool {
			p := placeOf(b, c.client.ID())
			return p.Field != "" && !strings.Contains(p.Field, "+")
		})
		one.gives(neverDue)
		two.gives(neverDue)
		later.gets()
		b.Must(s.SetPermits(ctx, 2))
		testredis.Await(b, "the place of the earlier caller", locktest.Soon, func() bool {
			return strings.HasSuffix(placeOf(b, c.client.ID()).Field, "+2")
		})
		mustTry(b, s, ContextWithOwner(ctx), false)
		later.unlocks()
		b.Must(locktest.Await(b, "AcquireN", both).Release(ctx))
		require.Equal(b, 2, b.Permits(2))
	})
}

// A hold that has lost one of its permits is lost as a whole: its next renewal finds that, and the other permits are
// released, and pass to the line.
func TestSemaphoreSeveralPermitsAreLostTogether(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		s := b.Client(WithWatchdogTimeout(900*time.Millisecond)).NewSemaphore(b.LockName, 3)
		h, err := s.AcquireN(ctx, 3)
		b.Must(err)
		waiting := newPermitContender(b, WithPollInterval(time.Hour)).joins()
		members := b.Rdb.ZRange(ctx, record.PermitsKey(b.LockName), 0, -1).Val()
		require.Len(t, members, 3)
		// As Java does it, which removes as many expired permits as it wants.
		b.Must(b.Rdb.ZRem(ctx, record.PermitsKey(b.LockName), members[1]).Err())
		b.Must(b.Rdb.Incr(ctx, b.LockName).Err())
		locktest.Await(b, "the hold is lost", h.Context().Done())
		require.ErrorIs(t, context.Cause(h.Context()), ErrLockLost)
		waiting.gets()
		testredis.Await(b, "the other permits are released", locktest.Soon, func() bool { return b.Permits(3) == 2 })
		b.MustBe(h.Release(ctx), ErrLockLost)
		waiting.unlocks()
		require.Equal(t, 3, b.Permits(3))
	})
}

// The goroutines of a process that want different numbers of permits are served in order, and the place of a caller
// that gives up is not used for another number.
func TestSemaphoreServesLocalWaitersForSeveralInOrder(t *testing.T) {
	onEachPermits(t, 3, func(b *locktest.Bench, s *Semaphore) {
		holder := newPermitClient(b, s).takes()
		mine := b.Client().NewSemaphore(b.LockName, 3)
		ctx, cancel := context.WithCancel(ctx)
		quits := make(chan error, 1)
		go func() {
			_, err := mine.AcquireN(ctx, 3)
			quits <- err
		}()
		testredis.Await(b, "a place", locktest.Soon, func() bool { return placeOf(b, locktest.ClientOf(mine).ID()).Delivery != "" })
		var got []<-chan *Hold
		for i, n := range []int{2, 3, 1} {
			hold := make(chan *Hold, 1)
			go func() {
				h, err := mine.AcquireN(context.Background(), n)
				assert.NoError(b, err)
				hold <- h
			}()
			testredis.Await(b, "it waits", locktest.Soon, func() bool { return locktest.Look(mine).Waiters == i+1 })
			got = append(got, hold)
		}
		cancel()
		b.MustBe(locktest.Await(b, "AcquireN", quits), context.Canceled)
		two := locktest.Await(b, "the two permits that are free", got[0])
		require.Zero(b, b.Permits(3))
		locktest.Stays(b, "a later caller came first", got[2], 50*time.Millisecond)
		b.Must(two.Release(context.Background()))
		locktest.Stays(b, "a later caller came first", got[2], 50*time.Millisecond)
		require.Equal(b, send.Reply{1, 0, 1}, holder.gives(neverDue))
		three := locktest.Await(b, "all permits", got[1])
		locktest.Stays(b, "a later caller came first", got[2], 50*time.Millisecond)
		b.Must(three.Release(context.Background()))
		b.Must(locktest.Await(b, "the last one", got[2]).Release(context.Background()))
		require.Equal(b, 3, b.Permits(3))
		emptyLine(b)
	})
}

// Places that want more permits than there are cost a run few commands, however many they are. They keep their order,
// and those behind them are granted permits, all of them in one run.
func TestSemaphorePlacesForMoreThanThereAreCostFewCommands(t *testing.T) {
	t.Parallel()
	b := locktest.NewLineBench(t, testredis.Start(t).Addr())
	s := b.Client().NewSemaphore(b.LockName, 100)
	b.Must(s.SetPermits(ctx, 100))
	b.Cleanup(b.Forget)
	const many, others = 4000, 50
	wide := fillLine(b, 1, many, "+900")
	one := newPermitClient(b, s)
	few := func(what string, most int, do func()) {
		b.Helper()
		written := b.CommandRuns("hset")
		assert.Less(b, commands(b, do), most, "commands of %s", what)
		assert.LessOrEqual(b, b.CommandRuns("hset")-written, 2, "writes to the line, by %s", what)
		require.Equal(b, wide, b.ClientsInLine())
	}
	for _, delivery := range []string{contract.Defer, contract.Barge} {
		few("an acquire, "+delivery, 100, func() { require.Equal(b, int64(1), one.ask(delivery)[0]) })
		few("a release", 100, func() { one.gives(neverDue) })
	}

	begin, check := b.WatchBusy(locktest.MostBusy)
	fillLine(b, many+1, many+others, "")
	begin()
	few("grants", 100+10*others, func() { b.Must(s.SetPermits(ctx, 100)) })
	check("SetPermits")
	require.Equal(b, 100-others, b.Permits(100))
	b.Must(s.SetPermits(ctx, 900+others))
	require.Equal(b, wide[1:], b.ClientsInLine(), "the first one fits")
	require.Zero(b, b.Permits(900+others))
}
