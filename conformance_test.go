package relock

// The rules that every lock type must keep, whatever its record looks like. A lock
// type's own test file calls testLocker, and adds the rules of that type.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
)

// A lockMaker makes the lock under test.
type lockMaker func(c *Client, name string) Locker

// A lockKind is a type of lock, and what the tests that try every type have to know of it.
type lockKind struct {
	name       string
	one, rival lockMaker // of one name they exclude one another

	record string                                           // Redis type of the key called as the lock
	shared bool                                             // owners of one do not exclude one another
	holds  func(name string) string                         // zset of the holds and when their leases end; nil: both are in the record
	lapses bool                                             // what a hold has beside a record that was replaced goes with its lease
	leaves func(rdb redis.UniversalClient, key string) bool // whether key is what a lock of this type leaves when it is free; nil: it leaves none
}

// recordLocks are the lock types that have a record in Redis.
var recordLocks = []lockKind{
	{name: "lock", one: newPlainLock, rival: newPlainLock, record: "hash"},
	{name: "fenced", one: newFencedLock, rival: newFencedLock, record: "hash"},
	{name: "fair", one: newFairLock, rival: newFairLock, record: "hash"},
	{name: "read", one: newReadLock, rival: newWriteLock, record: "hash", shared: true, lapses: true},
	{name: "write", one: newWriteLock, rival: newReadLock, record: "hash"},
	{name: "semaphore", one: newSemaphore, rival: newSemaphore, record: "string", holds: permitsKey, lapses: true, leaves: onlyFree},
}

// kindCalled is the row of recordLocks with this name.
func kindCalled(name string) lockKind {
	for _, k := range recordLocks {
		if k.name == name {
			return k
		}
	}
	panic("bug: no lock type is called " + name)
}

// soon is how long an immediate operation may take on a busy machine.
const soon = 15 * time.Second // on a machine that is busy with something else

// onEachServer runs test on a miniredis and on a real Redis.
func onEachServer(t *testing.T, test func(t *testing.T, addr string)) {
	t.Run("miniredis", func(t *testing.T) { test(t, testredis.Mini(t).Addr()) })
	t.Run("redis", func(t *testing.T) { test(t, testredis.Start(t).Addr()) })
}

// A bench belongs to one test: a Redis, and a name of its own in it.
type bench struct {
	*testing.T
	addr  string
	name  string
	rdb   *redis.Client
	nodes []*redis.Client // rdb, and those of other servers
	opts  []Option        // of its clients
}

var benches atomic.Int64

func newBench(t *testing.T, addr string, others ...string) *bench {
	b := &bench{
		T: t, addr: addr, rdb: testredis.Client(t, addr),
		name: fmt.Sprintf("lock-%06d", benches.Add(1)), // no name is part of another one: see keys
	}
	b.nodes = []*redis.Client{b.rdb}
	for _, other := range others {
		b.nodes = append(b.nodes, testredis.Client(t, other))
	}
	t.Cleanup(b.checkNothingIsLeft)
	return b
}

// client returns a new client of the bench's Redis, over a connection of its own.
func (b *bench) client(opts ...Option) *Client {
	b.Helper()
	return b.clientOn(testredis.Client(b, b.addr), opts...)
}

func (b *bench) clientOn(rdb redis.UniversalClient, opts ...Option) *Client {
	b.Helper()
	var all []*Client // on the other servers; closed after c, whose RedLocks consist of their locks
	if rdb, ok := rdb.(*redis.Client); ok && len(b.nodes) > 1 && rdb.Options().Addr == b.addr {
		for _, node := range b.nodes[1:] {
			all = append(all, b.clientOn(testredis.Client(b, node.Options().Addr), opts...))
		}
	}
	c, err := New(rdb, append(append([]Option{WithLogger(slog.New(slog.DiscardHandler))}, b.opts...), opts...)...)
	require.NoError(b, err)
	b.Cleanup(func() {
		siblings.Delete(c)
		b.checkNothingLeaks(c)
		assert.NoError(b, c.Close())
	})
	if all != nil {
		siblings.Store(c, all)
	}
	return c
}

// siblings are the clients on the other servers of a bench, for each on the first one.
var siblings sync.Map // *Client -> []*Client

// keys are the keys in Redis that have to do with the bench's name, without those that free locks leave.
func (b *bench) keys() []string { return b.keysOn(b.rdb) }

func (b *bench) keysOn(rdb *redis.Client) []string {
	keys, err := rdb.Keys(context.Background(), "*"+b.name+"*").Result()
	require.NoError(b, err)
	return slices.DeleteFunc(keys, func(key string) bool { return isLeftFree(rdb, key) })
}

