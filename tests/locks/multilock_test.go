package locks

// MultiLocks: several locks that are acquired and released as one.
//
// Rules: while it waits for one of them, it holds at most those before it in the order of their names. No two owners wait
// for each other, in whatever order they name the locks. The loss of one lock is the loss of all. Leases and foreign Lockers have files
// of their own.

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMultiLock(t *testing.T) { testLocker(t, locktest.NewMultiLock) }

// It waits in the queue of the lock that is busy now, and keeps those before it.
func TestMultiLockWaitsForWhicheverIsBusy(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		c, other := b.Client(WithPollInterval(time.Hour)), b.Client()
		name := func(i int) string { return fmt.Sprint(b.LockName, "-", i) }
		l := c.NewMultiLock(c.NewLock(name(2)), c.NewLock(name(0)), c.NewLock(name(1)))
		owner := ContextWithOwner(ctx)
		b.Must(other.NewLock(name(1)).Lock(ctx))
		got := b.StartWaiter(owner, l)
		testredis.Await(b, "it waits for the second one in its line", locktest.Soon, func() bool {
			return b.Rdb.Exists(ctx, record.LineKeys(name(1))...).Val() == 2
		})
		b.Tries(other.NewLock(name(0)), false) // is kept
		triesFor(b, ctx, other.NewLock(name(2)), locktest.Soon, true)
		b.Must(other.NewLock(name(1)).Unlock(ctx))
		testredis.Await(b, "it waits for the third one in its line", locktest.Soon, func() bool {
			return b.Rdb.Exists(ctx, record.LineKeys(name(2))...).Val() == 2
		})
		b.Tries(other.NewLock(name(1)), false)
		b.Must(other.NewLock(name(2)).Unlock(ctx))
		b.Must(locktest.Await(b, "all are free", got))
		b.Must(l.Unlock(owner))
		testredis.Await(b, "nothing is left", locktest.Soon, func() bool { return len(b.Keys()) == 0 })
	})
}

// Unlock releases every lock, and its error names those that it could not release.
func TestMultiLockUnlocksAll(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		c, other := b.Client(), b.Client()
		failing := locktest.StubLocker{
			Locker:   c.NewLock(b.LockName + "-stub"),
			OnUnlock: func(context.Context) error { return io.ErrNoProgress },
		}
		l := c.NewMultiLock(failing, c.NewLock(b.LockName+"-1"), c.NewFairLock(b.LockName+"-2"), c.NewLock(b.LockName+"-3"))
		b.Must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.Must(err)
		b.Must(b.Rdb.Del(ctx, b.LockName+"-2").Err())
		err = l.Unlock(ctx)
		b.MustBe(err, ErrLockLost)
		b.MustBe(err, io.ErrNoProgress)
		assert.ErrorContains(t, err, b.LockName+`-2"`)
		assert.NotContains(t, err.Error(), b.LockName+`-1"`)
		assert.Error(t, guarded.Err(), "the guard goes on")
		for _, name := range []string{"-stub", "-1", "-2", "-3"} {
			b.Tries(other.NewLock(b.LockName+name), true)
			b.Must(other.NewLock(b.LockName + name).Unlock(ctx))
		}
	})
}

// The locks that were acquired are released when another lock fails, and both errors are returned.
func TestMultiLockJoinsErrors(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	c := b.Client()
	refuses := locktest.StubLocker{
		Locker: c.NewLock(b.LockName + "-a"),
		OnTryLock: func(context.Context, time.Duration, time.Duration) (bool, error) {
			return false, io.ErrClosedPipe
		},
	}
	first := locktest.StubLocker{Locker: c.NewLock(b.LockName + "-A"), OnUnlock: func(context.Context) error { return io.ErrNoProgress }}
	_, err := c.NewMultiLock(refuses, c.NewLock(b.LockName), first).TryLock(ctx, time.Second, 0)
	b.MustBe(err, io.ErrClosedPipe)
	b.MustBe(err, io.ErrNoProgress)
	for _, name := range []string{"", "-a", "-A"} {
		b.IsLocked(c.NewLock(b.LockName+name), false)
	}
}

