package locks

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNewSendsNothing(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	c, err := New(rdb, WithWatchdogTimeout(100*time.Millisecond), WithPollInterval(1), WithLogger(slog.Default()))
	require.NoError(t, err)
	assert.Zero(t, rdb.PoolStats().TotalConns, "connections")
	assert.NoError(t, c.Close())
	assert.ErrorIs(t, c.Shutdown(locktest.NilCtx), ErrInvalid)
	assert.NoError(t, (*Client)(nil).Close())
	assert.NoError(t, (*Client)(nil).Shutdown(ctx))
}

// S1: owners of two Clients, whose calls are sent in batches, exclude one another, and one pipeline serves many calls.
func TestBatchedCallsKeepLocksExclusive(t *testing.T) {
	t.Parallel()
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		testBatchedCalls(locktest.NewBench(t, addr), func() redis.UniversalClient { return testredis.Client(t, addr) })
	})
	t.Run("cluster", func(t *testing.T) {
		c := testredis.StartCluster(t, 3, 0)
		testBatchedCalls(locktest.NewBench(t, c.Nodes()[0].Addr()), func() redis.UniversalClient { return c.Client() })
	})
}

func testBatchedCalls(b *locktest.Bench, connect func() redis.UniversalClient) {
	rdb := connect()
	pipes := &locktest.PipeCounter{}
	rdb.AddHook(pipes)
	// The first Client has many calls in flight, and therefore sends batches.
	many, other := b.ClientOn(rdb), b.ClientOn(connect())
	locktest.EngineOf(other).Probe().Sender().BatchAll()
	const names, each = 64, 10
	inside := make([]atomic.Int32, names)
	var all sync.WaitGroup
	for _, c := range []*Client{many, other} {
		for i := range names {
			waitgroup.Go(&all, func() {
				l, ctx := c.NewLock(fmt.Sprint(b.LockName, "-", i)), ContextWithOwner(ctx)
				for range each {
					if !assert.NoError(b, l.Lock(ctx)) {
						return
					}
					assert.EqualValues(b, 1, inside[i].Add(1), "holders")
					inside[i].Add(-1)
					if !assert.NoError(b, l.Unlock(ctx)) {
						return
					}
				}
			})
		}
	}
	all.Wait()
	assert.NotZero(b, pipes.Count(), "pipelines")
	assert.GreaterOrEqual(b, pipes.Calls(), 2*pipes.Count(), "calls in pipelines")
}

// A Client that waits for replicas sends no batches, because a WAIT is for the calls of one caller, and bounds no calls.
// The methods of a type that embeds a client may do more than a pipeline calls.
func TestBatchesAreForServersWithoutReplicas(t *testing.T) {
	one := testredis.Client(t, "127.0.0.1:1")
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	t.Cleanup(func() { _ = cluster.Close() })
	synced := []Option{WithSyncedReplicas(1, time.Second)}
	for _, row := range []struct {
		name             string
		rdb              redis.UniversalClient
		opts             []Option
		batches, bounded bool
	}{
		{"one server", one, nil, true, true},
		{"one server, synced replicas", one, synced, false, false},
		{"cluster", cluster, nil, true, true},
		{"cluster, synced replicas", cluster, synced, false, false},
		{"a type that embeds a client", struct{ *redis.Client }{one}, nil, false, true},
		{"a type that embeds a cluster", struct{ redis.UniversalClient }{cluster}, nil, false, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			c, err := New(row.rdb, row.opts...)
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, c.Close()) })
			config := reflect.ValueOf(locktest.EngineOf(c).Probe().Sender()).Elem().FieldByName("config")
			assert.Equal(t, row.batches, config.FieldByName("Batch").Bool(), "batches")
			assert.Equal(t, row.bounded, !config.FieldByName("Bounded").IsNil(), "bounded calls")
		})
	}
}

