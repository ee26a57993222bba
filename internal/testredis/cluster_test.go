package testredis

import (
	"context"
	"fmt"
	"slices"
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

func TestStartClusterHasMastersAndReplicas(t *testing.T) {
	t.Parallel() // it mostly waits
	ctx := context.Background()
	c := StartCluster(t, 3, 1, "--maxmemory", "64mb")
	require.Len(t, c.Nodes(), 6)
	require.Len(t, c.Addrs(), 6)
	client := c.Client()
	owners := map[*Server]int{}
	for i := range 300 {
		key := fmt.Sprint("k", i)
		require.NoError(t, client.Set(ctx, key, i, 0).Err())
		if i%10 == 0 {
			owners[c.MasterOf(key)]++
		}
	}
	assert.Len(t, owners, 3, "masters")
	for m, n := range owners {
		assert.GreaterOrEqual(t, n, 3, "keys of a master, of 30")
		replicas := c.ReplicasOf(m)
		require.Len(t, replicas, 1)
		assert.True(t, slices.Contains(c.Nodes(), replicas[0]), "a replica is a node of the cluster")
		assert.Zero(t, owners[replicas[0]], "keys of a replica")
		assert.Equal(t, "67108864", m.Client().ConfigGet(ctx, "maxmemory").Val()["maxmemory"], "maxmemory")
	}
}

func TestStartClusterOfOneHasNoReplicas(t *testing.T) {
	t.Parallel() // it mostly waits
	c := StartCluster(t, 1, 0)
	assert.Same(t, c.Nodes()[0], c.MasterOf("k"), "the master")
	assert.Empty(t, c.ReplicasOf(c.MasterOf("k")), "replicas")
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

// A failover loses the writes that have not reached the replica. WAIT reports for these that no replica has them.
func TestClusterRefusedReplicasLoseWrites(t *testing.T) {
	t.Parallel() // it mostly waits
	ctx := context.Background()
	c := StartCluster(t, 3, 1)
	client := c.Client(alert)
	master := c.MasterOf("k")
	write := func(key string) (replicas int) { return master.Write(key, 1, patience/50) }
	reached := func() bool { return write("{k}kept") == 1 }
	Await(t, "a write reaches the replica", patience, reached)
	master.RefuseReplicas()
	master.AcceptReplicas()
	Await(t, "a write reaches the replica again", patience, reached)
	master.RefuseReplicas()
	assert.Zero(t, write("{k}lost"), "replicas that it reaches")

	c.Failover(master)
	Await(t, "the client gets to the new master", patience, func() bool { return client.Get(ctx, "{k}kept").Val() == "v" })
	assert.ErrorIs(t, client.Get(ctx, "{k}lost").Err(), redis.Nil, "a write that did not reach the replica")
}
