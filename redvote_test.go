package relock

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
)

// newSmallRedBench returns a bench with three servers.
func newSmallRedBench(t *testing.T) *redBench {
	t.Parallel()
	b := newBench(t, testredis.Mini(t).Addr(), testredis.Mini(t).Addr(), testredis.Mini(t).Addr())
	b.opts = []Option{WithRedLockNodeTimeout(soon)}
	return &redBench{b, nil}
}

// forced releases a node by force, and waits until its holder knows.
func (b *redBench) forced(ctx context.Context, node Locker) {
	b.Helper()
	guarded, err := node.Guard(ctx)
	b.must(err)
	freed, err := node.ForceUnlock(ctx)
	b.must(err)
	require.True(b, freed)
	await(b.bench, "the holder of the node knows of the loss", guarded.Done())
}

// vote returns a vote of owner for l that holds all nodes, and a channel for its calls of check.
func (b *redBench) vote(l *redLock, owner engine.Owner) (v *redVote, noticed <-chan struct{}) {
	b.Helper()
	calls := make(chan struct{}, 100)
	v = l.NewVote(owner, func(engine.Vote) { calls <- struct{}{} }).(*redVote)
	require.Equal(b, contract.Held, v.asksFor(b, 1))
	b.awaitNodes(v, 3)
	return v, calls
}

// asksFor makes one attempt to have the hold count.
func (v *redVote) asksFor(b *redBench, holdCount int) contract.Status {
	b.Helper()
	res, _, err := v.Ask(&send.Wait{Ctx: context.Background()}, contract.Attempt{
		HoldCount: holdCount, Lease: time.Minute, Renewed: true,
	})
	b.must(err)
	return res.Status
}

// awaitNodes waits until v holds at this number of nodes.
func (b *redBench) awaitNodes(v *redVote, want int) {
	b.Helper()
	testredis.Await(b, "nodes", soon, func() bool {
		n := 0
		for i := range v.nodes {
			if v.at(i).alive() {
				n++
			}
		}
		return n == want
	})
}

// A RedLock loses a node. What its owner has acquired there since belongs to the owner, or to another RedLock.
func TestRedLockThatHasLostANodeReleasesNoLaterHoldThere(t *testing.T) {
	for name, renews := range map[string]bool{"released": false, "renewed and released": true} {
		t.Run(name, func(t *testing.T) {
			b := newSmallRedBench(t)
			owner := engine.NewOwner()
			ctx := owner.In(context.Background())
			locks := b.nodeLocks(WithWatchdogTimeout(time.Hour))
			c := b.client()
			l := c.NewRedLock(locks...).lock.(*redLock)
			other := c.NewRedLock(locks[0], stubLocker{Locker: locks[1]}, stubLocker{Locker: locks[2]}).lock.(*redLock)
			v, _ := b.vote(l, owner)
			b.forced(ctx, locks[0])
			b.must(locks[0].Lock(ctx)) // the owner has lost no hold of its own
			guarded, err := locks[0].Guard(ctx)
			b.must(err)
			if renews {
				require.True(t, v.Renew())
				b.awaitNodes(v, 3)
			}
			v.Lower(ctx, 0)(soon)
			l.awaitAnswers(b, owner)
			require.NoError(t, guarded.Err(), "the hold of the owner")
			b.must(locks[0].Unlock(ctx))

			v, _ = b.vote(l, owner)
			w, _ := b.vote(other, owner)
			b.forced(ctx, locks[0])
			require.True(t, w.Renew())
			b.awaitNodes(w, 3)
			if renews {
				require.True(t, v.Renew())
				b.awaitNodes(v, 3)
			}
			v.Lower(ctx, 0)(soon)
			l.awaitAnswers(b, owner)
			require.NoError(t, w.Check())
			require.True(t, w.at(0).alive(), "the node of the other RedLock")
			require.Equal(t, 3, b.has(), "nodes")
			w.Lower(ctx, 0)(soon)
		})
	}
}

// partless returns a foreign Locker that does not pass on the contexts that it gets.
func partless(l Locker) Locker { return partlessLocker{l} }

type partlessLocker struct{ Locker }

func (l partlessLocker) TryLock(ctx context.Context, wait, lease time.Duration) (bool, error) {
	return l.Locker.TryLock(engine.OwnerOf(ctx).In(context.Background()), wait, lease)
}

func (l partlessLocker) Unlock(ctx context.Context) error {
	return l.Locker.Unlock(engine.OwnerOf(ctx).In(context.Background()))
}

func (l partlessLocker) Guard(ctx context.Context) (context.Context, error) {
	return l.Locker.Guard(engine.OwnerOf(ctx).In(context.Background()))
}

// A panickingLocker is a foreign Locker whose guards panic when they are watched.
type panickingLocker struct{ Locker }

type panickingContext struct{ context.Context }

func (panickingContext) Done() <-chan struct{} { panic("no channel") }

func (l panickingLocker) Guard(ctx context.Context) (context.Context, error) {
	guard, err := l.Locker.Guard(ctx)
	return panickingContext{guard}, err
}