// The loss of any of them ends the guard, and the cause names the lock.
func TestMultiLockLossOfOneEndsTheGuard(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		for _, name := range []string{"-1", "-2", "-3"} {
			b := locktest.NewBench(t, addr)
			c := b.Client(WithWatchdogTimeout(1500 * time.Millisecond))
			l := c.NewMultiLock(c.NewLock(b.LockName+"-1"), c.NewFairLock(b.LockName+"-2"), c.NewLock(b.LockName+"-3"))
			b.Must(l.Lock(ctx))
			guarded, err := l.Guard(ctx)
			b.Must(err)
			b.Must(b.Rdb.Del(ctx, b.LockName+name).Err())
			locktest.Await(b, "the guard ends", guarded.Done())
			b.MustBe(context.Cause(guarded), ErrLockLost)
			assert.ErrorContains(t, context.Cause(guarded), b.LockName+name)
			b.Holds(l, 0)
			b.MustBe(l.Unlock(ctx), ErrLockLost)
		}
	})
}

// A MultiLock that loses its first lock while it waits for the last one starts over.
func TestMultiLockStartsOverWhenAnEarlierLockIsLost(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(b *locktest.Bench){
		"it expires":       func(*locktest.Bench) { time.Sleep(600 * time.Millisecond) },
		"it is taken away": func(b *locktest.Bench) { b.Must(b.Rdb.Del(ctx, b.LockName+"-1").Err()) },
		"a rival takes it": func(b *locktest.Bench) { b.Must(b.Rdb.Del(ctx, b.LockName+"-1").Err()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := locktest.NewBench(t, testredis.Start(t).Addr())
			c, other := b.Client(WithWatchdogTimeout(300*time.Millisecond)), b.Client()
			first, last := other.NewLock(b.LockName+"-1"), other.NewLock(b.LockName+"-last")
			b.Must(last.Lock(ctx))
			l := c.NewMultiLock(c.NewLock(b.LockName+"-1"), locktest.StubLocker{Locker: c.NewLock(b.LockName + "-last")})
			owner := ContextWithOwner(ctx)
			got := make(chan error)
			go func() { got <- l.LockLease(owner, time.Minute) }()
			testredis.Await(b, "it has the first, and waits for the last", locktest.Soon, func() bool {
				channels, err := b.Rdb.PubSubChannels(ctx, "*"+b.LockName+"-last*").Result()
				return len(channels) > 0 && err == nil
			})
			lose(b)
			if name == "a rival takes it" {
				b.Tries(first, true)
			}
			b.Must(last.Unlock(ctx))
			if name == "a rival takes it" {
				select {
				case err := <-got:
					require.Fail(t, "it says that it has what a rival has", "%v", err)
				case <-time.After(300 * time.Millisecond):
				}
				b.Must(first.Unlock(ctx))
			}
			b.Must(locktest.Await(b, "all are free", got))
			n, err := l.HoldCount(owner)
			require.NoError(t, err)
			assert.Equal(t, 1, n)
			ttl, err := first.TTL(ctx)
			require.NoError(t, err)
			assert.GreaterOrEqual(t, ttl, 50*time.Second)
			b.Must(l.Unlock(owner))
		})
	}
}

// A caller that waits for a lock of another Client gets ErrClosed when the Client of the MultiLock is closed.
func TestMultiLockCloseWakesWaitersElsewhere(t *testing.T) {
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	home, other := b.Client(), b.Client()
	held := b.Client().NewLock(b.LockName)
	l := home.NewMultiLock(other.NewLock(b.LockName), other.NewFairLock(b.LockName+"-fair"))
	mine := home.NewMultiLock(other.NewLock(b.LockName + "-mine"))
	b.Must(mine.Lock(ctx))
	guarded, err := mine.Guard(ctx)
	b.Must(err)
	b.Must(held.Lock(ctx))
	got := b.StartWaiter(ContextWithOwner(ctx), l)
	b.Must(home.Close())
	b.MustBe(locktest.Await(b, "the waiter hears of it", got), ErrClosed)
	locktest.Await(b, "the guard ends", guarded.Done())
	b.MustBe(context.Cause(guarded), ErrClosed)
	b.Must(mine.Unlock(ctx))

	first := other.NewLock("a-" + b.LockName)
	got = b.StartWaiter(ContextWithOwner(ctx), b.Client().NewMultiLock(first, b.Client().NewLock(b.LockName)))
	testredis.Await(b, "it holds the first one", locktest.Soon, func() bool { held, err := first.IsLocked(ctx); return held && err == nil })
	b.Must(other.Shutdown(ctx)) // does not await the end of the wait
	b.MustBe(locktest.Await(b, "the waiter hears of that", got), ErrClosed)
	b.Must(held.Unlock(ctx))
}

