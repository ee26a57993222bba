package relock

// What every lock type must do, whatever its record looks like. A lock type's own
// test file calls testLocker, and adds what is special about it.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/testredis"
)

// A lockMaker makes the lock under test.
type lockMaker func(c *Client, name string) Locker

// soon is how long something may take that should happen at once, on a busy machine.
const soon = 15 * time.Second // on a machine that is busy with something else

// onEachServer runs test on a miniredis and on a real Redis.
func onEachServer(t *testing.T, test func(t *testing.T, addr string)) {
	t.Run("miniredis", func(t *testing.T) { test(t, testredis.Mini(t).Addr()) })
	t.Run("redis", func(t *testing.T) { test(t, testredis.Start(t).Addr()) })
}

// A bench is what one test has: a Redis, and a name of its own in it.
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
		name: fmt.Sprintf("lock-%d", benches.Add(1)),
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
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		siblings.Delete(c)
		if err := c.Close(); err != nil {
			b.Error(err)
		}
	})
	if all != nil {
		siblings.Store(c, all)
	}
	return c
}

// siblings are the clients on the other servers of a bench, for each on the first one.
var siblings sync.Map // *Client -> []*Client

// keys are the keys in Redis that have to do with the bench's name.
func (b *bench) keys() []string { return b.keysOn(b.rdb) }

func (b *bench) keysOn(rdb *redis.Client) []string {
	keys, err := rdb.Keys(context.Background(), "*"+b.name+"*").Result()
	if err != nil {
		b.Fatal(err)
	}
	return keys
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
			if err != nil {
				b.Fatal(err)
			}
			return len(channels) == 0
		})
	}
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bench) mustBe(err, want error) {
	b.Helper()
	if !errors.Is(err, want) {
		b.Fatalf("error %v, want %v", err, want)
	}
}

// tries is one try of l, which must be answered with want.
func (b *bench) tries(l Locker, want bool) {
	b.Helper()
	ok, err := l.TryLock(context.Background(), 0, 0)
	if ok != want || err != nil {
		b.Fatalf("TryLock answers %v, %v; want %v", ok, err, want)
	}
}

func (b *bench) isLocked(l Locker, want bool) {
	b.Helper()
	if got, err := l.IsLocked(context.Background()); got != want || err != nil {
		b.Fatalf("IsLocked answers %v, %v; want %v", got, err, want)
	}
}

func (b *bench) holds(l Locker, want int) {
	b.Helper()
	n, err := l.HoldCount(context.Background())
	if n != want || err != nil {
		b.Fatalf("HoldCount answers %v, %v; want %v", n, err, want)
	}
	if held, err := l.IsHeld(context.Background()); held != (want > 0) || err != nil {
		b.Fatalf("IsHeld answers %v, %v; want %v", held, err, want > 0)
	}
}

// elsewhere runs f on another goroutine and waits for it.
func elsewhere[T any](f func() T) T {
	result := make(chan T)
	go func() { result <- f() }()
	return <-result
}

// startWaiter has l locked on another goroutine, and returns once it waits in
// Redis. What Lock returns comes over the channel.
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
	select {
	case v := <-c:
		return v
	case <-time.After(soon):
		b.Fatalf("waited in vain: %s", what)
		panic("unreachable")
	}
}

// A counter counts what a client sends.
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
// another, whoever made them.
func testLocker(t *testing.T, newLock lockMaker) {
	suite{newLock: newLock, rival: newLock}.run(t)
}

// A suite is what is tested of every lock type.
type suite struct {
	newLock lockMaker
	rival   lockMaker     // of locks that exclude newLock's
	shared  bool          // newLock's do not exclude one another
	nodes   int           // servers that a lock needs; 0: one
	least   time.Duration // the least lease; 0: 1ms
	without string        // a test that is not for this type, or ""
}

