package relock

// MultiLocks: several locks that are acquired and released as one.
//
// Rules: all or none: while one of them is busy, the others are free for other owners. No two owners wait for each other,
// in whatever order they name the locks. The loss of one lock is the loss of all. Leases and foreign Lockers have files
// of their own.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// newMultiLock returns a MultiLock with locks of every kind, acquired in several steps.
func newMultiLock(c *Client, name string) Locker {
	return c.NewMultiLock(
		c.NewRWLock(name+"-r").Read(),
		c.NewLock(name+"-second"),
		c.NewFairLock(name+"-fair"),
		c.NewRWLock(name+"-w").Write(),
		c.NewMultiLock(c.NewLock(name), c.NewLock(name+"-fenced", Fenced())),
	)
}

func TestMultiLock(t *testing.T) { testLocker(t, newMultiLock) }

// The same in one step.
func TestMultiLockInOneStep(t *testing.T) {
	testLocker(t, func(c *Client, name string) Locker {
		return c.NewMultiLock(c.NewLock(name+"-b"), c.NewLock(name), c.NewLock(name+"-a"))
	})
}

// Locks of several steps are tried at the same time. If one is busy, the others are free for other owners while the
// MultiLock waits for the first of them.
func TestMultiLockTriesAllStepsTogether(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx := ContextWithOwner(context.Background())
	rdb := testredis.Client(t, b.addr)
	var gaveUp giveUps
	c := b.clientOn(rdb, WithObserver(&gaveUp))
	locks := []Locker{c.NewFairLock(b.name + "-1"), c.NewFairLock(b.name + "-2"), c.NewFairLock(b.name + "-3")}
	l := c.NewMultiLock(locks...)

	var asked atomic.Int64
	var alone atomic.Bool
	all := make(chan struct{})
	rdb.AddHook(processHook(func(request func() error) error {
		if asked.Add(1) == 3 {
			close(all)
		}
		select {
		case <-all:
		case <-time.After(send.ResendTime * 9 / 10): // before one of them is sent again
			alone.Store(true)
		}
		return request()
	}))
	for _, take := range []func() error{
		func() error { return l.Lock(ctx) },
		func() error { return l.LockLease(ctx, time.Minute) },
	} {
		b.must(take())
		assert.False(b, alone.Load(), "a request went out when the others had not")
		for _, one := range locks {
			n, err := one.HoldCount(ctx)
			b.must(err)
			assert.Equal(b, 1, n)
		}
		b.must(l.Unlock(ctx))
		asked.Store(0)
		all = make(chan struct{})
	}
	asked.Store(3)
	close(all)

	other := b.client()
	second := other.NewFairLock(b.name + "-2")
	b.must(second.Lock(ctx))
	got := make(chan error, 1)
	go func() { got <- l.Lock(ctx) }()
	third := other.NewFairLock(b.name + "-3")
	b.triesFor(context.Background(), third, soon, true) // the attempt may have it for a moment
	b.must(third.Unlock(context.Background()))
	b.must(second.Unlock(ctx))
	b.must(await(b, "Lock", got))
	b.must(l.Unlock(ctx))
	assert.Zero(b, gaveUp.n.Load(), "events that a caller has given up")
}

// giveUps counts the callers that have given up.
type giveUps struct {
	NopObserver
	n atomic.Int64
}

func (g *giveUps) GaveUp(context.Context, GaveUpEvent) { g.n.Add(1) }

// The attempt on all steps waits for no lock. A Redis that answers slowly does not make it fail.
func TestMultiLockOfSeveralStepsWaitsForASlowRedis(t *testing.T) {
	b := newFaultBench(t)
	ctx := ContextWithOwner(context.Background())
	c := b.patientClient()
	l := c.NewMultiLock(c.NewFairLock(b.name+"-1"), c.NewFairLock(b.name+"-2"))
	b.proxy.Latency(send.MinWait)
	b.must(l.Lock(ctx))
	n, err := l.HoldCount(ctx)
	b.must(err)
	assert.Equal(b, 1, n)
	b.must(l.Unlock(ctx))
	b.proxy.Latency(0)
	// The Client continues to roll back the first attempt, which ran after it was given up.
	testredis.Await(b, "nothing is left", soon, func() bool { return len(b.keys()) == 0 })
}

