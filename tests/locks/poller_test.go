package locks

// How waiters notice that a lock is free, or theirs, although no message says so.
//
// Rules: a release that no message announces, a place that was lost and a grant whose message was lost are noticed
// within the poll interval. Waiters share these requests. That the poller ends with the last of them is in
// internal/poller.

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// L1: a record that disappears without a release delays its waiters by the poll interval at most, wherever they are in
// the line.
func TestWaitersNoticeALockThatBecomesFreeByItself(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		b.Must(b.Client().NewLock(b.LockName).LockLease(ctx, time.Minute))
		var waiters []<-chan error
		for range 3 {
			got := make(chan error, 1)
			l := b.Client().NewLock(b.LockName)
			go func() {
				got <- l.Do(ctx, func(context.Context) error { return nil })
			}()
			waiters = append(waiters, got)
		}
		testredis.Await(t, "all stand in the line", locktest.Soon, func() bool {
			return len(b.Places()) == 3
		})
		start := time.Now()
		b.Must(b.Rdb.Del(ctx, b.LockName).Err())
		for _, got := range waiters {
			b.Must(locktest.Await(b, "a waiter comes in", got))
		}
		assert.Less(t, time.Since(start), testredis.Scale(start, 4*time.Second))
	})
}

// If a line is deleted while others continue to use the lock, or loses an entry, its waiters ask within a poll
// interval. The lock is never free, so only the missing entry shows it.
func TestPollerNoticesALostPlace(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		for _, kind := range []struct {
			name string
			lock func(c *Client, name string) Locker
		}{
			{"plain", func(c *Client, name string) Locker { return c.NewLock(name) }},
			{"write", func(c *Client, name string) Locker { return c.NewRWLock(name).Write() }},
		} {
			t.Run(kind.name, func(t *testing.T) {
				b := locktest.NewBench(t, addr)
				held := kind.lock(b.Client(), b.LockName)
				b.Must(held.Lock(ctx))
				waits := b.Client()
				got := make(chan error, 1)
				go func() {
					got <- kind.lock(waits, b.LockName).Do(ctx, func(context.Context) error { return nil })
				}()
				stands := func() bool { return b.Rdb.HExists(ctx, b.WaitsKey(), waits.ID()).Val() }
				testredis.Await(t, "it stands in the line", locktest.Soon, stands)
				b.Must(b.Rdb.Del(ctx, b.LineKeys()...).Err())
				testredis.Await(t, "it stands in the line again", locktest.Soon, stands)
				b.Must(held.Unlock(ctx))
				b.Must(locktest.Await(b, "the waiter has the lock", got))
			})
		}
	})
}

// A waiter that has an entry learns that a Java service holds the lock by now: only Redisson's channel announces when
// it is free.
func TestPollerNoticesAHolderWithoutALine(t *testing.T) {
	onEachLine(t, func(b *locktest.Bench) {
		b.Opts = nil
		first := b.Manual().Takes()
		waits := contender(b).joins()
		b.Must(b.Rdb.HDel(ctx, b.LockName, first.Field).Err())
		b.Must(b.Rdb.HSet(ctx, b.LockName, locktest.JavaThread, 1).Err())
		testredis.Await(
			b,
			"the waiter hears Redisson's channel",
			locktest.Soon,
			func() bool { return b.Hearers(b.ReleaseChannel()) == 1 },
		)
		javaReleases(b, locktest.JavaThread)
		waits.gets().unlocks()
	})
}

// L1: a waiter whose subscription has silently failed is granted the lock without being notified. It notices within a
// poll interval, long before the connection is given up, even if its process waits for more locks than are checked each
// time.
func TestPollerNoticesAGrantThatNoMessageBrought(t *testing.T) {
	t.Parallel()
	kinds := map[string]func(c *Client, name string) Locker{
		"plain": func(c *Client, name string) Locker { return c.NewLock(name) },
		"write": func(c *Client, name string) Locker { return c.NewRWLock(name).Write() },
	}
	for what, lock := range kinds {
		for _, locks := range []int{1, 150} {
			t.Run(fmt.Sprint(what, locks), func(t *testing.T) {
				t.Parallel()
				// A connection that stays silent for three seconds is given up, which wakes everybody. On a busy machine
				// that may come first; such a round shows nothing about the poller.
				start := time.Now()
				for range 5 {
					if silentGrants(t, lock, locks) {
						return
					}
				}
				if slow := testredis.Scale(start, time.Second); slow > 2*time.Second {
					t.Skip("the machine is too slow: what takes a second took ", slow)
				}
				require.Fail(t, "in five rounds, the connection was given up before all waiters noticed their grants")
			})
		}
	}
}

