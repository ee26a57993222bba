//go:build go1.25

package relock

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
)

// limitedLocks are a lock of each type with a record, and one that it excludes.
var limitedLocks = []struct {
	name  string
	make  func(c *Client, name string, opts ...LockOption) Locker
	rival lockMaker
}{
	{"Lock", func(c *Client, name string, opts ...LockOption) Locker { return c.NewLock(name, opts...) },
		func(c *Client, name string) Locker { return c.NewLock(name) }},
	{"fenced Lock", func(c *Client, name string, opts ...LockOption) Locker {
		return c.NewLock(name, append(opts, Fenced())...)
	},
		func(c *Client, name string) Locker { return c.NewLock(name) }},
	{"FairLock", func(c *Client, name string, opts ...LockOption) Locker { return c.NewFairLock(name, opts...) },
		func(c *Client, name string) Locker { return c.NewFairLock(name) }},
	{"ReadLock", func(c *Client, name string, opts ...LockOption) Locker { return c.NewRWLock(name, opts...).Read() },
		func(c *Client, name string) Locker { return c.NewRWLock(name).Write() }},
	{"WriteLock", func(c *Client, name string, opts ...LockOption) Locker { return c.NewRWLock(name, opts...).Write() },
		func(c *Client, name string) Locker { return c.NewRWLock(name).Read() }},
	{"MultiLock", func(c *Client, name string, opts ...LockOption) Locker {
		return c.NewMultiLock(c.NewLock(name, opts...), c.NewFairLock(name+":fair", opts...), c.NewRWLock(name+":rw", opts...).Write())
	}, func(c *Client, name string) Locker { return c.NewLock(name) }},
}

func TestAtLeastKeepsTheRecordUntilItsTimeIsOver(t *testing.T) {
	t.Parallel()
	const d = time.Second
	ctx := context.Background()
	addr := testredis.Start(t).Addr()
	for _, c := range limitedLocks {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, lease := range []time.Duration{0, d * 3 / 4, time.Minute} {
				b := newBench(t, addr)
				l, rival := c.make(b.client(), b.name, AtLeast(d)), c.rival(b.client(), b.name)
				start := time.Now() // the first lock of a MultiLock counts from its own acquire
				ok, err := l.TryLock(ctx, 0, lease)
				require.NoError(t, err)
				require.True(t, ok)
				guarded, err := l.Guard(ctx)
				require.NoError(t, err)
				require.NoError(t, l.Unlock(ctx))
				assert.ErrorIs(t, guarded.Err(), context.Canceled, "the guard after Unlock")
				assert.ErrorIs(t, l.Unlock(ctx), ErrNotHeld, "a second Unlock")
				ttl, err := rival.TTL(ctx)
				require.NoError(t, err)
				assert.LessOrEqual(t, ttl, d, "lease %v", lease)
				ok, err = rival.TryLock(ctx, 0, 0)
				require.NoError(t, err)
				assert.True(t, !ok || time.Since(start) >= d, "lease %v: it is free %v after Lock", lease, time.Since(start))
				if !ok {
					require.NoError(t, rival.Lock(ctx))
				}
				assert.GreaterOrEqual(t, time.Since(start), d, "lease %v: the time until the next one has it", lease)
				require.NoError(t, rival.Unlock(ctx))
			}
		})
	}
}

// Neither another goroutine of the process nor the owner gets the lock sooner than other processes.
func TestAtLeastHandsNothingOverBeforeItsTimeIsOver(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		const d = 12 * time.Second
		l, start := newLimitedLock(e.redis, limits{atLeast: d}), time.Now()
		take := func(o owner) {
			ok, err := e.acquire(context.Background(), l, o, request{wait: forever})
			assert.NoError(t, err)
			assert.True(t, ok)
		}
		take(1)
		var wg sync.WaitGroup
		for o := owner(2); o < 4; o++ {
			wg.Go(func() {
				take(o)
				assert.GreaterOrEqual(t, time.Since(start), time.Duration(o-1)*d, "the time until %v has it", o)
				assert.NoError(t, e.release(context.Background(), l, o))
			})
			synctest.Wait()
		}
		assert.NoError(t, e.release(context.Background(), l, 1))
		wg.Wait()
		take(1)
		assert.GreaterOrEqual(t, time.Since(start), 3*d, "the time until the first owner has it again")
		assert.Less(t, time.Since(start), 3*d+3*time.Second+4*time.Millisecond, "each waits for the max wake delay at most")
		assert.NoError(t, e.release(context.Background(), l, 1))
		time.Sleep(d)
	})
}

