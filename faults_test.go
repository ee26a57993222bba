package relock

// Every lock type under faults between the client and Redis: requests and
// answers that are lost, late or repeated, and connections that die. Faults of
// Redis itself are in faults_server_test.go. Each test says which rows
// of docs/reliability.md it is for.
//
// Rules: a fault hits exactly what it is meant for, by a rule of the proxy; all
// lock types are tried side by side, because such tests mostly wait.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
)

// A faultLock is a lock type, and the requests by which its faults are injected.
type faultLock struct {
	lockKind

	takes, gives, undoes, renews testredis.Match

	asks, parts int  // requests that one acquire consists of, and one release
	red         bool // Lock goes on until ctx ends, whatever the nodes answer
}

var faultLocks = []faultLock{
	{kindCalled("lock"), calls(lockAcquire), calls(lockRelease), calls(lockRelease), calls(renewScript), 1, 1, false},
	{kindCalled("fenced"), calls(lockAcquire), calls(lockRelease), calls(lockRelease), calls(renewScript), 1, 1, false},
	{kindCalled("fair"), calls(fairAcquire), calls(fairRelease), calls(fairUndo), calls(renewScript), 1, 1, false},
	{kindCalled("read"), calls(readAcquire), calls(readRelease), calls(readRelease), calls(readRenew), 1, 1, false},
	{kindCalled("write"), calls(writeAcquire), calls(writeRelease), calls(writeUndo), calls(renewScript), 1, 1, false},
	{kindCalled("semaphore"), calls(semaphoreAcquire), calls(semaphoreRelease), calls(semaphoreRelease), calls(semaphoreRenew), 1, 1, false},
	{lockKind{name: "multi", one: newSlotMultiLock, rival: newSlotMultiLock}, calls(wholeBundle()), calls(lockRelease), calls(lockRelease), calls(renewScript), 1, 2, false},
	{lockKind{name: "red", one: newThreeWayLock, rival: newThreeWayLock}, calls(lockAcquire), calls(lockRelease), calls(lockRelease), calls(renewScript), 3, 3, true},
}

// lined says whether processes wait for the lock, or for its parts, in a line, whose tombstones stop requests that run late.
func (k faultLock) lined() bool { return k.name != "read" }

// calls matches the runs of a script.
func calls(script *luaScript) testredis.Match { return testredis.Script(script.Digest()) }

// anyOf matches the runs of these scripts.
func anyOf(scripts ...*luaScript) testredis.Match {
	return func(cmd []string) bool {
		return slices.ContainsFunc(scripts, func(s *luaScript) bool { return calls(s)(cmd) })
	}
}

// newThreeWayLock is a RedLock whose nodes all fail together: three names of one server.
func newThreeWayLock(c *Client, name string) Locker {
	others, _ := siblings.Load(c)
	two := others.([]*Client)
	return c.NewRedLock(c.NewLock(name), two[0].NewLock(name+"-b"), two[1].NewLock(name+"-c"))
}

// A faultBench has two ways to one Redis: over a proxy that can be told to fail,
// and directly.
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
	b.name += "-" // no part of the name of another one on this server
	b.direct = b.client()
	for _, script := range allScripts() {
		b.must(b.rdb.ScriptLoad(context.Background(), script.Source()).Err()) // so that a fault hits a run, not a NOSCRIPT
	}
	return b
}

// faultsAtOnce bounds the calls of onFaultLocks that run together: each has seven tests, which measure time.
var faultsAtOnce = make(chan struct{}, 6)

// onFaultLocks runs test for every lock type at the same time, however few
// processors there are, each on what start starts.
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

// oneRedis is for faults of the way there: all lock types share a server.
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

// clientOn is that of a bench, with two siblings that know the same server by other names.
func (b *faultBench) clientOn(rdb *redis.Client, opts ...Option) *Client {
	b.Helper()
	opts = append([]Option{WithNodeTimeout(4 * time.Second)}, opts...)
	_, port, err := net.SplitHostPort(rdb.Options().Addr)
	b.must(err)
	var others []*Client
	for _, host := range []string{"[::ffff:127.0.0.1]", "[::ffff:7f00:1]"} {
		others = append(others, b.bench.clientOn(testredis.Client(b, "", func(o *redis.Options) {
			*o = *rdb.Options()
			o.Addr = host + ":" + port
		}), opts...))
	}
	c := b.bench.clientOn(rdb, opts...) // closed before the others, of whose locks its RedLocks consist
	siblings.Store(c, others)
	b.Cleanup(func() { siblings.Delete(c) })
	return c
}

