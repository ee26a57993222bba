package relock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/testredis"
)

// newRedLock is a lock over all servers of the bench that c belongs to.
func newRedLock(c *Client, name string) Locker {
	locks := []Locker{c.NewLock(name)}
	if all, ok := siblings.Load(c); ok {
		for _, sibling := range all.([]*Client) {
			locks = append(locks, sibling.NewLock(name))
		}
	}
	return c.NewRedLock(locks...)
}

func TestRedLock(t *testing.T) {
	suite{newLock: newRedLock, rival: newRedLock, nodes: 3, least: 20 * time.Millisecond}.run(t)
}

// A redBench is a bench with five servers.
type redBench struct {
	*bench
	servers []*testredis.Server
}

func newRedBench(t *testing.T) *redBench {
	t.Parallel()
	var servers []*testredis.Server
	var addrs []string
	for range 5 {
		s := testredis.Start(t)
		servers = append(servers, s)
		addrs = append(addrs, s.Addr())
	}
	return &redBench{newBench(t, addrs[0], addrs[1:]...), servers}
}

// lock is the RedLock of one process.
func (b *redBench) lock(opts ...Option) Locker { return newRedLock(b.client(opts...), b.name) }

// nodeLocks are locks of the name of the bench, one on each server, each of a Client of its own.
func (b *redBench) nodeLocks(opts ...Option) (locks []Locker) {
	for _, rdb := range b.nodes {
		locks = append(locks, b.clientOn(testredis.Client(b, rdb.Options().Addr), opts...).NewLock(b.name))
	}
	return locks
}

// back has all servers run again, so that it can be seen whether anything is left on them.
func (b *redBench) back(restart bool, servers ...*testredis.Server) {
	for _, s := range servers {
		if restart {
			s.Restart()
		} else {
			s.Thaw()
		}
	}
}

// has says on how many nodes the lock has a record.
func (b *redBench) has() int {
	n := 0
	for _, rdb := range b.nodes {
		if len(b.keysOn(rdb)) > 0 {
			n++
		}
	}
	return n
}

func TestRedLockDeadNodes(t *testing.T) {
	t.Parallel()
	for name, kill := range map[string]func(*testredis.Server){
		"killed": (*testredis.Server).Kill,
		"frozen": (*testredis.Server).Freeze,
	} {
		t.Run(name, func(t *testing.T) {
			b := newRedBench(t)
			ctx := context.Background()
			const nodeTimeout = time.Second
			// An attempt that a frozen server runs behind its undo lapses before the bench gives up waiting for that.
			l, other := b.lock(WithNodeTimeout(nodeTimeout), WithWatchdogTimeout(10*time.Second)), b.lock(WithNodeTimeout(nodeTimeout))
			b.must(l.Lock(ctx))
			kill(b.servers[1])
			kill(b.servers[3])

			// With two of five away everything goes on, and costs at most one node timeout.
			for range 3 {
				b.must(l.Unlock(ctx))
				start := time.Now()
				if ok, err := l.TryLock(ctx, 0, 0); !ok || err != nil {
					t.Fatal(ok, err)
				}
				if took := time.Since(start); took > nodeTimeout+soon/5 {
					t.Errorf("an acquire took %v", took)
				}
				b.holds(l, 1)
				b.must(l.Lock(ctx))
				b.holds(l, 2)
				b.must(l.Unlock(ctx))
				if ok, err := other.TryLock(ctx, 0, 0); ok || err != nil { // others hold a majority
					t.Errorf("another one: %v, %v", ok, err)
				}
				b.isLocked(other, true)
			}
			b.must(l.Unlock(ctx))

			// With three away nobody gets it, and is told why.
			kill(b.servers[4])
			start := time.Now()
			ok, err := l.TryLock(ctx, 0, 0)
			took := time.Since(start)
			var quorum *QuorumError
			if ok || !errors.As(err, &quorum) || quorum.Asked != 5 || quorum.Needed != 3 || quorum.Granted > 2 || len(quorum.Answers) != 5 {
				t.Errorf("%v, %v: %+v", ok, err, quorum)
			}
			if took > 2*nodeTimeout+soon/5 {
				t.Errorf("it took %v to find out", took)
			}
			if !strings.Contains(err.Error(), b.name) || !strings.Contains(err.Error(), "node 2") || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v", err)
			}
			deadline, cancel := context.WithTimeout(ctx, 2*nodeTimeout)
			defer cancel()
			err = l.Lock(deadline)
			b.mustBe(err, context.DeadlineExceeded)
			if !errors.As(err, &quorum) {
				t.Errorf("error %v", err)
			}
			if _, err := l.IsLocked(ctx); !errors.As(err, &quorum) {
				t.Errorf("IsLocked: %v", err)
			}

			b.back(name == "killed", b.servers[1], b.servers[3], b.servers[4])
			if ok, err := l.TryLock(ctx, 2*soon, 0); !ok || err != nil { // go-redis takes its time
				t.Errorf("all are back: %v, %v", ok, err)
			}
			b.must(l.Unlock(ctx))
		})
	}
}

