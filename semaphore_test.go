package relock

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
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
		taken = permitsKey(key)
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
		counter, taken = p.Get(ctx, b.name), p.ZCard(ctx, permitsKey(b.name))
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

func TestSemaphoreLetsSoManyIn(t *testing.T) {
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
		require.Equal(b, int64(1), b.rdb.Exists(ctx, b.name, permitsKey(b.name)).Val(), "keys that stay")
	})
}

// The number in Redis applies, whatever a process passes.
func TestSemaphoreKeepsTheFirstNumber(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		two, five := b.client().NewSemaphore(b.name, 2), b.client().NewSemaphore(b.name, 5)
		count := func(s *Semaphore, want int) {
			t.Helper()
			n, err := s.Permits(ctx)
			b.must(err)
			require.Equal(t, want, n)
		}
		count(two, 2)
		count(five, 5)
		o := owners(3)
		b.mustTry(two, o[0], true)
		count(five, 2)
		b.mustTry(five, o[1], true)
		b.mustTry(five, o[2], false)

		b.must(two.SetPermits(ctx, 3))
		b.must(two.SetPermits(ctx, 3)) // repeated
		count(five, 3)
		b.mustTry(five, o[2], true)
		b.must(five.SetPermits(ctx, 1)) // permits that are held are not revoked
		count(two, 1)
		b.available(two, 0)
		b.must(two.Unlock(o[0]))
		b.must(five.Unlock(o[1]))
		b.mustTry(two, o[0], false)
		b.must(five.Unlock(o[2]))
		b.available(two, 1)
		b.must(two.SetPermits(ctx, 0))
		b.mustTry(two, o[0], false)
		require.Zero(t, b.permits(0))
		b.must(b.rdb.Del(ctx, b.name).Err())
		b.must(two.SetPermits(ctx, 4)) // for a semaphore that does not exist
		count(five, 4)
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

// Waiters of one process get permits in the order in which they called Lock, including those that ask for an explicit
// lease.
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
			permitsKey(b.name),
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
		b.must(b.rdb.ZAdd(ctx, permitsKey(b.name),
			redis.Z{Score: 922337203685477, Member: java}, redis.Z{Score: 1, Member: "this one is over"}).Err())
		b.must(b.rdb.DecrBy(ctx, b.name, 2).Err())
		testredis.Await(b, "a lease ends", soon, func() bool {
			i, err = c.Inspect(ctx, b.name)
			return err == nil && len(i.Holders) == 2
		})
		assert.Equal(t, 3, i.Available, "with those that have lapsed")
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

// The scripts do what a model does, for any requests, each of them sent once or more, late or not, in any order. The
// clients may not subscribe, so that a grant sends no message.
func TestSemaphoreScriptsFollowTheModel(t *testing.T) {
	t.Parallel()
	granted, several := 0, 0
	// 62: a field asks again whose grant has expired; 205: a caller takes its permit behind a place that is passed over.
	seeds := []int{62, 205}
	for seed := range full(40, 600) {
		seeds = append(seeds, seed)
	}
	for _, seed := range seeds {
		m := testredis.StillMini(t)
		b := newBench(t, m.Addr())
		l := b.client().NewSemaphore(b.name, 4).record
		model := semaphoreModel{permits: 4, ends: make(map[string]int64), over: make(map[string]bool)}
		rng := newRand(seed)
		for step := range 100 {
			model.now += int64(rng.IntN(40))
			m.SetTime(time.UnixMilli(1_800_000_000_000 + model.now))
			id := fmt.Sprint(rng.IntN(4), javaThread[1:36], ":") // of four clients, with three owners each
			id += []string{"0:09", "1:09+2", "2:09+3"}[rng.IntN(3)]
			got, want, what := reply{}, reply{}, ""
			// The place of a grant stays in the line until another one is granted, so that its process can come back.
			place := b.rdb.HGet(context.Background(), b.lineKey(), semaphoreClient(id)).Val()
			model.kept = strings.Contains(place+" ", " "+id+" ")
			do := func(name string, c call, expect reply) {
				var err error
				what, want = name+" "+id, expect
				got, err = run(context.Background(), b.rdb, c)
				b.must(err)
			}
			lease := int64(20 + rng.IntN(100))
			level := 1 + rng.IntN(4)/3
			switch op := rng.IntN(22); {
			case op < 9:
				a := contract.Attempt{Field: id, Lease: time.Duration(lease) * time.Millisecond, HoldCount: level,
					Delivery: []string{contract.Poll, contract.Poll, contract.Defer, contract.Barge}[rng.IntN(4)]}
				do("acquire, "+a.Delivery, l.Acquire(a), model.acquire(id, lease, level, a.Delivery))
			case op < 14:
				left, late := rng.IntN(5)/4, rng.IntN(20) == 0
				c := l.RollBack(contract.Attempt{Field: id, HoldCount: left + 1, Late: late})
				c.Args[4] = int64(1e13) // the hand-off window
				do("release, undo", c, model.release(id, left, late))
			case op < 17:
				do("renew", l.Renew(id, time.Duration(lease)*time.Millisecond, op == 16), model.renew(id, lease, op == 16))
			case op == 17:
				do("inspect", l.Inspect(id), model.inspect(id))
			case op == 18:
				n := rng.IntN(6)
				do("set", l.call(semaphoreSet, n), model.set(n))
			case op == 19:
				do("force", l.Force(), model.force())
			case op == 20: // Java takes an expired permit away, by its own clock, and another script finds one available
				if members := b.rdb.ZRange(context.Background(), l.keys[1], 0, -1).Val(); len(members) > 0 {
					member := members[rng.IntN(len(members))]
					b.must(b.rdb.ZRem(context.Background(), l.keys[1], member).Err())
					b.must(b.rdb.Incr(context.Background(), b.name).Err())
					delete(model.ends, member)
				}
				do("set after Java", l.call(semaphoreSet, model.permits), model.set(model.permits))
			default:
				do("count", call{Script: semaphoreCount, Keys: l.keys[:2], Args: []any{l.permits}}, model.count())
			}
			switch what[:3] {
			case "rel":
				got[1] = 0 // who was notified
			case "acq":
				got[2] %= 4 // how many are ahead
			}
			require.Equal(t, want, got, "seed %d, step %d: %s", seed, step, what)
			if model.exists {
				require.Equal(t, model.permits-len(model.ends), b.permits(model.permits), "seed %d, step %d: %s", seed, step, what)
			}
			require.ElementsMatch(
				t,
				slices.Collect(maps.Keys(model.ends)),
				b.rdb.ZRange(context.Background(), l.keys[1], 0, -1).Val(),
				"seed %d, step %d: %s: permits that are taken",
				seed,
				step,
				what,
			)
			var line []string
			for _, p := range b.places() {
				line = append(line, p.field)
			}
			require.Equal(t, model.fields(), line, "seed %d, step %d: %s: the line", seed, step, what)
		}
		granted += model.granted
		several += model.several
		b.forget()
		m.Del(b.name)
	}
	assert.Greater(t, granted, 100, "places that were granted what they wanted")
	assert.Greater(t, several, 50, "those of them that wanted several permits")
}

// A semaphoreModel is a simple model of a semaphore: the number of permits, when each held permit expires, and who
// waits.
type semaphoreModel struct {
	exists  bool
	permits int
	now     int64
	ends    map[string]int64
	line    []waitingPermit
	over    map[string]bool // fields that can no longer acquire a permit
	granted int
	several int // places of several permits that were granted

	kept bool // the line has a place for the field that asks, which may have been granted its permits, and lost them
}

type waitingPermit struct {
	id    string
	lease int64
}

func semaphoreClient(id string) string {
	client, _, _ := strings.Cut(id, ":")
	return client
}

// permitsOf returns the IDs of the permits of a field: see internal/lua/semaphore.lua.
func permitsOf(field string) (ids []string) {
	head, n, several := strings.Cut(field, "+")
	if !several {
		return []string{field}
	}
	at := strings.LastIndexByte(head, ':') + len(":0")
	first, size := 0, 0
	_, _ = fmt.Sscan(head[at:], &first)
	_, _ = fmt.Sscan(n, &size)
	for i := range size {
		ids = append(ids, fmt.Sprint(head[:at], first+i))
	}
	return ids
}

// taken returns when the first permit of a field expires, or 0 if some of its permits are not held.
func (m *semaphoreModel) taken(field string) (ends int64) {
	for i, id := range permitsOf(field) {
		if at, ok := m.ends[id]; !ok {
			return 0
		} else if i == 0 || at < ends {
			ends = at
		}
	}
	return ends
}

func (m *semaphoreModel) take(field string, ends int64) {
	for _, id := range permitsOf(field) {
		m.ends[id] = ends
	}
}

func (m *semaphoreModel) returns(field string) {
	for _, id := range permitsOf(field) {
		delete(m.ends, id)
	}
}

// next returns the index of the first place that the semaphore has enough permits for, or -1.
func (m *semaphoreModel) next() int {
	return slices.IndexFunc(m.line, func(w waitingPermit) bool { return len(permitsOf(w.id)) <= max(m.permits, 1) })
}

func (m *semaphoreModel) fields() (all []string) {
	for _, w := range m.line {
		all = append(all, w.id)
	}
	return all
}

func (m *semaphoreModel) drop() {
	for id, ends := range m.ends {
		if ends <= m.now {
			delete(m.ends, id)
		}
	}
}

func (m *semaphoreModel) free() int {
	if !m.exists {
		return 0
	}
	return m.permits - len(m.ends)
}

// pass grants free permits to the line, until it is the turn of asker, or until the next place wants more than there
// are: then it reports true.
func (m *semaphoreModel) pass(asker string) (short bool) {
	for at := m.next(); m.free() > 0 && at >= 0; at = m.next() {
		w := m.line[at]
		size := len(permitsOf(w.id))
		if size > m.free() || w.id == asker {
			return size > m.free()
		}
		m.take(w.id, m.now+w.lease)
		m.line = slices.Delete(m.line, at, at+1)
		m.granted++
		if size > 1 {
			m.several++
		}
	}
	return false
}

func (m *semaphoreModel) join(w waitingPermit) {
	at := slices.IndexFunc(
		m.line,
		func(other waitingPermit) bool { return semaphoreClient(other.id) == semaphoreClient(w.id) },
	)
	if at < 0 {
		m.line = append(m.line, w)
	} else {
		m.line[at] = w
	}
}

func (m *semaphoreModel) leave(id string) {
	m.line = slices.DeleteFunc(m.line, func(w waitingPermit) bool { return w.id == id })
}

func (m *semaphoreModel) acquire(id string, lease int64, level int, line string) reply {
	m.drop()
	ends, size := m.taken(id), len(permitsOf(id))
	if ends == 0 {
		m.returns(id) // a part of a hold is of no use
	}
	if ends != 0 || level > 1 {
		if ends == 0 {
			m.pass("")
			return reply{-1, 0, 0}
		}
		m.take(id, max(ends, m.now+lease))
		m.pass("")
		return reply{1, 0, 0}
	}
	m.exists = true
	place, short := int64(0), false
	next := m.next()
	switch {
	case m.over[id]:
		m.pass("")
	case size > 1 && size > m.permits && !m.kept:
		m.pass("")
		return reply{-2, int64(m.permits), 0}
	case line == contract.Poll:
		m.join(waitingPermit{id, lease})
		place = 1
		short = m.pass(id)
	case line == contract.Defer, next >= 0 && len(permitsOf(m.line[next].id)) > 1:
		short = m.pass("")
	}
	if m.free() >= size && !short && !m.over[id] {
		m.take(id, m.now+lease)
		m.leave(id)
		if m.pass("") {
			return reply{1, 0, 0}
		}
		return reply{1, int64(max(0, m.free())), 0}
	}
	first := int64(-1)
	for _, ends := range m.ends {
		if first < 0 || ends-m.now < first {
			first = ends - m.now
		}
	}
	return reply{0, first, place}
}

func (m *semaphoreModel) release(id string, left int, late bool) reply {
	r := reply{-1, 0, 0}
	if m.taken(id) > m.now {
		r[0] = 1
	}
	if left > 0 {
		return r
	}
	m.returns(id)
	m.leave(id)
	if late {
		m.over[id] = true
	}
	before := m.granted
	m.pass("")
	r[2] = int64(min(m.granted-before, 1))
	return r
}

func (m *semaphoreModel) force() reply {
	m.drop()
	n := len(m.ends)
	clear(m.ends)
	m.pass("")
	return reply{int64(min(n, 1)), 0, 0}
}

func (m *semaphoreModel) renew(id string, lease int64, exact bool) reply {
	ends := m.taken(id)
	if ends <= m.now {
		return reply{-1, 0, 0}
	}
	if m.take(id, m.now+lease); !exact {
		m.take(id, max(ends, m.now+lease))
	}
	return reply{1, 0, 0}
}

func (m *semaphoreModel) inspect(id string) reply {
	r := reply{0, 0, -2}
	for _, ends := range m.ends {
		if ends > m.now {
			r[0]++
			r[2] = max(r[2], ends-m.now)
		}
	}
	if id != "" && m.taken(id) > m.now {
		r[1] = 1
	}
	return r
}

func (m *semaphoreModel) set(n int) reply {
	m.drop()
	m.permits, m.exists = n, true
	m.pass("")
	return reply{1, 0, 0}
}

func (m *semaphoreModel) count() reply {
	return reply{int64(m.permits), int64(m.permits) - m.inspect("")[0], 0}
}

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
		granted.lapses()
		b.permitClient(s).ask(contract.Defer)
		assert.Equal(b, []string{wide.id, granted.id}, b.clientsInLine())
	})
}

