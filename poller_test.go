package relock

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/poller"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
)

// L1: a record that disappears without a release costs its waiters the max wake delay at most, wherever they stand.
func TestWaitersNoticeALockThatBecomesFreeByItself(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		b.must(b.client().NewLock(b.name).LockLease(ctx, time.Minute))
		var waiters []<-chan error
		for range 3 {
			got := make(chan error, 1)
			l := b.client().NewLock(b.name)
			go func() {
				got <- l.Do(ctx, func(context.Context) error { return nil })
			}()
			waiters = append(waiters, got)
		}
		testredis.Await(t, "all stand in the line", soon, func() bool {
			return b.rdb.HGet(ctx, "relock_line:{"+b.name+"}", "last").Val() == "3"
		})
		start := time.Now()
		b.must(b.rdb.Del(ctx, b.name).Err())
		for _, got := range waiters {
			b.must(await(b, "a waiter comes in", got))
		}
		assert.Less(t, time.Since(start), 4*time.Second)
	})
}

// A line that is deleted while others go on with the lock, or that loses a place, makes its waiters ask within a max wake
// delay: the lock is never free, so only the place says it.
func TestLookoutNoticesALostPlace(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		for _, kind := range []struct {
			name string
			lock func(c *Client, name string) Locker
		}{
			{"plain", func(c *Client, name string) Locker { return c.NewLock(name) }},
			{"write", func(c *Client, name string) Locker { return c.NewRWLock(name).Write() }},
		} {
			t.Run(kind.name, func(t *testing.T) {
				b := newBench(t, addr)
				ctx := context.Background()
				held := kind.lock(b.client(), b.name)
				b.must(held.Lock(ctx))
				waits := b.client()
				got := make(chan error, 1)
				go func() {
					got <- kind.lock(waits, b.name).Do(ctx, func(context.Context) error { return nil })
				}()
				stands := func() bool { return b.rdb.HExists(ctx, b.lineKey(), waits.ID()).Val() }
				testredis.Await(t, "it stands in the line", soon, stands)
				b.must(b.rdb.Del(ctx, b.lineKey()).Err())
				testredis.Await(t, "it stands in the line again", soon, stands)
				b.must(held.Unlock(ctx))
				b.must(await(b, "the waiter has the lock", got))
			})
		}
	})
}

// A waiter that has a place learns that a Java service holds the lock by now: only Redisson's channel says when it is free.
func TestLookoutNoticesAHolderWithoutALine(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.opts = nil
		first := b.manual().takes()
		waits := b.contender().joins()
		b.must(b.rdb.HDel(context.Background(), b.name, first.field).Err())
		b.must(b.rdb.HSet(context.Background(), b.name, javaThread, 1).Err())
		testredis.Await(b, "the waiter hears Redisson's channel", soon, func() bool { return b.hearers(b.releaseChannel()) == 1 })
		b.javaReleases(javaThread)
		waits.gets().unlocks()
	})
}

// L1: a waiter whose subscription has gone silent is granted the lock, and nothing tells it. It notices within a max
// wake delay, long before the connection is given up, also where its process waits for more locks than are looked at
// closely each time.
func TestLookoutNoticesAGrantThatNoMessageBrought(t *testing.T) {
	t.Parallel()
	kinds := map[string]func(c *Client, name string) Locker{
		"plain": func(c *Client, name string) Locker { return c.NewLock(name) },
		"write": func(c *Client, name string) Locker { return c.NewRWLock(name).Write() },
	}
	for what, lock := range kinds {
		for _, locks := range []int{1, 150} {
			t.Run(fmt.Sprint(what, locks), func(t *testing.T) {
				t.Parallel()
				const delay = 800 * time.Millisecond
				b := newFaultBenchOn(t, testredis.Start(t))
				ctx := context.Background()
				waits := b.bench.clientOn(b.proxy.Client(), WithMaxWakeDelay(delay))
				var held []Locker
				got := make(chan error, locks)
				var all sync.WaitGroup
				for i := range locks {
					name := fmt.Sprint(b.name, i)
					held = append(held, lock(b.direct, name))
					b.must(held[i].Lock(ctx))
					waitgroup.Go(&all, func() {
						l, owner := lock(waits, name), WithOwner(ctx)
						got <- l.Lock(owner)
						assert.NoError(t, l.Unlock(owner))
					})
				}
				testredis.Await(t, "all stand in their lines", 2*soon, func() bool {
					return len(b.rdb.Keys(ctx, "relock_line:{"+b.name+"*").Val()) == locks
				})
				silent := b.proxy.On(testredis.Command("ping"), testredis.StallReply)
				await(b.bench, "the subscription is silent", silent.Fired())
				subscribers := func() []string {
					clients, err := b.rdb.Do(ctx, "client", "list", "type", "pubsub").Text()
					b.must(err)
					return regexp.MustCompile(`(?m)^id=\d+`).FindAllString(clients, -1)
				}
				before := subscribers()
				for _, l := range held {
					b.must(l.Unlock(ctx))
				}
				for range locks {
					b.must(await(b.bench, "a waiter notices that it has the lock", got))
				}
				assert.Equal(t, before, subscribers(), "the connection has not been given up yet, which would wake everybody")
				all.Wait()
			})
		}
	}
}