// The holder is told when it can trust only a minority, and not before.
func TestRedLockLossOfTheMajority(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	const lease = 3 * time.Second
	l := b.lock(WithWatchdogTimeout(lease))
	b.must(l.Lock(ctx))
	guarded, err := l.Guard(ctx)
	b.must(err)
	b.servers[0].Freeze()
	b.servers[1].Freeze()
	time.Sleep(lease + lease/6)
	if guarded.Err() != nil {
		t.Fatalf("with two of five frozen: %v", context.Cause(guarded))
	}
	start := time.Now()
	b.servers[2].Freeze()
	await(b.bench, "the guard ends", guarded.Done())
	if took := time.Since(start); took > lease+soon/5 {
		t.Errorf("it ended %v after the third server froze, the lease is %v", took, lease)
	}
	b.mustBe(context.Cause(guarded), ErrLockLost)
	b.mustBe(l.Unlock(ctx), ErrLockLost)
	b.back(false, b.servers[:3]...)
}

// A node that came back empty is taken again, as long as the others are enough,
// and counts from then on.
func TestRedLockNodeComesBackEmpty(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	l, other := b.lock(WithWatchdogTimeout(3*time.Second)), b.lock()
	b.must(l.Lock(ctx))
	b.must(l.Lock(ctx))
	guarded, err := l.Guard(ctx)
	b.must(err)
	for i, s := range b.servers { // all of them, one after the other
		s.Kill()
		s.Restart()
		testredis.Await(b, fmt.Sprintf("node %d is taken again", i+1), 4*soon, func() bool { return b.has() == 5 })
		if guarded.Err() != nil {
			t.Fatal(context.Cause(guarded))
		}
		b.tries(other, false)
	}
	b.must(l.Unlock(ctx))
	b.holds(l, 1)
	b.must(l.Unlock(ctx))
}

// Where a majority came back empty nothing is taken again: somebody else may have it.
func TestRedLockMajorityComesBackEmpty(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	var locks []Locker
	for _, rdb := range b.nodes {
		locks = append(locks, b.clientOn(testredis.Client(t, rdb.Options().Addr), WithWatchdogTimeout(time.Second)).NewLock(b.name))
	}
	// Its own renewal is not due: between the moments at which two nodes are found empty it would take the first again.
	l, other := b.client(WithWatchdogTimeout(time.Hour), WithNodeTimeout(soon)).NewRedLock(locks...), b.lock()
	b.must(l.Lock(ctx))
	testredis.Await(b, "all are held", soon, func() bool { return b.has() == 5 })
	guarded, err := l.Guard(ctx)
	b.must(err)
	for _, s := range b.servers[:3] {
		s.Kill()
	}
	for _, s := range b.servers[:3] {
		s.Restart()
	}
	await(b.bench, "the guard ends", guarded.Done())
	b.mustBe(context.Cause(guarded), ErrLockLost)
	testredis.Await(b, "the rest is given up although nobody unlocks", soon, func() bool { return b.has() == 0 })
	if ok, err := other.TryLock(ctx, soon, 0); !ok || err != nil {
		t.Fatal(ok, err)
	}
	b.mustBe(l.Lock(ctx), ErrLockLost)
	b.mustBe(l.Unlock(ctx), ErrLockLost)
	b.holds(other, 1)
	b.must(other.Unlock(ctx))
}

