package faults

// Faults of whole processes: they are stopped, killed, or starved of their
// processor, while they hold locks and stand in queues.
//
// Rules: the process is this test binary, started again with RELOCK_TEST_CHILD,
// which names its task; it reports to its parent by lines of output.

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A child is a process that holds or awaits the lock of every type.
type child struct {
	*testing.T
	cmd   *exec.Cmd
	lines chan string
}

// startChild runs a child until the test ends.
func startChild(b *locktest.FaultBench, env []string, does ...string) *child {
	b.Helper()
	c := &child{T: b.T, cmd: exec.Command(os.Args[0], "-test.run=^TestChild$", "-test.v"), lines: make(chan string, 1000)}
	c.cmd.Env = append(append(os.Environ(), env...), "RELOCK_TEST_CHILD="+b.Addr+" "+b.LockName+" "+strings.Join(does, " "))
	out, err := c.cmd.StdoutPipe()
	b.Must(err)
	b.Must(c.cmd.Start())
	go func() {
		defer close(c.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			if line, ok := strings.CutPrefix(s.Text(), "child: "); ok {
				c.lines <- line
			}
		}
	}()
	b.Cleanup(func() {
		_ = c.cmd.Process.Signal(syscall.SIGCONT)
		_ = c.cmd.Process.Kill() // it may have exited
		_ = c.cmd.Wait()
	})
	return c
}

// says waits for the next line of the child, and requires that it is want.
func (c *child) says(want string) {
	c.Helper()
	select {
	case line, ok := <-c.lines:
		require.True(c, ok, "the child has ended")
		require.Equal(c, want, line, "the child says")
	case <-time.After(childStart):
		require.Fail(c, "the child does not answer", "want %q", want)
	}
}

func (c *child) signal(s syscall.Signal) {
	c.Helper()
	require.NoError(c, c.cmd.Process.Signal(s))
}

const (
	childLease = 2 * time.Second
	childStart = 4 * locktest.Soon // its program starts, together with many others, under the race detector
)

// TestChild is the program of a child.
func TestChild(t *testing.T) {
	does := strings.Fields(os.Getenv("RELOCK_TEST_CHILD"))
	if len(does) == 0 {
		return // it is used by the tests below
	}
	b := &locktest.FaultBench{Bench: &locktest.Bench{T: t, Addr: does[0], LockName: does[1], Rdb: testredis.Client(t, does[0])}}
	say := func(format string, args ...any) { fmt.Printf("child: "+format+"\n", args...) }
	c := b.Client(WithWatchdogTimeout(childLease))
	switch does[2] {
	case "hold":
		l := lockOf(does[3]).One(c, b.LockName)
		b.Must(l.Lock(ctx))
		guarded := guardOf(b, ctx, l)
		last := time.Now()
		say("held")
		for {
			pause := syscall.NsecToTimespec(1e6)
			_ = syscall.Nanosleep(&pause, nil) // not a timer of Go, because other goroutines would also wait for it
			now := time.Now()
			if now.Sub(last) > childLease {
				break
			}
			last = now
		}
		say("paused, guard alive: %v", guarded.Err() == nil)
		held, err := l.IsHeld(ctx)
		say("held: %v, %v", held, err)
		say("unlock says lost: %v", errors.Is(l.Unlock(ctx), ErrLockLost))
	case "wait":
		say("waiting")
		b.Must(lockOf(does[3]).One(c, b.LockName).Lock(ctx))
		say("held")
	case "take":
		l := lockOf(does[3]).One(c, b.LockName)
		b.Must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		say("held, guard: %v, alive: %v", err, guarded != nil && guarded.Err() == nil)
	case "many":
		manyLocks(b, c)
		say("done, failed: %v", t.Failed())
	}
}

func lockOf(kind string) locktest.FaultLock {
	for _, k := range locktest.FaultLocks {
		if k.Name == kind {
			return k
		}
	}
	panic("no lock type " + kind)
}

// Row 32: a holder is paused for longer than its lease, and another client acquires the lock. When the holder
// continues, its guard has ended before it can check it, and its Unlock does not affect the new holder.
func TestFaultPausedHolderFindsItsGuardEnded(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, locktest.OneRedis(t), func(b *locktest.FaultBench, k locktest.FaultLock) {
		c := startChild(b, nil, "hold", k.Name)
		c.says("held")
		b.Tries(k.Rival(b.Direct, b.LockName), false)
		c.signal(syscall.SIGSTOP)
		next := k.Rival(b.Direct, b.LockName)
		start := time.Now()
		b.Must(next.Lock(ctx))
		time.Sleep(time.Until(start.Add(childLease + childLease/2))) // the pause lasts longer than the lease
		c.signal(syscall.SIGCONT)
		c.says("paused, guard alive: false")
		c.says("held: false, <nil>")
		c.says("unlock says lost: true")
		b.Holds(next, 1)
		b.Must(next.Unlock(ctx))
	})
}

