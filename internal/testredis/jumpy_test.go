package testredis

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestJumpMovesTheWallClockOnly(t *testing.T) {
	t.Parallel()
	s := StartJumpy(t)
	rdb, ctx := s.Client(), context.Background()
	require.NoError(t, rdb.Set(ctx, "key", "value", time.Minute).Err())
	far := func(from time.Duration) bool {
		now, err := rdb.Time(ctx).Result()
		require.NoError(t, err)
		return (time.Until(now) - from).Abs() < 30*time.Second
	}
	s.Jump(-time.Hour)
	assert.True(t, far(-time.Hour), "the clock is an hour back")
	assert.GreaterOrEqual(t, rdb.TTL(ctx, "key").Val(), time.Hour, "TTL an hour back")
	s.Jump(2 * time.Hour)
	assert.True(t, far(time.Hour), "the clock is an hour ahead")
	assert.Zero(t, rdb.Exists(ctx, "key").Val(), "the key an hour ahead")
}