// isLeftFree says whether key is what free locks leave: tombstones in a line, or what their row says.
func isLeftFree(rdb redis.UniversalClient, key string) bool {
	return onlyTombstones(rdb, key) ||
		slices.ContainsFunc(recordLocks, func(k lockKind) bool { return k.leaves != nil && k.leaves(rdb, key) })
}

// forget has Redis lose all keys that have to do with the bench's name.
func (b *bench) forget() {
	b.Helper()
	for _, rdb := range b.nodes {
		if keys := b.keysOn(rdb); len(keys) > 0 {
			b.must(rdb.Del(context.Background(), keys...).Err())
		}
	}
}

// onlyTombstones says whether key is a line in which no client has a place: fields stay in it for a while that must not
// take the lock any more, because a request with them may still run.
func onlyTombstones(rdb redis.UniversalClient, key string) bool {
	if !strings.HasPrefix(key, "relock_line:") {
		return false
	}
	for _, field := range rdb.HKeys(context.Background(), key).Val() {
		if !slices.Contains([]string{"over", "first", "last", "shared"}, field) {
			return false
		}
	}
	return true
}

func (b *bench) checkNothingIsLeft() {
	if b.Failed() {
		return
	}
	for _, rdb := range b.nodes {
		testredis.Await(b, "nothing of "+b.name+" is left in Redis", soon, func() bool {
			for _, key := range b.keysOn(rdb) {
				if !strings.HasPrefix(key, "redisson_lock_token:") {
					return false
				}
			}
			return true
		})
		testredis.Await(b, "nothing of "+b.name+" is subscribed", soon, func() bool {
			channels, err := rdb.PubSubChannels(context.Background(), "*"+b.name+"*").Result()
			require.NoError(b, err)
			return len(channels) == 0
		})
	}
}

// checkNothingLeaks makes sure that a Client which holds no lock has no name in use, which every call has, no listener and no
// waiter left. Close would end them, so it looks before.
func (b *bench) checkNothingLeaks(c *Client) {
	p := c.engine.Probe()
	if s := p.Stats(); b.Failed() || s.Leaving || s.Holds > 0 {
		return
	}
	const nothing = "0 names, 0 listeners, 0 awaited locks"
	left := ""
	for end := time.Now().Add(soon); time.Now().Before(end) && left != nothing; time.Sleep(time.Millisecond) {
		s := p.Stats()
		left = fmt.Sprintf("%d names, %d listeners, %d awaited locks", s.Names, s.Listeners, s.Polled)
	}
	assert.Equal(b, nothing, left, "left in a Client that holds nothing")
}

func (b *bench) must(err error) {
	b.Helper()
	require.NoError(b, err)
}

func (b *bench) mustBe(err, want error) {
	b.Helper()
	require.ErrorIs(b, err, want)
}

// tries is one try of l, which must be answered with want.
func (b *bench) tries(l Locker, want bool) {
	b.Helper()
	ok, err := l.TryLock(context.Background(), 0, 0)
	for tries := 0; errors.Is(err, engine.ErrNoAnswer) && tries < 5; tries++ { // the machine is very busy
		ok, err = l.TryLock(context.Background(), 0, 0)
	}
	require.NoError(b, err)
	require.Equal(b, want, ok, "TryLock answers")
}

// isLocked makes sure that l is locked, or free. A request that had no answer on a busy machine may take a free lock once more, and
// is undone within lateUndo.
func (b *bench) isLocked(l Locker, want bool) {
	b.Helper()
	const lateUndo = 4 * time.Second
	for end := time.Now().Add(lateUndo); ; time.Sleep(10 * time.Millisecond) {
		got, err := l.IsLocked(context.Background())
		require.NoError(b, err)
		if got == want || want || time.Now().After(end) {
			require.Equal(b, want, got, "IsLocked answers")
			return
		}
	}
}

func (b *bench) holds(l Locker, want int) {
	b.Helper()
	n, err := l.HoldCount(context.Background())
	require.NoError(b, err)
	require.Equal(b, want, n, "HoldCount answers")
	held, err := l.IsHeld(context.Background())
	require.NoError(b, err)
	require.Equal(b, want > 0, held, "IsHeld answers")
}

// elsewhere runs f on another goroutine and waits for it.
func elsewhere[T any](f func() T) T {
	result := make(chan T)
	go func() { result <- f() }()
	return <-result
}

// startWaiter locks l on another goroutine, and returns once that goroutine waits in
// Redis. The channel delivers the error of Lock.
func (b *bench) startWaiter(ctx context.Context, l Locker) <-chan error {
	b.Helper()
	got := make(chan error, 1)
	go func() { got <- l.Lock(ctx) }()
	testredis.Await(b, "a waiter is subscribed", soon, func() bool {
		channels, err := b.rdb.PubSubChannels(context.Background(), "*"+b.name+"*").Result()
		return err == nil && len(channels) > 0
	})
	return got
}

