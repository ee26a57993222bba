package relock

// What Inspect shows of a lock and its holders. The file inspect_waiters_test.go has the waiters.
//
// Rules: Inspect only reads, in one request for a lock of any type and language; its result and its cost are limited, and
// it reports other data as such.

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
)

const (
	javaThread = "5a2d7b1e-4c02-4b8e-9d2f-0c5a3e1f7a10:42"
	javaOther  = "6b3e8c2f-5d13-4c9f-8e30-1d6b4f208b21:7"
)

func (b *bench) inspect(c *Client) Inspection {
	b.Helper()
	i, err := c.Inspect(context.Background(), b.name)
	b.must(err)
	assert.Equal(b, b.name, i.Name, "name")
	assert.LessOrEqual(b, time.Since(i.At).Abs(), time.Minute, "age of the inspection")
	return i
}

// about reports whether d is close to want, and not greater.
func about(d, want time.Duration) bool { return d > want-10*time.Second && d <= want }

func TestInspectShowsAPlainLock(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		holder, looker := b.client(), b.client()
		i := b.inspect(looker)
		assert.Equal(t, TypeNone, i.Type, "before it is taken")
		assert.False(t, i.Held(), "before it is taken")
		assert.Zero(t, i.TTL, "before it is taken")
		assert.Nil(t, i.Holders, "before it is taken")
		assert.Nil(t, i.Waiters, "before it is taken")
		assert.Zero(t, i.Token, "before it is taken")

		lock, me := holder.NewLock(b.name, Fenced()), ContextWithOwner(context.Background())
		b.must(lock.Lock(me))
		b.must(lock.Lock(me))
		token, err := lock.Token(me)
		b.must(err)
		i = b.inspect(looker)
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
		assert.Equal(t, []string{h.Field}, b.rdb.HKeys(me, b.name).Val(), "field")

		b.must(lock.Unlock(me))
		b.must(lock.Unlock(me))
		i = b.inspect(looker)
		assert.Equal(t, TypeNone, i.Type, "after it is released")
		assert.False(t, i.Held(), "after it is released")
		assert.Equal(t, token, i.Token, "after it is released")
	})
}

// A hand-off leaves the record in Redis unchanged: the record names the owner that acquired the lock there.
func TestInspectNamesTheFirstOwnerAfterAHandoff(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	c := b.client(WithHandoffWindow(time.Minute))
	lock, first, second := c.NewLock(
		b.name,
	), ContextWithOwner(
		context.Background(),
	), ContextWithOwner(
		context.Background(),
	)
	b.must(lock.Lock(first))
	got := make(chan error, 1)
	go func() { got <- lock.Lock(second) }()
	testredis.Await(t, "one waits in the local queue", soon, func() bool { return b.waitsInQueue(lock) })
	b.must(lock.Unlock(first))
	b.must(<-got)
	b.must(lock.Lock(second))
	i := b.inspect(c)
	require.Len(t, i.Holders, 1)
	assert.Equal(t, engine.OwnerOf(first).String(), i.Holders[0].Owner)
	assert.Equal(t, 2, i.Holders[0].HoldCount)
	b.must(lock.Unlock(second))
	b.must(lock.Unlock(second))
}

