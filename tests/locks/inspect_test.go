package locks

// What Inspect shows of a lock and its holders. The file inspect_waiters_test.go has the waiters.
//
// Rules: Inspect only reads, in one request for a lock of any type and language; its result and its cost are limited, and
// it reports other data as such.

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// about reports whether d is close to want, and not greater.
func about(d, want time.Duration) bool { return d > want-10*time.Second && d <= want }

func TestInspectShowsAPlainLock(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		holder, looker := b.Client(), b.Client()
		i := b.Inspect(looker)
		assert.Equal(t, TypeNone, i.Type, "before it is taken")
		assert.False(t, i.Held(), "before it is taken")
		assert.Zero(t, i.TTL, "before it is taken")
		assert.Nil(t, i.Holders, "before it is taken")
		assert.Nil(t, i.Waiters, "before it is taken")
		assert.Zero(t, i.Token, "before it is taken")

		lock, me := holder.NewLock(b.LockName, Fenced()), ContextWithOwner(ctx)
		b.Must(lock.Lock(me))
		b.Must(lock.Lock(me))
		token, err := lock.Token(me)
		b.Must(err)
		i = b.Inspect(looker)
		assert.Equal(t, TypeLock, i.Type, "%+v", i)
		assert.True(t, i.Held(), "%+v", i)
		assert.Empty(t, i.Mode, "%+v", i)
		assert.True(t, about(i.TTL, 30*time.Second), "%+v", i)
		assert.Equal(t, token, i.Token, "%+v", i)
		assert.Nil(t, i.Waiters, "%+v", i)
		require.Len(t, i.Holders, 1)
		h := i.Holders[0]
		assert.Equal(t, holder.ID(), h.Client, "held by %+v", h)
		assert.Equal(t, engine.OwnerOf(me).String(), h.Owner, "held by %+v", h)
		assert.Equal(t, 2, h.HoldCount, "held by %+v", h)
		assert.Equal(t, i.TTL, h.Remaining, "held by %+v", h)
		assert.False(t, h.Write, "held by %+v", h)
		assert.Equal(t, []string{h.Field}, b.Rdb.HKeys(me, b.LockName).Val(), "field")

		b.Must(lock.Unlock(me))
		b.Must(lock.Unlock(me))
		i = b.Inspect(looker)
		assert.Equal(t, TypeNone, i.Type, "after it is released")
		assert.False(t, i.Held(), "after it is released")
		assert.Equal(t, token, i.Token, "after it is released")
	})
}

// A hand-off leaves the record in Redis unchanged: the record names the owner that acquired the lock there.
func TestInspectNamesTheFirstOwnerAfterAHandoff(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	c := b.Client(WithHandoffWindow(time.Minute))
	lock, first, second := c.NewLock(
		b.LockName,
	), ContextWithOwner(
		ctx,
	), ContextWithOwner(
		ctx,
	)
	b.Must(lock.Lock(first))
	got := make(chan error, 1)
	go func() { got <- lock.Lock(second) }()
	testredis.Await(t, "one waits in the local queue", locktest.Soon, func() bool { return b.WaitsInQueue(lock) })
	b.Must(lock.Unlock(first))
	b.Must(<-got)
	b.Must(lock.Lock(second))
	i := b.Inspect(c)
	require.Len(t, i.Holders, 1)
	assert.Equal(t, engine.OwnerOf(first).String(), i.Holders[0].Owner)
	assert.Equal(t, 2, i.Holders[0].HoldCount)
	b.Must(lock.Unlock(second))
	b.Must(lock.Unlock(second))
}

