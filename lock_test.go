package relock_test

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

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The record, its lease, and the message.
func TestLockWritesRedissonsRecord(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		ctx := context.Background()
		l := b.Client().NewLock(b.LockName)
		messages := b.Rdb.Subscribe(ctx, "redisson_lock__channel:{"+b.LockName+"}")
		defer messages.Close()
		_, err := messages.Receive(ctx)
		b.Must(err)

		b.Must(l.Lock(ctx))
		b.Must(l.Lock(ctx))
		record, err := b.Rdb.HGetAll(ctx, b.LockName).Result()
		b.Must(err)
		field := regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:\d+:\d+$`)
		for f, levels := range record {
			assert.Len(t, record, 1)
			assert.Regexp(t, field, f)
			assert.Equal(t, "2", levels, "levels")
		}
		ttl := b.Rdb.PTTL(ctx, b.LockName).Val()
		assert.LessOrEqual(t, ttl, 30*time.Second, "PTTL")
		assert.GreaterOrEqual(t, ttl, 25*time.Second, "PTTL")
		assert.Len(t, b.Keys(), 1, "keys")
		b.Must(l.Unlock(ctx))
		b.Must(l.Unlock(ctx))
		m, err := messages.ReceiveMessage(ctx)
		if assert.NoError(t, err) {
			assert.Equal(t, "0", m.Payload, "message")
		}
		assert.Zero(t, b.Rdb.Exists(ctx, b.LockName).Val(), "the record is still there")
		b.Must(l.Lock(ctx)) // only the last of the two unlocks was announced
		b.Must(locktest.Second(l.ForceUnlock(ctx)))
		m, err = messages.ReceiveMessage(ctx)
		require.NoError(t, err)
		assert.Equal(t, "0", m.Payload, "message")
	})
}

// A record of Redisson keeps other owners out and is not changed.
func TestRecordOfAJavaClientIsRespected(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		ctx := context.Background()
		l := b.Client(WithPollInterval(time.Hour)).NewLock(b.LockName)
		const java = "6f1c0e8e-6d5b-4d0a-9a8d-0a8e5a5cbb10:37"
		b.Must(b.Rdb.HSet(ctx, b.LockName, java, 1).Err())
		b.Must(b.Rdb.PExpire(ctx, b.LockName, time.Minute).Err())
		b.Tries(l, false)
		b.IsLocked(l, true)
		b.MustBe(l.Unlock(ctx), ErrNotHeld)
		owner := ContextWithOwner(ctx)
		got := b.StartWaiter(owner, l)
		b.Must(b.Rdb.Del(ctx, b.LockName).Err())
		b.Must(b.Rdb.Publish(ctx, "redisson_lock__channel:{"+b.LockName+"}", "0").Err())
		b.Must(locktest.Await(b, "woken by Java's message", got))
		b.Must(l.Unlock(owner))

		b.Must(b.Rdb.HSet(ctx, b.LockName, java, 1).Err()) // without a lease: row 28 of tests/faults/README.md
		ttl, err := l.TTL(ctx)
		assert.NoError(t, err)
		assert.Negative(t, ttl, "TTL")
		b.Forget()
	})
}

// C1: one request to lock, one to unlock; no subscription; no request at all for a
// goroutine that another goroutine of the process refuses.
func TestUncontendedLockCostsTwoRequests(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		ctx := context.Background()
		rdb := testredis.Client(t, addr)
		sent := new(locktest.Counter)
		l := b.ClientOn(rdb).NewLock(b.LockName)
		b.Must(l.Lock(ctx)) // the scripts are loaded from here on
		b.Must(l.Unlock(ctx))
		rdb.AddHook(sent)
		b.Must(l.Lock(ctx))
		ok, err := locktest.Elsewhere(func() locktest.Pair[bool] { return locktest.PairOf(l.TryLock(ctx, 0, 0)) }).Get()
		assert.NoError(t, err)
		assert.False(t, ok)
		b.Must(l.Unlock(ctx))
		assert.Equal(t, int64(2), sent.N.Load(), "requests")
		assert.Zero(t, b.Rdb.PubSubNumPat(ctx).Val(), "patterns")
		assert.Empty(t, b.Rdb.PubSubChannels(ctx, "*"+b.LockName+"*").Val(), "channels")
	})
}

// C2: all waiters of a client share one pub/sub connection, whatever the number of names.
func TestWaitersShareOneSubscriptionConnection(t *testing.T) {
	s := testredis.Start(t)
	b := locktest.NewBench(t, s.Addr())
	ctx := context.Background()
	const many = 300
	holder, waiter := b.Client(), b.Client()
	name := func(i int) string { return fmt.Sprint(b.LockName, "-", i) }
	var wg sync.WaitGroup
	owner := ContextWithOwner(ctx)
	for i := range many {
		b.Must(holder.NewLock(name(i)).Lock(owner))
		waitgroup.Go(&wg, func() {
			l := waiter.NewLock(name(i))
			if assert.NoError(t, l.Lock(ctx)) {
				assert.NoError(t, l.Unlock(ctx))
			}
		})
	}
	testredis.Await(t, "all wait", 4*locktest.Soon, func() bool {
		return len(b.Rdb.PubSubChannels(ctx, "*"+b.LockName+"-*").Val()) == many
	})
	list, err := b.Rdb.Do(ctx, "client", "list", "type", "pubsub").Text()
	b.Must(err)
	assert.Contains(t, list, fmt.Sprintf(" sub=%d ", many), "a connection with all channels of the waiters")
	for i := range many {
		b.Must(holder.NewLock(name(i)).Unlock(owner))
	}
	wg.Wait()
}

// A lost lock is logged as one warning with its name and the cause, and otherwise nothing is logged.
func TestLossIsLoggedOnce(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		ctx := context.Background()
		var logged locktest.LockedBuffer
		c := b.Client(WithWatchdogTimeout(200*time.Millisecond), WithLogger(slog.New(slog.NewTextHandler(&logged, nil))))
		l := c.NewLock(b.LockName)
		b.Must(l.Lock(ctx))
		b.Must(l.Unlock(ctx))
		b.LocksFor(ctx, l, 50*time.Millisecond)
		testredis.Await(t, "the lease ends", locktest.Soon, func() bool { held, _ := l.IsHeld(ctx); return !held })
		assert.Empty(t, logged.String(), "in a healthy run")
		b.Must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.Must(err)
		b.Must(b.Rdb.Del(ctx, b.LockName).Err())
		locktest.Await(b, "the guard ends", guarded.Done())
		b.MustBe(l.Unlock(ctx), ErrLockLost)
		testredis.Await(t, "the warning", locktest.Soon, func() bool { return logged.String() != "" })
		s := logged.String()
		assert.Equal(t, 1, strings.Count(s, "level="), "logged")
		assert.Contains(t, s, "level=WARN", "logged")
		assert.Contains(t, s, b.LockName, "logged")
		assert.Contains(t, s, "type=lock ", "logged")
		assert.Contains(t, s, "gone", "logged")
	})
}

// The hold count in the record is information for observers: decrementing it takes no memory in Redis.
func TestUnlockNeedsNoMemory(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	ctx := context.Background()
	b := locktest.NewBench(t, s.Addr())
	c, other := b.Client(), b.Client()
	full := func(yes bool) {
		limit := "0"
		if yes {
			limit = "1"
		}
		b.Must(b.Rdb.ConfigSet(ctx, "maxmemory", limit).Err())
	}
	b.Must(b.Rdb.ConfigSet(ctx, "maxmemory-policy", "noeviction").Err())
	for _, k := range locktest.LockKinds {
		kind, name := k.Name, b.LockName+"-"+strings.ReplaceAll(k.Name, " ", "-")
		l := k.One(c, name)
		for range 3 {
			require.NoError(t, l.Lock(ctx), kind)
		}
		full(true)
		require.NoError(t, l.Unlock(ctx), kind)
		require.ErrorContains(t, b.Rdb.Set(ctx, b.LockName+"-full", 1, 0).Err(), "OOM", kind)
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
		b.Tries(k.One(other, name), true)
		require.NoError(t, k.One(other, name).Unlock(ctx), kind)
		testredis.Await(t, "nothing is left of "+kind, locktest.Soon, func() bool {
			return !slices.ContainsFunc(
				b.Keys(),
				func(key string) bool { return !strings.HasPrefix(key, "redisson_lock_token") },
			)
		})
	}

	// A writer keeps its read lock.
	rw := c.NewRWLock(b.LockName)
	for range 2 {
		b.Must(rw.Write().Lock(ctx))
		b.Must(rw.Read().Lock(ctx))
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
	b := locktest.NewBench(t, s.Addr())
	held := b.Client().NewFairLock(b.LockName)
	b.Must(held.Lock(ctx))
	var waiters []<-chan error
	giving, giveUp := context.WithCancel(ctx)
	b.Must(b.Rdb.ConfigSet(ctx, "maxmemory-policy", "noeviction").Err())
	for n, ctx := range []context.Context{giving, ctx} {
		got := make(chan error, 1)
		l, me := b.Client().NewFairLock(b.LockName), ContextWithOwner(ctx)
		go func() {
			err := l.Lock(me)
			if err == nil {
				err = l.Unlock(me)
			}
			got <- err
		}()
		waiters = append(waiters, got)
		b.AwaitQueue(n + 1)
	}
	first := b.Queue()[0]
	b.Must(b.Rdb.ConfigSet(ctx, "maxmemory", "1").Err())
	giveUp()
	if err := locktest.Await(b, "the first one gives up", waiters[0]); !errors.Is(err, context.Canceled) {
		require.ErrorContains(t, err, "OOM", "it asked between the lack of memory and its end")
	}
	start := time.Now()
	testredis.Await(t, "it has left", locktest.Soon, func() bool { return !slices.Contains(b.Queue(), first) })
	b.Must(b.Rdb.ConfigSet(ctx, "maxmemory", "0").Err())
	assert.Less(t, time.Since(start), testredis.Scale(start, record.FairLife/2), "the waiter left by itself, and was not evicted as dead")
	b.Must(held.Unlock(ctx))
	err := locktest.Await(b, "the second one", waiters[1])
	if err != nil { // the waiter asked while Redis was full
		assert.Contains(t, err.Error(), "OOM")
	}
}

func TestMain(m *testing.M) { locktest.Main(m) }