// stays makes sure that nothing comes over c for a while.
func stays[T any](b testing.TB, what string, c <-chan T, d time.Duration) {
	b.Helper()
	select {
	case v := <-c:
		require.Fail(b, what, "%v", v)
	case <-time.After(d):
	}
}

// records are the bench's keys but for token counters, which stay.
func (b *faultBench) records() []string {
	return slices.DeleteFunc(b.keys(), func(key string) bool { return strings.HasPrefix(key, "redisson_lock_token:") })
}

// refuses makes sure that l cannot be taken, soon and with that answer, and that nothing is left of it.
func (b *faultBench) refuses(l Locker, answer string) {
	b.Helper()
	start := time.Now()
	ok, err := l.TryLock(context.Background(), 0, 0)
	for tries := 0; errors.Is(err, engine.ErrNoAnswer) && tries < 5; tries++ { // the machine is very busy
		ok, err = l.TryLock(context.Background(), 0, 0)
	}
	assert.False(b, ok, "TryLock")
	assert.ErrorContains(b, err, answer, "TryLock")
	assert.LessOrEqual(b, time.Since(start), 2*soon, "TryLock")
	assert.NotErrorIs(b, err, redis.Nil, "redis.Nil leaves the package")
	b.mustBe(l.Unlock(context.Background()), ErrNotHeld)
}

// tokenOf is the fencing token of l, or 0 if it has none.
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

// Rows 1, 2, 5, 6: the answer is lost, the request has run; or not even that.
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
				}{{k.takes, l.Lock, 1, 2 * k.asks}, {k.takes, l.Lock, 2, 2 * k.asks}, {k.gives, l.Unlock, 1, 2 * k.parts}, {k.gives, l.Unlock, 0, 2 * k.parts}} {
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

// Row 9: ctx ends while the request is under way.
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
	rule.Release() // it runs now, and its undo after it or before
	next := k.rival(b.direct, b.name)
	testredis.Await(b, "the lock is free again", 2*soon, func() bool {
		ok, err := next.TryLock(context.Background(), 0, 0)
		return ok && err == nil
	})
	b.must(next.Unlock(context.Background()))
}

// Rows 3, 4: the undo overtakes the attempt. The record of the late attempt expires, is not
// renewed, and is not taken for a later hold. Where the lock has a line, the late attempt takes nothing.
func TestFaultAttemptRunsAfterItsUndo(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		const lease = time.Second
		l := k.one(b.shaky(WithWatchdogTimeout(lease)), b.name)
		rule := b.proxy.On(k.takes, testredis.HoldRequest).Times(testredis.Always)
		undone := b.proxy.On(k.undoes, testredis.DelayReply(0)).Times(k.parts)
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
		if k.lined() {
			testredis.Await(b, "the late attempt has run", soon, func() bool { return b.scriptRuns() > ran })
			assert.Empty(b, b.records(), "a late attempt has taken a lock")
		} else {
			testredis.Await(b, "the late attempt has run", soon, func() bool { return len(b.records()) > 0 })
		}
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

// Row 9: also where a MultiLock has taken some of its locks by then, and cannot give them back.
func TestFaultMultiLockIsUndoneWhenCtxEnds(t *testing.T) {
	t.Parallel()
	ends := map[string]func(ctx context.Context, l Locker) error{
		"Lock": func(ctx context.Context, l Locker) error { return l.Lock(ctx) },
		"TryLock": func(ctx context.Context, l Locker) error {
			ok, err := l.TryLock(context.WithoutCancel(ctx), time.Second, 0)
			if ok || err != nil && !errors.Is(err, errTimeUp) { // it is an error if a try of it was not answered
				return err
			}
			return context.Canceled
		},
	}
	for name, lock := range ends {
		t.Run(name, func(t *testing.T) {
			b := newFaultBench(t)
			owner := WithOwner(context.Background())
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
			time.Sleep(time.Until(start.Add(time.Second))) // ctx ends at the same time in each case
			cancel()
			ended := time.Now()
			b.mustBe(await(b.bench, "it comes back", got), context.Canceled)
			assert.LessOrEqual(b, time.Since(ended), soon/2, "time until it came back")
			b.proxy.BlackHole(false)
			b.must(blocking.Unlock(owner))
			both := b.direct.NewMultiLock(b.direct.NewFairLock(b.name+"1"), b.direct.NewLock(b.name+"2"))
			within, done := context.WithTimeout(context.Background(), 2*soon)
			defer done()
			b.must(both.Lock(within)) // long before any lease is over
			b.must(both.Unlock(within))
		})
	}
}

// Row 5: a release that runs late frees no other owner's hold.
func TestFaultLateReleaseFreesNoOtherHold(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		l, next := k.one(b.shaky(), b.name), k.one(b.direct, b.name)
		b.must(l.Lock(ctx))
		rule := b.proxy.On(k.gives, testredis.HoldRequest).Times(k.parts)
		b.must(l.Unlock(ctx)) // the second try does it
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
func TestFaultBlackHoleEndsTrustInTime(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		const lease = 2 * time.Second
		l := k.one(b.shaky(WithWatchdogTimeout(lease)), b.name)
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		b.proxy.BlackHole(true)
		start := time.Now()
		await(b.bench, "the guard ends", guarded.Done())
		assert.LessOrEqual(b, time.Since(start), 2*lease, "time from the last possible renewal to the end of the guard")
		b.mustBe(context.Cause(guarded), ErrLockLost)
		next := k.rival(b.direct, b.name)
		b.must(next.Lock(ctx))
		b.proxy.BlackHole(false)
		b.mustBe(l.Unlock(ctx), ErrLockLost)
		b.holds(next, 1)
		b.must(next.Unlock(ctx))
	})
}