// Two processes, each with an owner that several goroutines share, acquire the same locks, together and one by one: all
// of them make progress, and no Lock returns that something is not held.
func TestMultiLocksOfSharedOwnersNeverWaitForEachOther(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	for kind, newOne := range map[string]locktest.LockMaker{
		"lock":  func(c *Client, name string) Locker { return c.NewLock(name) },
		"write": locktest.NewWriteLock,
		"fair":  func(c *Client, name string) Locker { return c.NewFairLock(name) },
	} {
		for names := 2; names <= 3; names++ {
			t.Run(fmt.Sprint(kind, names), func(t *testing.T) {
				t.Parallel()
				b := locktest.NewBench(t, s.Addr())
				ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
				defer cancel()
				var inside [2]atomic.Int32
				var all sync.WaitGroup
				for process := range 2 {
					c := b.Client()
					var locks []Locker
					for i := range names {
						locks = append(locks, newOne(c, fmt.Sprint(b.LockName, "-", i)))
					}
					owned := ContextWithOwner(ctx)
					for worker := range 3 {
						waitgroup.Go(&all, func() {
							l := Locker(c.NewMultiLock(locks...))
							for round := range locktest.Full(15, 40) {
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
				testredis.Await(b, "nothing is left", locktest.Soon, func() bool { return len(b.Keys()) == 0 })
			})
		}
	}
}

// A MultiLock that waits for one of its locks delays no other caller of its owner, and keeps no hold count of the locks
// that the owner holds.
func TestMultiLockThatWaitsKeepsNothingOfItsOwner(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	c, other := b.Client(), b.Client()
	names := []string{b.LockName + "-busy", b.LockName + "-held", b.LockName + "-free"}
	var locks, others []Locker
	for _, name := range names {
		locks, others = append(locks, c.NewLock(name)), append(others, other.NewLock(name))
	}
	busy, held, free := locks[0], locks[1], locks[2]
	owner := ContextWithOwner(ctx)
	b.Must(held.Lock(owner))
	b.Must(others[0].Lock(ctx))
	got := b.StartWaiter(owner, c.NewMultiLock(locks...))
	quick := func(what string, f func() error) {
		t.Helper()
		b.Within(time.Second, what, func() { b.Must(f()) })
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
	triesFor(b, ctx, others[1], locktest.Soon, true) // the MultiLock keeps nothing of what was released
	b.Must(others[1].Unlock(ctx))
	b.Must(others[0].Unlock(ctx))
	b.Must(locktest.Await(b, "all are free", got))
	levels(busy, 1)
	levels(held, 1)
	levels(free, 2)
	b.Must(free.Unlock(owner))
	b.Must(c.NewMultiLock(locks...).Unlock(owner))
	b.IsLocked(other.NewMultiLock(others...), false)
}

func TestMultiLockRefusesWrongSetsOfLocks(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	c, other := b.Client(), b.Client()
	var none *Lock
	elsewhere := b.ClientOn(testredis.Client(t, b.Addr, func(o *redis.Options) { o.DB = 1 }))
	stub := &locktest.StubLocker{Locker: c.NewLock(b.LockName + "-stub")}
	red := c.NewRedLock(c.NewLock(b.LockName),
		b.ClientOn(testredis.Client(t, testredis.Mini(t).Addr())).NewLock(b.LockName),
		b.ClientOn(testredis.Client(t, testredis.Mini(t).Addr())).NewLock(b.LockName))
	for name, l := range map[string]*MultiLock{
		"none":              c.NewMultiLock(),
		"nil":               c.NewMultiLock(c.NewLock(b.LockName), nil),
		"typed nil":         c.NewMultiLock(c.NewLock(b.LockName), none),
		"no lock":           c.NewMultiLock(c.NewLock(b.LockName), &Lock{}),
		"twice":             c.NewMultiLock(c.NewLock(b.LockName), c.NewLock(b.LockName+"-2"), c.NewLock(b.LockName)),
		"twice, fenced":     c.NewMultiLock(c.NewLock(b.LockName), c.NewLock(b.LockName, Fenced())),
		"semaphore":         c.NewMultiLock(c.NewLock(b.LockName), c.NewSemaphore(b.LockName, 2)),
		"lock of semaphore": c.NewMultiLock(c.NewSemaphore(b.LockName, 2), c.NewRWLock(b.LockName).Read()),
		"of another client": c.NewMultiLock(c.NewLock(b.LockName), other.NewLock(b.LockName)),
		"of another kind":   c.NewMultiLock(c.NewLock(b.LockName), c.NewFairLock(b.LockName)),
		"in another one":    c.NewMultiLock(c.NewLock(b.LockName), c.NewMultiLock(c.NewLock(b.LockName))),
		"read and plain":    c.NewMultiLock(locktest.NewReadLock(c, b.LockName), c.NewLock(b.LockName)),
		"plain and write":   c.NewMultiLock(c.NewLock(b.LockName), locktest.NewWriteLock(c, b.LockName)),
		"foreign twice":     c.NewMultiLock(stub, stub),
		"both halves":       c.NewMultiLock(locktest.NewReadLock(c, b.LockName), locktest.NewWriteLock(c, b.LockName)),
		"halves elsewhere":  c.NewMultiLock(locktest.NewReadLock(c, b.LockName), locktest.NewWriteLock(other, b.LockName)),
		"a node of its own": c.NewMultiLock(c.NewLock(b.LockName), red),
		"a bad one":         c.NewMultiLock(c.NewLock(b.LockName), c.NewLock("")),
		"a bad many":        c.NewMultiLock(c.NewLock(b.LockName), c.NewMultiLock()),
		"no client":         (*Client)(nil).NewMultiLock(c.NewLock(b.LockName)),
		"made by hand":      {},
	} {
		for method, err := range map[string]error{
			"Lock":    l.Lock(ctx),
			"TryLock": locktest.Second(l.TryLock(ctx, 0, 0)),
			"Unlock":  l.Unlock(ctx),
			"Guard":   locktest.Second(l.Guard(ctx)),
			"IsHeld":  locktest.Second(l.IsHeld(ctx)),
			"TTL":     locktest.Second(l.TTL(ctx)),
		} {
			assert.ErrorIs(t, err, ErrInvalid, "%s: %s", name, method)
		}
	}
	l := c.NewMultiLock(c.NewLock(b.LockName), elsewhere.NewLock(b.LockName)) // on another server
	triesFor(b, ctx, l, time.Second, true)
	b.Must(l.Unlock(ctx))
}

// Free locks cost one request each, which are sent at the same time.
func TestMultiLockOfFreeLocksCostsOneRequestEach(t *testing.T) {
	for kind, newOne := range map[string]locktest.LockMaker{
		"lock":   func(c *Client, name string) Locker { return c.NewLock(name) },
		"fenced": func(c *Client, name string) Locker { return c.NewLock(name, Fenced()) },
		"read":   locktest.NewReadLock,
		"write":  locktest.NewWriteLock,
	} {
		t.Run(kind, func(t *testing.T) {
			locktest.OnEachServer(t, func(t *testing.T, addr string) {
				b := locktest.NewBench(t, addr)
				rdb := testredis.Client(t, addr)
				sent := new(locktest.Counter)
				rdb.AddHook(sent)
				c := b.ClientOn(rdb)
				var many []Locker
				for i := range 5 {
					many = append(many, newOne(c, fmt.Sprint(b.LockName, "-many-", i)))
				}
				l := c.NewMultiLock(many...)
				b.Must(l.LockLease(ctx, time.Minute)) // Redis knows the script from here on
				b.Must(l.Unlock(ctx))
				before := sent.N.Load()
				b.Must(l.LockLease(ctx, time.Minute))
				assert.EqualValues(t, 5, sent.N.Load()-before, "requests")
				for i := range 5 {
					b.Holds(many[i], 1)
				}
				b.Must(l.Unlock(ctx))
			})
		})
	}
}