// C4: waiters whose locks stay held cost one request for many of them.
func TestIdleWaitersShareALook(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	b := newBench(t, s.Addr())
	const locks = 300
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	held := b.client()
	rdb := s.Client()
	var asks, looks atomic.Int64
	rdb.AddHook(commandHook(func(cmd redis.Cmder) {
		args := fmt.Sprint(cmd.Args()...)
		switch {
		case strings.Contains(args, freeInspect.Digest()):
			looks.Add(1)
		case strings.Contains(args, lockAcquire.Digest()):
			asks.Add(1)
		}
	}))
	waits := b.clientOn(rdb, WithMaxWakeDelay(200*time.Millisecond))
	for i := range locks {
		name := fmt.Sprint(b.name, "-", i)
		b.must(held.NewLock(name).Lock(ctx))
		go func() { _ = waits.NewLock(name).Lock(ctx) }()
	}
	testredis.Await(t, "all stand in their lines", 2*soon, func() bool {
		return len(b.rdb.Keys(ctx, "relock_line:{"+b.name+"-*").Val()) == locks
	})
	testredis.Await(t, "the lookout looks", soon, func() bool { return looks.Load() > 2 })
	asked, looked, start := asks.Load(), looks.Load(), time.Now()
	testredis.Await(t, "the lookout looks on", soon, func() bool { return looks.Load() >= looked+8 })
	assert.Less(t, looks.Load()-looked, int64(2*(time.Since(start)/(200*time.Millisecond)+2)), "looks")
	assert.Zero(t, asks.Load()-asked, "requests of waiters")
	cancel()
	for i := range locks {
		_, err := held.NewLock(fmt.Sprint(b.name, "-", i)).ForceUnlock(context.Background())
		require.NoError(t, err)
	}
}

// Each place in front counts.
func TestLineSaysHowManyAreInFront(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.manual().takes()
		for n := range 3 {
			assert.Equal(b, int64(1+4*n), b.manual().listens().joins().ask(engine.HearsGrant)[2])
		}
		b.must(b.rdb.Del(context.Background(), b.name, b.lineKey()).Err())
	})
}

// C1: the goroutine of the lookout ends when no caller waits.
func TestLookoutEndsWithItsWaiters(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Mini(t).Addr())
	c := b.client(WithMaxWakeDelay(50 * time.Millisecond))
	l := c.engine.Probe().Poller()
	running := func() bool { r, _ := l.Running(); return r }
	b.must(b.rdb.HSet(context.Background(), b.name, javaThread+":01", 1).Err())
	b.must(b.rdb.HSet(context.Background(), b.lineKey(), c.ID(), "a place").Err())
	wake := make(chan struct{}, 1)
	stop := l.Watch(b.name, poller.Waiter{Wake: wake})
	other := l.Watch(b.name, poller.Waiter{Wake: make(chan struct{}, 1)})
	assert.True(t, running())
	other()
	time.Sleep(150 * time.Millisecond)
	assert.True(t, running())
	assert.Empty(t, wake, "a waiter is woken although the lock is held")
	b.must(b.rdb.Del(context.Background(), b.name, b.lineKey()).Err())
	await(b, "the waiter is woken", wake)
	stop()
	testredis.Await(t, "the goroutine ends", soon, func() bool { return !running() })
	_, locks := l.Running()
	assert.Zero(t, locks)
}
