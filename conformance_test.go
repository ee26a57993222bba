package relock

// The rules that every lock type must keep, whatever its record looks like. The test file of a lock type calls
// testLocker, and adds the rules of that type.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A lockMaker creates the lock under test.
type lockMaker func(c *Client, name string) Locker

// A lockKind is a type of lock, and what the tests for every type have to know about it.
type lockKind struct {
	name       string
	one, rival lockMaker // with one name they exclude one another

	record string // the Redis type of the key of the lock
	shared bool   // owners of one do not exclude one another
	// The sorted set of the holds and when their leases expire; nil if both are in the record.
	holds func(name string) string
	// Additional keys of a hold expire with its lease if the record was replaced.
	lapses bool
	// Whether a free lock of this type leaves key; nil if it leaves nothing.
	leaves func(rdb redis.UniversalClient, key string) bool
}

// recordLocks are the lock types that have a record in Redis.
var recordLocks = []lockKind{
	{name: "lock", one: newPlainLock, rival: newPlainLock, record: "hash"},
	{name: "fenced", one: newFencedLock, rival: newFencedLock, record: "hash"},
	{name: "fair", one: newFairLock, rival: newFairLock, record: "hash"},
	{name: "read", one: newReadLock, rival: newWriteLock, record: "hash", shared: true, lapses: true},
	{name: "write", one: newWriteLock, rival: newReadLock, record: "hash"},
	{
		name:   "semaphore",
		one:    newSemaphore,
		rival:  newSemaphore,
		record: "string",
		holds:  permitsKey,
		lapses: true,
		leaves: onlyFree,
	},
}

// kindCalled returns the row of recordLocks with this name.
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

// onEachServer runs test on a miniredis and on a real Redis; in the plain form on a miniredis only without a Redis.
func onEachServer(t *testing.T, test func(t *testing.T, addr string)) {
	t.Run("miniredis", func(t *testing.T) {
		if testredis.Available() {
			testredis.OnlyLong(t)
		}
		test(t, testredis.Mini(t).Addr())
	})
	t.Run("redis", func(t *testing.T) { test(t, testredis.Start(t).Addr()) })
}

// A bench belongs to one test: a Redis, and a name of its own in it.
type bench struct {
	*testing.T
	addr  string
	name  string
	rdb   *redis.Client
	nodes []*redis.Client // rdb, and clients of other servers
	opts  []Option        // the options of its clients
}

var benches atomic.Int64

// patient makes a client of the test itself wait for answers as long as the test does. The Clients under test have the
// defaults of go-redis.
func patient(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = soon, soon }