// The loss is noticed when the nodes are lost, not when it is the turn of the hold.
func TestRedLockLossIsToldAtOnce(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	var locks []Locker
	for _, rdb := range b.nodes[1:4] {
		locks = append(locks, b.clientOn(testredis.Client(t, rdb.Options().Addr), WithWatchdogTimeout(3*time.Second)).NewLock(b.name))
	}
	var logged lockedBuffer
	c := b.client(WithWatchdogTimeout(time.Hour), WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))
	l := c.NewRedLock(locks...)
	b.must(l.Lock(ctx))
	guarded, err := l.Guard(ctx)
	b.must(err)
	testredis.Await(b, "all are held", soon, func() bool { return b.has() == 3 })
	b.forget()
	await(b.bench, "the guard ends", guarded.Done())
	b.mustBe(context.Cause(guarded), ErrLockLost)
	b.mustBe(l.Unlock(ctx), ErrLockLost)
	testredis.Await(b, "the warning", soon, func() bool { return strings.Count(logged.String(), "level=WARN") == 1 })
}

// A node that answers late has granted nothing: it is released as soon as it does.
func TestRedLockLateAnswers(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	var proxies []*testredis.Proxy
	c := b.clientOn(testredis.Client(t, b.servers[0].Addr()))
	locks := []Locker{c.NewLock(b.name)}
	for i, s := range b.servers[1:] {
		p := testredis.NewProxy(t, s.Addr())
		proxies = append(proxies, p)
		name := b.name
		if i == 3 {
			name = b.name + "-with-a-longer-name"
		}
		locks = append(locks, b.clientOn(p.Client(), WithNodeTimeout(100*time.Millisecond)).NewLock(name))
	}
	l := c.NewRedLock(locks...)
	b.must(l.Lock(ctx))
	b.must(l.Unlock(ctx))
	for _, p := range proxies[:3] {
		p.Latency(400 * time.Millisecond)
	}
	start := time.Now()
	_, err := l.TryLock(ctx, 0, 0)
	var quorum *QuorumError
	if !errors.As(err, &quorum) || quorum.Granted != 2 {
		t.Errorf("error %v", err)
	}
	if took := time.Since(start); took > 700*time.Millisecond {
		t.Errorf("it waited %v for late answers", took)
	}
	// The attempts that were left behind run on those three later, and are undone: the bench looks for it.
	time.Sleep(time.Second)
	testredis.Await(b, "nothing is left", 2*soon, func() bool { return b.has() == 0 })
}

// A round that takes longer than the lease is no acquire, whatever the nodes said.
func TestRedLockValidity(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	c := b.client()
	var unlocked, slow atomic.Int64
	var locks []Locker
	for i := range 3 {
		l := c.NewLock(fmt.Sprint(b.name, i))
		locks = append(locks, stubLocker{
			Locker: l,
			tryLock: func(ctx context.Context, wait, lease time.Duration) (bool, error) {
				if slow.Load() > 0 {
					time.Sleep(150 * time.Millisecond)
				}
				return l.TryLock(context.WithoutCancel(ctx), wait, time.Minute)
			},
			unlock: func(context.Context) error { unlocked.Add(1); return nil },
		})
	}
	l := c.NewRedLock(locks...)
	slow.Store(1)
	if ok, err := l.TryLock(ctx, 0, 100*time.Millisecond); ok || err != nil {
		t.Errorf("a lease of 100ms and a round of 150ms: %v, %v", ok, err)
	}
	if n := unlocked.Load(); n != 3 {
		t.Errorf("%d of 3 were given back", n)
	}
	slow.Store(0)
	if ok, err := l.TryLock(ctx, 0, 100*time.Millisecond); !ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	b.must(l.Unlock(ctx))
	if err := l.LockLease(ctx, time.Millisecond); !errors.Is(err, ErrInvalid) {
		t.Errorf("a lease of 1ms: %v", err)
	}
}