// A lock of a Client with a prefix has the key, and everything that is derived from it, of a lock whose name begins
// with the prefix.
func TestKeyPrefixIsPutBeforeEveryName(t *testing.T) {
	t.Parallel()
	addr := testredis.Start(t).Addr()
	for _, prefix := range []string{"app:", "{app}:"} {
		b := locktest.NewBench(t, addr)
		with, without := b.Client(WithKeyPrefix(prefix), WithPollInterval(time.Hour)), b.Client(WithPollInterval(time.Hour))
		pairs := map[Locker]Locker{
			with.NewLock(b.LockName):                           without.NewLock(prefix + b.LockName),
			with.NewLock(b.LockName+":fenced", Fenced()):       without.NewLock(prefix+b.LockName+":fenced", Fenced()),
			with.NewFairLock(b.LockName + ":fair"):             without.NewFairLock(prefix + b.LockName + ":fair"),
			with.NewRWLock(b.LockName + ":r").Read():           without.NewRWLock(prefix + b.LockName + ":r").Write(),
			with.NewRWLock(b.LockName + ":w").Write():          without.NewRWLock(prefix + b.LockName + ":w").Read(),
			with.NewMultiLock(with.NewLock(b.LockName + ":m")): without.NewLock(prefix + b.LockName + ":m"),
		}
		for l, same := range pairs {
			require.NoError(t, l.Lock(ctx))
			assert.Equal(t, prefix+l.Name(), same.Name())
			ok, err := same.TryLock(ctx, 0, 0)
			require.NoError(t, err)
			assert.False(t, ok, "%s with the prefix does not exclude %s", l.Name(), same.Name())
			waiter := make(chan error, 1)
			go func() { waiter <- same.Lock(ContextWithOwner(ctx)) }()
			testredis.Await(b, "it waits", locktest.Soon, func() bool { return locktest.EngineOf(without).Probe().Stats().Listeners > 0 })
			require.NoError(t, l.Unlock(ctx))
			select {
			case err := <-waiter: // it was notified: by itself it would ask again in an hour, or when the lease expires
				require.NoError(t, err)
			case <-time.After(locktest.Soon):
				t.Fatalf("%s is not woken", same.Name())
			}
			freed, err := same.ForceUnlock(ctx)
			require.NoError(t, err)
			assert.True(t, freed)
			err = l.Unlock(ctx)
			assert.ErrorIs(t, err, ErrNotHeld)
			assert.NotContains(t, err.Error(), prefix)
		}
		first, second := with.NewLock(b.LockName+":fenced", Fenced()), without.NewLock(prefix+b.LockName+":fenced", Fenced())
		var tokens []int64
		for _, l := range []*Lock{first, second, first} {
			require.NoError(t, l.Lock(ctx))
			token, err := l.Token(ctx)
			require.NoError(t, err)
			tokens = append(tokens, token)
			i, err := with.Inspect(ctx, b.LockName+":fenced")
			require.NoError(t, err)
			assert.Equal(t, b.LockName+":fenced", i.Name)
			assert.Equal(t, token, i.Token)
			assert.True(t, i.Held())
			require.NoError(t, l.Unlock(ctx))
		}
		assert.IsIncreasing(t, tokens)
	}
}

func TestKeyPrefixIsNoName(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	c := b.Client(WithKeyPrefix("app:"))
	for _, l := range []Locker{c.NewLock(""), c.NewFairLock(""), c.NewRWLock("").Read()} {
		assert.ErrorContains(t, l.Lock(ctx), "the name is empty")
	}
	_, err := c.Inspect(ctx, "")
	assert.ErrorIs(t, err, ErrInvalid)
}