func TestInspectShowsReadersAndWriters(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		c, other := b.client(), b.client()
		rw, me, them := c.NewRWLock(b.name), ContextWithOwner(ctx), ContextWithOwner(ctx)
		b.must(rw.Write().Lock(me))
		b.must(rw.Read().LockLease(me, time.Hour))
		i := b.inspect(other)
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
		b.must(rw.Write().Unlock(me))

		b.must(other.NewRWLock(b.name).Read().LockLease(them, time.Minute))
		b.must(b.rdb.HSet(ctx, b.name, javaThread, 2, javaOther, 1).Err())
		b.must(b.rdb.Set(ctx, "{"+b.name+"}:"+javaThread+":rwlock_timeout:2", 1, 10*time.Minute).Err())
		i = b.inspect(other)
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
		assert.True(t, about(leases[javaThread[:36]+" thread 42"], 10*time.Minute))
		assert.Zero(t, leases[javaOther[:36]+" thread 7"])
		b.must(b.rdb.HDel(ctx, b.name, javaThread, javaOther).Err())
		b.must(b.rdb.Del(ctx, "{"+b.name+"}:"+javaThread+":rwlock_timeout:2").Err())

		writer, got := ContextWithOwner(ctx), make(chan error, 1)
		go func() { got <- other.NewRWLock(b.name).Write().Lock(writer) }()
		testredis.Await(t, "a writer waits", soon, func() bool { return len(b.inspect(c).Waiters) == 1 })
		waiter := b.inspect(c).Waiters[0]
		assert.Equal(t, other.ID(), waiter.Client, "the waiting writer is %+v", waiter)
		assert.Equal(t, engine.OwnerOf(writer).String(), waiter.Owner, "the waiting writer is %+v", waiter)
		assert.True(t, waiter.Deadline.IsZero(), "the waiting writer is %+v", waiter)
		assert.True(t, waiter.Write, "the waiting writer is %+v", waiter)
		assert.False(t, waiter.AliveUntil.Before(time.Now()), "the waiting writer is %+v", waiter)
		b.must(rw.Read().Unlock(me))
		b.must(other.NewRWLock(b.name).Read().Unlock(them))
		b.must(<-got)
		b.must(other.NewRWLock(b.name).Write().Unlock(writer))
	})
}

// Inspect only reads, in one request, for any name; and in another request the labels of the clients that it finds.
func TestInspectOnlyReads(t *testing.T) {
	s := testredis.Start(t)
	b := newBench(t, s.Addr())
	c, ctx := b.client(), context.Background()
	rw := c.NewRWLock(b.name + "-rw").Read()
	b.must(c.NewLock(b.name + "-lock").Lock(ctx))
	b.must(rw.Lock(ctx))
	them, other := ContextWithOwner(ctx), b.client(WithPollInterval(time.Hour)).NewLock(b.name+"-lock")
	waiting := b.startWaiter(them, other)
	testredis.Await(t, "one waits", soon, func() bool {
		i, err := c.Inspect(ctx, b.name+"-lock") // now the server knows the script
		return err == nil && i.Waiting == 1 && i.Waiters[0].Reachable == ReachableYes
	})
	b.must(b.rdb.ConfigResetStat(ctx).Err())
	names := []string{
		b.name + "-lock",
		b.name + "-rw",
		b.name + "\x00\xff\n%",
		b.name + "{",
		"{" + b.name + "}:y",
		b.name + strings.Repeat("x", 100_000),
	}
	for _, name := range names {
		i, err := c.Inspect(ctx, name)
		if assert.NoError(t, err) {
			assert.Equal(t, name, i.Name)
		}
	}
	for line := range strings.Lines(b.rdb.Info(ctx, "commandstats").Val()) {
		command, _, found := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":")
		if !found {
			continue
		}
		assert.Contains(
			t,
			[]string{
				"evalsha",
				"hgetall",
				"hget",
				"hrandfield",
				"pttl",
				"time",
				"lrange",
				"zrangebyscore",
				"get",
				"hmget",
				"pubsub|numsub",
				"hello",
				"config|resetstat",
			},
			command,
			"it sends %s",
			line,
		)
		if command == "evalsha" {
			assert.Contains(t, line, "calls="+strconv.Itoa(len(names))+",", "one call for each name")
		}
	}
	b.must(rw.Unlock(ctx))
	b.must(c.NewLock(b.name + "-lock").Unlock(ctx))
	b.must(<-waiting)
	b.must(other.Unlock(them))
}

