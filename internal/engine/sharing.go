package engine

// Sharing: how the readers of this process share one record in Redis.
//
// Rules: one reader at a time sends requests. When its attempt is granted, the readers that wait behind it in the local
// queue share its record, however long the attempt took. Newcomers share the record too, during the hand-off window
// that begins when the attempt was answered, and while a hold of the record is left. Each reader has a hold of its own,
// and the last hold releases the record. No reader shares a record that is not valid or not renewed by the watchdog,
// nor a record whose owner uses the counterpart of the lock. After the hand-off window the next reader asks Redis, so
// that waiting writers go first.

import (
	"time"

	"github.com/relock-go/relock/internal/contract"
)

// isOpenLocked reports whether newcomers may share r.
func (r *record) isOpenLocked(now time.Duration) bool {
	return now-r.answeredAt < r.first.lockState.engine.pace().Window && r.isKeptLocked(now)
}

// openLocked is called when h was granted its lock by Redis. If readers share the lock, the waiters of its local queue
// join the record of h, and newcomers may join it during the hand-off window. The waiters join even if the window is
// over already: an answer may take longer than the window, and then the waiters would send their requests one after the
// other. If the lock is a semaphore, its caller leaves the queue; more is the number of permits that are still free,
// and if there are enough for all that the waiters want, they all ask Redis at the same time.
func openLocked(h *hold, more int) {
	s, q, r := h.lockState, h.queue, h.record
	switch {
	case q == nil:
		return
	case h.lock.Traits().Admission == contract.Counting: // the next waiter may find a free permit, too
		enough := q.hasEnoughPermits(more) // also for the waiter that is admitted now
		h.leaveQueueLocked()
		if enough {
			q.reply = nil
			q.FailBehind(0, errBypassQueue)
		}
		return
	case h.lock.Traits().Admission != contract.Shared:
		return
	}
	now := s.engine.watchdog.Now()
	if r.isKeptLocked(now) && h.counterpartLocked() == nil { // an owner of both halves is a writer, and excludes others
		if r.isOpenLocked(now) {
			q.shared = r
		}
		for _, w := range q.All() {
			if next := w.Value.hold; next.counterpartLocked() == nil {
				next.handedLocked(r, now)
				q.Remove(w)
			}
		}
	}
	h.leaveQueueLocked()
}

// hasEnoughPermits reports whether a semaphore with this number of free permits has enough for all waiters of q, and at
// least one.
func (q *waitQueue) hasEnoughPermits(free int) bool {
	if free < max(q.Len(), 1) { // each of them wants at least one
		return false
	}
	for _, w := range q.All() {
		free -= w.Value.hold.lock.Traits().Permits()
	}
	return free >= 0
}
