package relock

// Every lock type under faults between the client and Redis: requests and answers that are lost, late or repeated, and
// connections that die. The comment of each test has the rows of docs/reliability.md that it covers.
//
// Rules: a fault hits exactly what it is meant for, by a rule of the proxy; all
// lock types are tried side by side, because such tests mostly wait.

// Every lock type under faults of Redis itself: it is gone, paused, slow, out of memory, busy, read-only, forgetful or
// strict. The comment of each test has the rows of docs/reliability.md that it covers.
//
// Rules: a real server is brought into the state, with the commands of an
// operator where there are any. A waiter goes on waiting where the trouble
// passes. A holder learns of each loss. No caller gets a lock that was not confirmed.

// Which test covers which fault. The faults are the rows of docs/reliability.md.
//
// Rules: every row names tests that exist, or the reason why it cannot be tested on one machine; the page and this
// table agree.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A faultLock is a lock type, and the requests by which its faults are injected.
type faultLock struct {
	lockKind

	takes, gives, undoes, renews testredis.Match

	asks, parts int  // number of requests of one acquire, and of one release
	red         bool // Lock continues until ctx is done, whatever the nodes answer
}

var faultLocks = []faultLock{
	{kindCalled("lock"), calls(lockAcquire), calls(lockRelease), calls(lockRelease), calls(renewScript), 1, 1, false},
	{kindCalled("fenced"), calls(lockAcquire), calls(lockRelease), calls(lockRelease), calls(renewScript), 1, 1, false},
	{kindCalled("fair"), calls(fairAcquire), calls(fairRelease), calls(fairRelease), calls(renewScript), 1, 1, false},
	{kindCalled("read"), calls(readAcquire), calls(readRelease), calls(readRelease), calls(readRenew), 1, 1, false},
	{kindCalled("write"), calls(writeAcquire), calls(writeRelease), calls(writeRelease), calls(renewScript), 1, 1, false},
	{
		kindCalled("semaphore"),
		calls(semaphoreAcquire),
		calls(semaphoreRelease),
		calls(semaphoreRelease),
		calls(semaphoreRenew),
		1,
		1,
		false,
	},
	{
		lockKind{name: "multi", one: newSlotMultiLock, rival: newSlotMultiLock},
		calls(bundleScript),
		calls(lockRelease),
		calls(lockRelease),
		calls(renewScript),
		1,
		2,
		false,
	},
	{
		lockKind{name: "red", one: newThreeWayLock, rival: newThreeWayLock},
		calls(lockAcquire),
		calls(lockRelease),
		calls(lockRelease),
		calls(renewScript),
		3,
		3,
		true,
	},
}

// lined reports whether processes wait for the lock, or for its parts, in a line, which has their tombstones.
func (k faultLock) lined() bool { return k.name != "read" }

// calls matches the runs of a script.
func calls(script *luaScript) testredis.Match { return testredis.Script(script.Digest()) }

// anyOf matches the runs of these scripts.
func anyOf(scripts ...*luaScript) testredis.Match {
	return func(cmd []string) bool {
		return slices.ContainsFunc(scripts, func(s *luaScript) bool { return calls(s)(cmd) })
	}
}

// newThreeWayLock returns a RedLock whose nodes all fail together: three names of one server.
func newThreeWayLock(c *Client, name string) Locker {
	others, _ := siblings.Load(c)
	two := others.([]*Client)
	return c.NewRedLock(c.NewLock(name), two[0].NewLock(name+"-b"), two[1].NewLock(name+"-c"))
}

// A faultBench has two connections to one Redis: over a proxy that can be told to fail, and directly.
type faultBench struct {
	*bench
	server *testredis.Server
	proxy  *testredis.Proxy
	direct *Client // not over the proxy
}

func newFaultBench(t *testing.T, args ...string) *faultBench {
	t.Parallel()
	return newFaultBenchOn(t, testredis.Start(t, args...))
}

func newFaultBenchOn(t *testing.T, s *testredis.Server) *faultBench {
	b := &faultBench{bench: newBench(t, s.Addr()), server: s, proxy: testredis.NewProxy(t, s.Addr())}
	b.name += "-" // so that it is not a part of another name on this server
	b.direct = b.client()
	for _, script := range allScripts() {
		// So that a fault hits a run, and not a NOSCRIPT.
		b.must(b.rdb.ScriptLoad(context.Background(), script.Source()).Err())
	}
	return b
}

// faultsAtOnce limits the calls of onFaultLocks that run at the same time: each has seven tests, which measure time.
var faultsAtOnce = make(chan struct{}, 6)

// onFaultLocks runs test for every lock type at the same time, however few processors there are, each on the bench that
// start returns.
func onFaultLocks(t *testing.T, start func(testing.TB) *testredis.Server, test func(b *faultBench, k faultLock)) {
	faultsAtOnce <- struct{}{}
	defer func() { <-faultsAtOnce }()
	var all sync.WaitGroup
	for _, k := range faultLocks {
		waitgroup.Go(&all, func() {
			t.Run(k.name, func(t *testing.T) { test(newFaultBenchOn(t, start(t)), k) })
		})
	}
	all.Wait()
}

// oneRedis is for faults between client and server: all lock types share a server.
func oneRedis(t *testing.T) func(testing.TB) *testredis.Server {
	s := testredis.Start(t)
	return func(testing.TB) *testredis.Server { return s }
}

// ownRedis is for faults of Redis itself: each lock type has a server.
func ownRedis(args ...string) func(testing.TB) *testredis.Server {
	return func(t testing.TB) *testredis.Server { return testredis.Start(t, args...) }
}

// shaky returns a client over the proxy.
func (b *faultBench) shaky(opts ...Option) *Client {
	b.Helper()
	return b.clientOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = 600 * time.Millisecond }), opts...)
}

func (b *faultBench) client(opts ...Option) *Client {
	b.Helper()
	return b.clientOn(testredis.Client(b, b.addr), opts...)
}

// clientOn returns a client like that of a bench, with two siblings that know the same server by other names.
func (b *faultBench) clientOn(rdb *redis.Client, opts ...Option) *Client {
	b.Helper()
	opts = append([]Option{WithRedLockNodeTimeout(4 * time.Second)}, opts...)
	_, port, err := net.SplitHostPort(rdb.Options().Addr)
	b.must(err)
	var others []*Client
	for _, host := range []string{"[::ffff:127.0.0.1]", "[::ffff:7f00:1]"} {
		others = append(others, b.bench.clientOn(testredis.Client(b, "", func(o *redis.Options) {
			*o = *rdb.Options()
			o.Addr = host + ":" + port
		}), opts...))
	}
	c := b.bench.clientOn(rdb, opts...) // closed before the others, which have the locks of its RedLocks
	siblings.Store(c, others)
	b.Cleanup(func() { siblings.Delete(c) })
	return c
}

// stays checks that nothing arrives on c for a while.
func stays[T any](b testing.TB, what string, c <-chan T, d time.Duration) {
	b.Helper()
	select {
	case v := <-c:
		require.Fail(b, what, "%v", v)
	case <-time.After(d):
	}
}

// records returns the bench's keys except for token counters, which are never deleted.
func (b *faultBench) records() []string {
	return slices.DeleteFunc(b.keys(), func(key string) bool { return strings.HasPrefix(key, "redisson_lock_token:") })
}

// refuses checks that l soon cannot be acquired, with that answer, and that nothing is left of it.
func (b *faultBench) refuses(l Locker, answer string) {
	b.Helper()
	start := time.Now()
	ok, err := untilAnswered(func() (bool, error) { return l.TryLock(context.Background(), 0, 0) })
	assert.False(b, ok, "TryLock")
	assert.ErrorContains(b, err, answer, "TryLock")
	assert.LessOrEqual(b, time.Since(start), 2*soon, "TryLock")
	assert.NotErrorIs(b, err, redis.Nil, "redis.Nil leaves the package")
	b.mustBe(l.Unlock(context.Background()), ErrNotHeld)
}

// tokenOf returns the fencing token of l, or 0 if it has none.
func (b *faultBench) tokenOf(ctx context.Context, l Locker) int64 {
	b.Helper()
	f, ok := l.(*Lock)
	if !ok || !f.fenced {
		return 0
	}
	token, err := f.Token(ctx)
	b.must(err)
	return token
}

// Rows 1, 2, 5, 6: the answer is lost, and the request has run or has not.
func TestFaultLostAnswersChangeNothingTwice(t *testing.T) {
	t.Parallel()
	server := oneRedis(t)
	for name, fault := range map[string]testredis.Fault{
		"connection closed": testredis.LoseReply,
		"no answer":         testredis.StallReply,
		"not even run":      testredis.DropRequest,
	} {
		t.Run(name, func(t *testing.T) {
			onFaultLocks(t, server, func(b *faultBench, k faultLock) {
				ctx, cancel := context.WithTimeout(context.Background(), 4*soon)
				defer cancel()
				c := b.clientOn(b.proxy.Client())
				if fault == testredis.StallReply {
					c = b.clientOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = time.Second }))
				}
				l := k.one(c, b.name)
				b.proxy.On(calls(inspectScript), fault).Times(2)
				var token int64
				for _, step := range []struct {
					request testredis.Match
					do      func(context.Context) error
					levels  int
					times   int
				}{{k.takes, l.Lock, 1, 2 * k.asks}, {k.takes, l.Lock, 2, 2 * k.asks}, {k.gives, l.Unlock, 1, 2 * k.parts},
					{k.gives, l.Unlock, 0, 2 * k.parts}} {
					rule := b.proxy.On(step.request, fault).Times(step.times)
					b.must(step.do(ctx))
					require.NotZero(b, rule.Count(), "nothing was lost")
					rule.Release()
					b.holds(l, step.levels)
					if step.levels > 0 {
						b.tries(k.rival(b.direct, b.name), false)
						now := b.tokenOf(ctx, l)
						if token != 0 {
							assert.Equal(b, token, now, "a repeated re-entry changed the token")
						}
						token = now
					}
				}
				b.mustBe(l.Unlock(ctx), ErrNotHeld)
				next := k.rival(b.direct, b.name)
				b.tries(next, true)
				b.must(next.Unlock(ctx))
			})
		})
	}
}

