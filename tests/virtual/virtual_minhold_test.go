//go:build go1.25

package virtual

import (
	"context"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/bubble"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A slowStop is a context of the user that takes a second to end the guards of an Unlock.
type slowStop struct{ context.Context }

func (slowStop) Done() <-chan struct{} { return make(chan struct{}) }

func (slowStop) AfterFunc(func()) (stop func() bool) {
	return func() bool {
		time.Sleep(time.Second)
		return true
	}
}

// The answer to another try of the attempt comes while Unlock ends the guards, so that MinHold does not keep the record
// yet.
func TestLateAnswerBeforeTheReleaseLeavesMinHold(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		c, link := v.Client(0)
		d, _ := v.Client(0)
		start, l, other := time.Now(), c.NewLock("l", MinHold(10*time.Second)), d.NewLock("l")
		link.Set(func(c *bubble.Conditions) { c.Delayed, c.Late = 1, 3*time.Second })
		time.AfterFunc(time.Second/2, func() { link.Set(func(c *bubble.Conditions) { c.Delayed = 0 }) })
		require.NoError(v, l.Lock(ctx))
		time.Sleep(time.Until(start.Add(5 * time.Second / 2)))
		_, err := l.Guard(slowStop{ctx})
		require.NoError(v, err)
		require.NoError(v, l.Unlock(ctx))
		for _, free := range []bool{false, true} {
			time.Sleep(5 * time.Second)
			ok, err := other.TryLock(ctx, 0, 0)
			assert.NoError(v, err)
			assert.Equal(v, free, ok, time.Since(start))
		}
		require.NoError(v, other.Unlock(ctx))
	})
}

// A hold with MinHold that is detached for a moment stays for the rest of it, also once it was attached and released.
func TestMinHoldOfADetachedHold(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		c, _ := v.Client(0)
		began := time.Now()
		hold, err := c.NewLock("l", MinHold(time.Minute)).Acquire(ctx)
		require.NoError(v, err)
		ticket, err := hold.Detach(ctx, time.Millisecond)
		require.NoError(v, err)
		time.Sleep(time.Second)
		hold, err = c.Attach(ctx, ticket)
		require.NoError(v, err)
		require.NoError(v, hold.Release(ctx))
		require.NoError(v, c.NewLock("l").Lock(ctx))
		assert.GreaterOrEqual(v, time.Since(began), time.Minute)
		require.NoError(v, c.NewLock("l").Unlock(ctx))
	})
}

// MaxHold does not begin again when a hold is attached.
func TestMaxHoldOfADetachedHold(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		c, _ := v.Client(0)
		hold, err := c.NewLock("l", MaxHold(time.Minute)).Acquire(ctx)
		require.NoError(v, err)
		time.Sleep(50 * time.Second)
		ticket, err := hold.Detach(ctx, 0)
		require.NoError(v, err)
		hold, err = c.Attach(ctx, ticket)
		require.NoError(v, err)
		time.Sleep(10 * time.Second)
		assert.ErrorIs(v, context.Cause(hold.Context()), ErrMaxHold)
	})
}