// It also keeps its place if one behind it has lost its subscription, and takes a permit itself.
func TestSemaphorePlaceThatMovesStaysWhenACallerLeaves(t *testing.T) {
	onEachPermits(t, 3, func(b *bench, s *Semaphore) {
		wide, one, _ := b.wantsMore(s)
		deaf := b.permitClient(s).listens().joins(contract.Push)
		b.must(deaf.hears.Close())
		testredis.Await(b, "it does not listen any more", soon, func() bool {
			return b.hearers(deaf.l.announce+":"+deaf.id) == 0
		})
		one.lapses()
		require.Equal(b, int64(1), deaf.ask(contract.Push)[0])
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
	testredis.Await(b, "its undo is over", 2*soon, func() bool { return s.client.engine.Probe().Stats().AtWork == 0 })
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

// Two users use a semaphore, and one of them may not write its line. What that one grants is not granted again: its
// holder may have renewed it, and a second grant would shorten the lease.
func TestSemaphoreGrantsNoPlaceTwice(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	s := b.client().NewSemaphore(b.name, 1)
	b.must(s.SetPermits(ctx, 1))
	holder := b.permitClient(s).takes()
	granted := b.permitClient(s).listens().joins(contract.Push)
	b.must(b.rdb.Do(ctx, "acl", "setuser", "reader", "on", ">pw", "~*", "&*", "+@all", "-hset", "-hdel").Err())
	other := b.server.Client(func(o *redis.Options) { o.Username, o.Password = "reader", "pw" })
	_, err := run(ctx, other, s.record.Release(released(holder.field, 0, false)))
	b.must(err)
	require.Positive(b, granted.lease(), "the permit is granted")
	_, err = run(ctx, b.rdb, s.record.Renew(granted.field, time.Hour, false))
	b.must(err)
	b.must(s.SetPermits(ctx, 2)) // the place is still in the line
	assert.Greater(b, granted.lease(), time.Minute, "the lease")
	assert.Equal(b, 1, b.permits(2))
	granted.gives(neverDue)
	assert.Equal(b, 2, b.permits(2))
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

// The counter may be missing while permits are held, it may be that of other data, and it may have an expiry, which
// Redisson's expire sets.
func TestSemaphoreCounterAndPermitsAgree(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		s := b.client().NewSemaphore(b.name, 3)
		o := owners(3)
		b.mustTry(s, o[0], true)
		b.must(b.rdb.Del(ctx, b.name).Err())
		b.available(s, 2)
		b.mustTry(s, o[1], true)
		require.Equal(t, 1, b.permits(3), "with the permit that was taken before")
		b.must(b.rdb.Del(ctx, b.name).Err())
		b.must(s.Unlock(o[0])) // does not increment a counter that does not exist
		b.mustTry(s, o[2], true)
		require.Equal(t, 1, b.permits(3))
		b.must(b.rdb.PExpire(ctx, b.name, time.Minute).Err())
		b.mustTry(s, o[0], true)
		assert.Positive(t, b.rdb.PTTL(ctx, permitsKey(b.name)).Val(), "the permits go with the counter")
		for _, owner := range o {
			b.must(s.Unlock(owner))
		}
		b.must(b.rdb.Set(ctx, b.name, "12 monkeys", 0).Err())
		b.mustBe(s.Lock(ctx), ErrNotALock)
		b.mustBe(s.SetPermits(ctx, 3), ErrNotALock)
		b.mustBe(second(s.Available(ctx)), ErrNotALock)
		require.Equal(t, "12 monkeys", b.rdb.Get(ctx, b.name).Val())
		b.must(b.rdb.Del(ctx, b.name).Err())
	})
}

// An attempt that the user is not allowed to finish takes no permit.
func TestSemaphoreAttemptThatIsRefusedTakesNothing(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	b.must(b.rdb.Do(ctx, "acl", "setuser", "nozadd", "on", ">pw", "~*", "&*", "+@all", "-zadd").Err())
	s := b.clientOn(
		b.server.Client(func(o *redis.Options) { o.Username, o.Password = "nozadd", "pw" }),
	).NewSemaphore(
		b.name,
		2,
	)
	for range 3 {
		assert.True(t, refused(s.Lock(ctx)))
	}
	require.Equal(t, 2, b.permits(2))
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
func TestSemaphoreAttemptThatRunsAfterItsUndoTakesNothing(t *testing.T) {
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
	testredis.Await(b, "its undo is over", 2*soon, func() bool {
		return b.direct.engine.Probe().Stats().AtWork == 0 && s.client.engine.Probe().Stats().AtWork == 0
	})
	ran := b.scriptRuns()
	late.Release()
	testredis.Await(b, "the attempt has run", soon, func() bool { return b.scriptRuns() > ran })
	assert.Equal(t, 1, b.permits(1), "permits that are free")
}

// Data of the application at the key of the permits is refused, and left unchanged, even if its scores look like
// expired leases.
func TestSemaphoreLeavesOtherDataAlone(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		for what, score := range map[string]float64{"past": 100, "future": float64(time.Now().Add(time.Hour).UnixMilli())} {
			s := b.client().NewSemaphore(b.name+what, 2)
			key := permitsKey(s.Name())
			for i := range 5 {
				b.must(b.rdb.ZAdd(ctx, key, redis.Z{Score: score + float64(i), Member: fmt.Sprint("user:", i)}).Err())
			}
			b.mustBe(s.Lock(ctx), ErrNotALock)
			b.mustBe(s.SetPermits(ctx, 3), ErrNotALock)
			_, err := s.ForceUnlock(ctx)
			b.mustBe(err, ErrNotALock)
			assert.EqualValues(b, 5, b.rdb.ZCard(ctx, key).Val(), "%s: members", what)
			b.must(b.rdb.Del(ctx, key).Err())
		}
	})
}

// A permitClient is a client of a semaphore whose requests the test sends.
type permitClient struct {
	*bench
	l     *semaphore
	id    string
	field string
	asked uint64
	hears *redis.PubSub // the channel of grants, or nil
}

const neverDue = 2_000_000 * time.Hour // a hand-off window that never ends

func (b *bench) permitClient(s *Semaphore) *permitClient {
	id := uuid.NewString()
	b.Cleanup(b.forget)
	return &permitClient{bench: b, l: s.record, id: id, field: id + ":1:01"}
}

func (c *permitClient) ask(line string) reply {
	c.Helper()
	c.asked++
	r, err := run(
		context.Background(),
		c.rdb,
		c.l.Acquire(contract.Attempt{Field: c.field, Lease: time.Minute, HoldCount: 1, Delivery: line, Asked: c.asked}),
	)
	c.must(err)
	return r
}

// takes acquires a permit that must be free.
func (c *permitClient) takes() *permitClient {
	c.Helper()
	require.Equal(c, int64(1), c.ask(contract.Barge)[0])
	return c
}

// listens subscribes to the channel of grants.
func (c *permitClient) listens() *permitClient {
	c.Helper()
	c.hears = c.subscribe(c.l.announce + ":" + c.id)
	return c
}

// joins waits in the line, with an delivery as in internal/lua/line.lua.
func (c *permitClient) joins(delivery string) *permitClient {
	c.Helper()
	require.Equal(c, int64(1), c.ask(delivery)[2]%4, "no place")
	return c
}

// gives releases the permit; the line may keep it for a hand-off window.
func (c *permitClient) gives(slice time.Duration) reply {
	c.Helper()
	call := c.l.Release(released(c.field, 0, false))
	call.Args[4] = milliseconds(slice)
	r, err := run(context.Background(), c.rdb, call)
	c.must(err)
	return r
}

// lease returns the remaining lease of the permit of c, or 0 if c has none.
func (c *permitClient) lease() time.Duration {
	c.Helper()
	ends, err := c.rdb.ZScore(context.Background(), c.l.keys[1], c.field).Result()
	if errors.Is(err, redis.Nil) {
		return 0
	}
	c.must(err)
	return time.Until(time.UnixMilli(int64(ends)))
}

// expires ends the lease of the permit of c.
func (c *permitClient) lapses() {
	c.Helper()
	c.must(c.rdb.ZAdd(context.Background(), c.l.keys[1], redis.Z{Score: 1, Member: c.field}).Err())
}

// messages returns the messages that were sent to c and not returned before.
func (c *permitClient) messages() []string {
	c.Helper()
	return c.received(c.hears, c.l.announce+":"+c.id)
}

// A permitContender is an owner of a Client that asks for a permit.
type permitContender struct {
	*lineClient
	s     *Semaphore
	asked *atomic.Int64 // number of requests for a permit, without renewals, which depend on how long the test takes
}

func (b *bench) permitContender(opts ...Option) *permitContender {
	b.Helper()
	rdb, asked := testredis.Client(b, b.addr), new(atomic.Int64)
	rdb.AddHook(commandHook(func(cmd redis.Cmder) {
		if len(cmd.Args()) > 1 && cmd.Args()[1] == semaphoreAcquire.Digest() {
			asked.Add(1)
		}
	}))
	c := b.contenderOn(rdb, opts...)
	return &permitContender{c, c.client.NewSemaphore(b.name, 1), asked}
}

// requests returns how many requests for a permit the Client has sent, when it sends no more.
func (c *permitContender) requests() int64 {
	c.Helper()
	c.settled()
	return c.asked.Load()
}

// sibling returns another owner of the same Client.
func (c *permitContender) sibling() *permitContender {
	return &permitContender{c.lineClient.sibling(), c.s, c.asked}
}

func (c *permitContender) asks() *permitContender {
	go func() { c.got <- c.s.Lock(c.owner) }()
	return c
}

func (c *permitContender) joins() *permitContender {
	c.Helper()
	c.asks().joined()
	return c
}

func (c *permitContender) gets() *permitContender {
	c.Helper()
	c.lineClient.gets()
	return c
}

func (c *permitContender) unlocks() {
	c.Helper()
	c.must(c.s.Unlock(c.owner))
}

// onEachPermits runs test for a semaphore with a number of permits, on a miniredis and on a real Redis.
func onEachPermits(t *testing.T, permits int, test func(b *bench, s *Semaphore)) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		t.Parallel()
		b := newLineBench(t, addr)
		s := b.client().NewSemaphore(b.name, permits)
		b.must(s.SetPermits(context.Background(), permits))
		test(b, s)
	})
}