// Row 9: ctx is done while the request is in flight.
func TestFaultRequestIsUndoneWhenCtxEnds(t *testing.T) {
	t.Parallel()
	server := oneRedis(t)
	for _, timeout := range []time.Duration{time.Minute, 900 * time.Millisecond} {
		t.Run(fmt.Sprint("read timeout ", timeout), func(t *testing.T) {
			onFaultLocks(t, server, func(b *faultBench, k faultLock) { testUndoWhenCtxEnds(b, k, timeout) })
		})
	}
}

func testUndoWhenCtxEnds(b *faultBench, k faultLock, timeout time.Duration) {
	c := b.clientOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = timeout }))
	rule := b.proxy.On(k.takes, testredis.HoldRequest).Times(testredis.Always)
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	go func() { got <- k.one(c, b.name).Lock(ctx) }()
	await(b.bench, "the request is under way", rule.Fired())
	cancel()
	b.mustBe(await(b.bench, "Lock comes back although Redis says nothing", got), context.Canceled)
	rule.Release() // it runs now, before or after its rollback
	next := k.rival(b.direct, b.name)
	testredis.Await(b, "the lock is free again", 2*soon, func() bool {
		ok, err := next.TryLock(context.Background(), 0, 0)
		return ok && err == nil
	})
	b.must(next.Unlock(context.Background()))
}

// Rows 3, 4: the rollback overtakes the attempt. The late attempt acquires nothing, and is not taken for a later hold.
func TestFaultAttemptRunsAfterItsUndo(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		const lease = time.Second
		l := k.one(b.shaky(WithWatchdogTimeout(lease)), b.name)
		rule := b.proxy.On(k.takes, testredis.HoldRequest).Times(testredis.Always)
		undone := b.proxy.On(firstOfEachKey(k.undoes), testredis.DelayReply(0)).Times(k.parts)
		again := b.proxy.On(k.undoes, testredis.HoldRequest).Times(testredis.Always)
		ctx, cancel := context.WithCancel(context.Background())
		got := make(chan error, 1)
		go func() { got <- l.Lock(ctx) }()
		testredis.Await(b, "the requests are under way", soon, func() bool { return rule.Count() >= k.asks })
		cancel()
		b.mustBe(await(b.bench, "Lock comes back", got), context.Canceled)
		testredis.Await(b, "the undo has run", soon, func() bool { return undone.Count() == k.parts })
		ran := b.scriptRuns()
		rule.Release()
		testredis.Await(b, "the late attempt has run", soon, func() bool { return b.scriptRuns() > ran })
		assert.Empty(b, b.records(), "a late attempt has taken a lock")
		start := time.Now()
		next := k.rival(b.direct, b.name)
		b.must(next.Lock(context.Background()))
		assert.LessOrEqual(b, time.Since(start), lease+soon, "time that the late attempt blocked others")
		b.mustBe(l.Unlock(context.Background()), ErrNotHeld)
		again.Release()
		b.holds(next, 1)
		b.must(next.Unlock(context.Background()))
	})
}

// firstOfEachKey matches the first command for each key that matches. A request that is sent again because its answer
// is late would otherwise count for the request for another key.
func firstOfEachKey(match testredis.Match) testredis.Match {
	var seen sync.Map
	return func(cmd []string) bool {
		if !match(cmd) {
			return false
		}
		_, again := seen.LoadOrStore(cmd[3], true) // evalsha, the digest, the number of keys, and the first key
		return !again
	}
}

// Rows 3, 4: an attempt of a reader that runs when it is no longer rolled back leaves no reader, whether the lock is
// free or other readers hold it.
func TestFaultLateReaderAcquiresNothing(t *testing.T) {
	t.Parallel()
	for name, lock := range map[string]func(ctx context.Context, l Locker) error{
		"renewed": func(ctx context.Context, l Locker) error { return l.Lock(ctx) },
		"fixed": func(ctx context.Context, l Locker) error {
			_, err := l.TryLock(ctx, time.Minute, time.Hour)
			return err
		},
	} {
		for _, others := range []int{0, 1} {
			t.Run(fmt.Sprint(name, ", other readers: ", others), func(t *testing.T) {
				b, background := newFaultBench(t), context.Background()
				c := b.shaky()
				rw := c.NewRWLock(b.name)
				rule := b.proxy.On(calls(readAcquire), testredis.HoldRequest).Times(testredis.Always)
				ctx, cancel := context.WithCancel(background)
				got := make(chan error, 1)
				go func() { got <- lock(ctx, rw.Read()) }()
				await(b.bench, "the request is under way", rule.Fired())
				cancel()
				b.mustBe(await(b.bench, "it comes back", got), context.Canceled)
				testredis.Await(b, "the rollbacks have ended", soon, func() bool {
					return c.engine.Probe().Stats().AtWork == 0
				})
				assert.Empty(b, b.records())
				var held []*Hold
				for range others {
					held = append(held, b.hold(b.direct.NewRWLock(b.name).Read()))
				}
				ran := b.scriptRuns()
				rule.Release()
				testredis.Await(b, "the late attempt has run", soon, func() bool { return b.scriptRuns() > ran })
				i, err := b.direct.Inspect(background, b.name)
				b.must(err)
				assert.Len(b, i.Holders, others)
				for _, h := range held {
					b.must(h.Release(background))
				}
				b.follows(rw.Write())
			})
		}
	}
}

// Row 9: also if a MultiLock has acquired some of its locks by then, and cannot release them.
func TestFaultMultiLockIsUndoneWhenCtxEnds(t *testing.T) {
	t.Parallel()
	ends := map[string]func(ctx context.Context, l Locker) error{
		"Lock": func(ctx context.Context, l Locker) error { return l.Lock(ctx) },
		"TryLock": func(ctx context.Context, l Locker) error {
			ok, err := l.TryLock(context.WithoutCancel(ctx), time.Second, 0)
			if ok || err != nil && !errors.Is(err, errTimeUp) && !errors.Is(err, engine.ErrNoAnswer) {
				return err
			}
			return context.Canceled // it is an error if one of its attempts, or the first one, was not answered
		},
	}
	for name, lock := range ends {
		t.Run(name, func(t *testing.T) {
			b := newFaultBench(t)
			owner := ContextWithOwner(context.Background())
			blocking := b.direct.NewLock(b.name + "2")
			b.must(blocking.Lock(owner))
			client := b.shaky()
			l := client.NewMultiLock(client.NewFairLock(b.name+"1"), client.NewLock(b.name+"2"))
			asked := b.proxy.On(calls(lockAcquire), testredis.DelayReply(0)).Times(testredis.Always)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			got := make(chan error, 1)
			start := time.Now()
			go func() { got <- lock(ctx, l) }()
			testredis.Await(b, "it has the first and waits for the second", soon, func() bool { return asked.Count() > 0 })
			time.Sleep(100 * time.Millisecond) // for the answer, and the wait for the second lock
			b.proxy.BlackHole(true)
			time.Sleep(time.Until(start.Add(time.Second))) // ctx is done at the same time in each case
			cancel()
			ended := time.Now()
			b.mustBe(await(b.bench, "it comes back", got), context.Canceled)
			assert.LessOrEqual(b, time.Since(ended), soon/2, "time until it came back")
			b.proxy.BlackHole(false)
			b.must(blocking.Unlock(owner))
			both := b.direct.NewMultiLock(b.direct.NewFairLock(b.name+"1"), b.direct.NewLock(b.name+"2"))
			within, done := context.WithTimeout(context.Background(), 2*soon)
			defer done()
			b.must(both.Lock(within)) // long before any lease expires
			b.must(both.Unlock(within))
		})
	}
}

// Row 5: a release that runs late does not release the hold of another owner.
func TestFaultLateReleaseFreesNoOtherHold(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		l, next := k.one(b.shaky(), b.name), k.one(b.direct, b.name)
		b.must(l.Lock(ctx))
		rule := b.proxy.On(k.gives, testredis.HoldRequest).Times(k.parts)
		b.must(l.Unlock(ctx)) // the second attempt succeeds
		b.must(next.Lock(ctx))
		before := b.commands("evalsha")
		rule.Release()
		testredis.Await(b, "the late release has run", soon, func() bool { return b.commands("evalsha") >= before+k.parts })
		b.holds(next, 1)
		b.must(next.Unlock(ctx))
		b.must(l.Lock(ctx))
		b.must(l.Unlock(ctx))
	})
}

// Rows 7, 12: Redis cannot be reached, and the holder notices the loss by its own clock.
func TestFaultBlackHoleEndsValidityInTime(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		const lease = 2 * time.Second
		l := k.one(b.shaky(WithWatchdogTimeout(lease)), b.name)
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		b.proxy.BlackHole(true)
		b.within(2*lease, "the end of the guard after the last possible renewal", func() {
			await(b.bench, "the guard ends", guarded.Done())
		})
		b.mustBe(context.Cause(guarded), ErrLockLost)
		next := k.rival(b.direct, b.name)
		b.must(next.Lock(ctx))
		b.proxy.BlackHole(false)
		b.mustBe(l.Unlock(ctx), ErrLockLost)
		b.holds(next, 1)
		b.must(next.Unlock(ctx))
	})
}

// Row 7: a holder survives a short outage.
func TestFaultFailedRenewalIsRepeated(t *testing.T) {
	t.Parallel()
	server := oneRedis(t)
	var all sync.WaitGroup
	for name, fault := range map[string]testredis.Fault{
		"connection closed": testredis.LoseReply,
		"no answer":         testredis.StallReply,
		"not even run":      testredis.DropRequest,
	} {
		waitgroup.Go(&all, func() {
			t.Run(name, func(t *testing.T) {
				onFaultLocks(t, server, func(b *faultBench, k faultLock) {
					ctx := context.Background()
					const lease = 5 * time.Second
					l := k.one(b.shaky(WithWatchdogTimeout(lease)), b.name)
					b.must(l.Lock(ctx))
					guarded, err := l.Guard(ctx)
					b.must(err)
					rule := b.proxy.On(k.renews, fault).Times(k.parts)
					await(b.bench, "a renewal fails", rule.Fired())
					select {
					case <-guarded.Done():
						assert.Fail(b, "one failed renewal lost the lock", context.Cause(guarded))
					case <-time.After(lease + lease/6):
					}
					b.must(l.Unlock(ctx))
				})
			})
		})
	}
	all.Wait()
}

