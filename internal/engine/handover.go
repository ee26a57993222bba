package engine

// Handover: how a lock passes from one goroutine of this process to the next without
// a round trip.
//
// Rules: a holder that unlocks hands the lock to the first waiter in the wait queue, which holds the lock
// from that moment on. This needs a record that is valid and kept by the watchdog, and a young streak of
// this process (internal/turns). A waiter that needs a fencing token takes the record over with an attempt of its own.

import (
	"time"

	"github.com/relock-go/relock/internal/guard"
)

// handOffLocked hands the lock of h, one level of which is being released, to the first waiter if
// that waiter can have the lock, and reports whether it did.
func (h *hold) handOffLocked() bool {
	next, now := h.successorLocked()
	if next == nil || len(h.guards) > 0 { // guards that were made while earlier ones were ended: a real release ends them
		return false
	}
	n, g, r := h.name, h.queue, h.record
	g.policy.HandedOff()
	n.forgetLocked(h)
	h.state, h.count, h.queue = ended, 0, nil
	h.leaveRecordLocked()
	next.queue = g
	if next.lock.Fenced() {
		next.field, next.state, r.adopted = r.field, adopting, true
		r.endLocked()
	} else {
		r.joinLocked(next, now)
		if r.lease.IsLimited() || next.lock.Limits().Max > 0 {
			n.engine.watchdog.Relimit(&r.lease, next.lock.Limits().end(now))
		}
		next.owner.Release()
		next.state = handed
	}
	g.Release()
	return true
}

// successorLocked is the hold that the lock of h may be handed to now, or nil. A level of h is being released.
func (h *hold) successorLocked() (next *hold, now time.Duration) {
	n, g, r := h.name, h.queue, h.record
	e := n.engine
	if n.closed || g == nil || g.First() == nil || !h.state.holds() || h.count > 1 || h.leaseUncertain || r.ended {
		return nil, 0
	}
	next, now = g.First().Value, e.watchdog.Now()
	switch {
	case next == nil, !g.policy.MayHandOff(now, e.pace()):
		return nil, 0
	case h.fieldSent, n.counterpartLocked(h) != nil, n.counterpartLocked(next) != nil:
		return nil, 0 // an attempt on the other half by this field would be granted beside the successor
	case h.keepUntil > now:
		return nil, 0
	case !e.watchdog.Renews(&r.lease), !r.isKeptLocked(now), r.lease.LeftAt(now) > next.lock.Limits().cut(e.WatchdogTimeout):
		return nil, 0 // an explicit lease belongs to its owner alone
	case r.lease.EndsAtLimit() && r.lease.LeftAt(now) < next.lock.Limits().cut(e.WatchdogTimeout)/3:
		return nil, 0 // too little is left until the first renewal for the successor
	}
	return next, now
}

// An admitted says how a caller of one lock was admitted past the other callers of this process. The zero
// value is for callers that no lock can be handed to, for example because they want an explicit lease.
type admitted struct {
	hold   *hold // of the caller, with its owner mutex unless holds is set; or nil
	holds  bool  // the lock was handed over or shared: the caller need not ask Redis
	adopts bool  // the record of the holder before was left to hold: an attempt has to take it
}

// admit is where most callers of a hot lock wait. They want one level of one lock, which another
// goroutine of this process holds or contends for.
func (n *lockState) admit(p *waitOptions, b Lock, o Owner, explicit bool) (admitted, error) {
	key, admission := holdKey{b.ID(), o}, b.Admission()
	n.Lock()
	defer n.Unlock()
	if n.holds.get(key) != nil || b.Counterpart() != (LockID{}) && n.holds.get(holdKey{b.Counterpart(), o}) != nil {
		return admitted{}, nil
	}
	switch {
	case admission == Uncoordinated, admission == Shared && explicit:
		return n.admitFirstLocked(n.newHoldLocked(b, key, p.changes(b)), nil), nil
	case admission == Shared:
		return n.shareLocked(p, b, key)
	case admission == Counting:
		return n.admitCountingLocked(p, b, key)
	}
	switch g := n.queueLocked(key.id.Half); {
	case g.TryEnter():
		return n.admitFirstLocked(n.newHoldLocked(b, key, p.changes(b)), g), nil
	case p.NoWait || explicit:
		return admitted{}, nil
	default:
		return n.enqueueLocked(p, g, n.newHoldLocked(b, key, p.changes(b)))
	}
}

