package locktest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/record"
	"github.com/stretchr/testify/require"
)

// NewSemaphore returns a semaphore with one permit, which excludes as a lock does.
func NewSemaphore(c *relock.Client, name string) relock.Locker { return c.NewSemaphore(name, 1) }

// OnlyFree reports whether key belongs to a semaphore of which no permit is held. Its counter is never deleted, and
// expired permits stay until the next call.
func OnlyFree(rdb redis.UniversalClient, key string) bool {
	ctx, taken := context.Background(), key
	if !strings.HasSuffix(key, ":timeout") {
		if _, err := rdb.Get(ctx, key).Int(); err != nil || strings.HasPrefix(key, "redisson_") ||
			strings.Contains(key, ":rwlock_timeout:") {
			return false
		}
		taken = record.PermitsKey(key)
	}
	held, err := rdb.ZCount(ctx, taken, fmt.Sprint(time.Now().UnixMilli()), "+inf").Result()
	return err == nil && held == 0
}

// Permits checks the total of free and held permits, and returns how many are free.
func (b *Bench) Permits(want int) (free int) {
	b.Helper()
	ctx := context.Background()
	var counter *redis.StringCmd
	var taken *redis.IntCmd
	_, err := b.Rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
		counter, taken = p.Get(ctx, b.LockName), p.ZCard(ctx, record.PermitsKey(b.LockName))
		return nil
	})
	b.Must(err)
	free, err = counter.Int()
	b.Must(err)
	require.Equal(b, want, free+int(taken.Val()), "permits, of which %d are free", free)
	return free
}