func TestInspectShowsReadersAndWriters(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		c, other := b.Client(), b.Client()
		rw, me, them := c.NewRWLock(b.LockName), ContextWithOwner(ctx), ContextWithOwner(ctx)
		b.Must(rw.Write().Lock(me))
		b.Must(rw.Read().LockLease(me, time.Hour))
		i := b.Inspect(other)
		require.Equal(t, TypeReadWrite, i.Type)
		require.Equal(t, "write", i.Mode)
		require.Len(t, i.Holders, 2)
		require.True(t, i.Held())
		w, r := i.Holders[0], i.Holders[1]
		assert.True(t, w.Write, "the writer is %+v", w)
		assert.Equal(t, c.ID(), w.Client, "the writer is %+v", w)
		assert.Equal(t, engine.OwnerOf(me).String(), w.Owner, "the writer is %+v", w)
		assert.Equal(t, 1, w.HoldCount, "the writer is %+v", w)
		assert.NotEqual(t, w.Owner, w.Field, "the writer is %+v", w)
		assert.True(t, strings.HasSuffix(w.Field, ":write"), "the writer is %+v", w)
		assert.False(t, r.Write, "the reader is %+v", r)
		assert.Equal(t, c.ID(), r.Client, "the reader is %+v", r)
		assert.Equal(t, engine.OwnerOf(me).String(), r.Owner, "the reader is %+v", r)
		assert.Equal(t, 1, r.HoldCount, "the reader is %+v", r)
		assert.True(t, about(r.Remaining, time.Hour), "the reader is %+v", r)
		b.Must(rw.Write().Unlock(me))

		b.Must(other.NewRWLock(b.LockName).Read().LockLease(them, time.Minute))
		b.Must(b.Rdb.HSet(ctx, b.LockName, locktest.JavaThread, 2, locktest.JavaOther, 1).Err())
		b.Must(b.Rdb.Set(ctx, "{"+b.LockName+"}:"+locktest.JavaThread+":rwlock_timeout:2", 1, 10*time.Minute).Err())
		i = b.Inspect(other)
		leases := map[string]time.Duration{}
		for _, h := range i.Holders {
			assert.False(t, h.Write, "a writer")
			leases[h.Client+" "+h.Owner] = h.Remaining
		}
		assert.Equal(t, "read", i.Mode)
		assert.Len(t, i.Holders, 4)
		assert.True(t, about(i.TTL, time.Hour))
		assert.True(t, about(leases[c.ID()+" "+engine.OwnerOf(me).String()], time.Hour))
		assert.True(t, about(leases[other.ID()+" "+engine.OwnerOf(them).String()], time.Minute))
		assert.True(t, about(leases[locktest.JavaThread[:36]+" thread 42"], 10*time.Minute))
		assert.Zero(t, leases[locktest.JavaOther[:36]+" thread 7"])
		b.Must(b.Rdb.HDel(ctx, b.LockName, locktest.JavaThread, locktest.JavaOther).Err())
		b.Must(b.Rdb.Del(ctx, "{"+b.LockName+"}:"+locktest.JavaThread+":rwlock_timeout:2").Err())

		writer, got := ContextWithOwner(ctx), make(chan error, 1)
		go func() { got <- other.NewRWLock(b.LockName).Write().Lock(writer) }()
		testredis.Await(t, "a writer waits", locktest.Soon, func() bool { return len(b.Inspect(c).Waiters) == 1 })
		waiter := b.Inspect(c).Waiters[0]
		assert.Equal(t, other.ID(), waiter.Client, "the waiting writer is %+v", waiter)
		assert.Equal(t, engine.OwnerOf(writer).String(), waiter.Owner, "the waiting writer is %+v", waiter)
		assert.True(t, waiter.Deadline.IsZero(), "the waiting writer is %+v", waiter)
		assert.True(t, waiter.Write, "the waiting writer is %+v", waiter)
		assert.False(t, waiter.AliveUntil.Before(time.Now()), "the waiting writer is %+v", waiter)
		b.Must(rw.Read().Unlock(me))
		b.Must(other.NewRWLock(b.LockName).Read().Unlock(them))
		b.Must(<-got)
		b.Must(other.NewRWLock(b.LockName).Write().Unlock(writer))
	})
}

// Inspect asks in one request, for any name, once the server knows the script.
func TestInspectIsOneRequestForAnyName(t *testing.T) {
	b := locktest.NewLineBench(t, testredis.Start(t).Addr())
	c := b.Client()
	names := []string{
		b.LockName,
		b.LockName + "\x00\xff\n%",
		b.LockName + "{",
		"{" + b.LockName + "}:y",
		b.LockName + strings.Repeat("x", 100_000),
	}
	before := b.ScriptRuns()
	for _, name := range names {
		i, err := c.Inspect(ctx, name)
		if assert.NoError(t, err) {
			assert.Equal(t, name, i.Name)
		}
	}
	assert.Equal(t, len(names), b.ScriptRuns()-before, "requests")
}