// Row 41: a renewal that runs after the release does not renew the hold of another owner, and leaves nothing.
func TestFaultLateRenewalCreatesNoRecord(t *testing.T) {
	t.Parallel()
	for _, taken := range []bool{true, false} { // whether a next holder has acquired the lock meanwhile
		t.Run(map[bool]string{true: "taken", false: "free"}[taken], func(t *testing.T) {
			onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
				ctx := context.Background()
				const lease, short = 3 * time.Second, time.Second
				l, next := k.one(b.shaky(WithWatchdogTimeout(lease)), b.name), k.one(b.direct, b.name)
				b.must(l.Lock(ctx))
				rule := b.proxy.On(k.renews, testredis.HoldRequest).Times(testredis.Always)
				testredis.Await(b, "the renewals are under way", soon, func() bool { return rule.Count() >= k.parts })
				b.must(l.Unlock(ctx))
				if taken {
					b.must(next.LockLease(ctx, short))
				}
				before := b.commands("evalsha")
				rule.Release()
				testredis.Await(
					b,
					"the late renewals have run",
					soon,
					func() bool { return b.commands("evalsha") >= before+k.parts },
				)
				if !taken {
					b.isLocked(next, false)
					return
				}
				ttl, err := next.TTL(ctx)
				assert.NoError(b, err)
				assert.LessOrEqual(b, ttl, short, "the lease of the next holder")
				if err := next.Unlock(ctx); err != nil { // on a machine that is very busy
					assert.ErrorIs(b, err, ErrLockLost)
				}
			})
		})
	}
}

// Rows 10, 44: a waiter gives up, and the answer to that is lost. The waiter behind it is not delayed.
func TestFaultLostUndoHoldsUpNoWaiter(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		held := k.rival(b.direct, b.name)
		b.must(held.Lock(ctx))
		fickle, cancel := context.WithCancel(ctx)
		gone := b.startWaiter(ContextWithOwner(fickle), k.one(b.shaky(), b.name))
		next, owner := k.one(b.client(WithPollInterval(time.Hour)), b.name), ContextWithOwner(ctx)
		got := make(chan error, 1)
		go func() { got <- next.Lock(owner) }()
		stays(b, "it is held", got, 100*time.Millisecond)
		b.proxy.On(k.undoes, testredis.LoseReply).Times(k.parts)
		cancel()
		b.mustBe(await(b.bench, "the waiter gives up", gone), context.Canceled)
		b.must(held.Unlock(ctx))
		select {
		case err := <-got:
			b.must(err)
		case <-time.After(fairLife - fairHeartbeat):
			require.Fail(b, "the waiter that gave up is still in the queue")
		}
		b.must(next.Unlock(owner))
	})
}

// Row 11: the subscription connection is killed, and the message is lost with it.
func TestFaultWaiterSurvivesAKilledSubscription(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		held := k.rival(b.direct, b.name)
		waiting := k.one(b.client(WithPollInterval(time.Hour)), b.name)
		for range 3 {
			owner := ContextWithOwner(ctx)
			b.must(held.Lock(ctx))
			got := b.startWaiter(owner, waiting)
			b.must(b.rdb.Do(ctx, "client", "kill", "type", "pubsub").Err())
			b.must(held.Unlock(ctx))
			b.must(await(b.bench, "the waiter notices", got))
			b.must(waiting.Unlock(owner))
		}
	})
}

// Row 12: the subscription connection stops delivering.
func TestFaultWaiterSurvivesASilentSubscription(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		held := k.rival(b.direct, b.name)
		b.must(held.Lock(ctx))
		owner := ContextWithOwner(ctx)
		waiting := k.one(b.shaky(WithPollInterval(time.Hour)), b.name)
		got := b.startWaiter(owner, waiting)
		b.proxy.BlackHole(true)
		b.must(held.Unlock(ctx))
		time.Sleep(100 * time.Millisecond) // the message is lost in the black hole, and leaves nothing to wait for
		b.proxy.CutAll()                   // data in flight are lost
		b.proxy.BlackHole(false)
		select {
		case err := <-got:
			b.must(err)
		case <-time.After(4 * soon):
			require.Fail(b, "the waiter sleeps while the lock is free")
		}
		b.must(waiting.Unlock(owner))
	})
}

// Row 13: a waiter polls even if its subscription is never confirmed.
func TestFaultWaiterPollsWithoutASubscription(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		held := k.rival(b.direct, b.name)
		b.must(held.Lock(ctx))
		rule := b.proxy.On(testredis.Command("subscribe"), testredis.StallReply).Times(testredis.Always)
		got := make(chan error, 1)
		owner := ContextWithOwner(ctx)
		waiting := k.one(b.shaky(WithPollInterval(100*time.Millisecond)), b.name)
		go func() { got <- waiting.Lock(owner) }()
		await(b.bench, "the subscription is not answered", rule.Fired())
		b.must(held.Unlock(ctx))
		b.must(await(b.bench, "the waiter notices by itself", got))
		b.must(waiting.Unlock(owner))
		rule.Release()
	})
}

// Row 13: a TryLock whose subscription is never confirmed asks once more when its time is up, so that it does not
// report a free lock as busy.
func TestFaultTryLockWithoutASubscriptionAsksOnceMore(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		held := k.rival(b.direct, b.name)
		b.must(held.Lock(ctx))
		rule := b.proxy.On(testredis.Command("subscribe"), testredis.StallReply).Times(testredis.Always)
		type result struct {
			ok  bool
			err error
		}
		got := make(chan result, 1)
		owner := ContextWithOwner(ctx)
		waiting := k.one(b.patientClient(WithPollInterval(time.Hour)), b.name)
		go func() {
			ok, err := waiting.TryLock(owner, 3*time.Second, 0)
			got <- result{ok, err}
		}()
		await(b.bench, "the subscription is not answered", rule.Fired())
		b.must(held.Unlock(ctx))
		r := await(b.bench, "TryLock", got)
		b.must(r.err)
		if assert.True(b, r.ok, "the lock is free") {
			b.must(waiting.Unlock(owner))
		}
		rule.Release()
	})
}

// Row 39: the pool has no connection available.
func TestFaultExhaustedPoolDelaysNoRenewal(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		rdb := b.server.Client(func(o *redis.Options) {
			o.PoolSize, o.PoolTimeout = 1, time.Minute
			if strings.HasPrefix(redis.Version(), "9.22.") { // which has a pool for pipelines only if one of its options is set
				o.PipelineReadBufferSize = 32 << 10
			}
		})
		const lease = 3 * time.Second
		l := k.one(b.clientOn(rdb, WithWatchdogTimeout(lease)), b.name)
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		conn := rdb.Conn()
		b.must(conn.Ping(ctx).Err())
		if !k.red { // a RedLock works without one node of three
			deadline, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			start := time.Now()
			b.mustBe(k.one(b.clientOn(rdb), b.name+"-other").Lock(deadline), context.DeadlineExceeded)
			took := time.Since(start)
			assert.LessOrEqual(b, took, soon)
		}
		select {
		case <-guarded.Done():
			assert.Fail(b, "the watchdog starved", context.Cause(guarded))
		case <-time.After(lease + lease/4):
		}
		b.must(conn.Close())
		b.must(l.Unlock(ctx))
	})
}

// Row 50: the Redis client is closed before the relock client.
func TestFaultClosedRedisClientIsAnError(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		rdb := b.server.Client()
		c := b.clientOn(rdb)
		l := k.one(c, b.name)
		b.must(l.LockLease(ctx, 3*time.Second))
		b.must(rdb.Close())
		if k.red { // a RedLock works without one node of three
			b.must(l.Lock(ctx))
			b.must(l.Unlock(ctx))
			b.must(l.Unlock(ctx))
			b.must(c.Close())
			return
		}
		assert.ErrorIs(b, k.one(c, b.name+"-2").Lock(ctx), redis.ErrClosed, "Lock")
		start := time.Now()
		assert.ErrorIs(b, l.Unlock(ctx), redis.ErrClosed, "Unlock")
		assert.LessOrEqual(b, time.Since(start), soon/2, "Unlock")
		b.must(c.Close())
	})
}

// Row 48: a thousand goroutines wait for one lock, in four processes. The cost of a release in Redis depends on the
// number of processes, not of waiters. Waiters of a fair lock poll once a second.
func TestFaultReleaseCostsTheSameForManyWaiters(t *testing.T) {
	const processes, releases = 4, 5
	waiters := full(300, 1000)
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		if k.shared {
			return // they share the lock
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		held := k.one(b.direct, b.name)
		b.must(held.Lock(ctx))
		in := make(chan error, waiters)
		goOn := make(chan struct{})
		var all sync.WaitGroup
		var clients []*Client
		var locks []Locker
		for range processes {
			c := b.clientOn(b.proxy.Client(), WithPollInterval(time.Hour))
			l := k.one(c, b.name)
			clients, locks = append(clients, c), append(locks, l)
			for range waiters / processes {
				waitgroup.Go(&all, func() {
					owner := ContextWithOwner(ctx)
					if err := l.Lock(owner); err != nil {
						return // at the end
					}
					in <- nil
					<-goOn
					if err := l.Unlock(owner); err != nil {
						in <- err
					}
				})
			}
		}
		least := processes * k.asks * 2 // each process asks, subscribes, and asks again
		if k.name == "fair" {
			least = 2 * waiters
		}
		testredis.Await(b, "all wait", 4*soon, func() bool { return b.commands("evalsha") >= least })
		if h := insideOf(held); h != nil && h.lock.Traits().Admission == contract.Counting {
			// Waiters that arrive at the same time ask once, each for itself. If Redis answers late, they ask twice, and
			// roll the second request back, until only the calls are at work.
			testredis.Await(b, "one of each process asks", 4*soon, func() bool {
				queued, atWork := 0, int64(0)
				for i, l := range locks {
					queued += b.waitersInQueue(l.(known))
					atWork += clients[i].engine.Probe().Stats().AtWork
				}
				return queued == waiters-processes && atWork == int64(waiters)
			})
		}
		b.proxy.On(func(cmd []string) bool { // one part of a MultiLock is free before the other
			return k.gives(cmd) && strings.HasSuffix(cmd[3], "}2")
		}, testredis.DelayRequest(20*time.Millisecond)).Times(releases)
		start, before := time.Now(), b.commands("evalsha")
		b.must(held.Unlock(ctx))
		for range releases {
			b.must(await(b.bench, "the next one comes in", in))
			goOn <- struct{}{}
		}
		b.must(await(b.bench, "the last one comes in", in))
		most := (releases + 1) * (k.asks + k.parts) * (processes + 4)
		if k.name == "fair" {
			most = 10*(releases+1) + int(float64(waiters)*(2+time.Since(start).Seconds()))
		}
		asked := b.commands("evalsha") - before
		assert.LessOrEqual(b, asked, most, "requests for %d releases", releases+1)
		b.Logf("%d requests for %d releases, at most %d are in order", asked, releases+1, most)
		cancel()
		close(goOn)
		all.Wait()
	})
}

