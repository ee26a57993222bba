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
// other. If the lock is a semaphore, more is the number of permits that are still free.
func openLocked(h *hold, more int) {
	q, admission := h.queue, h.lock.Traits().Admission
	if q == nil || admission == contract.Exclusive {
		return
	}
	if admission == contract.Shared {
		shareLocked(h, q)
	}
	if first := q.First(); first != nil { // which asks first, and needs its permits
		more -= first.Value.hold.lock.Traits().Permits()
	}
	h.leaveQueueLocked()
	if admission == contract.Counting {
		q.askTogetherLocked(more)
	}
}

// shareLocked has the waiters of q share the record of h, unless its owner has both halves: then it is a writer, and
// excludes others.
func shareLocked(h *hold, q *waitQueue) {
	r, now := h.record, h.lockState.engine.watchdog.Now()
	if !r.isKeptLocked(now) || h.counterpartLocked() != nil {
		return
	}
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

// askTogetherLocked has the first waiters of a semaphore ask Redis at the same time, as far as the free permits are enough
// for them. If some are left, the semaphore is not busy.
func (q *waitQueue) askTogetherLocked(free int) {
	for _, w := range q.All() {
		if free -= w.Value.hold.lock.Traits().Permits(); free < 0 {
			return
		}
		w.Err = errBypassQueue
		q.Remove(w)
	}
	if free > 0 {
		q.reply = nil
	}
}
