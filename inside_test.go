//go:build go1.25

package relock_test

// Tests of what only this package can see, through export_test.go: the votes of a RedLock, the order of a MultiLock, and
// states that a hold or a Client passes through.

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The context of a detached hold is canceled with the cause ErrDetached, whenever Context is first called: while Detach
// waits for Redis, also if Release is called meanwhile, or after it.
func TestContextOfADetachedHoldTellsTheCause(t *testing.T) {
	locktest.OnDetachable(t, func(b *locktest.FaultBench, k locktest.LockKind) {
		c, ctx := b.PatientClient(), context.Background()
		for _, releases := range []bool{false, true} {
			h := b.Hold(k.One(c, b.LockName))
			rule := b.Proxy.On(locktest.Renames, testredis.HoldRequest).Times(testredis.Always)
			got := make(chan string, 1)
			go func() {
				ticket, err := h.Detach(ctx, time.Minute)
				assert.NoError(b, err)
				got <- ticket
			}()
			locktest.Await(b.Bench, "the request is under way", rule.Fired())
			ended := make(chan error, 1)
			if releases {
				go func() { ended <- h.Release(ctx) }()
				testredis.Await(b, "Release has begun", locktest.Soon, func() bool { return IsReleased(h) })
			}
			b.Ends(h.Context(), ErrDetached)
			rule.Release()
			ticket := locktest.Await(b.Bench, "Detach comes back", got)
			if releases {
				b.MustBe(locktest.Await(b.Bench, "Release comes back", ended), ErrNotHeld)
			}
			b.Ends(h.Context(), ErrDetached)
			h = b.Attach(c, ticket)
			ticket = b.Detach(h, time.Minute)
			b.Ends(h.Context(), ErrDetached)
			b.Must(b.Attach(c, ticket).Release(ctx))
		}
	})
}

// A Locker of another package is extended by acquiring it once more. It may have lost its hold without an error.
func TestExtendOfForeignLockers(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	c := b.Client()
	foreign := locktest.StubLocker{Locker: c.NewLock(b.LockName)}
	h := b.HoldFor(c.NewMultiLock(foreign, c.NewLock(b.LockName+"-b")), time.Minute)
	b.Must(h.Extend(ctx, time.Hour))
	ttl, err := c.NewLock(b.LockName).TTL(ctx)
	b.Must(err)
	assert.GreaterOrEqual(t, ttl, 50*time.Minute, "TTL")
	b.Must(h.Release(ctx))

	l := c.NewLock(b.LockName)
	owner := ContextWithOwner(ctx)
	b.Must(l.LockLease(owner, time.Minute))
	ended, end := context.WithCancel(ctx)
	foreign.OnGuard = func(context.Context) (context.Context, error) { return ended, nil }
	foreign.OnTryLock = func(context.Context, time.Duration, time.Duration) (bool, error) {
		end()
		return l.TryLock(owner, 0, time.Minute)
	}
	b.MustBe(ExtendLocker(owner, foreign, time.Minute), ErrLockLost)
	foreign.OnGuard = nil
	foreign.OnTryLock = func(context.Context, time.Duration, time.Duration) (bool, error) { return false, nil }
	b.MustBe(ExtendLocker(owner, foreign, time.Minute), ErrLockLost)
	b.Must(l.Unlock(owner))

	h = b.Hold(c.NewMultiLock(locktest.StubLocker{Locker: l}))
	b.MustBe(h.Extend(ctx, time.Hour), ErrInvalid) // it is renewed automatically
	b.Must(h.Release(ctx))
}