// The permissions of a user that may only inspect, as docs/security.md lists them.
func TestInspectNeedsTheDocumentedPermissions(t *testing.T) {
	s := testredis.Start(t)
	b := newBench(t, s.Addr())
	d := b.deployment(s)
	ctx := context.Background()
	rw := b.client().NewRWLock("lock:orders:" + b.name).Read()
	b.must(rw.Lock(ctx))
	commands := []string{
		"+evalsha",
		"+eval",
		"+hgetall",
		"+hget",
		"+hrandfield",
		"+pttl",
		"+lrange",
		"+zrangebyscore",
		"+get",
		"+time",
	}
	const line = "~relock_line:{lock:orders:*"
	keys := without(smallestKeys, line)
	rights := slices.Concat(keys, commands)
	i, err := d.user(b, rights).Inspect(ctx, rw.Name())
	require.NoError(t, err)
	assert.Len(t, i.Holders, 1)
	for _, right := range slices.Concat(keys, commands[2:]) {
		_, err := d.user(b, without(rights, right)).Inspect(ctx, rw.Name())
		assert.True(t, refused(err), "without %s: %v", right, err)
	}
	b.must(rw.Unlock(ctx))

	// What is needed to see who waits.
	lock := b.client().NewLock("lock:orders:" + b.name + "-2")
	b.must(lock.Lock(ctx))
	them, other := ContextWithOwner(ctx), b.client(WithPollInterval(time.Hour)).NewLock(lock.Name())
	got := b.startWaiter(them, other)
	all := slices.Concat(rights, []string{line, "+hmget", "+pubsub|numsub"})
	waiter := func(rights []string) (w Waiter) {
		i, err := d.user(b, rights).Inspect(ctx, lock.Name())
		require.NoError(t, err)
		assert.False(t, i.QueueUnknown)
		if assert.Equal(t, len(i.Waiters), i.Waiting) && len(i.Waiters) > 0 {
			w = i.Waiters[0]
		}
		return w
	}
	testredis.Await(t, "one waits", soon, func() bool { return waiter(all).Reachable == ReachableYes })
	assert.False(t, waiter(all).Since.IsZero())
	assert.Equal(t, ReachableUnknown, waiter(without(all, "+pubsub|numsub")).Reachable)
	for _, right := range []string{line, "+hmget"} {
		i, err := d.user(b, without(all, right)).Inspect(ctx, lock.Name())
		require.NoError(t, err, "without %s", right)
		assert.True(t, i.QueueUnknown, "without %s", right)
		assert.Empty(t, i.Waiters)
		assert.Len(t, i.Holders, 1)
	}
	b.must(lock.Unlock(ctx))
	b.must(<-got)
	b.must(other.Unlock(them))
}

func TestInspectReportsKeysThatAreNoLock(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		ctx := context.Background()
		for text, make := range map[string]func(b *bench) error{
			`" holds a string that`: func(b *bench) error { return b.rdb.Set(ctx, b.name, "a string", 0).Err() },
			`" holds a set that`:    func(b *bench) error { return b.rdb.SAdd(ctx, b.name, "a set").Err() },
			`"redisson_lock_queue:{`: func(b *bench) error {
				return b.rdb.Set(ctx, "redisson_lock_queue:{"+b.name+"}", "a string", 0).Err()
			},
			`"relock_lock_alive:{`: func(b *bench) error {
				b.must(b.rdb.RPush(ctx, aliveKey(b.name), "a list").Err())
				return b.rdb.Expire(ctx, aliveKey(b.name), time.Hour).Err()
			},
			`holds a hash that is not a lock (field "colour")`: func(b *bench) error {
				return b.rdb.HSet(ctx, b.name, "colour", "red", javaThread, 7).Err()
			},
			`holds a hash that is not a lock (field "n")`: func(b *bench) error { return b.rdb.HSet(ctx, b.name, "n", 0).Err() },
			`holds a hash that is not a lock (field "mode")`: func(b *bench) error {
				return b.rdb.HSet(ctx, b.name, "mode", "dark"+strings.Repeat("!", 500), "n", math.MaxInt64).Err()
			},
			`holds a token counter that is not a number`: func(b *bench) error {
				return b.rdb.Set(ctx, "redisson_lock_token:{"+b.name+"}", "many", 0).Err()
			},
		} {
			b := newBench(t, addr)
			b.must(make(b))
			_, err := b.client().Inspect(ctx, b.name)
			assert.ErrorIs(t, err, ErrNotALock, text)
			assert.ErrorContains(t, err, text, text)
			assert.ErrorContains(t, err, strconv.Quote(b.name), text)
			require.Error(t, err, text)
			assert.LessOrEqual(t, len(err.Error()), 300, text)
			b.forget()
		}
	})
}

func TestInspectRefusesInvalidCalls(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	c, ctx := b.client(), context.Background()
	for name, want := range map[string]string{"": "the name is empty", strings.Repeat("x", record.LongestName+1): "bytes"} {
		_, err := c.Inspect(ctx, name)
		assert.ErrorIs(t, err, ErrInvalid)
		assert.ErrorContains(t, err, want)
	}
	_, err := (*Client)(nil).Inspect(ctx, b.name)
	assert.ErrorIs(t, err, ErrInvalid)
	//lint:ignore SA1012 that is what is tested
	_, err = c.Inspect(nil, b.name)
	assert.ErrorIs(t, err, ErrInvalid)
	ended, end := context.WithCancel(ctx)
	end()
	_, err = c.Inspect(ended, b.name)
	assert.ErrorIs(t, err, context.Canceled)
	b.must(c.Close())
	_, err = c.Inspect(ctx, b.name)
	assert.ErrorIs(t, err, ErrClosed)
}

