package relock

// Callers that give up, and what they leave to the other callers of their process.
//
// Rules: a field whose wait has ended neither acquires the lock nor enters the line. A place belongs to the process: the
// next caller takes it over, with the lease and the token that it asks for itself, and the last caller gives it up.

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A caller that waits with the entry of another caller of its process, and asks for a shorter lease, is not granted a
// longer one.
func TestLineShorterLeaseTakesNoPlaceOfALongerOne(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first, next := b.contender().takes(), b.contender()
		short := ContextWithOwner(context.Background())
		ctx, cancel := context.WithCancel(next.owner)
		next.owner = ctx
		next.asks()
		testredis.Await(b, "it stands in the line", soon, func() bool { return len(b.clientsInLine()) == 1 })
		got := make(chan error, 1)
		go func() { got <- next.lock.LockLease(short, 2*time.Second) }()
		testredis.Await(b, "another caller waits behind it", soon, func() bool { return b.waitsInQueue(next.lock) })
		cancel()
		b.mustBe(await(b, "Lock", next.got), context.Canceled)
		first.unlocks()
		b.must(await(b, "LockLease", got))
		assert.LessOrEqual(b, b.pttl(), 2*time.Second, "the lease in Redis")
		b.must(next.lock.Unlock(short))
	})
}

// A request of a caller that has given up, and that Redis runs late, leaves nothing.
func TestLineAskThatRunsLateLeavesNothing(t *testing.T) {
	b := newFaultBench(t)
	b.opts = []Option{WithPollInterval(time.Hour)}
	first := b.contender().takes()
	late := b.contenderOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = time.Minute }))
	rule := b.proxy.On(asksIn(contract.Push), testredis.HoldRequest)
	late.givesUpAsking(rule)
	testredis.Await(b, "the wait has ended in Redis", soon, func() bool {
		return b.rdb.HExists(context.Background(), b.lineKey(), "over").Val()
	})
	before := b.scriptRuns()
	rule.Release()
	testredis.Await(b, "the request has run", soon, func() bool { return b.scriptRuns() > before })
	assert.Empty(b, b.clientsInLine(), "the line")
	first.unlocks()
	assert.Empty(b, b.holder(), "the holder")
	b.manual()
}

// The rollback of a request whose outcome is unknown also buries the field, because the rollback of the caller may
// arrive later.
func TestLineRollbackOfAnUnansweredRequestEndsTheField(t *testing.T) {
	b := newFaultBench(t)
	b.opts = []Option{WithPollInterval(time.Hour)}
	first := b.contender().takes()
	late := b.contenderOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = time.Second }))
	rule := b.proxy.On(asksIn(contract.Push), testredis.HoldRequest)
	ends := func(late string) testredis.Match {
		return func(cmd []string) bool { return calls(lockRelease)(cmd) && cmd[len(cmd)-1] == late }
	}
	open, closed := b.proxy.On(
		ends("0"),
		testredis.DelayRequest(0),
	).Times(
		testredis.Always,
	), b.proxy.On(
		ends("1"),
		testredis.DelayRequest(0),
	).Times(
		testredis.Always,
	)
	late.givesUpAsking(rule)
	testredis.Await(b, "the rollback of the request", soon, func() bool { return open.Count()+closed.Count() > 1 })
	assert.Zero(b, open.Count(), "rollbacks after which the request may still take the lock")
	rule.Release()
	first.unlocks()
	b.emptyLine()
	b.manual()
}

// asksIn matches requests for the lock by their place in the line: see line.go.
func asksIn(delivery string) testredis.Match {
	return func(cmd []string) bool { return calls(lockAcquire)(cmd) && slices.Contains(cmd, delivery) }
}