// What a node refuses for good is told at once; a few of those do no harm.
func TestRedLockAnswers(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	l := b.lock()
	for i, rdb := range b.nodes {
		b.must(rdb.Set(ctx, b.name, "somebody else's", 0).Err())
		ok, err := l.TryLock(ctx, 0, 0)
		if i < 2 {
			if !ok || err != nil {
				t.Errorf("%d bad nodes: %v, %v", i+1, ok, err)
			}
			b.must(l.Unlock(ctx))
			continue
		}
		var quorum *QuorumError
		if ok || !errors.As(err, &quorum) || len(quorum.Unwrap()) != i+1 || !errors.Is(quorum.Answers[0], ErrNotALock) || !errors.Is(err, ErrNotALock) {
			t.Errorf("%d bad nodes: %v, %v", i+1, ok, err)
		}
		if err := l.Lock(ctx); !errors.As(err, &quorum) { // and does not wait for them
			t.Error(err)
		}
	}
	b.forget()
}

// Unlock is nil when a majority confirmed, and does not wait for the others much longer.
func TestRedLockUnlock(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	l := b.lock(WithNodeTimeout(100 * time.Millisecond))
	for range 2 {
		b.must(l.Lock(ctx))
		testredis.Await(b, "all are held", soon, func() bool { return b.has() == 5 })
		b.servers[0].Freeze()
		b.servers[1].Freeze()
		start := time.Now()
		b.must(l.Unlock(ctx))
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
		b.back(false, b.servers[:2]...)
		testredis.Await(b, "the frozen ones are released too", 2*soon, func() bool { return b.has() == 0 })
	}
	b.must(l.Lock(ctx))
	for _, s := range b.servers[:3] {
		s.Freeze()
	}
	err := l.Unlock(ctx)
	var quorum *QuorumError
	if !errors.As(err, &quorum) || quorum.Granted != 2 {
		t.Errorf("error %v", err)
	}
	b.mustBe(l.Unlock(ctx), ErrNotHeld)
	b.back(false, b.servers[:3]...)
	testredis.Await(b, "the frozen ones are released too", 4*soon, func() bool { return b.has() == 0 })
}

// A node that missed the outer level, or an inner one, is released with the last.
func TestRedLockLevels(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	l, other := b.lock(WithNodeTimeout(100*time.Millisecond)), b.lock()
	same := newRedLock(l.(*RedLock).client, b.name)
	b.servers[0].Freeze()
	b.must(l.Lock(ctx))
	b.back(false, b.servers[0])
	b.must(b.nodes[0].Ping(ctx).Err())
	b.servers[1].Freeze()
	b.must(same.Lock(ctx))
	b.back(false, b.servers[1])
	b.must(b.nodes[1].Ping(ctx).Err())
	b.holds(l, 2)
	b.must(l.Unlock(ctx))
	b.holds(same, 1)
	b.tries(other, false)
	b.must(same.Unlock(ctx))
	b.holds(l, 0)
	b.mustBe(l.Unlock(ctx), ErrNotHeld)
	if ok, err := other.TryLock(ctx, soon, 0); !ok || err != nil {
		t.Error(ok, err)
	}
	b.must(other.Unlock(ctx))
}