func TestParseRecordsRefusesBadReplies(t *testing.T) {
	list := func(all ...any) []any { return all }
	good := list(
		int64(1),
		int64(2),
		list("f", "1", int64(2)),
		int64(1),
		list("f", "1.5e3", "0", "", int64(-1), "g", "-inf", "9e15", "99999999999999999", int64(1)),
		int64(3),
		int64(1),
		"",
		"",
		list("f", "1.5e3"),
	)
	r, err := parseRecords(good)
	require.NoError(t, err)
	assert.Len(t, r.entries, 1)
	require.Len(t, r.waiters, 2)
	f, g := r.waiters[0], r.waiters[1]
	assert.EqualValues(t, 1500, f.Deadline.UnixMilli())
	assert.True(t, f.AliveUntil.IsZero())
	assert.True(t, f.Since.IsZero())
	assert.Equal(t, ReachableUnknown, f.Reachable)
	assert.EqualValues(t, 1, g.Deadline.UnixMilli())
	assert.Equal(t, 9999, g.AliveUntil.UTC().Year())
	assert.Equal(t, 9999, g.Since.UTC().Year())
	assert.Equal(t, ReachableYes, g.Reachable)
	assert.EqualValues(t, 1500, r.permits["f"])
	for _, bad := range []any{nil, int64(1), "", list(), good[:9]} {
		_, err := parseRecords(bad)
		assert.ErrorIs(t, err, errReply, "%v", bad)
	}
	for i := range good {
		for _, part := range []any{nil, true, list("f"), list("f", "many"), list("f", "nan"), list(int64(1), "1", int64(2)),
			list(list())} {
			bad := slices.Clone(good)
			bad[i] = part
			_, err := parseRecords(bad)
			assert.ErrorIs(t, err, errReply, "part %d: %v", i, part)
		}
	}
}

func TestInspectWorksOnACluster(t *testing.T) {
	t.Parallel()
	b := newClusterBench(t, testredis.StartCluster(t, 3, 0))
	c, ctx := b.client(), context.Background()
	for _, name := range []string{b.name, "{" + b.name + "}:x", b.name + "-c"} {
		lock := c.NewLock(name)
		b.must(lock.Lock(ctx))
		i, err := c.Inspect(ctx, name)
		require.NoError(t, err)
		assert.Equal(t, TypeLock, i.Type)
		assert.Len(t, i.Holders, 1)
		waits := b.client().NewLock(name)
		got := b.startWaiter(waits)
		testredis.Await(t, "one waits, and is subscribed in its shard", clusterSoon, func() bool {
			i, err := c.Inspect(ctx, name)
			return err == nil && i.Waiting == 1 && i.Waiters[0].Reachable == ReachableYes
		})
		b.must(lock.Unlock(ctx))
		b.must(<-got)
		b.must(second(waits.ForceUnlock(ctx)))

		rw := c.NewRWLock(name).Read()
		b.must(rw.LockLease(ctx, time.Hour))
		i, err = c.Inspect(ctx, name)
		require.NoError(t, err)
		assert.Equal(t, TypeReadWrite, i.Type)
		require.Len(t, i.Holders, 1)
		assert.True(t, about(i.Holders[0].Remaining, time.Hour), "lease %v", i.Holders[0].Remaining)
		b.must(rw.Unlock(ctx))
	}
	_, err := c.Inspect(ctx, "{}"+b.name)
	assert.ErrorIs(t, err, ErrInvalid, "its keys are in several slots")
}

