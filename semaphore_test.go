package relock

// Semaphores as their users see them: the number of permits, who gets one, what Inspect shows, and data of others under
// the same keys. The files semaphore_... have the model, holds of several permits, and the line.
//
// Rules: there are never more valid permits than the number in Redis, under faults too, and a permit is not lost: that
// of a crashed process goes to the next one.

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
)

// newSemaphore returns a semaphore with one permit, which excludes as a lock does.
func newSemaphore(c *Client, name string) Locker { return c.NewSemaphore(name, 1) }

// onlyFree reports whether key belongs to a semaphore of which no permit is held. Its counter is never deleted, and
// expired permits stay until the next call.
func onlyFree(rdb redis.UniversalClient, key string) bool {
	ctx, taken := context.Background(), key
	if !strings.HasSuffix(key, ":timeout") {
		if _, err := rdb.Get(ctx, key).Int(); err != nil || strings.HasPrefix(key, "redisson_") ||
			strings.Contains(key, ":rwlock_timeout:") {
			return false
		}
		taken = record.PermitsKey(key)
	}
	held, err := rdb.ZCount(ctx, taken, fmt.Sprint(time.Now().UnixMilli()), "+inf").Result()
	return err == nil && held == 0
}

func TestSemaphore(t *testing.T) { testLocker(t, newSemaphore) }

// permits checks the total of free and held permits, and returns how many are free.
func (b *bench) permits(want int) (free int) {
	b.Helper()
	ctx := context.Background()
	var counter *redis.StringCmd
	var taken *redis.IntCmd
	_, err := b.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
		counter, taken = p.Get(ctx, b.name), p.ZCard(ctx, record.PermitsKey(b.name))
		return nil
	})
	b.must(err)
	free, err = counter.Int()
	b.must(err)
	require.Equal(b, want, free+int(taken.Val()), "permits, of which %d are free", free)
	return free
}

func (b *bench) available(s *Semaphore, want int) {
	b.Helper()
	n, err := s.Available(context.Background())
	b.must(err)
	require.Equal(b, want, n, "permits that are free")
}

// owners returns a number of new owners.
func owners(n int) (all []context.Context) {
	for range n {
		all = append(all, ContextWithOwner(context.Background()))
	}
	return all
}

func (b *bench) mustTry(s *Semaphore, owner context.Context, want bool) {
	b.Helper()
	ok, err := untilAnswered(func() (bool, error) { return s.TryLock(owner, 0, 0) })
	b.must(err)
	require.Equal(b, want, ok, "TryLock answers")
}

func TestSemaphoreLetsAsManyInAsItHasPermits(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		here, there := b.client().NewSemaphore(b.name, 3), b.client().NewSemaphore(b.name, 3)
		b.available(here, 3) // nothing has set the number yet
		o := owners(4)
		b.mustTry(here, o[0], true)
		b.mustTry(there, o[1], true)
		b.mustTry(there, o[2], true)
		b.mustTry(here, o[3], false)
		b.mustTry(there, o[3], false)
		b.available(here, 0)
		require.Zero(b, b.permits(3))

		b.mustTry(here, o[0], true) // increments the hold count, and takes no permit
		require.Zero(b, b.permits(3))
		b.must(here.Unlock(o[0]))
		b.mustTry(here, o[3], false)
		b.must(here.Unlock(o[0]))
		b.mustTry(there, o[3], true)
		b.mustBe(here.Unlock(o[0]), ErrNotHeld)
		b.mustBe(here.Unlock(o[1]), ErrNotHeld) // it belongs to the other Client
		require.Zero(b, b.permits(3))
		for _, owner := range o[1:] {
			b.must(there.Unlock(owner))
		}
		b.available(there, 3)
		b.isLocked(here, false)
		require.Equal(b, 3, b.permits(3))
		require.Equal(b, int64(1), b.rdb.Exists(ctx, b.name, record.PermitsKey(b.name)).Val(), "keys that stay")
	})
}