// Row 57: locks of different kinds have one name. They exclude one another, or return an error.
func TestFaultLocksOfDifferentKindsExclude(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	for _, one := range faultLocks {
		for _, other := range faultLocks {
			if one.asks+one.parts+other.asks+other.parts > 4 || one.shared && other.shared {
				continue // it consists of others, or is meant to be shared
			}
			t.Run(one.name+" and "+other.name, func(t *testing.T) {
				b := newFaultBenchOn(t, s)
				ctx := context.Background()
				if one.record != other.record {
					l, next := one.one(b.direct, b.name), other.one(b.client(), b.name)
					b.must(l.Lock(ctx))
					b.mustBe(next.Lock(ctx), ErrNotALock)
					b.must(l.Unlock(ctx))
					return
				}
				l, next := one.one(b.direct, b.name), other.one(b.client(WithPollInterval(50*time.Millisecond)), b.name)
				b.must(l.Lock(ctx))
				ok, err := next.TryLock(ctx, 0, 0)
				require.False(t, ok, "a second holder")
				require.NotErrorIs(t, err, context.DeadlineExceeded)
				owner := ContextWithOwner(ctx)
				got := make(chan error, 1)
				go func() { got <- next.Lock(owner) }()
				stays(b, "a second holder, or an error", got, 20*time.Millisecond)
				assert.ErrorIs(t, next.Unlock(ctx), ErrNotHeld, "Unlock of a lock of another kind")
				b.holds(l, 1)
				b.must(l.Unlock(ctx))
				b.must(await(b.bench, "the next one notices", got))
				b.tries(l, false)
				b.must(next.Unlock(owner))
			})
		}
	}
}

// A host that is down accepts no connection and refuses none: no call takes longer than documented.
func TestFaultUnreachableHostDelaysCallsNoLongerThanDocumented(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	h := newHole(t)
	defer h.end()
	server := testredis.Start(t)
	c := b.clientOn(server.Client(func(o *redis.Options) { o.Dialer = h.dialer }))
	l := c.NewLock(b.name)
	ctx := context.Background()
	b.must(l.Lock(ctx))
	h.addr.Store(server.Addr())
	server.Kill()
	start := time.Now()
	assert.Error(t, l.Unlock(ctx), "Unlock was confirmed")
	took := time.Since(start)
	assert.LessOrEqual(t, took, testredis.Scale(start, send.ConnectTime+2*time.Second), "time of Unlock")
	start = time.Now()
	ok, err := l.TryLock(ctx, 0, 0)
	assert.False(t, ok, "TryLock")
	assert.Error(t, err, "TryLock")
	took = time.Since(start)
	assert.LessOrEqual(t, took, testredis.Scale(start, send.ConnectTime+2*time.Second), "time of TryLock")
}

// The only connection is in use, and the server is paused: all waits of Unlock together last no longer than documented.
func TestFaultUnlockWaitsNoLongerThanDocumented(t *testing.T) {
	t.Parallel()
	for _, readTimeout := range []time.Duration{3 * time.Second, 5 * time.Second, -1} {
		t.Run(readTimeout.String(), func(t *testing.T) {
			t.Parallel()
			server := testredis.Start(t)
			b := &bench{T: t, name: "unlock-time"}
			rdb := server.Client(func(o *redis.Options) { o.ReadTimeout, o.PoolSize = readTimeout, 1 })
			c := b.clientOn(rdb)
			l := c.NewLock(b.name)
			ctx := context.Background()
			b.must(l.Lock(ctx))
			server.Freeze()
			t.Cleanup(server.Thaw)
			go rdb.Get(ctx, "x")
			start := time.Now()
			assert.Error(t, l.Unlock(ctx), "Unlock was confirmed")
			took := time.Since(start)
			assert.LessOrEqual(t, took, testredis.Scale(start, send.ConnectTime+2*time.Second), "time of Unlock")
			start = time.Now()
			ok, err := l.TryLock(ctx, 0, 0)
			assert.False(t, ok)
			assert.Error(t, err)
			took = time.Since(start)
			assert.LessOrEqual(t, took, testredis.Scale(start, 3*send.ConnectTime), "time of TryLock")
		})
	}
}

// A repeatingHook loses the answer to each command that runs a script, and sends the command again, as hooks of users
// do.
type repeatingHook struct {
	processHook      // a hook for pipelines and connections, which it passes on
	obeys       bool // whether it respects NoRetry
}

func (h repeatingHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && cmd.Name() == "evalsha" && !(h.obeys && cmd.NoRetry()) {
			err = next(ctx, cmd)
		}
		return err
	}
}

// If a hook sends an Unlock again by itself, it hides that the first one has run: docs/client.md. The lock is free all
// the same.
func TestHookThatRepeatsMakesUnlockReportALoss(t *testing.T) {
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		first := k.one(b.client(), b.name) // loads the scripts
		b.must(first.Lock(ctx))
		b.must(first.Unlock(ctx))
		for _, obeys := range []bool{false, true} {
			rdb := testredis.Client(b, b.addr)
			rdb.AddHook(repeatingHook{func(send func() error) error { return send() }, obeys})
			l := k.one(b.clientOn(rdb), b.name)
			b.must(l.Lock(ctx))
			err := l.Unlock(ctx)
			if obeys {
				b.must(err)
			} else if !k.red { // the nodes of a RedLock have clients without the hook
				b.mustBe(err, ErrLockLost)
			}
			b.isLocked(k.one(b.client(), b.name), false)
		}
	})
}

// commands returns how often the server of the bench has run a command.
func (b *faultBench) commands(name string) int {
	b.Helper()
	var n int
	stats := b.rdb.InfoMap(context.Background(), "commandstats").Item("Commandstats", "cmdstat_"+name)
	_, _ = fmt.Sscanf(stats, "calls=%d", &n)
	return n
}

// config sets a parameter of the server until the test ends.
func (b *faultBench) config(name, value string) {
	b.Helper()
	b.must(b.rdb.ConfigSet(context.Background(), name, value).Err())
}

// Row 37: a paused Redis.
func TestFaultPausedRedisEndsValidityAndCalls(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		const lease = time.Second
		c := b.client(WithWatchdogTimeout(lease))
		l, other := k.one(c, b.name), k.one(c, b.name+"-other")
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		b.server.Freeze()
		start := time.Now()
		ok, err := other.TryLock(ctx, 100*time.Millisecond, 0)
		assert.False(b, ok, "TryLock")
		assert.Error(b, err, "TryLock")
		assert.LessOrEqual(b, time.Since(start), soon/2, "TryLock")
		deadline, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		start = time.Now()
		b.mustBe(other.Lock(deadline), context.DeadlineExceeded)
		took := time.Since(start)
		assert.LessOrEqual(b, took, soon/2, "time of Lock")
		await(b.bench, "the guard ends", guarded.Done())
		b.mustBe(context.Cause(guarded), ErrLockLost)
		start = time.Now()
		b.mustBe(l.Unlock(ctx), ErrLockLost)
		took = time.Since(start)
		assert.LessOrEqual(b, took, send.ConnectTime+soon/2, "time of Unlock")
		b.server.Thaw()
		testredis.Await(b, "everything is free again", 4*soon, func() bool {
			return second(b.rdb.Ping(ctx).Result()) == nil && len(b.records()) == 0
		})
		b.must(l.Lock(ctx))
		b.must(l.Unlock(ctx))
	})
}

// Rows 15, 16: Redis restarts empty, without records, counters and scripts.
func TestFaultRestartWithoutDataIsReported(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		l := k.one(b.client(WithWatchdogTimeout(3*time.Second)), b.name)
		b.must(l.Lock(ctx))
		token := b.tokenOf(ctx, l)
		guarded, err := l.Guard(ctx)
		b.must(err)
		owner := ContextWithOwner(ctx)
		waiting := k.rival(b.client(WithPollInterval(200*time.Millisecond)), b.name)
		got := b.startWaiter(owner, waiting)
		b.server.Restart()
		b.must(await(b.bench, "the waiter gets the lock", got))
		if token != 0 {
			assert.Greater(b, b.tokenOf(owner, waiting), token, "the token of the next holder")
		}
		await(b.bench, "the old holder is told", guarded.Done())
		b.mustBe(context.Cause(guarded), ErrLockLost)
		b.mustBe(l.Unlock(ctx), ErrLockLost)
		b.must(waiting.Unlock(owner))
	})
}

// Row 38: Redis is down for a while, and a waiter survives it.
func TestFaultWaiterRidesOutAnOutage(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		held := k.rival(b.direct, b.name)
		b.must(held.Lock(ctx))
		owner := ContextWithOwner(ctx)
		waiting := k.one(b.client(WithPollInterval(200*time.Millisecond)), b.name)
		got := b.startWaiter(owner, waiting)
		b.server.Kill()
		b.refuses(k.one(b.direct, b.name+"-other"), "refused")
		if !k.red {
			deadline, cancel := context.WithTimeout(ctx, 10*soon)
			defer cancel()
			assert.ErrorContains(b, k.one(b.direct, b.name+"-other").Lock(deadline), "refused", "Lock without Redis")
			assert.NoError(b, deadline.Err(), "Lock without Redis waited")
		}
		stays(b, "the waiter gave up", got, time.Second)
		b.server.Restart()
		b.must(await(b.bench, "the waiter gets the lock", got))
		b.mustBe(held.Unlock(ctx), ErrLockLost)
		b.must(waiting.Unlock(owner))
	})
}