// It waits for the lock that is busy now.
func TestMultiLockWaitsForWhicheverIsBusy(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		c, other := b.client(WithPollInterval(time.Hour)), b.client()
		first, second := other.NewLock(b.name+"-1"), other.NewLock(b.name+"-2")
		local := c.NewLock(b.name + "-1")
		l := c.NewMultiLock(c.NewLock(b.name+"-1"), c.NewLock(b.name+"-2"))
		owner := ContextWithOwner(ctx)
		for range 3 {
			b.must(first.Lock(ctx))
			got := b.startWaiter(owner, l)
			b.must(second.Lock(ctx))
			b.must(first.Unlock(ctx))
			testredis.Await(b, "it waits for the second one", soon, func() bool {
				return b.hearers("redisson_lock__channel:{"+b.name+"-2}") > 0
			})
			b.must(local.Lock(ctx)) // and in this process
			b.must(second.Unlock(ctx))
			b.must(local.Unlock(ctx))
			b.must(await(b, "both are free", got))
			b.must(l.Unlock(owner))
		}
	})
}

// Unlock releases every lock, and its error names those that it could not release.
func TestMultiLockUnlocksAll(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		c, other := b.client(), b.client()
		failing := stubLocker{
			Locker: c.NewLock(b.name + "-stub"),
			unlock: func(context.Context) error { return io.ErrNoProgress },
		}
		l := c.NewMultiLock(failing, c.NewLock(b.name+"-1"), c.NewFairLock(b.name+"-2"), c.NewLock(b.name+"-3"))
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		b.must(b.rdb.Del(ctx, b.name+"-2").Err())
		err = l.Unlock(ctx)
		b.mustBe(err, ErrLockLost)
		b.mustBe(err, io.ErrNoProgress)
		assert.ErrorContains(t, err, b.name+`-2"`)
		assert.NotContains(t, err.Error(), b.name+`-1"`)
		assert.Error(t, guarded.Err(), "the guard goes on")
		for _, name := range []string{"-stub", "-1", "-2", "-3"} {
			b.tries(other.NewLock(b.name+name), true)
			b.must(other.NewLock(b.name + name).Unlock(ctx))
		}
	})
}

// The locks that were acquired are released when another lock fails, and both errors are returned.
func TestMultiLockJoinsErrors(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	c := b.client()
	refuses := stubLocker{
		Locker: c.NewLock(b.name + "-a"),
		tryLock: func(context.Context, time.Duration, time.Duration) (bool, error) {
			return false, io.ErrClosedPipe
		},
	}
	first := stubLocker{Locker: c.NewLock(b.name + "-A"), unlock: func(context.Context) error { return io.ErrNoProgress }}
	_, err := c.NewMultiLock(refuses, c.NewLock(b.name), first).TryLock(ctx, time.Second, 0)
	b.mustBe(err, io.ErrClosedPipe)
	b.mustBe(err, io.ErrNoProgress)
	for _, name := range []string{"", "-a", "-A"} {
		b.isLocked(c.NewLock(b.name+name), false)
	}
}

