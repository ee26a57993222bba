//go:build go1.25

package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/tenancy"
)

// A duty is noted when the state changes, and is not begun before the lock state is unlocked. So this test needs no
// Redis, no clock and no goroutine to look at the state.
func TestChangesOfStateBeginNothing(t *testing.T) {
	s := &lockState{engine: new(Engine), name: "x"} // this engine could begin nothing
	s.retainMore()
	q := s.queueLocked("")
	q.place = &place{field: &tenancy.Field{ID: "a"}}
	q.place.field.PassOn(2)
	assert.True(t, q.TryEnter())
	s.dropQueueLocked(q)
	assert.Nil(t, s.duties, "the queue is used")

	q.Release()
	s.keepQueueLocked(q)
	s.keepQueueLocked(q)
	s.dropQueueLocked(q)
	s.dropQueueLocked(q)
	keep := &duty{keep: q, lockState: s}
	first := contract.Attempt{Field: "a", HoldCount: 1}
	assert.Equal(t, &duty{attempt: first, unknown: 2, lockState: s, before: keep}, s.duties,
		"the queue is kept once, and its place given up once")
	assert.Same(t, q, s.findQueueLocked(""), "it is kept")

	s.duties, q.kept = nil, false
	s.dropQueueLocked(q)
	assert.Nil(t, s.duties)
	assert.Nil(t, s.findQueueLocked(""))
}

// All duties are begun when the lock state is unlocked, each once.
func TestUnlockBeginsWhatIsDueOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		s := e.retain("x")
		defer s.release()
		h := s.find(newFakeLock(e.redis, "x").Traits().ID, 1)
		s.locked(func() {
			s.oweLocked(duty{rollBack: h.commands(), attempt: contract.Attempt{Field: "gone", HoldCount: 1}})
			s.oweLocked(duty{rollBack: h.commands(), attempt: contract.Attempt{Field: "gone, too", HoldCount: 1}})
			synctest.Wait()
			assert.Zero(t, e.redis.Count("release"))
		})
		s.locked(func() { assert.Nil(t, s.duties) })
		time.Sleep(time.Minute) // longer than a rollback takes
		assert.Equal(t, 2, e.redis.Count("release"))
		e.unlock(1)
	})
}