func TestRedLockInvalid(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	c, other := b.client(), b.client()
	onServer := func() *Client { return b.clientOn(testredis.Client(t, testredis.Mini(t).Addr())) }
	c2, c3, c4 := onServer(), onServer(), onServer()
	n := b.name
	for name, l := range map[string]*RedLock{
		"none":               c.NewRedLock(),
		"two":                c.NewRedLock(c.NewLock(n), c2.NewLock(n)),
		"nil":                c.NewRedLock(c.NewLock(n), c2.NewLock(n), nil),
		"of one client":      c.NewRedLock(c.NewLock(n), c2.NewLock(n), c.NewLock(n+"2")),
		"on one server":      c.NewRedLock(c.NewLock(n), c2.NewLock(n), other.NewLock(n+"2")),
		"a bad one":          c.NewRedLock(c.NewLock(n), c2.NewLock(n), c3.NewLock("")),
		"no client":          (*Client)(nil).NewRedLock(c.NewLock(n), c2.NewLock(n), c3.NewLock(n)),
		"a bad MultiLock":    c.NewRedLock(c.NewLock(n), c2.NewLock(n), c3.NewMultiLock()),
		"made by hand":       {},
		"on three databases": c.NewRedLock(c.NewLock(n), c2.NewLock(n), b.clientOn(testredis.Client(t, b.addr, func(o *redis.Options) { o.DB = 1 })).NewLock(n)),
		"on one, in many":    c.NewRedLock(c.NewLock(n), c2.NewLock(n), c3.NewMultiLock(c3.NewLock(n), c2.NewLock(n+"2"))),
		"a RedLock of two":   c.NewRedLock(c.NewLock(n), c2.NewLock(n), c3.NewRedLock(c3.NewLock(n), c4.NewLock(n))),
	} {
		for method, err := range map[string]error{
			"Lock": l.Lock(ctx), "Unlock": l.Unlock(ctx), "IsHeld": second(l.IsHeld(ctx)), "Force": second(l.ForceUnlock(ctx)),
		} {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: %s: %v", name, method, err)
			}
		}
	}
	// Four are good, and need three; other kinds are, too.
	l := c.NewRedLock(c.NewFairLock(n), newWriteLock(c2, n), c3.NewMultiLock(c3.NewLock(n), c3.NewLock(n+"2")), c4.NewLock(n, Fenced()))
	b.must(l.Lock(ctx))
	b.must(l.Lock(ctx))
	b.holds(l, 2)
	b.must(l.Unlock(ctx))
	guarded, err := l.Guard(ctx)
	b.must(err)
	for i, m := range []Locker{c.NewFairLock(n), newWriteLock(c2, n)} {
		if freed, err := m.ForceUnlock(ctx); !freed || err != nil {
			t.Error(i, freed, err)
		}
		if lost := guarded.Err() != nil; i == 0 && lost {
			t.Error("three of four are left, and the guard has ended")
		}
	}
	await(b, "the guard ends", guarded.Done())
	b.mustBe(l.Unlock(ctx), ErrLockLost)
}

// Nodes that cannot be asked decide nothing: a hold is not lost because one asks for it.
func TestRedLockUnsureAnswers(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	b.servers[0].Kill()
	b.servers[1].Kill()
	l := b.lock(WithNodeTimeout(100 * time.Millisecond))
	b.must(l.Lock(ctx))
	guarded, err := l.Guard(ctx)
	b.must(err)
	b.servers[2].Freeze()
	var quorum *QuorumError
	if held, err := l.IsHeld(ctx); held || !errors.As(err, &quorum) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("IsHeld: %v, %v", held, err)
	}
	if locked, err := l.IsLocked(ctx); locked || !errors.As(err, &quorum) {
		t.Errorf("IsLocked: %v, %v", locked, err)
	}
	b.back(false, b.servers[2])
	b.must(b.nodes[2].Ping(ctx).Err())
	b.holds(l, 1)
	if guarded.Err() != nil {
		t.Error(context.Cause(guarded))
	}
	b.must(l.Unlock(ctx))
	b.back(true, b.servers[:2]...)
}

