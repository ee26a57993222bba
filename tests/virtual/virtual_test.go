//go:build go1.25

package virtual

// Tests of Clients in virtual time: several servers in memory, in a bubble of testing/synctest.
//
// Rules: a call takes no longer than its wait and the least time for an answer, whatever Redis does. MultiLocks over
// servers that cannot be told apart do not wait for each other, and keep nothing from others while they wait.

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/bubble"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/send"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The answer that the lock is busy comes after the wait of a TryLock: that is its end, and no other attempt follows.
func TestTryLockAsksNotAgainAfterALateAnswer(t *testing.T) {
	for name, newLock := range map[string]func(c []*Client) Locker{
		"lock": func(c []*Client) Locker { return c[0].NewLock("l") },
		"RedLock": func(c []*Client) Locker {
			return c[0].NewRedLock(c[0].NewLock("l"), c[1].NewLock("l"), c[2].NewLock("l"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
				const wait, latency = 100 * time.Millisecond, 95 * time.Millisecond
				ctx := ContextWithOwner(ctx)
				holders, _, _ := nodes(v)
				clients, links, _ := nodes(v)
				held, l := newLock(holders), newLock(clients)
				require.NoError(v, l.Lock(ctx)) // all are connected
				require.NoError(v, l.Unlock(ctx))
				require.NoError(v, held.Lock(ctx))
				for _, link := range links {
					link.Set(func(c *bubble.Conditions) { c.Latency = latency })
				}
				start := time.Now()
				ok, err := l.TryLock(ctx, wait, 0)
				assert.NoError(v, err)
				assert.False(v, ok)
				assert.LessOrEqual(v, time.Since(start), wait+send.MinWait)
				require.NoError(v, held.Unlock(ctx))
			})
		})
	}
}

// Row 13: a TryLock whose subscription is never confirmed asks once more when its time is up, so that it does not
// report a free lock as busy.
func TestFaultTryLockWithoutASubscriptionAsksOnceMore(t *testing.T) {
	onVirtualLocks(t, func(v *locktest.Virtual, k locktest.FaultLock) {
		const wait = 2 * time.Second
		ctx := ContextWithOwner(ctx)
		direct, _ := named(v, nil)
		c, link := named(v, nil, WithPollInterval(time.Hour))
		link.Set(func(c *bubble.Conditions) { c.Deaf = true })
		held, waiting := k.Rival(direct, "l"), k.One(c, "l")
		require.NoError(v, held.Lock(ctx))
		time.AfterFunc(wait/2, func() { assert.NoError(v, held.Unlock(ctx)) })
		ok, err := waiting.TryLock(ctx, wait, 0)
		require.NoError(v, err)
		require.True(v, ok, "the lock is free")
		require.NoError(v, waiting.Unlock(ctx))
	})
}

// An error that ends a wait names the goroutine or owner of this process that holds the lock.
func TestErrorThatEndsAWaitNamesTheHolderHere(t *testing.T) {
	read, write := locktest.NewReadLock, locktest.NewWriteLock
	for kind, of := range map[string]struct {
		holds, waits locktest.LockMaker
		says         string
	}{
		"lock":                     {locktest.NewPlainLock, locktest.NewPlainLock, "%v of this process holds it"},
		"fair":                     {locktest.NewFairLock, locktest.NewFairLock, "%v of this process holds it"},
		"write behind write":       {write, write, "%v of this process holds it"},
		"write behind read":        {read, write, "%v of this process holds the read lock"},
		"read behind write":        {write, read, "%v of this process holds the write lock"},
		"component of a MultiLock": {locktest.NewPlainLock, locktest.NewMultiLock, "%v of this process holds it"},
	} {
		t.Run(kind, func(t *testing.T) {
			locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
				c, _ := v.Client(0)
				holder, waiter := ContextWithOwner(ctx), ContextWithOwner(ctx)
				held, awaited := of.holds(c, "l"), of.waits(c, "l")
				require.NoError(v, held.Lock(holder))
				deadline, cancel := context.WithTimeout(waiter, time.Second)
				defer cancel()
				err := awaited.Lock(deadline)
				require.ErrorIs(v, err, context.DeadlineExceeded)
				says := "context deadline exceeded: "
				if kind == "component of a MultiLock" {
					says += `"l": `
				}
				assert.Equal(
					v,
					fmt.Sprintf("relock: lock %s: %s"+of.says, send.ShortName(awaited.Name()), says, engine.OwnerOf(holder)),
					err.Error(),
				)
				ok, err := awaited.TryLock(waiter, 500*time.Millisecond, 0)
				assert.False(v, ok)
				assert.NoError(v, err, "a held lock is no error of TryLock")
				require.NoError(v, held.Unlock(holder))
			})
		})
	}
}

