//go:build go1.25

package virtual

import (
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An owner holds the read lock, and one of its goroutines waits for the write lock, because another process reads. Another
// goroutine of the owner, whose time is up, is told that the lock is busy, and not that Redis does not answer.
func TestGoroutineBehindAnUpgradeIsToldBusy(t *testing.T) {
	locktest.InVirtualTime(t, 1, func(v *locktest.Virtual) {
		c, _ := v.Client(0)
		other, _ := v.Client(0)
		owner := ContextWithOwner(ctx)
		rw := c.NewRWLock("l")
		require.NoError(v, other.NewRWLock("l").Read().Lock(ctx))
		require.NoError(v, rw.Read().Lock(owner))
		go func() { _ = rw.Write().Lock(owner) }()
		time.Sleep(time.Second)
		for _, wait := range []time.Duration{0, 300 * time.Millisecond} {
			began := time.Now()
			ok, err := rw.Write().TryLock(owner, wait, 0)
			assert.NoError(v, err)
			assert.False(v, ok)
			assert.Less(v, time.Since(began), wait+50*time.Millisecond)
		}
	})
}
