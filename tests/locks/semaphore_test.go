package locks

// Semaphores as their users see them: the number of permits, who gets one, what Inspect shows, and data of others under
// the same keys. The files semaphore_... have the model, holds of several permits, and the line.
//
// Rules: there are never more valid permits than the number in Redis, under faults too, and a permit is not lost: that
// of a crashed process goes to the next one.

import (
	"context"
	"encoding/hex"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSemaphore(t *testing.T) { testLocker(t, locktest.NewSemaphore) }

func available(b *locktest.Bench, s *Semaphore, want int) {
	b.Helper()
	n, err := s.Available(ctx)
	b.Must(err)
	require.Equal(b, want, n, "permits that are free")
}

// owners returns a number of new owners.
func owners(n int) (all []context.Context) {
	for range n {
		all = append(all, ContextWithOwner(ctx))
	}
	return all
}

func mustTry(b *locktest.Bench, s *Semaphore, owner context.Context, want bool) {
	b.Helper()
	ok, err := locktest.UntilAnswered(func() (bool, error) { return s.TryLock(owner, 0, 0) })
	b.Must(err)
	require.Equal(b, want, ok, "TryLock answers")
}

func TestSemaphoreLetsAsManyInAsItHasPermits(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		here, there := b.Client().NewSemaphore(b.LockName, 3), b.Client().NewSemaphore(b.LockName, 3)
		available(b, here, 3) // nothing has set the number yet
		o := owners(4)
		mustTry(b, here, o[0], true)
		mustTry(b, there, o[1], true)
		mustTry(b, there, o[2], true)
		mustTry(b, here, o[3], false)
		mustTry(b, there, o[3], false)
		available(b, here, 0)
		require.Zero(b, b.Permits(3))

		mustTry(b, here, o[0], true) // increments the hold count, and takes no permit
		require.Zero(b, b.Permits(3))
		b.Must(here.Unlock(o[0]))
		mustTry(b, here, o[3], false)
		b.Must(here.Unlock(o[0]))
		mustTry(b, there, o[3], true)
		b.MustBe(here.Unlock(o[0]), ErrNotHeld)
		b.MustBe(here.Unlock(o[1]), ErrNotHeld) // it belongs to the other Client
		require.Zero(b, b.Permits(3))
		for _, owner := range o[1:] {
			b.Must(there.Unlock(owner))
		}
		available(b, there, 3)
		b.IsLocked(here, false)
		require.Equal(b, 3, b.Permits(3))
		require.Equal(b, int64(1), b.Rdb.Exists(ctx, b.LockName, record.PermitsKey(b.LockName)).Val(), "keys that stay")
	})
}

// More permits notify the waiters.
func TestSemaphoreWaitersHearOfNewPermits(t *testing.T) {
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	s := b.Client(WithPollInterval(time.Hour)).NewSemaphore(b.LockName, 1)
	o := owners(3)
	mustTry(b, s, o[0], true)
	got := []<-chan error{b.StartWaiter(o[1], s), b.StartWaiter(o[2], s)}
	b.Must(b.Client().NewSemaphore(b.LockName, 1).SetPermits(ctx, 3))
	for _, got := range got {
		b.Must(locktest.Await(b, "a new permit", got))
	}
	for _, owner := range o {
		b.Must(s.Unlock(owner))
	}
	require.Equal(b, 3, b.Permits(3))
}

func TestSemaphoreRefusesBadInput(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	c := b.Client()
	for what, s := range map[string]*Semaphore{
		"0 permits":          c.NewSemaphore(b.LockName, 0),
		"-1 permits":         c.NewSemaphore(b.LockName, -1),
		"2147483648 permits": c.NewSemaphore(b.LockName, math.MaxInt32+1),
		"Fenced()":           c.NewSemaphore(b.LockName, 1, Fenced()),
		"name is empty":      c.NewSemaphore("", 1),
	} {
		for _, err := range []error{
			s.Lock(ctx), s.Unlock(ctx), s.SetPermits(ctx, 1), locktest.Second(s.Available(ctx)), locktest.Second(s.Permits(ctx)),
			locktest.Second(s.Holders(ctx)),
		} {
			b.MustBe(err, ErrInvalid)
			assert.ErrorContains(t, err, what)
		}
	}
	s := c.NewSemaphore(b.LockName, 1)
	b.MustBe(s.SetPermits(ctx, -1), ErrInvalid)
	b.MustBe(s.SetPermits(ctx, math.MaxInt32+1), ErrInvalid)
	b.MustBe(s.SetPermits(locktest.NilCtx, 1), ErrInvalid)
}