// The error of a MultiLock names the lock that blocks it, even if one script acquires all of its locks.
func TestErrorThatEndsAWaitOfAMultiLockNamesTheLockThatBlocks(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		c, _ := v.Client(0)
		other, _ := v.Client(0)
		require.NoError(v, other.NewLock("l-2").LockLease(ctx, time.Minute))
		deadline, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		err := c.NewMultiLock(c.NewLock("l-1"), c.NewLock("l-2"), c.NewFairLock("l-3")).Lock(deadline)
		require.ErrorIs(v, err, context.DeadlineExceeded)
		assert.Regexp(
			v,
			`^relock: lock "[^"]*": context deadline exceeded: "l-2": another process \(or Client\) holds it, and `+
				`its lease expires in (5\d(\.\d)?|1m0)s$`,
			err.Error(),
		)
		require.NoError(v, other.NewLock("l-2").Unlock(ctx))
	})
}

// hidden is embedded by a Redis client whose options nobody can read.
type hidden = redis.UniversalClient

// sentinels returns Clients of servers whose addresses go-redis does not know. A MultiLock of this process has tied locks
// of the first one before those of the second one.
func sentinels(v *locktest.Virtual, first, second int) []*Client {
	v.Helper()
	for {
		if c := []*Client{sentinel(v, first), sentinel(v, second)}; c[0].ID() < c[1].ID() {
			return c
		}
	}
}

// sentinel returns a Client of a server whose address go-redis does not know, as that of a Sentinel deployment.
func sentinel(v *locktest.Virtual, server int, opts ...Option) *Client {
	v.Helper()
	rdb, _ := v.Redis(server)
	return v.ClientOn(struct{ hidden }{rdb}, opts...)
}

// Two processes acquire the same names on two Sentinel deployments in opposite order, in whatever steps: they do not wait
// for each other for ever, and neither of them starves.
func TestMultiLocksOverSentinelsDoNotWaitForEachOther(t *testing.T) {
	for name, makes := range map[string]func(c *Client, name string) Locker{
		"lock":      func(c *Client, name string) Locker { return c.NewLock(name) },
		"MultiLock": func(c *Client, name string) Locker { return c.NewMultiLock(c.NewLock(name), c.NewLock(name+"2")) },
		"foreign":   func(c *Client, name string) Locker { return locktest.StubLocker{Locker: c.NewLock(name)} },
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InVirtualTime(t, 2, func(v *locktest.Virtual) {
				const sections = 30
				ctx, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				inside := 0
				start, ends := time.Now(), make(chan struct{})
				for process := range 2 {
					clients := sentinels(v, process, 1-process)
					go func() {
						l := clients[0].NewMultiLock(makes(clients[0], "x"), makes(clients[1], "x"))
						var longest time.Duration
						for range sections {
							began := time.Now()
							if !assert.NoError(v, l.Lock(ctx)) {
								break
							}
							longest = max(longest, time.Since(began))
							inside++
							assert.Equal(v, 1, inside)
							time.Sleep(5 * time.Millisecond)
							inside--
							assert.NoError(v, l.Unlock(ctx))
						}
						assert.Less(v, longest, 4*time.Second, "it has run out of patience more than three times")
						ends <- struct{}{}
					}()
				}
				<-ends
				<-ends
				assert.Less(v, time.Since(start), 2*sections*100*time.Millisecond)
			})
		})
	}
}