// A caller that gives up leaves its entry to the next caller of its process.
func TestLineCallerThatGivesUpLeavesItsPlace(t *testing.T) {
	t.Parallel()
	for what, wait := range map[string]func(ctx context.Context, l *Lock) error{
		"ctx": func(ctx context.Context, l *Lock) error { return l.Lock(ctx) },
		"time": func(ctx context.Context, l *Lock) error {
			got, err := l.TryLock(ctx, 1500*time.Millisecond, 0)
			if err == nil && !got {
				err = context.Canceled
			}
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			onEachLine(t, func(b *bench) {
				first := b.contender().takes()
				leaves := b.contender()
				ctx, cancel := context.WithCancel(leaves.owner)
				go func() { leaves.got <- wait(ctx, leaves.lock) }()
				leaves.joined()
				p := b.placeOf(leaves.client.ID())
				stayer := leaves.sibling().asks()
				testredis.Await(b, "the other owner waits", soon, func() bool { return b.waitsInQueue(stayer.lock) })
				other := b.contender().joins()
				if what == "ctx" {
					cancel()
				}
				b.mustBe(await(b, "the caller gives up", leaves.got), context.Canceled)
				cancel()
				testredis.Await(b, "the other owner asks", soon, func() bool { return b.placeOf(p.client).asked != p.asked })
				assert.Equal(b, []string{p.client, other.client.ID()}, b.clientsInLine(), "the line")
				assert.Equal(b, p.number, b.placeOf(p.client).number, "the number of the place")
				first.unlocks()
				stayer.gets()
				other.waits()
				stayer.unlocks()
				other.gets().unlocks()
				b.emptyLine()
			})
		})
	}
}

// The last caller of a process that gives up removes the entry.
func TestLineLastCallerGivesUpThePlace(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.contender().takes()
		one := b.contender()
		ctx, cancel := context.WithCancel(one.owner)
		one.owner = ctx
		one.joins()
		two := one.sibling()
		two.owner = ContextWithOwner(ctx)
		two.asks()
		testredis.Await(b, "the other owner waits", soon, func() bool { return b.waitsInQueue(two.lock) })
		other := b.contender().joins()
		cancel() // both callers
		b.mustBe(await(b, "one", one.got), context.Canceled)
		b.mustBe(await(b, "two", two.got), context.Canceled)
		testredis.Await(
			b,
			"the place is given up",
			soon,
			func() bool { return slices.Equal(b.clientsInLine(), []string{other.client.ID()}) },
		)
		first.unlocks()
		other.gets().unlocks()
		b.emptyLine()
	})
}

// A grant for a caller that has left goes to the next caller of its process, even if this caller has not asked yet.
func TestLineGrantAfterACallerHasLeftGoesToTheNext(t *testing.T) {
	b := newFaultBench(t)
	b.opts = []Option{WithPollInterval(time.Hour)}
	first := b.contender().takes()
	leaves := b.contenderOn(b.proxy.Client())
	ctx, cancel := context.WithCancel(leaves.owner)
	leaves.owner = ctx
	leaves.joins()
	stayer := leaves.sibling().asks()
	testredis.Await(b, "the other owner waits", soon, func() bool { return b.waitsInQueue(stayer.lock) })
	other := b.contender().joins()
	rule := b.proxy.On(calls(lockAcquire), testredis.HoldRequest)
	cancel()
	await(b.bench, "the other owner asks", rule.Fired())
	first.unlocks()
	b.awaitHolder(leaves.client.ID())
	stays(b, "another client has the lock", other.got, 200*time.Millisecond)
	assert.True(b, strings.HasPrefix(b.holder(), leaves.client.ID()), "the lock was released")
	rule.Release()
	stayer.gets()
	other.waits()
	stayer.unlocks()
	other.gets().unlocks()
}