// After its time the lock is released as any other: the record is deleted at once.
func TestAtLeastReleasesAtOnceAfterItsTime(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	addr := testredis.Start(t).Addr()
	for _, c := range limitedLocks {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, addr)
			l := c.make(b.client(), b.name, AtLeast(time.Millisecond))
			require.NoError(t, l.Lock(ctx))
			require.NoError(t, l.Lock(ctx))
			require.NoError(t, l.Unlock(ctx))
			<-time.After(5 * time.Millisecond)
			require.NoError(t, l.Unlock(ctx))
			locked, err := l.IsLocked(ctx)
			require.NoError(t, err)
			assert.False(t, locked)
		})
	}
}

// The write lock keeps its record in the same hash as the read lock of its owner, whose lease it must not shorten.
func TestAtLeastOfAWriterShortensNoLeaseOfItsReader(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := newBench(t, testredis.Start(t).Addr())
	rw := b.client().NewRWLock(b.name, AtLeast(time.Second))
	start := time.Now()
	require.NoError(t, rw.Write().Lock(ctx))
	require.NoError(t, rw.Read().Lock(ctx))
	require.NoError(t, rw.Write().Unlock(ctx))
	assert.Greater(t, b.rdb.PTTL(ctx, b.name).Val(), 20*time.Second, "the lease of the reader")
	reads, err := rw.Read().IsHeld(ctx)
	require.NoError(t, err)
	assert.True(t, reads)
	other := b.client().NewRWLock(b.name)
	ok, err := other.Read().TryLock(ctx, 0, 0)
	require.NoError(t, err)
	assert.True(t, !ok || time.Since(start) >= time.Second, "the write lock is free")
	if !ok {
		require.NoError(t, other.Read().Lock(ctx))
	}
	assert.GreaterOrEqual(t, time.Since(start), time.Second)
	require.NoError(t, other.Read().Unlock(ctx))
	require.NoError(t, rw.Read().Unlock(ctx))
}

// A MultiLock that does not get all of its locks has used none of them.
func TestAtLeastDoesNotKeepWhatAMultiLockUndoes(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := newBench(t, testredis.Start(t).Addr())
	c, rival := b.client(), b.client()
	require.NoError(t, rival.NewFairLock(b.name+":b").Lock(ctx))
	multi := c.NewMultiLock(c.NewFairLock(b.name+":a", AtLeast(time.Hour)), c.NewFairLock(b.name+":b"))
	ok, err := multi.TryLock(ctx, 0, 0)
	require.NoError(t, err)
	require.False(t, ok)
	locked, err := rival.NewFairLock(b.name + ":a").IsLocked(ctx)
	require.NoError(t, err)
	assert.False(t, locked)
	require.NoError(t, rival.NewFairLock(b.name+":b").Unlock(ctx))
}

// newLimitedLock is a fakeLock with limits.
func newLimitedLock(r *fakeredis.Redis, l limits) *fakeLock {
	lock := newFakeLock(r, "x")
	lock.limit = l
	return lock
}

// A release that Redis has not confirmed goes on in the background, and deletes nothing before the time is over.
func TestAtLeastUnconfirmedDeletesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newLimitedLock(e.redis, limits{atLeast: 40 * time.Second})
		ok, err := e.acquire(context.Background(), l, 1, request{wait: forever})
		require.True(t, ok)
		require.NoError(t, err)
		e.redis.Set(func() {
			e.redis.Fault = func(string) fakeredis.Fault { return fakeredis.Fault{Block: io.EOF} }
		})
		assert.Error(t, e.release(context.Background(), l, 1))
		time.Sleep(3 * time.Second)
		e.redis.Set(func() { e.redis.Fault = nil })
		time.Sleep(31 * time.Second)
		assert.NotEmpty(t, e.redis.Holder("x"), "the record after the first lease, and before its time is over")
		time.Sleep(7 * time.Second)
		assert.Empty(t, e.redis.Holder("x"), "the record after its time")
	})
}

// A release that was repeated, and finds no record, has kept none: the record was gone before.
func TestAtLeastUnlockReportsARecordThatIsGone(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newLimitedLock(e.redis, limits{atLeast: 10 * time.Second})
		ok, err := e.acquire(context.Background(), l, 1, request{wait: forever})
		require.True(t, ok)
		require.NoError(t, err)
		lost := true
		e.redis.Set(func() {
			delete(e.redis.Records, "x")
			e.redis.Fault = func(string) fakeredis.Fault {
				defer func() { lost = false }()
				if lost {
					return fakeredis.Fault{Block: io.EOF}
				}
				return fakeredis.Fault{}
			}
		})
		assert.ErrorIs(t, e.release(context.Background(), l, 1), ErrLockLost)
		assert.False(t, lost, "a request was lost")
	})
}