// The locks of a MultiLock over Sentinel deployments are held by others all the time, for long. It waits in both queues,
// in turn, and acquires both in the end.
func TestMultiLockOverSentinelsDoesNotStarve(t *testing.T) {
	locktest.InVirtualTime(t, 2, func(v *locktest.Virtual) {
		ctx, cancel := context.WithCancel(ctx)
		var others sync.WaitGroup
		const held = 10 * time.Second
		for server := range 2 {
			for range 3 {
				l := sentinel(v, server).NewLock("x")
				others.Go(func() {
					for l.Lock(ctx) == nil {
						time.Sleep(held)
						assert.NoError(v, l.Unlock(context.Background()))
					}
				})
			}
		}
		time.Sleep(held)
		for range 3 {
			within, cancel := context.WithTimeout(ctx, 60*held)
			l := sentinel(v, 0).NewMultiLock(sentinel(v, 0).NewLock("x"), sentinel(v, 1).NewLock("x"))
			if assert.NoError(v, l.Lock(within)) {
				time.Sleep(time.Second)
				assert.NoError(v, l.Unlock(ctx))
			}
			cancel()
		}
		cancel()
		others.Wait()
	})
}

// A MultiLock that waits for a lock that is held for long does not keep its other locks from everybody else meanwhile.
func TestMultiLockOverSentinelsHoldsNothingWhileItWaits(t *testing.T) {
	for busy := range 2 {
		locktest.InVirtualTime(t, 2, func(v *locktest.Virtual) {
			ctx := ContextWithOwner(ctx)
			blocker := sentinel(v, busy).NewLock("x")
			require.NoError(v, blocker.Lock(ctx))
			acquired := make(chan error)
			l := sentinel(v, 0).NewMultiLock(sentinel(v, 0).NewLock("x"), sentinel(v, 1).NewLock("x"))
			go func() { acquired <- l.Lock(ctx) }()
			other := sentinel(v, 1-busy).NewLock("x")
			for range 50 {
				time.Sleep(200 * time.Millisecond)
				ok, err := other.TryLock(ctx, 0, 0)
				assert.NoError(v, err)
				if assert.True(v, ok, "it is held") {
					assert.NoError(v, other.Unlock(ctx))
				}
			}
			assert.NoError(v, blocker.Unlock(ctx))
			assert.NoError(v, <-acquired)
			assert.NoError(v, l.Unlock(ctx))
		})
	}
}

// A Locker of another package may give up before its time is up, because it would not ask again within that time. A
// MultiLock that waits without a limit goes on then: it does not return as if it held the locks.
func TestMultiLockOverSentinelsGoesOnIfALockerGivesUpEarly(t *testing.T) {
	locktest.InVirtualTime(t, 2, func(v *locktest.Virtual) {
		ctx := ContextWithOwner(ctx)
		blocker := sentinel(v, 1).NewLock("y")
		require.NoError(v, blocker.Lock(ctx))
		early := locktest.StubLocker{Locker: sentinel(v, 1).NewLock("y")}
		early.OnTryLock = func(ctx context.Context, _, lease time.Duration) (bool, error) {
			return early.Locker.TryLock(ctx, 0, lease)
		}
		a := sentinel(v, 0)
		l := a.NewMultiLock(a.NewLock("x"), sentinel(v, 1).NewLock("x"), early)
		const held = 10 * time.Second
		time.AfterFunc(held, func() { assert.NoError(v, blocker.Unlock(ctx)) })
		began := time.Now()
		require.NoError(v, l.Lock(ctx))
		assert.GreaterOrEqual(v, time.Since(began), held)
		isHeld, err := l.IsHeld(ctx)
		assert.NoError(v, err)
		assert.True(v, isHeld)
		assert.NoError(v, l.Unlock(ctx))
	})
}