// A node whose guard cannot be watched is released with the others.
func TestRedLockReleasesANodeWhoseGuardPanics(t *testing.T) {
	b := newSmallRedBench(t)
	var locks []Locker
	for _, l := range b.nodeLocks() {
		locks = append(locks, panickingLocker{l})
	}
	l := b.client().NewRedLock(locks...)
	require.Panics(t, func() { _, _ = l.TryLock(context.Background(), 0, time.Hour) }, "in its caller, as other user code")
	testredis.Await(t, "no node is held", soon, func() bool { return b.has() == 0 })
}

// The owner of a RedLock that was lost acquires it again, before the lost hold has released its nodes. The nodes that it
// releases then are not those of the new hold.
func TestRedLockThatWasLostReleasesNotTheNextHoldOfItsOwner(t *testing.T) {
	for name, foreign := range map[string]func(Locker) Locker{
		"locks": func(l Locker) Locker { return l }, "foreign Lockers": partless,
	} {
		t.Run(name, func(t *testing.T) {
			b := newSmallRedBench(t)
			ctx := context.Background()
			var locks []Locker
			for _, l := range b.nodeLocks() {
				locks = append(locks, foreign(l))
			}
			l := b.client().NewRedLock(locks...).lock.(*redLock)
			owner := engine.NewOwner()
			before, noticed := b.vote(l, owner)
			for i := range 2 {
				freed, err := l.nodes[i].ForceUnlock(ctx)
				b.must(err)
				require.True(t, freed)
				await(b.bench, "the loss of a node", noticed)
			}
			require.Error(t, before.Check())
			next, _ := b.vote(l, owner)
			before.Lost()
			l.awaitAnswers(b, owner)
			b.awaitNodes(next, 3)
			require.Equal(t, 3, b.has(), "nodes")
			next.Lower(ctx, 0)(soon)
		})
	}
}

// awaitAnswers waits until the nodes have answered all requests for owner.
func (l *redLock) awaitAnswers(b *redBench, owner engine.Owner) {
	b.Helper()
	testredis.Await(b, "the nodes have answered", soon, func() bool {
		p := l.client.pending
		p.mu.Lock()
		defer p.mu.Unlock()
		for r := range p.all {
			if r.owner == owner {
				return false
			}
		}
		return true
	})
}

// A RedLock that has lost too many nodes is lost, although it could acquire them again: another owner may have had them.
func TestRedLockDoesNotCoverUpALoss(t *testing.T) {
	for name, prepare := range map[string]func(b *redBench, v *redVote) (again func() contract.Status){
		"re-entry": func(b *redBench, v *redVote) func() contract.Status {
			return func() contract.Status { return v.asksFor(b, 2) }
		},
		"renewal under way": func(_ *redBench, v *redVote) func() contract.Status {
			again := v.nodeAsker(context.Background(), 0, contract.Attempt{HoldCount: 1, Lease: time.Minute, Renewed: true})
			return func() contract.Status {
				if again() == nil && v.Check() == nil {
					return contract.Held
				}
				return contract.Gone
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newSmallRedBench(t)
			ctx := context.Background()
			l := b.client().NewRedLock(b.nodeLocks()...).lock.(*redLock)
			v, noticed := b.vote(l, engine.NewOwner())
			loses := func(node int) {
				b.Helper()
				b.must(second(l.nodes[node].ForceUnlock(ctx)))
				await(b.bench, "the loss of a node", noticed)
			}
			loses(0)
			require.NoError(t, v.Check())
			again := prepare(b, v)
			loses(1)
			require.Equal(t, contract.Gone, again())
			require.Error(t, v.Check())
			v.Lower(ctx, 0)(soon)
		})
	}
}

// A RedLock acquires a node again, and loses another one while that request is under way, without a signal, as after a
// pause of the process. The grant does not make up for the loss: another owner may have had the lock in between.
func TestRedLockGrantDoesNotMakeUpForALossMeanwhile(t *testing.T) {
	for name, again := range map[string]func(b *redBench, v *redVote){
		"renewal":  func(b *redBench, v *redVote) { require.True(b, v.Renew()) },
		"re-entry": func(b *redBench, v *redVote) { require.Equal(b, contract.Gone, v.asksFor(b, 2)) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newSmallRedBench(t)
			var over, loses atomic.Bool
			locks := b.nodeLocks()
			first := locks[0]
			locks[0] = stubLocker{Locker: first, tryLock: func(ctx context.Context, wait, lease time.Duration) (bool, error) {
				over.Store(loses.Load())
				return first.TryLock(ctx, wait, lease)
			}}
			locks[1] = stubLocker{Locker: locks[1], guard: func(ctx context.Context) (context.Context, error) {
				return silentGuard{ctx, &over}, nil
			}}
			l := b.client().NewRedLock(locks...).lock.(*redLock)
			v, noticed := b.vote(l, engine.NewOwner())
			b.must(second(first.ForceUnlock(context.Background())))
			await(b.bench, "the loss of a node", noticed)
			loses.Store(true)
			again(b, v)
			l.awaitAnswers(b, v.owner)
			require.Error(t, v.Check())
			await(b.bench, "the loss of the hold", noticed)
			v.Lower(context.Background(), 0)(soon)
		})
	}
}