// Row 7: a short outage is ridden out.
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

// Row 41: a renewal that runs after the release renews no other owner's hold and leaves nothing.
func TestFaultLateRenewalCreatesNoRecord(t *testing.T) {
	t.Parallel()
	for _, taken := range []bool{true, false} { // whether a next holder has taken the lock meanwhile
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
				testredis.Await(b, "the late renewals have run", soon, func() bool { return b.commands("evalsha") >= before+k.parts })
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

// Rows 10, 44: a waiter gives up, and the answer to that is lost. The waiter behind it is not held up.
func TestFaultLostUndoHoldsUpNoWaiter(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		held := k.rival(b.direct, b.name)
		b.must(held.Lock(ctx))
		fickle, cancel := context.WithCancel(ctx)
		gone := b.startWaiter(WithOwner(fickle), k.one(b.shaky(), b.name))
		next, owner := k.one(b.client(WithMaxWakeDelay(time.Hour)), b.name), WithOwner(ctx)
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

// Row 11: the subscription connection is killed, and the message lost with it.
func TestFaultWaiterSurvivesAKilledSubscription(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		held := k.rival(b.direct, b.name)
		waiting := k.one(b.client(WithMaxWakeDelay(time.Hour)), b.name)
		for range 3 {
			owner := WithOwner(ctx)
			b.must(held.Lock(ctx))
			got := b.startWaiter(owner, waiting)
			b.must(b.rdb.Do(ctx, "client", "kill", "type", "pubsub").Err())
			b.must(held.Unlock(ctx))
			b.must(await(b.bench, "the waiter notices", got))
			b.must(waiting.Unlock(owner))
		}
	})
}

// Row 12: the subscription connection goes silent.
func TestFaultWaiterSurvivesASilentSubscription(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		held := k.rival(b.direct, b.name)
		b.must(held.Lock(ctx))
		owner := WithOwner(ctx)
		waiting := k.one(b.shaky(WithMaxWakeDelay(time.Hour)), b.name)
		got := b.startWaiter(owner, waiting)
		b.proxy.BlackHole(true)
		b.must(held.Unlock(ctx))
		time.Sleep(100 * time.Millisecond) // the message goes into the black hole, and leaves no trace to await
		b.proxy.CutAll()                   // data on its way is lost
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

// Row 13: a waiter polls also while its subscription is never confirmed.
func TestFaultWaiterPollsWithoutASubscription(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		held := k.rival(b.direct, b.name)
		b.must(held.Lock(ctx))
		rule := b.proxy.On(testredis.Command("subscribe"), testredis.StallReply).Times(testredis.Always)
		got := make(chan error, 1)
		owner := WithOwner(ctx)
		waiting := k.one(b.shaky(WithMaxWakeDelay(100*time.Millisecond)), b.name)
		go func() { got <- waiting.Lock(owner) }()
		await(b.bench, "the subscription is not answered", rule.Fired())
		b.must(held.Unlock(ctx))
		b.must(await(b.bench, "the waiter notices by itself", got))
		b.must(waiting.Unlock(owner))
		rule.Release()
	})
}