// One lock is passed twice, through two Clients of one Sentinel deployment. Without an address the Client cannot tell
// that, so the MultiLock never acquires both. Nothing is left.
func TestMultiLockNeverAcquiresALockThatWasPassedTwice(t *testing.T) {
	for name, makes := range map[string][2]func(c *Client) Locker{
		"lock":           {func(c *Client) Locker { return c.NewLock("x") }, func(c *Client) Locker { return c.NewLock("x") }},
		"fair and plain": {func(c *Client) Locker { return c.NewFairLock("x") }, func(c *Client) Locker { return c.NewLock("x") }},
		"write and read": {func(c *Client) Locker { return c.NewRWLock("x").Write() }, func(c *Client) Locker { return c.NewRWLock("x").Read() }},
		"semaphore":      {func(c *Client) Locker { return c.NewSemaphore("x", 1) }, func(c *Client) Locker { return c.NewSemaphore("x", 1) }},
		"MultiLocks": {func(c *Client) Locker { return c.NewMultiLock(c.NewLock("x"), c.NewLock("w")) }, func(c *Client) Locker {
			return c.NewMultiLock(c.NewLock("x"), c.NewLock("y"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
				c := sentinel(v, 0, WithWaitWarning(0))
				locks := []Locker{makes[0](c), makes[1](sentinel(v, 0))}
				l := c.NewMultiLock(locks...)
				for name, c := range map[string]struct {
					acquire func(ctx context.Context) (bool, error)
					ended   error
				}{
					"Lock":          {func(ctx context.Context) (bool, error) { return false, l.Lock(ctx) }, context.DeadlineExceeded},
					"LockLease":     {func(ctx context.Context) (bool, error) { return false, l.LockLease(ctx, time.Minute) }, context.DeadlineExceeded},
					"TryLock waits": {func(ctx context.Context) (bool, error) { return l.TryLock(ctx, 30*time.Second, 0) }, nil},
					"TryLock":       {func(ctx context.Context) (bool, error) { return l.TryLock(ctx, 0, 0) }, nil},
				} {
					within, cancel := context.WithTimeout(ctx, time.Minute)
					ok, err := c.acquire(within)
					cancel()
					assert.False(v, ok, name)
					assert.ErrorIs(v, err, c.ended, name)
					for _, l := range locks {
						held, err := l.IsLocked(ctx)
						assert.NoError(v, err)
						assert.False(v, held, "%s is left by %s", l.Name(), name)
					}
				}
			})
		})
	}
}

// A waiter whose poll interval is longer than the lease of the holder, which is longer than Redis remembers its place
// without a request, is told of the release all the same.
func TestWaiterIsToldOfAReleaseHoweverLongItsPollInterval(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		first, _ := v.Client(0)
		second, _ := v.Client(0, WithPollInterval(time.Hour))
		holder, waiter := ContextWithOwner(ctx), ContextWithOwner(ctx)
		require.NoError(v, first.NewLock("l").LockLease(holder, 30*time.Minute))
		got := make(chan error)
		go func() { got <- second.NewLock("l").Lock(waiter) }()
		time.Sleep(10 * time.Minute)
		require.NoError(v, first.NewLock("l").Unlock(holder))
		released := time.Now()
		require.NoError(v, <-got)
		assert.Less(v, time.Since(released), time.Second)
		require.NoError(v, second.NewLock("l").Unlock(waiter))
	})
}

