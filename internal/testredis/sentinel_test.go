package testredis

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestStartSentinelHasAPrimaryAndReplicas(t *testing.T) {
	t.Parallel() // it mostly waits
	ctx := context.Background()
	s := StartSentinel(t, 2, "--maxmemory", "64mb")
	assert.Len(t, s.Addrs(), 3)
	assert.Len(t, s.Sentinels(), 3)
	master := s.Master()
	replicas := s.Replicas()
	assert.Len(t, replicas, 2)
	assert.False(t, slices.Contains(replicas, master), "the primary is no replica")
	for _, server := range append(replicas, master) {
		assert.Equal(t, "67108864", server.Client().ConfigGet(ctx, "maxmemory").Val()["maxmemory"], "maxmemory")
	}
	c := s.Client(func(o *redis.FailoverOptions) { o.ClientName = "me" })
	require.NoError(t, c.Set(ctx, "k", "v", 0).Err())
	assert.Equal(t, "me", c.ClientGetName(ctx).Val(), "the client is called")
	for _, r := range replicas {
		direct := r.Client()
		Await(t, "it gets to the replica", patience, func() bool { return direct.Get(ctx, "k").Val() == "v" })
	}
	s.Sentinels()[0].Kill()
	assert.Same(t, master, s.Master(), "the primary without one sentinel")
	s.Sentinels()[0].Restart() // its state is in a file
	s.Settle()
}

func TestSentinelFailoverMakesTheReplicaPrimary(t *testing.T) {
	t.Parallel() // it mostly waits
	ctx := context.Background()
	s := StartSentinel(t, 1)
	c := s.Client()
	old, replica := s.Master(), s.Replicas()[0]
	require.NoError(t, c.Set(ctx, "k", "v", 0).Err())
	old.AwaitReplicas("waited", 1)
	assert.Same(t, replica, s.Failover(), "the primary")
	assert.Same(t, replica, s.Master(), "the primary")
	Await(t, "the client gets to the new primary", patience, func() bool { return c.Get(ctx, "k").Val() == "v" })

	old.Restart()
	s.Settle()
	primary, got := s.Master(), s.Replicas() // on a busy machine the sentinels may have changed their minds
	require.Len(t, got, 1, "the replicas of the new primary")
	assert.ElementsMatch(t, []*Server{old, replica}, []*Server{primary, got[0]})
	assert.Same(t, got[0], s.FailoverAfter(primary.Freeze), "the primary")
	primary.Thaw()
	s.Settle()
	require.Len(t, s.Replicas(), 1, "the one that was frozen follows")
}

// Both of two replicas are cut off.
func TestSentinelRefusedReplicasLoseWrites(t *testing.T) {
	t.Parallel() // it mostly waits
	ctx := context.Background()
	s := StartSentinel(t, 2)
	c := s.Client()
	master := s.Master()
	write := func(key string, timeout time.Duration) (replicas int) { return master.Write(key, 2, timeout) }
	require.Equal(t, 2, write("kept", patience), "replicas that it reaches")
	master.RefuseReplicas()
	assert.Zero(t, write("lost", time.Millisecond), "replicas that it reaches")
	s.Failover()
	Await(t, "the client gets to the new primary", patience, func() bool { return c.Get(ctx, "kept").Val() == "v" })
	assert.ErrorIs(t, c.Get(ctx, "lost").Err(), redis.Nil, "a write that reached no replica")
	master.Restart()
	s.Settle()
}