// More permits notify the waiters.
func TestSemaphoreWaitersHearOfNewPermits(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	s := b.client(WithPollInterval(time.Hour)).NewSemaphore(b.name, 1)
	o := owners(3)
	b.mustTry(s, o[0], true)
	got := []<-chan error{b.startWaiter(o[1], s), b.startWaiter(o[2], s)}
	b.must(b.client().NewSemaphore(b.name, 1).SetPermits(ctx, 3))
	for _, got := range got {
		b.must(await(b, "a new permit", got))
	}
	for _, owner := range o {
		b.must(s.Unlock(owner))
	}
	require.Equal(b, 3, b.permits(3))
}

func TestSemaphoreRefusesBadInput(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx, c := context.Background(), b.client()
	for what, s := range map[string]*Semaphore{
		"0 permits":          c.NewSemaphore(b.name, 0),
		"-1 permits":         c.NewSemaphore(b.name, -1),
		"2147483648 permits": c.NewSemaphore(b.name, math.MaxInt32+1),
		"Fenced()":           c.NewSemaphore(b.name, 1, Fenced()),
		"name is empty":      c.NewSemaphore("", 1),
	} {
		for _, err := range []error{
			s.Lock(ctx), s.Unlock(ctx), s.SetPermits(ctx, 1), second(s.Available(ctx)), second(s.Permits(ctx)),
			second(s.Holders(ctx)),
		} {
			b.mustBe(err, ErrInvalid)
			assert.ErrorContains(t, err, what)
		}
	}
	s := c.NewSemaphore(b.name, 1)
	b.mustBe(s.SetPermits(ctx, -1), ErrInvalid)
	b.mustBe(s.SetPermits(ctx, math.MaxInt32+1), ErrInvalid)
	b.mustBe(s.SetPermits(nilCtx, 1), ErrInvalid)
}

// Two owners of one Client that have a permit each would both have the lock otherwise.
func TestSemaphorePermitIsNoHoldOfALockWithItsName(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		c := b.client()
		for kind, lock := range map[string]Locker{
			"lock": c.NewLock(b.name), "fair": c.NewFairLock(b.name),
			"read": c.NewRWLock(b.name).Read(), "write": c.NewRWLock(b.name).Write(),
		} {
			s, o := c.NewSemaphore(b.name, 2), owners(2)
			for _, owner := range o {
				b.must(s.Lock(owner))
			}
			for _, owner := range o {
				ok, err := lock.TryLock(owner, 0, 0)
				assert.ErrorIs(t, err, ErrNotALock, kind)
				assert.False(t, ok, "%s: the owner has a permit", kind)
				b.mustBe(lock.Unlock(owner), ErrNotHeld)
			}
			b.permits(2)
			for _, owner := range o {
				b.must(s.Unlock(owner))
			}
			b.must(b.rdb.Del(owners(1)[0], b.name).Err()) // otherwise the number of permits stays

			b.must(lock.Lock(o[0]))
			ok, err := s.TryLock(o[0], 0, 0)
			assert.ErrorIs(t, err, ErrNotALock, kind)
			assert.False(t, ok, "%s: the owner has the lock", kind)
			b.mustBe(s.Unlock(o[0]), ErrNotHeld)
			b.must(lock.Unlock(o[0]))
		}
	})
}