func TestNewRefusesInvalidOptions(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	var nilClient *redis.Client
	for text, c := range map[string]struct {
		rdb  redis.UniversalClient
		opts []Option
	}{
		"WithWatchdogTimeout(99ms)":  {rdb, []Option{WithWatchdogTimeout(99 * time.Millisecond)}},
		"WithWatchdogTimeout(-1s)":   {rdb, []Option{WithWatchdogTimeout(-time.Second)}},
		"WithPollInterval(0s)":       {rdb, []Option{WithPollInterval(0)}},
		"WithPollInterval(-1ns)":     {rdb, []Option{WithPollInterval(-1)}},
		"WithLogger(nil)":            {rdb, []Option{WithLogger(nil)}},
		"WithObserver(nil)":          {rdb, []Option{WithObserver(nil)}},
		"WithRedLockNodeTimeout(0s)": {rdb, []Option{WithRedLockNodeTimeout(0)}},
		"WithSyncedReplicas(0, 1s)":  {rdb, []Option{WithSyncedReplicas(0, time.Second)}},
		"WithSyncedReplicas(1, 1µs":  {rdb, []Option{WithSyncedReplicas(1, time.Microsecond)}},
		"WithHoldWarning(-1ns)":      {rdb, []Option{WithHoldWarning(-1)}},
		"WithHoldWarning(99ms)":      {rdb, []Option{WithHoldWarning(99 * time.Millisecond)}},
		"WithWaitWarning(99ms)":      {rdb, []Option{WithWaitWarning(99 * time.Millisecond)}},
		"ReadTimeout":                {rdb, []Option{WithSyncedReplicas(1, time.Minute)}},
		"option 2 is nil":            {rdb, []Option{WithPollInterval(1), nil}},
		"Redis client is nil":        {nil, nil},
		"client is nil":              {nilClient, nil},
		"Ring":                       {ring, nil},
	} {
		c, err := New(c.rdb, c.opts...)
		assert.Nil(t, c, text)
		assert.ErrorIs(t, err, ErrInvalid)
		assert.ErrorContains(t, err, text)
	}
}

func TestErrorsNameHoldersAndCutLongNames(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		l := b.Client().NewLock(b.LockName)
		b.Must(l.Lock(ctx))
		err := locktest.Elsewhere(func() error { return l.Unlock(ctx) })
		want := regexp.MustCompile(
			`^relock: unlock "` + b.LockName +
				`": not held by the caller: called by goroutine \d+, but held by goroutine \d+ in this process$`,
		)
		require.Error(t, err)
		assert.Regexp(t, want, err.Error())
		b.Must(l.Unlock(ctx))
		secret := strings.Repeat("s", 100) + "secret"
		err = b.Client().NewLock(secret).Unlock(ctx)
		require.Error(t, err)
		assert.NotContains(t, err.Error(), "secret")
	})
}

// A holder that finishes its work during Shutdown may extend its lease, also that of a MultiLock.
func TestShutdownLetsHoldersExtend(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	c := b.Client()
	for _, l := range []Acquirer{c.NewLock(b.LockName), c.NewMultiLock(c.NewLock(b.LockName+"-1"), c.NewFairLock(b.LockName+"-2"))} {
		hold, ok, err := l.TryAcquire(ctx, locktest.Soon, time.Minute)
		b.Must(err)
		require.True(b, ok)
		defer func() { b.Must(hold.Release(ctx)) }()
		defer func() { b.Must(hold.Extend(ctx, time.Minute)) }()
	}
	go func() { _ = c.Shutdown(ctx) }()
	<-locktest.EngineOf(c).UntilShutdown(ctx, time.Time{}).Closed
}

// labelled waits until Redis has the label of c.
func labelled(b *locktest.Bench, c *Client) {
	b.Helper()
	testredis.Await(b, "the label is in Redis", locktest.Soon, func() bool {
		return b.Rdb.HGet(ctx, record.ClientKey(c.ID()), "label").Val() != ""
	})
}

