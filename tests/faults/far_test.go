package faults

// Many goroutines over a Redis that is far: their requests share connections, also after all of these have failed.

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
)

// By themselves, 20 connections would answer 250 requests a second: the sections would take more than twelve seconds, and
// renewals would find no connection.
func TestManyGoroutinesFarFromRedisRecoverFromACut(t *testing.T) {
	t.Parallel()
	p := testredis.NewProxy(t, testredis.Start(t).Addr())
	p.Latency(40 * time.Millisecond)
	rdb := p.Client(func(o *redis.Options) { o.PoolSize = 20 })
	c, err := New(rdb, WithWatchdogTimeout(6*time.Second))
	require.NoError(t, err)
	defer c.Close()
	ctx := context.Background()
	held := c.NewLock("held")
	require.NoError(t, held.Lock(ctx))
	begin := time.Now()
	time.AfterFunc(time.Second/2, p.CutAll)
	var all sync.WaitGroup
	for i := range 400 {
		waitgroup.Go(&all, func() {
			for n := 0; n < 4 || time.Since(begin) < time.Second; n++ {
				l := c.NewLock(strconv.Itoa(i))
				if assert.NoError(t, l.Lock(ctx)) {
					assert.NoError(t, l.Unlock(ctx))
				}
			}
		})
	}
	all.Wait()
	assert.Less(t, time.Since(begin), 8*time.Second)
	assert.NoError(t, held.Unlock(ctx))
}
