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

// An admitted is how the caller of one lock was admitted among the callers of this process. The zero value tells the
// caller to get its hold from lockHold: its owner has one already, or the lock cannot be handed off to the caller now,
// for example because it wants an explicit lease.
type admitted struct {
	hold   *hold // of the caller, which has its owner mutex unless holds is set; or nil
	holds  bool  // the caller holds the lock: it was handed off, or a record is shared, and no request is needed
	adopts bool  // the previous holder has left its record to hold, which has to adopt it by an attempt

	waiter *waiter // the caller is not admitted yet: awaitHandoff waits until it is; or nil
}

// prepareLocked prepares the attempt t with which the caller has to ask Redis, if it has to, and has its hold already. A
// caller that holds the lock tells so.
func (in admitted) prepareLocked(t *target, r *Request) error {
	switch {
	case in.hold == nil:
		return nil
	case !in.holds:
		return in.hold.prepareLocked(t, r)
	case r.Report == nil:
		in.hold.Told()
	}
	return nil
}

// admit is the first step of a caller among the callers of this process that want the same lock. It prepares the
// attempt t if the caller has to ask Redis with the hold that it returns.
func (s *lockState) admit(op *waitOptions, kind contract.Lock, o Owner, r *Request, t *target) (in admitted, err error) {
	s.Lock()
	defer s.Unlock()
	in = s.admitLocked(op, kind, o, r.Lease > 0)
	return in, in.prepareLocked(t, r)
}

// admitLocked is admit without the attempt. Most callers of a contended lock wait, while another goroutine of this
// process holds the lock or contends for it.
func (s *lockState) admitLocked(op *waitOptions, kind contract.Lock, o Owner, explicit bool) admitted {
	key, admission := holdKey{kind.Traits().ID.Half, o}, kind.Traits().Admission
	other := kind.Traits().Counterpart
	if s.holds.get(key) != nil ||
		other != (contract.LockID{}) && s.holds.get(holdKey{other.Half, o}) != nil {
		return admitted{}
	}
	switch {
	case admission == contract.Uncoordinated, admission == contract.Shared && explicit:
		return s.admitFirstLocked(s.newHoldLocked(kind, key, op.changes(kind)), nil)
	case admission == contract.Shared:
		return s.shareLocked(op, kind, key)
	case admission == contract.Counting:
		return s.admitCountingLocked(op, kind, key)
	}
	switch q := s.queueLocked(key.half); {
	case q.TryEnter():
		return s.admitFirstLocked(s.newHoldLocked(kind, key, op.changes(kind)), q)
	case op.NoWait || explicit:
		return admitted{}
	default:
		return admitted{waiter: s.enqueueLocked(op, q, s.newHoldLocked(kind, key, op.changes(kind)))}
	}
}

// admitCountingLocked is the part of admit for semaphores, which several owners hold, each with a record of its own.
// Any caller may find a free permit, so as a rule a caller bypasses the local queue. It waits in the queue if it or the
// admitted caller has found the semaphore busy, if others wait there, or if other processes go first.
func (s *lockState) admitCountingLocked(op *waitOptions, kind contract.Lock, key holdKey) admitted {
	h := s.newHoldLocked(kind, key, nil)
	if op.NoWait {
		return s.admitFirstLocked(h, nil)
	}
	q := s.queueLocked(key.half)
	switch {
	case q.TryEnter():
		return s.admitFirstLocked(h, q)
	case q.reply == nil && q.First() == nil && !op.foundBusy && q.policy.Yield(s.engine.watchdog.Now()) == 0:
		return s.admitFirstLocked(h, nil)
	}
	return admitted{waiter: s.enqueueLocked(op, q, h)}
}

// admitFirstLocked admits the claim of h, which has entered its local queue q without waiting, or needs no queue (q is
// nil).
func (s *lockState) admitFirstLocked(h *hold, q *waitQueue) admitted {
	h.queue = q
	h.newField()
	return admitted{hold: h}
}

// enqueueLocked makes the caller of h, whose claim asks, wait in q. The lock, or a record, may be handed off to h.
func (s *lockState) enqueueLocked(op *waitOptions, q *waitQueue, h *hold) *waiter {
	w := s.engine.enqueue(op, candidate{hold: h, queue: q, takes: true})
	op.fitted = op.fitted || q.reply != nil && h.lock.Traits().Permits() <= q.reply.total
	return w
}

// awaitHandoff waits until the queue of w has admitted it, until its hold has got the lock by a hand-off or a shared
// record, or until the wait ends otherwise. Then it prepares the attempt t, as admit does. If code of the user panics
// meanwhile, or ends the goroutine, it gives up what the hold has.
func (s *lockState) awaitHandoff(op *waitOptions, w *waiter, r *Request, t *target) (in admitted, err error) {
	awake, returned := false, false
	defer func() {
		switch {
		case !awake:
			s.abandon(w).EndAll(nil)
		case !returned && in.hold != nil: // the hold that was made in place of the one whose guards were canceled
			in.hold.unlockHold()
		}
	}()
	err = op.await(w)
	awake = true
	in, guards, err := s.settle(op, w, r, err, t)
	guards.EndAll(nil)
	returned = true
	return in, err
}