// Row 25: Redis is out of memory. Holds are renewed and released.
func TestFaultHoldsAreRenewedWithoutMemory(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		const lease = 3 * time.Second
		c := b.client(WithWatchdogTimeout(lease))
		l := k.one(c, b.name)
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		b.config("maxmemory", "1")
		if k.name != "write" { // Redis allows the writes of this one, because the first of them frees memory
			b.refuses(k.one(c, b.name+"-2"), "OOM")
		}
		select {
		case <-guarded.Done():
			assert.Fail(b, "lost", context.Cause(guarded))
		case <-time.After(lease + lease/6): // renewed
		}
		b.must(l.Unlock(ctx))
		b.isLocked(l, false)
		b.config("maxmemory", "0")
	})
}

// Row 26: the record is evicted. The holder notices at its next renewal.
func TestFaultEvictedRecordIsReported(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis("--maxmemory-policy", "allkeys-lru"), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		l := k.one(b.client(WithWatchdogTimeout(3*time.Second)), b.name)
		b.must(l.Lock(ctx))
		token := b.tokenOf(ctx, l)
		guarded, err := l.Guard(ctx)
		b.must(err)
		b.config("maxmemory", "1")
		testredis.Await(b, "the record is evicted", soon, func() bool { return len(b.keys()) == 0 })
		b.config("maxmemory", "0")
		next := k.rival(b.direct, b.name)
		b.tries(next, true)
		if token != 0 {
			assert.Greater(b, b.tokenOf(ctx, next), token, "the token of the next holder")
		}
		await(b.bench, "the guard ends", guarded.Done())
		b.mustBe(context.Cause(guarded), ErrLockLost)
		b.mustBe(l.Unlock(ctx), ErrLockLost)
		b.holds(next, 1)
		b.must(next.Unlock(ctx))
	})
}

// Row 28: an operator has removed the expiry of the record, and its holder has crashed. A waiter polls, and does not
// sleep until a lease expires that never does.
func TestFaultRecordWithoutLeaseIsPolled(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		const lease = time.Second
		l := k.one(b.shaky(), b.name)
		b.must(l.LockLease(ctx, lease))
		b.proxy.BlackHole(true)
		for _, key := range b.keys() {
			b.must(b.rdb.Persist(ctx, key).Err())
		}
		if k.holds != nil {
			for _, id := range b.rdb.ZRange(ctx, k.holds(b.name), 0, -1).Val() {
				b.must(b.rdb.ZAdd(ctx, k.holds(b.name), redis.Z{Score: 922337203685477, Member: id}).Err())
			}
		}
		owner := ContextWithOwner(ctx)
		waiting := k.rival(b.client(WithPollInterval(100*time.Millisecond)), b.name)
		got := b.startWaiter(owner, waiting)
		stays(b, "the record is still there", got, 2*lease)
		b.forget() // by the operator; nothing is announced
		b.must(await(b.bench, "the waiter asks again", got))
		b.proxy.BlackHole(false)
		b.mustBe(l.Unlock(ctx), ErrLockLost)
		b.must(waiting.Unlock(owner))
	})
}

// Row 35: the clock of the server jumps.
func TestFaultServerClockJumpIsReported(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, testredis.StartJumpy, func(b *faultBench, k faultLock) {
		ctx := context.Background()
		const lease = 3 * time.Second
		l, next := k.one(b.client(WithWatchdogTimeout(lease)), b.name), k.rival(b.direct, b.name)
		b.must(l.Lock(ctx))
		token := b.tokenOf(ctx, l)
		guarded, err := l.Guard(ctx)
		b.must(err)

		// Ahead: all leases have expired, and the holder learns of the loss at its next renewal.
		b.server.Jump(time.Hour)
		testredis.Await(b, "the lease is over", soon, func() bool {
			ok, err := next.TryLock(ctx, 0, 0)
			return ok && err == nil
		})
		if token != 0 {
			assert.Greater(b, b.tokenOf(ctx, next), token, "the token of the next holder")
		}
		await(b.bench, "the guard ends", guarded.Done())
		b.mustBe(context.Cause(guarded), ErrLockLost)
		b.mustBe(l.Unlock(ctx), ErrLockLost)

		// Back: leases last longer, and a release works all the same.
		b.server.Jump(-time.Hour)
		b.holds(next, 1)
		b.tries(l, false)
		b.must(next.Unlock(ctx))
		b.tries(l, true)
		b.must(l.Unlock(ctx))
	})
}

// Row 36: Redis is slow. The time of the request does not count as validity, no client sends a request twice meanwhile,
// and a hold is renewed.
func TestFaultTimeOfASlowRequestIsNotValid(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		const lease, slow = 5 * time.Second, 700 * time.Millisecond
		held := k.one(b.client(WithWatchdogTimeout(lease)), b.name+"-held")
		b.must(held.Lock(ctx))
		guardedHeld, err := held.Guard(ctx)
		b.must(err)

		before := b.commands("evalsha")
		b.must(b.rdb.Do(ctx, "client", "pause", slow.Milliseconds(), "write").Err())
		l := k.one(b.client(), b.name)
		start := time.Now()
		b.must(l.LockLease(ctx, lease))
		took := time.Since(start)
		require.GreaterOrEqual(b, took, slow/2, "Redis was not slow")
		guarded, err := l.Guard(ctx)
		b.must(err)
		assert.LessOrEqual(
			b,
			b.commands("evalsha")-before,
			2*k.asks+2*k.parts,
			"requests: one acquire, and a renewal perhaps",
		)
		b.must(b.rdb.Do(ctx, "debug", "sleep", slow.Seconds()).Err())
		time.Sleep(time.Until(start.Add(took - slow/2 + lease))) // the request was sent well before that
		assert.Error(
			b,
			guarded.Err(),
			"trusted %v after the lock was requested, which took %v, for a lease of %v",
			time.Since(start),
			took,
			lease,
		)
		assert.NoError(b, context.Cause(guardedHeld), "the watchdog did not get through")
		b.must(held.Unlock(ctx))
	})
}

// Row 39: the server accepts no more connections.
func TestFaultHoldSurvivesMaxClients(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		const lease = 5 * time.Second
		l := k.one(b.client(WithWatchdogTimeout(lease)), b.name)
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		b.config("maxclients", "1")
		other := k.rival(b.client(), b.name)
		b.refuses(other, "")
		select {
		case <-guarded.Done():
			assert.Fail(b, "lost", context.Cause(guarded))
		case <-time.After(lease + lease/6):
		}
		b.config("maxclients", "1000")
		b.must(l.Unlock(ctx))
		ok, err := other.TryLock(ctx, soon, 0)
		assert.NoError(b, err)
		assert.True(b, ok, "there is room again") // go-redis takes a while to notice
		b.must(other.Unlock(ctx))
	})
}

// Rows 21, 23: a server that rejects writes: a replica, one whose replicas are missing, one that cannot save.
func TestFaultRefusedWritesAreReportedOrRetried(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		answer  string
		passes  bool // an Unlock waits for it
		on, off func(b *faultBench)
	}{
		{"READONLY", true, func(b *faultBench) {
			b.must(b.rdb.Do(context.Background(), "replicaof", "127.0.0.1", "1").Err())
		}, func(b *faultBench) {
			b.must(b.rdb.Do(context.Background(), "replicaof", "no", "one").Err())
		}},
		{"NOREPLICAS", true, func(b *faultBench) {
			b.config("min-replicas-to-write", "1")
		}, func(b *faultBench) {
			b.config("min-replicas-to-write", "0")
		}},
		{"MISCONF", false, func(b *faultBench) {
			b.config("save", "3600 1")
			dir := b.rdb.ConfigGet(context.Background(), "dir").Val()["dir"]
			b.must(os.Mkdir(filepath.Join(dir, "dump.rdb"), 0o700)) // blocks the name of the file
			b.must(b.rdb.BgSave(context.Background()).Err())
			testredis.Await(b, "a save has failed", soon, func() bool {
				return b.rdb.InfoMap(context.Background(), "persistence").Item("Persistence", "rdb_last_bgsave_status") == "err"
			})
		}, func(b *faultBench) {
			b.config("save", "")
		}},
	} {
		t.Run(c.answer, func(t *testing.T) {
			t.Parallel()
			onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
				ctx := context.Background()
				l, free := k.one(b.direct, b.name), k.one(b.direct, b.name+"-free")
				b.must(l.Lock(ctx))
				c.on(b)
				b.refuses(free, c.answer)
				b.mustBe(elsewhere(func() error { return l.Unlock(ctx) }), ErrNotHeld) // not the owner
				if !c.passes {
					assert.ErrorContains(b, l.Unlock(ctx), c.answer, "Unlock")
					b.isLocked(l, true)
					c.off(b)
					b.freeSoon() // the release is retried in the background
					return
				}
				unlocked := make(chan struct{})
				var wg sync.WaitGroup
				waitgroup.Go(&wg, func() {
					select {
					case <-unlocked:
					case <-time.After(300 * time.Millisecond):
					}
					c.off(b)
				})
				b.must(l.Unlock(ctx)) // it retries
				close(unlocked)
				wg.Wait()
				b.must(free.Lock(ctx))
				b.must(free.Unlock(ctx))
			})
		})
	}
}

// Row 22: Redis loads its data, for seconds.
func TestFaultWaiterRidesOutLoading(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis("--loading-process-events-interval-bytes", "1024"), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		held := k.rival(b.direct, b.name)
		b.must(held.Lock(ctx))
		owner := ContextWithOwner(ctx)
		waiting := k.one(b.client(WithPollInterval(50*time.Millisecond)), b.name)
		got := b.startWaiter(owner, waiting)
		b.must(
			b.rdb.Eval(ctx, "for i = 1, 1500 do redis.call('set', 'filler' .. i, string.rep('x', 100)) end return 1", nil).Err(),
		)
		b.config("key-load-delay", "1000") // microseconds
		patient := func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = time.Minute, -1 }
		loader, once := b.server.Client(patient), b.server.Client(patient)
		var wg sync.WaitGroup
		waitgroup.Go(&wg, func() {
			assert.NoError(b, loader.Do(ctx, "debug", "reload").Err())
		})
		testredis.Await(b, "Redis loads", soon, func() bool {
			return redis.HasErrorPrefix(once.Ping(ctx).Err(), "LOADING")
		})
		b.refuses(k.one(b.direct, b.name+"-other"), "LOADING")
		wg.Wait()
		stays(b, "the waiter gave up, or in", got, 100*time.Millisecond)
		b.must(held.Unlock(ctx))
		b.must(await(b.bench, "the waiter gets the lock", got))
		b.must(waiting.Unlock(owner))
	})
}