// A release grants its permit to the process that has waited longest. It sends one message, and that process sends no
// request.
func TestSemaphoreReleaseGrantsThePermit(t *testing.T) {
	onEachPermits(t, 2, func(b *bench, s *Semaphore) {
		m, other := b.permitClient(s).takes(), b.permitClient(s).takes()
		first, second := b.permitContender().joins(), b.permitContender().joins()
		silent := b.permitClient(s).listens().joins(contract.Push)
		last := b.permitContender().joins()
		require.Equal(
			b,
			[]string{first.client.ID(), second.client.ID(), silent.id, last.client.ID()},
			b.clientsInLine(),
			"the line",
		)
		asked := []int64{first.requests(), second.requests(), last.requests()}
		require.NotContains(b, asked, int64(0))

		require.Equal(b, reply{1, 0, 1}, m.gives(neverDue))
		first.gets()
		second.waits()
		require.Equal(b, reply{1, 0, 1}, other.gives(neverDue))
		second.gets()
		assert.Equal(b, asked, []int64{first.asked.Load(), second.asked.Load(), last.asked.Load()}, "requests")
		first.unlocks()
		assert.Equal(b, []string{fmt.Sprintf("grant %s 1 5000 0", silent.field)}, silent.messages())
		assert.InDelta(b, 3500, silent.lease().Milliseconds(), 1500, "the provisional lease")
		last.waits()
		require.Equal(b, reply{1, 0, 1}, silent.gives(neverDue))
		last.gets()
		assert.Equal(b, asked[2], last.asked.Load(), "requests")
		require.Zero(b, b.permits(2))
		last.unlocks()
		second.unlocks()
		b.emptyLine()
	})
}