// The result of Inspect is bounded, and costs no more than linear time.
func TestInspectShowsSomeOfVeryMany(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	c := b.client()
	begin, check := b.watchBusy(mostBusy)
	const many = mostShown + 2000
	const field = `local field = string.format('00000000-0000-4000-8000-%012d', i) .. ':7:01' `
	inTime := func(what string) Inspection {
		begin()
		i := b.inspect(c)
		check(what)
		assert.True(t, i.More, what)
		return i
	}

	const inLine = 1500
	place := `redis.call('hset', KEYS[1], i, client, client, i .. ' new push 30000 0 1 ' .. client .. ':7:01' .. ` +
		`ARGV[2] .. ' 1') `
	fill := func(suffix string) {
		b.must(b.rdb.Eval(
			ctx,
			"for i = 1, ARGV[1] do local client = string.format('00000000-0000-4000-8000-%012d', i) "+place+
				"end redis.call('hset', KEYS[1], 'first', 1, 'last', ARGV[1]) return 1",
			[]string{b.lineKey()},
			inLine,
			suffix,
		).Err())
	}
	for kind, lock := range map[string]Locker{
		"lock": c.NewLock(b.name), "write": c.NewRWLock(b.name).Write(), "semaphore": c.NewSemaphore(b.name, 1),
	} {
		me := ContextWithOwner(ctx)
		b.must(lock.LockLease(me, time.Hour))
		fill(map[string]string{"write": ":write"}[kind])
		i := inTime("the wait queue of a " + kind)
		assert.Len(t, i.Holders, 1, kind)
		require.Len(t, i.Waiters, mostWaiters, kind)
		assert.Equal(t, inLine, i.Waiting, kind)
		assert.Equal(t, mostWaiters, i.Gone, "of those that are listed")
		for n, w := range i.Waiters {
			require.Equal(t, fmt.Sprintf("00000000-0000-4000-8000-%012d", n+1), w.Client, kind)
			require.Equal(t, ReachableNo, w.Reachable, kind)
			require.EqualValues(t, 1, w.Since.Unix(), kind)
		}
		b.must(b.rdb.Del(ctx, b.name, b.lineKey(), record.PermitsKey(b.name)).Err())
		b.forget()
	}

	ends := time.Now().Add(time.Hour).UnixMilli()
	b.must(
		b.rdb.Eval(
			ctx,
			"for i = 1, ARGV[1] do "+field+"redis.call('zadd', KEYS[2], ARGV[2] + i, field) end redis.call('set', KEYS[1], "+
				"5) return 1",
			[]string{b.name, record.PermitsKey(b.name)},
			many,
			ends,
		).Err(),
	)
	i := inTime("permits")
	assert.Equal(t, TypeSemaphore, i.Type)
	assert.Len(t, i.Holders, mostShown)
	assert.Equal(t, 5, i.Available)
	assert.Equal(t, "00000000-0000-4000-8000-000000000001", i.Holders[0].Client, "the first to expire")
	assert.Equal(t, ends+many, i.At.Add(i.TTL).UnixMilli(), "the longest lease")
	_, err := c.Inspect(ctx, b.name)
	b.must(err)

	expired := time.Now().Add(-time.Hour).UnixMilli() // Java's clock may be ahead: all permits that have expired are free
	b.must(
		b.rdb.Eval(
			ctx,
			"for i = 1, ARGV[1] do "+field+"redis.call('zadd', KEYS[1], ARGV[2] + i, field .. '2') end return 1",
			[]string{record.PermitsKey(b.name)},
			many,
			expired,
		).Err(),
	)
	i = inTime("permits that have expired")
	assert.Equal(t, 5+many, i.Available)
	assert.Len(t, i.Holders, mostShown)
	b.must(b.rdb.ZRemRangeByScore(ctx, record.PermitsKey(b.name), strconv.FormatInt(time.Now().UnixMilli(), 10), "+inf").Err())
	begin()
	i = b.inspect(c)
	assert.Equal(t, 5+many, i.Available)
	assert.Empty(t, i.Holders)
	assert.False(t, i.Ambiguous)
	check("permits that have all expired")
	b.must(b.rdb.Del(ctx, b.name, record.PermitsKey(b.name)).Err())

	b.must(
		b.rdb.Eval(
			ctx,
			"for i = 1, ARGV[1] do "+field+"redis.call('rpush', KEYS[1], field) redis.call('zadd', KEYS[2], i, field) end "+
				"return 1",
			[]string{queueKey(b.name), record.PrefixName("redisson_lock_timeout", b.name)},
			many,
		).Err(),
	)
	i = inTime("waiters")
	assert.Equal(t, TypeFair, i.Type)
	assert.Len(t, i.Waiters, mostWaiters)
	assert.Equal(t, many, i.Waiting)
	b.forget()

	b.must(
		b.rdb.Eval(
			ctx,
			"for i = 1, ARGV[1] do "+field+"redis.call('zadd', KEYS[1], ARGV[2], field) end return 1",
			[]string{writersKey(b.name)},
			many,
			ends,
		).Err(),
	)
	b.must(b.rdb.Expire(ctx, writersKey(b.name), time.Hour).Err())
	i = inTime("writers")
	assert.Equal(t, TypeReadWrite, i.Type)
	assert.Len(t, i.Waiters, mostWaiters)
	assert.Equal(t, mostShown+1, i.Waiting, "they are counted up to that number")
	b.forget()
}

