package faults

// How long a call waits where go-redis does not know the servers of a Cluster.

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
)

// A redisRefusal is an error with which Redis has answered.
type redisRefusal string

func (e redisRefusal) Error() string { return string(e) }

func (redisRefusal) RedisError() {}

// Redis has answered the question for its servers with an error, and then answers it no more. A call does not wait for
// that on its own goroutine, also not to explain its error.
func TestCallWaitsForTheServersOfAClusterNoLongerThanItsContext(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	hangs := make(chan struct{})
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		ClusterSlots: func(ctx context.Context) ([]redis.ClusterSlot, error) {
			if asked.Add(1) > 1 {
				select {
				case <-ctx.Done():
				case <-hangs:
				}
			}
			return nil, redisRefusal("NOPERM the user may not ask for the slots")
		},
	})
	defer func() { _ = rdb.Close() }()
	c, err := New(rdb, WithLogger(slog.New(slog.DiscardHandler)))
	assert.NoError(t, err)
	defer func() { _ = c.Close() }()
	defer close(hangs)
	l := c.NewLock("x")
	for range 3 {
		ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		began, ended := time.Now(), make(chan error, 1)
		go func() { ended <- l.Lock(ctx) }()
		select {
		case err := <-ended:
			assert.Error(t, err)
		case <-time.After(testredis.Scale(began, 2*time.Second)):
			assert.Fail(t, "the call waits for the servers")
		}
		cancel()
	}
}