// A critical section costs one request and one release, however many processes wait.
func TestSemaphoreCostsTwoScriptsASection(t *testing.T) {
	t.Parallel()
	b := newLineBench(t, testredis.Start(t).Addr())
	b.must(b.client().NewSemaphore(b.name, 1).SetPermits(context.Background(), 2))
	const clients, warm, sections = 8, 10, 50
	var ready, all sync.WaitGroup
	ready.Add(clients)
	begin := make(chan struct{})
	for range clients {
		c := b.permitContender()
		waitgroup.Go(&all, func() {
			for n := range warm + sections {
				if n == warm {
					ready.Done()
					<-begin
				}
				assert.NoError(b, c.s.Lock(c.owner))
				time.Sleep(2 * time.Millisecond) // the work
				assert.NoError(b, c.s.Unlock(c.owner))
			}
		})
	}
	ready.Wait()
	before := b.scriptRuns()
	close(begin)
	all.Wait()
	runs := float64(b.scriptRuns()-before) / (clients * sections)
	b.Logf("%.2f scripts a section", runs)
	assert.LessOrEqual(b, runs, 2.2, "scripts a section")
}

// A process that is granted a permit and does not react loses it after the provisional lease, and the next one gets it.
// It is passed over until it asks.
func TestSemaphorePausedClientLosesItsGrant(t *testing.T) {
	onEachPermits(t, 1, func(b *bench, s *Semaphore) {
		m := b.permitClient(s).takes()
		frozen := b.permitClient(s).listens().joins(contract.Push)
		next := b.permitContender(WithPollInterval(100 * time.Millisecond)).joins()
		m.gives(neverDue)
		assert.InDelta(b, 3500, frozen.lease().Milliseconds(), 1500, "the provisional lease")
		next.waits()
		frozen.lapses() // the provisional lease expires
		next.gets()
		assert.Equal(b, "suspect", b.placeOf(frozen.id).state, "the place of the frozen client")
		require.Zero(b, b.permits(1))

		last := b.permitContender(WithPollInterval(100 * time.Millisecond)).joins()
		next.unlocks()
		last.gets() // and not the paused client
		frozen.joins(contract.Push)
		assert.Equal(b, "confirmed", b.placeOf(frozen.id).state, "the place of the client that has asked")
		last.unlocks()
		assert.Greater(b, frozen.lease(), 50*time.Second, "the lease of the grant")
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
		frozen := b.permitClient(s).listens()
		frozen.field += "+3"
		frozen.joins(contract.Push)
		next := b.permitContender(WithPollInterval(50 * time.Millisecond)).joins()
		b.keptSince(engine.ProvisionalLease / 4)
		b.mustTry(s, owner, false)
		assert.Empty(b, frozen.messages())
		b.keptSince(engine.ProvisionalLease / 2)
		b.mustTry(s, owner, false)
		next.waits()
		assert.Contains(b, frozen.messages(), "free", "halfway, the process is told to ask")

		b.keptSince(engine.ProvisionalLease)
		next.gets()
		b.mustTry(s, owner, true)
		b.must(s.Unlock(owner))
		next.unlocks()
		assert.Equal(b, "suspect", b.placeOf(frozen.id).state, "the place of the process")

		frozen.joins(contract.Push)
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
		frozen := b.permitClient(s).listens()
		frozen.field += "+2"
		frozen.joins(contract.Push)
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
				return slices.Contains(frozen.messages(), "free")
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

// If several grants expire, the last one leaves its client its entry. Another client waits again at the end.
func TestSemaphoreOfSeveralExpiriesTheLastKeepsItsPlace(t *testing.T) {
	onEachPermits(t, 2, func(b *bench, s *Semaphore) {
		m, other := b.permitClient(s).takes(), b.permitClient(s).takes()
		var all []*permitClient
		for range 5 {
			all = append(all, b.permitClient(s).listens().joins(contract.Push))
		}
		m.gives(neverDue)
		other.gives(neverDue)
		require.Positive(b, all[0].lease(), "the first permit")
		require.Positive(b, all[1].lease(), "the second permit")
		all[0].lapses()
		all[1].lapses()
		require.Equal(b, int64(0), all[4].ask(contract.Push)[0], "others are in front")
		assert.Equal(b, []string{all[1].id, all[4].id}, b.clientsInLine(), "the line")
		assert.Positive(b, all[2].lease(), "the permit that has lapsed")
		assert.Positive(b, all[3].lease(), "the other permit that has lapsed")
		assert.False(
			b,
			b.rdb.HExists(context.Background(), b.lineKey(), all[0].id).Val(),
			"what the line has of the first client",
		)
		all[0].joins(contract.Push)
		assert.Equal(b, []string{all[1].id, all[4].id, all[0].id}, b.clientsInLine(), "the line")
		assert.Zero(b, b.permits(2))
	})
}

// So does a caller that acquires the permit of an expired grant ahead of the line.
func TestSemaphoreCallerAheadOfTheLineKeepsThePlaceOfAnExpiredGrant(t *testing.T) {
	onEachPermits(t, 1, func(b *bench, s *Semaphore) {
		holder := b.permitClient(s).takes()
		granted := b.permitClient(s).listens().joins(contract.Push)
		holder.gives(neverDue)
		granted.lapses()
		ahead := b.permitClient(s).takes()
		ahead.gives(neverDue)
		assert.Equal(b, []string{granted.id}, b.clientsInLine(), "the line")
	})
}

// If SetPermits has lowered the number, a release leaves no permit free, and no message says so: Java services fail if
// it has a negative number.
func TestSemaphoreReleaseOfAPermitTooManyIsNotAnnounced(t *testing.T) {
	onEachPermits(t, 3, func(b *bench, s *Semaphore) {
		holder := b.permitClient(s).takes()
		b.permitClient(s).takes()
		b.must(s.SetPermits(context.Background(), 0))
		b.permitClient(s).listens().joins(contract.Push)
		java := b.subscribe(s.record.announce)
		assert.Equal(b, reply{1, 0, 0}, holder.gives(0))
		assert.Empty(b, b.received(java, s.record.announce))
	})
}

// A forced release of other permits leaves the client that was granted a permit last its entry, too.
func TestSemaphoreForcedReleaseOfOthersKeepsThePlaceOfAGrant(t *testing.T) {
	onEachPermits(t, 2, func(b *bench, s *Semaphore) {
		m, other := b.permitClient(s).takes(), b.permitClient(s).takes()
		granted := b.permitClient(s).listens().joins(contract.Push)
		m.gives(neverDue)
		require.Positive(b, granted.lease(), "the permit")
		r, err := run(context.Background(), b.rdb, s.record.Force(other.field))
		b.must(err)
		require.Equal(b, int64(1), r[0])
		granted.lapses()
		b.permitClient(s).ask(contract.Defer)
		assert.Equal(b, "suspect", b.placeOf(granted.id).state, "the place of the client")
	})
}

// The place of a grant that has expired comes back, whichever permits are released by force.
func TestSemaphoreForcedReleaseKeepsThePlaceOfAnExpiredGrant(t *testing.T) {
	for what, seen := range map[string]func(granted, other *permitClient) []string{
		"all":       func(_, _ *permitClient) []string { return nil },
		"its own":   func(granted, _ *permitClient) []string { return []string{granted.field} },
		"of others": func(_, other *permitClient) []string { return []string{other.field} },
	} {
		t.Run(what, func(t *testing.T) {
			onEachPermits(t, 2, func(b *bench, s *Semaphore) {
				m, other := b.permitClient(s).takes(), b.permitClient(s).takes()
				granted := b.permitClient(s).listens().joins(contract.Push)
				m.gives(neverDue)
				require.Positive(b, granted.lease(), "the permit")
				granted.lapses()
				_, err := run(context.Background(), b.rdb, s.record.Force(seen(granted, other)...))
				b.must(err)
				assert.Equal(b, "suspect", b.placeOf(granted.id).state, "the place of the client")
			})
		})
	}
}

// A grant that its client uses is no expiry: later grants leave the entry where it is.
func TestSemaphoreGrantsBesideOthersAreNoLapse(t *testing.T) {
	onEachPermits(t, 2, func(b *bench, s *Semaphore) {
		m, other := b.permitClient(s).takes(), b.permitClient(s).takes()
		one, two, three := b.permitClient(
			s,
		).listens().joins(
			contract.Push,
		), b.permitClient(
			s,
		).listens().joins(
			contract.Push,
		), b.permitClient(
			s,
		).listens().joins(
			contract.Push,
		)
		m.gives(neverDue)
		other.gives(neverDue)
		assert.Equal(b, []string{three.id}, b.clientsInLine(), "the line")
		assert.Len(b, one.messages(), 1)
		assert.Len(b, two.messages(), 1)
		one.gives(neverDue)
		assert.Positive(b, two.lease())
		assert.Positive(b, three.lease())
		assert.Empty(b, b.clientsInLine(), "the line")
	})
}

// A client whose connection is closed is passed over. A client that may not subscribe is granted the permit, and asks.
func TestSemaphoreGrantsToThoseThatHear(t *testing.T) {
	onEachPermits(t, 1, func(b *bench, s *Semaphore) {
		m := b.permitClient(s).takes()
		dead := b.permitClient(s).listens().joins(contract.Push)
		asking, last := b.permitClient(s).joins(contract.Poll), b.permitClient(s).listens().joins(contract.Push)
		_ = dead.hears.Close()
		testredis.Await(
			b,
			"the dead client does not listen any more",
			soon,
			func() bool { return b.hearers(m.l.announce+":"+dead.id) == 0 },
		)
		require.Equal(b, reply{1, 0, 1}, m.gives(neverDue))
		require.Zero(b, dead.lease())
		require.Positive(b, asking.lease())
		assert.Equal(b, reply{1, 0, 0}, asking.ask(contract.Poll))
		assert.Greater(b, asking.lease(), 50*time.Second, "the lease after it has asked")
		assert.Equal(b, int64(3), dead.ask(contract.Push)[2], "the server has no subscription of it")
		assert.Equal(b, []string{last.id}, b.clientsInLine(), "the line")
		require.Equal(b, reply{-1, 0, 0}, dead.gives(neverDue))
		require.Zero(b, b.permits(1))
	})
}

// A user that may not ask who is subscribed learns from the message that no connection received it.
func TestSemaphoreGrantThatNobodyHearsIsTakenBack(t *testing.T) {
	b := newLineBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	b.must(b.rdb.Do(ctx, "acl", "setuser", "nopubsub", "on", ">pw", "~*", "&*", "+@all", "-pubsub").Err())
	s := b.client().NewSemaphore(b.name, 1)
	m := b.permitClient(s).takes()
	dead, next := b.permitClient(s).listens().joins(contract.Push), b.permitClient(s).listens().joins(contract.Push)
	_ = dead.hears.Close()
	testredis.Await(
		b,
		"the dead client does not listen any more",
		soon,
		func() bool { return b.hearers(m.l.announce+":"+dead.id) == 0 },
	)
	user := b.clientOn(testredis.Client(b, b.addr, func(o *redis.Options) { o.Username, o.Password = "nopubsub", "pw" }))
	release := m.l.Release(released(m.field, 0, false))
	release.Args[4] = milliseconds(neverDue)
	r, err := user.send(release)
	b.must(err)
	require.Equal(b, reply{1, 0, 1}, r)
	assert.Zero(b, dead.lease())
	assert.Positive(b, next.lease())
	require.Zero(b, b.permits(1))
}

// A grant whose message is lost is found when the process asks, within the poll interval.
func TestSemaphoreLostMessageLosesNoGrant(t *testing.T) {
	onEachPermits(t, 1, func(b *bench, s *Semaphore) {
		m := b.permitClient(s).takes()
		c := b.permitContender(WithPollInterval(300 * time.Millisecond)).joins()
		p := b.placeOf(c.client.ID())
		ctx := context.Background()
		_, err := b.rdb.TxPipelined(ctx, func(r redis.Pipeliner) error {
			r.ZRem(ctx, m.l.keys[1], m.field)
			r.ZAdd(ctx, m.l.keys[1], redis.Z{Score: float64(time.Now().Add(5 * time.Second).UnixMilli()), Member: p.field})
			r.HDel(ctx, b.lineKey(), fmt.Sprint(p.number))
			return nil
		})
		b.must(err)
		c.gets().unlocks()
		require.Equal(b, 1, b.permits(1))
	})
}

// More permits, and ForceUnlock, grant to as many processes as there are permits, which send no requests.
func TestSemaphoreNewPermitsAreGranted(t *testing.T) {
	onEachPermits(t, 1, func(b *bench, s *Semaphore) {
		ctx := context.Background()
		b.permitClient(s).takes()
		var all []*permitContender
		for range 6 {
			all = append(all, b.permitContender().joins())
		}
		asked := all[5].requests()
		b.must(s.SetPermits(ctx, 3))
		all[0].gets()
		all[1].gets()
		all[2].waits()
		freed, err := s.ForceUnlock(ctx)
		b.must(err)
		require.True(b, freed)
		for _, c := range all[2:5] {
			c.gets()
		}
		all[5].waits()
		require.Zero(b, b.permits(3))
		all[3].unlocks()
		all[5].gets().unlocks()
		assert.Equal(b, asked, all[5].asked.Load(), "requests")
		all[2].unlocks()
		all[4].unlocks()
		for _, c := range all[:2] {
			b.mustBe(c.s.Unlock(c.owner), ErrLockLost)
		}
		require.Equal(b, 3, b.permits(3))
	})
}

// A permit that was acquired by a client that does not know the line, for example Java, is released on the common
// channel, to which waiters are subscribed. A release to which such a client is subscribed is free for all once in each
// hand-off window. Its message is the number of free permits.
func TestSemaphoreIsSharedWithThoseThatHaveNoLine(t *testing.T) {
	onEachPermits(t, 2, func(b *bench, s *Semaphore) {
		ctx := context.Background()
		m, other := b.permitClient(s).takes(), b.permitClient(s).takes()
		one := b.permitClient(s).listens().joins(contract.Push)
		c := b.permitContender().joins()
		java := b.subscribe(m.l.announce)
		b.must(b.rdb.HSet(ctx, b.lineKey(), "shared", 1).Err())
		require.Equal(b, int64(1), m.gives(time.Minute)[1], "connections that heard the release")
		got, err := java.ReceiveMessage(ctx)
		b.must(err)
		assert.Equal(b, "1", got.Payload)
		assert.Equal(b, []string{"free"}, one.messages())
		require.Equal(b, 1, b.permits(2), "free permits")
		c.waits()

		_, err = b.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error { // Java acquires it
			p.Decr(ctx, b.name)
			p.ZAdd(ctx, m.l.keys[1], redis.Z{Score: endsIn(time.Minute), Member: "16 bytes of Java"})
			return nil
		})
		b.must(err)
		assert.Equal(b, int64(2), one.ask(contract.Push)[2], "the channel says when Java gives it back")
		require.Equal(b, reply{1, 0, 1}, other.gives(time.Hour), "the next release of the slice")
		require.Positive(b, one.lease())

		// The Client notices that Java has a permit when it asks.
		late := b.permitContender().asks()
		testredis.Await(b, "it hears Java's channel", soon, func() bool { return b.hearers(m.l.announce) == 2 })
		late.settled()
		_, err = b.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.ZRem(ctx, m.l.keys[1], "16 bytes of Java")
			p.Incr(ctx, b.name)
			p.Publish(ctx, m.l.announce, "1")
			return nil
		})
		b.must(err)
		c.gets() // it came first
		late.waits()
		c.unlocks()
		late.gets().unlocks()
	})
}

