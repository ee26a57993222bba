package locktest

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Types of users that embed those of go-redis.
type (
	OwnClient  struct{ *redis.Client }
	OwnCluster struct{ *redis.ClusterClient }
	OwnRing    struct{ *redis.Ring }
	OwnAny     struct{ redis.UniversalClient }
)

// WithSlots returns a ClusterClient that is told which servers have the slots, and asks no server for that. The client
// of redis.NewFailoverClusterClient is such a client; its Close leaves a goroutine of go-redis behind.
func WithSlots(t testing.TB, nodes func(ctx context.Context) ([]redis.ClusterNode, error)) *redis.ClusterClient {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		RouteRandomly: true,
		ClusterSlots: func(ctx context.Context) ([]redis.ClusterSlot, error) {
			all, err := nodes(ctx)
			return []redis.ClusterSlot{{End: 16383, Nodes: all}}, err
		},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// ClusterClient returns a ClusterClient for the server at addr, which has all slots.
func ClusterClient(t testing.TB, addr string) *redis.ClusterClient {
	return WithSlots(t, func(context.Context) ([]redis.ClusterNode, error) {
		return []redis.ClusterNode{{Addr: addr}}, nil
	})
}

// AutoPipeliner returns the AutoPipeliner of rdb.
func AutoPipeliner(t testing.TB, rdb redis.UniversalClient) *redis.AutoPipeliner {
	auto, err := rdb.AutoPipeline()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, auto.Close()) })
	return auto
}

// HeldQuestion is a hook that counts the questions for the mode of the servers, and holds them back while held is
// locked.
type HeldQuestion struct {
	Counter
	Held  sync.Mutex
	Asked atomic.Int64
}

func (q *HeldQuestion) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "hello" && len(cmd.Args()) == 1 { // that of a new connection names the protocol
			q.Asked.Add(1)
			q.Held.Lock()
			defer q.Held.Unlock()
		}
		return next(ctx, cmd)
	}
}
