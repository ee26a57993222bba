package relock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
)

func TestNewSendsNothing(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer rdb.Close()
	c, err := New(rdb, WithWatchdogTimeout(minWatchdogTimeout), WithMaxWakeDelay(1), WithLogger(slog.Default()))
	require.NoError(t, err)
	assert.Zero(t, rdb.PoolStats().TotalConns, "connections")
	assert.NoError(t, c.Close())
	assert.NoError(t, (*Client)(nil).Close())
}

func TestLockFailsAtOnceWithoutRedis(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer rdb.Close()
	c, err := New(rdb)
	require.NoError(t, err)
	defer c.Close()
	l := c.NewLock("x")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = l.Lock(ctx)
	assert.NotErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorContains(t, err, "refused")
	ok, err := l.TryLock(ctx, 0, 0)
	assert.False(t, ok)
	assert.Error(t, err)
}

// L7: a request is sent on the goroutine of its caller only where the read timeout of the Redis client ends
// the wait for an answer in time to send it again.
func TestShortReadTimeoutNeedsNoGoroutine(t *testing.T) {
	for readTimeout, want := range map[time.Duration]time.Duration{0: 0, time.Second: time.Second, 1001 * time.Millisecond: 0, -1: 0} {
		o := redis.UniversalOptions{Addrs: []string{"127.0.0.1:1", "127.0.0.1:2"}, ReadTimeout: readTimeout}
		for _, rdb := range []redis.UniversalClient{redis.NewClient(o.Simple()), redis.NewClusterClient(o.Cluster())} {
			c, err := New(rdb)
			require.NoError(t, err)
			assert.Equal(t, want, promptness(rdb), "%T with a read timeout of %v", rdb, readTimeout)
			assert.NoError(t, errors.Join(c.Close(), rdb.Close()))
		}
	}
}

// S1: owners of two Clients, whose calls go out in batches, exclude one another, and one pipeline serves many calls.
func TestBatchedCallsKeepLocksExclusive(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, addr string) {
		testBatchedCalls(newBench(t, addr), func() redis.UniversalClient { return testredis.Client(t, addr) })
	})
	t.Run("cluster", func(t *testing.T) {
		c := testredis.StartCluster(t, 3, 0)
		testBatchedCalls(newBench(t, c.Nodes()[0].Addr()), func() redis.UniversalClient { return c.Client() })
	})
}

func testBatchedCalls(b *bench, connect func() redis.UniversalClient) {
	rdb := connect()
	pipes := &pipeCounter{}
	rdb.AddHook(pipes)
	many, other := b.clientOn(rdb), b.clientOn(connect()) // the first has many calls under way, and so batches
	other.engine.Probe().Sender().BatchAll()
	const names, each = 64, 10
	inside := make([]atomic.Int32, names)
	var all sync.WaitGroup
	for _, c := range []*Client{many, other} {
		for i := range names {
			waitgroup.Go(&all, func() {
				l, ctx := c.NewLock(fmt.Sprint(b.name, "-", i)), WithOwner(context.Background())
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
	assert.NotZero(b, pipes.count(), "pipelines")
	assert.GreaterOrEqual(b, pipes.calls(), 2*pipes.count(), "calls in pipelines")
}

// A Client that waits for replicas sends no batches: a WAIT is for the calls of one caller.
func TestBatchesAreForServersWithoutReplicas(t *testing.T) {
	one := testredis.Client(t, "127.0.0.1:1")
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	t.Cleanup(func() { _ = cluster.Close() })
	for _, row := range []struct {
		name    string
		rdb     redis.UniversalClient
		opts    []Option
		batches bool
	}{
		{"one server", one, nil, true},
		{"one server, synced replicas", one, []Option{WithSyncedReplicas(1, time.Second)}, false},
		{"cluster", cluster, nil, true},
		{"cluster, synced replicas", cluster, []Option{WithSyncedReplicas(1, time.Second)}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			c, err := New(row.rdb, row.opts...)
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, c.Close()) })
			_, batches := c.engine.Probe().Sender().Mutexes()["batches"]
			assert.Equal(t, row.batches, batches, "batches")
		})
	}
}

// A lock of a Client with a prefix has the key, and all that follows from it, of a lock whose name begins with the prefix.
func TestKeyPrefixIsPutBeforeEveryName(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	addr := testredis.Start(t).Addr()
	for _, prefix := range []string{"app:", "{app}:"} {
		b := newBench(t, addr)
		with, without := b.client(WithKeyPrefix(prefix), WithMaxWakeDelay(time.Hour)), b.client(WithMaxWakeDelay(time.Hour))
		pairs := map[Locker]Locker{
			with.NewLock(b.name):                           without.NewLock(prefix + b.name),
			with.NewLock(b.name+":fenced", Fenced()):       without.NewLock(prefix+b.name+":fenced", Fenced()),
			with.NewFairLock(b.name + ":fair"):             without.NewFairLock(prefix + b.name + ":fair"),
			with.NewRWLock(b.name + ":r").Read():           without.NewRWLock(prefix + b.name + ":r").Write(),
			with.NewRWLock(b.name + ":w").Write():          without.NewRWLock(prefix + b.name + ":w").Read(),
			with.NewMultiLock(with.NewLock(b.name + ":m")): without.NewLock(prefix + b.name + ":m"),
		}
		for l, same := range pairs {
			require.NoError(t, l.Lock(ctx))
			assert.Equal(t, prefix+l.Name(), same.Name())
			ok, err := same.TryLock(ctx, 0, 0)
			require.NoError(t, err)
			assert.False(t, ok, "%s with the prefix does not exclude %s", l.Name(), same.Name())
			waiter := make(chan error, 1)
			go func() { waiter <- same.Lock(WithOwner(ctx)) }()
			testredis.Await(b, "it waits", soon, func() bool { return without.engine.Hub().Answered() })
			require.NoError(t, l.Unlock(ctx))
			select {
			case err := <-waiter: // it was woken: by itself it would ask again in an hour, or at the end of the lease
				require.NoError(t, err)
			case <-time.After(soon):
				t.Fatalf("%s is not woken", same.Name())
			}
			freed, err := same.ForceUnlock(ctx)
			require.NoError(t, err)
			assert.True(t, freed)
			err = l.Unlock(ctx)
			assert.ErrorIs(t, err, ErrNotHeld)
			assert.NotContains(t, err.Error(), prefix)
		}
		first, second := with.NewLock(b.name+":fenced", Fenced()), without.NewLock(prefix+b.name+":fenced", Fenced())
		var tokens []int64
		for _, l := range []*Lock{first, second, first} {
			require.NoError(t, l.Lock(ctx))
			token, err := l.Token(ctx)
			require.NoError(t, err)
			tokens = append(tokens, token)
			i, err := with.Inspect(ctx, b.name+":fenced")
			require.NoError(t, err)
			assert.Equal(t, b.name+":fenced", i.Name)
			assert.Equal(t, token, i.Token)
			assert.True(t, i.Held())
			require.NoError(t, l.Unlock(ctx))
		}
		assert.IsIncreasing(t, tokens)
	}
}

func TestKeyPrefixIsNoName(t *testing.T) {
	b := newBench(t, testredis.Mini(t).Addr())
	c := b.client(WithKeyPrefix("app:"))
	for _, l := range []Locker{c.NewLock(""), c.NewFairLock(""), c.NewRWLock("").Read()} {
		assert.ErrorContains(t, l.Lock(context.Background()), "the name is empty")
	}
	_, err := c.Inspect(context.Background(), "")
	assert.ErrorIs(t, err, ErrInvalid)
}
