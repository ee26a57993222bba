//go:build go1.25

package virtual

// Forced releases of locks that are held by this process.

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

// ForceUnlock of a RedLock that this process holds, on servers that answer well within the node timeout.
func TestForceUnlockOfOwnRedLock(t *testing.T) {
	locktest.InVirtualTime(t, 3, func(v *locktest.Virtual) {
		ctx := ContextWithOwner(ctx)
		clients, links, locks := nodes(v)
		l := clients[0].NewRedLock(locks...)
		require.NoError(v, l.Lock(ctx))
		_, err := l.ForceUnlock(ctx) // Redis has the scripts then
		require.NoError(v, err)
		_ = l.Unlock(ctx)
		for _, link := range links {
			link.Set(func(c *bubble.Conditions) { c.Latency = 75 * time.Millisecond }) // a round trip is 150ms, of 200ms
		}
		require.NoError(v, l.Lock(ctx))
		freed, err := l.ForceUnlock(context.Background())
		assert.NoError(v, err)
		assert.True(v, freed)
	})
}
