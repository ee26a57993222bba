package relock

// Plain locks: their record, what they cost, and what a loss says. The file tokens_test.go has their tokens.
//
// Rules: the record is that of Redisson. A lock without contention costs two requests, and a release needs no memory
// in Redis.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
)

func TestLock(t *testing.T) {
	testLocker(t, func(c *Client, name string) Locker { return c.NewLock(name) })
}

func TestFencedLock(t *testing.T) {
	testLocker(t, func(c *Client, name string) Locker { return c.NewLock(name, Fenced()) })
}

// A plain and a fenced lock of one name are the same lock.
func TestPlainAndFencedLockExcludeEachOther(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		b.must(b.client().NewLock(b.name).Lock(context.Background()))
		fenced := b.client().NewLock(b.name, Fenced())
		b.tries(fenced, false)
		freed, err := fenced.ForceUnlock(context.Background())
		require.NoError(t, err)
		require.True(t, freed)
	})
}

// The record, its lease, and the message.
func TestLockWritesRedissonsRecord(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewLock(b.name)
		messages := b.rdb.Subscribe(ctx, "redisson_lock__channel:{"+b.name+"}")
		defer messages.Close()
		_, err := messages.Receive(ctx)
		b.must(err)

		b.must(l.Lock(ctx))
		b.must(l.Lock(ctx))
		record, err := b.rdb.HGetAll(ctx, b.name).Result()
		b.must(err)
		field := regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:\d+:\d+$`)
		for f, levels := range record {
			assert.Len(t, record, 1)
			assert.Regexp(t, field, f)
			assert.Equal(t, "2", levels, "levels")
		}
		ttl := b.rdb.PTTL(ctx, b.name).Val()
		assert.LessOrEqual(t, ttl, 30*time.Second, "PTTL")
		assert.GreaterOrEqual(t, ttl, 25*time.Second, "PTTL")
		assert.Len(t, b.keys(), 1, "keys")
		b.must(l.Unlock(ctx))
		b.must(l.Unlock(ctx))
		m, err := messages.ReceiveMessage(ctx)
		if assert.NoError(t, err) {
			assert.Equal(t, "0", m.Payload, "message")
		}
		assert.Zero(t, b.rdb.Exists(ctx, b.name).Val(), "the record is still there")
		b.must(l.Lock(ctx)) // only the last of the two unlocks was announced
		b.must(second(l.ForceUnlock(ctx)))
		m, err = messages.ReceiveMessage(ctx)
		require.NoError(t, err)
		assert.Equal(t, "0", m.Payload, "message")
	})
}

// A record of Redisson keeps other owners out and is not changed.
func TestRecordOfAJavaClientIsRespected(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client(WithPollInterval(time.Hour)).NewLock(b.name)
		const java = "6f1c0e8e-6d5b-4d0a-9a8d-0a8e5a5cbb10:37"
		b.must(b.rdb.HSet(ctx, b.name, java, 1).Err())
		b.must(b.rdb.PExpire(ctx, b.name, time.Minute).Err())
		b.tries(l, false)
		b.isLocked(l, true)
		b.mustBe(l.Unlock(ctx), ErrNotHeld)
		owner := ContextWithOwner(ctx)
		got := b.startWaiter(owner, l)
		b.must(b.rdb.Del(ctx, b.name).Err())
		b.must(b.rdb.Publish(ctx, "redisson_lock__channel:{"+b.name+"}", "0").Err())
		b.must(await(b, "woken by Java's message", got))
		b.must(l.Unlock(owner))

		// A record without a lease is polled: no expiry can be waited for.
		b.must(b.rdb.HSet(ctx, b.name, java, 1).Err())
		quick := b.client(WithPollInterval(10 * time.Millisecond)).NewLock(b.name)
		ttl, err := quick.TTL(ctx)
		assert.NoError(t, err)
		assert.Negative(t, ttl, "TTL")
		got = b.startWaiter(owner, quick)
		b.must(b.rdb.Del(ctx, b.name).Err())
		b.must(await(b, "noticed without a message", got))
		b.must(quick.Unlock(owner))
	})
}

// C1: one request to lock, one to unlock; no subscription; no request at all for a
// goroutine that another goroutine of the process refuses.
func TestUncontendedLockCostsTwoRequests(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		rdb := testredis.Client(t, addr)
		sent := new(counter)
		l := b.clientOn(rdb).NewLock(b.name)
		b.must(l.Lock(ctx)) // the scripts are loaded from here on
		b.must(l.Unlock(ctx))
		rdb.AddHook(sent)
		b.must(l.Lock(ctx))
		ok, err := elsewhere(func() pair[bool] { return pairOf(l.TryLock(ctx, 0, 0)) }).get()
		assert.NoError(t, err)
		assert.False(t, ok)
		b.must(l.Unlock(ctx))
		assert.Equal(t, int64(2), sent.n.Load(), "requests")
		assert.Zero(t, b.rdb.PubSubNumPat(ctx).Val(), "patterns")
		assert.Empty(t, b.rdb.PubSubChannels(ctx, "*"+b.name+"*").Val(), "channels")
	})
}

// C2: all waiters of a client share one pub/sub connection, whatever the number of names.
func TestWaitersShareOneSubscriptionConnection(t *testing.T) {
	s := testredis.Start(t)
	b := newBench(t, s.Addr())
	ctx := context.Background()
	const many = 300
	holder, waiter := b.client(), b.client()
	name := func(i int) string { return fmt.Sprint(b.name, "-", i) }
	var wg sync.WaitGroup
	owner := ContextWithOwner(ctx)
	for i := range many {
		b.must(holder.NewLock(name(i)).Lock(owner))
		waitgroup.Go(&wg, func() {
			l := waiter.NewLock(name(i))
			if assert.NoError(t, l.Lock(ctx)) {
				assert.NoError(t, l.Unlock(ctx))
			}
		})
	}
	testredis.Await(t, "all wait", 4*soon, func() bool {
		return len(b.rdb.PubSubChannels(ctx, "*"+b.name+"-*").Val()) == many
	})
	list, err := b.rdb.Do(ctx, "client", "list", "type", "pubsub").Text()
	b.must(err)
	assert.Contains(t, list, fmt.Sprintf(" sub=%d ", many), "a connection with all channels of the waiters")
	for i := range many {
		b.must(holder.NewLock(name(i)).Unlock(owner))
	}
	wg.Wait()
}

// A lost lock is logged as one warning with its name and the cause, and otherwise nothing is logged.
func TestLossIsLoggedOnce(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		var logged lockedBuffer
		c := b.client(WithWatchdogTimeout(200*time.Millisecond), WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))
		l := c.NewLock(b.name)
		b.must(l.Lock(ctx))
		b.must(l.Unlock(ctx))
		b.locksFor(ctx, l, 50*time.Millisecond)
		testredis.Await(t, "the lease ends", soon, func() bool { held, _ := l.IsHeld(ctx); return !held })
		assert.Empty(t, logged.String(), "in a healthy run")
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		b.must(b.rdb.Del(ctx, b.name).Err())
		await(b, "the guard ends", guarded.Done())
		b.mustBe(l.Unlock(ctx), ErrLockLost)
		testredis.Await(t, "the warning", soon, func() bool { return logged.String() != "" })
		s := logged.String()
		assert.Equal(t, 1, strings.Count(s, "level="), "logged")
		assert.Contains(t, s, "level=WARN", "logged")
		assert.Contains(t, s, b.name, "logged")
		assert.Contains(t, s, "type=lock ", "logged")
		assert.Contains(t, s, "gone", "logged")
	})
}

// The hold count in the record is information for observers: decrementing it takes no memory in Redis.
func TestUnlockNeedsNoMemory(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	ctx := context.Background()
	b := newBench(t, s.Addr())
	c, other := b.client(), b.client()
	full := func(yes bool) {
		limit := "0"
		if yes {
			limit = "1"
		}
		b.must(b.rdb.ConfigSet(ctx, "maxmemory", limit).Err())
	}
	b.must(b.rdb.ConfigSet(ctx, "maxmemory-policy", "noeviction").Err())
	for _, k := range lockKinds {
		kind, name := k.name, b.name+"-"+strings.ReplaceAll(k.name, " ", "-")
		l := k.one(c, name)
		for range 3 {
			require.NoError(t, l.Lock(ctx), kind)
		}
		full(true)
		require.NoError(t, l.Unlock(ctx), kind)
		require.ErrorContains(t, b.rdb.Set(ctx, b.name+"-full", 1, 0).Err(), "OOM", kind)
		levels, err := l.HoldCount(ctx)
		require.NoError(t, err, kind)
		require.Equal(t, 2, levels, kind)
		full(false)
		require.NoError(t, l.Lock(ctx), kind)
		full(true)
		for left := 2; left >= 0; left-- {
			require.NoError(t, l.Unlock(ctx), kind)
			levels, err := l.HoldCount(ctx)
			require.NoError(t, err, kind)
			require.Equal(t, left, levels, kind)
		}
		full(false)
		b.tries(k.one(other, name), true)
		require.NoError(t, k.one(other, name).Unlock(ctx), kind)
		testredis.Await(t, "nothing is left of "+kind, soon, func() bool {
			return !slices.ContainsFunc(
				b.keys(),
				func(key string) bool { return !strings.HasPrefix(key, "redisson_lock_token") },
			)
		})
	}

	// A writer keeps its read lock.
	rw := c.NewRWLock(b.name)
	for range 2 {
		b.must(rw.Write().Lock(ctx))
		b.must(rw.Read().Lock(ctx))
	}
	full(true)
	for _, l := range []Locker{rw.Write(), rw.Read(), rw.Write(), rw.Read()} {
		require.NoError(t, l.Unlock(ctx))
	}
	full(false)
}

// A waiter that gives up a fair lock leaves the queue, even if Redis is out of memory.
func TestLeavingAQueueNeedsNoMemory(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	ctx := context.Background()
	b := newBench(t, s.Addr())
	held := b.client().NewFairLock(b.name)
	b.must(held.Lock(ctx))
	var waiters []<-chan error
	giving, giveUp := context.WithCancel(ctx)
	b.must(b.rdb.ConfigSet(ctx, "maxmemory-policy", "noeviction").Err())
	for n, ctx := range []context.Context{giving, ctx} {
		got := make(chan error, 1)
		l, me := b.client().NewFairLock(b.name), ContextWithOwner(ctx)
		go func() {
			err := l.Lock(me)
			if err == nil {
				err = l.Unlock(me)
			}
			got <- err
		}()
		waiters = append(waiters, got)
		b.awaitQueue(n + 1)
	}
	first := b.queue()[0]
	b.must(b.rdb.ConfigSet(ctx, "maxmemory", "1").Err())
	giveUp()
	if err := await(b, "the first one gives up", waiters[0]); !errors.Is(err, context.Canceled) {
		require.ErrorContains(t, err, "OOM", "it asked between the lack of memory and its end")
	}
	start := time.Now()
	testredis.Await(t, "it has left", soon, func() bool { return !slices.Contains(b.queue(), first) })
	b.must(b.rdb.ConfigSet(ctx, "maxmemory", "0").Err())
	assert.Less(t, time.Since(start), testredis.Scale(start, record.FairLife/2), "the waiter left by itself, and was not evicted as dead")
	b.must(held.Unlock(ctx))
	err := await(b, "the second one", waiters[1])
	if err != nil { // the waiter asked while Redis was full
		assert.Contains(t, err.Error(), "OOM")
	}
}
