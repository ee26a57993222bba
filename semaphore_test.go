package relock

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
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

	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
)

// newSemaphore is a semaphore with one permit, which excludes as a lock does.
func newSemaphore(c *Client, name string) Locker { return c.NewSemaphore(name, 1) }

func TestSemaphore(t *testing.T) { testLocker(t, newSemaphore) }

// permits checks that free and taken permits are so many together, and returns how many are free.
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

// owners are so many new owners.
func owners(n int) (all []context.Context) {
	for range n {
		all = append(all, WithOwner(context.Background()))
	}
	return all
}

func (b *bench) mustTry(s *Semaphore, owner context.Context, want bool) {
	b.Helper()
	ok, err := s.TryLock(owner, 0, 0)
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

		b.mustTry(here, o[0], true) // one level more, and no permit
		require.Zero(b, b.permits(3))
		b.must(here.Unlock(o[0]))
		b.mustTry(here, o[3], false)
		b.must(here.Unlock(o[0]))
		b.mustTry(there, o[3], true)
		b.mustBe(here.Unlock(o[0]), ErrNotHeld)
		b.mustBe(here.Unlock(o[1]), ErrNotHeld) // it is of the other Client
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

// The number in Redis counts, whatever a process asks for.
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
		b.must(two.SetPermits(ctx, 3)) // again
		count(five, 3)
		b.mustTry(five, o[2], true)
		b.must(five.SetPermits(ctx, 1)) // those that are taken stay taken
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
		b.must(two.SetPermits(ctx, 4)) // of a semaphore that does not exist
		count(five, 4)
	})
}

// More permits wake those that wait.
func TestSemaphoreWaitersHearOfNewPermits(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	s := b.client(WithMaxWakeDelay(time.Hour)).NewSemaphore(b.name, 1)
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
			s.Lock(ctx), s.Unlock(ctx), s.SetPermits(ctx, 1), second(s.Available(ctx)), second(s.Permits(ctx)), second(s.Holders(ctx)),
		} {
			b.mustBe(err, ErrInvalid)
			assert.ErrorContains(t, err, what)
		}
	}
	s := c.NewSemaphore(b.name, 1)
	b.mustBe(s.SetPermits(ctx, -1), ErrInvalid)
	b.mustBe(s.SetPermits(ctx, math.MaxInt32+1), ErrInvalid)
	var nilCtx context.Context
	b.mustBe(s.SetPermits(nilCtx, 1), ErrInvalid)
}