func await[T any](b *bench, what string, c <-chan T) T {
	b.Helper()
	return awaitFor(b, what, c, soon)
}

func awaitFor[T any](b *bench, what string, c <-chan T, limit time.Duration) T {
	b.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(limit):
		require.Fail(b, "waited in vain", what)
		panic("unreachable")
	}
}

// A counter counts the commands that a client sends.
type counter struct{ n atomic.Int64 }

func (c *counter) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			c.n.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// testLocker runs the suite for locks that newLock makes: locks that exclude one
// another, whichever client made them.
func testLocker(t *testing.T, newLock lockMaker) {
	suite{newLock: newLock, rival: newLock}.run(t)
}

// A suite has the tests of every lock type.
type suite struct {
	newLock lockMaker
	rival   lockMaker     // of locks that exclude newLock's
	shared  bool          // newLock's do not exclude one another
	nodes   int           // servers that a lock needs; 0: one
	least   time.Duration // the least lease; 0: 1ms
	without string        // the tests that are not for this type, or ""
}

type suiteTest struct {
	name string
	test func(b *bench)
}

func (s suite) run(t *testing.T) {
	t.Parallel()
	newLock, rival, shared := s.newLock, s.rival, s.shared
	ctx := context.Background()
	tests := []suiteTest{
		{"Excludes", func(b *bench) {
			clients := []*Client{b.client(), b.client(), b.client()}
			var together section
			var sections atomic.Int64
			var wg sync.WaitGroup
			for _, c := range clients {
				for i := range 4 {
					l, alone := newLock(c, b.name), !shared
					if i%2 == 0 {
						l, alone = rival(c, b.name), true
					}
					waitgroup.Go(&wg, func() {
						for range 15 {
							if !assert.NoError(b, l.Lock(ctx)) {
								return
							}
							together.visit(b, alone, 0)
							sections.Add(1)
							assert.NoError(b, l.Unlock(ctx))
						}
					})
				}
			}
			wg.Wait()
			assert.Equal(b, int64(180), sections.Load(), "sections")
		}},
		{"Reenters", func(b *bench) {
			c := b.client()
			l, same := newLock(c, b.name), newLock(c, b.name)
			b.must(l.Lock(ctx))
			b.must(same.Lock(ctx)) // another value is the same lock
			b.tries(l, true)
			b.holds(same, 3)
			b.must(l.Unlock(ctx))
			b.must(l.Unlock(ctx))
			b.holds(l, 1)
			b.tries(rival(b.client(), b.name), false)
			b.must(same.Unlock(ctx))
			b.holds(l, 0)
			b.mustBe(l.Unlock(ctx), ErrNotHeld)
			b.isLocked(l, false)
		}},
		{"UnlockIsForTheOwner", func(b *bench) {
			l := newLock(b.client(), b.name)
			b.must(l.Lock(ctx))
			err := elsewhere(func() error { return l.Unlock(ctx) })
			b.mustBe(err, ErrNotHeld)
			assert.NotErrorIs(b, err, ErrLockLost)
			assert.ErrorContains(b, err, b.name)
			assert.ErrorContains(b, err, "unlock")
			b.mustBe(newLock(b.client(), b.name).Unlock(ctx), ErrNotHeld)
			b.holds(l, 1)
			b.must(l.Unlock(ctx))
			b.mustBe(l.Unlock(ctx), ErrNotHeld)
		}},
		{"OwnerOfACtx", func(b *bench) {
			c := b.client()
			l := newLock(c, b.name)
			one, two := WithOwner(ctx), WithOwner(ctx)
			b.must(l.Lock(one))
			ok, err := rival(c, b.name).TryLock(two, 0, 0)
			assert.NoError(b, err)
			assert.False(b, ok, "another owner on the same goroutine")
			b.must(elsewhere(func() error { return l.Lock(one) }))
			n, err := l.HoldCount(one)
			assert.NoError(b, err)
			assert.Equal(b, 2, n, "levels")
			b.mustBe(l.Unlock(ctx), ErrNotHeld)
			b.mustBe(l.Unlock(two), ErrNotHeld)
			derived, cancel := context.WithCancel(one)
			cancel()
			b.must(l.Unlock(derived)) // and an ended ctx unlocks
			b.must(elsewhere(func() error { return l.Unlock(one) }))
			b.isLocked(l, false)
		}},
		{"TryLockGivesUp", func(b *bench) {
			held := rival(b.client(), b.name)
			b.must(held.Lock(ctx))
			l := newLock(b.client(), b.name)
			for _, wait := range []time.Duration{0, 1, 20 * time.Millisecond, 300 * time.Millisecond} {
				start := time.Now()
				ok, err := l.TryLock(ctx, wait, 0)
				for tries := 0; errors.Is(err, engine.ErrNoAnswer) && tries < 5; tries++ { // the machine is very busy
					start = time.Now()
					ok, err = l.TryLock(ctx, wait, 0)
				}
				took := time.Since(start)
				assert.NoError(b, err)
				assert.False(b, ok, "wait %v", wait)
				assert.GreaterOrEqual(b, took, wait, "time of a TryLock")
				assert.LessOrEqual(b, took, wait+soon, "time of a TryLock")
			}
			b.must(held.Unlock(ctx))
			b.tries(l, true)
			b.must(l.Unlock(ctx))
		}},
		{"WaiterIsWokenByTheRelease", func(b *bench) {
			held, l := rival(b.client(), b.name), newLock(b.client(WithMaxWakeDelay(time.Hour)), b.name)
			for range 3 {
				b.must(held.Lock(ctx))
				got := b.startWaiter(WithOwner(ctx), l)
				b.must(held.Unlock(ctx))
				b.must(await(b, "the waiter is woken", got))
				freed, err := l.ForceUnlock(ctx)
				require.NoError(b, err)
				require.True(b, freed)
			}
		}},
		{"WaiterIsWokenByForce", func(b *bench) {
			held, l := rival(b.client(), b.name), newLock(b.client(WithMaxWakeDelay(time.Hour)), b.name)
			b.must(held.Lock(ctx))
			owner := WithOwner(ctx)
			got := b.startWaiter(owner, l)
			freed, err := held.ForceUnlock(ctx)
			require.NoError(b, err)
			require.True(b, freed)
			b.must(await(b, "the waiter is woken", got))
			b.must(l.Unlock(owner))
		}},
		{"CtxEndsTheWait", func(b *bench) {
			held, l := rival(b.client(), b.name), newLock(b.client(), b.name)
			b.must(held.Lock(ctx))
			waiting, cancel := context.WithCancel(ctx)
			got := b.startWaiter(waiting, l)
			local := make(chan error, 1)
			go func() { local <- l.Lock(waiting) }() // behind the first, in the local queue
			cancel()
			for _, c := range []<-chan error{got, local} {
				err := await(b, "the waiter gives up", c)
				b.mustBe(err, context.Canceled)
				assert.ErrorContains(b, err, b.name)
				assert.ErrorContains(b, err, "lock")
			}
			deadline, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
			defer cancel()
			b.mustBe(l.Lock(deadline), context.DeadlineExceeded)
			b.must(held.Unlock(ctx))
			testredis.Await(b, "nobody has it", soon, func() bool { // who gave up may still be on the way out
				locked, err := l.IsLocked(ctx)
				return !locked && err == nil
			})
			ok, err := l.TryLock(ctx, soon, 0)
			assert.NoError(b, err)
			assert.True(b, ok, "TryLock")
			b.must(l.Unlock(ctx))
		}},
		{"EndedCtxSendsNothing", func(b *bench) {
			rdb := testredis.Client(b, b.addr)
			sent := new(counter)
			rdb.AddHook(sent)
			l := newLock(b.clientOn(rdb), b.name)
			ended, cancel := context.WithCancel(ctx)
			cancel()
			b.mustBe(l.Lock(ended), context.Canceled)
			b.mustBe(l.LockLease(ended, time.Second), context.Canceled)
			_, err := l.TryLock(ended, time.Second, 0)
			b.mustBe(err, context.Canceled)
			b.mustBe(l.Do(ended, func(context.Context) error { assert.Fail(b, "called"); return nil }), context.Canceled)
			_, err = l.IsLocked(ended)
			b.mustBe(err, context.Canceled)
			_, err = l.ForceUnlock(ended)
			b.mustBe(err, context.Canceled)
			assert.Zero(b, sent.n.Load(), "requests")
		}},
		{"WatchdogKeepsTheLease", func(b *bench) {
			const lease = 3 * time.Second
			l := newLock(b.client(WithWatchdogTimeout(lease)), b.name)
			b.must(l.Lock(ctx))
			ok, err := l.TryLock(ctx, 0, 10*time.Millisecond)
			require.NoError(b, err)
			require.True(b, ok) // a short lease of a nested level changes nothing
			b.must(l.Unlock(ctx))
			guarded, err := l.Guard(ctx)
			b.must(err)
			for start := time.Now(); time.Since(start) < lease+lease/6; time.Sleep(lease / 60) {
				ttl, err := l.TTL(ctx)
				require.NoError(b, err)
				require.Positive(b, ttl, "TTL")
				require.LessOrEqual(b, ttl, lease, "TTL")
			}
			require.NoError(b, context.Cause(guarded))
			b.must(l.Unlock(ctx))
		}},
		{"LeaseLapses", func(b *bench) {
			const lease = 600 * time.Millisecond
			l, next := newLock(b.client(), b.name), rival(b.client(), b.name)
			start := time.Now()
			b.must(l.LockLease(ctx, lease))
			guarded, err := l.Guard(ctx)
			b.must(err)
			b.must(next.Lock(ctx)) // waits for no message: there is no Unlock
			// The clock of miniredis moves in steps, and may be behind when the lease begins.
			assert.GreaterOrEqual(b, time.Since(start), lease-lease/10, "the next owner got the lock before the lease was over")
			await(b, "the guard ends", guarded.Done())
			b.mustBe(context.Cause(guarded), ErrLockLost)
			b.holds(l, 0)
			b.mustBe(l.Unlock(ctx), ErrLockLost)
			b.holds(next, 1)
			b.must(next.Unlock(ctx))
			b.must(l.Lock(ctx)) // fresh
			b.holds(l, 1)
			b.must(l.Unlock(ctx))
		}},
		{"LapsedLeaseNeedsNoUnlock", func(b *bench) {
			l := newLock(b.client(), b.name)
			for range 3 {
				ok, err := l.TryLock(ctx, soon, 500*time.Millisecond)
				require.NoError(b, err)
				require.True(b, ok)
				guarded, err := l.Guard(ctx)
				if err == nil {
					await(b, "the lease ends", guarded.Done())
				}
			}
			b.must(l.Lock(ctx))
			b.holds(l, 1)
			b.must(l.Unlock(ctx))
		}},
		{"LeasesDoNotAddUp", func(b *bench) {
			l := newLock(b.client(), b.name)
			b.must(l.LockLease(ctx, 60*time.Second))
			b.must(l.LockLease(ctx, 10*time.Second))
			ttl, err := l.TTL(ctx)
			b.must(err)
			assert.LessOrEqual(b, ttl, 60*time.Second, "TTL after leases of 60s and 10s")
			assert.GreaterOrEqual(b, ttl, 50*time.Second, "TTL after leases of 60s and 10s")
			b.must(l.LockLease(ctx, 100*time.Second))
			ttl, err = l.TTL(ctx)
			b.must(err)
			assert.LessOrEqual(b, ttl, 100*time.Second, "TTL after another lease of 100s")
			assert.GreaterOrEqual(b, ttl, 90*time.Second, "TTL after another lease of 100s")
			for range 3 {
				b.must(l.Unlock(ctx))
			}
		}},
		{"LossEndsTheGuard", func(b *bench) {
			const lease = 1500 * time.Millisecond
			l := newLock(b.client(WithWatchdogTimeout(lease)), b.name)
			b.must(l.Lock(ctx))
			guarded, err := l.Guard(ctx)
			b.must(err)
			b.forget()
			await(b, "the guard ends", guarded.Done())
			b.mustBe(context.Cause(guarded), ErrLockLost)
			_, err = l.Guard(ctx)
			b.mustBe(err, ErrLockLost)
			b.holds(l, 0)
			b.mustBe(l.Unlock(ctx), ErrLockLost)
			b.mustBe(l.Unlock(ctx), ErrNotHeld)
			b.must(l.Lock(ctx))
			b.must(l.Unlock(ctx))
		}},
		{"ReentryAfterALoss", func(b *bench) {
			l := newLock(b.client(), b.name)
			b.must(l.Lock(ctx))
			b.forget()
			b.mustBe(l.Lock(ctx), ErrLockLost)
			b.isLocked(l, false)
			b.mustBe(l.Unlock(ctx), ErrLockLost)
			b.must(l.Lock(ctx))
			b.holds(l, 1)
			b.must(l.Unlock(ctx))
		}},
		{"UnlockAfterALoss", func(b *bench) {
			l, next := newLock(b.client(), b.name), rival(b.client(), b.name)
			b.must(l.Lock(ctx))
			b.forget()
			b.must(next.Lock(ctx))
			b.mustBe(l.Unlock(ctx), ErrLockLost)
			b.holds(next, 1)
			b.must(next.Unlock(ctx))
		}},
		{"GuardEndsWithTheLastUnlock", func(b *bench) {
			l := newLock(b.client(), b.name)
			_, err := l.Guard(ctx)
			b.mustBe(err, ErrNotHeld)
			b.must(l.Lock(ctx))
			b.must(l.Lock(ctx))
			type key struct{}
			guarded, err := l.Guard(context.WithValue(ctx, key{}, "value"))
			b.must(err)
			b.must(l.Unlock(ctx))
			require.NoError(b, guarded.Err(), "the guard ended while the lock is held")
			require.Equal(b, "value", guarded.Value(key{}), "the guard lost its values")
			b.must(l.Unlock(ctx))
			assert.Error(b, guarded.Err())
			assert.Equal(b, context.Canceled, context.Cause(guarded), "cause")
		}},
		{"Do", func(b *bench) {
			l := newLock(b.client(), b.name)
			ran := false
			b.must(l.Do(ctx, func(guarded context.Context) error {
				ran = true
				b.holds(l, 1)
				return guarded.Err()
			}))
			assert.True(b, ran, "fn was not called")
			b.holds(l, 0)
			err := l.Do(ctx, func(context.Context) error { return io.ErrNoProgress })
			assert.ErrorIs(b, err, io.ErrNoProgress)
			assert.NotErrorIs(b, err, ErrNotHeld)
			err = l.Do(ctx, func(guarded context.Context) error {
				b.forget()
				return io.ErrNoProgress
			})
			b.mustBe(err, io.ErrNoProgress)
			b.mustBe(err, ErrLockLost)
			b.isLocked(l, false)
		}},
		{"DoPanics", func(b *bench) {
			l := newLock(b.client(), b.name)
			func() {
				defer func() {
					assert.Equal(b, "mine", recover(), "recovered")
				}()
				_ = l.Do(ctx, func(context.Context) error { panic("mine") })
			}()
			b.isLocked(l, false)
			b.holds(l, 0)
		}},
		{"DoWithoutAFunction", func(b *bench) {
			rdb := testredis.Client(b, b.addr)
			sent := new(counter)
			rdb.AddHook(sent)
			l := newLock(b.clientOn(rdb), b.name)
			err := l.Do(ctx, nil)
			b.mustBe(err, ErrInvalid)
			assert.ErrorContains(b, err, "do ")
			assert.ErrorContains(b, err, b.name)
			assert.Zero(b, sent.n.Load(), "requests")
			b.holds(l, 0)
		}},
		{"Close", func(b *bench) {
			c := b.client()
			l, held := newLock(c, b.name), rival(b.client(), b.name)
			mine := newLock(c, b.name+"-mine")
			b.must(held.Lock(ctx))
			b.must(mine.Lock(ctx))
			guarded, err := mine.Guard(ctx)
			b.must(err)
			got := b.startWaiter(ctx, l)
			local := make(chan error, 1)
			go func() { local <- l.Lock(ctx) }()
			b.must(c.Close())
			b.mustBe(await(b, "the waiter is woken", got), ErrClosed)
			b.mustBe(await(b, "the local waiter is woken", local), ErrClosed)
			await(b, "the guard ends", guarded.Done())
			b.mustBe(context.Cause(guarded), ErrClosed)
			for name, err := range map[string]error{
				"Lock":      l.Lock(ctx),
				"LockLease": l.LockLease(ctx, time.Second),
				"TryLock":   second(l.TryLock(ctx, 0, 0)),
				"Do":        l.Do(ctx, func(context.Context) error { return nil }),
				"Guard":     second(mine.Guard(ctx)),
				"IsLocked":  second(l.IsLocked(ctx)),
				"IsHeld":    second(l.IsHeld(ctx)),
				"HoldCount": second(l.HoldCount(ctx)),
				"TTL":       second(l.TTL(ctx)),
				"Force":     second(l.ForceUnlock(ctx)),
			} {
				assert.ErrorIs(b, err, ErrClosed, "%s after Close", name)
			}
			b.isLocked(newLock(b.client(), b.name+"-mine"), true)
			b.must(mine.Unlock(ctx))
			b.isLocked(newLock(b.client(), b.name+"-mine"), false)
			b.must(held.Unlock(ctx))
			b.must(c.Close())
		}},
		{"ForceUnlock", func(b *bench) {
			c := b.client(WithWatchdogTimeout(time.Hour))
			l, other := newLock(c, b.name), newLock(b.client(), b.name)
			freed, err := l.ForceUnlock(ctx)
			assert.NoError(b, err)
			assert.False(b, freed, "ForceUnlock of a free lock")
			b.must(l.Lock(ctx))
			freed, err = other.ForceUnlock(ctx)
			require.NoError(b, err)
			require.True(b, freed)
			b.isLocked(l, false)
			b.mustBe(l.Unlock(ctx), ErrLockLost)

			// The holders of this client notice the loss at once.
			b.must(l.Lock(ctx))
			guarded, err := l.Guard(ctx)
			b.must(err)
			freed, err = elsewhere(func() pair[bool] { return pairOf(l.ForceUnlock(ctx)) }).get()
			require.NoError(b, err)
			require.True(b, freed)
			await(b, "the guard ends", guarded.Done())
			b.mustBe(context.Cause(guarded), ErrLockLost)
			b.mustBe(l.Unlock(ctx), ErrLockLost)
		}},
		{"Queries", func(b *bench) {
			l, other := newLock(b.client(), b.name), newLock(b.client(), b.name)
			assert.Contains(b, l.Name(), b.name, "name")
			b.isLocked(l, false)
			b.holds(l, 0)
			ttl, err := l.TTL(ctx)
			assert.NoError(b, err)
			assert.Zero(b, ttl, "TTL")
			b.must(l.LockLease(ctx, time.Minute))
			b.isLocked(l, true)
			b.isLocked(other, true)
			b.holds(l, 1)
			b.holds(other, 0)
			assert.Zero(b, elsewhere(func() int { n, _ := l.HoldCount(ctx); return n }), "levels of another goroutine")
			for _, l := range []Locker{l, other} {
				ttl, err := l.TTL(ctx)
				if assert.NoError(b, err) {
					assert.LessOrEqual(b, ttl, time.Minute, "TTL")
					assert.GreaterOrEqual(b, ttl, 50*time.Second, "TTL")
				}
			}
			b.must(l.Unlock(ctx))
		}},
		{"BadInput", func(b *bench) {
			rdb := testredis.Client(b, b.addr)
			sent := new(counter)
			rdb.AddHook(sent)
			c := b.clientOn(rdb)
			l := newLock(c, b.name)
			var nilCtx context.Context
			for name, err := range map[string]error{
				"lease 0":        l.LockLease(ctx, 0),
				"lease -1s":      l.LockLease(ctx, -time.Second),
				"lease 999µs":    l.LockLease(ctx, 999*time.Microsecond),
				"try lease -1s":  second(l.TryLock(ctx, 0, -time.Second)),
				"try lease 1ns":  second(l.TryLock(ctx, 0, 1)),
				"try wait -1ns":  second(l.TryLock(ctx, -1, 0)),
				"nil ctx":        l.Lock(nilCtx),
				"nil ctx unlock": l.Unlock(nilCtx),
				"nil ctx guard":  second(l.Guard(nilCtx)),
				"empty name":     newLock(c, "").Lock(ctx),
				"empty unlock":   newLock(c, "").Unlock(ctx),
				"empty force":    second(newLock(c, "").ForceUnlock(ctx)),
				"empty held":     second(newLock(c, "").IsHeld(ctx)),
				"long name":      newLock(c, strings.Repeat("x", longestName+1)).Lock(ctx),
				"nil client":     newLock(nil, b.name).Lock(ctx),
			} {
				if assert.ErrorIs(b, err, ErrInvalid, name) {
					assert.LessOrEqual(b, len(err.Error()), 300, "%s: length of the error", name)
				}
			}
			assert.Zero(b, sent.n.Load(), "requests")
		}},
		{"Leases", func(b *bench) {
			l := newLock(b.client(), b.name)
			for _, c := range []struct{ lease, most time.Duration }{
				{time.Hour + 1, time.Hour + time.Millisecond},
				{1<<63 - 1, 1<<63 - 1},
			} {
				b.must(l.LockLease(ctx, c.lease))
				ttl, err := l.TTL(ctx)
				b.must(err)
				assert.LessOrEqual(b, ttl, c.most, "TTL for a lease of %v", c.lease)
				assert.GreaterOrEqual(b, ttl, c.most-time.Minute, "TTL for a lease of %v", c.lease)
				b.holds(l, 1)
				b.must(l.Unlock(ctx))
			}
			for range 20 { // over before it is held, or nearly so
				// It may also end while it is asked for once more.
				if err := l.LockLease(ctx, max(s.least, time.Millisecond)); err != nil {
					require.ErrorIs(b, err, ErrLockLost)
				}
			}
			testredis.Await(b, "the last lease ends", soon, func() bool {
				locked, err := l.IsLocked(ctx)
				return err == nil && !locked
			})
		}},
		{"Names", func(b *bench) {
			c, other := b.client(), b.client()
			for _, name := range []string{
				"a b", "{tag}", "x{tag}y", "tag}", "{", "}{", "Schlüssel-鎖-🔒", "zero\x00byte", "new\nline", "\xff\xfe",
				"a:b:c", "*", strings.Repeat("long", 2560),
			} {
				name = b.name + name
				l := newLock(c, name)
				b.must(l.Lock(ctx))
				b.must(l.Lock(ctx))
				b.tries(rival(other, name), false)
				b.tries(newLock(other, name+"x"), true)
				b.must(newLock(other, name+"x").Unlock(ctx))
				b.must(l.Unlock(ctx))
				b.holds(l, 1)
				b.must(l.Unlock(ctx))
				b.isLocked(l, false)
			}
		}},
		{"StrangeKey", func(b *bench) {
			for _, rdb := range b.nodes {
				b.must(rdb.Set(ctx, b.name, "somebody else's", 0).Err())
			}
			l := newLock(b.client(), b.name)
			deadline, cancel := context.WithTimeout(ctx, 20*soon)
			defer cancel()
			for name, err := range map[string]error{
				"Lock":     l.Lock(deadline),
				"TryLock":  second(l.TryLock(ctx, time.Hour, 0)),
				"IsLocked": second(l.IsLocked(ctx)),
				"Force":    second(l.ForceUnlock(ctx)),
			} {
				assert.ErrorIs(b, err, ErrNotALock, name)
				assert.NotErrorIs(b, err, context.DeadlineExceeded, name)
			}
			b.mustBe(l.Unlock(ctx), ErrNotHeld)
			v, err := b.rdb.Get(ctx, b.name).Result()
			assert.NoError(b, err)
			assert.Equal(b, "somebody else's", v, "the key is now")
			b.forget()
		}},
		{"ManyOwnersRandomly", func(b *bench) {
			var together section
			var wg sync.WaitGroup
			for i := range 3 {
				c := b.client(WithMaxWakeDelay(100 * time.Millisecond))
				for j := range 4 {
					rng := newRand(10*i + j)
					l, exclusive := newLock(c, b.name), !shared
					if j%2 == 0 {
						l, exclusive = rival(c, b.name), true
					}
					waitgroup.Go(&wg, func() {
						for range 20 {
							lockCtx, cancel := ctx, context.CancelFunc(func() {})
							var lease, wait time.Duration = 0, time.Hour
							switch rng.IntN(4) {
							case 0:
								lockCtx, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(int(20*time.Millisecond))))
							case 1:
								wait = time.Duration(rng.IntN(int(20 * time.Millisecond)))
							case 2:
								lease = 10 * time.Second
							}
							ok, err := l.TryLock(lockCtx, wait, lease)
							cancel()
							if err != nil && lockCtx.Err() == nil { // on a machine that is very busy
								assert.ErrorIs(b, err, engine.ErrNoAnswer)
							}
							if !ok {
								continue
							}
							together.visit(b, exclusive, time.Duration(rng.IntN(int(2*time.Millisecond))))
							assert.NoError(b, l.Unlock(ctx))
						}
					})
				}
			}
			wg.Wait()
		}},
	}
	onEachServer(t, func(t *testing.T, addr string) {
		var others []string
		mini := strings.HasSuffix(t.Name(), "miniredis")
		for range s.nodes - 1 {
			if mini {
				others = append(others, testredis.Mini(t).Addr())
			} else {
				others = append(others, testredis.Start(t).Addr())
			}
		}
		rules := tests
		if !mini || strings.HasPrefix(t.Name(), "TestLock/") || full(0, 1) > 0 { // a Hold is no matter of the server
			rules = slices.Concat(rules, s.holdTests())
		}
		for _, test := range rules {
			if slices.Contains(strings.Fields(s.without), test.name) {
				continue
			}
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, addr, others...)
				b.opts = []Option{WithNodeTimeout(2 * time.Second)} // on a machine that is busy with something else
				test.test(b)
			})
		}
	})
}

// A section is protected by the locks of a test: one exclusive owner may be inside, or
// several shared ones.
type section struct{ alone, shared atomic.Int64 }

func (s *section) visit(b *bench, exclusive bool, stay time.Duration) {
	mine := &s.shared
	if exclusive {
		mine = &s.alone
	}
	mine.Add(1)
	alone, others := s.alone.Load(), s.shared.Load()
	assert.LessOrEqual(b, alone, int64(1), "exclusive owners inside, with %d shared ones", others)
	if alone == 1 {
		assert.Zero(b, others, "shared owners inside with an exclusive one")
	}
	time.Sleep(stay)
	mine.Add(-1)
}

func second[T any](_ T, err error) error { return err }

type pair[T any] struct {
	value T
	err   error
}

func pairOf[T any](value T, err error) pair[T] { return pair[T]{value, err} }

func (p pair[T]) get() (T, error) { return p.value, p.err }
