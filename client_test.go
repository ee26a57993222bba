package relock

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
	for readTimeout, want := range map[time.Duration]bool{0: false, time.Second: true, 1001 * time.Millisecond: false, -1: false} {
		o := redis.UniversalOptions{Addrs: []string{"127.0.0.1:1", "127.0.0.1:2"}, ReadTimeout: readTimeout}
		for _, rdb := range []redis.UniversalClient{redis.NewClient(o.Simple()), redis.NewClusterClient(o.Cluster())} {
			c, err := New(rdb)
			require.NoError(t, err)
			assert.Equal(t, want, answersSoon(rdb), "%T with a read timeout of %v", rdb, readTimeout)
			assert.NoError(t, errors.Join(c.Close(), rdb.Close()))
		}
	}
}