func newBench(t *testing.T, addr string, others ...string) *bench {
	testredis.Enter(t)
	b := &bench{
		T: t, addr: addr, rdb: testredis.Client(t, addr, patient),
		name: fmt.Sprintf("lock-%06d", benches.Add(1)), // no name is part of another one: see keys
	}
	b.nodes = []*redis.Client{b.rdb}
	for _, other := range others {
		b.nodes = append(b.nodes, testredis.Client(t, other, patient))
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
	var all []*Client // the Clients on the other servers; closed after c, whose RedLocks consist of their locks
	if rdb, ok := rdb.(*redis.Client); ok && len(b.nodes) > 1 && rdb.Options().Addr == b.addr {
		for _, node := range b.nodes[1:] {
			all = append(all, b.clientOn(testredis.Client(b, node.Options().Addr), opts...))
		}
	}
	quiet := []Option{WithLogger(slog.New(slog.DiscardHandler)), WithLabel("")} // most tests count what is sent, or left
	c, err := New(rdb, append(append(quiet, b.opts...), opts...)...)
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

// siblings are the Clients on the other servers of a bench, by the Client on the first one.
var siblings sync.Map // *Client -> []*Client

// keys returns the keys in Redis that belong to the bench's name, without those that free locks leave.
func (b *bench) keys() []string { return b.keysOn(b.rdb) }

func (b *bench) keysOn(rdb *redis.Client) []string {
	keys, err := rdb.Keys(context.Background(), "*"+b.name+"*").Result()
	require.NoError(b, err)
	return slices.DeleteFunc(keys, func(key string) bool { return isLeftFree(rdb, key) })
}

// isLeftFree reports whether key is one that free locks leave: tombstones in a line, or the keys of its row.
func isLeftFree(rdb redis.UniversalClient, key string) bool {
	return onlyTombstones(rdb, key) ||
		slices.ContainsFunc(recordLocks, func(k lockKind) bool { return k.leaves != nil && k.leaves(rdb, key) })
}

// forget makes Redis lose all keys that belong to the bench's name.
func (b *bench) forget() {
	b.Helper()
	for _, rdb := range b.nodes {
		if keys := b.keysOn(rdb); len(keys) > 0 {
			b.must(rdb.Del(context.Background(), keys...).Err())
		}
	}
}

// onlyTombstones reports whether key is a line without entries, or the tombstone of a reader that has left: they keep
// fields for a while that must no longer acquire the lock, because a request with them may still run. Both have a lease.
func onlyTombstones(rdb redis.UniversalClient, key string) bool {
	if strings.HasSuffix(key, ":rwlock_timeout:0") {
		value, err := rdb.Get(context.Background(), key).Result()
		if redis.HasErrorPrefix(err, "MOVED") { // a replica: its master is looked at, too
			return true
		}
		left := rdb.PTTL(context.Background(), key).Val()
		return value == "0" && left > 0 && left <= late.Life
	}
	if !strings.HasPrefix(key, "relock_line:") || rdb.PTTL(context.Background(), key).Val() == -1 {
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

// checkNothingLeaks checks that a Client which holds no lock has no lock state in use, which every call has, and no
// listener and no waiter left. Close would end them, so it runs before Close.
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

// tries makes one attempt on l, whose result must be want.
func (b *bench) tries(l Locker, want bool) {
	b.Helper()
	ok, err := untilAnswered(func() (bool, error) { return l.TryLock(context.Background(), 0, 0) })
	require.NoError(b, err)
	require.Equal(b, want, ok, "TryLock answers")
}

// untilAnswered calls try until Redis answers it: on a very busy machine that may be later than the call waits.
func untilAnswered(try func() (bool, error)) (ok bool, err error) {
	ok, err = try()
	for end := time.Now().Add(soon); errors.Is(err, engine.ErrNoAnswer) && time.Now().Before(end); {
		ok, err = try()
	}
	return ok, err
}

// isLocked checks that l is locked, or free. A request that had no answer on a busy machine may acquire a free lock
// once more, and is rolled back within lateUndo.
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

// startWaiter locks l on another goroutine, and returns when that goroutine waits in Redis. The channel delivers the
// error of Lock.
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

// testLocker runs the suite for the locks that newLock creates: locks that exclude one another, whichever Client
// created them.
func testLocker(t *testing.T, newLock lockMaker) {
	suite{newLock: newLock, rival: newLock}.run(t)
}

// A suite has the tests of every lock type.
type suite struct {
	newLock lockMaker
	rival   lockMaker     // of locks that exclude newLock's
	shared  bool          // the locks of newLock do not exclude one another
	nodes   int           // number of servers that a lock needs; 0 means one
	least   time.Duration // the shortest lease; 0 means 1ms
	without string        // the tests that do not apply to this type, or ""
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
			b.must(same.Lock(ctx)) // another value for the same lock
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
			one, two := ContextWithOwner(ctx), ContextWithOwner(ctx)
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
			b.must(l.Unlock(derived)) // and a canceled context unlocks
			b.must(elsewhere(func() error { return l.Unlock(one) }))
			b.isLocked(l, false)
		}},
		{"TryLockGivesUp", func(b *bench) {
			held := rival(b.client(), b.name)
			b.must(held.Lock(ctx))
			l := newLock(b.client(), b.name)
			for _, wait := range []time.Duration{0, 1, 20 * time.Millisecond, 300 * time.Millisecond} {
				var took time.Duration
				ok, err := untilAnswered(func() (bool, error) {
					start := time.Now()
					defer func() { took = time.Since(start) }()
					return l.TryLock(ctx, wait, 0)
				})
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
			held, l := rival(b.client(), b.name), newLock(b.client(WithPollInterval(time.Hour)), b.name)
			for range 3 {
				b.must(held.Lock(ctx))
				got := b.startWaiter(ContextWithOwner(ctx), l)
				b.must(held.Unlock(ctx))
				b.must(await(b, "the waiter is woken", got))
				freed, err := l.ForceUnlock(ctx)
				require.NoError(b, err)
				require.True(b, freed)
			}
		}},
		{"WaiterIsWokenByForce", func(b *bench) {
			held, l := rival(b.client(), b.name), newLock(b.client(WithPollInterval(time.Hour)), b.name)
			b.must(held.Lock(ctx))
			owner := ContextWithOwner(ctx)
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
			testredis.Await(b, "nobody has it", soon, func() bool { // a caller that gave up may still be on the way out
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
			require.True(b, ok) // an inner acquire with a short lease changes nothing
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
			b.must(next.Lock(ctx)) // no message to wait for: there is no Unlock
			// The clock of miniredis advances in steps, and may be behind when the lease begins.
			assert.GreaterOrEqual(b, time.Since(start), lease-lease/10, "the next owner got the lock before the lease was over")
			await(b, "the guard ends", guarded.Done())
			b.mustBe(context.Cause(guarded), ErrLockLost)
			b.holds(l, 0)
			b.mustBe(l.Unlock(ctx), ErrLockLost)
			b.holds(next, 1)
			b.must(next.Unlock(ctx))
			b.must(l.Lock(ctx)) // a new hold
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
		{"DoTellsALoss", func(b *bench) {
			l := newLock(b.client(), b.name)
			for what, result := range map[string]func(ctx context.Context) error{
				"the error of its context": context.Context.Err,
				"the cause":                context.Cause,
				"both":                     func(ctx context.Context) error { return errors.Join(ctx.Err(), context.Cause(ctx)) },
				"an error that wraps it":   func(ctx context.Context) error { return fmt.Errorf("stopped: %w", ctx.Err()) },
			} {
				err := l.Do(ctx, func(guarded context.Context) error {
					b.forget()
					held, err := l.IsHeld(context.WithoutCancel(guarded)) // notices the loss
					assert.NoError(b, err)
					assert.False(b, held)
					await(b, "the context is canceled", guarded.Done())
					return result(guarded)
				})
				assert.ErrorIs(b, err, ErrLockLost, what)
				assert.NotErrorIs(b, err, context.Canceled, what)
				if what == "an error that wraps it" {
					assert.ErrorContains(b, err, "stopped: ")
				}
				if _, several := l.(*MultiLock); !several {
					assert.Equal(b, 1, strings.Count(err.Error(), "the lock was lost"), "%s: %v", what, err)
				}
			}
			canceled, cancel := context.WithCancel(ctx)
			err := l.Do(canceled, func(guarded context.Context) error {
				cancel()
				return guarded.Err()
			})
			b.mustBe(err, context.Canceled)
			assert.NotErrorIs(b, err, ErrLockLost)
			b.isLocked(l, false)
		}},
		{"DoTellsAShutdown", func(b *bench) {
			for what, result := range map[string]func(ctx context.Context) error{
				"the error of its context": context.Context.Err,
				"the cause":                context.Cause,
				"both":                     func(ctx context.Context) error { return errors.Join(ctx.Err(), context.Cause(ctx)) },
				"an error that wraps it":   func(ctx context.Context) error { return fmt.Errorf("stopped: %w", ctx.Err()) },
				"its own error":            func(context.Context) error { return io.ErrNoProgress },
			} {
				c := b.client()
				l, ended := newLock(c, b.name), make(chan error, 1)
				ran, err := l.TryDo(ctx, soon, func(guarded context.Context) error {
					go func() { ended <- c.Shutdown(ctx) }()
					await(b, "the context is canceled", guarded.Done())
					return result(guarded)
				})
				assert.True(b, ran, what)
				b.must(await(b, "Shutdown ends", ended))
				assert.NotErrorIs(b, err, context.Canceled, what)
				assert.NotErrorIs(b, err, ErrLockLost, what)
				switch what {
				case "its own error":
					assert.Equal(b, io.ErrNoProgress, err, what)
					continue
				case "an error that wraps it":
					assert.ErrorContains(b, err, "stopped: ")
				}
				assert.ErrorIs(b, err, ErrClosed, what)
				assert.Equal(b, 1, strings.Count(err.Error(), ErrClosed.Error()), "%s: %v", what, err)
			}
			c := b.client()
			l, ended := newLock(c, b.name), make(chan error, 1)
			canceled, cancel := context.WithCancel(ctx)
			err := l.Do(canceled, func(guarded context.Context) error {
				cancel()
				err := guarded.Err()
				go func() { ended <- c.Shutdown(ctx) }()
				<-c.engine.UntilShutdown(ctx, time.Time{}).Closed
				return err
			})
			b.mustBe(err, context.Canceled)
			assert.NotErrorIs(b, err, ErrClosed)
			b.must(await(b, "Shutdown ends", ended))
			b.isLocked(newLock(b.client(), b.name), false)
		}},
		{"TryDo", func(b *bench) {
			l, held := newLock(b.client(), b.name), rival(b.client(), b.name)
			called := false
			tries := func(wait time.Duration, f func(context.Context) error) (bool, error) {
				called = false
				ran, err := l.TryDo(ctx, wait, f)
				assert.Equal(b, called, ran, "ran")
				return ran, err
			}
			ran, err := tries(soon, func(guarded context.Context) error {
				called = true
				b.holds(l, 1)
				return guarded.Err()
			})
			b.must(err)
			assert.True(b, ran)
			b.holds(l, 0)
			ran, err = tries(soon, func(context.Context) error {
				called = true
				return io.ErrNoProgress
			})
			assert.True(b, ran)
			b.mustBe(err, io.ErrNoProgress)
			b.must(held.Lock(ctx))
			for _, wait := range []time.Duration{0, 300 * time.Millisecond} {
				for tries := 0; tries < 5; tries++ { // the machine may be very busy
					if ran, err = l.TryDo(ctx, wait, func(context.Context) error { called = true; return nil }); err == nil {
						break
					}
				}
				b.must(err)
				assert.False(b, ran)
			}
			b.must(held.Unlock(ctx))
			ran, err = tries(-1, func(context.Context) error { called = true; return nil })
			assert.False(b, ran)
			b.mustBe(err, ErrInvalid)
			ran, err = tries(soon, nil)
			assert.False(b, ran)
			b.mustBe(err, ErrInvalid)
			assert.ErrorContains(b, err, "trydo ")
			ended, cancel := context.WithCancel(ctx)
			cancel()
			ran, err = l.TryDo(ended, soon, func(context.Context) error { return nil })
			assert.False(b, ran)
			b.mustBe(err, context.Canceled)
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
				"TryDo":     second(l.TryDo(ctx, time.Hour, func(context.Context) error { return nil })),
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
			for range 20 { // expired before it is held, or nearly so
				// It may also expire while it is acquired once more.
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
				c := b.client(WithPollInterval(100 * time.Millisecond))
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
		if !mini || strings.HasPrefix(t.Name(), "TestLock/") || full(0, 1) > 0 { // a Hold does not depend on the server
			rules = slices.Concat(rules, s.holdTests())
		}
		for _, test := range rules {
			if slices.Contains(strings.Fields(s.without), test.name) {
				continue
			}
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, addr, others...)
				b.opts = []Option{WithRedLockNodeTimeout(2 * time.Second)} // on a machine that is busy with other work
				test.test(b)
			})
		}
	})
}

// A section is protected by the locks of a test: one exclusive owner may be inside, or several shared ones.
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

const aUUID = "550e8400-e29b-41d4-a716-446655440000"

// foreignValues write data under a key that no lock writes. Each has the text of its error.
var foreignValues = map[string]struct {
	put  func(ctx context.Context, rdb redis.Cmdable, key string) error
	says string
}{
	"string": {func(ctx context.Context, rdb redis.Cmdable, key string) error {
		return rdb.Set(ctx, key, "five", 0).Err()
	}, "holds a string that does not belong to a lock of this type"},
	"list": {func(ctx context.Context, rdb redis.Cmdable, key string) error {
		return rdb.RPush(ctx, key, "a", "b").Err()
	}, "holds a list that does not belong to a lock of this type"},
	"set": {func(ctx context.Context, rdb redis.Cmdable, key string) error {
		return rdb.SAdd(ctx, key, "a", "b").Err()
	}, "holds a set that does not belong to a lock of this type"},
	"zset": {func(ctx context.Context, rdb redis.Cmdable, key string) error {
		return rdb.ZAdd(ctx, key, redis.Z{Score: 1, Member: "a"}).Err()
	}, "holds a zset that does not belong to a lock of this type"},
	"stream": {func(ctx context.Context, rdb redis.Cmdable, key string) error {
		return rdb.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []any{"a", 1}}).Err()
	}, "holds a stream that does not belong to a lock of this type"},
	"one number":                         foreignHash(`"total"`, "total", 5),
	"numbers":                            foreignHash(``, "total", 5, "lines", 3),
	"texts":                              foreignHash(``, "name", "bob", "mail", "b@x"),
	"a UUID":                             foreignHash(aUUID, aUUID, 1),
	"a UUID and a name":                  foreignHash(aUUID+":bob", aUUID+":bob", 1),
	"a hold with no levels":              foreignHash(aUUID+":7", aUUID+":7", 0),
	"a hold with a text":                 foreignHash(aUUID+":7", aUUID+":7", "yes"),
	"two holds of a lock that holds one": foreignHash(aUUID+":", aUUID+":7", 1, aUUID+":8", 2),
	"a hold and data":                    foreignHash(``, aUUID+":7", 1, "total", 5),
	"a strange mode":                     foreignHash(`"mode"`, "mode", "dark", "size", 5),
	"a mode and data":                    foreignHash(`"theme"`, "mode", "read", "theme", 1),
	"a mode, a hold and data":            foreignHash(`"theme"`, "mode", "write", aUUID+":7:write", 1, "theme", 1),
	"a mode":                             foreignHash(`"mode"`, "mode", "read"),
	"a field that is no text":            foreignHash(`"a\n\x00\"\\ b`, "a\n\x00\"\\ b", 1),
	"an empty field":                     foreignHash(`""`, "", 5),
	"an empty field of a writer":         foreignHash(`":write"`, ":write", 5),
	"a long field":                       foreignHash(`… (5000 bytes)`, strings.Repeat("x", 5000), 1),
}

func foreignHash(field string, pairs ...any) struct {
	put  func(ctx context.Context, rdb redis.Cmdable, key string) error
	says string
} {
	says := "holds a hash that is not a lock (field "
	if strings.HasPrefix(field, `"`) {
		says += field
	}
	return struct {
		put  func(ctx context.Context, rdb redis.Cmdable, key string) error
		says string
	}{func(ctx context.Context, rdb redis.Cmdable, key string) error {
		return rdb.HSet(ctx, key, pairs...).Err()
	}, says}
}

// lockKinds are the lock types that have a record, one more form of a writer, and a lock that consists of others.
var lockKinds = append(slices.Clone(recordLocks),
	lockKind{name: "fenced write", one: newFencedWriteLock, rival: newFencedWriteLock, record: "hash"},
	lockKind{name: "multi", one: newMixedMultiLock, rival: newMixedMultiLock, record: "hash"},
)

func newFencedWriteLock(c *Client, name string) Locker { return c.NewRWLock(name, Fenced()).Write() }

func newMixedMultiLock(c *Client, name string) Locker {
	return c.NewMultiLock(c.NewLock(name+"-before"), c.NewLock(name), c.NewRWLock(name+"-after").Write())
}

// askingMethods are the methods that ask Redis about a lock that the caller does not hold.
var askingMethods = map[string]func(ctx context.Context, c *Client, l Locker, name string) error{
	"Lock": func(ctx context.Context, _ *Client, l Locker, _ string) error { return l.Lock(ctx) },
	"LockLease": func(ctx context.Context, _ *Client, l Locker, _ string) error {
		return l.LockLease(ctx, time.Minute)
	},
	"TryLock(0)": func(ctx context.Context, _ *Client, l Locker, _ string) error {
		return second(l.TryLock(ctx, 0, 0))
	},
	"TryLock": func(ctx context.Context, _ *Client, l Locker, _ string) error {
		return second(l.TryLock(ctx, time.Hour, time.Minute))
	},
	"Do": func(ctx context.Context, _ *Client, l Locker, _ string) error {
		return l.Do(ctx, func(context.Context) error { return nil })
	},
	"TryDo": func(ctx context.Context, _ *Client, l Locker, _ string) error {
		return second(l.TryDo(ctx, time.Hour, func(context.Context) error { return nil }))
	},
	"IsLocked":    func(ctx context.Context, _ *Client, l Locker, _ string) error { return second(l.IsLocked(ctx)) },
	"TTL":         func(ctx context.Context, _ *Client, l Locker, _ string) error { return second(l.TTL(ctx)) },
	"ForceUnlock": func(ctx context.Context, _ *Client, l Locker, _ string) error { return second(l.ForceUnlock(ctx)) },
	"Inspect": func(ctx context.Context, c *Client, _ Locker, name string) error {
		return second(c.Inspect(ctx, name))
	},
}

// content returns the content of a key of any type, and its lease.
func (b *bench) content(key string) string {
	b.Helper()
	ctx := context.Background()
	var all any
	var err error
	switch kind := b.rdb.Type(ctx, key).Val(); kind {
	case "hash":
		var pairs map[string]string
		pairs, err = b.rdb.HGetAll(ctx, key).Result()
		var lines []string
		for _, field := range slices.Sorted(maps.Keys(pairs)) {
			lines = append(lines, field+"="+pairs[field])
		}
		all = lines
	case "list":
		all, err = b.rdb.LRange(ctx, key, 0, -1).Result()
	case "set":
		var members []string
		members, err = b.rdb.SMembers(ctx, key).Result()
		slices.Sort(members)
		all = members
	case "zset":
		all, err = b.rdb.ZRangeWithScores(ctx, key, 0, -1).Result()
	case "stream":
		all, err = b.rdb.XRange(ctx, key, "-", "+").Result()
	case "none":
	default:
		all, err = b.rdb.Get(ctx, key).Result()
	}
	b.must(err)
	return fmt.Sprintf("%v for %v", all, b.rdb.PTTL(ctx, key).Val() >= 0)
}

func TestWhatIsNoLockIsRefusedAndNotTouched(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		for what, foreign := range foreignValues {
			t.Run(what, func(t *testing.T) {
				b := newBench(t, addr)
				c := b.client(WithPollInterval(time.Hour))
				for _, k := range lockKinds {
					kind := k.name
					for method, ask := range askingMethods {
						b.must(foreign.put(context.Background(), b.rdb, b.name))
						before := b.content(b.name)
						ctx, cancel := context.WithTimeout(context.Background(), soon)
						err := ask(ctx, c, k.one(c, b.name), b.name)
						cancel()
						require.ErrorIs(t, err, ErrNotALock, "%s, %s", kind, method)
						says := foreign.says
						if k.record != "hash" && method != "Inspect" { // it reads no fields
							says, _, _ = strings.Cut(says, " that ")
						}
						assert.Contains(t, err.Error(), "the key "+shortName(b.name)+" "+says, "%s, %s", kind, method)
						assert.Contains(t, err.Error(), shortName("lock:"+b.name), "%s, %s", kind, method)
						assert.Less(t, len(err.Error()), 600, "%s, %s", kind, method)
						assert.Equal(t, before, b.content(b.name), "%s, %s", kind, method)
						testredis.Await(t, kind+" "+method+" leaves nothing else", soon, func() bool { return len(b.keys()) == 1 })
						b.forget()
					}
				}
			})
		}
	})
}

// Data that replace a record while the lock is held, or awaited.
func TestWhatTakesThePlaceOfARecordIsNotTouched(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		for _, what := range []string{"string", "one number", "a mode and data"} {
			for _, k := range lockKinds {
				t.Run(what+", "+k.name, func(t *testing.T) {
					t.Parallel()
					ctx := context.Background()
					replaced := func(b *bench) {
						_, err := b.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
							p.Del(ctx, b.name)
							return foreignValues[what].put(ctx, p, b.name)
						})
						b.must(err)
					}
					for method, ask := range map[string]func(l Locker) error{
						"Unlock":    func(l Locker) error { return l.Unlock(ctx) },
						"IsHeld":    func(l Locker) error { return second(l.IsHeld(ctx)) },
						"HoldCount": func(l Locker) error { return second(l.HoldCount(ctx)) },
					} {
						b := newBench(t, addr)
						c := b.client()
						l := k.one(c, b.name)
						require.NoError(t, l.Lock(ctx))
						replaced(b)
						before := b.content(b.name)
						err := ask(l)
						assert.ErrorIs(t, err, ErrNotALock, method)
						if method == "Unlock" {
							assert.ErrorIs(t, err, ErrLockLost, method)
						} else {
							assert.ErrorIs(t, l.Unlock(ctx), ErrNotHeld, method)
						}
						assert.Equal(t, before, b.content(b.name), method)
						b.must(b.rdb.Del(ctx, b.name).Err())
						testredis.Await(t, "all else is given back", soon, func() bool {
							if k.lapses {
								b.forget()
							}
							return !slices.ContainsFunc(
								b.keys(),
								func(key string) bool { return !strings.HasPrefix(key, "redisson_lock_token") },
							)
						})
					}

					if k.holds != nil {
						return // the renewed key is still there
					}
					// The watchdog notices, and a waiter gets the error.
					b := newBench(t, addr)
					holder := k.one(b.client(WithWatchdogTimeout(3*time.Second)), b.name)
					require.NoError(t, holder.Lock(ctx))
					guarded, err := holder.Guard(ctx)
					require.NoError(t, err)
					me := ContextWithOwner(ctx)
					got := b.startWaiter(me, k.rival(b.client(WithPollInterval(50*time.Millisecond)), b.name))
					replaced(b)
					before := b.content(b.name)
					assert.ErrorIs(t, await(b, "the waiter is told", got), ErrNotALock)
					await(b, "the holder is told", guarded.Done())
					assert.ErrorIs(t, context.Cause(guarded), ErrLockLost)
					_ = holder.Unlock(ctx)
					assert.Equal(t, before, b.content(b.name))
					b.must(b.rdb.Del(ctx, b.name).Err())
					testredis.Await(t, "all else is given back", soon, func() bool {
						if k.lapses {
							b.forget()
						}
						return !slices.ContainsFunc(
							b.keys(),
							func(key string) bool { return !strings.HasPrefix(key, "redisson_lock_token") },
						)
					})
				})
			}
		}
	})
}

