package locks

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// newRedLock returns a lock over all servers of the bench that c belongs to.
func newRedLock(c *Client, name string) Locker {
	locks := []Locker{c.NewLock(name)}
	if all, ok := locktest.Siblings.Load(c); ok {
		for _, sibling := range all.([]*Client) {
			locks = append(locks, sibling.NewLock(name))
		}
	}
	return c.NewRedLock(locks...)
}

func TestRedLock(t *testing.T) {
	suite{newLock: newRedLock, rival: newRedLock, nodes: 3, least: 20 * time.Millisecond}.run(t)
}

func newRedBench(t *testing.T) *locktest.RedBench {
	t.Parallel()
	var servers []*testredis.Server
	var addrs []string
	for range 5 {
		s := testredis.Start(t)
		servers = append(servers, s)
		addrs = append(addrs, s.Addr())
	}
	b := locktest.NewBench(t, addrs[0], addrs[1:]...)
	b.Opts = []Option{WithRedLockNodeTimeout(time.Second)} // a node that is up answers in time, also on a busy machine
	return &locktest.RedBench{Bench: b, Servers: servers}
}

// lock returns the RedLock of one process.
func lock(b *locktest.RedBench, opts ...Option) Locker {
	return newRedLock(b.Client(opts...), b.LockName)
}

// triesFor tries l for up to wait, and requires that the result is want.
func triesFor(b *locktest.Bench, ctx context.Context, l Locker, wait time.Duration, want bool) {
	b.Helper()
	ok, err := l.TryLock(ctx, wait, 0)
	require.NoError(b, err)
	require.Equal(b, want, ok)
}

// quorumError requires that err is a QuorumError about five nodes.
func quorumError(b *locktest.RedBench, err error) *QuorumError {
	b.Helper()
	var quorum *QuorumError
	require.ErrorAs(b, err, &quorum)
	assert.Equal(b, 5, quorum.Asked)
	assert.Equal(b, 3, quorum.Needed)
	assert.Len(b, quorum.Answers, 5)
	return quorum
}

// back restarts all servers, to check that nothing is left on them.
func back(b *locktest.RedBench, restart bool, servers ...*testredis.Server) {
	for _, s := range servers {
		if restart {
			s.Restart()
		} else {
			s.Thaw()
		}
	}
}

func TestRedLockNeedsAMajorityOfLiveNodes(t *testing.T) {
	t.Parallel()
	for name, kill := range map[string]func(*testredis.Server){
		"killed": (*testredis.Server).Kill,
		"frozen": (*testredis.Server).Freeze,
	} {
		t.Run(name, func(t *testing.T) {
			b := newRedBench(t)
			const nodeTimeout = time.Second
			// An attempt that a paused server runs after its rollback expires before the bench gives up waiting for
			// that.
			l, other := lock(b,
				WithRedLockNodeTimeout(nodeTimeout),
				WithWatchdogTimeout(10*time.Second),
			), lock(b,
				WithRedLockNodeTimeout(nodeTimeout),
			)
			b.Must(l.Lock(ctx))
			kill(b.Servers[1])
			kill(b.Servers[3])

			// With two of five down everything works, and takes at most one node timeout longer.
			for range 3 {
				b.Must(l.Unlock(ctx))
				b.Within(nodeTimeout+locktest.Soon/5, "an acquire", func() { b.Tries(l, true) })
				b.Holds(l, 1)
				b.Must(l.Lock(ctx))
				b.Holds(l, 2)
				b.Must(l.Unlock(ctx))
				b.Tries(other, false) // others hold a majority
				b.IsLocked(other, true)
			}
			b.Must(l.Unlock(ctx))

			// With three down no owner acquires it, and each gets the reason.
			kill(b.Servers[4])
			var ok bool
			var err error
			b.Within(2*nodeTimeout+locktest.Soon/5, "finding out", func() { ok, err = l.TryLock(ctx, 0, 0) })
			assert.False(t, ok)
			quorumError(b, err)
			assert.ErrorContains(t, err, b.LockName)
			assert.ErrorContains(t, err, "server 2")
			assert.NotErrorIs(t, err, context.DeadlineExceeded)
			deadline, cancel := context.WithTimeout(ctx, 2*nodeTimeout)
			defer cancel()
			err = l.Lock(deadline)
			b.MustBe(err, context.DeadlineExceeded)
			var quorum *QuorumError
			assert.ErrorAs(t, err, &quorum)
			assert.ErrorAs(t, locktest.Second(l.IsLocked(ctx)), &quorum)

			back(b, name == "killed", b.Servers[1], b.Servers[3], b.Servers[4])
			triesFor(b.Bench, ctx, l, 2*locktest.Soon, true) // go-redis takes a while
			b.Must(l.Unlock(ctx))
		})
	}
}

