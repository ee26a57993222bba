package discover

import (
	"context"
	"math"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
)

// The locks of a Redis client behind a type of the user are found, on all masters of a Cluster.
func TestScanFindsLocksThroughEveryType(t *testing.T) {
	ctx := context.Background()
	cluster, one := testredis.StartCluster(t, 3, 0).Client(), testredis.Start(t).Client()
	for _, rdb := range []redis.UniversalClient{
		one, struct{ *redis.Client }{one}, struct{ redis.UniversalClient }{one},
		cluster, struct{ *redis.ClusterClient }{cluster}, &struct{ redis.UniversalClient }{cluster},
	} {
		c, err := relock.New(rdb)
		require.NoError(t, err)
		owner, want := relock.ContextWithOwner(ctx), []string{"a", "b", "c", "d", "e"}
		for _, name := range want {
			require.NoError(t, c.NewLock(name).Lock(owner))
		}
		names, done, err := NewScan(rdb, "*", nil).Step(ctx, math.MaxInt)
		assert.NoError(t, err, "%T", rdb)
		assert.True(t, done, "%T", rdb)
		assert.Equal(t, want, names, "%T", rdb)
		for _, name := range want {
			require.NoError(t, c.NewLock(name).Unlock(owner))
		}
		require.NoError(t, c.Close())
	}
	auto, err := one.AutoPipeline()
	require.NoError(t, err)
	defer auto.Close()
	_, _, err = NewScan(auto, "*", nil).Step(ctx, 1)
	assert.Error(t, err, "no server of an AutoPipeliner is known")
}