// endsIn returns the score of a lease that lasts for a duration from now on.
func endsIn(lease time.Duration) float64 { return float64(time.Now().Add(lease).UnixMilli()) }

// A user that may not use the key of the line is notified that a permit is free, and tries.
func TestSemaphoreUserWithoutTheLineHearsReleases(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	b := newLineBench(t, server.Addr())
	d := b.deployment(server)
	user := d.user(b, withoutLine, WithWatchdogTimeout(30*time.Second)).NewSemaphore(b.name, 1)
	first := b.permitContender().asks().gets()
	got := make(chan error, 1)
	me := ContextWithOwner(context.Background())
	go func() { got <- user.Lock(me) }()
	awaitSubscribed(t, user, got)
	time.Sleep(300 * time.Millisecond) // until the attempt after the subscription has ended: no permission tells
	next := b.permitContender().joins()
	first.unlocks()
	select {
	case err := <-got: // both were notified
		b.must(err)
		b.must(user.Unlock(me))
		next.gets().unlocks()
	case err := <-next.got:
		b.must(err)
		next.unlocks()
		b.must(await(b, "the user hears of the release", got))
		b.must(user.Unlock(me))
	case <-time.After(soon):
		t.Fatal("nobody was told")
	}
	require.Equal(t, 1, b.permits(1))
}