// An additional key of the lock is named, and the lock is not acquired.
func TestWhatIsNoLockBesideALock(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		for kind, all := range map[string]map[string][]string{
			"fenced":       {"redisson_lock_token:{%s}": {"list", "one number"}},
			"fenced write": {"redisson_lock_token:{%s}": {"set"}, "relock_rwlock_writers:{%s}": {"string", "numbers"}},
			"fair": {
				"redisson_lock_queue:{%s}":   {"string", "one number"},
				"redisson_lock_timeout:{%s}": {"list"},
				"relock_lock_alive:{%s}":     {"string"},
			},
		} {
			for form, whats := range all {
				newLock := lockKinds[slices.IndexFunc(lockKinds, func(k lockKind) bool { return k.name == kind })].one
				for _, what := range whats {
					b := newBench(t, addr)
					ctx, key := context.Background(), fmt.Sprintf(form, b.name)
					b.must(foreignValues[what].put(ctx, b.rdb, key))
					before, c := b.content(key), b.client()
					for n, err := range []error{
						newLock(c, b.name).Lock(ctx), second(newLock(c, b.name).TryLock(ctx, time.Hour, 0)),
						second(c.Inspect(ctx, b.name)),
					} {
						if form == "redisson_lock_timeout:{%s}" && n < 2 { // a waiter reads it
							continue
						}
						require.ErrorIs(t, err, ErrNotALock, "%s, %s", key, what)
						assert.Contains(t, err.Error(), "the key "+shortName(key)+" holds a ", "%s, %s", key, what)
					}
					assert.Equal(t, before, b.content(key), "%s, %s", key, what)
					b.forget()
				}
			}
		}
		b := newBench(t, addr)
		ctx, key := context.Background(), tokenKey(b.name)
		b.must(b.rdb.Set(ctx, key, "many", 0).Err())
		for _, k := range lockKinds {
			if strings.HasPrefix(k.name, "fenced") {
				err := k.one(b.client(), b.name).Lock(ctx)
				require.ErrorIs(t, err, ErrNotALock)
				assert.Contains(t, err.Error(), "the key "+shortName(key)+" holds a token counter that is not a number")
			}
		}
		b.must(b.rdb.Del(ctx, key).Err())
		testredis.Await(t, "nothing is taken", soon, func() bool { return len(b.keys()) == 0 })
	})
}