// A user that may only inspect has the permissions that docs/security.md lists: of the commands those that read.
func TestInspectNeedsTheDocumentedPermissions(t *testing.T) {
	s := testredis.Start(t)
	b := locktest.NewBench(t, s.Addr())
	d := b.Deployment(s)
	rw := b.Client().NewRWLock("lock:orders:" + b.LockName).Read()
	b.Must(rw.Lock(ctx))
	commands := []string{
		"+evalsha",
		"+eval",
		"+hget",
		"+hrandfield",
		"+pttl",
		"+lrange",
		"+zrangebyscore",
		"+get",
		"+time",
		"+hmget",
	}
	keys := locktest.SmallestKeys
	rights := slices.Concat(keys, commands)
	i, err := d.User(b, rights).Inspect(ctx, rw.Name())
	require.NoError(t, err)
	assert.Len(t, i.Holders, 1)
	for _, right := range slices.Concat(keys, commands[2:len(commands)-1]) {
		_, err := d.User(b, locktest.Without(rights, right)).Inspect(ctx, rw.Name())
		assert.True(t, locktest.Refused(err), "without %s: %v", right, err)
	}
	b.Must(rw.Unlock(ctx))

	// What is needed to see who waits.
	lock := b.Client().NewLock("lock:orders:" + b.LockName + "-2")
	b.Must(lock.Lock(ctx))
	them, other := ContextWithOwner(ctx), b.Client(WithPollInterval(time.Hour)).NewLock(lock.Name())
	got := b.StartWaiter(them, other)
	all := slices.Concat(rights, []string{"+pubsub|numsub"})
	waiter := func(rights []string) (w Waiter) {
		i, err := d.User(b, rights).Inspect(ctx, lock.Name())
		require.NoError(t, err)
		if assert.Equal(t, len(i.Waiters), i.Waiting) && len(i.Waiters) > 0 {
			w = i.Waiters[0]
		}
		return w
	}
	testredis.Await(t, "one waits", locktest.Soon, func() bool { return waiter(all).Reachable == ReachableYes })
	assert.False(t, waiter(all).Since.IsZero())
	assert.Equal(t, ReachableUnknown, waiter(locktest.Without(all, "+pubsub|numsub")).Reachable)
	_, err = d.User(b, locktest.Without(all, "+hmget")).Inspect(ctx, lock.Name())
	assert.True(t, locktest.Refused(err), "without +hmget: %v", err)
	b.Must(lock.Unlock(ctx))
	b.Must(<-got)
	b.Must(other.Unlock(them))
}

func TestInspectRefusesInvalidCalls(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	c := b.Client()
	for name, want := range map[string]string{"": "the name is empty", strings.Repeat("x", record.LongestName+1): "bytes"} {
		_, err := c.Inspect(ctx, name)
		assert.ErrorIs(t, err, ErrInvalid)
		assert.ErrorContains(t, err, want)
	}
	_, err := (*Client)(nil).Inspect(ctx, b.LockName)
	assert.ErrorIs(t, err, ErrInvalid)
	//lint:ignore SA1012 that is what is tested
	_, err = c.Inspect(nil, b.LockName)
	assert.ErrorIs(t, err, ErrInvalid)
	ended, end := context.WithCancel(ctx)
	end()
	_, err = c.Inspect(ended, b.LockName)
	assert.ErrorIs(t, err, context.Canceled)
	b.Must(c.Close())
	_, err = c.Inspect(ctx, b.LockName)
	assert.ErrorIs(t, err, ErrClosed)
}