// The first hold of a Client already shows that its user may not use the line: the processes that wait subscribe to its
// release.
func TestSemaphoreFirstHoldOfAUserWithoutTheLine(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	b := newLineBench(t, server.Addr())
	user := b.deployment(server).user(b, withoutLine, WithWatchdogTimeout(time.Minute)).NewSemaphore(b.name, 1)
	me := ContextWithOwner(context.Background())
	got, err := user.TryLock(me, 0, 0)
	b.must(err)
	require.True(t, got)
	next := b.permitContender().asks()
	testredis.Await(b, "the waiter listens for free permits", soon, func() bool {
		heard, err := b.rdb.PubSubNumSub(context.Background(), user.record.announce).Result()
		b.must(err)
		return heard[user.record.announce] == 1
	})
	b.must(user.Unlock(me))
	next.gets().unlocks()
}

// A Client has one entry at a time, for the first of its callers. Each grant is for one caller. A message that arrives
// twice, or for no caller, changes nothing for the others.
func TestSemaphoreClientHasOnePlaceForManyCallers(t *testing.T) {
	onEachPermits(t, 3, func(b *bench, s *Semaphore) {
		var taken []*permitClient
		for range 3 {
			taken = append(taken, b.permitClient(s).takes())
		}
		all := []*permitContender{b.permitContender().joins()}
		c := all[0]
		for n := 1; n < 4; n++ {
			all = append(all, c.sibling().asks())
			testredis.Await(b, "it waits in this process", soon, func() bool { return b.waitersInQueue(c.s) == n })
		}
		other := b.permitContender().joins()
		require.Equal(b, []string{c.client.ID(), other.client.ID()}, b.clientsInLine(), "the line")
		first := b.placeOf(c.client.ID())
		taken[0].gives(neverDue)
		all[0].gets()
		testredis.Await(b, "the next caller has the place at the end", soon, func() bool {
			return slices.Equal([]string{other.client.ID(), c.client.ID()}, b.clientsInLine())
		})
		assert.NotEqual(b, first.field, b.placeOf(c.client.ID()).field)
		taken[1].gives(neverDue)
		other.gets()
		taken[2].gives(neverDue)
		all[1].gets()
		c.joined()

		ctx := context.Background()
		tell := func(field string, asked uint64) {
			b.must(
				b.rdb.Publish(ctx, c.s.record.announce+":"+c.client.ID(), fmt.Sprintf("grant %s %d 5000 0", field, asked)).Err(),
			)
		}
		unknown := c.client.ID() + ":7:0999"
		tell(first.field, first.asked)
		tell(unknown, 1)
		testredis.Await(b, "the message behind it is handled", soon, func() bool { return b.ended(unknown) })
		require.Zero(b, b.permits(3))
		other.unlocks()
		all[2].gets()
		c.joined()
		all[0].unlocks()
		all[3].gets()
		for _, c := range all[1:] {
			c.unlocks()
		}
		require.Equal(b, 3, b.permits(3))
		b.emptyLine()
	})
}