// A majority of such nodes makes callers fail at once.
func TestRedLockOfWhatIsNoLock(t *testing.T) {
	b := newRedBench(t) // which is parallel
	ctx := context.Background()
	l := b.lock()
	for _, rdb := range b.nodes {
		b.must(rdb.HSet(ctx, b.name, "total", 5).Err())
	}
	within, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	for method, err := range map[string]error{
		"Lock": l.Lock(within), "TryLock": second(l.TryLock(within, time.Hour, 0)),
		"IsLocked": second(l.IsLocked(within)), "TTL": second(l.TTL(within)), "ForceUnlock": second(l.ForceUnlock(within)),
	} {
		assert.ErrorIs(t, err, ErrNotALock, method)
	}
	for _, rdb := range b.nodes {
		assert.Equal(t, map[string]string{"total": "5"}, rdb.HGetAll(ctx, b.name).Val())
	}
	b.forget()
}

// A big hash costs no more than a small one.
func TestABigHashThatIsNoLock(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	ctx := context.Background()
	b := newBench(t, s.Addr())
	many := full(300_000, 1_000_000)
	for from := 0; from < many; from += many / 20 {
		b.must(b.rdb.Eval(ctx, "for i = ARGV[1], ARGV[2] do redis.call('hset', KEYS[1], 'field' .. i, i) end return 1",
			[]string{b.name}, from, from+many/20).Err())
	}
	before := b.worked()
	b.must(b.rdb.Eval(ctx, "return #redis.call('hgetall', KEYS[1])", []string{b.name}).Err())
	whole := b.worked() - before // of the processor, to read all of it once
	for _, mode := range []string{"", "read"} {
		if mode != "" {
			b.must(b.rdb.HSet(ctx, b.name, "mode", mode).Err())
		}
		fields := b.rdb.HLen(ctx, b.name).Val()
		before := b.worked()
		for _, k := range lockKinds {
			for method, ask := range askingMethods {
				c := b.client()
				within, cancel := context.WithTimeout(ctx, soon)
				assert.ErrorIs(t, ask(within, c, k.one(c, b.name), b.name), ErrNotALock, "%s, %s", k.name, method)
				cancel()
			}
		}
		t.Logf("all methods took %v, to read all would take %v", b.worked()-before, whole)
		assert.Less(t, b.worked()-before, whole, "all methods of all lock types together")
		assert.Equal(t, fields, b.rdb.HLen(ctx, b.name).Val())
	}
	b.must(b.rdb.Unlink(ctx, b.name).Err())
	testredis.Await(t, "nothing else is left", soon, func() bool { return len(b.keys()) == 0 })
}