// Rows 21 to 25, 51, 54, 56: the errors of Redis, and whether a waiter continues after each of them.
func TestFaultWaiterRidesOutPassingErrorsOnly(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for n, k := range faultLocks {
		waitgroup.Go(&all, func() {
			t.Run(k.name, func(t *testing.T) {
				for i, c := range []struct {
					answer string
					passes bool // a waiter continues
				}{
					{"LOADING Redis is loading the dataset in memory", true},
					{"MASTERDOWN Link with MASTER is down", true},
					{"CLUSTERDOWN The cluster is down", true},
					{"TRYAGAIN Multiple keys request during rehashing of slot", true},
					{"BUSY Redis is busy running a script", true},
					{"NOREPLICAS Not enough good replicas to write.", true},
					{"READONLY You can't write against a read only replica.", true},
					{"ERR Unable to execute command 'exists' in script because undeclared keys were accessed during rehashing of " +
						"the slot", true},
					{"ERR Script attempted to execute a command while the cluster is down", true},
					{"OOM command not allowed when used memory > 'maxmemory'.", false},
					{"MISCONF Errors writing to the AOF file", false},
					{"NOAUTH Authentication required.", false},
					{"NOPERM this user has no permissions to run the 'evalsha' command", false},
					{"ERR unknown command 'evalsha'", false},
				} {
					if (i+n)%len(faultLocks) >= full(2, len(faultLocks)) {
						continue // two lock types get each answer in the plain form
					}
					prefix, _, _ := strings.Cut(c.answer, " ")
					t.Run(prefix, func(t *testing.T) { testServerAnswer(t, k, c.answer, c.passes) })
				}
			})
		})
	}
	all.Wait()
}

func testServerAnswer(t *testing.T, k faultLock, answer string, passes bool) {
	mini := testredis.Mini(t)
	b := &faultBench{bench: newBench(t, mini.Addr())}
	ctx := context.Background()
	patience := WithWatchdogTimeout(time.Second) // a caller retries for this time
	if k.red {
		patience = WithRedLockNodeTimeout(soon)
	}
	l := k.one(b.client(patience), b.name)
	b.must(b.rdb.Ping(ctx).Err())
	mini.SetError(answer)
	b.refuses(l, answer)
	if !k.red || !passes {
		start := time.Now()
		assert.ErrorContains(b, l.Lock(ctx), answer, "Lock")
		assert.LessOrEqual(b, time.Since(start), 2*soon, "Lock")
	}
	mini.SetError("")

	held := k.rival(b.client(), b.name)
	b.must(held.Lock(ctx))
	owner := ContextWithOwner(ctx)
	waiting := k.one(b.client(WithPollInterval(20*time.Millisecond)), b.name)
	got := b.startWaiter(owner, waiting)
	mini.SetError(answer)
	if !passes {
		prefix, _, _ := strings.Cut(answer, " ") // for a script that is running Redis adds words of its own
		assert.ErrorContains(b, await(b.bench, "the waiter is told", got), prefix, "waiter")
		mini.SetError("")
		b.must(held.Unlock(ctx))
		b.forget() // an entry in a queue that could not be removed
		return
	}
	stays(b, "the waiter gave up", got, 200*time.Millisecond)
	mini.SetError("")
	b.must(held.Unlock(ctx))
	b.must(await(b.bench, "the waiter gets the lock", got))
	b.must(waiting.Unlock(owner))
}

// Row 24: a script of another program blocks Redis.
func TestFaultWaiterRidesOutABusyScript(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis("--busy-reply-threshold", "50"), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		held := k.rival(b.direct, b.name)
		b.must(held.Lock(ctx))
		owner := ContextWithOwner(ctx)
		waiting := k.one(b.client(WithPollInterval(20*time.Millisecond)), b.name)
		got := b.startWaiter(owner, waiting)
		stuck := b.server.Client(func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = time.Minute, -1 })
		var wg sync.WaitGroup
		waitgroup.Go(&wg, func() { stuck.Eval(ctx, "while true do end", nil) })
		testredis.Await(b, "the script blocks Redis", soon, func() bool {
			return redis.HasErrorPrefix(b.rdb.Ping(ctx).Err(), "BUSY")
		})
		b.refuses(k.one(b.direct, b.name+"-other"), "BUSY")
		stays(b, "the waiter gave up", got, 200*time.Millisecond)
		b.must(b.rdb.ScriptKill(ctx).Err())
		wg.Wait()
		b.must(held.Unlock(ctx))
		b.must(await(b.bench, "the waiter gets the lock", got))
		b.must(waiting.Unlock(owner))
	})
}

// A channel that is subscribed while a script blocks Redis does not count as refused: it is subscribed afterwards.
func TestSubscriptionRidesOutABusyScript(t *testing.T) {
	b := newFaultBench(t, "--busy-reply-threshold", "50")
	ctx := context.Background()
	hub := b.client().engine.Hub()
	before := hub.Join(b.name + "before")
	defer before.Leave()
	testredis.Await(b, "the connection works", soon, before.Confirmed)
	stuck := b.server.Client(func(o *redis.Options) { o.ReadTimeout, o.MaxRetries = time.Minute, -1 })
	var wg sync.WaitGroup
	waitgroup.Go(&wg, func() { stuck.Eval(ctx, "while true do end", nil) })
	testredis.Await(b, "the script blocks Redis", soon, func() bool {
		return redis.HasErrorPrefix(b.rdb.Ping(ctx).Err(), "BUSY")
	})
	l := hub.Join(b.name + "meanwhile")
	defer l.Leave()
	stays(b, "it is refused", l.Ready, 300*time.Millisecond)
	b.must(b.rdb.ScriptKill(ctx).Err())
	wg.Wait()
	testredis.Await(b, "it is subscribed", soon, l.Confirmed)
	assert.False(b, l.Refused())
}

// Row 56: a request of more than ten words without a password is refused with a text about its form. The error names
// the cause, and still contains the answer of Redis.
func TestForgottenPasswordIsNamed(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		b.must(b.rdb.Do(ctx, "acl", "setuser", "admin", "on", ">pw", "+@all", "~*", "&*").Err())
		admin := b.server.Client(func(o *redis.Options) { o.Username, o.Password = "admin", "pw" })
		b.must(admin.ConfigSet(ctx, "requirepass", "secret").Err())
		defer func() { b.must(admin.ConfigSet(ctx, "requirepass", "").Err()) }()
		l := k.one(b.client(), b.name)
		for what, err := range map[string]error{
			"Lock": l.Lock(ctx), "TryLock": second(l.TryLock(ctx, time.Hour, 0)),
			"Inspect":  second(b.client().Inspect(ctx, b.name)),
			"IsLocked": second(l.IsLocked(ctx)),
		} {
			if assert.Error(b, err, what) {
				assert.ErrorContains(b, err, "NOAUTH", what)
				assert.NotErrorIs(b, err, ErrNotALock, what)
			}
			var answer redis.Error
			if !k.red {
				assert.ErrorAs(b, err, &answer, "%s: the answer of Redis", what)
			}
		}
	})
}

// Row 56: the password is changed, and connections with the old one are cut.
func TestFaultChangedPasswordIsReported(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		const lease = 4 * time.Second
		l := k.one(b.client(WithWatchdogTimeout(lease)), b.name)
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		admin := b.server.Client(func(o *redis.Options) { o.Username, o.Password = "admin", "pw" })
		b.must(b.rdb.Do(ctx, "acl", "setuser", "admin", "on", ">pw", "+@all", "~*", "&*").Err())
		b.must(admin.Ping(ctx).Err())
		b.must(admin.ConfigSet(ctx, "requirepass", "new").Err())
		b.must(admin.Do(ctx, "client", "kill", "user", "default").Err())
		start := time.Now()
		refusal := regexp.MustCompile("NOAUTH")
		ok, err := k.one(b.client(), b.name+"-2").TryLock(ctx, 0, 0)
		assert.False(b, ok, "TryLock")
		if assert.Error(b, err, "TryLock") {
			assert.Regexp(b, refusal, err.Error(), "TryLock")
		}
		await(b.bench, "the guard ends", guarded.Done())
		assert.GreaterOrEqual(b, time.Since(start), lease/3, "the guard ended while there was time for a renewal")
		b.mustBe(context.Cause(guarded), ErrLockLost)
		if !k.red {
			assert.Regexp(b, refusal, context.Cause(guarded).Error(), "cause of the loss")
		}
		b.must(admin.ConfigSet(ctx, "requirepass", "").Err())
		b.mustBe(l.Unlock(ctx), ErrLockLost)
		b.must(l.Lock(ctx))
		b.must(l.Unlock(ctx))
	})
}