// The guard of the holder ends when only a minority is valid, and not before.
func TestRedLockIsLostWithTheMajorityAndNotBefore(t *testing.T) {
	b := newRedBench(t)
	const lease = 3 * time.Second
	l := lock(b, WithWatchdogTimeout(lease))
	b.Must(l.Lock(ctx))
	guarded, err := l.Guard(ctx)
	b.Must(err)
	b.Servers[0].Freeze()
	b.Servers[1].Freeze()
	time.Sleep(lease + lease/6)
	require.NoError(t, guarded.Err(), "with two of five paused")
	b.Within(lease+locktest.Soon/5, "the end of the guard after the third server froze", func() {
		b.Servers[2].Freeze()
		locktest.Await(b.Bench, "the guard ends", guarded.Done())
	})
	b.MustBe(context.Cause(guarded), ErrLockLost)
	b.MustBe(l.Unlock(ctx), ErrLockLost)
	back(b, false, b.Servers[:3]...)
}

// A node that was restarted empty is acquired again, as long as the others are a majority, and counts from then on.
func TestRedLockNodeThatComesBackEmptyIsTakenAgain(t *testing.T) {
	b := newRedBench(t)
	l, other := lock(b, WithWatchdogTimeout(8*time.Second)), lock(b, WithRedLockNodeTimeout(locktest.Soon))
	b.Must(l.Lock(ctx))
	b.Must(l.Lock(ctx))
	guarded, err := l.Guard(ctx)
	b.Must(err)
	for i, s := range b.Servers { // all of them, one after the other
		s.Kill()
		s.Restart()
		testredis.Await(b, fmt.Sprintf("node %d is taken again", i+1), 4*locktest.Soon, func() bool {
			require.NoError(t, guarded.Err())
			return b.Has() == 5
		})
		b.Tries(other, false)
	}
	b.Must(l.Unlock(ctx))
	b.Holds(l, 1)
	b.Must(l.Unlock(ctx))
}

// If a majority was restarted empty, nothing is acquired again: another owner may have it.
func TestRedLockMajorityThatComesBackEmptyIsALoss(t *testing.T) {
	b := newRedBench(t)
	var locks []Locker
	for _, rdb := range b.Nodes {
		locks = append(
			locks,
			b.ClientOn(
				testredis.Client(t, rdb.Options().Addr),
				WithWatchdogTimeout(time.Second),
				WithRedLockNodeTimeout(locktest.Soon),
			).NewLock(
				b.LockName,
			),
		)
	}
	// Its own renewal is not due. Otherwise it would acquire the first node again between the moments at which two
	// nodes are found empty.
	l, other := b.Client(WithWatchdogTimeout(time.Hour), WithRedLockNodeTimeout(locktest.Soon)).NewRedLock(locks...), lock(b)
	b.Must(l.Lock(ctx))
	testredis.Await(b, "all are held", locktest.Soon, func() bool { return b.Has() == 5 })
	guarded, err := l.Guard(ctx)
	b.Must(err)
	for _, s := range b.Servers[:3] {
		s.Kill()
	}
	for _, s := range b.Servers[:3] {
		s.Restart()
	}
	locktest.Await(b.Bench, "the guard ends", guarded.Done())
	b.MustBe(context.Cause(guarded), ErrLockLost)
	testredis.Await(b, "the rest is given up although no Unlock comes", locktest.Soon, func() bool { return b.Has() == 0 })
	triesFor(b.Bench, ctx, other, locktest.Soon, true)
	b.MustBe(l.Lock(ctx), ErrLockLost)
	b.MustBe(l.Unlock(ctx), ErrLockLost)
	b.Holds(other, 1)
	b.Must(other.Unlock(ctx))
}