// Inspect rejects what the methods of a semaphore reject, names the same key, and reports what it cannot tell apart.
func TestInspectAndSemaphoreAgree(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		ctx := context.Background()
		past, future := float64(1), float64(time.Now().Add(time.Hour).UnixMilli())
		for what, put := range map[string]func(b *bench, key string) error{
			"a list":   func(b *bench, key string) error { return b.rdb.RPush(ctx, key, "a").Err() },
			"a hash":   func(b *bench, key string) error { return b.rdb.HSet(ctx, key, "a", 1).Err() },
			"a string": func(b *bench, key string) error { return b.rdb.Set(ctx, key, "a", 0).Err() },
			"a zset, of the past": func(b *bench, key string) error {
				return b.rdb.ZAdd(ctx, key, redis.Z{Score: past, Member: "alice"}).Err()
			},
			"a zset, of the future": func(b *bench, key string) error {
				return b.rdb.ZAdd(ctx, key, redis.Z{Score: future, Member: "alice"}).Err()
			},
			"a zset with a permit among all": func(b *bench, key string) error {
				return b.rdb.ZAdd(ctx, key, redis.Z{Score: future, Member: javaThread + ":017"},
					redis.Z{Score: past, Member: "alice"}).Err()
			},
		} {
			b := newBench(t, addr)
			key := record.PermitsKey(b.name)
			b.must(b.rdb.Set(ctx, b.name, 3, 0).Err())
			b.must(put(b, key))
			before := b.content(key)
			c := b.client()
			s := c.NewSemaphore(b.name, 3)
			for method, err := range map[string]error{
				"Inspect": second(c.Inspect(ctx, b.name)), "Holders": second(s.Holders(ctx)), "Available": second(s.Available(ctx)),
				"Permits": second(s.Permits(ctx)), "TryLock": second(s.TryLock(ctx, 0, 0)), "IsLocked": second(s.IsLocked(ctx)),
				"ForceUnlock": second(s.ForceUnlock(ctx)), "SetPermits": s.SetPermits(ctx, 5),
			} {
				require.ErrorIs(t, err, ErrNotALock, "%s, %s", what, method)
				assert.ErrorContains(
					t,
					err,
					"the key "+shortName(key)+" holds a "+b.rdb.Type(ctx, key).Val(),
					"%s, %s",
					what,
					method,
				)
			}
			assert.Equal(t, before, b.content(key), what)
			assert.Equal(t, "3", b.rdb.Get(ctx, b.name).Val(), what)
			b.must(b.rdb.Del(ctx, b.name, key).Err())
		}

		// The number of an RCountDownLatch, or of any counter.
		b := newBench(t, addr)
		c := b.client()
		b.must(b.rdb.Set(ctx, b.name, 3, 0).Err())
		i := b.inspect(c)
		assert.Equal(t, TypeSemaphore, i.Type)
		assert.True(t, i.Ambiguous)
		assert.Equal(t, 3, i.Available)
		s, me := c.NewSemaphore(b.name, 10), ContextWithOwner(ctx)
		n, err := s.Permits(ctx)
		b.must(err)
		assert.Equal(t, 3, n, "the number in Redis counts")
		b.must(s.Lock(me))
		assert.False(t, b.inspect(c).Ambiguous, "a permit is taken")
		b.must(s.Unlock(me))
		assert.True(t, b.inspect(c).Ambiguous)
		b.must(b.rdb.Del(ctx, b.name).Err())
		assert.False(t, b.inspect(c).Ambiguous, "there is nothing")
	})
}