// genuineRecords are records of Redisson and of relock, in every existing form, and whether a reader may acquire the
// lock.
var genuineRecords = map[string]struct {
	pairs  []any
	leases []string // leases of readers
	reads  bool
}{
	"Java":                     {pairs: []any{javaThread, 1}},
	"Java, deep":               {pairs: []any{javaThread, 12345}},
	"Java, negative":           {pairs: []any{javaThread[:37] + "-42", 1}},
	"Java, a transaction":      {pairs: []any{javaThread + ":0123456789abcdef0123456789abcdef", 1}},
	"Java, upper case":         {pairs: []any{strings.ToUpper(javaThread), 1}},
	"relock":                   {pairs: []any{javaThread + ":17", 3}},
	"relock, ContextWithOwner": {pairs: []any{javaThread[:37] + "-9:17", 3}},
	"Java, a writer":           {pairs: []any{"mode", "write", javaThread + ":write", 2}},
	"Java, writer, reader": {
		pairs:  []any{"mode", "write", javaThread + ":write", 2, javaThread, 1},
		leases: []string{javaThread},
	},
	"relock, a writer": {pairs: []any{"mode", "write", javaThread + ":17:write", 1}},
	"Java, a reader":   {pairs: []any{"mode", "read", javaThread, 2}, leases: []string{javaThread}, reads: true},
	"relock, a reader": {
		pairs:  []any{"mode", "read", javaThread + ":17", 1},
		leases: []string{javaThread + ":17"},
		reads:  true,
	},
	"many readers": manyReaders(600),
	"Java, a multi lock of values": {pairs: []any{
		"aZbY0123456789+/aZbY01", javaThread,
		"aZbY0123456789+/aZbY01:" + javaThread + ":expire_time", time.Now().Add(24 * time.Hour).UnixMilli(),
		"aZbY0123456789+/aZbY01:" + javaThread + ":lock_count", 2,
	}},
}