func TestLabelNamesHoldersAndWaiters(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	require.NoError(t, err)
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		first, second, none := b.Client(WithLabel("orders-1")), b.Client(WithLabel("orders-2")), b.Client()
		assert.Empty(t, b.Rdb.Keys(ctx, "relock_client:*").Val(), "before the first lock")
		for _, holder := range []*Client{first, none} {
			held := holder.NewFairLock(b.LockName)
			require.NoError(t, held.Lock(ctx))
			waiting, stop := context.WithCancel(ContextWithOwner(ctx))
			done := make(chan error, 1)
			go func() { done <- second.NewFairLock(b.LockName).Lock(waiting) }()
			labelled(b, second)
			if holder == first {
				labelled(b, first)
			}
			testredis.Await(b, "one waits", locktest.Soon, func() bool {
				i, err := none.Inspect(ctx, b.LockName)
				require.NoError(t, err)
				return len(i.Waiters) == 1
			})
			i, err := none.Inspect(ctx, b.LockName)
			require.NoError(t, err)
			assert.Equal(t, "orders-2", i.Waiters[0].Label)
			assert.Equal(t, host, i.Waiters[0].Host)
			if holder == first {
				assert.Equal(t, "orders-1", i.Holders[0].Label)
				assert.Equal(t, host, i.Holders[0].Host)
			} else {
				assert.Empty(t, i.Holders[0].Label+i.Holders[0].Host)
			}
			stop()
			assert.ErrorIs(t, <-done, context.Canceled)
			require.NoError(t, held.Unlock(ctx))
		}
		hash := b.Rdb.HGetAll(ctx, record.ClientKey(first.ID())).Val()
		assert.NotEmpty(t, hash["pid"])
		left := b.Rdb.PTTL(ctx, record.ClientKey(first.ID())).Val()
		assert.True(t, left > 0 && left <= 90*time.Second, "the expiry is %v", left)
		require.NoError(t, first.Close())
		require.NoError(t, second.Close())
		assert.Empty(t, b.Rdb.Keys(ctx, "relock_client:*").Val(), "after Close")
	})
}

func TestLabelIsInErrorsAboutThisProcess(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	l := b.Client(WithLabel("orders-1")).NewLock(b.LockName)
	require.NoError(t, l.Lock(ctx))
	ctx, cancel := context.WithTimeout(ContextWithOwner(ctx), time.Second)
	defer cancel()
	assert.ErrorContains(t, l.Lock(ctx), "of this process (orders-1) holds it")
	require.NoError(t, l.Unlock(context.Background()))
}

// A Client with an empty label writes nothing about itself to Redis.
func TestEmptyLabelIsNotKept(t *testing.T) {
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	c := b.Client()
	require.NoError(t, c.NewLock(b.LockName).Do(ctx, func(context.Context) error { return nil }))
	assert.Empty(t, b.Rdb.Keys(ctx, "relock_client:*").Val())
	assert.Nil(t, locktest.EngineOf(c).OnAcquire)
	assert.Nil(t, locktest.EngineOf(c).OnSlow)
}

// Any program may write to the hash of a label: what no Client writes is quoted when it is read.
func TestLabelsThatAreNoTextAreQuoted(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Mini(t).Addr())
	c := b.Client()
	l := c.NewLock(b.LockName)
	b.Must(l.Lock(ctx))
	b.Must(b.Rdb.HSet(ctx, record.ClientKey(c.ID()), "label", "a\x1b[31m\n", "host", "host-1").Err())
	defer b.Rdb.Del(ctx, record.ClientKey(c.ID()))
	i, err := c.Inspect(ctx, b.LockName)
	b.Must(err)
	assert.Equal(t, `"a\x1b[31m\n"`, i.Holders[0].Label)
	assert.Equal(t, "host-1", i.Holders[0].Host)
	b.Must(l.Unlock(ctx))
}

func TestLabelsThatAreNoTextAreRefused(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	for _, s := range []string{"a\x1b[31m", "a\nb", "\xff", strings.Repeat("x", 257)} {
		_, err := New(rdb, WithLabel(s))
		assert.ErrorIs(t, err, ErrInvalid, "%q", s)
		assert.ErrorContains(t, err, "WithLabel")
	}
}

