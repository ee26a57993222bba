package relock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/testredis"
)

// newRedLock returns a lock over all servers of the bench that c belongs to.
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
	b := newBench(t, addrs[0], addrs[1:]...)
	b.opts = []Option{WithRedLockNodeTimeout(time.Second)} // a node that is up answers in time, also on a busy machine
	return &redBench{b, servers}
}

// lock returns the RedLock of one process.
func (b *redBench) lock(opts ...Option) Locker { return newRedLock(b.client(opts...), b.name) }

// nodeLocks returns locks with the name of the bench, one on each server, each of a Client of its own.
func (b *redBench) nodeLocks(opts ...Option) (locks []Locker) {
	for _, rdb := range b.nodes {
		locks = append(locks, b.clientOn(testredis.Client(b, rdb.Options().Addr), opts...).NewLock(b.name))
	}
	return locks
}

// triesFor tries l for up to wait, and requires that the result is want.
func (b *bench) triesFor(ctx context.Context, l Locker, wait time.Duration, want bool) {
	b.Helper()
	ok, err := l.TryLock(ctx, wait, 0)
	require.NoError(b, err)
	require.Equal(b, want, ok)
}

// within requires that f takes no longer than most, on a machine that is not busy.
func (b *bench) within(most time.Duration, what string, f func()) {
	b.Helper()
	start := time.Now()
	f()
	assert.LessOrEqual(b, time.Since(start), testredis.Scale(start, most), what)
}

// quorumError requires that err is a QuorumError about five nodes.
func (b *redBench) quorumError(err error) *QuorumError {
	b.Helper()
	var quorum *QuorumError
	require.ErrorAs(b, err, &quorum)
	assert.Equal(b, 5, quorum.Asked)
	assert.Equal(b, 3, quorum.Needed)
	assert.Len(b, quorum.Answers, 5)
	return quorum
}

// back restarts all servers, to check that nothing is left on them.
func (b *redBench) back(restart bool, servers ...*testredis.Server) {
	for _, s := range servers {
		if restart {
			s.Restart()
		} else {
			s.Thaw()
		}
	}
}

// has returns on how many nodes the lock has a record.
func (b *redBench) has() int {
	n := 0
	for _, rdb := range b.nodes {
		if len(b.keysOn(rdb)) > 0 {
			n++
		}
	}
	return n
}

func TestRedLockNeedsAMajorityOfLiveNodes(t *testing.T) {
	t.Parallel()
	for name, kill := range map[string]func(*testredis.Server){
		"killed": (*testredis.Server).Kill,
		"frozen": (*testredis.Server).Freeze,
	} {
		t.Run(name, func(t *testing.T) {
			b := newRedBench(t)
			ctx := context.Background()
			const nodeTimeout = time.Second
			// An attempt that a paused server runs after its rollback expires before the bench gives up waiting for
			// that.
			l, other := b.lock(
				WithRedLockNodeTimeout(nodeTimeout),
				WithWatchdogTimeout(10*time.Second),
			), b.lock(
				WithRedLockNodeTimeout(nodeTimeout),
			)
			b.must(l.Lock(ctx))
			kill(b.servers[1])
			kill(b.servers[3])

			// With two of five down everything works, and takes at most one node timeout longer.
			for range 3 {
				b.must(l.Unlock(ctx))
				b.within(nodeTimeout+soon/5, "an acquire", func() { b.tries(l, true) })
				b.holds(l, 1)
				b.must(l.Lock(ctx))
				b.holds(l, 2)
				b.must(l.Unlock(ctx))
				b.tries(other, false) // others hold a majority
				b.isLocked(other, true)
			}
			b.must(l.Unlock(ctx))

			// With three down no owner acquires it, and each gets the reason.
			kill(b.servers[4])
			var ok bool
			var err error
			b.within(2*nodeTimeout+soon/5, "finding out", func() { ok, err = l.TryLock(ctx, 0, 0) })
			assert.False(t, ok)
			b.quorumError(err)
			assert.ErrorContains(t, err, b.name)
			assert.ErrorContains(t, err, "server 2")
			assert.NotErrorIs(t, err, context.DeadlineExceeded)
			deadline, cancel := context.WithTimeout(ctx, 2*nodeTimeout)
			defer cancel()
			err = l.Lock(deadline)
			b.mustBe(err, context.DeadlineExceeded)
			var quorum *QuorumError
			assert.ErrorAs(t, err, &quorum)
			assert.ErrorAs(t, second(l.IsLocked(ctx)), &quorum)

			b.back(name == "killed", b.servers[1], b.servers[3], b.servers[4])
			b.triesFor(ctx, l, 2*soon, true) // go-redis takes a while
			b.must(l.Unlock(ctx))
		})
	}
}