// Rows 54, 55: a user that may not run scripts, or not subscribe and publish; and one that has exactly the permissions
// that the README lists.
func TestFaultMissingPermissionsFailAtOnce(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		as := func(rules ...any) *redis.Client {
			user := fmt.Sprintf("user%d", benches.Add(1))
			b.must(b.rdb.Do(ctx, append([]any{"acl", "setuser", user, "on", ">pw"}, rules...)...).Err())
			return b.server.Client(func(o *redis.Options) { o.Username, o.Password = user, "pw" })
		}

		b.Run("no scripts", func(t *testing.T) {
			l := k.one(b.clientOn(as("+@all", "-@scripting", "~*", "&*")), b.name)
			start := time.Now()
			for _, err := range []error{l.Lock(ctx), second(l.TryLock(ctx, time.Hour, 0))} {
				assert.ErrorContains(t, err, "NOPERM")
				assert.LessOrEqual(t, time.Since(start), soon)
			}
		})

		b.Run("no channels", func(t *testing.T) {
			var logged lockedBuffer
			l := k.one(b.clientOn(as("+@all", "~*", "resetchannels"), WithPollInterval(50*time.Millisecond),
				WithLogger(slog.New(slog.NewTextHandler(&logged, nil)))), b.name)
			for range 3 {
				held := k.rival(b.direct, b.name)
				b.must(held.Lock(ctx))
				got := make(chan error, 1)
				owner := ContextWithOwner(ctx)
				go func() { got <- l.Lock(owner) }()
				testredis.Await(t, "the warning", soon, func() bool { return logged.String() != "" })
				b.must(held.Unlock(ctx))
				b.must(await(b.bench, "the waiter polls", got))
				b.must(l.Unlock(owner)) // although it may not publish
				b.isLocked(held, false)
			}
			// There is one for each Client.
			s := logged.String()
			assert.LessOrEqual(t, strings.Count(s, "level="), k.asks, "logged")
			assert.Equal(t, strings.Count(s, "level=WARN"), strings.Count(s, "level="), "logged")
		})

		if k.parts > 1 {
			return // it consists of locks that the others cover
		}
		b.Run("enough", func(t *testing.T) {
			rights := []any{"+evalsha", "+eval", "+subscribe", "+unsubscribe", "+ping", "+hello", "resetchannels",
				"&redisson_lock__channel:{" + b.name + "}*", "&redisson_rwlock:{" + b.name + "}*", "&redisson_sc:{" + b.name + "}*"}
			for _, command := range luaCommands(t) {
				rights = append(rights, "+"+command)
			}
			for _, key := range []string{b.name, "relock_line:{" + b.name + "}", "redisson_lock_token:{" + b.name + "}",
				"redisson_lock_queue:{" + b.name + "}",
				"redisson_lock_timeout:{" + b.name + "}", "relock_lock_alive:{" + b.name + "}",
				"{" + b.name + "}:*:rwlock_timeout:*", "{" + b.name + "}:timeout", "relock_rwlock_writers:{" + b.name + "}"} {
				rights = append(rights, "~"+key)
			}
			var logged lockedBuffer
			l := k.one(b.clientOn(as(rights...), WithPollInterval(time.Hour), WithWatchdogTimeout(userLease),
				WithLogger(slog.New(slog.NewTextHandler(&logged, nil)))), b.name)
			held := k.rival(b.direct, b.name)
			b.must(held.Lock(ctx))
			owner := ContextWithOwner(ctx)
			got := b.startWaiter(owner, l)
			b.must(held.Unlock(ctx))
			b.must(await(b.bench, "the waiter is woken", got))
			time.Sleep(userLease + userLease/6) // without a renewal the hold would have expired
			isHeld, err := l.IsHeld(owner)
			assert.NoError(t, err)
			assert.True(t, isHeld)
			b.must(l.Unlock(owner))
			b.must(l.Lock(owner))
			freed, err := l.ForceUnlock(ctx)
			assert.NoError(t, err)
			assert.True(t, freed)
			assert.Empty(t, logged.String(), "logged")
		})
	})
}

// luaCommands are the commands that the scripts run.
func luaCommands(t *testing.T) (all []string) {
	files, err := filepath.Glob("internal/lua/*.lua")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, found := range regexp.MustCompile(`redis\.p?call\('(\w+)'`).FindAllSubmatch(source, -1) {
			all = append(all, string(found[1]))
		}
	}
	return all
}

// Row 29: a script that Redis stops half way leaves no lock behind.
func TestFaultScriptThatFailsHalfWayLeavesNothing(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	tokens := "redisson_lock_token:{" + b.name + "}"
	b.must(b.rdb.HSet(ctx, tokens, "not", "a counter").Err())
	for _, l := range []Locker{
		b.direct.NewLock(b.name, Fenced()), b.direct.NewFairLock(b.name, Fenced()),
		b.direct.NewRWLock(b.name, Fenced()).Write(),
	} {
		assert.ErrorIs(t, l.Lock(ctx), ErrNotALock)
		testredis.Await(t, "nothing is left", soon, func() bool { return len(b.keys()) == 1 })
	}
	b.must(b.rdb.Del(ctx, tokens).Err())

	b.must(b.rdb.Do(ctx, "acl", "setuser", "careful", "on", ">pw", "~*", "&*", "+@all", "-pexpire").Err())
	l := b.clientOn(b.proxy.Client(func(o *redis.Options) { o.Username, o.Password = "careful", "pw" })).NewLock(b.name)
	err := l.Lock(ctx)
	require.Error(t, err)
	assert.Contains(t, strings.ToLower(err.Error()), "user") // Valkey writes "User"
	testredis.Await(t, "no lock without a lease is left", soon, func() bool { return len(b.keys()) == 0 })

	// A script that fails after its caller has left leaves no lock behind either.
	held, before := b.proxy.On(calls(lockAcquire), testredis.HoldRequest), b.commands("evalsha")
	ending, end := context.WithCancel(ctx)
	go func() {
		<-held.Fired()
		end()
	}()
	b.mustBe(l.Lock(ending), context.Canceled)
	held.Release()
	testredis.Await(t, "it has run", soon, func() bool { return b.commands("evalsha") > before })
	testredis.Await(t, "no lock without a lease is left", soon, func() bool { return len(b.keys()) == 0 })
}

// Row 76: the network loses answers for a while, and connections stay as they are. Without a read timeout go-redis waits
// for these answers for ever, and soon has no connection left.
func TestFaultSilentNetworkWithoutAReadTimeout(t *testing.T) {
	b := newFaultBench(t)
	ctx := context.Background()
	c := b.clientOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout, o.PoolSize = -1, 3 }))
	l := c.NewLock(b.name)
	b.must(l.Lock(ctx))
	b.must(l.Unlock(ctx))
	silent := b.proxy.On(func([]string) bool { return true }, testredis.StallReply).Times(testredis.Always)
	for range 4 {
		deadline, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		assert.Error(b, l.Lock(deadline))
		cancel()
	}
	silent.Release()
	testredis.Await(b, "the lock is acquired again", soon+send.ConnectTime, func() bool {
		deadline, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		return l.Lock(deadline) == nil
	})
	b.must(l.Unlock(ctx))
}

// deadlinelessConn is a connection that does not support deadlines, such as one over SSH.
type deadlinelessConn struct{ net.Conn }

var errNoDeadlines = errors.New("deadline not supported")

func (deadlinelessConn) SetDeadline(time.Time) error      { return errNoDeadlines }
func (deadlinelessConn) SetReadDeadline(time.Time) error  { return errNoDeadlines }
func (deadlinelessConn) SetWriteDeadline(time.Time) error { return errNoDeadlines }

// With a timeout of -2 go-redis sets no deadlines, and relock sets none either.
func TestConnectionsWithoutDeadlines(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b, ctx := newBench(t, addr), context.Background()
		c := b.clientOn(testredis.Client(t, addr, func(o *redis.Options) {
			o.ReadTimeout, o.WriteTimeout = -2, -2
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				var d net.Dialer
				conn, err := d.DialContext(ctx, network, addr)
				return deadlinelessConn{conn}, err
			}
		}))
		l := c.NewLock(b.name)
		for range 20 {
			b.must(l.Lock(ctx))
			b.must(l.Unlock(ctx))
		}
	})
}

// Row 37: a Redis that was paused for three seconds does not get the same renewals again and again.
func TestPausedRedisRunsFewRenewals(t *testing.T) {
	t.Parallel()
	server := testredis.Start(t)
	b := newBench(t, server.Addr())
	const many, length = 50, 15 * time.Second
	c := b.client(WithWatchdogTimeout(length))
	ctx := context.Background()
	var locks []*Lock
	for i := range many {
		l := c.NewLock(fmt.Sprint(b.name, "-", i))
		b.must(l.Lock(ctx))
		locks = append(locks, l)
	}
	guarded, err := locks[0].Guard(ctx)
	b.must(err)
	before := b.scriptRuns()
	time.Sleep(length/3 - 500*time.Millisecond) // the renewals are due while it is paused
	server.Freeze()
	time.Sleep(3 * time.Second) // long enough to repeat them several times
	server.Thaw()
	time.Sleep(100 * time.Millisecond) // all requests that were sent meanwhile run now; their number is not known
	runs := float64(b.scriptRuns()-before) / many
	t.Logf("%.1f renewals for each lease", runs)
	// Its subscription may have been replaced, too: then all holds are checked once more.
	assert.LessOrEqual(t, runs, lease.MostRenewals+1.5, "renewals for each lease")
	b.must(guarded.Err())
	for _, l := range locks {
		b.must(l.Unlock(ctx))
	}
}

const suiteTests = "TestLock TestFencedLock TestFairLock TestSemaphore TestReadLock TestWriteLock TestMultiLock " +
	"TestRedLock"