// The loss of any of them ends the guard, and the cause names the lock.
func TestMultiLockLossOfOneEndsTheGuard(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		for _, name := range []string{"-1", "-2", "-3"} {
			b := newBench(t, addr)
			ctx := context.Background()
			c := b.client(WithWatchdogTimeout(1500 * time.Millisecond))
			l := c.NewMultiLock(c.NewLock(b.name+"-1"), c.NewFairLock(b.name+"-2"), c.NewLock(b.name+"-3"))
			b.must(l.Lock(ctx))
			guarded, err := l.Guard(ctx)
			b.must(err)
			b.must(b.rdb.Del(ctx, b.name+name).Err())
			await(b, "the guard ends", guarded.Done())
			b.mustBe(context.Cause(guarded), ErrLockLost)
			assert.ErrorContains(t, context.Cause(guarded), b.name+name)
			b.holds(l, 0)
			b.mustBe(l.Unlock(ctx), ErrLockLost)
		}
	})
}

// A MultiLock that loses its first lock while it waits for the last one starts over.
func TestMultiLockStartsOverWhenAnEarlierLockIsLost(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(b *bench){
		"it expires":       func(*bench) { time.Sleep(600 * time.Millisecond) },
		"it is taken away": func(b *bench) { b.must(b.rdb.Del(context.Background(), b.name+"-1").Err()) },
		"a rival takes it": func(b *bench) { b.must(b.rdb.Del(context.Background(), b.name+"-1").Err()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, testredis.Start(t).Addr())
			ctx := context.Background()
			c, other := b.client(WithWatchdogTimeout(300*time.Millisecond)), b.client()
			first, last := other.NewLock(b.name+"-1"), other.NewLock(b.name+"-last")
			b.must(last.Lock(ctx))
			l := c.NewMultiLock(c.NewLock(b.name+"-1"), stubLocker{Locker: c.NewLock(b.name + "-last")})
			owner := ContextWithOwner(ctx)
			got := make(chan error)
			go func() { got <- l.LockLease(owner, time.Minute) }()
			testredis.Await(b, "the first is taken", soon, func() bool {
				locked, err := first.IsLocked(ctx)
				return locked && err == nil
			})
			lose(b)
			if name == "a rival takes it" {
				b.tries(first, true)
			}
			b.must(last.Unlock(ctx))
			if name == "a rival takes it" {
				select {
				case err := <-got:
					require.Fail(t, "it says that it has what a rival has", "%v", err)
				case <-time.After(300 * time.Millisecond):
				}
				b.must(first.Unlock(ctx))
			}
			b.must(await(b, "all are free", got))
			n, err := l.HoldCount(owner)
			require.NoError(t, err)
			assert.Equal(t, 1, n)
			ttl, err := first.TTL(ctx)
			require.NoError(t, err)
			assert.GreaterOrEqual(t, ttl, 50*time.Second)
			b.must(l.Unlock(owner))
		})
	}
}

// A caller that waits for a lock of another Client gets ErrClosed when the Client of the MultiLock is closed.
func TestMultiLockCloseWakesWaitersElsewhere(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	home, other := b.client(), b.client()
	held := b.client().NewLock(b.name)
	l := home.NewMultiLock(other.NewLock(b.name), other.NewFairLock(b.name+"-fair"))
	mine := home.NewMultiLock(other.NewLock(b.name + "-mine"))
	b.must(mine.Lock(ctx))
	guarded, err := mine.Guard(ctx)
	b.must(err)
	b.must(held.Lock(ctx))
	got := b.startWaiter(ContextWithOwner(ctx), l)
	b.must(home.Close())
	b.mustBe(await(b, "the waiter hears of it", got), ErrClosed)
	await(b, "the guard ends", guarded.Done())
	b.mustBe(context.Cause(guarded), ErrClosed)
	b.must(mine.Unlock(ctx))
	b.must(held.Unlock(ctx))
}

func (s *section) enter(b *bench) {
	assert.EqualValues(b, 1, s.alone.Add(1), "holders")
}