// A release whose answer is lost has kept the record. If it is repeated when the time is over, it finds no record, and nothing
// was lost.
func TestAtLeastUnlockIsNilWhenTheTimeEndsBeforeItsAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newLimitedLock(e.redis, limits{atLeast: 10 * time.Millisecond})
		ok, err := e.acquire(context.Background(), l, 1, request{wait: forever})
		require.True(t, ok)
		require.NoError(t, err)
		answers := 0
		e.redis.Set(func() {
			e.redis.Fault = func(string) (f fakeredis.Fault) {
				if answers++; answers == 1 {
					f.Err, f.Answer = io.EOF, 20*time.Millisecond
				}
				return f
			}
		})
		assert.NoError(t, e.release(context.Background(), l, 1))
		assert.Equal(t, 2, answers, "the release was repeated")
		assert.Empty(t, e.redis.Holder("x"))
	})
}

// A renewal under way at Unlock, which runs after it, does not keep the lock for another lease: also where its answer is the
// first of the two.
func TestAtLeastOutlivesARenewalUnderWay(t *testing.T) {
	for name, answer := range map[string]time.Duration{"answered last": 0, "answered first": time.Second} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			l, start := newLimitedLock(e.redis, limits{atLeast: 14 * time.Second}), time.Now()
			ok, err := e.acquire(context.Background(), l, 1, request{wait: forever})
			require.True(t, ok)
			require.NoError(t, err)
			faults := []fakeredis.Fault{{Late: 700 * time.Millisecond}, {Answer: answer}} // of the renewal, and of the Unlock
			e.redis.Set(func() {
				e.redis.Fault = func(string) (f fakeredis.Fault) {
					if len(faults) > 0 {
						f, faults = faults[0], faults[1:]
					}
					return f
				}
			})
			time.Sleep(10*time.Second + 100*time.Millisecond)
			require.Equal(t, 1, e.redis.Count("renew"), "%s: renewals", name)
			assert.NoError(t, e.release(context.Background(), l, 1), name)
			require.Empty(t, faults, name)
			time.Sleep(time.Until(start.Add(13900 * time.Millisecond)))
			assert.NotEmpty(t, e.redis.Holder("x"), "%s: the record before its time is over", name)
			time.Sleep(time.Second)
			assert.Empty(t, e.redis.Holder("x"), "%s: the record after its time", name)
		})
	}
}

// A hold ends with its limit, by a cause of its own, and its record does not outlive the limit.
func TestMaxHoldEndsAHold(t *testing.T) {
	for _, d := range []time.Duration{time.Second, 29 * time.Second, 30 * time.Second, 31 * time.Second, 45 * time.Second, 10 * time.Minute} {
		for _, latency := range []time.Duration{0, 300 * time.Millisecond} {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				e.redis.Latency = latency
				l, ctx, start := newLimitedLock(e.redis, limits{max: d}), context.Background(), time.Now()
				ok, err := e.acquire(ctx, l, 1, request{wait: forever})
				require.True(t, ok)
				require.NoError(t, err)
				guarded, err := e.guard(ctx, l, 1)
				require.NoError(t, err)
				<-guarded.Done()
				held := time.Since(start)
				assert.LessOrEqual(t, held, d, "%v: how long it was trusted", d)
				assert.GreaterOrEqual(t, held, d-min(d, 30*time.Second)/50-4*time.Millisecond-2*latency, "%v: how long it was trusted", d)
				assert.ErrorIs(t, context.Cause(guarded), ErrMaxHold)
				assert.ErrorIs(t, context.Cause(guarded), ErrLockLost)
				assert.NotEmpty(t, e.redis.Holder("x"), "%v: trust outlives the record", d)
				if d <= 30*time.Second {
					assert.Zero(t, e.redis.Count("renew"), "%v: renewals", d)
				}
				ok, err = e.acquire(ctx, newFakeLock(e.redis, "x"), 2, request{wait: forever})
				assert.True(t, ok)
				assert.NoError(t, err)
				assert.Less(t, time.Since(start), d+4*latency+20*time.Millisecond, "%v: the time until the next one has it", d)
				assert.NoError(t, e.release(ctx, l, 2))
				assert.ErrorIs(t, e.release(ctx, l, 1), ErrMaxHold)
				assert.ErrorIs(t, e.release(ctx, l, 1), ErrNotHeld)
			})
		}
	}
}