// faultRows are the tests of each row. A suite is the set of tests that all lock types pass.
var faultRows = map[int]string{
	1: "TestFaultLostAnswersChangeNothingTwice TestEngineLostAnswersOfAnAcquire",
	2: "TestHungConnectionDelaysByASecond TestHungRequestThatRunsLateIsUndone TestFaultLostAnswersChangeNothingTwice",
	3: "TestFaultAttemptRunsAfterItsUndo TestFaultLateReaderAcquiresNothing TestFaultPausedRedisEndsValidityAndCalls " +
		"TestFairLateRequestOfACallerThatHasLeft",
	4: "TestFaultAttemptRunsAfterItsUndo TestEngineUndoThatOvertakesItsAttempt",
	5: "TestFaultLostAnswersChangeNothingTwice TestUnlockGoesOnInTheBackground TestFaultLateReleaseFreesNoOtherHold " +
		"TestEngineLostAnswersOfARelease",
	6: "TestCallIsSentOnceByGoRedis TestFaultLostAnswersChangeNothingTwice",
	7: "TestFaultFailedRenewalIsRepeated TestFaultBlackHoleEndsValidityInTime " +
		"TestWatchdogEndsValidityWhenNoRenewalIsConfirmed",
	8: "suite",
	9: "TestFaultRequestIsUndoneWhenCtxEnds TestFaultMultiLockIsUndoneWhenCtxEnds " +
		"TestEngineUndoesAnAttemptThatWasGivenUp TestGivenUpAcquireIsUndoneAtOnce",
	10: "suite TestFaultLostUndoHoldsUpNoWaiter TestFairWaitersThatGiveUpLeaveTheQueue TestWriterThatGivesUpLetsReadersIn",
	11: "TestFaultWaiterSurvivesAKilledSubscription TestPubSubWakesEverybodyAfterAReconnect",
	12: "TestFaultWaiterSurvivesASilentSubscription TestFaultBlackHoleEndsValidityInTime TestPubSubNoticesASilentPeer " +
		"TestPollerNoticesAGrantThatNoMessageBrought",
	13: "TestEngineAsksAgainOnceItIsSubscribed TestFaultWaiterPollsWithoutASubscription " +
		"TestFaultTryLockWithoutASubscriptionAsksOnceMore",
	14: "TestSentinelTakeoverKeepsOrReportsEachHold TestClusterHoldsSurviveAFailover TestShardsFollowAFailover",
	15: "TestFaultRestartWithoutDataIsReported TestTokensOnlyGrow",
	16: "TestScriptThatTheServerDoesNotKnowIsSentWithItsSource TestFaultRestartWithoutDataIsReported",
	17: "suite TestEngineLossIsNoticedWithinAThirdOfTheLease",
	18: "TestSentinelTakeoverKeepsOrReportsEachHold TestClusterFailoverThatLosesTheRecordIsReported TestSentinelFailovers",
	19: "TestSyncedReplicas TestExtendThatReplicasDoNotConfirmChangesNothing TestSyncedReplicasFollowTheSlot TestSyncedReplicasWithoutWait TestSentinelFailovers",
	20: "TestSentinelTakeoverKeepsOrReportsEachHold",
	21: "TestFaultRefusedWritesAreReportedOrRetried TestFaultWaiterRidesOutPassingErrorsOnly " +
		"TestSentinelTakeoverKeepsOrReportsEachHold",
	22: "TestFaultWaiterRidesOutLoading TestFaultWaiterRidesOutPassingErrorsOnly",
	23: "TestFaultRefusedWritesAreReportedOrRetried TestFaultWaiterRidesOutPassingErrorsOnly",
	24: "TestFaultWaiterRidesOutABusyScript TestFaultWaiterRidesOutPassingErrorsOnly",
	25: "TestFaultHoldsAreRenewedWithoutMemory TestFaultWaiterRidesOutPassingErrorsOnly TestUnlockNeedsNoMemory",
	26: "TestFaultEvictedRecordIsReported",
	27: "suite TestWhatIsNoLockIsRefusedAndNotTouched TestWhatTakesThePlaceOfARecordIsNotTouched",
	28: "TestFaultRecordWithoutLeaseIsPolled TestEngineWaitsForARecordThatNeverEnds",
	29: "TestFaultScriptThatFailsHalfWayLeavesNothing TestDurationsAreRoundedUpToMilliseconds suite",
	30: "suite",
	31: "suite TestNamesWithBracesAreKept TestClusterKeysOfALockShareASlot",
	32: "TestFaultPausedHolderFindsItsGuardEnded TestEngineGuardLooksAtTheClock TestEngineGuardOfAHoldThatIsBeingLost",
	34: "TestNoWallClock",
	35: "TestFaultServerClockJumpIsReported TestLineStarvesNobodyAfterItsClockWasSetBack " +
		"TestReaderIsNotHeldOffByAHeartbeatOfTheFuture TestFairDeadWaiterIsEvictedAfterTheClockWentBack",
	36: "TestFaultTimeOfASlowRequestIsNotValid",
	37: "TestEngineAttemptThatRunsAfterAnOutageIsUndone TestFaultPausedRedisEndsValidityAndCalls " +
		"TestFairOrderSurvivesAPauseOfRedis",
	38: "TestFaultWaiterRidesOutAnOutage TestEngineOutages",
	39: "TestFaultExhaustedPoolDelaysNoRenewal TestFaultHoldSurvivesMaxClients",
	40: "TestFaultStarvedProcessTrustsNoLostLock TestEngineGuardLooksAtTheClock TestWatchdogManyLeases",
	41: "TestFaultLateRenewalCreatesNoRecord TestScriptsOfALock",
	42: "suite",
	43: "TestFaultKilledWaiterBlocksForSeconds TestFaultKilledWaitersDelayNobody " +
		"TestFairCrashedWaitersAreEvictedInSeconds " +
		"TestFairDeadHeadOfAFreeLockIsEvicted TestFairWaitersWithoutHeartbeatsAreDead",
	44: "TestFaultLostUndoHoldsUpNoWaiter TestFairWaitersThatGiveUpLeaveTheQueue " +
		"TestFairQueueKeepsItsRulesInEveryOrderOfEvents",
	45: "TestWriterIsNotStarved TestReadersAreNotStarved TestWriterEvictsDeadReaders " +
		"TestUpgradeFailsWhenOnlyItsOwnReadIsInTheWay TestDowngradeLetsReadersIn TestFaultKilledHolderBlocksForItsLease",
	46: "TestRedLockNeedsAMajorityOfLiveNodes TestRedLockLateGrantsAreGivenBack " +
		"TestRedLockRoundLongerThanTheLeaseIsNoAcquire TestMultiLockUnlocksAll " +
		"TestMultiLockStartsOverWhenAnEarlierLockIsLost",
	47: "TestRedLockNodeThatComesBackEmptyIsTakenAgain TestRedLockMajorityThatComesBackEmptyIsALoss",
	48: "TestFaultReleaseCostsTheSameForManyWaiters TestRedLockWaitersDoNotPoll",
	49: "suite TestEngineCloseWakesEverybody TestMultiLockCloseWakesWaitersElsewhere",
	50: "TestFaultClosedRedisClientIsAnError",
	51: "TestClusterSlotHalfWayKeepsHolds TestClusterReaderKeepsItsHoldCountsHalfWay TestClusterHoldsSurviveASlotMove " +
		"TestFaultWaiterRidesOutPassingErrorsOnly",
	52: "TestClusterHoldsSurviveASlotMove TestShardsFollowASlot TestShardsFollowARedirection",
	53: "TestClusterHoldsSurviveAFailover TestClusterFailoverThatLosesTheRecordIsReported",
	54: "TestFaultMissingPermissionsFailAtOnce",
	55: "TestFaultMissingPermissionsFailAtOnce TestPubSubRefusedChannels TestRefusedChannelsAreLoggedOnce",
	56: "TestFaultChangedPasswordIsReported TestFaultWaiterRidesOutPassingErrorsOnly",
	57: "TestFaultLocksOfDifferentKindsExclude TestRWLockAndPlainLockExcludeEachOther " +
		"TestFairLockAndPlainLockExcludeEachOther",
	58: "TestNewRefusesInvalidOptions",
	59: "suite",
	60: "TestFaultKilledHolderBlocksForItsLease TestFaultKilledWaiterBlocksForSeconds",
	61: "TestFaultLostAnswersOfDetachAndAttach",
	62: "TestFaultDetachThatIsNotConfirmedReleases TestFaultLateSplitIsUndone",
	63: "TestFaultAttachThatGivesUpPutsTheHoldBack TestFaultAttachAfterOneThatGaveUpIsNotRefused " +
		"TestFaultAttachThatIsOvertakenByItsUndo",
	64: "TestFaultLateRenewalOfADetachedHold TestFaultLateAttemptOfADetachedHold",
	65: "TestFaultAttachIsValidFromBeforeTheRequest",
	66: "TestFaultReadersLeaveWhileOneIsSplitOff",
	67: "TestDetachedHoldExpires TestTicketIsOverWhenKeepHasPassed TestExpiredHoldIsNotAttached " +
		"TestDetachedHoldIsReleasedByForce",
	68: "TestForcedReleaseReachesTheHolder TestForcedReleaseReachesTheHolderOfARedLock TestForceSendsHintsToOthers",
	69: "TestForcedReleaseReachesTheHolderAfterAReconnect TestRefusedHintsAreNotAskedForAgain " +
		"TestEngineLossIsNoticedWithinAThirdOfTheLease",
	70: "TestForgedHintsEndNothing TestHintChecksTheLockThatItNames",
	71: "TestFaultLostAnswerOfExtend",
	72: "TestFaultLateExtend TestExtendThatWasGivenUpLeavesNoRecord",
	73: "TestExtendIsValidFromBeforeTheRequest TestExtendLeavesHalfOfTheLease",
	74: "suite TestExtendThatIsAnsweredTooLateIsALoss",
	75: "TestMultiLockExtendNeedsAllLocks TestMultiLockEndsTogetherAfterExtend TestRedLockExtendNeedsAMajority " +
		"TestRedLockEndsAfterAnExtendInVain",
	76: "TestFaultSilentNetworkWithoutAReadTimeout",
}

// cannotBeTried are the rows without a test; the page has the reason.
var cannotBeTried = []int{33}

const faultRowCount = 76

func TestFaultRowsAreCovered(t *testing.T) {
	exists := map[string]bool{}
	for _, file := range libraryFiles(t, "*_test.go") {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, found := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`).FindAllSubmatch(source, -1) {
			exists[string(found[1])] = true
		}
	}
	page, err := os.ReadFile("docs/reliability.md")
	require.NoError(t, err)
	for n := 1; n <= faultRowCount; n++ {
		line := regexp.MustCompile(fmt.Sprintf(`(?m)^\| %d \|.*$`, n)).FindAllString(string(page), -1)
		if !assert.Len(t, line, 1, "lines of row %d on the page", n) {
			continue
		}
		names := strings.Fields(faultRows[n])
		excused := slices.Contains(cannotBeTried, n)
		assert.Equal(t, len(names) == 0, excused, "row %d has tests %v, and cannot be tried: %v", n, names, excused)
		var said []string
		for _, found := range regexp.MustCompile("`(Test\\w+)`|\\*(suite)\\*").FindAllStringSubmatch(line[0], -1) {
			said = append(said, found[1]+found[2])
		}
		assert.Equal(t, strings.Join(names, " "), strings.Join(said, " "), "row %d: the table, and the page", n)
		for _, name := range names {
			for _, test := range strings.Fields(strings.ReplaceAll(name, "suite", suiteTests)) {
				assert.True(t, exists[test], "row %d: there is no %s", n, test)
			}
		}
	}
	assert.Equal(t, faultRowCount, len(faultRows)+len(cannotBeTried), "rows")
}

// Row 34: no decision about a lock depends on the wall clock of the client.
func TestNoWallClock(t *testing.T) {
	decidesNothing := []string{"inspect.go", "internal/send/errors.go"} // times of Redis; rounding in a text
	wall := regexp.MustCompile(
		`\.(Unix|UnixMilli|UnixMicro|UnixNano|UTC|Local|AddDate|Round|Truncate|Format)\(|time\.(Date|Parse|Unix)\w*\(`,
	)
	for _, file := range libraryFiles(t, "*.go") {
		if strings.HasSuffix(file, "_test.go") || slices.Contains(decidesNothing, file) {
			continue
		}
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.Empty(t, wall.FindAllString(string(source), -1), file)
	}
}
