package engine

// Admission: how a caller gets past the other callers of its process, or gets the lock from one of them.
//
// Rules: a caller leaves with the lock, with a hold to ask Redis for, or with an error. A hold that the lock was handed
// off to is used or given up, whatever else has ended the wait of its caller.

import (
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/guard"
	"github.com/relock-go/relock/internal/tenancy"
)

// An admitted is the result of admit: how the caller of one lock was admitted among the callers of this process. The
// zero value tells the caller to get its hold from lockHold: its owner has one already, or the lock cannot be handed
// off to the caller now, for example because it wants an explicit lease.
type admitted struct {
	hold   *hold // of the caller, which has its owner mutex unless holds is set; or nil
	holds  bool  // the caller holds the lock: it was handed off, or a record is shared, and no request is needed
	adopts bool  // the previous holder has left its record to hold, which has to adopt it by an attempt
}

// admitUnlocking admits the caller among the callers of this process that want the same lock. Most callers of a
// contended lock wait here, while another goroutine of this process holds the lock or contends for it.
func (s *lockState) admitUnlocking(op *waitOptions, kind contract.Lock, o Owner, explicit bool) (admitted, error) {
	key, admission := holdKey{kind.Traits().ID.Half, o}, kind.Traits().Admission
	other := kind.Traits().Counterpart
	if s.holdOfLocked(key, op.part, true) != nil ||
		other != (contract.LockID{}) && s.holds.get(holdKey{other.Half, o}) != nil {
		return admitted{}, nil
	}
	switch {
	case admission == contract.Uncoordinated, admission == contract.Shared && explicit:
		return s.admitFirstLocked(s.newHoldLocked(kind, key, op.changes(kind)), nil), nil
	case admission == contract.Shared:
		return s.shareUnlocking(op, kind, key)
	case admission == contract.Counting:
		return s.admitCountingUnlocking(op, kind, key)
	}
	switch q := s.queueLocked(key.half); {
	case q.TryEnter():
		return s.admitFirstLocked(s.newHoldLocked(kind, key, op.changes(kind)), q), nil
	case op.NoWait || explicit:
		return admitted{}, nil
	default:
		return s.enqueueUnlocking(op, q, s.newHoldLocked(kind, key, op.changes(kind)))
	}
}

// admitCountingUnlocking is the part of admit for semaphores, which several owners hold, each with a record of its own.
// Any caller may find a free permit, so as a rule a caller bypasses the local queue. It waits in the queue if it or the
// admitted caller has found the semaphore busy, if others wait there, or if other processes go first.
func (s *lockState) admitCountingUnlocking(op *waitOptions, kind contract.Lock, key holdKey) (admitted, error) {
	h := s.newHoldLocked(kind, key, nil)
	if op.NoWait {
		return s.admitFirstLocked(h, nil), nil
	}
	q := s.queueLocked(key.half)
	switch {
	case q.TryEnter():
		return s.admitFirstLocked(h, q), nil
	case !q.busy && q.First() == nil && !op.foundBusy && q.policy.Yield(s.engine.watchdog.Now()) == 0:
		return s.admitFirstLocked(h, nil), nil
	}
	return s.enqueueUnlocking(op, q, h)
}

// admitFirstLocked admits a fresh hold that has entered its local queue q without waiting, or needs no queue (q is
// nil).
func (s *lockState) admitFirstLocked(h *hold, q *waitQueue) admitted {
	h.queue = q
	h.newField()
	return admitted{hold: h}
}