// Waiters of one process get permits in the order in which they called Lock, including those that ask for an explicit
// lease.
func TestSemaphoreServesLocalWaitersInOrder(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	s := b.client(WithPollInterval(time.Hour)).NewSemaphore(b.name, 2)
	first := owners(2)
	b.mustTry(s, first[0], true)
	b.mustTry(s, first[1], true)
	const waiters = 12
	got := make(chan int, waiters)
	goOn := make(chan struct{})
	var all sync.WaitGroup
	for i := range waiters {
		waitgroup.Go(&all, func() {
			owner, err := ContextWithOwner(context.Background()), error(nil)
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
		testredis.Await(b, "it waits", soon, func() bool {
			waits, front, _ := waitersOf(s)
			return front && waits == i
		})
	}
	b.must(s.Unlock(first[0]))
	for i := range waiters {
		require.Equal(t, i, await(b, "a waiter gets in", got))
		goOn <- struct{}{}
	}
	all.Wait()
	b.must(s.Unlock(first[1]))
	require.Equal(t, 2, b.permits(2))
}

// A process that releases its permit and asks again at once lets another waiting process go first.
func TestSemaphoreNewcomersLetWaitersGoFirst(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		one, two := b.client().NewSemaphore(b.name, 1), b.client().NewSemaphore(b.name, 1)
		var mine, theirs atomic.Int64
		var all sync.WaitGroup
		visit := func(s *Semaphore, n *atomic.Int64) {
			for owner := ContextWithOwner(ctx); mine.Load() < 20 || theirs.Load() < 20; n.Add(1) {
				if !assert.NoError(t, s.Lock(owner)) || !assert.NoError(t, s.Unlock(owner)) {
					return
				}
			}
		}
		waitgroup.Go(&all, func() { visit(one, &mine) })
		waitgroup.Go(&all, func() { visit(two, &theirs) })
		all.Wait()
		assert.Less(t, max(mine.Load(), theirs.Load()), 20*min(mine.Load(), theirs.Load()), "sections of one process")
	})
}

// Callers that find permits free do not wait for one another.
func TestSemaphoreCallersAskTogetherWhileItIsFree(t *testing.T) {
	b := newFaultBench(t)
	s := b.shaky().NewSemaphore(b.name, 8)
	b.mustTry(s, ContextWithOwner(context.Background()), true)
	const delay = 250 * time.Millisecond // a TryLock without a wait takes longer
	b.proxy.On(calls(semaphoreAcquire), testredis.DelayRequest(delay)).Times(7)
	start := time.Now()
	var all sync.WaitGroup
	for i, owner := range owners(7) {
		waitgroup.Go(&all, func() {
			ok, err := s.TryLock(owner, time.Duration(i%2)*soon, 0)
			assert.NoError(t, err)
			assert.True(t, ok)
		})
	}
	all.Wait()
	assert.Less(t, time.Since(start), testredis.Scale(start, 7*delay), "one after the other")
	freed, err := s.ForceUnlock(context.Background())
	b.must(err)
	assert.True(t, freed)
	require.Equal(t, 8, b.permits(8))
}

// An overlap measures how many requests for permits a client has under way at the same time.
type overlap struct {
	mu        sync.Mutex // guards below
	underWay  int
	since     time.Time     // when underWay last changed
	any, each time.Duration // how long any request was under way, and the sum of how long each of them was
}

func (o *overlap) DialHook(next redis.DialHook) redis.DialHook { return next }

func (o *overlap) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		defer o.begins(cmd)()
		return next(ctx, cmd)
	}
}

func (o *overlap) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		defer o.begins(cmds...)()
		return next(ctx, cmds)
	}
}

// begins notes that cmds are sent; the result, that they are answered.
func (o *overlap) begins(cmds ...redis.Cmder) (answered func()) {
	n := 0
	for _, cmd := range cmds {
		if isRun(cmd, semaphoreAcquire) {
			n++
		}
	}
	o.change(n)
	return func() { o.change(-n) }
}

func (o *overlap) change(by int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if passed := time.Since(o.since); o.underWay > 0 {
		o.any += passed
		o.each += passed * time.Duration(o.underWay)
	}
	o.underWay += by
	o.since = time.Now()
}

// reset forgets what was measured.
func (o *overlap) reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.any, o.each, o.since = 0, 0, time.Now()
}

// mean returns how many requests were under way while any was.
func (o *overlap) mean() float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.each.Seconds() / o.any.Seconds()
}

