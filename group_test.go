package relock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
)

// All or none: while one is busy, the others are free for everybody, also in the
// same process, and also those that a script has taken for a moment.
func TestMultiLockHoldsNothingWhileItWaits(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		c, other := b.client(WithMaxWakeDelay(time.Hour)), b.client()
		name := func(i int) string { return fmt.Sprint(b.name, "-", i) }
		l := c.NewMultiLock(c.NewLock(name(2)), c.NewLock(name(0)), c.NewLock(name(1)))
		owner := WithOwner(ctx)
		for busy := range 3 {
			held := other.NewLock(name(busy))
			b.must(held.Lock(ctx))
			got := b.startWaiter(owner, l)
			for i := range 3 {
				if i == busy {
					continue
				}
				// In this process too, but for the moment of an attempt.
				b.triesFor(ctx, c.NewLock(name(i)), soon, true)
				b.must(c.NewLock(name(i)).Unlock(ctx))
				b.tries(other.NewLock(name(i)), true)
				b.must(other.NewLock(name(i)).Unlock(ctx))
			}
			b.must(held.Unlock(ctx))
			b.must(await(b, "the waiter is woken by the one that was busy", got))
			b.must(l.Unlock(owner))
		}
	})
}

// Shuffled names from four clients of two servers: no deadlock, no two holders, nothing left.
func TestMultiLocksOfShuffledNamesNeverDeadlock(t *testing.T) {
	t.Parallel()
	const clients, workers, rounds = 4, 3, 1000
	s, s2 := testredis.Start(t), testredis.Start(t)
	b, b2 := newBench(t, s.Addr()), newBench(t, s2.Addr())
	var sections [8]section
	var all sync.WaitGroup
	todo := make(chan int)
	for i := range clients {
		c, c2 := b.client(), b2.client()
		for j := range workers {
			rng := newRand(10*i + j)
			waitgroup.Go(&all, func() {
				for range todo {
					names := rng.Perm(len(sections))[:2+rng.IntN(3)]
					var locks []Locker
					for _, n := range names {
						name := fmt.Sprint(b.name, "-", n)
						locks = append(locks, []Locker{
							c.NewLock(name), c.NewLock(name), c.NewLock(name, Fenced()), c2.NewLock(b2.name + name),
							c2.NewLock(b2.name + name), newWriteLock(c, name), newWriteLock(c, name), c.NewFairLock(name),
						}[n])
					}
					l := c.NewMultiLock(locks...)
					wait, lease := time.Hour, time.Duration(0)
					switch rng.IntN(5) {
					case 0:
						lease = time.Minute
					case 1:
						wait = time.Duration(rng.IntN(int(5 * time.Millisecond)))
					}
					ok, err := l.TryLock(WithOwner(context.Background()), 0, 0) // an owner that does without it
					if ok {                                                     // it has to be given back by the same owner: or lapses, which no worker must wait for
						_, err = l.ForceUnlock(context.Background())
					}
					if !errors.Is(err, engine.ErrNoAnswer) {
						assert.NoError(b, err)
					}
					ok, err = l.TryLock(context.Background(), wait, lease)
					if !errors.Is(err, engine.ErrNoAnswer) {
						assert.NoError(b, err)
					}
					if !ok {
						continue
					}
					for _, n := range names {
						sections[n].enter(b)
					}
					for _, n := range names {
						sections[n].alone.Add(-1)
					}
					assert.NoError(b, l.Unlock(context.Background()))
				}
			})
		}
	}
	for i := range rounds {
		select {
		case todo <- i:
		case <-time.After(time.Minute):
			require.Fail(t, "deadlock")
		}
	}
	close(todo)
	all.Wait()
}