// enqueueUnlocking waits in q with the fresh hold h, until q admits h, until h gets the lock by a hand-off or a shared
// record, or until the wait ends otherwise. It unlocks the mutex meanwhile.
func (s *lockState) enqueueUnlocking(op *waitOptions, q *waitQueue, h *hold) (admitted, error) {
	e := entrance{s.engine}
	w := q.Add(candidate{hold: h, handOff: true, since: e.beginWait(op)}, e.number(op))
	e.slow.Begins()
	op.fitted = op.fitted || q.blocker != nil && h.lock.Traits().Permits() <= q.blocker.total
	err := s.awaitHandoffUnlocking(op, q, w, h)
	switch {
	// The first two cases come before err: if the caller gave up just now, it still has to use what it was handed, or to
	// release it.
	case h.State() == tenancy.Adopting:
		op.span.ends(pathHandoff)
		h.runsLocked()
		return admitted{hold: h, adopts: true}, nil
	case h.State() != tenancy.Fresh: // it got the lock by a hand-off or a shared record, and may have lost or released it since
		op.span.ends(pathHandoff)
		h.runsLocked()
		if h.State() != tenancy.Ended && !h.record.isKeptLocked(s.engine.watchdog.Now()) {
			return s.discardHandoffUnlocking(h), nil
		}
		return admitted{hold: h, holds: true}, nil
	case err == errOwnerChanged: // the owner holds the counterpart: Redis decides at once on its attempt
		q.Leave(w)
		s.dropQueueLocked(q)
		op.number, op.bypass = w.Number, true
		return admitted{hold: h}, nil
	case err != nil:
		err = e.gaveUpLocked(op, q, h, err)
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

// awaitHandoffUnlocking is awaitUnlocking for the waiter w of h in q. If code of the user panics meanwhile, or ends the
// goroutine, it gives up what h has.
func (s *lockState) awaitHandoffUnlocking(op *waitOptions, q *waitQueue, w *waiter, h *hold) error {
	returned := false
	defer func() {
		switch {
		case returned:
			return
		case h.State() == tenancy.Adopting:
			h.runsLocked()
			s.oweLocked(duty{rollBack: h.commands(), attempt: h.attemptUntil(h.Field().Expires())})
		case h.State() != tenancy.Fresh:
			h.runsLocked() // for a goroutine of the owner that has re-entered it
			if h = s.discardHandoffUnlocking(h).hold; h == nil {
				return
			}
		default:
			q.Leave(w)
		}
		h.unlockHoldLocked()
		s.dropQueueLocked(q)
	}()
	err := entrance{s.engine}.awaitUnlocking(s, op, w)
	returned = true
	return err
}

// discardHandoffUnlocking gives up h, to which the lock was handed off, but whose validity was over, or nearly so,
// before its goroutine ran again: the process was paused in between. It returns a new hold, with which the caller asks
// Redis. It returns no hold if the owner has one already: the caller goes on with that one. The old record is deleted
// in the background if no other hold shares it. discardHandoffUnlocking may unlock the mutex for a moment.
func (s *lockState) discardHandoffUnlocking(h *hold) admitted {
	q, shares := h.queue, h.Count() > 1 // shares: other goroutines of the owner have re-entered h, which goes on for them
	last, guards := true, []*guard.End(nil)
	if h.IsLost() {
		h.Lowered()
	} else {
		_, last, guards = h.endOneLocked()
	}
	if shares {
		return admitted{}
	}
	h.queue = nil
	s.forgetLocked(h)
	if last {
		h.keepUntil = 0 // MinHold does not apply: its caller has not run
		s.oweLocked(duty{clear: h})
	}
	next := &hold{lockState: s, lock: h.lock, key: h.key, queue: q}
	h.endGuardsUnlocking(guards)
	if s.holds.get(h.key) != nil {
		next.leaveQueueLocked()
		return admitted{}
	}
	next = s.newHoldLocked(h.lock, h.key, h.changed)
	next.queue = q
	return admitted{hold: next}
}

// shareUnlocking is the part of admit for read locks that share records.
func (s *lockState) shareUnlocking(op *waitOptions, kind contract.Lock, key holdKey) (admitted, error) {
	if s.engine.HandoffWindow == 0 || s.closed {
		return admitted{}, nil
	}
	q := s.queueLocked(key.half)
	if r, now := q.shared, s.engine.watchdog.Now(); r != nil && r.isOpenLocked(now) {
		h := s.newHoldLocked(kind, key, nil)
		h.acquiredLocked(r, now)
		h.ownerQueue.Release()
		return admitted{hold: h, holds: true}, nil
	}
	q.shared = nil
	switch {
	case op.NoWait: // the caller asks Redis itself: it must not wait for the attempt of another caller
		s.dropQueueLocked(q)
		return admitted{}, nil
	case q.TryEnter():
		return s.admitFirstLocked(s.newHoldLocked(kind, key, op.changes(kind)), q), nil
	}
	return s.enqueueUnlocking(op, q, s.newHoldLocked(kind, key, op.changes(kind)))
}