// The result of Inspect is bounded, and costs no more than linear time.
func TestInspectShowsSomeOfVeryMany(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	c := b.Client()
	begin, check := b.WatchBusy(locktest.MostBusy)
	const many = record.MostShown + 2000
	const field = `local field = string.format('00000000-0000-4000-8000-%012d', i) .. ':7:1' `
	inTime := func(what string) Inspection {
		begin()
		i := b.Inspect(c)
		check(what)
		assert.True(t, i.More, what)
		return i
	}

	const inLine = 1500
	place := `redis.call('zadd', KEYS[1], i, client) redis.call('hset', KEYS[2], client, 'push 30000 0 1 ' .. client .. ':7:1' .. ` +
		`ARGV[2] .. ' 1') `
	fill := func(keys []string, suffix string) {
		b.Must(b.Rdb.Eval(
			ctx,
			"for i = 1, ARGV[1] do local client = string.format('00000000-0000-4000-8000-%012d', i) "+place+
				"end return 1",
			keys,
			inLine,
			suffix,
		).Err())
	}
	for kind, lock := range map[string]Locker{
		"lock": c.NewLock(b.LockName), "write": c.NewRWLock(b.LockName).Write(), "semaphore": c.NewSemaphore(b.LockName, 1),
	} {
		me := ContextWithOwner(ctx)
		b.Must(lock.LockLease(me, time.Hour))
		keys, suffix := b.LineKeys(), ""
		if kind == "write" {
			keys, suffix = record.WritersLineKeys(b.LockName), record.WriteSuffix
		}
		fill(keys, suffix)
		i := inTime("the wait queue of a " + kind)
		assert.Len(t, i.Holders, 1, kind)
		require.Len(t, i.Waiters, record.MostWaiters, kind)
		assert.Equal(t, inLine, i.Waiting, kind)
		assert.Equal(t, record.MostWaiters, i.Gone, "of those that are listed")
		for n, w := range i.Waiters {
			require.Equal(t, fmt.Sprintf("00000000-0000-4000-8000-%012d", n+1), w.Client, kind)
			require.Equal(t, ReachableNo, w.Reachable, kind)
			require.EqualValues(t, 1, w.Since.Unix(), kind)
		}
		b.Must(b.Rdb.Del(ctx, append(keys, b.LockName, record.PermitsKey(b.LockName))...).Err())
		b.Forget()
	}

	ends := time.Now().Add(time.Hour).UnixMilli()
	b.Must(
		b.Rdb.Eval(
			ctx,
			"for i = 1, ARGV[1] do "+field+"redis.call('zadd', KEYS[2], ARGV[2] + i, field) end redis.call('set', KEYS[1], "+
				"5) return 1",
			[]string{b.LockName, record.PermitsKey(b.LockName)},
			many,
			ends,
		).Err(),
	)
	i := inTime("permits")
	assert.Equal(t, TypeSemaphore, i.Type)
	assert.Len(t, i.Holders, record.MostShown)
	assert.Equal(t, 5, i.Available)
	assert.Equal(t, "00000000-0000-4000-8000-000000000001", i.Holders[0].Client, "the first to expire")
	assert.Equal(t, ends+many, i.At.Add(i.TTL).UnixMilli(), "the longest lease")
	_, err := c.Inspect(ctx, b.LockName)
	b.Must(err)

	expired := time.Now().Add(-time.Hour).UnixMilli() // Java's clock may be ahead: all permits that have expired are free
	b.Must(
		b.Rdb.Eval(
			ctx,
			"for i = 1, ARGV[1] do "+field+"redis.call('zadd', KEYS[1], ARGV[2] + i, field .. '2') end return 1",
			[]string{record.PermitsKey(b.LockName)},
			many,
			expired,
		).Err(),
	)
	i = inTime("permits that have expired")
	assert.Equal(t, 5+many, i.Available)
	assert.Len(t, i.Holders, record.MostShown)
	b.Must(b.Rdb.ZRemRangeByScore(ctx, record.PermitsKey(b.LockName), strconv.FormatInt(time.Now().UnixMilli(), 10), "+inf").Err())
	begin()
	i = b.Inspect(c)
	assert.Equal(t, 5+many, i.Available)
	assert.Empty(t, i.Holders)
	assert.False(t, i.Ambiguous)
	check("permits that have all expired")
	b.Must(b.Rdb.Del(ctx, b.LockName, record.PermitsKey(b.LockName)).Err())

	b.Must(
		b.Rdb.Eval(
			ctx,
			"for i = 1, ARGV[1] do "+field+"redis.call('rpush', KEYS[1], field) redis.call('zadd', KEYS[2], i, field) end "+
				"return 1",
			[]string{locktest.QueueKey(b.LockName), record.PrefixName("redisson_lock_timeout", b.LockName)},
			many,
		).Err(),
	)
	i = inTime("waiters")
	assert.Equal(t, TypeFair, i.Type)
	assert.Len(t, i.Waiters, record.MostWaiters)
	assert.Equal(t, many, i.Waiting)
	b.Forget()

	b.Must(
		b.Rdb.Eval(
			ctx,
			"for i = 1, ARGV[1] do "+field+"redis.call('zadd', KEYS[1], ARGV[2], field) end return 1",
			[]string{locktest.WritersKey(b.LockName)},
			many,
			ends,
		).Err(),
	)
	b.Must(b.Rdb.Expire(ctx, locktest.WritersKey(b.LockName), time.Hour).Err())
	i = inTime("writers")
	assert.Equal(t, TypeReadWrite, i.Type)
	assert.Len(t, i.Waiters, record.MostWaiters)
	assert.Equal(t, record.MostShown+1, i.Waiting, "they are counted up to that number")
	b.Forget()
}