// An explicit lease that runs out inside of holds that its owner has by itself takes nothing from those and adds nothing.
func TestRedLockLeaseInsideOtherHolds(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	locks := b.nodeLocks()
	l := b.client().NewRedLock(locks...)
	inner := locks[:2]
	for _, m := range inner {
		b.must(m.Lock(ctx))
	}
	b.must(l.LockLease(ctx, 300*time.Millisecond))
	guarded, err := l.Guard(ctx)
	b.must(err)
	await(b.bench, "the lease ends", guarded.Done())
	b.mustBe(context.Cause(guarded), ErrLockLost)
	for _, m := range inner {
		testredis.Await(b, "the level of the lease is gone", soon, func() bool {
			n, err := m.HoldCount(ctx)
			return n == 1 && err == nil
		})
		b.must(m.Unlock(ctx))
	}
}

// What is left on a node of a lock of several, of which one was lost, is not kept twice.
func TestRedLockOfMultiLocks(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	var locks []Locker
	for _, rdb := range b.nodes[1:4] {
		c := b.clientOn(testredis.Client(t, rdb.Options().Addr), WithWatchdogTimeout(4*time.Second))
		locks = append(locks, c.NewMultiLock(c.NewLock(b.name+"-x"), c.NewLock(b.name+"-y")))
	}
	l := b.client(WithWatchdogTimeout(4 * time.Second)).NewRedLock(locks...)
	b.must(l.Lock(ctx))
	for range 2 {
		b.must(b.nodes[1].Del(ctx, b.name+"-y").Err())
		testredis.Await(b, "it is taken again", 2*soon, func() bool { return b.nodes[1].Exists(ctx, b.name+"-y").Val() == 1 })
	}
	b.holds(l, 1)
	b.must(l.Unlock(ctx))
	testredis.Await(b, "all is given back", soon, func() bool { return b.has() == 0 })

	// And waiters are woken.
	other := b.client(WithMaxWakeDelay(time.Hour)).NewRedLock(slices.Clone(locks)...)
	b.must(l.Lock(ctx))
	got := make(chan error)
	owner := WithOwner(ctx)
	go func() { got <- other.Lock(owner) }()
	for _, rdb := range b.nodes[1:4] {
		testredis.Await(b, "the other one waits", soon, func() bool {
			return len(rdb.PubSubChannels(ctx, "*"+b.name+"*").Val()) > 0
		})
	}
	b.must(l.Unlock(ctx))
	b.must(await(b.bench, "the waiter is woken", got))
	b.must(other.Unlock(owner))
}

// Readers share it, in one process too.
func TestRedLockOfReaders(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	var readers, writers []Locker
	for _, rdb := range b.nodes[:3] {
		c := b.clientOn(testredis.Client(t, rdb.Options().Addr))
		readers, writers = append(readers, newReadLock(c, b.name)), append(writers, newWriteLock(c, b.name))
	}
	home := b.client()
	read, write := home.NewRedLock(readers...), home.NewRedLock(writers...)
	readers[0] = nil // it is not ours any more
	b.must(read.Lock(ctx))
	owner := WithOwner(ctx)
	if ok, err := read.TryLock(owner, soon, 0); !ok || err != nil {
		t.Error(ok, err)
	}
	if ok, err := write.TryLock(WithOwner(ctx), 0, 0); ok || err != nil {
		t.Error(ok, err)
	}
	b.must(read.Unlock(ctx))
	b.must(read.Unlock(owner))
}

// Somebody else's Locker that does not answer costs a node timeout.
func TestRedLockOfAHangingStranger(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	release := make(chan struct{})
	hangs := func() Locker {
		return stubLocker{
			Locker:  b.client().NewLock(b.name + "-hangs"),
			tryLock: func(context.Context, time.Duration, time.Duration) (bool, error) { <-release; return false, nil },
		}
	}
	nodes := func() (locks []Locker) {
		for _, rdb := range b.nodes[:2] {
			locks = append(locks, b.clientOn(testredis.Client(t, rdb.Options().Addr)).NewLock(b.name))
		}
		return locks
	}
	home := b.client()
	defer close(release) // before the clients are closed
	l, rival := home.NewRedLock(append(nodes(), hangs())...), b.client().NewRedLock(append(nodes(), hangs())...)
	b.must(l.Lock(ctx))
	start := time.Now()
	if ok, err := rival.TryLock(ctx, 0, 0); ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
	b.must(l.Unlock(ctx))
}