// A round that takes longer than the lease is not an acquire, whatever the nodes answered.
func TestRedLockRoundLongerThanTheLeaseIsNoAcquire(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	c := b.Client()
	var unlocked, slow atomic.Int64
	var locks []Locker
	for i := range 3 {
		l := c.NewLock(fmt.Sprint(b.LockName, i))
		locks = append(locks, locktest.StubLocker{
			Locker: l,
			OnTryLock: func(ctx context.Context, wait, lease time.Duration) (bool, error) {
				if slow.Load() > 0 {
					time.Sleep(150 * time.Millisecond)
				}
				return l.TryLock(context.WithoutCancel(ctx), wait, time.Minute)
			},
			OnUnlock: func(context.Context) error { unlocked.Add(1); return nil },
		})
	}
	l := c.NewRedLock(locks...)
	slow.Store(1)
	ok, err := l.TryLock(ctx, 0, 100*time.Millisecond)
	var quorum *QuorumError
	require.ErrorAs(t, err, &quorum, "no other owner has the lock")
	assert.False(t, ok, "a lease of 100ms and a round of 150ms")
	testredis.Await(b, "all nodes are released", locktest.Soon, func() bool { return unlocked.Load() == 3 })
	slow.Store(0)
	ok, err = l.TryLock(ctx, 0, 100*time.Millisecond)
	require.NoError(t, err)
	assert.True(t, ok)
	b.Must(l.Unlock(ctx))
	assert.ErrorIs(t, l.LockLease(ctx, time.Millisecond), ErrInvalid)
}