// silentGrants lets a Client wait for a number of locks, and grants them when nothing arrives on its subscription any
// more. It returns false if that connection was given up before all waiters had noticed that they have their locks.
func silentGrants(t *testing.T, lock func(c *Client, name string) Locker, locks int) bool {
	const delay = 200 * time.Millisecond
	b := locktest.NewFaultBenchOn(t, testredis.Start(t))
	named := func(o *redis.Options) { o.ClientName = "waits" } // the holder ends its own subscription when it has released
	waits := b.Bench.ClientOn(b.Proxy.Client(named), WithPollInterval(delay))
	owner := ContextWithOwner(ctx) // has all locks, and releases them together: one by one takes a busy machine too long
	var held []Locker
	got := make(chan error, locks)
	var all sync.WaitGroup
	for i := range locks {
		name := fmt.Sprint(b.LockName, i)
		held = append(held, lock(b.Direct, name))
		b.Must(held[i].Lock(owner))
		waitgroup.Go(&all, func() {
			l, owner := lock(waits, name), ContextWithOwner(ctx)
			got <- l.Lock(owner)
			assert.NoError(t, l.Unlock(owner))
		})
	}
	testredis.Await(t, "all stand in their lines", 2*locktest.Soon, func() bool {
		return len(b.Rdb.Keys(ctx, "relock_line:{"+b.LockName+"*order").Val()) == locks
	})
	subscriptions := func() (ids []string) {
		clients, err := b.Rdb.Do(ctx, "client", "list", "type", "pubsub").Text()
		b.Must(err)
		for _, found := range regexp.MustCompile(`(?m)^id=(\d+) .* name=waits `).FindAllStringSubmatch(clients, -1) {
			ids = append(ids, found[1])
		}
		return ids
	}
	b.Hears(b.Direct)
	before := subscriptions()
	require.NotEmpty(t, before)
	silent := b.Proxy.On(testredis.Command("ping"), testredis.StallReply)
	locktest.Await(b.Bench, "the subscription is silent", silent.Fired())
	for _, l := range held {
		waitgroup.Go(&all, func() { assert.NoError(t, l.Unlock(owner)) })
	}
	for range locks {
		b.Must(locktest.Await(b.Bench, "a waiter notices that it has the lock", got))
	}
	after := subscriptions()
	all.Wait()
	return slices.Equal(before, after)
}

// C4: waiters whose locks stay held cost one request for many of them.
func TestIdleWaitersShareALook(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	b := locktest.NewBench(t, s.Addr())
	const locks = 300
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	held := b.Client()
	rdb := s.Client()
	var asks, looks atomic.Int64
	rdb.AddHook(locktest.CommandHook(func(cmd redis.Cmder) {
		args := fmt.Sprint(cmd.Args()...)
		switch {
		case strings.Contains(args, record.Script("free_inspect").Digest()):
			looks.Add(1)
		case strings.Contains(args, record.Script("lock_acquire").Digest()):
			asks.Add(1)
		}
	}))
	waits := b.ClientOn(rdb, WithPollInterval(200*time.Millisecond))
	for i := range locks {
		name := fmt.Sprint(b.LockName, "-", i)
		b.Must(held.NewLock(name).Lock(ctx))
		go func() { _ = waits.NewLock(name).Lock(ctx) }()
	}
	testredis.Await(t, "all stand in their lines", 2*locktest.Soon, func() bool {
		return len(b.Rdb.Keys(ctx, "relock_line:{"+b.LockName+"-*order").Val()) == locks
	})
	testredis.Await(t, "the lookout looks", locktest.Soon, func() bool { return looks.Load() > 2 })
	asked, looked, start := asks.Load(), looks.Load(), time.Now()
	testredis.Await(t, "the lookout looks on", locktest.Soon, func() bool { return looks.Load() >= looked+8 })
	assert.Less(t, looks.Load()-looked, int64(2*(time.Since(start)/(200*time.Millisecond)+2)), "looks")
	assert.Zero(t, asks.Load()-asked, "requests of waiters")
	cancel()
	for i := range locks {
		_, err := held.NewLock(fmt.Sprint(b.LockName, "-", i)).ForceUnlock(context.Background())
		require.NoError(t, err)
	}
}
