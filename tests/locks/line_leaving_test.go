package locks

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
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A request of a caller that has given up, and that Redis runs late, leaves nothing.
func TestLineAskThatRunsLateLeavesNothing(t *testing.T) {
	b := locktest.NewFaultBench(t)
	b.Opts = []Option{WithPollInterval(time.Hour)}
	first := contender(b.Bench).takes()
	late := contenderOn(b.Bench, b.Proxy.Client(func(o *redis.Options) { o.ReadTimeout = time.Minute }))
	rule := b.Proxy.On(asksIn(contract.Push), testredis.HoldRequest)
	late.givesUpAsking(rule)
	testredis.Await(b, "the wait has ended in Redis", locktest.Soon, func() bool {
		return len(b.Tombstones()) > 0
	})
	before := b.ScriptRuns()
	rule.Release()
	testredis.Await(b, "the request has run", locktest.Soon, func() bool { return b.ScriptRuns() > before })
	assert.Empty(b, b.ClientsInLine(), "the line")
	first.unlocks()
	assert.Empty(b, b.Holder(), "the holder")
	b.Manual()
}

// asksIn matches requests for the lock by their place in the line: see line.go.
func asksIn(delivery string) testredis.Match {
	return func(cmd []string) bool {
		return locktest.Calls(record.Script("lock_acquire"))(cmd) && slices.Contains(cmd, delivery)
	}
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
			onEachLine(t, func(b *locktest.Bench) {
				first := contender(b).takes()
				leaves := contender(b)
				ctx, cancel := context.WithCancel(leaves.owner)
				go func() { leaves.got <- wait(ctx, leaves.lock) }()
				leaves.joined()
				p := placeOf(b, leaves.client.ID())
				stayer := leaves.sibling().asks()
				testredis.Await(b, "the other owner waits", locktest.Soon, func() bool { return b.WaitsInQueue(stayer.lock) })
				other := contender(b).joins()
				if what == "ctx" {
					cancel()
				}
				b.MustBe(locktest.Await(b, "the caller gives up", leaves.got), context.Canceled)
				cancel()
				testredis.Await(b, "the other owner asks", locktest.Soon, func() bool { return placeOf(b, p.Client).Asked != p.Asked })
				assert.Equal(b, []string{p.Client, other.client.ID()}, b.ClientsInLine(), "the line")
				assert.Equal(b, p.Number, placeOf(b, p.Client).Number, "the number of the place")
				first.unlocks()
				stayer.gets()
				other.waits()
				stayer.unlocks()
				other.gets().unlocks()
				emptyLine(b)
			})
		})
	}
}

// The last caller of a process that gives up removes the entry.
func TestLineLastCallerGivesUpThePlace(t *testing.T) {
	onEachLine(t, func(b *locktest.Bench) {
		first := contender(b).takes()
		one := contender(b)
		ctx, cancel := context.WithCancel(one.owner)
		one.owner = ctx
		one.joins()
		two := one.sibling()
		two.owner = ContextWithOwner(ctx)
		two.asks()
		testredis.Await(b, "the other owner waits", locktest.Soon, func() bool { return b.WaitsInQueue(two.lock) })
		other := contender(b).joins()
		cancel() // both callers
		b.MustBe(locktest.Await(b, "one", one.got), context.Canceled)
		b.MustBe(locktest.Await(b, "two", two.got), context.Canceled)
		testredis.Await(
			b,
			"the place is given up",
			locktest.Soon,
			func() bool { return slices.Equal(b.ClientsInLine(), []string{other.client.ID()}) },
		)
		first.unlocks()
		other.gets().unlocks()
		emptyLine(b)
	})
}