// Callers that had to wait for one another ask at the same time again as soon as permits are free, even if each of them
// comes back at once.
func TestSemaphoreCallersAskTogetherAgainAfterItWasBusy(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	const callers, times, trip = 8, 8, 50 * time.Millisecond
	rdb, asking := b.proxy.Client(), &overlap{}
	rdb.AddHook(asking)
	s, operator := b.clientOn(rdb).NewSemaphore(b.name, 2*callers), b.direct.NewSemaphore(b.name, 2*callers)
	b.must(operator.SetPermits(ctx, 0))
	var all sync.WaitGroup
	for _, owner := range owners(callers) {
		waitgroup.Go(&all, func() {
			for range times {
				if !assert.NoError(t, s.Lock(owner)) || !assert.NoError(t, s.Unlock(owner)) {
					return
				}
			}
		})
	}
	testredis.Await(b, "one waits in Redis, and the others for it", soon, func() bool {
		return b.waitersInQueue(s) == callers-1 && len(b.places()) == 1
	})
	b.proxy.Latency(trip)
	asking.reset()
	b.must(operator.SetPermits(ctx, 2*callers))
	all.Wait()
	assert.GreaterOrEqual(t, asking.mean(), 2.0, "requests that were under way at the same time, while any was")
	b.proxy.Latency(0)
	require.Equal(t, 2*callers, b.permits(2*callers))
}

// The permit of a process that has crashed goes to the next one, and no permit is lost.
func TestSemaphoreGivesThePermitsOfTheCrashedToOthers(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		crashed := b.client(WithWatchdogTimeout(time.Second))
		s := crashed.NewSemaphore(b.name, 2)
		for _, owner := range owners(2) {
			b.mustTry(s, owner, true)
		}
		b.must(crashed.Close()) // the permits stay held
		next := b.client(WithPollInterval(time.Hour)).NewSemaphore(b.name, 2)
		o := owners(2)
		b.must(next.Lock(o[0]))
		b.permits(2)
		b.must(next.Lock(o[1]))
		b.must(next.Unlock(o[0]))
		b.must(next.Unlock(o[1]))
		require.Equal(t, 2, b.permits(2))
	})
}

// An error states that no permit is free, and for how long at most.
func TestSemaphoreErrorsSayWhenAPermitExpires(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Mini(t).Addr())
	held := b.client().NewSemaphore(b.name, 1)
	b.must(held.LockLease(context.Background(), time.Minute))
	s := b.client().NewSemaphore(b.name, 1)
	waits := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		return s.Lock(ctx)
	}
	err := waits()
	b.mustBe(err, context.DeadlineExceeded)
	assert.Regexp(t, `no permit is free, and the first lease expires in 5\d(\.\d)?s`, err.Error())
	b.must(
		b.rdb.ZAdd(
			context.Background(),
			record.PermitsKey(b.name),
			redis.Z{Score: 922337203685477, Member: "16 bytes of Java"},
		).Err(),
	)
	b.must(held.Unlock(context.Background()))
	b.must(b.rdb.Set(context.Background(), b.name, 0, 0).Err())
	err = waits()
	assert.ErrorContains(t, err, "no permit is free, and none has a lease that expires")
	b.forget()
}

// Inspect and Holders return permits of both languages, the first to expire first.
func TestInspectShowsASemaphore(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx, c := context.Background(), b.client()
		s := c.NewSemaphore(b.name, 5)
		b.must(s.LockLease(ctx, time.Minute))
		b.must(s.LockLease(ContextWithOwner(ctx), time.Second))
		i, err := c.Inspect(ctx, b.name)
		b.must(err)
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
		b.must(b.rdb.ZAdd(ctx, record.PermitsKey(b.name),
			redis.Z{Score: 922337203685477, Member: java}, redis.Z{Score: 1, Member: "this one is over"}).Err())
		b.must(b.rdb.DecrBy(ctx, b.name, 2).Err())
		testredis.Await(b, "a lease ends", soon, func() bool {
			i, err = c.Inspect(ctx, b.name)
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
		b.available(s, 3)
		all, err := s.Holders(ctx)
		b.must(err)
		assert.Len(t, all, 2)
		freed, err := s.ForceUnlock(ctx)
		b.must(err)
		assert.True(t, freed)
		freed, err = s.ForceUnlock(ctx)
		b.must(err)
		assert.False(t, freed, "it is free")
		require.Equal(t, 5, b.permits(5))
		i, err = c.Inspect(ctx, b.name)
		b.must(err)
		assert.Equal(t, 5, i.Available)
		assert.False(t, i.Held())
	})
}

