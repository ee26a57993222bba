package testredis

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// alert makes a client notice a failover soon.
func alert(o *redis.ClusterOptions) {
	o.ClusterStateReloadInterval = 100 * time.Millisecond
	o.DialerRetries = 1
}

func TestMigrateSlotMovesAllKeys(t *testing.T) {
	t.Parallel() // it mostly waits
	ctx := context.Background()
	c := StartCluster(t, 3, 1)
	client := c.Client()
	for i := range 250 { // more than one MIGRATE moves
		require.NoError(t, client.Set(ctx, fmt.Sprintf("{k}%d", i), i, 0).Err())
	}
	from, to := c.MasterOf("{k}"), c.otherThan(c.MasterOf("{k}"))

	finish := c.BeginMigration("{k}", to)
	assert.Same(t, from, c.MasterOf("{k}"), "the master")
	assert.True(t, redis.HasErrorPrefix(from.Client().Get(ctx, "{k}none").Err(), "ASK"), "a key that is not there")
	assert.NoError(t, client.Set(ctx, "{k}new", "v", 0).Err())
	assert.NoError(t, from.Client().Get(ctx, "{k}7").Err(), "a key that is there")
	finish()

	assert.Same(t, to, c.MasterOf("{k}"), "the master")
	assert.True(t, redis.HasErrorPrefix(from.Client().Get(ctx, "{k}7").Err(), "MOVED"), "the old master")
	for i := range 250 {
		n, err := client.Get(ctx, fmt.Sprintf("{k}%d", i)).Int()
		require.NoError(t, err)
		require.Equal(t, i, n)
	}
	v, err := client.Get(ctx, "{k}new").Result()
	assert.NoError(t, err)
	assert.Equal(t, "v", v)
	c.MigrateSlot("{k}", from) // and back
	assert.Same(t, from, c.MasterOf("{k}"), "the master")
}

// otherThan returns a master other than not.
func (c *Cluster) otherThan(not *Server) *Server {
	for i := 0; ; i++ {
		if m := c.MasterOf(fmt.Sprint(i)); m != not {
			return m
		}
	}
}

func TestClusterFailoverMakesTheReplicaMaster(t *testing.T) {
	t.Parallel() // it mostly waits
	ctx := context.Background()
	c := StartCluster(t, 3, 1)
	client := c.Client(alert)
	old := c.MasterOf("k")
	replica := c.ReplicasOf(old)[0]
	require.NoError(t, client.Set(ctx, "k", "v", 0).Err())
	old.AwaitReplicas("{k}waited", 1)

	assert.Same(t, replica, c.Failover(old), "the master")
	assert.Same(t, replica, c.MasterOf("k"), "the master")
	Await(t, "the client gets to the new master", patience, func() bool { return client.Get(ctx, "k").Val() == "v" })

	old.Restart()
	c.Settle()
	got := c.ReplicasOf(replica)
	require.Len(t, got, 1, "the replicas of the new master")
	assert.Same(t, old, got[0], "the replicas of the new master")
	assert.Same(t, old, c.FailoverAfter(replica, replica.Freeze), "the master")
	replica.Thaw()
	c.Settle()
	assert.Same(t, old, c.MasterOf("k"), "the master")
}
