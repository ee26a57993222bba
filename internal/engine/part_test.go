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
		e.deleteRecord()
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

// Two Unlocks of a RedLock, of which only one has something to release at the node, wait for the owner mutex: the second
// one releases neither what the owner has acquired by itself, nor what another RedLock has.
func TestPartReleasesWhatItHasAcquired(t *testing.T) {
	for name, own := range map[string]bool{"beside the owner": true, "beside another Part": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				l, other, p := newFakeLock(e.redis, "x"), new(Part), new(Part)
				kept := other.In(context.Background())
				if own {
					kept = context.Background()
				}
				for _, ctx := range []context.Context{kept, p.In(context.Background())} {
					ok, err := e.acquire(ctx, l, 1, Request{Wait: forever})
					assert.NoError(t, err)
					assert.True(t, ok)
				}
				h, _ := e.holdBy(l.traits.ID, 1)
				assert.NoError(t, h.enterHold(nil))
				errs := make(chan error, 2)
				for range 2 {
					go func() { errs <- e.Release(p.In(context.Background()), l, 1) }()
				}
				synctest.Wait() // both wait for the owner mutex
				h.unlockHold()
				assert.ElementsMatch(t, []bool{true, false}, []bool{<-errs == nil, <-errs == nil}, "one releases, and one finds nothing")
				assert.Equal(t, 1, holdCountOf(e.Engine, l, 1), "the hold count that is left")
				e.assertHeld("the lock is released")
				assert.NoError(t, e.Release(kept, l, 1))
			})
		})
	}
}