// A heldPermit is a time for which a permit was valid for its owner.
type heldPermit struct{ from, to time.Duration }

// Under faults the number of owners with a valid permit never exceeds the number of permits, every owner gets its turn,
// and in the end no permit is lost.
func TestSemaphoreStorm(t *testing.T) {
	const permits, processes, workers = 3, 3, 6
	b := newFaultBench(t)
	start := time.Now()
	var mu sync.Mutex // guards history
	var history []heldPermit
	var all sync.WaitGroup
	var over atomic.Bool
	var waiting atomic.Int64 // workers that have had fewer than a few permits
	waiting.Store(processes * workers)
	for p := range processes {
		c := b.clientOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = 200 * time.Millisecond }),
			WithWatchdogTimeout(time.Second), WithPollInterval(100*time.Millisecond))
		s := c.NewSemaphore(b.name, permits)
		for w := range workers {
			rng := rand.New(rand.NewPCG(uint64(p), uint64(w)))
			visit := func() (held heldPermit, trusted bool) {
				ctx, cancel := context.WithTimeout(
					ContextWithOwner(context.Background()),
					time.Duration(1+rng.IntN(3000))*time.Millisecond,
				)
				defer cancel()
				err := error(nil)
				if w%3 == 0 {
					err = s.LockLease(ctx, time.Duration(50+rng.IntN(200))*time.Millisecond)
				} else {
					err = s.Lock(ctx)
				}
				if err != nil {
					return held, false
				}
				defer func() { _ = s.Unlock(ctx) }()
				held.from = time.Since(start)
				guarded, err := s.Guard(context.WithoutCancel(ctx))
				if err != nil {
					return held, false
				}
				select {
				case <-guarded.Done():
				case <-time.After(time.Duration(rng.IntN(20)) * time.Millisecond):
				}
				held.to = time.Since(start)
				return held, guarded.Err() == nil
			}
			waitgroup.Go(&all, func() {
				for visits := 0; !over.Load(); {
					held, trusted := visit()
					if !trusted {
						continue
					}
					mu.Lock()
					history = append(history, held)
					mu.Unlock()
					if visits++; visits == 3 {
						waiting.Add(-1)
					}
				}
			})
		}
	}
	faults, end := newRand(1), time.Now().Add(full(2*time.Second, 20*time.Second))
	for time.Now().Before(end) {
		match := []testredis.Match{calls(semaphoreAcquire), calls(semaphoreRelease), calls(semaphoreRenew)}[faults.IntN(3)]
		fault := []testredis.Fault{testredis.LoseReply, testredis.DelayRequest(250 * time.Millisecond),
			testredis.DelayRequest(20 * time.Millisecond)}[faults.IntN(3)]
		b.proxy.On(match, fault)
		time.Sleep(time.Duration(faults.IntN(100)) * time.Millisecond)
	}
	testredis.Await(b, "every worker has had a permit", 4*soon, func() bool { return waiting.Load() == 0 })
	over.Store(true)
	all.Wait()
	assert.LessOrEqual(t, mostTogether(history), permits, "owners that have a permit together")
	s := b.direct.NewSemaphore(b.name, permits)
	testredis.Await(b, "all permits are free", soon, func() bool {
		n, err := s.Available(context.Background())
		return err == nil && n == permits
	})
	for _, owner := range owners(permits) {
		b.mustTry(s, owner, true)
		defer func() { b.must(s.Unlock(owner)) }()
	}
	b.mustTry(s, ContextWithOwner(context.Background()), false)
	require.Zero(t, b.permits(permits))
}

// mostTogether returns the greatest number of times that overlap.
func mostTogether(all []heldPermit) (most int) {
	type edge struct {
		at time.Duration
		by int
	}
	var edges []edge
	for _, h := range all {
		edges = append(edges, edge{h.from, 1}, edge{h.to, -1})
	}
	slices.SortFunc(edges, func(a, b edge) int {
		if a.at != b.at {
			return int(a.at - b.at)
		}
		return a.by - b.by
	})
	now := 0
	for _, e := range edges {
		now += e.by
		most = max(most, now)
	}
	return most
}