// A caller that bypasses the local queue, because Redis has not answered the caller ahead, acquires a free lock and
// does not enter the line: a grant that came too late to be used would leave the lock unused while the caller waits in
// the local queue.
func TestLineCallerPastTheLocalQueueDoesNotJoin(t *testing.T) {
	t.Parallel()
	kinds := map[string]func(c *Client, name string) Locker{
		"plain": func(c *Client, name string) Locker { return c.NewLock(name) },
		"write": func(c *Client, name string) Locker { return c.NewRWLock(name).Write() },
	}
	for what, lock := range kinds {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			const lease = 2 * time.Second
			b := newFaultBenchOn(t, testredis.Start(t))
			b.opts = []Option{WithPollInterval(time.Hour)}
			ctx := context.Background()
			first := lock(b.direct, b.name)
			b.must(first.Lock(ctx))
			c := b.bench.clientOn(
				b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = 600 * time.Millisecond }),
				WithWatchdogTimeout(lease),
			)
			l := lock(c, b.name)
			hears := c.engine.Hub().Join(l.(known).inside().record.Grants(contract.Attempt{})) // as an earlier wait has left it
			defer hears.Leave()
			testredis.Await(b, "the channel of grants is subscribed", soon, hears.Confirmed)

			rule := b.proxy.On(anyOf(lockAcquire, writeAcquire), testredis.DropRequest).Times(testredis.Always)
			var owners []context.Context
			var got []chan error
			for i := range 3 {
				owners, got = append(owners, ContextWithOwner(ctx)), append(got, make(chan error, 1))
				go func() { got[i] <- l.Lock(owners[i]) }()
				testredis.Await(
					b,
					"the callers wait in order",
					soon,
					func() bool { return b.asks(l.(known)) && b.waitersInQueue(l.(known)) == i },
				)
			}
			require.Error(b, await(b.bench, "the caller in front has no answer", got[0]))
			rule.Release()
			testredis.Await(
				b,
				"the last caller waits in the local queue again",
				soon,
				func() bool { return b.waitersInQueue(l.(known)) == 1 },
			)
			testredis.Await(b, "the caller in front has a place", soon, func() bool { return b.placeOf(c.ID()).delivery != "" })
			joined := time.Now()
			testredis.Await(b, "a grant is too old to be used", 2*soon, func() bool { return time.Since(joined) > lease })

			start := time.Now()
			b.must(first.Unlock(ctx))
			b.must(await(b.bench, "the caller in front has the lock", got[1]))
			assert.Less(b, time.Since(start), testredis.Scale(start, lease/2), "the lock was granted and not used")
			b.must(l.Unlock(owners[1]))
			b.must(await(b.bench, "the last caller has the lock", got[2]))
			b.must(l.Unlock(owners[2]))
		})
	}
}

// A caller that has bypassed the local queue and takes over the entry of another caller asks with the field of that
// entry from then on. Its own field is buried: a late request with it would acquire the lock for no caller.
func TestLineFieldOfACallerThatTakesOverAPlaceEnds(t *testing.T) {
	b := newFaultBench(t)
	b.opts = []Option{WithPollInterval(time.Hour)}
	ctx := context.Background()
	first := b.contender().takes()
	front := b.contenderOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = 600 * time.Millisecond }))
	second, third := front.sibling(), front.sibling()
	gives, cancel := context.WithCancel(second.owner)
	defer cancel()
	second.owner = gives

	var held atomic.Value // the field of the request that runs late
	own := fmt.Sprintf("%s:%d:", front.client.ID(), engine.OwnerOf(third.owner))
	late := b.proxy.On(func(cmd []string) bool {
		at := slices.IndexFunc(cmd, func(arg string) bool { return strings.HasPrefix(arg, own) })
		if at >= 0 && calls(lockAcquire)(cmd) {
			held.CompareAndSwap(nil, cmd[at])
		}
		return at >= 0
	}, testredis.HoldRequest)
	down := b.proxy.On(calls(lockAcquire), testredis.DropRequest).Times(testredis.Always)
	for i, c := range []*lineClient{front, second, third} {
		c.asks()
		testredis.Await(
			b,
			"the callers wait in order",
			soon,
			func() bool { return b.asks(c.lock) && b.waitersInQueue(c.lock) == i },
		)
	}
	require.Error(b, await(b.bench, "the caller in front has no answer", front.got))
	await(b.bench, "the last caller asks past the local queue", late.Fired())
	down.Release()
	testredis.Await(
		b,
		"the last caller waits in the local queue again",
		soon,
		func() bool { return b.waitersInQueue(third.lock) == 1 },
	)
	second.joined()
	cancel()
	b.mustBe(await(b.bench, "the second caller gives up", second.got), context.Canceled)
	testredis.Await(
		b,
		"the field of the last caller has ended",
		soon,
		func() bool { return b.ended(held.Load().(string)) },
	)
	first.unlocks()
	third.gets().unlocks()
	late.Release()
	b.must(b.direct.NewLock(b.name).Lock(ctx))
	b.must(b.direct.NewLock(b.name).Unlock(ctx))
	b.forget()
}

