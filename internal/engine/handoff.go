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
	s, q, r := h.name, h.queue, h.record
	q.policy.HandedOff()
	s.forgetLocked(h)
	h.state, h.count, h.queue = ended, 0, nil
	h.leaveRecordLocked()
	next.queue = q
	if next.lock.Fenced() {
		next.field, next.state, r.adopted = r.field, adopting, true
		r.endLocked()
	} else {
		r.joinLocked(next, now)
		if r.lease.IsLimited() || next.lock.Limits().Max > 0 {
			s.engine.watchdog.Relimit(&r.lease, next.lock.Limits().end(now))
		}
		next.owner.Release()
		next.state = handed
	}
	q.Release()
	return true
}

// successorLocked is the hold that the lock of h may be handed to now, or nil. A level of h is being released.
func (h *hold) successorLocked() (next *hold, now time.Duration) {
	s, q, r := h.name, h.queue, h.record
	e := s.engine
	if s.closed || q == nil || q.First() == nil || !h.state.holds() || h.count > 1 || h.leaseUncertain || r.ended {
		return nil, 0
	}
	next, now = q.First().Value, e.watchdog.Now()
	switch {
	case next == nil, !q.policy.MayHandOff(now, e.pace()):
		return nil, 0
	case h.fieldSent, s.counterpartLocked(h) != nil, s.counterpartLocked(next) != nil:
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
func (s *lockState) admit(op *waitOptions, kind Lock, o Owner, explicit bool) (admitted, error) {
	key, admission := holdKey{kind.ID(), o}, kind.Admission()
	s.Lock()
	defer s.Unlock()
	if s.holds.get(key) != nil || kind.Counterpart() != (LockID{}) && s.holds.get(holdKey{kind.Counterpart(), o}) != nil {
		return admitted{}, nil
	}
	switch {
	case admission == Uncoordinated, admission == Shared && explicit:
		return s.admitFirstLocked(s.newHoldLocked(kind, key, op.changes(kind)), nil), nil
	case admission == Shared:
		return s.shareLocked(op, kind, key)
	case admission == Counting:
		return s.admitCountingLocked(op, kind, key)
	}
	switch q := s.queueLocked(key.id.Half); {
	case q.TryEnter():
		return s.admitFirstLocked(s.newHoldLocked(kind, key, op.changes(kind)), q), nil
	case op.NoWait || explicit:
		return admitted{}, nil
	default:
		return s.enqueueLocked(op, q, s.newHoldLocked(kind, key, op.changes(kind)))
	}
}

// admitCountingLocked is the part of admit for locks that several owners hold, each with a record of its own: callers pass the
// caller in the wait queue until it has found the lock busy, or others wait or go first, because each of them may find
// the lock free.
func (s *lockState) admitCountingLocked(op *waitOptions, kind Lock, key holdKey) (admitted, error) {
	h := s.newHoldLocked(kind, key, nil)
	if op.NoWait {
		return s.admitFirstLocked(h, nil), nil
	}
	q := s.queueLocked(key.id.Half)
	switch {
	case q.TryEnter():
		return s.admitFirstLocked(h, q), nil
	case !q.busy && q.First() == nil && !op.foundBusy && q.policy.Yield(s.engine.watchdog.Now()) == 0:
		return s.admitFirstLocked(h, nil), nil
	}
	return s.enqueueLocked(op, q, h)
}

// admitFirstLocked admits a fresh hold whose wait queue was free, or that needs none.
func (s *lockState) admitFirstLocked(h *hold, q *waitQueue) admitted {
	h.queue, h.field = q, s.engine.newField(h.key.owner)
	return admitted{hold: h}
}

// enqueueLocked waits in q. It lets go of the mutex meanwhile.
func (s *lockState) enqueueLocked(op *waitOptions, q *waitQueue, h *hold) (admitted, error) {
	w := q.Add(h, entrance{s.engine}.number(op))
	err := entrance{s.engine}.awaitLocked(s, op, w)
	switch {
	case h.state == adopting: // checked before err, as below: no other caller can release this hold
		op.span.ends(pathHandoff)
		h.state = fresh
		return admitted{hold: h, adopts: true}, nil
	case h.state != fresh: // it was handed the lock, and may have lost it since
		op.span.ends(pathHandoff)
		if h.state == handed {
			h.state = holding
		}
		if h.state != ended && !h.record.isKeptLocked(s.engine.watchdog.Now()) {
			return s.discardHandoffLocked(h), nil
		}
		return admitted{hold: h, holds: true}, nil
	case err == errOwnerChanged: // the owner holds the other half: no other caller decides on its attempt
		q.Leave(w)
		s.dropQueueLocked(q)
		op.number, op.bypass = w.Number, true
		return admitted{hold: h}, nil
	case err != nil:
		op.sees(q.blocker)
		q.Leave(w)
	case w.Err == errBypassQueue:
		op.number, op.bypass = w.Number, true
		return admitted{hold: h}, nil
	default:
		err = w.Err
	}
	if err != nil {
		s.dropQueueLocked(q)
		h.unlockHoldLocked()
		return admitted{}, err
	}
	h.queue = q
	return admitted{hold: h}, nil
}

// discardHandoffLocked releases a lock that was handed to h. Its trust was over, or nearly so, before the caller of h
// ran again: the process was stopped in between. The caller asks for a hold of its own; the old record is
// cleared meanwhile. discardHandoffLocked lets go of the mutex for a moment.
func (s *lockState) discardHandoffLocked(h *hold) admitted {
	q, shares := h.queue, h.count > 1 // shares: other callers of the owner have re-entered h meanwhile
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
	s.forgetLocked(h)
	if last {
		h.keepUntil = 0 // its caller has not run
		s.oweLocked(duty{clear: h})
	}
	next := &hold{name: s, lock: h.lock, key: h.key, queue: q}
	h.endGuardsLocked(guards)
	if s.holds.get(h.key) != nil {
		next.leaveQueueLocked()
		return admitted{}
	}
	next = s.newHoldLocked(h.lock, h.key, h.changed)
	next.queue = q
	return admitted{hold: next}
}