// A MultiLock acquires its locks although each of them always has waiters in this process.
func TestMultiLockIsNotStarvedHere(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	c := b.client()
	var all sync.WaitGroup
	names := []string{b.name + "-a", b.name + "-b"}
	for i := range 6 {
		l := c.NewLock(names[i%2])
		waitgroup.Go(&all, func() {
			for ctx.Err() == nil {
				assert.NoError(b, l.Lock(context.Background()))
				time.Sleep(5 * time.Millisecond)
				assert.NoError(b, l.Unlock(context.Background()))
			}
		})
	}
	l := c.NewMultiLock(c.NewLock(names[0]), c.NewLock(names[1]))
	for range 5 {
		b.triesFor(context.Background(), l, soon, true)
		b.must(l.Unlock(context.Background()))
	}
	stop()
	all.Wait()
}

// Acquiring again locks that were lost while Redis could not be reached returns the loss, once.
func TestMultiLockReentryOfLostLocksSaysSoOnce(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	c := b.client(WithWatchdogTimeout(300 * time.Millisecond))
	l := c.NewMultiLock(c.NewLock(b.name), c.NewLock(b.name+"-2"))
	b.must(l.Lock(ctx))
	guarded, err := l.Guard(ctx)
	b.must(err)
	b.server.Freeze()
	await(b.bench, "the guard ends", guarded.Done())
	b.server.Thaw()
	b.mustBe(context.Cause(guarded), ErrLockLost)
	assert.ErrorIs(t, l.Lock(ctx), ErrLockLost, "a re-entry of what is lost")
	_ = l.Unlock(ctx)
	_ = l.Unlock(ctx)
}