// A round was won so late that the engine asks again, and the nodes have expired by then. The hold has not begun yet,
// so nothing is lost: the nodes are acquired again. That is so, too, if a late grant of the round has found the nodes
// expired before.
func TestRedLockThatHasNotBegunIsNotLost(t *testing.T) {
	for name, late := range map[string]bool{"": false, "a late grant": true} {
		t.Run(name, func(t *testing.T) {
			b := newSmallRedBench(t)
			locks := b.nodeLocks()
			var guards []*atomic.Bool
			for i, l := range locks {
				locks[i] = stubLocker{Locker: l, guard: func(ctx context.Context) (context.Context, error) {
					return silentGuard{ctx, guards[len(guards)-1]}, nil
				}}
			}
			guards = append(guards, new(atomic.Bool))
			v, _ := b.vote(b.client().NewRedLock(locks...).lock.(*redLock), engine.NewOwner())
			guards = append(guards, new(atomic.Bool))
			guards[0].Store(true)
			if late {
				require.True(t, v.expired())
			}
			require.Equal(t, contract.Held, v.asksFor(b, 1))
			b.awaitNodes(v, 3)
			guards[1].Store(true)
			require.Equal(t, contract.Gone, v.asksFor(b, 2))
			v.Lower(context.Background(), 0)(soon)
		})
	}
}

// A node that is a MultiLock of other Clients makes a new guard at each call of Guard. A re-entry needs none.
func TestRedLockReentryCostsNoGuard(t *testing.T) {
	b := newSmallRedBench(t)
	ctx := ContextWithOwner(context.Background())
	c := b.client()
	locks := b.nodeLocks()
	first := locks[0].(*Lock)
	locks[0] = c.NewMultiLock(first, first.client.NewLock(b.name+"-2"))
	l := c.NewRedLock(locks...)
	b.must(l.Lock(ctx))
	for range 10 {
		b.must(l.Lock(ctx))
		l.lock.(*redLock).awaitAnswers(b, engine.OwnerOf(ctx))
		b.must(l.Unlock(ctx))
	}
	require.Equal(t, 1, first.client.engine.Probe().Guards(first.lock, engine.OwnerOf(ctx)))
	b.must(l.Unlock(ctx))
}

// An afterContext counts the functions that are to run when it is done.
type afterContext struct {
	context.Context
	watches *atomic.Int64
}

// Value hides the context inside from package context, which would not call AfterFunc otherwise.
func (afterContext) Value(any) any { return nil }

func (c afterContext) AfterFunc(f func()) func() bool {
	c.watches.Add(1)
	stop := context.AfterFunc(c.Context, f)
	return func() bool {
		c.watches.Add(-1)
		return stop()
	}
}

// The owner of a RedLock also holds one of its nodes by itself, for longer. The guard of that hold does not keep all
// that the RedLock has had there meanwhile.
func TestRedLockLeavesNothingAtANodeThatItsOwnerKeeps(t *testing.T) {
	b := newSmallRedBench(t)
	ctx := ContextWithOwner(context.Background())
	locks, watches := b.nodeLocks(), new(atomic.Int64)
	node := locks[0]
	locks[0] = stubLocker{Locker: node, guard: func(ctx context.Context) (context.Context, error) {
		guarded, err := node.Guard(ctx)
		return afterContext{guarded, watches}, err
	}}
	l := b.client().NewRedLock(locks...)
	b.must(node.Lock(ctx))
	for range 3 {
		for range 2 {
			b.must(l.Lock(ctx))
			l.lock.(*redLock).awaitAnswers(b, engine.OwnerOf(ctx))
			require.EqualValues(t, 1, watches.Load(), "while the RedLock is held")
		}
		for range 2 {
			b.must(l.Unlock(ctx))
		}
		l.lock.(*redLock).awaitAnswers(b, engine.OwnerOf(ctx))
		require.Zero(t, watches.Load(), "after its release")
	}
	b.must(node.Unlock(ctx))
}

// A vote that is over, because its hold was lost, does not begin again when a re-entry that was under way asks: it ends
// no newer hold of its owner, and nothing keeps it.
func TestRedLockReentryOfALostHoldLeavesTheNextHoldAlone(t *testing.T) {
	b := newSmallRedBench(t)
	ctx := context.Background()
	l := b.client().NewRedLock(b.nodeLocks()...).lock.(*redLock)
	owner := engine.NewOwner()
	before, _ := b.vote(l, owner)
	for i := range before.nodes { // their guards end after Lost has returned
		before.nodes[i].guard = ctx
	}
	before.Lost()
	l.awaitAnswers(b, owner)
	require.NoError(t, before.Check(), "the guards have not ended")
	require.Equal(t, contract.Gone, before.asksFor(b, 2))
	require.Empty(t, l.client.pending.votes)
	next, _ := b.vote(l, owner)
	require.Equal(t, contract.Gone, before.asksFor(b, 2))
	require.False(t, next.Over())
	b.awaitNodes(next, 3)
	next.Lower(ctx, 0)(soon)
}