// An owner that holds one of them can unlock it while another goroutine of the same owner waits for the rest.
func TestMultiLockDoesNotHoldUpItsOwner(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	c, other := b.client(), b.client()
	owner := WithOwner(ctx)
	mine, held := c.NewLock(b.name+"-mine"), other.NewLock(b.name+"-held")
	b.must(mine.Lock(owner))
	b.must(held.Lock(ctx))
	l := c.NewMultiLock(c.NewLock(b.name+"-mine"), c.NewLock(b.name+"-held"))
	got := b.startWaiter(owner, l)
	b.within(soon/2, "Unlock", func() { b.must(mine.Unlock(owner)) })
	b.must(held.Unlock(ctx))
	b.must(await(b, "the rest is free", got))
	b.must(l.Unlock(owner))
	b.isLocked(other.NewLock(b.name+"-mine"), false)
}

// Two processes, each with an owner that several goroutines share, take the same locks, together and
// one by one: all of them get on, and no Lock says that something is not held.
func TestMultiLocksOfSharedOwnersNeverWaitForEachOther(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	for kind, newOne := range map[string]lockMaker{
		"lock":  func(c *Client, name string) Locker { return c.NewLock(name) },
		"write": newWriteLock,
		"fair":  func(c *Client, name string) Locker { return c.NewFairLock(name) },
	} {
		for names := 2; names <= 3; names++ {
			t.Run(fmt.Sprint(kind, names), func(t *testing.T) {
				t.Parallel()
				b := newBench(t, s.Addr())
				ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
				defer cancel()
				var inside [2]atomic.Int32
				var all sync.WaitGroup
				for process := range 2 {
					c := b.client()
					var locks []Locker
					for i := range names {
						locks = append(locks, newOne(c, fmt.Sprint(b.name, "-", i)))
					}
					owned := WithOwner(ctx)
					for worker := range 3 {
						waitgroup.Go(&all, func() {
							l := Locker(c.NewMultiLock(locks...))
							for round := range 40 {
								if worker == 2 {
									l = locks[round%names]
								}
								at := fmt.Sprintf("worker %d of process %d, round %d", worker, process, round)
								if !assert.NoError(b, l.Lock(owned), at) {
									return
								}
								if worker < 2 {
									inside[process].Add(1)
									assert.Zero(b, inside[1-process].Load(), "two processes hold the same locks")
									inside[process].Add(-1)
								}
								if !assert.NoError(b, l.Unlock(owned), at) {
									return
								}
							}
						})
					}
				}
				all.Wait()
				testredis.Await(b, "nothing is left", soon, func() bool { return len(b.keys()) == 0 })
			})
		}
	}
}

// A MultiLock that waits for one of its locks keeps no other caller of its owner waiting, and no level of
// the locks that the owner holds.
func TestMultiLockThatWaitsKeepsNothingOfItsOwner(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	c, other := b.client(), b.client()
	names := []string{b.name + "-busy", b.name + "-held", b.name + "-free"}
	var locks, others []Locker
	for _, name := range names {
		locks, others = append(locks, c.NewLock(name)), append(others, other.NewLock(name))
	}
	busy, held, free := locks[0], locks[1], locks[2]
	owner := WithOwner(ctx)
	b.must(held.Lock(owner))
	b.must(others[0].Lock(ctx))
	got := b.startWaiter(owner, c.NewMultiLock(locks...))
	quick := func(what string, f func() error) {
		t.Helper()
		b.within(time.Second, what, func() { b.must(f()) })
	}
	levels := func(l Locker, want int) {
		t.Helper()
		n, err := l.HoldCount(owner)
		require.NoError(t, err)
		assert.Equal(t, want, n, l.Name())
	}
	quick("Lock of what is free", func() error { return free.Lock(owner) })
	quick("a re-entry of what is held", func() error { return held.Lock(owner) })
	quick("Unlock of the re-entry", func() error { return held.Unlock(owner) })
	levels(held, 1)
	quick("Unlock of what was held", func() error { return held.Unlock(owner) })
	b.triesFor(ctx, others[1], soon, true) // the MultiLock keeps no level of what was given back
	b.must(others[1].Unlock(ctx))
	b.must(others[0].Unlock(ctx))
	b.must(await(b, "all are free", got))
	levels(busy, 1)
	levels(held, 1)
	levels(free, 2)
	b.must(free.Unlock(owner))
	b.must(c.NewMultiLock(locks...).Unlock(owner))
	b.isLocked(other.NewMultiLock(others...), false)
}