// A caller that takes over the entry of another one gets the lease and the token that it asks for itself.
func TestLineCallerThatTakesOverAPlaceHasItsOwnWish(t *testing.T) {
	for what, held := range map[string]bool{"asks in time": false, "asks after the grant": true} {
		t.Run(what, func(t *testing.T) {
			b := newFaultBench(t)
			b.opts = []Option{WithPollInterval(time.Hour)}
			first := b.contender().takes()
			leaves := b.contenderOn(b.proxy.Client())
			ctx, cancel := context.WithCancel(leaves.owner)
			leaves.owner = ctx
			leaves.joins()
			stayer := leaves.sibling(Fenced())
			go func() { stayer.got <- stayer.lock.LockLease(stayer.owner, 20*time.Second) }()
			testredis.Await(b, "the other owner waits", soon, func() bool { return b.waitsInQueue(stayer.lock) })
			p := b.placeOf(leaves.client.ID())
			if held {
				rule := b.proxy.On(calls(lockAcquire), testredis.HoldRequest)
				cancel()
				await(b.bench, "the other owner asks", rule.Fired())
				first.unlocks()
				rule.Release()
			} else {
				cancel()
				testredis.Await(b, "the other owner asks", soon, func() bool { return b.placeOf(p.client).asked != p.asked })
				assert.True(b, b.placeOf(p.client).fenced, "the place is fenced")
				first.unlocks()
			}
			stayer.gets()
			assert.InDelta(b, 19, b.pttl().Seconds(), 1.1, "the lease")
			token, err := stayer.lock.Token(stayer.owner)
			b.must(err)
			assert.NotZero(b, token, "the token")
			guarded, err := stayer.lock.Guard(stayer.owner)
			b.must(err)
			assert.NoError(b, guarded.Err(), "the hold")
			stayer.unlocks()
		})
	}
}

// An entry that a caller has left belongs to a wait that continues.
func TestLineLeftPlaceIsInUse(t *testing.T) {
	onEachLine(t, func(b *bench) {
		c := b.contender().takes()
		field := c.client.ID() + ":9:099"
		assert.False(b, c.client.engine.Probe().Uses(b.name, field), "a field of no wait")
		c.client.engine.Probe().LeavePlace(c.lock.inside().lock, field)
		assert.True(b, c.client.engine.Probe().Uses(b.name, field), "the field of a place that was left")
		c.client.engine.Probe().LeavePlace(c.lock.inside().lock, "")
		c.unlocks()
	})
}

// Close removes the entry.
func TestLineCloseGivesUpThePlace(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.contender().takes()
		closes := b.contender().joins()
		second := closes.sibling().asks()
		testredis.Await(b, "the other owner waits", soon, func() bool { return b.waitsInQueue(second.lock) })
		next := b.contender().joins()
		b.must(closes.client.Close())
		b.mustBe(await(b, "Lock", closes.got), ErrClosed)
		b.mustBe(await(b, "Lock", second.got), ErrClosed)
		assert.Equal(b, []string{next.client.ID()}, b.clientsInLine(), "the line after Close")
		first.unlocks()
		next.gets().unlocks()
		b.emptyLine()
	})
}