// The same on a clock that goes on between the moment when a renewal counts as sent and the request: the last renewal is the last.
func TestMaxHoldIsTheCauseAfterRenewals(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	var asked atomic.Int64
	rdb := testredis.Client(t, b.addr)
	rdb.AddHook(commandHook(func(cmd redis.Cmder) {
		if cmd.Name() == "evalsha" {
			asked.Add(1)
		}
	}))
	c := b.clientOn(rdb, WithWatchdogTimeout(time.Second))
	var all sync.WaitGroup
	for i := range 8 {
		waitgroup.Go(&all, func() {
			ctx := WithOwner(context.Background())
			l := c.NewLock(fmt.Sprint(b.name, i), MaxHold(1700*time.Millisecond+time.Duration(i)*100*time.Millisecond))
			assert.NoError(t, l.Lock(ctx))
			guarded, err := l.Guard(ctx)
			if assert.NoError(t, err) {
				<-guarded.Done()
				assert.ErrorIs(t, context.Cause(guarded), ErrMaxHold)
			}
		})
	}
	all.Wait()
	assert.LessOrEqual(t, asked.Load(), int64(8*12), "requests: an acquire and four to seven renewals each")
}

// A handover inside the process gives the next hold a limit of its own; so does one from a lock without a limit, and none
// goes to a lock without one.
func TestMaxHoldCountsFromTheHandover(t *testing.T) {
	const d = 40 * time.Second
	type step struct{ from, to limits }
	for _, s := range []step{
		{limits{max: d}, limits{max: d}},
		{limits{}, limits{max: d}},
		{limits{max: 25 * time.Second}, limits{}},
		{limits{}, limits{max: 10 * time.Second}}, // more is left of the lease than that: it is released
	} {
		synctest.Test(t, func(t *testing.T) {
			e := joinBubbleEngine(t, fakeredis.New(), "client", WithHandoverSlice(time.Hour))
			ctx := context.Background()
			first, second := newLimitedLock(e.redis, s.from), newLimitedLock(e.redis, s.to)
			ok, err := e.acquire(ctx, first, 1, request{wait: forever})
			require.True(t, ok)
			require.NoError(t, err)
			var got time.Time
			var guarded context.Context
			done := make(chan struct{})
			go func() {
				defer close(done)
				ok, err := e.acquire(ctx, second, 2, request{wait: forever})
				assert.True(t, ok)
				assert.NoError(t, err)
				got = time.Now()
				guarded, err = e.guard(ctx, second, 2)
				assert.NoError(t, err)
			}()
			time.Sleep(15 * time.Second)
			require.NoError(t, e.release(ctx, first, 1))
			<-done
			require.NoError(t, guarded.Err())
			if s.to.max == 0 {
				time.Sleep(time.Hour)
				assert.NoError(t, guarded.Err(), "%v: the hold without a limit", s)
				assert.NoError(t, e.release(ctx, second, 2))
				return
			}
			<-guarded.Done()
			assert.ErrorIs(t, context.Cause(guarded), ErrMaxHold, "%v", s)
			assert.LessOrEqual(t, time.Since(got), s.to.max, "%v", s)
			assert.GreaterOrEqual(t, time.Since(got), s.to.max-time.Second, "%v", s)
			assert.NotEmpty(t, e.redis.Holder("x"), "%v: trust outlives the record", s)
			time.Sleep(time.Second + 10*time.Millisecond)
			assert.Empty(t, e.redis.Holder("x"), "%v: the record outlives the limit", s)
			assert.ErrorIs(t, e.release(ctx, second, 2), ErrMaxHold)
		})
	}
}

func TestMaxHoldIsNotProlongedByAReentry(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		for _, lease := range []time.Duration{0, 4 * time.Second} {
			l, ctx, start := newLimitedLock(e.redis, limits{max: 5 * time.Second}), context.Background(), time.Now()
			for range 2 {
				ok, err := e.acquire(ctx, l, 1, request{wait: forever, lease: lease})
				require.True(t, ok)
				require.NoError(t, err)
				time.Sleep(3 * time.Second)
			}
			assert.Zero(t, levelsOf(e.engine, l, 1), "levels after %v", time.Since(start))
			assert.Empty(t, e.redis.Holder("x"), "the record")
			_ = e.release(ctx, l, 1)
			_ = e.release(ctx, l, 1)
		}
	})
}

