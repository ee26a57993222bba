package testredis

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
