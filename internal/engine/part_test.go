//go:build go1.25

package engine

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/waitgroup"
)

// Two RedLocks of one owner find that its own hold on a node was lost, one after the other. The hold is set aside once,
// and the owner gets its loss.
func TestLostHoldIsSetAsideOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		s, l := e.retain("x"), newFakeLock(e.redis, "x")
		defer s.release()
		e.lock(1)
		h := s.find(l.traits.ID, 1)
		assert.NoError(t, h.enterHold(nil))
		e.redis.Set(func() { delete(e.redis.Records, "x") })
		h.lose(errGone)
		var acquired sync.WaitGroup
		parts := [2]Part{}
		for i := range parts {
			waitgroup.Go(&acquired, func() {
				ok, err := e.acquire(parts[i].In(context.Background()), l, 1, Request{Wait: forever})
				assert.NoError(t, err)
				assert.True(t, ok)
			})
		}
		synctest.Wait() // both wait for the owner mutex
		h.unlockHold()
		acquired.Wait()
		assert.ErrorIs(t, e.unlockErr(1), ErrLockLost, "the owner gets its loss")
		for i := range parts {
			assert.NoError(t, e.Release(parts[i].In(context.Background()), l, 1))
		}
		s.locked(func() { assert.Zero(t, s.holds.aside, "holds that were set aside are left") })
		e.lock(1)
		e.unlock(1)
	})
}