func levelsOf(e *engine, l description, o owner) int {
	_, levels := e.levels(l, o)
	return levels
}

func TestMaxHoldLosesALockOfEachType(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	addr := testredis.Start(t).Addr()
	for _, c := range limitedLocks {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, addr)
			const d = 800 * time.Millisecond
			l, rival := c.make(b.client(), b.name, MaxHold(d)), c.rival(b.client(), b.name)
			require.ErrorIs(t, l.LockLease(ctx, d+time.Millisecond), ErrInvalid)
			start := time.Now()
			require.NoError(t, l.Lock(ctx))
			guarded, err := l.Guard(ctx)
			require.NoError(t, err)
			require.NoError(t, rival.Lock(ctx))
			assert.Less(t, time.Since(start), soon)
			assert.ErrorIs(t, context.Cause(guarded), ErrMaxHold)
			require.NoError(t, rival.Unlock(ctx))
			assert.ErrorIs(t, l.Unlock(ctx), ErrMaxHold)
		})
	}
}

// A write hold with a limit is gone in time, also where the same owner reads on.
func TestMaxHoldOfAWriterThatReadsOn(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	b := newBench(t, testredis.Start(t).Addr())
	c := b.client()
	write, read := c.NewRWLock(b.name, MaxHold(time.Second)).Write(), c.NewRWLock(b.name).Read()
	require.NoError(t, write.Lock(ctx))
	require.NoError(t, read.Lock(ctx))
	other := b.client().NewRWLock(b.name).Read()
	start := time.Now()
	require.NoError(t, other.Lock(ctx))
	assert.Less(t, time.Since(start), soon)
	held, err := read.IsHeld(ctx)
	require.NoError(t, err)
	assert.True(t, held, "the read lock")
	require.NoError(t, other.Unlock(ctx))
	require.NoError(t, read.Unlock(ctx))
	assert.ErrorIs(t, write.Unlock(ctx), ErrMaxHold)
}

func TestReadersWithLimitsShareNoRecord(t *testing.T) {
	ctx := context.Background()
	b := newBench(t, testredis.Mini(t).Addr())
	read := b.client(WithHandoverSlice(time.Hour)).NewRWLock(b.name, MaxHold(time.Minute)).Read()
	first, second := WithOwner(ctx), WithOwner(ctx)
	require.NoError(t, read.Lock(first))
	require.NoError(t, read.Lock(second))
	i, err := read.client.Inspect(ctx, b.name)
	require.NoError(t, err)
	assert.Len(t, i.Holders, 2)
	require.NoError(t, read.Unlock(first))
	require.NoError(t, read.Unlock(second))
}

func TestLimitsThatMakeNoSenseAreRefused(t *testing.T) {
	ctx := context.Background()
	b := newBench(t, testredis.Mini(t).Addr())
	c := b.client()
	for text, opts := range map[string][]LockOption{
		"MaxHold(0s): at least 1ms":               {MaxHold(0)},
		"MaxHold(999µs): at least 1ms":            {MaxHold(999 * time.Microsecond)},
		"AtLeast(2s) with MaxHold(1s): no longer": {AtLeast(2 * time.Second), MaxHold(time.Second)},
		"AtLeast(0s): at least 1ms":               {AtLeast(0)},
		"AtLeast(-1s): at least 1ms":              {AtLeast(-time.Second)},
		"AtLeast(999µs): at least 1ms":            {AtLeast(999 * time.Microsecond)},
	} {
		for _, l := range limitedLocks {
			locker := l.make(c, b.name, opts...)
			for _, err := range []error{locker.Lock(ctx), locker.Unlock(ctx)} {
				assert.ErrorIs(t, err, ErrInvalid, "%s %s", l.name, text)
				assert.ErrorContains(t, err, text, l.name)
			}
		}
	}
	red := c.NewRedLock(c.NewLock(b.name), c.NewLock(b.name+"2", AtLeast(time.Second)), c.NewLock(b.name+"3"))
	assert.ErrorIs(t, red.Lock(ctx), ErrInvalid)
	red = c.NewRedLock(c.NewLock(b.name), c.NewLock(b.name+"2", MaxHold(time.Second)), c.NewLock(b.name+"3"))
	assert.ErrorIs(t, red.Lock(ctx), ErrInvalid)
}