// Waiters cost next to nothing, also where the holder has only a majority.
func TestRedLockWaitersDoNotPoll(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	l := b.lock(WithWatchdogTimeout(time.Hour))
	b.must(l.Lock(ctx))
	testredis.Await(b, "all are held", soon, func() bool { return b.has() == 5 })
	b.must(b.nodes[4].Del(ctx, b.name).Err())
	rdb := testredis.Client(t, b.addr)
	sent := new(counter)
	rdb.AddHook(sent)
	waiter := newRedLock(b.clientOn(rdb), b.name)
	owner := WithOwner(ctx)
	got := make(chan error)
	go func() { got <- waiter.Lock(owner) }()
	time.Sleep(time.Second)
	before := sent.n.Load()
	time.Sleep(3 * time.Second)
	if n := sent.n.Load() - before; n > 30 {
		t.Errorf("%d requests to one node in 3s", n)
	}
	b.must(l.Unlock(ctx))
	b.must(await(b.bench, "the waiter is woken", got))
	b.must(waiter.Unlock(owner))
}

// A silentGuard has ended without anybody having been told, as after a pause of the process.
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

// Whoever looks sees that too few nodes are trusted, also when nobody has told; and
// the watchdog sees it when it is the turn of the hold.
func TestRedLockLooksForItself(t *testing.T) {
	for name, look := range map[string]func(b *bench, l *RedLock, guarded context.Context){
		"guard": func(b *bench, _ *RedLock, guarded context.Context) {
			if guarded.Err() == nil {
				b.Error("the guard goes on")
			}
		},
		"hold count": func(b *bench, l *RedLock, _ context.Context) { b.holds(l, 0) },
		"watchdog":   func(b *bench, _ *RedLock, guarded context.Context) { await(b, "the guard ends", guarded.Done()) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, testredis.Mini(t).Addr())
			ctx := context.Background()
			timeout := time.Hour
			if name == "watchdog" {
				timeout = 300 * time.Millisecond
			}
			c := b.client(WithWatchdogTimeout(timeout))
			var over atomic.Bool
			var locks []Locker
			for i := range 3 {
				locks = append(locks, stubLocker{
					Locker: b.client().NewLock(fmt.Sprint(b.name, i)),
					guard:  func(ctx context.Context) (context.Context, error) { return silentGuard{ctx, &over}, nil },
				})
			}
			l := c.NewRedLock(locks...)
			b.must(l.Lock(ctx))
			guarded, err := l.Guard(ctx)
			b.must(err)
			over.Store(true)
			look(b, l, guarded)
			b.mustBe(l.Unlock(ctx), ErrLockLost)
			testredis.Await(b, "all nodes are given back", soon, func() bool { return len(b.keys()) == 0 })
		})
	}
}

func TestQuorumError(t *testing.T) {
	err := error(&QuorumError{Asked: 3, Granted: 1, Needed: 2, Answers: []error{nil, io.EOF, errTaken}})
	err = failed("lock", "x", err)
	var quorum *QuorumError
	if !errors.Is(err, io.EOF) || !errors.As(err, &quorum) || len(quorum.Unwrap()) != 2 {
		t.Errorf("%v", err)
	}
	const want = `relock: lock "x": 1 of 3 nodes, 2 needed; node 2: EOF; node 3: somebody else holds it`
	if err.Error() != want {
		t.Errorf("%s, want %s", err, want)
	}
}