// The guard of the holder ends when only a minority is valid, and not before.
func TestRedLockIsLostWithTheMajorityAndNotBefore(t *testing.T) {
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
	require.NoError(t, guarded.Err(), "with two of five paused")
	b.within(lease+soon/5, "the end of the guard after the third server froze", func() {
		b.servers[2].Freeze()
		await(b.bench, "the guard ends", guarded.Done())
	})
	b.mustBe(context.Cause(guarded), ErrLockLost)
	b.mustBe(l.Unlock(ctx), ErrLockLost)
	b.back(false, b.servers[:3]...)
}

// A node that was restarted empty is acquired again, as long as the others are a majority, and counts from then on.
func TestRedLockNodeThatComesBackEmptyIsTakenAgain(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	l, other := b.lock(WithWatchdogTimeout(8*time.Second)), b.lock(WithRedLockNodeTimeout(soon))
	b.must(l.Lock(ctx))
	b.must(l.Lock(ctx))
	guarded, err := l.Guard(ctx)
	b.must(err)
	for i, s := range b.servers { // all of them, one after the other
		s.Kill()
		s.Restart()
		testredis.Await(b, fmt.Sprintf("node %d is taken again", i+1), 4*soon, func() bool {
			require.NoError(t, guarded.Err())
			return b.has() == 5
		})
		b.tries(other, false)
	}
	b.must(l.Unlock(ctx))
	b.holds(l, 1)
	b.must(l.Unlock(ctx))
}

// If a majority was restarted empty, nothing is acquired again: another owner may have it.
func TestRedLockMajorityThatComesBackEmptyIsALoss(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	var locks []Locker
	for _, rdb := range b.nodes {
		locks = append(
			locks,
			b.clientOn(
				testredis.Client(t, rdb.Options().Addr),
				WithWatchdogTimeout(time.Second),
				WithRedLockNodeTimeout(soon),
			).NewLock(
				b.name,
			),
		)
	}
	// Its own renewal is not due. Otherwise it would acquire the first node again between the moments at which two
	// nodes are found empty.
	l, other := b.client(WithWatchdogTimeout(time.Hour), WithRedLockNodeTimeout(soon)).NewRedLock(locks...), b.lock()
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
	testredis.Await(b, "the rest is given up although no Unlock comes", soon, func() bool { return b.has() == 0 })
	b.triesFor(ctx, other, soon, true)
	b.mustBe(l.Lock(ctx), ErrLockLost)
	b.mustBe(l.Unlock(ctx), ErrLockLost)
	b.holds(other, 1)
	b.must(other.Unlock(ctx))
}

