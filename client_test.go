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
	other.engine.sender.BatchAll()
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
			_, batches := c.engine.sender.Mutexes()["batches"]
			assert.Equal(t, row.batches, batches, "batches")
		})
	}
}