// A grant for a caller that has left goes to the next caller of its process, even if this caller has not asked yet.
func TestLineGrantAfterACallerHasLeftGoesToTheNext(t *testing.T) {
	b := locktest.NewFaultBench(t)
	b.Opts = []Option{WithPollInterval(time.Hour)}
	first := contender(b.Bench).takes()
	leaves := contenderOn(b.Bench, b.Proxy.Client())
	ctx, cancel := context.WithCancel(leaves.owner)
	leaves.owner = ctx
	leaves.joins()
	stayer := leaves.sibling().asks()
	testredis.Await(b, "the other owner waits", locktest.Soon, func() bool { return b.WaitsInQueue(stayer.lock) })
	other := contender(b.Bench).joins()
	rule := b.Proxy.On(locktest.Calls(record.Script("lock_acquire")), testredis.HoldRequest)
	cancel()
	locktest.Await(b.Bench, "the other owner asks", rule.Fired())
	first.unlocks()
	awaitHolder(b.Bench, leaves.client.ID())
	locktest.Stays(b, "another client has the lock", other.got, 200*time.Millisecond)
	assert.True(b, strings.HasPrefix(b.Holder(), leaves.client.ID()), "the lock was released")
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
			b := locktest.NewFaultBenchOn(t, testredis.Start(t))
			b.Opts = []Option{WithPollInterval(time.Hour)}
			first := lock(b.Direct, b.LockName)
			b.Must(first.Lock(ctx))
			c := b.Bench.ClientOn(
				b.Proxy.Client(func(o *redis.Options) { o.ReadTimeout = 600 * time.Millisecond }),
				WithWatchdogTimeout(lease),
			)
			l := lock(c, b.LockName)
			hears := locktest.EngineOf(c).Hub().Join(locktest.RecordOf(l).Grants(contract.Attempt{})) // as an earlier wait has left it
			defer hears.Leave()
			testredis.Await(b, "the channel of grants is subscribed", locktest.Soon, hears.Confirmed)

			rule := b.Proxy.On(locktest.AnyOf(record.Script("lock_acquire"), record.Script("write_acquire")), testredis.DropRequest).Times(testredis.Always)
			var owners []context.Context
			var got []chan error
			for i := range 3 {
				owners, got = append(owners, ContextWithOwner(ctx)), append(got, make(chan error, 1))
				go func() { got[i] <- l.Lock(owners[i]) }()
				testredis.Await(
					b,
					"the callers wait in order",
					locktest.Soon,
					func() bool { return b.Asks(l) && b.WaitersInQueue(l) == i },
				)
			}
			require.Error(b, locktest.Await(b.Bench, "the caller in front has no answer", got[0]))
			rule.Release()
			testredis.Await(
				b,
				"the last caller waits in the local queue again",
				locktest.Soon,
				func() bool { return b.WaitersInQueue(l) == 1 },
			)
			testredis.Await(b, "the caller in front has a place", locktest.Soon, func() bool { return placeOf(b.Bench, c.ID()).Delivery != "" })
			joined := time.Now()
			testredis.Await(b, "a grant is too old to be used", 2*locktest.Soon, func() bool { return time.Since(joined) > lease })

			start := time.Now()
			b.Must(first.Unlock(ctx))
			b.Must(locktest.Await(b.Bench, "the caller in front has the lock", got[1]))
			assert.Less(b, time.Since(start), testredis.Scale(start, lease/2), "the lock was granted and not used")
			b.Must(l.Unlock(owners[1]))
			b.Must(locktest.Await(b.Bench, "the last caller has the lock", got[2]))
			b.Must(l.Unlock(owners[2]))
		})
	}
}