// Without the permission to write its label, a process tries once, and not every 30s: each try is an entry of the ACL
// log.
func TestLabelIsNotTriedAgainWithoutPermission(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		var tries atomic.Int64
		rdb, link := v.Redis(0)
		link.Deny(func(cmd string, args []string) bool {
			denied := cmd == "HSET" && strings.HasPrefix(args[0], "relock_client:")
			if denied {
				tries.Add(1)
			}
			return denied
		})
		l := v.ClientOn(rdb, locktest.Unlabeled).NewLock("l")
		require.NoError(v, l.Lock(ctx))
		time.Sleep(10 * 30 * time.Second)
		require.NoError(v, l.Unlock(ctx))
		assert.Equal(v, int64(1), tries.Load())
	})
}

// A TryLock takes no longer than its wait and the least time for an answer, whatever it does when Redis stops to answer:
// it may be asking for the lock because the lease of the holder is over, or be leaving the wait queue.
func TestTryLockTakesNoLongerThanItsWaitAndAnAnswer(t *testing.T) {
	const wait = 300 * time.Millisecond
	for _, lease := range []time.Duration{time.Minute, 250 * time.Millisecond, 280 * time.Millisecond} {
		for hang := time.Duration(0); hang < wait; hang += 20 * time.Millisecond {
			t.Run(fmt.Sprintf("%v/%v", lease, hang), func(t *testing.T) {
				locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
					c, link := v.Client(0)
					other, _ := v.Client(0)
					require.NoError(v, other.NewLock("x").LockLease(ctx, lease))
					time.AfterFunc(hang, func() { link.Set(func(c *bubble.Conditions) { c.Held = [2]bool{true, true} }) })
					start := time.Now()
					ok, _ := c.NewLock("x").TryLock(ctx, wait, 0)
					assert.False(v, ok && time.Since(start) > wait)
					assert.LessOrEqual(v, time.Since(start), wait+send.MinWait)
					link.Set(func(c *bubble.Conditions) { c.Held = [2]bool{} })
					time.Sleep(40 * time.Second)
				})
			})
		}
	}
}

// A MultiLock that has waited for a lock of another process, and then waits for one of its own process, is logged for
// the latter from then on: the former is free.
func TestSlowMultiLockNamesTheLockThatItWaitsForNow(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		var log locktest.LockedBuffer
		c, _ := v.Client(0, WithWaitWarning(time.Second), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		other, _ := v.Client(0)
		theirs, mine := ContextWithOwner(ctx), ContextWithOwner(ctx)
		first, second := other.NewLock("first"), c.NewLock("second")
		require.NoError(v, first.Lock(theirs))
		both := c.NewMultiLock(c.NewLock("first"), c.NewLock("second"))
		got := make(chan error)
		waiter := ContextWithOwner(ctx)
		go func() { got <- both.Lock(waiter) }()
		time.Sleep(10 * time.Second)
		require.NoError(v, second.Lock(mine))
		assert.Contains(v, log.String(), "lock=first")
		assert.NotContains(v, log.String(), "lock=second")
		require.NoError(v, first.Unlock(theirs))
		time.Sleep(time.Second)
		before := strings.Count(log.String(), "lock=first")
		time.Sleep(time.Minute)
		assert.Equal(v, before, strings.Count(log.String(), "lock=first"))
		assert.Contains(v, log.String(), "lock=second")
		require.NoError(v, second.Unlock(mine))
		require.NoError(v, <-got)
		require.NoError(v, both.Unlock(waiter))
	})
}