// Row 60: a holder is killed. Waiters acquire the lock when its lease expires, and not later.
func TestFaultKilledHolderBlocksForItsLease(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, locktest.OneRedis(t), func(b *locktest.FaultBench, k locktest.FaultLock) {
		c := startChild(b, nil, "hold", k.Name)
		c.says("held")
		c.signal(syscall.SIGKILL)
		start := time.Now()
		next := k.Rival(b.Direct, b.LockName)
		b.Must(next.Lock(ctx))
		assert.LessOrEqual(b, time.Since(start), childLease+locktest.Soon, "time that the dead holder blocked others")
		b.Must(next.Unlock(ctx))
	})
}

// Rows 43, 60: a waiter is killed: at the head of the queue of a fair lock, or a writer that keeps out readers. The
// others acquire the lock within seconds.
func TestFaultKilledWaiterBlocksForSeconds(t *testing.T) {
	t.Parallel()
	locktest.OnFaultLocks(t, locktest.OneRedis(t), func(b *locktest.FaultBench, k locktest.FaultLock) {
		held := k.Rival(b.Direct, b.LockName)
		b.Must(held.Lock(ctx))
		c := startChild(b, nil, "wait", k.Name)
		c.says("waiting")
		testredis.Await(b, "it waits in Redis", locktest.Soon, func() bool {
			channels, err := b.Rdb.PubSubChannels(ctx, "*"+b.LockName+"*").Result()
			return err == nil && len(channels) > 0
		})
		c.signal(syscall.SIGKILL)
		next, owner := k.One(b.Client(), b.LockName), ContextWithOwner(ctx)
		got := make(chan error, 1)
		go func() { got <- next.Lock(owner) }()
		locktest.Stays(b, "it is held", got, 100*time.Millisecond)
		b.Must(held.Unlock(ctx))
		select {
		case err := <-got:
			b.Must(err)
		case <-time.After(2*record.FairLife + locktest.Soon):
			require.Fail(b, "the dead waiter is in the way")
		}
		b.Must(next.Unlock(owner))
	})
}

// Row 43: processes are killed while they wait: the release passes the lock on to the next process that is alive.
func TestFaultKilledWaitersDelayNobody(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"lock", "fair"} {
		t.Run(kind, func(t *testing.T) {
			b, k := locktest.NewFaultBench(t), lockOf(kind)
			held := k.One(b.Direct, b.LockName)
			b.Must(held.Lock(ctx))
			wait := func(n int) {
				t.Helper()
				testredis.Await(b, fmt.Sprintf("%d wait in Redis, and listen", n), childStart, func() bool {
					return len(b.Places())+len(b.FairPlaces()) == n // a client has an entry, or a waiter its request
				})
			}
			var dead []*child
			for n := range 3 {
				dead = append(dead, startChild(b, nil, "wait", k.Name))
				wait(n + 1)
			}
			next, owner := k.One(b.Client(), b.LockName), ContextWithOwner(ctx)
			got := make(chan error, 1)
			go func() { got <- next.Lock(owner) }()
			wait(4)
			b.Hears(b.Direct)
			for _, c := range dead {
				c.signal(syscall.SIGKILL)
			}
			testredis.Await(b, "their connections are gone", locktest.Soon, func() bool {
				listening := b.Rdb.Do(ctx, "client", "list", "type", "pubsub").Val().(string)
				return strings.Count(listening, "\n") == 2 // of the holder, and of the next one
			})
			start := time.Now()
			b.Must(held.Unlock(ctx))
			b.Must(locktest.Await(b.Bench, "the next one has the lock", got))
			took := time.Since(start) // milliseconds, on a machine that is not busy
			assert.Less(t, took, testredis.Scale(start, record.FairLife/2), "time that three dead processes delay a living one")
			t.Logf("the lock passed on within %v", took)
			b.Must(next.Unlock(owner))
			assert.Empty(t, b.Queue(), "nobody waits, and the dead are gone")
		})
	}
}

// Row 40: one processor, other processes that load it, and many locks: the locks are renewed, or their holders learn of
// the loss in time.
func TestFaultStarvedProcessKeepsNoLostLock(t *testing.T) {
	t.Parallel()
	b := locktest.NewFaultBenchOn(t, testredis.Start(t))
	startChild(b, []string{"GOMAXPROCS=1"}, "many").says("done, failed: false")
}

func manyLocks(b *locktest.FaultBench, c *Client) {
	for range 4 {
		go func() {
			for !time.Now().IsZero() { // until the process exits
			}
		}()
	}
	var locks []*Lock
	var guards []context.Context
	for i := range locktest.Full(10, 50) {
		l := c.NewLock(fmt.Sprint(b.LockName, i))
		b.Must(l.Lock(ctx))
		guarded := guardOf(b, ctx, l)
		locks, guards = append(locks, l), append(guards, guarded)
	}
	kept := 0
	for start := time.Now(); time.Since(start) < 2*childLease; time.Sleep(childLease / 20) {
		for i, l := range locks {
			there := b.Rdb.Exists(ctx, l.Name()).Val()
			if there == 0 {
				require.Error(b, guards[i].Err(), "%s is trusted, and free", l.Name())
			}
		}
	}
	for i, l := range locks {
		if guards[i].Err() == nil {
			kept++
		}
		_ = l.Unlock(ctx)
	}
	assert.NotZero(b, kept, "all are lost, and a lack of processor time does not explain that")
}