// A user who may not look for the holders of locks, or read their labels, tries it once for all warnings.
func TestHolderIsNotLookedForAgainWithoutPermission(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, is := range map[string]func(redis.Cmder) bool{
		"labels": func(cmd redis.Cmder) bool { return cmd.Name() == "hmget" },
		"inspect": func(cmd redis.Cmder) bool {
			return bytes.Contains([]byte(fmt.Sprint(cmd.Args())), []byte("inspect-me"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := locktest.NewBench(t, testredis.Mini(t).Addr())
			lock := b.Client().NewLock("inspect-me")
			require.NoError(t, lock.Lock(ctx))
			r := &locktest.Refuser{Is: is}
			rdb := testredis.Client(b, b.Addr)
			rdb.AddHook(r)
			c := b.ClientOn(rdb)
			describe := func() { DescribeHolder(c, ctx, engine.Subject{Name: "inspect-me", Type: string(TypeLock)}) }
			describe()
			once := r.Tries.Load()
			assert.NotZero(t, once)
			for range 5 {
				describe()
			}
			assert.Equal(t, once, r.Tries.Load())
			require.NoError(t, lock.Unlock(ctx))
		})
	}
}

// vote returns a vote of owner for l that holds all nodes, and a channel for its calls of check.
func vote(b *locktest.RedBench, l *VotedLock, owner engine.Owner) (v *RedVote, noticed <-chan struct{}) {
	b.Helper()
	calls := make(chan struct{}, 100)
	v = l.NewVote(owner, func() { calls <- struct{}{} })
	require.Equal(b, contract.Held, asksFor(v, b, 1))
	awaitNodes(b, v, 3)
	return v, calls
}

// asksFor makes one attempt to have the hold count.
func asksFor(v *RedVote, b *locktest.RedBench, holdCount int) contract.Status {
	b.Helper()
	status, _, err := v.Ask(&send.Wait{Ctx: context.Background()}, contract.Attempt{
		HoldCount: holdCount, Lease: time.Minute, Renewed: true,
	})
	b.Must(err)
	return status
}

// awaitNodes waits until v holds at this number of nodes.
func awaitNodes(b *locktest.RedBench, v *RedVote, want int) {
	b.Helper()
	testredis.Await(b, "nodes", locktest.Soon, func() bool {
		return v.Alive() == want
	})
}

// The owner of a RedLock that was lost acquires it again while the nodes of the lost hold are released. It does not meet
// that hold there, and the nodes that are released then are not those of the new hold.
func TestRedLockThatWasLostReleasesNotTheNextHoldOfItsOwner(t *testing.T) {
	b := locktest.NewSmallRedBench(t)
	ctx := context.Background()
	l := locktest.LockOf(b.Client().NewRedLock(b.NodeLocks()...)).(*VotedLock)
	owner := engine.NewOwner()
	before, noticed := vote(b, l, owner)
	for i := range 2 {
		freed, err := l.Node(i).ForceUnlock(ctx)
		b.Must(err)
		require.True(t, freed)
		locktest.Await(b.Bench, "the loss of a node", noticed)
	}
	require.Error(t, before.Check())
	before.Lower(ctx, 0)
	next, _ := vote(b, l, owner)
	l.AwaitAnswers(b.Bench, owner)
	awaitNodes(b, next, 3)
	require.Equal(t, 3, b.Has(), "nodes")
	next.Lower(ctx, 0)(locktest.Soon)
}

// A RedLock acquires a node again, and loses another one while that request is under way, without a signal, as after a
// pause of the process. The grant does not make up for the loss: another owner may have had the lock in between.
func TestRedLockGrantDoesNotMakeUpForALossMeanwhile(t *testing.T) {
	for name, again := range map[string]func(b *locktest.RedBench, v *RedVote){
		"renewal":  func(b *locktest.RedBench, v *RedVote) { v.Renew() },
		"re-entry": func(b *locktest.RedBench, v *RedVote) { require.Equal(b, contract.Gone, asksFor(v, b, 2)) },
	} {
		t.Run(name, func(t *testing.T) {
			b := locktest.NewSmallRedBench(t)
			var over, loses atomic.Bool
			locks := b.NodeLocks()
			first := locks[0]
			locks[0] = locktest.StubLocker{Locker: first, OnTryLock: func(ctx context.Context, wait, lease time.Duration) (bool, error) {
				over.Store(loses.Load())
				return first.TryLock(ctx, wait, lease)
			}}
			locks[1] = locktest.StubLocker{Locker: locks[1], OnGuard: func(ctx context.Context) (context.Context, error) {
				return silentGuard{ctx, &over}, nil
			}}
			l := locktest.LockOf(b.Client().NewRedLock(locks...)).(*VotedLock)
			v, noticed := vote(b, l, engine.NewOwner())
			b.Must(locktest.Second(first.ForceUnlock(context.Background())))
			locktest.Await(b.Bench, "the loss of a node", noticed)
			loses.Store(true)
			again(b, v)
			l.AwaitAnswers(b.Bench, v.Caller())
			require.Error(t, v.Check())
			locktest.Await(b.Bench, "the loss of the hold", noticed)
			v.Lower(context.Background(), 0)(locktest.Soon)
		})
	}
}

// A round was won so late that the engine asks again, and the nodes have expired by then. The hold has not begun yet,
// so nothing is lost: the nodes are acquired again. That is so, too, if a late grant of the round has found the nodes
// expired before.
func TestRedLockThatHasNotBegunIsNotLost(t *testing.T) {
	for name, late := range map[string]bool{"": false, "a late grant": true} {
		t.Run(name, func(t *testing.T) {
			b := locktest.NewSmallRedBench(t)
			locks := b.NodeLocks()
			var guards []*atomic.Bool
			for i, l := range locks {
				locks[i] = locktest.StubLocker{Locker: l, OnGuard: func(ctx context.Context) (context.Context, error) {
					return silentGuard{ctx, guards[len(guards)-1]}, nil
				}}
			}
			guards = append(guards, new(atomic.Bool))
			v, _ := vote(b, locktest.LockOf(b.Client().NewRedLock(locks...)).(*VotedLock), engine.NewOwner())
			guards = append(guards, new(atomic.Bool))
			guards[0].Store(true)
			if late {
				require.True(t, v.Expired())
			}
			require.Equal(t, contract.Held, asksFor(v, b, 1))
			awaitNodes(b, v, 3)
			guards[1].Store(true)
			require.Equal(t, contract.Gone, asksFor(v, b, 2))
			v.Lower(context.Background(), 0)(locktest.Soon)
		})
	}
}

// C5: a logger and an Observer that panic, or end the goroutine, for every event affect no caller. The first panic of
// the Observer is logged with its stack, and that of the Logger is written to standard error.
func TestPanicsOfReportsDisturbNoCaller(t *testing.T) {
	var written locktest.LockedBuffer
	t.Cleanup(SetLastResort(&written))
	for name, panics := range map[string]func(){
		"panic": func() { panic("no") }, "Goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex // guards below
			events, records := make(map[string]int), []string{}
			log := func(r slog.Record) error {
				mu.Lock()
				line := r.Message
				r.Attrs(func(a slog.Attr) bool { line += " " + a.Value.String(); return true })
				records = append(records, line)
				mu.Unlock()
				if strings.Contains(r.Message, "lost") {
					panics()
				}
				return nil
			}
			ours := name == "panic" // an Observer may end the goroutine of the caller
			observe := func(event string) {
				mu.Lock()
				events[event]++
				mu.Unlock()
				if ours || event == "renewed" || event == "renewal failed" || event == "lost" || event == "expired" {
					panics()
				}
			}
			locktest.InReportedBubble(t, log, observe, func(e *locktest.BubbleEngine) {
				e.Lock(1)
				second := make(chan struct{})
				go func() {
					defer close(second)
					ctx, cancel := context.WithTimeout(context.Background(), time.Second)
					defer cancel()
					_, err := e.LockWith(ctx, 2, engine.Request{Wait: locktest.Forever})
					assert.ErrorIs(e.T, err, context.DeadlineExceeded)
					e.Lock(2)
				}()
				time.Sleep(5 * time.Second)
				e.Unlock(1)
				<-second
				e.Unlock(2)
				for i := range 5 {
					e.LockName(fmt.Sprint("name", i), 1)
				}
				time.Sleep(e.WatchdogTimeout)
				e.Redis.Set(func() {
					e.Redis.Fault = func(string) fakeredis.Fault { return fakeredis.Fault{Block: locktest.ErrOff} }
				})
				time.Sleep(2 * e.WatchdogTimeout)
				e.Redis.Set(func() { e.Redis.Fault = nil })
				for i := range 5 {
					assert.ErrorIs(e.T, e.Release(context.Background(), locktest.NewFakeLock(e.Redis, fmt.Sprint("name", i)), 1), ErrLockLost)
				}
				mu.Lock()
				defer mu.Unlock()
				stacks := 0
				for _, r := range records {
					if strings.Contains(r, "the Observer has panicked") {
						stacks++
						assert.Contains(e.T, r, "ObserverFunc")
					}
				}
				if ours {
					assert.Equal(e.T, 1, stacks, "panics of the Observer in the log")
					assert.Equal(e.T, 5, events["lost"])
					assert.Equal(e.T, 2, events["waiting"])
					assert.Equal(e.T, 1, events["gave up"])
				}
				assert.NotZero(e.T, events["renewed"])
				assert.NotZero(e.T, events["renewal failed"])
			})
		})
	}
	assert.Equal(t, 1, strings.Count(written.String(), "relock: the Logger has panicked: no\ngoroutine "))
}

