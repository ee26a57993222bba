//go:build go1.25

package virtual

import (
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/bubble"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The owner has x with an explicit lease, and its server falls silent before a TryLock of a MultiLock has y, too. No lock
// is lost, and no error says so: the owner still has x.
func TestMultiLockThatFailsDoesNotTellOfALoss(t *testing.T) {
	for _, wait := range []time.Duration{0, time.Second} {
		locktest.InVirtualTime(t, 2, func(v *locktest.Virtual) {
			owner := ContextWithOwner(ctx)
			c, near := v.Client(0)
			d, far := v.Client(1, WithWatchdogTimeout(2*time.Minute))
			x, y := d.NewLock("x"), c.NewLock("y")
			require.NoError(v, c.NewMultiLock(x, y).Lock(owner)) // the servers know the scripts then
			require.NoError(v, c.NewMultiLock(x, y).Unlock(owner))
			require.NoError(v, x.LockLease(owner, 10*time.Second))
			guarded, err := x.Guard(owner)
			require.NoError(v, err)
			near.Set(func(c *bubble.Conditions) { c.Latency = 50 * time.Millisecond })
			time.AfterFunc(50*time.Millisecond, func() { far.Set(func(c *bubble.Conditions) { c.Held = [2]bool{true, true} }) })
			ok, err := c.NewMultiLock(x, y).TryLock(owner, wait, 0)
			assert.False(v, ok)
			require.NoError(v, guarded.Err(), "x is held")
			assert.NotErrorIs(v, err, ErrLockLost)
			far.Set(func(c *bubble.Conditions) { c.Held = [2]bool{} })
			time.Sleep(time.Minute)
			assert.Zero(v, has(v, "x")+has(v, "y"))
		})
	}
}