// A caller that gives up leaves the entry of its process to the next one.
func TestSemaphoreCallerThatGivesUpLeavesItsPlace(t *testing.T) {
	onEachPermits(t, 1, func(b *bench, s *Semaphore) {
		m := b.permitClient(s).takes()
		first := b.permitContender()
		second := first.sibling()
		var cancel context.CancelFunc
		first.owner, cancel = context.WithCancel(first.owner)
		defer cancel()
		first.joins()
		second.asks()
		testredis.Await(b, "the second one waits", soon, func() bool {
			return b.waitersInQueue(second.s) == 1
		})
		other := b.permitContender().joins()
		cancel()
		b.mustBe(await(b, "the first one comes back", first.got), context.Canceled)
		second.settled()
		require.Equal(b, []string{first.client.ID(), other.client.ID()}, b.clientsInLine(), "the line")
		m.gives(neverDue)
		second.gets()
		other.waits()
		second.unlocks()
		other.gets().unlocks()
		require.Equal(b, 1, b.permits(1))
	})
}

// If callers of one process find all permits held at the same time, all of them get one in the end, even if no sleep
// ends by itself.
func TestSemaphoreCallersThatFindItBusyTogetherAllGetIn(t *testing.T) {
	onEachPermits(t, 2, func(b *bench, s *Semaphore) {
		c := b.permitContender()
		for range full(5, 50) {
			m, other := b.permitClient(s).takes(), b.permitClient(s).takes()
			var all sync.WaitGroup
			for _, owner := range owners(8) {
				waitgroup.Go(&all, func() {
					if assert.NoError(b, c.s.Lock(owner)) {
						assert.NoError(b, c.s.Unlock(owner))
					}
				})
			}
			time.Sleep(time.Millisecond)
			m.gives(0)
			other.gives(0)
			all.Wait()
			require.Equal(b, 2, b.permits(2))
		}
	})
}