// settle is the step after the sleep of w, which has ended with err. The caller cancels the guards.
func (s *lockState) settle(op *waitOptions, w *waiter, r *Request, err error, t *target) (
	in admitted, guards guard.Ends, _ error,
) {
	s.Lock()
	defer s.Unlock()
	if in, guards, err = s.settleLocked(op, w, err); err != nil {
		w.Value.hold.unlockHoldLocked()
		return in, guards, err
	}
	return in, guards, in.prepareLocked(t, r)
}

// settleLocked is settle without the attempt. After an error the caller still has its claim.
func (s *lockState) settleLocked(op *waitOptions, w *waiter, err error) (in admitted, guards guard.Ends, _ error) {
	h := w.Value.hold
	switch {
	// These cases come before err: if the caller gave up just now, it still has to use what it was handed, or to
	// release it.
	case h.IsAdopting():
		op.span.ends(pathHandoff)
		h.Runs()
		return admitted{hold: h, adopts: true}, nil, nil
	case !h.Asks(): // it got the lock by a hand-off or a shared record, and may have lost or released it since
		op.span.ends(pathHandoff)
		if h.State() != tenancy.Ended && !h.record.isKeptLocked(s.engine.watchdog.Now()) {
			in, guards = s.discardHandoffLocked(h)
			return in, guards, nil
		}
		return admitted{hold: h, holds: true}, nil, nil
	}
	if err = s.turnLocked(op, w, err); err == nil {
		in.hold = h
	}
	return in, nil, err
}

// abandon is settle for a caller that does not go on, because code of the user has panicked, or ended the goroutine.
func (s *lockState) abandon(w *waiter) (guards guard.Ends) {
	s.Lock()
	defer s.Unlock()
	h, q := w.Value.hold, w.Value.queue
	switch {
	case h.IsAdopting():
		h.Runs()
		s.oweLocked(duty{rollBack: h.commands(), attempt: h.attemptUntil(h.Field().Expires())})
	case h.isOver(): // another goroutine of the owner has released it, or does so now, and sees to the rest
		return nil
	case !h.Asks():
		var in admitted
		if in, guards = s.discardHandoffLocked(h); in.hold == nil {
			return guards
		}
		h = in.hold
	default:
		q.Leave(w)
	}
	h.unlockHoldLocked()
	s.dropQueueLocked(q)
	return guards
}

// discardHandoffLocked gives up h, to which the lock was handed off, but whose validity was over, or nearly so, before
// its goroutine ran again: the process was paused in between. It returns a new hold, with which the caller asks Redis.
// It returns no hold if the owner has one already: the caller goes on with that one. The old record is deleted in the
// background if no other hold shares it, and the caller cancels the guards of h.
func (s *lockState) discardHandoffLocked(h *hold) (in admitted, guards guard.Ends) {
	q, shares := h.queue, h.Count() > 1 // shares: other goroutines of the owner have re-entered h, which goes on for them
	last := true
	if h.IsLost() {
		h.Lowered()
	} else {
		_, last, guards = h.endOneLocked()
	}
	if shares {
		return in, guards
	}
	h.queue = nil
	s.forgetLocked(h)
	if last {
		s.oweLocked(duty{clear: h})
	}
	if s.holds.get(h.key()) != nil { // h was forgotten before
		next := claim{lockState: s, lock: h.lock, owner: h.owner, queue: q}
		next.leaveQueueLocked()
		return in, guards
	}
	in.hold = s.newHoldLocked(h.lock, h.key(), h.changed)
	in.hold.queue = q
	return in, guards
}

// shareLocked is the part of admit for read locks that share records.
func (s *lockState) shareLocked(op *waitOptions, kind contract.Lock, key holdKey) admitted {
	if s.engine.HandoffWindow == 0 || s.closed {
		return admitted{}
	}
	q := s.queueLocked(key.half)
	if r, now := q.shared, s.engine.watchdog.Now(); r != nil && r.isOpenLocked(now) {
		h := s.newHoldLocked(kind, key, nil)
		h.handedLocked(r, now)
		return admitted{hold: h, holds: true}
	}
	q.shared = nil
	switch {
	case op.NoWait: // the caller asks Redis itself: it must not wait for the attempt of another caller
		s.dropQueueLocked(q)
		return admitted{}
	case q.TryEnter():
		return s.admitFirstLocked(s.newHoldLocked(kind, key, op.changes(kind)), q)
	}
	return admitted{waiter: s.enqueueLocked(op, q, s.newHoldLocked(kind, key, op.changes(kind)))}
}