// Two owners of one Client that have a permit each would both have the lock otherwise.
func TestSemaphorePermitIsNoHoldOfALockWithItsName(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		c := b.Client()
		for kind, lock := range map[string]Locker{
			"lock": c.NewLock(b.LockName), "fair": c.NewFairLock(b.LockName),
			"read": c.NewRWLock(b.LockName).Read(), "write": c.NewRWLock(b.LockName).Write(),
		} {
			s, o := c.NewSemaphore(b.LockName, 2), owners(2)
			for _, owner := range o {
				b.Must(s.Lock(owner))
			}
			for _, owner := range o {
				ok, err := lock.TryLock(owner, 0, 0)
				assert.ErrorIs(t, err, ErrNotALock, kind)
				assert.False(t, ok, "%s: the owner has a permit", kind)
				b.MustBe(lock.Unlock(owner), ErrNotHeld)
			}
			b.Permits(2)
			for _, owner := range o {
				b.Must(s.Unlock(owner))
			}
			b.Must(b.Rdb.Del(owners(1)[0], b.LockName).Err()) // otherwise the number of permits stays

			b.Must(lock.Lock(o[0]))
			ok, err := s.TryLock(o[0], 0, 0)
			assert.ErrorIs(t, err, ErrNotALock, kind)
			assert.False(t, ok, "%s: the owner has the lock", kind)
			b.MustBe(s.Unlock(o[0]), ErrNotHeld)
			b.Must(lock.Unlock(o[0]))
		}
	})
}

// Waiters of one process get permits in the order in which they called Lock, including those that ask for an explicit
// lease.
func TestSemaphoreServesLocalWaitersInOrder(t *testing.T) {
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	s := b.Client(WithPollInterval(time.Hour)).NewSemaphore(b.LockName, 2)
	first := owners(2)
	mustTry(b, s, first[0], true)
	mustTry(b, s, first[1], true)
	const waiters = 12
	got := make(chan int, waiters)
	goOn := make(chan struct{})
	var all sync.WaitGroup
	for i := range waiters {
		waitgroup.Go(&all, func() {
			owner, err := ContextWithOwner(ctx), error(nil)
			if i%2 == 0 {
				err = s.Lock(owner)
			} else {
				err = s.LockLease(owner, time.Minute)
			}
			if assert.NoError(t, err) {
				got <- i
				<-goOn
				assert.NoError(t, s.Unlock(owner))
			}
		})
		testredis.Await(b, "it waits", locktest.Soon, func() bool {
			v := locktest.Look(s)
			return v.Front && v.Waiters == i
		})
	}
	b.Must(s.Unlock(first[0]))
	for i := range waiters {
		require.Equal(t, i, locktest.Await(b, "a waiter gets in", got))
		goOn <- struct{}{}
	}
	all.Wait()
	b.Must(s.Unlock(first[1]))
	require.Equal(t, 2, b.Permits(2))
}

// Callers that find permits free do not wait for one another.
func TestSemaphoreCallersAskTogetherWhileItIsFree(t *testing.T) {
	b := locktest.NewFaultBench(t)
	s := b.Shaky().NewSemaphore(b.LockName, 8)
	mustTry(b.Bench, s, ContextWithOwner(ctx), true)
	const delay = 250 * time.Millisecond // a TryLock without a wait takes longer
	b.Proxy.On(locktest.Calls(record.Script("semaphore_acquire")), testredis.DelayRequest(delay)).Times(7)
	start := time.Now()
	var all sync.WaitGroup
	for i, owner := range owners(7) {
		waitgroup.Go(&all, func() {
			ok, err := s.TryLock(owner, time.Duration(i%2)*locktest.Soon, 0)
			assert.NoError(t, err)
			assert.True(t, ok)
		})
	}
	all.Wait()
	assert.Less(t, time.Since(start), testredis.Scale(start, 7*delay), "one after the other")
	freed, err := s.ForceUnlock(ctx)
	b.Must(err)
	assert.True(t, freed)
	require.Equal(t, 8, b.Permits(8))
}

// An error states that too few permits are free, and for how long at most.
func TestSemaphoreErrorsSayWhenAPermitExpires(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	held := b.Client().NewSemaphore(b.LockName, 1)
	b.Must(held.LockLease(ctx, time.Minute))
	s := b.Client().NewSemaphore(b.LockName, 1)
	waits := func() error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		return s.Lock(ctx)
	}
	err := waits()
	b.MustBe(err, context.DeadlineExceeded)
	assert.Regexp(t, `too few permits are free, and the first lease expires in 5\d(\.\d)?s`, err.Error())
	b.Must(
		b.Rdb.ZAdd(
			ctx,
			record.PermitsKey(b.LockName),
			redis.Z{Score: 922337203685477, Member: "16 bytes of Java"},
		).Err(),
	)
	b.Must(held.Unlock(ctx))
	b.Must(b.Rdb.Set(ctx, b.LockName, 0, 0).Err())
	err = waits()
	assert.ErrorContains(t, err, "too few permits are free, and none has a lease that expires")
	b.Forget()
}