// A caller that has bypassed the local queue and takes over the entry of another caller asks with the field of that
// entry from then on. Its own field is buried: a late request with it would acquire the lock for no caller.
func TestLineFieldOfACallerThatTakesOverAPlaceEnds(t *testing.T) {
	b := locktest.NewFaultBench(t)
	b.Opts = []Option{WithPollInterval(time.Hour)}
	first := contender(b.Bench).takes()
	front := contenderOn(b.Bench, b.Proxy.Client(func(o *redis.Options) { o.ReadTimeout = 600 * time.Millisecond }))
	second, third := front.sibling(), front.sibling()
	gives, cancel := context.WithCancel(second.owner)
	defer cancel()
	second.owner = gives

	var held atomic.Value // the field of the request that runs late
	own := fmt.Sprintf("%s:%d:", front.client.ID(), engine.OwnerOf(third.owner))
	late := b.Proxy.On(func(cmd []string) bool {
		at := slices.IndexFunc(cmd, func(arg string) bool { return strings.HasPrefix(arg, own) })
		if at >= 0 && locktest.Calls(record.Script("lock_acquire"))(cmd) {
			held.CompareAndSwap(nil, cmd[at])
		}
		return at >= 0
	}, testredis.HoldRequest)
	down := b.Proxy.On(locktest.Calls(record.Script("lock_acquire")), testredis.DropRequest).Times(testredis.Always)
	for i, c := range []*lineClient{front, second, third} {
		c.asks()
		testredis.Await(
			b,
			"the callers wait in order",
			locktest.Soon,
			func() bool { return b.Asks(c.lock) && b.WaitersInQueue(c.lock) == i },
		)
	}
	require.Error(b, locktest.Await(b.Bench, "the caller in front has no answer", front.got))
	locktest.Await(b.Bench, "the last caller asks past the local queue", late.Fired())
	down.Release()
	testredis.Await(
		b,
		"the last caller waits in the local queue again",
		locktest.Soon,
		func() bool { return b.WaitersInQueue(third.lock) == 1 },
	)
	second.joined()
	cancel()
	b.MustBe(locktest.Await(b.Bench, "the second caller gives up", second.got), context.Canceled)
	testredis.Await(
		b,
		"the field of the last caller has ended",
		locktest.Soon,
		func() bool { return slices.Contains(b.Tombstones(), held.Load().(string)) },
	)
	first.unlocks()
	third.gets().unlocks()
	late.Release()
	b.Must(b.Direct.NewLock(b.LockName).Lock(ctx))
	b.Must(b.Direct.NewLock(b.LockName).Unlock(ctx))
	b.Forget()
}

// A caller that takes over the entry of another one gets the lease and the token that it asks for itself.
func TestLineCallerThatTakesOverAPlaceHasItsOwnWish(t *testing.T) {
	for what, held := range map[string]bool{"asks in time": false, "asks after the grant": true} {
		t.Run(what, func(t *testing.T) {
			b := locktest.NewFaultBench(t)
			b.Opts = []Option{WithPollInterval(time.Hour)}
			first := contender(b.Bench).takes()
			leaves := contenderOn(b.Bench, b.Proxy.Client())
			ctx, cancel := context.WithCancel(leaves.owner)
			leaves.owner = ctx
			leaves.joins()
			stayer := leaves.sibling(Fenced())
			go func() { stayer.got <- stayer.lock.LockLease(stayer.owner, 40*time.Second) }()
			testredis.Await(b, "the other owner waits", locktest.Soon, func() bool { return b.WaitsInQueue(stayer.lock) })
			p := placeOf(b.Bench, leaves.client.ID())
			if held {
				rule := b.Proxy.On(locktest.Calls(record.Script("lock_acquire")), testredis.HoldRequest)
				cancel()
				locktest.Await(b.Bench, "the other owner asks", rule.Fired())
				first.unlocks()
				rule.Release()
			} else {
				cancel()
				testredis.Await(b, "the other owner asks", locktest.Soon, func() bool { return placeOf(b.Bench, p.Client).Asked != p.Asked })
				assert.True(b, placeOf(b.Bench, p.Client).Fenced, "the place is fenced")
				first.unlocks()
			}
			stayer.gets()
			assert.InDelta(b, 39, pttl(b.Bench).Seconds(), 1.1, "the lease")
			token, err := stayer.lock.Token(stayer.owner)
			b.Must(err)
			assert.NotZero(b, token, "the token")
			guarded, err := stayer.lock.Guard(stayer.owner)
			b.Must(err)
			assert.NoError(b, guarded.Err(), "the hold")
			stayer.unlocks()
		})
	}
}

// Close removes the entry.
func TestLineCloseGivesUpThePlace(t *testing.T) {
	onEachLine(t, func(b *locktest.Bench) {
		first := contender(b).takes()
		closes := contender(b).joins()
		second := closes.sibling().asks()
		testredis.Await(b, "the other owner waits", locktest.Soon, func() bool { return b.WaitsInQueue(second.lock) })
		next := contender(b).joins()
		b.Must(closes.client.Close())
		b.MustBe(locktest.Await(b, "Lock", closes.got), ErrClosed)
		b.MustBe(locktest.Await(b, "Lock", second.got), ErrClosed)
		assert.Equal(b, []string{next.client.ID()}, b.ClientsInLine(), "the line after Close")
		first.unlocks()
		next.gets().unlocks()
		emptyLine(b)
	})
}