// Waiters of one process get permits in the order in which they came, also those that want a lease of their own.
func TestSemaphoreServesLocalWaitersInOrder(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	s := b.client(WithMaxWakeDelay(time.Hour)).NewSemaphore(b.name, 2)
	first := owners(2)
	b.mustTry(s, first[0], true)
	b.mustTry(s, first[1], true)
	const waiters = 12
	got := make(chan int, waiters)
	goOn := make(chan struct{})
	var all sync.WaitGroup
	for i := range waiters {
		waitgroup.Go(&all, func() {
			owner, err := WithOwner(context.Background()), error(nil)
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
			waits := 0
			b.queueOf(s, func(g *waitQueue) {
				if g != nil && g.Taken() {
					waits = 1 + len(g.All())
				}
			})
			return waits == i+1
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

// A process that gives its permit back and asks again at once lets another one go first that waits.
func TestSemaphoreNewcomersLetWaitersGoFirst(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		c := b.client()
		l := c.NewSemaphore(b.name, 1).record
		ask := func(id string, waits bool, want int64) {
			t.Helper()
			r, err := c.send(l.acquire(attempt{field: id + javaThread[1:] + ":01", lease: time.Minute, level: 1, noWait: !waits}))
			b.must(err)
			require.Equal(t, want, r[0], id)
		}
		gives := func(id string) {
			t.Helper()
			r, err := c.send(l.release(id+javaThread[1:]+":01", 0, false))
			b.must(err)
			require.EqualValues(t, 1, r[0], id)
		}
		ask("1", true, 1)
		ask("2", true, 0)
		gives("1")
		ask("3", true, 0) // and waits from now on; clients that come in one millisecond have the same place
		ask("2", true, 1)
		gives("2")
		ask("4", false, 1) // does not wait
		gives("4")
		ask("3", true, 1)
		gives("3")
		require.Zero(t, b.rdb.Exists(ctx, l.keys[2]).Val(), "signs of life")

		// Also where both are in a loop.
		one, two := b.client().NewSemaphore(b.name, 1), b.client().NewSemaphore(b.name, 1)
		var mine, theirs atomic.Int64
		var all sync.WaitGroup
		visit := func(s *Semaphore, n *atomic.Int64) {
			for owner := WithOwner(ctx); mine.Load() < 20 || theirs.Load() < 20; n.Add(1) {
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
	b.mustTry(s, WithOwner(context.Background()), true)
	b.proxy.On(calls(semaphoreAcquire), testredis.DelayRequest(200*time.Millisecond)).Times(7)
	start := time.Now()
	var all sync.WaitGroup
	for i, owner := range owners(7) {
		waitgroup.Go(&all, func() {
			ok, err := s.TryLock(owner, time.Duration(i%2)*time.Second, 0)
			assert.NoError(t, err)
			assert.True(t, ok)
		})
	}
	all.Wait()
	assert.Less(t, time.Since(start), 7*200*time.Millisecond, "one after the other")
	freed, err := s.ForceUnlock(context.Background())
	b.must(err)
	assert.True(t, freed)
	require.Equal(t, 8, b.permits(8))
}

// The permit of a process that has crashed goes to the next one, and no permit is lost.
func TestSemaphoreGivesThePermitsOfTheCrashedToOthers(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		crashed := b.client(WithWatchdogTimeout(300 * time.Millisecond))
		s := crashed.NewSemaphore(b.name, 2)
		for _, owner := range owners(2) {
			b.mustTry(s, owner, true)
		}
		b.must(crashed.Close()) // which leaves them taken
		next := b.client(WithMaxWakeDelay(time.Hour)).NewSemaphore(b.name, 2)
		o := owners(2)
		b.must(next.Lock(o[0]))
		b.permits(2)
		b.must(next.Lock(o[1]))
		b.must(next.Unlock(o[0]))
		b.must(next.Unlock(o[1]))
		require.Equal(t, 2, b.permits(2))
	})
}

// An error says that no permit is free, and for how long at most.
func TestSemaphoreErrorsSayWhenAPermitLapses(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	held := b.client().NewSemaphore(b.name, 1)
	b.must(held.LockLease(context.Background(), time.Minute))
	s := b.client().NewSemaphore(b.name, 1)
	waits := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		return s.Lock(ctx)
	}
	err := waits()
	b.mustBe(err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, "no permit is free, 59")
	b.must(b.rdb.ZAdd(context.Background(), permitsKey(b.name), redis.Z{Score: 922337203685477, Member: "16 bytes of Java"}).Err())
	b.must(held.Unlock(context.Background()))
	b.must(b.rdb.Set(context.Background(), b.name, 0, 0).Err())
	err = waits()
	assert.ErrorContains(t, err, "no permit is free, and no lease of one ends")
	b.forget()
}

// Inspect and Holders show permits of both languages, the first to lapse first.
func TestInspectShowsASemaphore(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx, c := context.Background(), b.client()
		s := c.NewSemaphore(b.name, 5)
		b.must(s.LockLease(ctx, time.Minute))
		b.must(s.LockLease(WithOwner(ctx), time.Second))
		i, err := c.Inspect(ctx, b.name)
		b.must(err)
		assert.Equal(t, KindSemaphore, i.Kind)
		assert.Equal(t, "semaphore", i.Kind.String())
		assert.True(t, i.Held())
		assert.Equal(t, 3, i.Free)
		require.Len(t, i.Holders, 2)
		assert.Less(t, i.Holders[0].Lease, i.Holders[1].Lease)
		assert.Equal(t, i.TTL, i.Holders[1].Lease)
		assert.Equal(t, c.ID(), i.Holders[0].Client)
		assert.Equal(t, ownerOf(ctx).String(), i.Holders[1].Owner)

		java := string([]byte{0, 0xff, 0x0a, 'x'}) + "with 12 more"
		b.must(b.rdb.ZAdd(ctx, permitsKey(b.name),
			redis.Z{Score: 922337203685477, Member: java}, redis.Z{Score: 1, Member: "this one is over"}).Err())
		b.must(b.rdb.DecrBy(ctx, b.name, 2).Err())
		testredis.Await(b, "a lease ends", soon, func() bool {
			i, err = c.Inspect(ctx, b.name)
			return err == nil && len(i.Holders) == 2
		})
		assert.Equal(t, 3, i.Free, "with those that have lapsed")
		assert.Equal(t, Holder{Contender: Contender{Field: hex.EncodeToString([]byte(java)), Owner: "permit " + hex.EncodeToString([]byte(java))}, Levels: 1, Lease: -time.Millisecond}, i.Holders[1])
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
		assert.Equal(t, 5, i.Free)
		assert.False(t, i.Held())
	})
}

// The scripts do what a model does: any requests, each of them once or more, late or not, in any order. A request of an attempt may
// run after its undo, and takes a permit then until its lease is over.
func TestSemaphoreScriptsFollowTheModel(t *testing.T) {
	t.Parallel()
	for seed := range full(60, 600) {
		m := testredis.StillMini(t)
		b := newBench(t, m.Addr())
		l := b.client().NewSemaphore(b.name, 3).record
		model := semaphoreModel{permits: 3, ends: make(map[string]int64), alive: make(map[string]int64), came: make(map[string]int64)}
		rng := newRand(seed)
		for step := range 100 {
			model.now += int64(rng.IntN(40))
			m.SetTime(time.UnixMilli(1_800_000_000_000 + model.now))
			id := fmt.Sprint(rng.IntN(3), javaThread[1:], ":0", rng.IntN(3)) // of three clients
			got, want, what := reply{}, reply{}, ""
			do := func(name string, c call, expect reply) {
				var err error
				what, want = name+" "+id, expect
				got, err = run(context.Background(), b.rdb, c)
				b.must(err)
			}
			lease := int64(20 + rng.IntN(100))
			level := 1 + rng.IntN(4)/3
			switch op := rng.IntN(20); {
			case op < 9:
				a := attempt{field: id, lease: time.Duration(lease) * time.Millisecond, level: level, noWait: rng.IntN(2) == 0}
				do("acquire", l.acquire(a), model.acquire(id, lease, level, !a.noWait))
			case op < 14:
				left := rng.IntN(5) / 4
				if rng.IntN(2) == 0 {
					delete(model.alive, semaphoreClient(id))
					delete(model.came, semaphoreClient(id))
					do("release, undo", l.undo(attempt{field: id, level: left + 1}), model.release(id, left))
				} else {
					do("release", l.release(id, left, false), model.release(id, left))
				}
			case op < 17:
				do("renew", l.renew(id, time.Duration(lease)*time.Millisecond, op == 16), model.renew(id, lease, op == 16))
			case op == 17:
				do("inspect", l.inspect(id), model.inspect(id))
			case op == 18:
				n := rng.IntN(6)
				do("set", l.call(semaphoreSet, n), model.set(n))
			default:
				do("count", call{Script: semaphoreCount, Keys: l.keys[:2], Args: []any{l.permits}}, model.count())
			}
			if what[:3] == "rel" {
				got[1] = 0 // who was told
			}
			require.Equal(t, want, got, "seed %d, step %d: %s", seed, step, what)
			if model.exists {
				require.Equal(t, model.permits-len(model.ends), b.permits(model.permits), "seed %d, step %d: %s", seed, step, what)
			}
		}
		b.forget()
		m.Del(b.name)
	}
}

// A semaphoreModel is what a semaphore is, in plain words: so many permits, and when each that is taken lapses.
type semaphoreModel struct {
	exists  bool
	permits int
	now     int64
	ends    map[string]int64
	alive   map[string]int64 // until when a client that waits counts
	came    map[string]int64 // when it came
}

func semaphoreClient(id string) string {
	client, _, _ := strings.Cut(id, ":")
	return client
}

func (m *semaphoreModel) drop() {
	for id, ends := range m.ends {
		if ends <= m.now {
			delete(m.ends, id)
		}
	}
}

func (m *semaphoreModel) acquire(id string, lease int64, level int, waits bool) reply {
	m.drop()
	ends, held := m.ends[id]
	client, inFront := semaphoreClient(id), 0
	if waits {
		for other, until := range m.alive {
			if until <= m.now {
				delete(m.alive, other)
				delete(m.came, other)
			}
		}
		mine, known := m.came[client]
		for _, came := range m.came {
			if !known || came < mine {
				inFront++
			}
		}
	}
	switch {
	case held:
	case level > 1:
		return reply{-1, 0, 0}
	case len(m.ends)+inFront >= m.permits:
		m.exists = true
		if waits {
			m.alive[client] = m.now + permitLife.Milliseconds()
			if _, known := m.came[client]; !known {
				m.came[client] = m.now
			}
		}
		if len(m.ends) < m.permits {
			return reply{0, 50, 0}
		}
		first := int64(-1)
		for _, ends := range m.ends {
			if first < 0 || ends-m.now < first {
				first = ends - m.now
			}
		}
		return reply{0, first, 0}
	}
	if !held && waits {
		delete(m.alive, client)
		delete(m.came, client)
	}
	m.exists = true
	m.ends[id] = max(ends, m.now+lease)
	return reply{1, 0, 0}
}

func (m *semaphoreModel) release(id string, left int) reply {
	ends, held := m.ends[id]
	if held && left == 0 {
		delete(m.ends, id)
	}
	if !held || ends <= m.now {
		return reply{-1, 0, 0}
	}
	return reply{1, 0, 0}
}

func (m *semaphoreModel) renew(id string, lease int64, exact bool) reply {
	ends := m.ends[id]
	if ends <= m.now {
		return reply{-1, 0, 0}
	}
	if m.ends[id] = m.now + lease; !exact {
		m.ends[id] = max(ends, m.now+lease)
	}
	return reply{1, 0, 0}
}

func (m *semaphoreModel) inspect(id string) reply {
	r := reply{0, 0, -2}
	for held, ends := range m.ends {
		if ends > m.now {
			r[0]++
			r[2] = max(r[2], ends-m.now)
			if held == id {
				r[1] = 1
			}
		}
	}
	return r
}

func (m *semaphoreModel) set(n int) reply {
	m.drop()
	m.permits, m.exists = n, true
	return reply{1, 0, 0}
}

func (m *semaphoreModel) count() reply {
	return reply{int64(m.permits), int64(m.permits) - m.inspect("")[0], 0}
}

// The counter may be gone while permits are taken, it may be that of other data, and it may have a lease, which Redisson's expire sets.
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
		b.must(s.Unlock(o[0])) // adds nothing to a counter that is not there
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

// An attempt that the user may not finish takes no permit.
func TestSemaphoreAttemptThatIsRefusedTakesNothing(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	b.must(b.rdb.Do(ctx, "acl", "setuser", "nozadd", "on", ">pw", "~*", "&*", "+@all", "-zadd").Err())
	s := b.clientOn(b.server.Client(func(o *redis.Options) { o.Username, o.Password = "nozadd", "pw" })).NewSemaphore(b.name, 2)
	for range 3 {
		assert.True(t, refused(s.Lock(ctx)))
	}
	require.Equal(t, 2, b.permits(2))
}

// A heldPermit is a time for which an owner could trust its permit.
type heldPermit struct{ from, to time.Duration }

// Under faults no more owners than permits trust one at a time, every owner gets its turn, and in the end no permit is lost.
func TestSemaphoreStorm(t *testing.T) {
	const permits, processes, workers = 3, 3, 6
	b := newFaultBench(t)
	start := time.Now()
	var mu sync.Mutex // guards history
	var history []heldPermit
	var all sync.WaitGroup
	var over atomic.Bool
	var waiting atomic.Int64 // workers that have not had a permit a few times
	waiting.Store(processes * workers)
	for p := range processes {
		c := b.clientOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = 200 * time.Millisecond }),
			WithWatchdogTimeout(time.Second), WithMaxWakeDelay(100*time.Millisecond))
		s := c.NewSemaphore(b.name, permits)
		for w := range workers {
			rng := rand.New(rand.NewPCG(uint64(p), uint64(w)))
			visit := func() (held heldPermit, trusted bool) {
				ctx, cancel := context.WithTimeout(WithOwner(context.Background()), time.Duration(1+rng.IntN(3000))*time.Millisecond)
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
		fault := []testredis.Fault{testredis.LoseReply, testredis.DelayRequest(250 * time.Millisecond), testredis.DelayRequest(20 * time.Millisecond)}[faults.IntN(3)]
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
	b.mustTry(s, WithOwner(context.Background()), false)
	require.Zero(t, b.permits(permits))
}

// mostTogether is the greatest number of times that overlap.
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

// An attempt of which no caller knows any more takes a permit for its lease, and no longer.
func TestSemaphoreAttemptThatRunsAfterItsUndoLapses(t *testing.T) {
	b := newFaultBench(t)
	s := b.shaky(WithWatchdogTimeout(2*time.Second)).NewSemaphore(b.name, 1)
	b.must(s.SetPermits(context.Background(), 1))
	late := b.proxy.On(calls(semaphoreAcquire), testredis.HoldRequest)
	ctx, cancel := context.WithTimeout(WithOwner(context.Background()), 50*time.Millisecond)
	defer cancel()
	b.mustBe(s.Lock(ctx), context.DeadlineExceeded)
	testredis.Await(b, "its undo is over", 2*soon, func() bool { return b.direct.engine.atWork() == 0 && s.client.engine.atWork() == 0 })
	late.Release()
	testredis.Await(b, "the attempt has taken the permit", soon, func() bool { return b.permits(1) == 0 })
	next := WithOwner(context.Background())
	ok, err := b.direct.NewSemaphore(b.name, 1).TryLock(next, soon, 0)
	b.must(err)
	require.True(t, ok)
	require.NoError(t, errors.Join(b.direct.NewSemaphore(b.name, 1).Unlock(next)))
	testredis.Await(b, "it is given back", soon, func() bool {
		n, err := s.Available(context.Background())
		return err == nil && n == 1
	})
}

// Data of the application at the key of the permits are refused, and stay as they are: also where their scores look like leases that
// are over.
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
