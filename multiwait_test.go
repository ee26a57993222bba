//go:build go1.25

package relock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/send"
)

// A MultiLock takes no longer than its wait, and the least time for an answer, if its last step is not answered. Then the
// first step is free again.
func TestMultiLockOfSeveralStepsKeepsToItsWait(t *testing.T) {
	const wait = 100 * time.Millisecond
	ctx := context.Background()
	lock := func(c *Client) Locker { return c.NewLock("last") }
	redLock := func(c *Client) Locker {
		return c.NewRedLock(lock(c), stubLocker{Locker: c.NewLock("a")}, stubLocker{Locker: c.NewLock("b")})
	}
	tryLock := func(l *MultiLock) (bool, error) { return l.TryLock(ctx, wait, 0) }
	late := func(l *MultiLock) (bool, error) { // when the first step was acquired, the wait is over
		return l.many.acquireInOrder(engine.NewOwner().In(ctx), time.Now(), engine.Request{Wait: wait})
	}
	for name, c := range map[string]struct {
		last     func(c *Client) Locker
		acquire  func(l *MultiLock) (bool, error)
		oneByOne bool
	}{
		"together":               {last: lock, acquire: tryLock},
		"one after the other":    {last: lock, acquire: tryLock, oneByOne: true},
		"late":                   {last: lock, acquire: late},
		"a RedLock":              {last: redLock, acquire: tryLock},
		"a RedLock that is late": {last: redLock, acquire: late},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, 2, func(v *virtual) {
				first, _ := v.client(0)
				last, link := v.client(1, WithRedLockNodeTimeout(time.Minute))
				l := first.NewMultiLock(first.NewLock("first"), c.last(last))
				require.NoError(v, l.Lock(ctx))
				require.NoError(v, l.Unlock(ctx))
				if c.oneByOne {
					defer first.engine.Probe().KeepInUse("first")()
				}
				silent(link, func() {
					start := time.Now()
					ok, err := c.acquire(l)
					assert.False(v, ok)
					assert.Error(v, err)
					assert.LessOrEqual(v, time.Since(start), wait+send.MinWait+10*time.Millisecond)
				})
				ok, err := first.NewLock("first").TryLock(ctx, 0, 0)
				assert.NoError(v, err)
				assert.True(v, ok, "the first lock is free")
				assert.NoError(v, first.NewLock("first").Unlock(ctx))
			})
		})
	}
}
