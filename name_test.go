//go:build go1.25

package relock

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// C3: the engine remembers nothing of a name that has no holder and no waiter.
func TestEngineForgetsNamesNotInUse(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		for i := range 1000 {
			b := newFakeLock(e.redis, fmt.Sprint("name", i))
			ok, err := e.acquire(context.Background(), b, 1, request{wait: forever})
			require.NoError(t, err)
			require.True(t, ok)
			require.NoError(t, e.release(context.Background(), b, 1))
		}
		assert.Zero(t, e.names()+e.leases(), "%d names, %d leases are left", e.names(), e.leases())
	})
}