func TestMostTogetherCounts(t *testing.T) {
	assert.Equal(t, 2, mostTogether([]heldPermit{{0, 10}, {5, 15}, {10, 20}, {30, 40}}))
	assert.Equal(t, 3, mostTogether([]heldPermit{{0, 10}, {5, 15}, {9, 20}}))
}

// An attempt that no caller knows about any more takes no permit.
func TestSemaphoreAttemptThatRunsAfterItsRollbackTakesNothing(t *testing.T) {
	b := newFaultBench(t)
	s := b.shaky().NewSemaphore(b.name, 1)
	b.must(s.SetPermits(context.Background(), 1))
	late := b.proxy.On(calls(semaphoreAcquire), testredis.HoldRequest)
	ctx, cancel := context.WithCancel(ContextWithOwner(context.Background()))
	got := make(chan error, 1)
	go func() { got <- s.Lock(ctx) }()
	await(b.bench, "the attempt", late.Fired())
	cancel()
	b.mustBe(await(b.bench, "Lock", got), context.Canceled)
	testredis.Await(b, "its rollback has ended", 2*soon, func() bool {
		return b.direct.engine.Probe().Stats().AtWork == 0 && s.client.engine.Probe().Stats().AtWork == 0
	})
	ran := b.scriptRuns()
	late.Release()
	testredis.Await(b, "the attempt has run", soon, func() bool { return b.scriptRuns() > ran })
	assert.Equal(t, 1, b.permits(1), "permits that are free")
}

// Changing the number that is passed to NewSemaphore has no effect, and each Client logs it once for a name: both if it
// gets a permit, and if it finds none.
func TestSemaphoreOtherNumberIsLoggedOnce(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		logged := func(permits int) (s *Semaphore, lines func() int, text func() string) {
			out := new(lockedBuffer)
			c := b.client(WithLogger(slog.New(slog.NewTextHandler(out, nil))))
			return c.NewSemaphore(
				b.name,
				permits,
			), func() int { return strings.Count(out.String(), "number of permits") }, out.String
		}
		two, linesOfTwo, _ := logged(2)
		first, second := ContextWithOwner(ctx), ContextWithOwner(ctx)
		b.must(two.Lock(first))

		five, lines, text := logged(5)
		for range 3 {
			b.must(five.Lock(ctx))
			b.must(five.Lock(ctx)) // increments the hold count
			b.must(five.Unlock(ctx))
			b.must(five.Unlock(ctx))
		}
		testredis.Await(t, "it is logged", soon, func() bool { return lines() > 0 })
		for _, want := range []string{"level=WARN", "lock=" + b.name, "permits=2", "asked=5", "SetPermits"} {
			assert.Contains(t, text(), want)
		}

		b.must(two.Lock(second))
		busy, linesOfBusy, _ := logged(7)
		got := make(chan error, 1)
		ok, err := busy.TryLock(ctx, 0, 0)
		b.must(err)
		assert.False(t, ok)
		testredis.Await(t, "it is logged where none is free", soon, func() bool { return linesOfBusy() == 1 })
		go func() { got <- busy.Lock(first) }() // waits in the line, and is granted the permit
		testredis.Await(t, "it waits in the line", soon, func() bool { return len(b.places()) == 1 })
		b.must(two.Unlock(second))
		b.must(await(b, "the permit is granted", got))
		b.must(busy.Unlock(first))

		b.must(two.SetPermits(ctx, 5))
		five, linesOfFive, _ := logged(5)
		b.must(five.Lock(ctx))
		b.must(five.Unlock(ctx))
		b.must(two.Unlock(first))
		for _, s := range []*Semaphore{two, five, busy} { // the reports of a Client end with it
			b.must(s.client.Close())
		}
		assert.Equal(t, 1, lines(), "log lines: %s", text())
		assert.Equal(t, 1, linesOfBusy(), "log lines")
		assert.Zero(t, linesOfFive(), "log lines of one that asks for the number in Redis")
		assert.Zero(t, linesOfTwo(), "log lines of one that asked for the number in Redis")
	})
}
