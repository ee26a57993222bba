package discover

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
)

func TestMain(m *testing.M) { testredis.Main(m, "discover").Run() }

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

// A broken is a hook under which every SCAN fails that does not begin a pass for keys of one type.
type broken struct{}

var errBroken = errors.New("the connection is broken")

func (broken) DialHook(next redis.DialHook) redis.DialHook { return next }

func (broken) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "scan" && fmt.Sprint(cmd.Args()[1]) != "0" {
			cmd.SetErr(errBroken)
			return errBroken
		}
		return next(ctx, cmd)
	}
}

func (broken) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A step that fails returns what its requests have found before, and the next one begins another pass.
func TestFailedStepReturnsTheNamesThatItHasFound(t *testing.T) {
	ctx, rdb := context.Background(), testredis.Start(t).Client()
	const locks = 5 * atOnce
	_, err := rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range locks {
			p.HSet(ctx, fmt.Sprint("lock:", i), uuid.NewString()+":7:1", 1)
		}
		return nil
	})
	require.NoError(t, err)
	rdb.AddHook(broken{})
	scan := NewScan(rdb, "*", nil)
	for range 2 {
		names, done, err := scan.Step(ctx, math.MaxInt)
		require.ErrorIs(t, err, errBroken)
		assert.False(t, done)
		assert.NotEmpty(t, names)
		assert.Less(t, len(names), locks)
	}
}