// What an operator has seen, and decided to release, is released; a hold that began since then is not.
func TestForceUnlockOfAnInspectionIsForTheHoldersThatItShows(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		type giver interface {
			TryAcquire(ctx context.Context, wait, lease time.Duration) (*Hold, bool, error)
		}
		for name, newLock := range map[string]func(c *Client, name string) giver{
			"lock":      func(c *Client, name string) giver { return c.NewLock(name) },
			"fair":      func(c *Client, name string) giver { return c.NewFairLock(name) },
			"read":      func(c *Client, name string) giver { return c.NewRWLock(name).Read() },
			"write":     func(c *Client, name string) giver { return c.NewRWLock(name).Write() },
			"semaphore": func(c *Client, name string) giver { return c.NewSemaphore(name, 1) },
		} {
			b := locktest.NewBench(t, addr)
			one, two, operator := b.Client(), b.Client(), b.Client()
			hold := func(c *Client) *Hold {
				h, ok, err := newLock(c, b.LockName).TryAcquire(ctx, locktest.Soon, 0)
				b.Must(err)
				require.True(b, ok, name)
				return h
			}
			first := hold(one)
			seen, err := operator.Inspect(ctx, b.LockName)
			b.Must(err)
			require.Len(b, seen.Holders, 1, name)
			b.Must(first.Release(ctx))
			second := hold(two)
			freed, err := operator.ForceUnlock(ctx, seen)
			b.Must(err)
			assert.False(b, freed, "%s: the lock has another holder", name)
			assert.NoError(b, second.Context().Err(), name)

			seen, err = operator.Inspect(ctx, b.LockName)
			b.Must(err)
			freed, err = operator.ForceUnlock(ctx, seen)
			b.Must(err)
			assert.True(b, freed, name)
			b.MustBe(second.Release(ctx), ErrLockLost)
			freed, err = operator.ForceUnlock(ctx, seen)
			b.Must(err)
			assert.False(b, freed, "%s: nobody holds it", name)
			freed, err = operator.ForceUnlock(ctx, Inspection{Name: b.LockName})
			b.Must(err)
			assert.False(b, freed, "%s: an inspection without holders", name)
		}
	})
}

// Of several holders only those lose the lock that the inspection shows, in Redis and in this process.
func TestForceUnlockOfAnInspectionLeavesOtherHolders(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		for name, acquire := range map[string]func(c *Client, name string, n int) (*Hold, error){
			"read": func(c *Client, name string, _ int) (*Hold, error) { return c.NewRWLock(name).Read().Acquire(ctx) },
			"semaphore": func(c *Client, name string, n int) (*Hold, error) {
				return c.NewSemaphore(name, 10).AcquireN(ctx, n)
			},
		} {
			b := locktest.NewBench(t, addr)
			one, two, three := b.Client(), b.Client(), b.Client()
			hold := func(c *Client, n int) *Hold {
				h, err := acquire(c, b.LockName, n)
				b.Must(err)
				return h
			}
			stuck, other := hold(one, 3), hold(two, 2)
			mine := hold(three, 1) // of the Client that releases the other one by force
			seen, err := three.Inspect(ctx, b.LockName)
			b.Must(err)
			require.Len(b, seen.Holders, 3, name)
			seen.Holders = slices.DeleteFunc(seen.Holders, func(h Holder) bool { return h.Client != one.ID() })
			freed, err := three.ForceUnlock(ctx, seen)
			b.Must(err)
			assert.True(b, freed, name)
			b.MustBe(stuck.Release(ctx), ErrLockLost)
			assert.NoError(b, mine.Context().Err(), "%s: a hold of this process that was not shown", name)
			left, err := three.Inspect(ctx, b.LockName)
			b.Must(err)
			assert.Len(b, left.Holders, 2, name)
			if name == "semaphore" {
				assert.Equal(b, 7, left.Available, "permits")
			}
			b.Must(other.Release(ctx))
			b.Must(mine.Release(ctx))
		}
	})
}

