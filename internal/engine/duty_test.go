//go:build go1.25

package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// What follows from a change of state is noted, and not begun, until the name is unlocked: the state is looked at here
// without Redis, without time, and without a goroutine.
func TestChangesOfStateBeginNothing(t *testing.T) {
	n := &lockState{engine: new(Engine), text: "x"} // it could begin nothing
	n.retainMore()
	q := n.queueLocked("")
	q.place = &place{field: "a", unknown: 2}
	assert.True(t, q.TryEnter())
	n.dropQueueLocked(q)
	assert.Nil(t, n.due, "the queue is used")

	q.Release()
	n.keepQueueLocked(q)
	n.keepQueueLocked(q)
	n.dropQueueLocked(q)
	n.dropQueueLocked(q)
	keep := &duty{keep: q, name: n}
	assert.Equal(t, &duty{attempt: Attempt{Field: "a", HoldCount: 1}, unknown: 2, name: n, before: keep}, n.due,
		"the queue is kept once, and its place given up once")
	assert.Same(t, q, n.findQueueLocked(""), "it is kept")

	n.due, q.kept = nil, false
	n.dropQueueLocked(q)
	assert.Nil(t, n.due)
	assert.Nil(t, n.findQueueLocked(""))
}

// All that is due begins when the name is unlocked, and once.
func TestUnlockBeginsWhatIsDueOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		n := e.retain("x")
		defer n.release()
		h := n.find(newFakeLock(e.redis, "x").ID(), 1)
		n.locked(func() {
			n.oweLocked(duty{rollBack: h.commands(), attempt: Attempt{Field: "gone", HoldCount: 1}})
			n.oweLocked(duty{rollBack: h.commands(), attempt: Attempt{Field: "gone, too", HoldCount: 1}})
			synctest.Wait()
			assert.Zero(t, e.redis.Count("release"))
		})
		n.locked(func() { assert.Nil(t, n.due) })
		time.Sleep(time.Minute) // longer than an undo takes
		assert.Equal(t, 2, e.redis.Count("release"))
		e.unlock(1)
	})
}
