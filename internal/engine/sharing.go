package engine

// Sharing: how readers of this process have one record in Redis together.
//
// Rules: one contender of a name goes to Redis. When its attempt is granted, the waiters behind it
// in the wait queue share its record, however long the attempt took. Newcomers share the record too, for
// a slice, while a hold of the record is left. Each reader has a hold of its own; the
// last hold releases the record. No caller shares a record that is not trusted and
// kept by the watchdog, nor a record whose owner uses the other half of the lock. After the slice
// the next contender asks Redis, so that waiting writers go first.

import "time"

// shareLocked is the part of admit for locks that several owners hold together.
func (s *lockState) shareLocked(op *waitOptions, kind Lock, key holdKey) (admitted, error) {
	if s.engine.HandoffWindow == 0 || s.closed {
		return admitted{}, nil
	}
	q := s.queueLocked(key.id.Half)
	if r, now := q.shared, s.engine.watchdog.Now(); r != nil && r.isOpenLocked(now) {
		h := s.newHoldLocked(kind, key, nil)
		r.joinLocked(h, now)
		h.owner.Release()
		return admitted{hold: h, holds: true}, nil
	}
	q.shared = nil
	switch {
	case op.NoWait: // the caller need not wait for the answer to another caller
		s.dropQueueLocked(q)
		return admitted{}, nil
	case q.TryEnter():
		return s.admitFirstLocked(s.newHoldLocked(kind, key, op.changes(kind)), q), nil
	}
	return s.enqueueLocked(op, q, s.newHoldLocked(kind, key, op.changes(kind)))
}

// isOpenLocked reports whether newcomers may share r.
func (r *record) isOpenLocked(now time.Duration) bool {
	return now-r.since < r.first.name.engine.pace().Window && r.isKeptLocked(now)
}

// openLocked lets the waiters in the wait queue of h share its record, and newcomers too while the record is young. The
// waiters share also an older record, because h asked for them: a request may take longer than a slice, and then one
// waiter after the other would send a request of its own. Where a counted lock is free for all waiters, they ask at the
// same time.
func (h *hold) openLocked(more int) {
	s, q, r := h.name, h.queue, h.record
	switch {
	case q == nil:
		return
	case h.lock.Admission() == Counting: // the next waiter may find it free, too
		h.leaveQueueLocked()
		if more > q.Len() { // one for each, and one for the next one in front
			q.foundFree()
			q.FailBehind(0, errBypassQueue)
		}
		return
	case h.lock.Admission() != Shared:
		return
	}
	now := s.engine.watchdog.Now()
	if r.isKeptLocked(now) && s.counterpartLocked(h) == nil { // else the owner is a writer too, and no other owner may read
		if r.isOpenLocked(now) {
			q.shared = r
		}
		for _, w := range q.All() {
			if next := w.Value; s.counterpartLocked(next) == nil {
				r.joinLocked(next, now)
				next.owner.Release()
				next.state = handed
				q.Remove(w)
			}
		}
	}
	h.leaveQueueLocked()
}

// endSharingLocked ends the sharing of r with newcomers.
func (s *lockState) endSharingLocked(r *record) {
	if r.first.lock.Admission() != Shared {
		return
	}
	if q := s.findQueueLocked(r.first.lock.ID().Half); q != nil && q.shared == r {
		q.shared = nil
		s.dropQueueLocked(q)
	}
}