// Java holders are released like all others: a thread, and a permit with random bytes as its ID.
func TestForceUnlockOfAnInspectionIsForJavaToo(t *testing.T) {
	locktest.OnEachServer(t, func(t *testing.T, addr string) {
		b := locktest.NewBench(t, addr)
		c := b.Client()
		for name, put := range map[string]func(name string){
			"a thread": func(name string) { b.Must(b.Rdb.HSet(ctx, name, locktest.JavaThread, 1).Err()) },
			"a permit": func(name string) {
				b.Must(b.Rdb.Set(ctx, name, 4, 0).Err())
				b.Must(b.Rdb.ZAdd(ctx, record.PermitsKey(name), redis.Z{
					Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: "\x00\x01abcdefghijk\xff\xfe\xfd",
				}).Err())
			},
		} {
			put(b.LockName)
			seen, err := c.Inspect(ctx, b.LockName)
			b.Must(err)
			require.Len(b, seen.Holders, 1, name)
			other := seen
			other.Holders = slices.Clone(seen.Holders)
			other.Holders[0].Field = strings.Repeat("5", len(other.Holders[0].Field))
			freed, err := c.ForceUnlock(ctx, other)
			b.Must(err)
			assert.False(b, freed, "%s: another holder", name)
			freed, err = c.ForceUnlock(ctx, seen)
			b.Must(err)
			assert.True(b, freed, name)
			if name == "a permit" {
				assert.Equal(b, "5", b.Rdb.Get(ctx, b.LockName).Val(), name)
			}
			b.Must(b.Rdb.Del(ctx, b.LockName).Err())
		}
	})
}

// An error of a request that found no connection says so: not Redis is slow, but the pool too small.
func TestErrorsNameAnExhaustedPool(t *testing.T) {
	t.Parallel()
	mini := testredis.Mini(t)
	slots := func(context.Context) ([]redis.ClusterSlot, error) {
		return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: mini.Addr()}}}}, nil
	}
	for name, rdb := range map[string]redis.UniversalClient{
		"server": redis.NewClient(&redis.Options{Addr: mini.Addr(), PoolSize: 2, PoolTimeout: time.Minute}),
		"cluster": redis.NewClusterClient(&redis.ClusterOptions{
			ClusterSlots: slots, PoolSize: 2, PoolTimeout: time.Minute,
		}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer rdb.Close()
			c, err := New(rdb, WithLabel(""))
			require.NoError(t, err)
			defer c.Close()
			ctx := ContextWithOwner(ctx)
			held := c.NewLock("held by " + name)
			require.NoError(t, held.Lock(ctx))

			pool, _ := rdb.(*redis.Client)
			if cluster, ok := rdb.(*redis.ClusterClient); ok {
				pool, err = cluster.MasterForKey(ctx, "x")
				require.NoError(t, err)
			}
			for range 2 { // other code uses all connections
				conn := pool.Conn()
				require.NoError(t, conn.Ping(ctx).Err())
				defer conn.Close()
			}
			within, cancel := context.WithTimeout(ContextWithOwner(ctx), time.Second/2)
			defer cancel()
			assert.ErrorIs(t, c.NewLock("two").Lock(within), send.ErrPoolExhausted, "Lock with a deadline")
			var work sync.WaitGroup
			for call, f := range map[string]func(ctx context.Context) error{ // so few that none goes out in a pipeline
				"Lock": c.NewLock("one").Lock,
				"TryLock": func(ctx context.Context) error {
					_, err := c.NewLock("three").TryLock(ctx, 0, 0)
					return err
				},
				"IsLocked": func(ctx context.Context) error {
					_, err := c.NewLock("x").IsLocked(ctx)
					return err
				},
				"Unlock": func(context.Context) error { return held.Unlock(ctx) },
			} {
				waitgroup.Go(&work, func() {
					assert.ErrorIs(t, f(ContextWithOwner(context.Background())), send.ErrPoolExhausted, call)
				})
			}
			work.Wait()
		})
	}
}

// A Redis that does not answer is not taken for a pool that is exhausted.
func TestErrorOfASilentRedisDoesNotNameThePool(t *testing.T) {
	t.Parallel()
	proxy := testredis.NewProxy(t, testredis.Mini(t).Addr())
	c, err := New(proxy.Client())
	require.NoError(t, err)
	defer c.Close()
	proxy.BlackHole(true)
	defer proxy.BlackHole(false)
	_, err = c.NewLock("x").TryLock(ctx, 0, 0)
	assert.ErrorIs(t, err, engine.ErrNoAnswer)
	assert.NotErrorIs(t, err, send.ErrPoolExhausted)
}