// A MultiLock takes no longer than its wait, and the least time for an answer, if one of its servers does not answer. A
// call without a wait is as patient as that of a single lock. Then the lock on the other server is free again.
func TestMultiLockOfSeveralServersKeepsToItsWait(t *testing.T) {
	const wait = 100 * time.Millisecond
	ctx := context.Background()
	lock := func(c *Client) Locker { return c.NewLock("last") }
	redLock := func(c *Client) Locker {
		return c.NewRedLock(lock(c), locktest.StubLocker{Locker: c.NewLock("a")}, locktest.StubLocker{Locker: c.NewLock("b")})
	}
	for name, c := range map[string]struct {
		last func(c *Client) Locker
		wait time.Duration
	}{
		"a lock":          {lock, wait},
		"a lock, no wait": {lock, 0},
		"a RedLock":       {redLock, wait},
	} {
		t.Run(name, func(t *testing.T) {
			locktest.InVirtualTime(t, 2, func(v *locktest.Virtual) {
				first, _ := v.Client(0)
				last, link := v.Client(1, WithRedLockNodeTimeout(time.Minute))
				l := first.NewMultiLock(first.NewLock("first"), c.last(last))
				require.NoError(v, l.Lock(ctx))
				require.NoError(v, l.Unlock(ctx))
				most := c.wait + send.MinWait + 10*time.Millisecond
				if c.wait == 0 {
					most += locktest.EngineOf(last).Patience() + send.MinWait // the last try may begin at the end
				}
				locktest.Silent(func() {
					start := time.Now()
					ok, err := l.TryLock(ctx, c.wait, 0)
					assert.False(v, ok)
					assert.Error(v, err)
					assert.LessOrEqual(v, time.Since(start), most)
				}, link)
				ok, err := first.NewLock("first").TryLock(ctx, 0, 0)
				assert.NoError(v, err)
				assert.True(v, ok, "the first lock is free")
				assert.NoError(v, first.NewLock("first").Unlock(ctx))
			})
		})
	}
}

// A silentGuard has ended without a signal on Done, as after a pause of the process.
type silentGuard struct {
	context.Context
	over *atomic.Bool
}

func (g silentGuard) Done() <-chan struct{} { return nil }

func (g silentGuard) Err() error {
	if g.over.Load() {
		return ErrLockLost
	}
	return nil
}