// A caller that asked before another one, and waits behind it in the process, has an entry of its own after the other
// one was granted a permit.
func TestSemaphoreCallerThatAskedFirstHasAPlaceAfterAnother(t *testing.T) {
	b := newFaultBench(t)
	s := b.direct.NewSemaphore(b.name, 2)
	m, other := b.permitClient(s).takes(), b.permitClient(s).takes()
	c := b.clientOn(b.proxy.Client(), WithPollInterval(time.Hour)).NewSemaphore(b.name, 2)
	first, late := b.proxy.On(
		calls(semaphoreAcquire),
		testredis.DelayReply(100*time.Millisecond),
	), b.proxy.On(
		calls(semaphoreAcquire),
		testredis.DelayReply(400*time.Millisecond),
	)
	o := owners(3)
	asks := func(owner context.Context) <-chan error {
		got := make(chan error, 1)
		go func() { got <- c.Lock(owner) }()
		return got
	}
	one := asks(o[0])
	await(b.bench, "the first one asks", first.Fired())
	two := asks(o[1])
	await(b.bench, "the second one asks beside the first one", late.Fired())
	waiting := func(n int) {
		testredis.Await(b, "they wait in this process", soon, func() bool { return b.waitersInQueue(c) == n })
	}
	testredis.Await(b, "the first one has found no permit free", soon, func() bool {
		_, _, busy := waitersOf(c)
		return busy
	})
	three := asks(o[2])
	waiting(1)
	waiting(2) // the second one has its answer
	testredis.Await(b, "the place of the first one", soon, func() bool { return len(b.places()) == 1 })
	m.gives(neverDue)
	b.must(await(b.bench, "the first one", one))
	testredis.Await(b, "the place of the third one", soon, func() bool { return len(b.places()) == 1 })
	other.gives(neverDue)
	b.must(await(b.bench, "the third one", three))
	testredis.Await(b, "the place of the second one", soon, func() bool { return len(b.places()) == 1 })
	b.must(c.Unlock(o[0]))
	b.must(await(b.bench, "the second one", two))
	b.must(c.Unlock(o[1]))
	b.must(c.Unlock(o[2]))
	require.Equal(b, 2, b.permits(2))
}

// If one caller of a process has found no permit free, and waits for one in Redis, the others wait behind it and send
// no requests.
func TestSemaphoreCallersBehindABusyOneAskNothing(t *testing.T) {
	b := newFaultBench(t)
	s := b.direct.NewSemaphore(b.name, 1)
	m := b.permitClient(s).takes()
	c := b.clientOn(b.proxy.Client(), WithPollInterval(time.Hour)).NewSemaphore(b.name, 1)
	o := owners(10)
	got := make(chan error, len(o))
	asks := func(owner context.Context) { go func() { got <- c.Lock(owner) }() }
	asks(o[0])
	testredis.Await(b, "the first one stands in the line and hears", soon, func() bool {
		all := b.places()
		return len(all) == 1 && all[0].delivery == contract.Push
	})
	asked := b.proxy.On(calls(semaphoreAcquire), testredis.DelayReply(0)).Times(testredis.Always)
	for _, owner := range o[1:] {
		asks(owner)
	}
	testredis.Await(b, "the others wait in this process", soon, func() bool { return b.waitersInQueue(c) == len(o)-1 })
	assert.Zero(b, asked.Count(), "requests of those behind")
	m.gives(neverDue)
	for range o {
		b.must(await(b.bench, "one of them", got))
		for _, owner := range o {
			if held, err := c.IsHeld(owner); err == nil && held {
				b.must(c.Unlock(owner))
			}
		}
	}
	require.Equal(b, 1, b.permits(1))
}

// A counter that INCRBY does not write, or that holds more than any number of permits, is other data.
func TestSemaphoreRefusesOddCounters(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		for i, value := range []string{"007", "-0", "+1", "1.0", "", " 1", "99999999999999999999", "9223372036854775807",
			"x"} {
			s := b.client().NewSemaphore(fmt.Sprint(b.name, i), 2)
			b.must(b.rdb.Set(ctx, s.Name(), value, 0).Err())
			_, permits := s.Permits(ctx)
			_, acquire := s.TryLock(ctx, 0, 0)
			for op, err := range map[string]error{"acquire": acquire, "SetPermits": s.SetPermits(ctx, 3), "Permits": permits} {
				assert.ErrorIs(b, err, ErrNotALock, "%s with the counter %q", op, value)
			}
			assert.Equal(b, value, b.rdb.Get(ctx, s.Name()).Val(), "the counter")
			b.must(b.rdb.Del(ctx, s.Name()).Err())
		}
	})
}

// A sorted set of other data at the key of the held permits is not counted.
func TestSemaphoreCountsNoMembersOfOtherData(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		s := b.client().NewSemaphore(b.name, 3)
		b.must(b.rdb.ZAdd(ctx, permitsKey(b.name), redis.Z{Score: 1, Member: "a"}).Err())
		_, err := s.Available(ctx)
		assert.ErrorIs(t, err, ErrNotALock, "Available")
		_, err = s.Permits(ctx)
		assert.ErrorIs(t, err, ErrNotALock, "Permits")
		_, err = s.TTL(ctx)
		assert.ErrorIs(t, err, ErrNotALock, "TTL")
		b.must(b.rdb.Del(ctx, permitsKey(b.name)).Err())
	})
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