// A round that is won, although its nodes are lost before it counts, is no answer that other owners have the lock.
func TestRedLockRoundThatIsWonInVainIsNotBusy(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	c := b.Client()
	lost, end := context.WithCancelCause(ctx)
	end(ErrLockLost)
	var locks []Locker
	for i := range 3 {
		locks = append(locks, locktest.StubLocker{
			Locker:  c.NewLock(fmt.Sprint(b.LockName, i)),
			OnGuard: func(context.Context) (context.Context, error) { return lost, nil },
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
	b.IsLocked(l, false)
}

// If too many nodes return permanent errors, the error is returned at once. A few such errors do no harm.
func TestRedLockRefusalsForGoodAreToldAtOnce(t *testing.T) {
	b := newRedBench(t)
	l := lock(b)
	for i, rdb := range b.Nodes {
		b.Must(rdb.Set(ctx, b.LockName, "data", 0).Err())
		ok, err := l.TryLock(ctx, 0, 0)
		if i < 2 {
			require.NoError(t, err, "%d bad nodes", i+1)
			require.True(t, ok, "%d bad nodes", i+1)
			b.Must(l.Unlock(ctx))
			continue
		}
		assert.False(t, ok)
		quorum := quorumError(b, err)
		assert.Len(t, quorum.Unwrap(), i+1)
		assert.ErrorIs(t, quorum.Answers[0], ErrNotALock)
		assert.ErrorIs(t, err, ErrNotALock)
		assert.ErrorAs(t, l.Lock(ctx), &quorum, "Lock does not wait for them")
	}
	b.Forget()
}

// Unlock returns nil when a majority has confirmed, and does not wait much longer for the other nodes.
func TestRedLockUnlockNeedsAMajority(t *testing.T) {
	b := newRedBench(t)
	l := lock(b)
	takes := func() {
		b.Must(l.Lock(ctx))
		testredis.Await(b, "all are held, and it knows", locktest.Soon, func() bool {
			return b.Has() == 5 && locktest.EngineOf(locktest.ClientOf(l)).Probe().Stats().AtWork == 0
		})
	}
	for range 2 {
		takes()
		b.Servers[0].Freeze()
		b.Servers[1].Freeze()
		b.Within(2*time.Second, "Unlock", func() { b.Must(l.Unlock(ctx)) })
		back(b, false, b.Servers[:2]...)
		testredis.Await(b, "the paused ones are released too", 2*locktest.Soon, func() bool { return b.Has() == 0 })
	}
	takes()
	for _, s := range b.Servers[:3] {
		s.Freeze()
	}
	assert.Equal(t, 2, quorumError(b, l.Unlock(ctx)).Granted)
	b.MustBe(l.Unlock(ctx), ErrNotHeld)
	back(b, false, b.Servers[:3]...)
	testredis.Await(b, "the paused ones are released too", 4*locktest.Soon, func() bool { return b.Has() == 0 })
}

// A node that missed the outer acquire, or an inner one, is released with the last Unlock.
func TestRedLockNodeThatMissedAnAcquireIsReleasedWithTheLastUnlock(t *testing.T) {
	b := newRedBench(t)
	l, other := lock(b), lock(b)
	same := newRedLock(locktest.ClientOf(l.(*RedLock)), b.LockName)
	b.Servers[0].Freeze()
	b.Must(l.Lock(ctx))
	back(b, false, b.Servers[0])
	b.Must(b.Nodes[0].Ping(ctx).Err())
	b.Servers[1].Freeze()
	b.Must(same.Lock(ctx))
	back(b, false, b.Servers[1])
	b.Must(b.Nodes[1].Ping(ctx).Err())
	b.Holds(l, 2)
	b.Must(l.Unlock(ctx))
	b.Holds(same, 1)
	b.Tries(other, false)
	b.Must(same.Unlock(ctx))
	b.Holds(l, 0)
	b.MustBe(l.Unlock(ctx), ErrNotHeld)
	triesFor(b.Bench, ctx, other, locktest.Soon, true)
	b.Must(other.Unlock(ctx))
}

// Nodes that cannot be reached decide nothing: a hold is not lost because a caller asks about it.
func TestRedLockNodesWithoutAnAnswerDecideNothing(t *testing.T) {
	b := newRedBench(t)
	b.Servers[0].Kill()
	b.Servers[1].Kill()
	l := lock(b)
	b.Must(l.Lock(ctx))
	guarded, err := l.Guard(ctx)
	b.Must(err)
	b.Servers[2].Freeze()
	held, err := l.IsHeld(ctx)
	assert.False(t, held)
	quorumError(b, err)
	assert.NotErrorIs(t, err, context.DeadlineExceeded)
	locked, err := l.IsLocked(ctx)
	assert.False(t, locked)
	quorumError(b, err)
	back(b, false, b.Servers[2])
	b.Must(b.Nodes[2].Ping(ctx).Err())
	b.Holds(l, 1)
	assert.NoError(t, guarded.Err())
	b.Must(l.Unlock(ctx))
	back(b, true, b.Servers[:2]...)
}

// The nodes are MultiLocks, and one node loses one of its locks. The rest of that node is not held twice.
func TestRedLockOfMultiLocksKeepsAndWakes(t *testing.T) {
	b := newRedBench(t)
	var locks []Locker
	for _, rdb := range b.Nodes[1:4] {
		c := b.ClientOn(testredis.Client(t, rdb.Options().Addr), WithWatchdogTimeout(4*time.Second))
		locks = append(locks, c.NewMultiLock(c.NewLock(b.LockName+"-x"), c.NewLock(b.LockName+"-y")))
	}
	l := b.Client(WithWatchdogTimeout(4*time.Second), WithRedLockNodeTimeout(locktest.Soon)).NewRedLock(locks...)
	b.Must(l.Lock(ctx))
	for range 2 {
		b.Must(b.Nodes[1].Del(ctx, b.LockName+"-y").Err())
		testredis.Await(b, "it is taken again", 2*locktest.Soon, func() bool { return b.Nodes[1].Exists(ctx, b.LockName+"-y").Val() == 1 })
	}
	b.Holds(l, 1)
	b.Must(l.Unlock(ctx))
	testredis.Await(b, "all is released", locktest.Soon, func() bool { return b.Has() == 0 })

	// The waiters are notified, too.
	other := b.Client(WithPollInterval(time.Hour)).NewRedLock(slices.Clone(locks)...)
	b.Must(l.Lock(ctx))
	got := make(chan error)
	owner := ContextWithOwner(ctx)
	go func() { got <- other.Lock(owner) }()
	for _, rdb := range b.Nodes[1:4] {
		testredis.Await(b, "the other one waits", locktest.Soon, func() bool {
			return len(rdb.PubSubChannels(ctx, "*"+b.LockName+"*").Val()) > 0
		})
	}
	b.Must(l.Unlock(ctx))
	b.Must(locktest.Await(b.Bench, "the waiter is woken", got))
	b.Must(other.Unlock(owner))
}

// Readers share it, in one process too.
func TestRedLockOfReadersIsShared(t *testing.T) {
	b := newRedBench(t)
	var readers, writers []Locker
	for _, rdb := range b.Nodes[:3] {
		c := b.ClientOn(testredis.Client(t, rdb.Options().Addr))
		readers, writers = append(readers, locktest.NewReadLock(c, b.LockName)), append(writers, locktest.NewWriteLock(c, b.LockName))
	}
	home := b.Client()
	read, write := home.NewRedLock(readers...), home.NewRedLock(writers...)
	readers[0] = nil // it does not belong to the owner any more
	b.Must(read.Lock(ctx))
	owner := ContextWithOwner(ctx)
	triesFor(b.Bench, owner, read, locktest.Soon, true)
	triesFor(b.Bench, ContextWithOwner(ctx), write, 0, false)
	b.Must(read.Unlock(ctx))
	b.Must(read.Unlock(owner))
}

// A foreign Locker that does not answer costs a node timeout.
func TestRedLockForeignLockerThatHangsCostsANodeTimeout(t *testing.T) {
	b := newRedBench(t)
	release := make(chan struct{})
	hangs := func() Locker {
		return locktest.StubLocker{
			Locker:    b.Client().NewLock(b.LockName + "-hangs"),
			OnTryLock: func(context.Context, time.Duration, time.Duration) (bool, error) { <-release; return false, nil },
		}
	}
	nodes := func() (locks []Locker) {
		for _, rdb := range b.Nodes[:2] {
			locks = append(locks, b.ClientOn(testredis.Client(t, rdb.Options().Addr)).NewLock(b.LockName))
		}
		return locks
	}
	home := b.Client()
	defer close(release) // before the clients are closed
	l := home.NewRedLock(append(nodes(), hangs())...)
	patient := b.Client(WithRedLockNodeTimeout(2 * time.Second)) // on a machine that is busy with other work
	rival := patient.NewRedLock(append(nodes(), hangs())...)
	b.Must(l.Lock(ctx))
	b.Within(8*time.Second, "an attempt", func() { b.Tries(rival, false) })
	b.Must(l.Unlock(ctx))
}

// A RedLock is an owner of its own at its nodes. Whoever looks at a node finds the owner of the RedLock there.
func TestRedLockNodesNameItsOwner(t *testing.T) {
	b := locktest.NewSmallRedBench(t)
	ctx := ContextWithOwner(ctx)
	nodes := b.NodeLocks()
	l, node := b.Client().NewRedLock(nodes...), nodes[0]
	b.Must(l.Lock(ctx))
	testredis.Await(b, "all are held", locktest.Soon, func() bool { return b.Has() == 3 })
	owner := Owner(engine.OwnerOf(ctx)).String()
	i, err := locktest.ClientOf(node).Inspect(ctx, node.Name())
	b.Must(err)
	require.Len(t, i.Holders, 1)
	assert.Equal(t, owner, i.Holders[0].Owner)
	err = node.Unlock(ctx)
	b.MustBe(err, ErrNotHeld)
	assert.ErrorContains(t, err, "called by "+owner+", which has acquired it only through a RedLock")
	short, cancel := context.WithTimeout(ContextWithOwner(ctx), 100*time.Millisecond)
	defer cancel()
	err = node.Lock(short)
	b.MustBe(err, ErrBusy)
	assert.ErrorContains(t, err, owner+" of this process")
	b.Must(l.Unlock(ctx))
}

// Waiters send few requests, even if the holder has only a majority.
func TestRedLockWaitersDoNotPoll(t *testing.T) {
	b := newRedBench(t)
	l := lock(b, WithWatchdogTimeout(time.Hour), WithRedLockNodeTimeout(locktest.Soon))
	b.Must(l.Lock(ctx))
	testredis.Await(b, "all are held", locktest.Soon, func() bool { return b.Has() == 5 })
	b.Must(b.Nodes[4].Del(ctx, b.LockName).Err())
	rdb := testredis.Client(t, b.Addr)
	sent := new(locktest.Counter)
	rdb.AddHook(sent)
	waiter := newRedLock(b.ClientOn(rdb), b.LockName)
	owner := ContextWithOwner(ctx)
	got := make(chan error)
	go func() { got <- waiter.Lock(owner) }()
	time.Sleep(time.Second)
	before := sent.N.Load()
	time.Sleep(3 * time.Second)
	assert.LessOrEqual(t, sent.N.Load()-before, int64(30), "requests to one node in 3s")
	b.Must(l.Unlock(ctx))
	b.Must(locktest.Await(b.Bench, "the waiter is woken", got))
	b.Must(waiter.Unlock(owner))
}

func TestRedLockRefusesWrongSetsOfLocks(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	b.Opts = []Option{WithRedLockNodeTimeout(locktest.Soon)} // all nodes are needed
	c, other := b.Client(), b.Client()
	onServer := func() *Client { return b.ClientOn(testredis.Client(t, testredis.Mini(t).Addr())) }
	c2, c3, c4 := onServer(), onServer(), onServer()
	n := b.LockName
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
			b.ClientOn(testredis.Client(t, b.Addr, func(o *redis.Options) { o.DB = 1 })).NewLock(n)),
		"on one, in many":  c.NewRedLock(c.NewLock(n), c2.NewLock(n), c3.NewMultiLock(c3.NewLock(n), c2.NewLock(n+"2"))),
		"a RedLock of two": c.NewRedLock(c.NewLock(n), c2.NewLock(n), c3.NewRedLock(c3.NewLock(n), c4.NewLock(n))),
	} {
		for method, err := range map[string]error{
			"Lock": l.Lock(ctx), "Unlock": l.Unlock(ctx), "IsHeld": locktest.Second(l.IsHeld(ctx)), "Force": locktest.Second(l.ForceUnlock(ctx)),
		} {
			assert.ErrorIs(t, err, ErrInvalid, "%s: %s", name, method)
		}
	}
	// Four locks work, and need three; other kinds do, too.
	l := c.NewRedLock(
		c.NewFairLock(n),
		locktest.NewWriteLock(c2, n),
		c3.NewMultiLock(c3.NewLock(n), c3.NewLock(n+"2")),
		c4.NewLock(n, Fenced()),
	)
	b.Must(l.Lock(ctx))
	b.Must(l.Lock(ctx))
	b.Holds(l, 2)
	b.Must(l.Unlock(ctx))
	guarded, err := l.Guard(ctx)
	b.Must(err)
	for i, m := range []Locker{c.NewFairLock(n), locktest.NewWriteLock(c2, n)} {
		freed, err := m.ForceUnlock(ctx)
		require.NoError(t, err)
		assert.True(t, freed)
		if i == 0 {
			assert.NoError(t, guarded.Err(), "three of four are left")
		}
	}
	locktest.Await(b, "the guard ends", guarded.Done())
	b.MustBe(l.Unlock(ctx), ErrLockLost)
}
