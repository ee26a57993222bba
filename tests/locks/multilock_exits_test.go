package locks

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A hook of the second Client ends the goroutine of its request: no call of the MultiLock tells of a success there.
func TestMultiLockIsNotToldASuccessByAHookThatEndsTheGoroutine(t *testing.T) {
	one, two := testredis.Start(t), testredis.Start(t)
	b := locktest.NewBench(t, one.Addr(), two.Addr())
	rdb := testredis.Client(t, two.Addr(), func(o *redis.Options) { o.ReadTimeout = 500 * time.Millisecond })
	var exits atomic.Bool
	rdb.AddHook(locktest.ProcessHook(func(send func() error) error {
		if exits.Load() {
			runtime.Goexit()
		}
		return send()
	}))
	c, far := b.Client(), b.ClientOn(rdb)
	l := c.NewMultiLock(c.NewLock("a"), far.NewLock("b"))
	h, ok, err := l.TryAcquire(ctx, 0, 3*time.Second)
	require.NoError(t, err)
	require.True(t, ok)
	exits.Store(true)
	err = h.Extend(ctx, time.Hour)
	assert.Error(t, err, "Extend, and b was not extended")
	_, err = c.NewMultiLock(c.NewLock("z0"), far.NewLock("z1")).IsLocked(ctx)
	assert.Error(t, err, "IsLocked, and the server of z1 was not asked")
	assert.Error(t, h.Release(ctx), "Release, and b was not released")
	exits.Store(false)
	b.FreeSoon()
}