// admitCountingLocked is the part of admit for locks that several owners hold, each with a record of its own: callers pass the
// caller in the wait queue until it has found the lock busy, or others wait or go first, because each of them may find
// the lock free.
func (n *lockState) admitCountingLocked(p *waitOptions, b Lock, key holdKey) (admitted, error) {
	h := n.newHoldLocked(b, key, nil)
	if p.NoWait {
		return n.admitFirstLocked(h, nil), nil
	}
	g := n.queueLocked(key.id.Half)
	switch {
	case g.TryEnter():
		return n.admitFirstLocked(h, g), nil
	case !g.busy && g.First() == nil && !p.foundBusy && g.policy.Yield(n.engine.watchdog.Now()) == 0:
		return n.admitFirstLocked(h, nil), nil
	}
	return n.enqueueLocked(p, g, h)
}

// admitFirstLocked admits a fresh hold whose wait queue was free, or that needs none.
func (n *lockState) admitFirstLocked(h *hold, g *waitQueue) admitted {
	h.queue, h.field = g, n.engine.newField(h.key.owner)
	return admitted{hold: h}
}

// enqueueLocked waits in g. It lets go of the mutex meanwhile.
func (n *lockState) enqueueLocked(p *waitOptions, g *waitQueue, h *hold) (admitted, error) {
	w := g.Add(h, entrance{n.engine}.number(p))
	err := entrance{n.engine}.awaitLocked(n, p, w)
	switch {
	case h.state == adopting: // checked before err, as below: no other caller can release this hold
		p.span.ends(pathHandoff)
		h.state = fresh
		return admitted{hold: h, adopts: true}, nil
	case h.state != fresh: // it was handed the lock, and may have lost it since
		p.span.ends(pathHandoff)
		if h.state == handed {
			h.state = holding
		}
		if h.state != ended && !h.record.isKeptLocked(n.engine.watchdog.Now()) {
			return n.discardHandoffLocked(h), nil
		}
		return admitted{hold: h, holds: true}, nil
	case err == errOwnerChanged: // the owner holds the other half: no other caller decides on its attempt
		g.Leave(w)
		n.dropQueueLocked(g)
		p.number, p.bypass = w.Number, true
		return admitted{hold: h}, nil
	case err != nil:
		p.sees(g.blocker)
		g.Leave(w)
	case w.Err == errBypassQueue:
		p.number, p.bypass = w.Number, true
		return admitted{hold: h}, nil
	default:
		err = w.Err
	}
	if err != nil {
		n.dropQueueLocked(g)
		h.unlockHoldLocked()
		return admitted{}, err
	}
	h.queue = g
	return admitted{hold: h}, nil
}

// discardHandoffLocked releases a lock that was handed to h. Its trust was over, or nearly so, before the caller of h
// ran again: the process was stopped in between. The caller asks for a hold of its own; the old record is
// cleared meanwhile. discardHandoffLocked lets go of the mutex for a moment.
func (n *lockState) discardHandoffLocked(h *hold) admitted {
	g, shares := h.queue, h.count > 1 // shares: other callers of the owner have re-entered h meanwhile
	last, guards := true, []*guard.End(nil)
	if h.state.isLost() {
		h.count--
	} else {
		_, last, guards = h.endOneLocked()
	}
	if shares {
		return admitted{}
	}
	h.queue = nil
	n.forgetLocked(h)
	if last {
		h.keepUntil = 0 // its caller has not run
		n.oweLocked(duty{clear: h})
	}
	next := &hold{name: n, lock: h.lock, key: h.key, queue: g}
	h.endGuardsLocked(guards)
	if n.holds.get(h.key) != nil {
		next.leaveQueueLocked()
		return admitted{}
	}
	next = n.newHoldLocked(h.lock, h.key, h.changed)
	next.queue = g
	return admitted{hold: next}
}