// Inspect rejects what the methods of a semaphore reject, names the same key, and reports what it cannot tell apart.
func TestInspectAndSemaphoreAgree(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		past, future := float64(1), float64(time.Now().Add(time.Hour).UnixMilli())
		for what, put := range map[string]func(b *locktest.Bench, key string) error{
			"a list":   func(b *locktest.Bench, key string) error { return b.Rdb.RPush(ctx, key, "a").Err() },
			"a hash":   func(b *locktest.Bench, key string) error { return b.Rdb.HSet(ctx, key, "a", 1).Err() },
			"a string": func(b *locktest.Bench, key string) error { return b.Rdb.Set(ctx, key, "a", 0).Err() },
			"a zset, of the past": func(b *locktest.Bench, key string) error {
				return b.Rdb.ZAdd(ctx, key, redis.Z{Score: past, Member: "alice"}).Err()
			},
			"a zset, of the future": func(b *locktest.Bench, key string) error {
				return b.Rdb.ZAdd(ctx, key, redis.Z{Score: future, Member: "alice"}).Err()
			},
			"a zset with a permit among all": func(b *locktest.Bench, key string) error {
				return b.Rdb.ZAdd(ctx, key, redis.Z{Score: future, Member: locktest.JavaThread + ":17"},
					redis.Z{Score: past, Member: "alice"}).Err()
			},
		} {
			b := locktest.NewBench(t, addr)
			key := record.PermitsKey(b.LockName)
			b.Must(b.Rdb.Set(ctx, b.LockName, 3, 0).Err())
			b.Must(put(b, key))
			before := b.Content(key)
			c := b.Client()
			s := c.NewSemaphore(b.LockName, 3)
			for method, err := range map[string]error{
				"Inspect": locktest.Second(c.Inspect(ctx, b.LockName)), "Holders": locktest.Second(s.Holders(ctx)), "Available": locktest.Second(s.Available(ctx)),
				"Permits": locktest.Second(s.Permits(ctx)), "TryLock": locktest.Second(s.TryLock(ctx, 0, 0)), "IsLocked": locktest.Second(s.IsLocked(ctx)),
				"ForceUnlock": locktest.Second(s.ForceUnlock(ctx)), "SetPermits": s.SetPermits(ctx, 5),
			} {
				require.ErrorIs(t, err, ErrNotALock, "%s, %s", what, method)
				assert.ErrorContains(
					t,
					err,
					"the key "+send.ShortName(key)+" holds a "+b.Rdb.Type(ctx, key).Val(),
					"%s, %s",
					what,
					method,
				)
			}
			assert.Equal(t, before, b.Content(key), what)
			assert.Equal(t, "3", b.Rdb.Get(ctx, b.LockName).Val(), what)
			b.Must(b.Rdb.Del(ctx, b.LockName, key).Err())
		}

		// The number of an RCountDownLatch, or of any counter.
		b := locktest.NewBench(t, addr)
		c := b.Client()
		b.Must(b.Rdb.Set(ctx, b.LockName, 3, 0).Err())
		i := b.Inspect(c)
		assert.Equal(t, TypeSemaphore, i.Type)
		assert.True(t, i.Ambiguous)
		assert.Equal(t, 3, i.Available)
		s, me := c.NewSemaphore(b.LockName, 10), ContextWithOwner(ctx)
		n, err := s.Permits(ctx)
		b.Must(err)
		assert.Equal(t, 3, n, "the number in Redis counts")
		b.Must(s.Lock(me))
		assert.False(t, b.Inspect(c).Ambiguous, "a permit is taken")
		b.Must(s.Unlock(me))
		assert.True(t, b.Inspect(c).Ambiguous)
		b.Must(b.Rdb.Del(ctx, b.LockName).Err())
		assert.False(t, b.Inspect(c).Ambiguous, "there is nothing")
	})
}