// A lock that another goroutine of the same process has forgotten, and one that another process keeps, are logged by
// default when a caller has waited for a minute. WithWaitWarning(0) switches that off.
func TestLockThatIsKeptForAMinuteIsLoggedByDefault(t *testing.T) {
	for name, logs := range map[string]bool{"by default": true, "switched off": false} {
		for _, here := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/here=%v", name, here), func(t *testing.T) {
				locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
					var log locktest.LockedBuffer
					opts := []Option{WithLogger(slog.New(slog.NewTextHandler(&log, nil)))}
					if !logs {
						opts = append(opts, WithWaitWarning(0))
					}
					c, _ := v.Client(0, opts...)
					holder := c
					if !here {
						holder, _ = v.Client(0)
					}
					owner := ContextWithOwner(ctx)
					require.NoError(v, holder.NewLock("forgotten").Lock(owner))
					got := make(chan error)
					waiter := ContextWithOwner(owner)
					go func() { got <- c.NewLock("forgotten").Lock(waiter) }()
					time.Sleep(59 * time.Second)
					assert.Empty(v, log.String())
					assert.InDelta(v, 59*time.Second, c.Slowest().Wait[TypeLock], float64(time.Second))
					time.Sleep(32 * time.Second)
					if logs {
						assert.Equal(v, 1, strings.Count(log.String(), "\n"), log.String())
						assert.Contains(v, log.String(), "lock=forgotten")
						who := map[bool]string{true: "of this process", false: "of client " + holder.ID()[:8]}
						assert.Contains(v, log.String(), who[here])
					} else {
						assert.Empty(v, log.String())
					}
					require.NoError(v, holder.NewLock("forgotten").Unlock(owner))
					require.NoError(v, <-got)
					require.NoError(v, c.NewLock("forgotten").Unlock(waiter))
				})
			})
		}
	}
}

// A waiter that Redis has admitted before waits for one watchdog timeout to be admitted again, whatever it waits for. The
// time counts from the first refusal. Without an answer before, it is told at once.
func TestWaiterIsAdmittedAgainWithinOneWatchdogTimeout(t *testing.T) {
	const patience = 10 * time.Second
	for name, newLock := range map[string]func(c *Client) Locker{
		"lock":      func(c *Client) Locker { return c.NewLock("l") },
		"fair":      func(c *Client) Locker { return c.NewFairLock("l") },
		"read":      func(c *Client) Locker { return c.NewRWLock("l").Read() },
		"semaphore": func(c *Client) Locker { return c.NewSemaphore("l", 1) },
		"MultiLock": func(c *Client) Locker { return c.NewMultiLock(c.NewLock("l"), c.NewLock("m")) },
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
				ctx := ContextWithOwner(ctx)
				direct, _ := v.Client(0)
				held := newLock(direct)
				if name == "read" {
					held = direct.NewRWLock("l").Write()
				}
				c, link := v.Client(0, WithWatchdogTimeout(patience), WithPollInterval(time.Second))
				l := newLock(c)
				require.NoError(v, l.Lock(ctx))
				require.NoError(v, l.Unlock(ctx))
				admitted := func(yes bool) {
					link.Deny(func(cmd string, _ []string) bool { return !yes && strings.HasPrefix(cmd, "EVAL") })
				}
				for _, refused := range []time.Duration{patience - 2*time.Second, time.Hour} {
					require.NoError(v, held.Lock(ctx))
					got := make(chan error, 1)
					go func() { got <- l.Lock(ctx) }()
					time.Sleep(2 * time.Second)
					admitted(false)
					link.Cut() // a new subscription wakes the waiter
					began := time.Now()
					assert.ErrorContains(v, c.NewLock("other").Lock(ctx), "NOPERM", "a first request")
					assert.Less(v, time.Since(began), time.Second, "a first request")
					if refused < patience {
						time.Sleep(refused)
						assert.Empty(v, got)
						admitted(true)
						require.NoError(v, held.Unlock(ctx))
						require.NoError(v, <-got)
						require.NoError(v, l.Unlock(ctx))
						continue
					}
					assert.ErrorContains(v, <-got, "NOPERM")
					assert.Greater(v, time.Since(began), patience)
					assert.Less(v, time.Since(began), patience+2*time.Second)
					admitted(true)
					time.Sleep(patience)
					require.NoError(v, held.Unlock(ctx))
				}
			})
		})
	}
}