// All or none: while one lock is busy, the others are free for other owners, even in the same process, and even those
// that a script has acquired for a moment.
func TestMultiLockHoldsNothingWhileItWaits(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		c, other := b.client(WithPollInterval(time.Hour)), b.client()
		name := func(i int) string { return fmt.Sprint(b.name, "-", i) }
		l := c.NewMultiLock(c.NewLock(name(2)), c.NewLock(name(0)), c.NewLock(name(1)))
		owner := ContextWithOwner(ctx)
		for busy := range 3 {
			held := other.NewLock(name(busy))
			b.must(held.Lock(ctx))
			got := b.startWaiter(owner, l)
			for i := range 3 {
				if i == busy {
					continue
				}
				// They are also free in this process, except for the moment of an attempt.
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

// Locks with shuffled names from four clients of two servers: there is no deadlock, never two holders, and nothing is
// left.
func TestMultiLocksOfShuffledNamesNeverDeadlock(t *testing.T) {
	t.Parallel()
	const clients, workers = 4, 3
	rounds := full(300, 1000)
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
					ok, err := l.TryLock(ContextWithOwner(context.Background()), 0, 0) // an owner that does without it
					// It has to be released by the same owner, or else expires.
					if ok {
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

// An owner that holds one of the locks can unlock it while another goroutine of the same owner waits for the rest.
func TestMultiLockDoesNotHoldUpItsOwner(t *testing.T) {
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	c, other := b.client(), b.client()
	owner := ContextWithOwner(ctx)
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

// Two processes, each with an owner that several goroutines share, acquire the same locks, together and one by one: all
// of them make progress, and no Lock returns that something is not held.
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
					owned := ContextWithOwner(ctx)
					for worker := range 3 {
						waitgroup.Go(&all, func() {
							l := Locker(c.NewMultiLock(locks...))
							for round := range full(15, 40) {
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

// A MultiLock that waits for one of its locks delays no other caller of its owner, and keeps no hold count of the locks
// that the owner holds.
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
	owner := ContextWithOwner(ctx)
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
	b.triesFor(ctx, others[1], soon, true) // the MultiLock keeps nothing of what was released
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

func TestMultiLockRefusesWrongSetsOfLocks(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	c, other := b.client(), b.client()
	var none *Lock
	elsewhere := b.clientOn(testredis.Client(t, b.addr, func(o *redis.Options) { o.DB = 1 }))
	stub := &stubLocker{Locker: c.NewLock(b.name + "-stub")}
	for name, l := range map[string]*MultiLock{
		"none":              c.NewMultiLock(),
		"nil":               c.NewMultiLock(c.NewLock(b.name), nil),
		"typed nil":         c.NewMultiLock(c.NewLock(b.name), none),
		"no lock":           c.NewMultiLock(c.NewLock(b.name), &Lock{}),
		"twice":             c.NewMultiLock(c.NewLock(b.name), c.NewLock(b.name+"-2"), c.NewLock(b.name)),
		"twice, fenced":     c.NewMultiLock(c.NewLock(b.name), c.NewLock(b.name, Fenced())),
		"semaphore":         c.NewMultiLock(c.NewLock(b.name), c.NewSemaphore(b.name, 2)),
		"lock of semaphore": c.NewMultiLock(c.NewSemaphore(b.name, 2), c.NewRWLock(b.name).Read()),
		"of another client": c.NewMultiLock(c.NewLock(b.name), other.NewLock(b.name)),
		"of another kind":   c.NewMultiLock(c.NewLock(b.name), c.NewFairLock(b.name)),
		"in another one":    c.NewMultiLock(c.NewLock(b.name), c.NewMultiLock(c.NewLock(b.name))),
		"read and plain":    c.NewMultiLock(newReadLock(c, b.name), c.NewLock(b.name)),
		"plain and write":   c.NewMultiLock(c.NewLock(b.name), newWriteLock(c, b.name)),
		"foreign twice":     c.NewMultiLock(stub, stub),
		"a bad one":         c.NewMultiLock(c.NewLock(b.name), c.NewLock("")),
		"a bad many":        c.NewMultiLock(c.NewLock(b.name), c.NewMultiLock()),
		"no client":         (*Client)(nil).NewMultiLock(c.NewLock(b.name)),
		"made by hand":      {},
	} {
		for method, err := range map[string]error{
			"Lock":    l.Lock(ctx),
			"TryLock": second(l.TryLock(ctx, 0, 0)),
			"Unlock":  l.Unlock(ctx),
			"Guard":   second(l.Guard(ctx)),
			"IsHeld":  second(l.IsHeld(ctx)),
			"TTL":     second(l.TTL(ctx)),
		} {
			assert.ErrorIs(t, err, ErrInvalid, "%s: %s", name, method)
		}
	}
	for _, l := range []*MultiLock{
		c.NewMultiLock(c.NewLock(b.name), elsewhere.NewLock(b.name)),    // on another server
		c.NewMultiLock(newReadLock(c, b.name), newWriteLock(c, b.name)), // both locks of a RWLock
	} {
		b.triesFor(ctx, l, time.Second, true)
		b.must(l.Unlock(ctx))
	}
}

// The order is that of the records, whatever the kind of lock: no two owners wait for each other.
func TestMultiLocksAreTakenInOneOrder(t *testing.T) {
	t.Parallel()
	s, s2 := testredis.Start(t), testredis.Start(t)
	for kind, pair := range map[string]func(c, c2 *Client, x, y string) (Locker, Locker){
		"halves": func(c, _ *Client, x, y string) (Locker, Locker) { return newWriteLock(c, x), newReadLock(c, y) },
		"fair":   func(c, _ *Client, x, y string) (Locker, Locker) { return c.NewFairLock(x), c.NewLock(y) },
		"plain":  func(c, c2 *Client, x, y string) (Locker, Locker) { return c.NewLock(x), c2.NewLock(y) },
		"red": func(c, c2 *Client, x, y string) (Locker, Locker) {
			stub := func(name string) Locker { return stubLocker{Locker: c.NewLock(name)} }
			first := c.NewRedLock(c.NewLock("same"+x), stub(x+"-1"), stub(x+"-2"))
			second := c.NewRedLock(c2.NewLock("same"+x), stub(x+"-3"), stub(x+"-4"))
			if x > y {
				return second, first
			}
			return first, second
		},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, s.Addr())
			b2 := newBench(t, s2.Addr())
			ctx, cancel := context.WithTimeout(context.Background(), 6*soon)
			defer cancel()
			var all sync.WaitGroup
			for i := range 4 {
				c, c2 := b.client(), b2.client()
				x, y := b.name+"-x", b.name+"-y"
				if i%2 == 1 {
					x, y = y, x
				}
				if kind == "red" {
					x = b.name + "-x"
				}
				one, other := pair(c, c2, x, y)
				if kind == "red" && i%2 == 1 {
					one, other = other, one
				}
				waitgroup.Go(&all, func() {
					for range 15 {
						l := c.NewMultiLock(one, other)
						if !assert.NoError(b, l.Lock(ctx)) {
							return
						}
						assert.NoError(b, l.Unlock(ctx))
					}
				})
			}
			all.Wait()
			for _, key := range b2.rdb.Keys(context.Background(), "*").Val() {
				testredis.Await(
					b,
					key+" is gone",
					soon,
					func() bool { return isLeftFree(b2.rdb, key) || b2.rdb.Exists(context.Background(), key).Val() == 0 },
				)
			}
		})
	}
}

// Locks of one kind cost one round trip, and leave the same records as single locks.
func TestMultiLockOfOneKindCostsOneRoundTrip(t *testing.T) {
	for kind, newOne := range map[string]lockMaker{
		"lock":   func(c *Client, name string) Locker { return c.NewLock(name) },
		"fenced": func(c *Client, name string) Locker { return c.NewLock(name, Fenced()) },
		"read":   newReadLock,
		"write":  newWriteLock,
	} {
		t.Run(kind, func(t *testing.T) {
			onEachServer(t, func(t *testing.T, addr string) {
				b := newBench(t, addr)
				ctx := context.Background()
				rdb := testredis.Client(t, addr)
				sent := new(counter)
				rdb.AddHook(sent)
				c, other := b.clientOn(rdb), b.client()
				var single, many []Locker
				for i := range 5 {
					single = append(single, newOne(other, fmt.Sprint(b.name, "-single-", i)))
					many = append(many, newOne(c, fmt.Sprint(b.name, "-many-", i)))
					b.must(single[i].LockLease(ctx, time.Minute))
				}
				l := c.NewMultiLock(many...)
				b.must(l.LockLease(ctx, time.Minute)) // Redis knows the script from here on
				b.must(l.Unlock(ctx))
				before := sent.n.Load()
				b.must(l.LockLease(ctx, time.Minute))
				assert.EqualValues(t, 1, sent.n.Load()-before, "requests")
				for i := range 5 {
					assert.Equal(t, b.record(fmt.Sprint(b.name, "-single-", i)), b.record(fmt.Sprint(b.name, "-many-", i)))
					b.holds(many[i], 1)
				}
				b.must(l.Unlock(ctx))
				for _, l := range single {
					b.must(l.Unlock(ctx))
				}
			})
		})
	}
}

// record returns the contents of the keys with that name in Redis, without what differs from hold to hold.
func (b *bench) record(name string) string {
	ctx := context.Background()
	var parts []string
	for _, key := range b.keys() {
		if !strings.Contains(key, name) || strings.HasPrefix(key, "redisson_lock_token") {
			continue
		}
		text := ""
		fields, err := b.rdb.HGetAll(ctx, key).Result()
		if err == nil {
			var all []string
			for field, value := range fields {
				all = append(
					all,
					fmt.Sprint(strings.Count(field, ":"), field[strings.LastIndex(field, ":")+1:] == "write", "=", value, " "),
				)
			}
			slices.Sort(all)
			text = strings.Join(all, "")
		} else {
			text = b.rdb.Get(ctx, key).Val()
		}
		ttl := b.rdb.PTTL(ctx, key).Val().Round(20 * time.Second)
		parts = append(parts, fmt.Sprint(strings.Count(key, ":"), " ", text, ttl))
	}
	slices.Sort(parts)
	return strings.Join(parts, "\n")
}
