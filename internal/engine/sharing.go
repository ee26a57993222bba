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
func (n *lockState) shareLocked(p *waitOptions, b Lock, key holdKey) (admitted, error) {
	if n.engine.HandoffWindow == 0 || n.closed {
		return admitted{}, nil
	}
	g := n.queueLocked(key.id.Half)
	if r, now := g.shared, n.engine.watchdog.Now(); r != nil && r.isOpenLocked(now) {
		h := n.newHoldLocked(b, key, nil)
		r.joinLocked(h, now)
		h.owner.Release()
		return admitted{hold: h, holds: true}, nil
	}
	g.shared = nil
	switch {
	case p.NoWait: // the caller need not wait for the answer to another caller
		n.dropQueueLocked(g)
		return admitted{}, nil
	case g.TryEnter():
		return n.admitFirstLocked(n.newHoldLocked(b, key, p.changes(b)), g), nil
	}
	return n.enqueueLocked(p, g, n.newHoldLocked(b, key, p.changes(b)))
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
	n, g, r := h.name, h.queue, h.record
	switch {
	case g == nil:
		return
	case h.lock.Admission() == Counting: // the next waiter may find it free, too
		h.leaveQueueLocked()
		if more > g.Len() { // one for each, and one for the next one in front
			g.foundFree()
			g.FailBehind(0, errBypassQueue)
		}
		return
	case h.lock.Admission() != Shared:
		return
	}
	now := n.engine.watchdog.Now()
	if r.isKeptLocked(now) && n.counterpartLocked(h) == nil { // else the owner is a writer too, and no other owner may read
		if r.isOpenLocked(now) {
			g.shared = r
		}
		for _, w := range g.All() {
			if next := w.Value; n.counterpartLocked(next) == nil {
				r.joinLocked(next, now)
				next.owner.Release()
				next.state = handed
				g.Remove(w)
			}
		}
	}
	h.leaveQueueLocked()
}

// endSharingLocked ends the sharing of r with newcomers.
func (n *lockState) endSharingLocked(r *record) {
	if r.first.lock.Admission() != Shared {
		return
	}
	if g := n.findQueueLocked(r.first.lock.ID().Half); g != nil && g.shared == r {
		g.shared = nil
		n.dropQueueLocked(g)
	}
}