// Row 39: no connection is to be had from the pool.
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

// Row 48: a thousand wait for one lock, in four processes. The cost of a release in
// Redis depends on the number of processes, not of waiters. Waiters of a fair lock poll
// once a second.
func TestFaultReleaseCostsTheSameForManyWaiters(t *testing.T) {
	const processes, releases = 4, 5
	waiters := full(300, 1000)
	onFaultLocks(t, ownRedis(), func(b *faultBench, k faultLock) {
		if k.shared {
			return // they come in together
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		held := k.one(b.direct, b.name)
		b.must(held.Lock(ctx))
		in := make(chan error, waiters)
		goOn := make(chan struct{})
		var all sync.WaitGroup
		var locks []Locker
		for range processes {
			l := k.one(b.clientOn(b.proxy.Client(), WithMaxWakeDelay(time.Hour)), b.name)
			locks = append(locks, l)
			for range waiters / processes {
				waitgroup.Go(&all, func() {
					owner := WithOwner(ctx)
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
		least := processes * k.asks * 2 // everyone asks, listens, and asks again
		if k.name == "fair" {
			least = 2 * waiters
		}
		testredis.Await(b, "all wait", 4*soon, func() bool { return b.commands("evalsha") >= least })
		if h, ok := held.(known); ok && h.inside().lock.Admission() == engine.Counted {
			// Waiters that come together ask once, each for itself.
			testredis.Await(b, "one of each process asks", 4*soon, func() bool {
				queued := 0
				for _, l := range locks {
					queued += b.waitersInQueue(l.(known))
				}
				return queued == waiters-processes
			})
		}
		b.proxy.On(func(cmd []string) bool { // one half of a MultiLock is free before the other
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

// Row 57: one name for locks of different kinds. They exclude one another, or it is an error.
func TestFaultLocksOfDifferentKindsExclude(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	for _, one := range faultLocks {
		for _, other := range faultLocks {
			if one.asks+one.parts+other.asks+other.parts > 4 || one.shared && other.shared {
				continue // made of others; or meant to be together
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
				l, next := one.one(b.direct, b.name), other.one(b.client(WithMaxWakeDelay(50*time.Millisecond)), b.name)
				b.must(l.Lock(ctx))
				ok, err := next.TryLock(ctx, 0, 0)
				require.False(t, ok, "a second holder")
				require.NotErrorIs(t, err, context.DeadlineExceeded)
				owner := WithOwner(ctx)
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

// A host that is gone takes no connection and refuses none: no call takes longer than it says.
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
	assert.LessOrEqual(t, took, send.ConnectTime+2*time.Second, "time of Unlock")
	start = time.Now()
	ok, err := l.TryLock(ctx, 0, 0)
	assert.False(t, ok, "TryLock")
	assert.Error(t, err, "TryLock")
	took = time.Since(start)
	assert.LessOrEqual(t, took, send.ConnectTime+2*time.Second, "time of TryLock")
}

// The one connection is in use, and the server frozen: all waits of Unlock together last no longer than documented.
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
			assert.LessOrEqual(t, took, send.ConnectTime+2*time.Second, "time of Unlock")
			start = time.Now()
			ok, err := l.TryLock(ctx, 0, 0)
			assert.False(t, ok)
			assert.Error(t, err)
			took = time.Since(start)
			assert.LessOrEqual(t, took, 3*send.ConnectTime, "time of TryLock")
		})
	}
}

// A repeatingHook loses the answer to each command that runs a script, and sends the command again, as hooks of users do.
type repeatingHook struct {
	processHook      // of pipelines and connections, which it passes on
	obeys       bool // NoRetry
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

// A hook that sends an Unlock again by itself hides that the first one has run: docs/client.md. The lock is free all the same.
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