// Two processes fight for a lock over five servers, of which one or two are away
// now and then, and count under it on a sixth one: none of them is ever there with
// the other, and no count is lost.
func TestRedLockTwoProcesses(t *testing.T) {
	if addrs := os.Getenv("RELOCK_TEST_FIGHT"); addrs != "" {
		fight(t, strings.Split(addrs, ","))
		return
	}
	b := newRedBench(t)
	ctx := context.Background()
	sixth := testredis.Start(t)
	addrs := []string{sixth.Addr()}
	for _, s := range b.servers {
		addrs = append(addrs, s.Addr())
	}
	fighting, stop := context.WithTimeout(ctx, full(8*time.Second, 30*time.Second))
	defer stop()
	type outcome struct {
		out []byte
		err error
	}
	outcomes := make(chan outcome, 2)
	for range 2 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestRedLockTwoProcesses$", "-test.v")
		cmd.Env = append(os.Environ(), "RELOCK_TEST_FIGHT="+b.name+","+strings.Join(addrs, ","))
		go func() {
			out, err := cmd.CombinedOutput()
			outcomes <- outcome{out, err}
		}()
	}
	rng := newRand(1)
	for fighting.Err() == nil {
		away := rng.Perm(5)[:1+rng.IntN(2)]
		for _, i := range away {
			b.servers[i].Freeze()
		}
		time.Sleep(time.Duration(rng.IntN(int(time.Second))))
		for _, i := range away {
			b.servers[i].Thaw()
		}
		time.Sleep(time.Duration(rng.IntN(int(time.Second))))
	}
	b.must(sixth.Client().Set(ctx, "stop", 1, 0).Err())
	for range 2 {
		o := <-outcomes
		if o.err != nil {
			t.Errorf("%v\n%s", o.err, o.out)
		}
	}
	rdb := sixth.Client()
	counted, err := rdb.Get(ctx, "counter").Int()
	b.must(err)
	var sections int
	for _, n := range rdb.HGetAll(ctx, "sections").Val() {
		var k int
		_, _ = fmt.Sscan(n, &k)
		sections += k
	}
	if counted != sections || counted < 20 || len(rdb.HGetAll(ctx, "sections").Val()) != 2 {
		t.Errorf("%d counted in %d sections of %v", counted, sections, rdb.HGetAll(ctx, "sections").Val())
	}
	t.Logf("%d sections: %v", sections, rdb.HGetAll(ctx, "sections").Val())
}

// fight is one of the processes.
func fight(t *testing.T, addrs []string) {
	name := addrs[0]
	ctx := context.Background()
	counter := testredis.Client(t, addrs[1])
	var locks []Locker
	var home *Client
	for _, addr := range addrs[2:] {
		c, err := New(testredis.Client(t, addr))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if home == nil {
			home = c
		}
		locks = append(locks, c.NewLock(name))
	}
	l := home.NewRedLock(locks...)
	me := fmt.Sprint(os.Getpid())
	for counter.Exists(ctx, "stop").Val() == 0 {
		ok, err := l.TryLock(ctx, 2*time.Second, 0)
		if quorum := (*QuorumError)(nil); err != nil && !errors.As(err, &quorum) && !errors.Is(err, errNoAnswer) {
			t.Fatal(err)
		}
		if !ok {
			continue
		}
		if n, err := counter.Incr(ctx, "inside").Result(); n != 1 || err != nil {
			t.Fatalf("%d are inside, %v", n, err)
		}
		n, err := counter.Get(ctx, "counter").Int() // a read and a write that a second one would tear
		if err != nil && err != redis.Nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond)
		pipe := counter.Pipeline()
		pipe.Set(ctx, "counter", n+1, 0)
		pipe.HIncrBy(ctx, "sections", me, 1)
		pipe.Decr(ctx, "inside")
		if _, err := pipe.Exec(ctx); err != nil {
			t.Fatal(err)
		}
		if err := l.Unlock(ctx); err != nil {
			if quorum := (*QuorumError)(nil); !errors.As(err, &quorum) {
				t.Fatal(err)
			}
		}
	}
}