// The loss is noticed when the nodes are lost, and not when the hold is due for renewal.
func TestRedLockLossIsNoticedWhenTheNodesAreLost(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	var locks []Locker
	for _, rdb := range b.nodes[1:4] {
		locks = append(
			locks,
			b.clientOn(
				testredis.Client(t, rdb.Options().Addr),
				WithWatchdogTimeout(3*time.Second),
				WithRedLockNodeTimeout(soon),
			).NewLock(
				b.name,
			),
		)
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

// A round that takes longer than the lease is not an acquire, whatever the nodes answered.
func TestRedLockRoundLongerThanTheLeaseIsNoAcquire(t *testing.T) {
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
	ok, err := l.TryLock(ctx, 0, 100*time.Millisecond)
	var quorum *QuorumError
	require.ErrorAs(t, err, &quorum, "no other owner has the lock")
	assert.False(t, ok, "a lease of 100ms and a round of 150ms")
	assert.EqualValues(t, 3, unlocked.Load(), "nodes that were released")
	slow.Store(0)
	ok, err = l.TryLock(ctx, 0, 100*time.Millisecond)
	require.NoError(t, err)
	assert.True(t, ok)
	b.must(l.Unlock(ctx))
	assert.ErrorIs(t, l.LockLease(ctx, time.Millisecond), ErrInvalid)
}

// A round that is won, although its nodes are lost before it counts, is no answer that other owners have the lock.
func TestRedLockRoundThatIsWonInVainIsNotBusy(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	ctx := context.Background()
	c := b.client()
	var locks []Locker
	for i := range 3 {
		locks = append(locks, stubLocker{
			Locker: c.NewLock(fmt.Sprint(b.name, i)),
			guard:  func(ctx context.Context) (context.Context, error) { return endedContext(ctx, ErrLockLost), nil },
		})
	}
	l := c.NewRedLock(locks...)
	ok, err := l.TryLock(ctx, 0, 0)
	assert.False(t, ok)
	var quorum *QuorumError
	require.ErrorAs(t, err, &quorum)
	assert.GreaterOrEqual(t, quorum.Granted, quorum.Needed)
	deadline, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	err = l.Lock(deadline)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.NotErrorIs(t, err, ErrBusy)
	b.isLocked(l, false)
}

// If too many nodes return permanent errors, the error is returned at once. A few such errors do no harm.
func TestRedLockRefusalsForGoodAreToldAtOnce(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	l := b.lock()
	for i, rdb := range b.nodes {
		b.must(rdb.Set(ctx, b.name, "data", 0).Err())
		ok, err := l.TryLock(ctx, 0, 0)
		if i < 2 {
			require.NoError(t, err, "%d bad nodes", i+1)
			require.True(t, ok, "%d bad nodes", i+1)
			b.must(l.Unlock(ctx))
			continue
		}
		assert.False(t, ok)
		quorum := b.quorumError(err)
		assert.Len(t, quorum.Unwrap(), i+1)
		assert.ErrorIs(t, quorum.Answers[0], ErrNotALock)
		assert.ErrorIs(t, err, ErrNotALock)
		assert.ErrorAs(t, l.Lock(ctx), &quorum, "Lock does not wait for them")
	}
	b.forget()
}

// Unlock returns nil when a majority has confirmed, and does not wait much longer for the other nodes.
func TestRedLockUnlockNeedsAMajority(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	l := b.lock()
	for range 2 {
		b.must(l.Lock(ctx))
		testredis.Await(b, "all are held", soon, func() bool { return b.has() == 5 })
		b.servers[0].Freeze()
		b.servers[1].Freeze()
		b.within(2*time.Second, "Unlock", func() { b.must(l.Unlock(ctx)) })
		b.back(false, b.servers[:2]...)
		testredis.Await(b, "the paused ones are released too", 2*soon, func() bool { return b.has() == 0 })
	}
	b.must(l.Lock(ctx))
	for _, s := range b.servers[:3] {
		s.Freeze()
	}
	assert.Equal(t, 2, b.quorumError(l.Unlock(ctx)).Granted)
	b.mustBe(l.Unlock(ctx), ErrNotHeld)
	b.back(false, b.servers[:3]...)
	testredis.Await(b, "the paused ones are released too", 4*soon, func() bool { return b.has() == 0 })
}

// A node that missed the outer acquire, or an inner one, is released with the last Unlock.
func TestRedLockNodeThatMissedAnAcquireIsReleasedWithTheLastUnlock(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	l, other := b.lock(), b.lock()
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
	b.triesFor(ctx, other, soon, true)
	b.must(other.Unlock(ctx))
}

// Nodes that cannot be reached decide nothing: a hold is not lost because a caller asks about it.
func TestRedLockNodesWithoutAnAnswerDecideNothing(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	b.servers[0].Kill()
	b.servers[1].Kill()
	l := b.lock()
	b.must(l.Lock(ctx))
	guarded, err := l.Guard(ctx)
	b.must(err)
	b.servers[2].Freeze()
	held, err := l.IsHeld(ctx)
	assert.False(t, held)
	b.quorumError(err)
	assert.NotErrorIs(t, err, context.DeadlineExceeded)
	locked, err := l.IsLocked(ctx)
	assert.False(t, locked)
	b.quorumError(err)
	b.back(false, b.servers[2])
	b.must(b.nodes[2].Ping(ctx).Err())
	b.holds(l, 1)
	assert.NoError(t, guarded.Err())
	b.must(l.Unlock(ctx))
	b.back(true, b.servers[:2]...)
}

// The owner also holds the nodes by themselves. If an explicit lease of the RedLock expires, these holds are not
// affected.
func TestRedLockLeaseTakesNothingFromOtherHolds(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	locks := b.nodeLocks()
	l := b.client().NewRedLock(locks...)
	inner := locks[:2]
	for _, m := range inner {
		b.must(m.Lock(ctx))
	}
	b.must(l.LockLease(ctx, time.Second))
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

// The nodes are MultiLocks, and one node loses one of its locks. The rest of that node is not held twice.
func TestRedLockOfMultiLocksKeepsAndWakes(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	var locks []Locker
	for _, rdb := range b.nodes[1:4] {
		c := b.clientOn(testredis.Client(t, rdb.Options().Addr), WithWatchdogTimeout(4*time.Second))
		locks = append(locks, c.NewMultiLock(c.NewLock(b.name+"-x"), c.NewLock(b.name+"-y")))
	}
	l := b.client(WithWatchdogTimeout(4*time.Second), WithRedLockNodeTimeout(soon)).NewRedLock(locks...)
	b.must(l.Lock(ctx))
	for range 2 {
		b.must(b.nodes[1].Del(ctx, b.name+"-y").Err())
		testredis.Await(b, "it is taken again", 2*soon, func() bool { return b.nodes[1].Exists(ctx, b.name+"-y").Val() == 1 })
	}
	b.holds(l, 1)
	b.must(l.Unlock(ctx))
	testredis.Await(b, "all is released", soon, func() bool { return b.has() == 0 })

	// The waiters are notified, too.
	other := b.client(WithPollInterval(time.Hour)).NewRedLock(slices.Clone(locks)...)
	b.must(l.Lock(ctx))
	got := make(chan error)
	owner := ContextWithOwner(ctx)
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
func TestRedLockOfReadersIsShared(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	var readers, writers []Locker
	for _, rdb := range b.nodes[:3] {
		c := b.clientOn(testredis.Client(t, rdb.Options().Addr))
		readers, writers = append(readers, newReadLock(c, b.name)), append(writers, newWriteLock(c, b.name))
	}
	home := b.client()
	read, write := home.NewRedLock(readers...), home.NewRedLock(writers...)
	readers[0] = nil // it does not belong to the owner any more
	b.must(read.Lock(ctx))
	owner := ContextWithOwner(ctx)
	b.triesFor(owner, read, soon, true)
	b.triesFor(ContextWithOwner(ctx), write, 0, false)
	b.must(read.Unlock(ctx))
	b.must(read.Unlock(owner))
}

// A foreign Locker that does not answer costs a node timeout.
func TestRedLockForeignLockerThatHangsCostsANodeTimeout(t *testing.T) {
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
	l := home.NewRedLock(append(nodes(), hangs())...)
	patient := b.client(WithRedLockNodeTimeout(2 * time.Second)) // on a machine that is busy with other work
	rival := patient.NewRedLock(append(nodes(), hangs())...)
	b.must(l.Lock(ctx))
	b.within(8*time.Second, "an attempt", func() { b.tries(rival, false) })
	b.must(l.Unlock(ctx))
}

// Waiters send few requests, even if the holder has only a majority.
func TestRedLockWaitersDoNotPoll(t *testing.T) {
	b := newRedBench(t)
	ctx := context.Background()
	l := b.lock(WithWatchdogTimeout(time.Hour), WithRedLockNodeTimeout(soon))
	b.must(l.Lock(ctx))
	testredis.Await(b, "all are held", soon, func() bool { return b.has() == 5 })
	b.must(b.nodes[4].Del(ctx, b.name).Err())
	rdb := testredis.Client(t, b.addr)
	sent := new(counter)
	rdb.AddHook(sent)
	waiter := newRedLock(b.clientOn(rdb), b.name)
	owner := ContextWithOwner(ctx)
	got := make(chan error)
	go func() { got <- waiter.Lock(owner) }()
	time.Sleep(time.Second)
	before := sent.n.Load()
	time.Sleep(3 * time.Second)
	assert.LessOrEqual(t, sent.n.Load()-before, int64(30), "requests to one node in 3s")
	b.must(l.Unlock(ctx))
	b.must(await(b.bench, "the waiter is woken", got))
	b.must(waiter.Unlock(owner))
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

// A caller that checks its hold finds that too few nodes are valid, even without a signal. The watchdog finds this when
// the hold is due for renewal.
func TestRedLockLossIsSeenWithoutBeingTold(t *testing.T) {
	for name, look := range map[string]func(b *bench, l *RedLock, guarded context.Context){
		"guard": func(b *bench, _ *RedLock, guarded context.Context) {
			assert.Error(b, guarded.Err(), "the guard goes on")
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
			testredis.Await(b, "all nodes are released", soon, func() bool { return len(b.keys()) == 0 })
		})
	}
}

// Two processes compete for a lock over five servers, of which one or two are down from time to time, and count under
// it on a sixth one: they never hold it at the same time, and no count is lost.
func TestRedLockTwoProcessesExcludeEachOther(t *testing.T) {
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
	fighting, stop := context.WithTimeout(ctx, full(4*time.Second, 30*time.Second))
	defer stop()
	type outcome struct {
		out []byte
		err error
	}
	outcomes := make(chan outcome, 2)
	for range 2 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestRedLockTwoProcessesExcludeEachOther$", "-test.v")
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
		assert.NoError(t, o.err, "%s", o.out)
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
	assert.Equal(t, sections, counted)
	assert.GreaterOrEqual(t, counted, 20)
	assert.Len(t, rdb.HGetAll(ctx, "sections").Val(), 2, "both processes had sections")
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
		require.NoError(t, err)
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
		var quorum *QuorumError
		if !errors.As(err, &quorum) && !errors.Is(err, engine.ErrNoAnswer) {
			require.NoError(t, err)
		}
		if !ok {
			continue
		}
		inside, err := counter.Incr(ctx, "inside").Result()
		require.NoError(t, err)
		require.EqualValues(t, 1, inside)
		n, err := counter.Get(ctx, "counter").Int() // a read and a write that another holder would break
		if err != redis.Nil {
			require.NoError(t, err)
		}
		time.Sleep(2 * time.Millisecond)
		pipe := counter.Pipeline()
		pipe.Set(ctx, "counter", n+1, 0)
		pipe.HIncrBy(ctx, "sections", me, 1)
		pipe.Decr(ctx, "inside")
		_, err = pipe.Exec(ctx)
		require.NoError(t, err)
		if err := l.Unlock(ctx); !errors.As(err, &quorum) {
			require.NoError(t, err)
		}
	}
}

// Clients that dial by themselves all have the default address. Their servers are told apart all the same.
func TestRedLockOfClientsThatDialByThemselves(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Mini(t).Addr(), testredis.Mini(t).Addr(), testredis.Mini(t).Addr())
	b.opts = []Option{WithRedLockNodeTimeout(soon)}
	ctx := context.Background()
	locks := func(servers ...int) (locks []Locker) {
		for _, i := range servers {
			addr := b.nodes[i].Options().Addr
			rdb := redis.NewClient(&redis.Options{Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", addr)
			}})
			t.Cleanup(func() { b.must(rdb.Close()) })
			locks = append(locks, b.clientOn(rdb).NewLock(b.name))
		}
		return locks
	}
	apart := b.client().NewRedLock(locks(0, 1, 2)...)
	b.tries(apart, true)
	testredis.Await(b, "nodes", soon, func() bool { return (&redBench{b, nil}).has() == 3 })
	b.must(apart.Unlock(ctx))
	b.mustBe(b.client().NewRedLock(locks(0, 1, 1)...).Lock(ctx), ErrInvalid)

	several := b.client().NewMultiLock(locks(0, 1)...)
	b.tries(several, true)
	b.must(several.Unlock(ctx))
	b.mustBe(b.client().NewMultiLock(locks(0, 0)...).Lock(ctx), ErrInvalid)
}

func TestRedLockRefusesWrongSetsOfLocks(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	b.opts = []Option{WithRedLockNodeTimeout(soon)} // all nodes are needed
	ctx := context.Background()
	c, other := b.client(), b.client()
	onServer := func() *Client { return b.clientOn(testredis.Client(t, testredis.Mini(t).Addr())) }
	c2, c3, c4 := onServer(), onServer(), onServer()
	n := b.name
	for name, l := range map[string]*RedLock{
		"none":            c.NewRedLock(),
		"two":             c.NewRedLock(c.NewLock(n), c2.NewLock(n)),
		"nil":             c.NewRedLock(c.NewLock(n), c2.NewLock(n), nil),
		"of one client":   c.NewRedLock(c.NewLock(n), c2.NewLock(n), c.NewLock(n+"2")),
		"on one server":   c.NewRedLock(c.NewLock(n), c2.NewLock(n), other.NewLock(n+"2")),
		"a bad one":       c.NewRedLock(c.NewLock(n), c2.NewLock(n), c3.NewLock("")),
		"no client":       (*Client)(nil).NewRedLock(c.NewLock(n), c2.NewLock(n), c3.NewLock(n)),
		"a bad MultiLock": c.NewRedLock(c.NewLock(n), c2.NewLock(n), c3.NewMultiLock()),
		"made by hand":    {},
		"on three databases": c.NewRedLock(c.NewLock(n), c2.NewLock(n),
			b.clientOn(testredis.Client(t, b.addr, func(o *redis.Options) { o.DB = 1 })).NewLock(n)),
		"on one, in many":  c.NewRedLock(c.NewLock(n), c2.NewLock(n), c3.NewMultiLock(c3.NewLock(n), c2.NewLock(n+"2"))),
		"a RedLock of two": c.NewRedLock(c.NewLock(n), c2.NewLock(n), c3.NewRedLock(c3.NewLock(n), c4.NewLock(n))),
	} {
		for method, err := range map[string]error{
			"Lock": l.Lock(ctx), "Unlock": l.Unlock(ctx), "IsHeld": second(l.IsHeld(ctx)), "Force": second(l.ForceUnlock(ctx)),
		} {
			assert.ErrorIs(t, err, ErrInvalid, "%s: %s", name, method)
		}
	}
	// Four locks work, and need three; other kinds do, too.
	l := c.NewRedLock(
		c.NewFairLock(n),
		newWriteLock(c2, n),
		c3.NewMultiLock(c3.NewLock(n), c3.NewLock(n+"2")),
		c4.NewLock(n, Fenced()),
	)
	b.must(l.Lock(ctx))
	b.must(l.Lock(ctx))
	b.holds(l, 2)
	b.must(l.Unlock(ctx))
	guarded, err := l.Guard(ctx)
	b.must(err)
	for i, m := range []Locker{c.NewFairLock(n), newWriteLock(c2, n)} {
		freed, err := m.ForceUnlock(ctx)
		require.NoError(t, err)
		assert.True(t, freed)
		if i == 0 {
			assert.NoError(t, guarded.Err(), "three of four are left")
		}
	}
	await(b, "the guard ends", guarded.Done())
	b.mustBe(l.Unlock(ctx), ErrLockLost)
}