func manyReaders(n int) struct {
	pairs  []any
	leases []string
	reads  bool
} {
	r := struct {
		pairs  []any
		leases []string
		reads  bool
	}{pairs: []any{"mode", "read"}, reads: true}
	for i := range n {
		r.pairs = append(r.pairs, fmt.Sprintf("%s%d", javaThread[:37], i), 1)
		r.leases = append(r.leases, fmt.Sprintf("%s%d", javaThread[:37], i))
	}
	return r
}

func TestEveryGenuineRecordIsALock(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		ctx := context.Background()
		for what, record := range genuineRecords {
			t.Run(what, func(t *testing.T) {
				for _, k := range lockKinds {
					if k.record != "hash" {
						continue
					}
					kind := k.name
					b := newBench(t, addr)
					b.must(b.rdb.HSet(ctx, b.name, record.pairs...).Err())
					b.must(b.rdb.PExpire(ctx, b.name, time.Hour).Err())
					_, err := b.rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
						for _, reader := range record.leases {
							p.Set(ctx, "{"+b.name+"}:"+reader+":rwlock_timeout:1", 1, time.Hour)
						}
						return nil
					})
					b.must(err)
					c := b.client(WithPollInterval(50 * time.Millisecond))
					l := k.one(c, b.name)
					ok, err := l.TryLock(ctx, 0, 0)
					require.NoError(t, err, kind)
					require.Equal(t, record.reads && k.shared, ok, kind)
					if ok {
						require.NoError(t, l.Unlock(ctx))
					}
					_, err = l.IsLocked(ctx)
					require.NoError(t, err, kind)
					_, err = l.TTL(ctx)
					require.NoError(t, err, kind)
					i, err := c.Inspect(ctx, b.name)
					require.NoError(t, err, kind)
					require.True(t, i.Held(), "%+v", i)
					if !record.reads || !k.shared {
						within, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
						require.ErrorIs(t, l.Lock(within), context.DeadlineExceeded, kind)
						cancel()
					}
					_, err = l.ForceUnlock(ctx)
					require.NoError(t, err, kind)
					b.forget()
				}
			})
		}
	})
}