func (s suite) run(t *testing.T) {
	t.Parallel()
	newLock, rival, shared := s.newLock, s.rival, s.shared
	ctx := context.Background()
	tests := []struct {
		name string
		test func(b *bench)
	}{
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
					wg.Go(func() {
						for range 15 {
							if err := l.Lock(ctx); err != nil {
								b.Error(err)
								return
							}
							together.visit(b, alone, 0)
							sections.Add(1)
							if err := l.Unlock(ctx); err != nil {
								b.Error(err)
							}
						}
					})
				}
			}
			wg.Wait()
			if n := sections.Load(); n != 180 {
				b.Errorf("%d sections", n)
			}
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
			if errors.Is(err, ErrLockLost) || !strings.Contains(err.Error(), b.name) || !strings.Contains(err.Error(), "unlock") {
				b.Errorf("error %v", err)
			}
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
			if ok, err := rival(c, b.name).TryLock(two, 0, 0); ok || err != nil {
				b.Errorf("another owner on the same goroutine: %v, %v", ok, err)
			}
			b.must(elsewhere(func() error { return l.Lock(one) }))
			if n, err := l.HoldCount(one); n != 2 || err != nil {
				b.Errorf("%d levels, %v", n, err)
			}
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
				for tries := 0; errors.Is(err, errNoAnswer) && tries < 5; tries++ { // the machine is very busy
					start = time.Now()
					ok, err = l.TryLock(ctx, wait, 0)
				}
				if took := time.Since(start); ok || err != nil || took < wait || took > wait+soon {
					b.Errorf("wait %v: %v, %v after %v", wait, ok, err, took)
				}
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
				if !freed || err != nil {
					b.Fatal(freed, err)
				}
			}
		}},
		{"WaiterIsWokenByForce", func(b *bench) {
			held, l := rival(b.client(), b.name), newLock(b.client(WithMaxWakeDelay(time.Hour)), b.name)
			b.must(held.Lock(ctx))
			owner := WithOwner(ctx)
			got := b.startWaiter(owner, l)
			if freed, err := held.ForceUnlock(ctx); !freed || err != nil {
				b.Fatal(freed, err)
			}
			b.must(await(b, "the waiter is woken", got))
			b.must(l.Unlock(owner))
		}},
		{"CtxEndsTheWait", func(b *bench) {
			held, l := rival(b.client(), b.name), newLock(b.client(), b.name)
			b.must(held.Lock(ctx))
			waiting, cancel := context.WithCancel(ctx)
			got := b.startWaiter(waiting, l)
			local := make(chan error, 1)
			go func() { local <- l.Lock(waiting) }() // behind the first, at the gate
			cancel()
			for _, c := range []<-chan error{got, local} {
				err := await(b, "the waiter gives up", c)
				b.mustBe(err, context.Canceled)
				if !strings.Contains(err.Error(), b.name) || !strings.Contains(err.Error(), "lock") {
					b.Errorf("error %v", err)
				}
			}
			deadline, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
			defer cancel()
			b.mustBe(l.Lock(deadline), context.DeadlineExceeded)
			b.must(held.Unlock(ctx))
			testredis.Await(b, "nobody has it", soon, func() bool { // who gave up may still be on the way out
				locked, err := l.IsLocked(ctx)
				return !locked && err == nil
			})
			if ok, err := l.TryLock(ctx, soon, 0); !ok || err != nil {
				b.Errorf("TryLock: %v, %v", ok, err)
			}
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
			b.mustBe(l.Do(ended, func(context.Context) error { b.Error("called"); return nil }), context.Canceled)
			_, err = l.IsLocked(ended)
			b.mustBe(err, context.Canceled)
			_, err = l.ForceUnlock(ended)
			b.mustBe(err, context.Canceled)
			if n := sent.n.Load(); n != 0 {
				b.Errorf("%d requests", n)
			}
		}},
		{"WatchdogKeepsTheLease", func(b *bench) {
			const lease = 3 * time.Second
			l := newLock(b.client(WithWatchdogTimeout(lease)), b.name)
			b.must(l.Lock(ctx))
			if ok, err := l.TryLock(ctx, 0, 10*time.Millisecond); !ok || err != nil { // changes nothing
				b.Fatal(ok, err)
			}
			b.must(l.Unlock(ctx))
			guarded, err := l.Guard(ctx)
			b.must(err)
			for start := time.Now(); time.Since(start) < lease+lease/6; time.Sleep(lease / 60) {
				if ttl, err := l.TTL(ctx); ttl <= 0 || ttl > lease || err != nil {
					b.Fatalf("TTL %v, %v after %v", ttl, err, time.Since(start))
				}
			}
			if guarded.Err() != nil {
				b.Fatal(context.Cause(guarded))
			}
			b.must(l.Unlock(ctx))
		}},
		{"LeaseLapses", func(b *bench) {
			const lease = 600 * time.Millisecond
			l, next := newLock(b.client(), b.name), rival(b.client(), b.name)
			start := time.Now()
			b.must(l.LockLease(ctx, lease))
			guarded, err := l.Guard(ctx)
			b.must(err)
			b.must(next.Lock(ctx)) // waits for no message: nobody unlocks
			if took := time.Since(start); took < lease-10*time.Millisecond {
				b.Errorf("the next one got the lock %v after a lease of %v began", took, lease)
			}
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
				ok, err := l.TryLock(ctx, soon, 100*time.Millisecond)
				if !ok || err != nil {
					b.Fatal(ok, err)
				}
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
			if b.must(err); ttl > 60*time.Second || ttl < 50*time.Second {
				b.Errorf("TTL %v after leases of 60s and 10s", ttl)
			}
			b.must(l.LockLease(ctx, 100*time.Second))
			ttl, err = l.TTL(ctx)
			if b.must(err); ttl > 100*time.Second || ttl < 90*time.Second {
				b.Errorf("TTL %v after another one of 100s", ttl)
			}
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
			if guarded.Err() != nil || guarded.Value(key{}) != "value" {
				b.Fatal("ended while the lock is held, or lost its values")
			}
			b.must(l.Unlock(ctx))
			if guarded.Err() == nil || context.Cause(guarded) != context.Canceled {
				b.Errorf("cause %v", context.Cause(guarded))
			}
		}},
		{"Do", func(b *bench) {
			l := newLock(b.client(), b.name)
			ran := false
			b.must(l.Do(ctx, func(guarded context.Context) error {
				ran = true
				b.holds(l, 1)
				return guarded.Err()
			}))
			if !ran {
				b.Error("fn was not called")
			}
			b.holds(l, 0)
			err := l.Do(ctx, func(context.Context) error { return io.ErrNoProgress })
			if err != io.ErrNoProgress && !errors.Is(err, io.ErrNoProgress) || errors.Is(err, ErrNotHeld) {
				b.Errorf("error %v", err)
			}
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
					if r := recover(); r != "mine" {
						b.Errorf("recovered %v", r)
					}
				}()
				_ = l.Do(ctx, func(context.Context) error { panic("mine") })
			}()
			b.isLocked(l, false)
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
				if !errors.Is(err, ErrClosed) {
					b.Errorf("%s after Close: %v", name, err)
				}
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
			if freed, err := l.ForceUnlock(ctx); freed || err != nil {
				b.Errorf("nobody holds it: %v, %v", freed, err)
			}
			b.must(l.Lock(ctx))
			if freed, err := other.ForceUnlock(ctx); !freed || err != nil {
				b.Fatal(freed, err)
			}
			b.isLocked(l, false)
			b.mustBe(l.Unlock(ctx), ErrLockLost)

			// The holders of this client hear of it at once.
			b.must(l.Lock(ctx))
			guarded, err := l.Guard(ctx)
			b.must(err)
			if freed, err := elsewhere(func() pair[bool] { return pairOf(l.ForceUnlock(ctx)) }).get(); !freed || err != nil {
				b.Fatal(freed, err)
			}
			await(b, "the guard ends", guarded.Done())
			b.mustBe(context.Cause(guarded), ErrLockLost)
			b.mustBe(l.Unlock(ctx), ErrLockLost)
		}},
		{"Queries", func(b *bench) {
			l, other := newLock(b.client(), b.name), newLock(b.client(), b.name)
			if !strings.Contains(l.Name(), b.name) {
				b.Errorf("name %q", l.Name())
			}
			b.isLocked(l, false)
			b.holds(l, 0)
			if ttl, err := l.TTL(ctx); ttl != 0 || err != nil {
				b.Errorf("TTL %v, %v", ttl, err)
			}
			b.must(l.LockLease(ctx, time.Minute))
			b.isLocked(l, true)
			b.isLocked(other, true)
			b.holds(l, 1)
			b.holds(other, 0)
			if n := elsewhere(func() int { n, _ := l.HoldCount(ctx); return n }); n != 0 {
				b.Errorf("another goroutine holds %d levels", n)
			}
			for _, l := range []Locker{l, other} {
				if ttl, err := l.TTL(ctx); ttl > time.Minute || ttl < 50*time.Second || err != nil {
					b.Errorf("TTL %v, %v", ttl, err)
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
				if !errors.Is(err, ErrInvalid) {
					b.Errorf("%s: %v", name, err)
				} else if len(err.Error()) > 300 {
					b.Errorf("%s: an error of %d bytes", name, len(err.Error()))
				}
			}
			if n := sent.n.Load(); n != 0 {
				b.Errorf("%d requests", n)
			}
		}},
		{"Leases", func(b *bench) {
			l := newLock(b.client(), b.name)
			for _, c := range []struct{ lease, most time.Duration }{
				{time.Hour + 1, time.Hour + time.Millisecond},
				{1<<63 - 1, 1<<63 - 1},
			} {
				b.must(l.LockLease(ctx, c.lease))
				ttl, err := l.TTL(ctx)
				if b.must(err); ttl > c.most || ttl < c.most-time.Minute {
					b.Errorf("TTL %v for a lease of %v", ttl, c.lease)
				}
				b.holds(l, 1)
				b.must(l.Unlock(ctx))
			}
			for range 20 { // over before it is held, or nearly so
				// It may also end while it is asked for once more.
				if err := l.LockLease(ctx, max(s.least, time.Millisecond)); err != nil && !errors.Is(err, ErrLockLost) {
					b.Fatal(err)
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
				if !errors.Is(err, ErrNotALock) || errors.Is(err, context.DeadlineExceeded) {
					b.Errorf("%s: %v", name, err)
				}
			}
			b.mustBe(l.Unlock(ctx), ErrNotHeld)
			if v, err := b.rdb.Get(ctx, b.name).Result(); v != "somebody else's" || err != nil {
				b.Errorf("the key is now %q, %v", v, err)
			}
			b.forget()
		}},
		{"ManyOwnersRandomly", func(b *bench) {
			var together section
			var wg sync.WaitGroup
			for i := range 3 {
				c := b.client(WithMaxWakeDelay(100 * time.Millisecond))
				for j := range 4 {
					rng := newRand(10*i + j)
					l, alone := newLock(c, b.name), !shared
					if j%2 == 0 {
						l, alone = rival(c, b.name), true
					}
					wg.Go(func() {
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
							if err != nil && lockCtx.Err() == nil && !errors.Is(err, errNoAnswer) { // on a machine that is very busy
								b.Error(err)
							}
							if !ok {
								continue
							}
							together.visit(b, alone, time.Duration(rng.IntN(int(2*time.Millisecond))))
							if err := l.Unlock(ctx); err != nil {
								b.Error(err)
							}
						}
					})
				}
			}
			wg.Wait()
		}},
	}
	onEachServer(t, func(t *testing.T, addr string) {
		var others []string
		for range s.nodes - 1 {
			if strings.HasSuffix(t.Name(), "miniredis") {
				others = append(others, testredis.Mini(t).Addr())
			} else {
				others = append(others, testredis.Start(t).Addr())
			}
		}
		for _, test := range tests {
			if test.name == s.without {
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

// A section is what the locks of a test protect: one may be inside alone, or
// several who do not mind.
type section struct{ alone, shared atomic.Int64 }

func (s *section) visit(b *bench, alone bool, stay time.Duration) {
	mine := &s.shared
	if alone {
		mine = &s.alone
	}
	mine.Add(1)
	if a, n := s.alone.Load(), s.shared.Load(); a > 1 || a == 1 && n > 0 {
		b.Errorf("%d who want to be alone are inside with %d others", a, n)
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