// Inspect and Holders return permits of both languages, the first to expire first.
func TestInspectShowsASemaphore(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		c := b.Client()
		s := c.NewSemaphore(b.LockName, 5)
		b.Must(s.LockLease(ctx, time.Minute))
		b.Must(s.LockLease(ContextWithOwner(ctx), time.Second))
		i, err := c.Inspect(ctx, b.LockName)
		b.Must(err)
		assert.Equal(t, TypeSemaphore, i.Type)
		assert.Equal(t, "semaphore", string(i.Type))
		assert.True(t, i.Held())
		assert.Equal(t, 3, i.Available)
		require.Len(t, i.Holders, 2)
		assert.Less(t, i.Holders[0].Remaining, i.Holders[1].Remaining)
		assert.Equal(t, i.TTL, i.Holders[1].Remaining)
		assert.Equal(t, c.ID(), i.Holders[0].Client)
		assert.Equal(t, engine.OwnerOf(ctx).String(), i.Holders[1].Owner)

		java := string([]byte{0, 0xff, 0x0a, 'x'}) + "with 12 more"
		b.Must(b.Rdb.ZAdd(ctx, record.PermitsKey(b.LockName),
			redis.Z{Score: 922337203685477, Member: java}, redis.Z{Score: 1, Member: "this one is over"}).Err())
		b.Must(b.Rdb.DecrBy(ctx, b.LockName, 2).Err())
		testredis.Await(b, "a lease ends", locktest.Soon, func() bool {
			i, err = c.Inspect(ctx, b.LockName)
			return err == nil && len(i.Holders) == 2
		})
		assert.Equal(t, 3, i.Available, "with those that have expired")
		assert.Equal(
			t,
			Holder{
				Contender: Contender{Field: hex.EncodeToString([]byte(java)), Owner: "permit " + hex.EncodeToString([]byte(java))},
				HoldCount: 1,
				Permits:   1,
				Remaining: -time.Millisecond,
			},
			i.Holders[1],
		)
		assert.Negative(t, i.TTL)
		available(b, s, 3)
		all, err := s.Holders(ctx)
		b.Must(err)
		assert.Len(t, all, 2)
		freed, err := s.ForceUnlock(ctx)
		b.Must(err)
		assert.True(t, freed)
		freed, err = s.ForceUnlock(ctx)
		b.Must(err)
		assert.False(t, freed, "it is free")
		require.Equal(t, 5, b.Permits(5))
		i, err = c.Inspect(ctx, b.LockName)
		b.Must(err)
		assert.Equal(t, 5, i.Available)
		assert.False(t, i.Held())
	})
}

// Changing the number that is passed to NewSemaphore has no effect, and each Client logs it once for a name: both if it
// gets a permit, and if it finds none.
func TestSemaphoreOtherNumberIsLoggedOnce(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		logged := func(permits int) (s *Semaphore, lines func() int, text func() string) {
			out := new(locktest.LockedBuffer)
			c := b.Client(WithLogger(slog.New(slog.NewTextHandler(out, nil))))
			return c.NewSemaphore(
				b.LockName,
				permits,
			), func() int { return strings.Count(out.String(), "number of permits") }, out.String
		}
		two, linesOfTwo, _ := logged(2)
		first, second := ContextWithOwner(ctx), ContextWithOwner(ctx)
		b.Must(two.Lock(first))

		five, lines, text := logged(5)
		for range 3 {
			b.Must(five.Lock(ctx))
			b.Must(five.Lock(ctx)) // increments the hold count
			b.Must(five.Unlock(ctx))
			b.Must(five.Unlock(ctx))
		}
		testredis.Await(t, "it is logged", locktest.Soon, func() bool { return lines() > 0 })
		for _, want := range []string{"level=WARN", "lock=" + b.LockName, "permits=2", "asked=5", "SetPermits"} {
			assert.Contains(t, text(), want)
		}

		b.Must(two.Lock(second))
		busy, linesOfBusy, _ := logged(7)
		got := make(chan error, 1)
		ok, err := busy.TryLock(ctx, 0, 0)
		b.Must(err)
		assert.False(t, ok)
		testredis.Await(t, "it is logged where none is free", locktest.Soon, func() bool { return linesOfBusy() == 1 })
		go func() { got <- busy.Lock(first) }() // waits in the line, and is granted the permit
		testredis.Await(t, "it waits in the line", locktest.Soon, func() bool { return len(b.Places()) == 1 })
		b.Must(two.Unlock(second))
		b.Must(locktest.Await(b, "the permit is granted", got))
		b.Must(busy.Unlock(first))

		b.Must(two.SetPermits(ctx, 5))
		five, linesOfFive, _ := logged(5)
		b.Must(five.Lock(ctx))
		b.Must(five.Unlock(ctx))
		b.Must(two.Unlock(first))
		for _, s := range []*Semaphore{two, five, busy} { // the reports of a Client end with it
			b.Must(locktest.ClientOf(s).Close())
		}
		assert.Equal(t, 1, lines(), "log lines: %s", text())
		assert.Equal(t, 1, linesOfBusy(), "log lines")
		assert.Zero(t, linesOfFive(), "log lines of one that asks for the number in Redis")
		assert.Zero(t, linesOfTwo(), "log lines of one that asked for the number in Redis")
	})
}
