package engine

// Admission: how a caller gets past the other callers of its process, or gets the lock from one of them.
//
// Rules: a caller leaves with the lock, with a hold to ask Redis for, or with an error. A hold that the lock was handed
// off to is used or given up, whatever else has ended the wait of its caller.

import (
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/guard"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/tenancy"
)

// An admitted is how the caller of one lock was admitted among the callers of this process. The zero value tells the
// caller to get its hold from lockTarget, because its owner has one already.
type admitted struct {
	hold  *hold // of the caller, which has its owner mutex unless holds is set; or nil
	holds bool  // the caller holds the lock: it was handed off, or a record is shared, and no request is needed

	waiter *waiter // the caller is not admitted yet: awaitTurn waits until it is; or nil
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
// attempt t if the caller has to ask Redis with the hold that it returns. takes reports whether the lock, or a record,
// may be handed off to the caller.
func (s *lockState) admit(op *waitOptions, kind contract.Lock, o Owner, takes bool, r *Request, t *target) (in admitted, err error) {
	s.Lock()
	defer s.Unlock()
	if in, err = s.admitLocked(op, kind, o, takes); err != nil {
		return in, err
	}
	return in, in.prepareLocked(t, r)
}

// admitLocked is admit without the attempt. Most callers of a contended lock wait, while another goroutine of this
// process holds the lock or contends for it. These callers ask Redis beside the local queue:
//
//   - The owner has the counterpart of the lock: the caller at the front may be waiting for that to be released.
//   - The caller does not wait: it must not wait for the attempt of another one. If an owner has the lock, it does not ask.
//   - A semaphore was not found busy: any caller may find a free permit.
func (s *lockState) admitLocked(op *waitOptions, kind contract.Lock, o Owner, takes bool) (in admitted, err error) {
	key, admission := holdKey{kind.Traits().ID.Half, o}, kind.Traits().Admission
	if s.holds.get(key) != nil {
		return in, nil
	}
	h := s.newHoldLocked(kind, key)
	if h.needsNoQueueLocked(takes) {
		return admitted{hold: h}, nil
	}
	q := s.queueLocked(key.half)
	if q.joinLocked(h) {
		return admitted{hold: h, holds: true}, nil
	}
	switch {
	case q.TryEnter():
		h.queue = q
	case op.NoWait && admission == contract.Exclusive:
		if err = s.gaveUpLocked(op, q, send.ErrTimeUp); err != errBypassQueue {
			h.unlockHoldLocked()
			return in, err
		}
	case op.NoWait:
	case admission == contract.Counting && q.reply == nil && q.First() == nil && op.found.reply == nil &&
		q.policy.Yield(s.engine.watchdog.Now()) == 0:
	default:
		in.waiter = s.enqueueLocked(op, candidate{hold: h, queue: q, takes: takes})
		return in, nil
	}
	return admitted{hold: h}, nil
}

// needsNoQueueLocked reports whether the caller of h asks beside the local queue, even if that is free. takes is
// that of admit.
func (h *hold) needsNoQueueLocked(takes bool) bool {
	s, other := h.lockState, h.counterpartLocked()
	switch h.lock.Traits().Admission {
	case contract.Uncoordinated:
		return true
	case contract.Shared:
		return !takes || other != nil || s.engine.HandoffWindow == 0 || s.engine.isLeaving.Load()
	}
	return other != nil && other.Holds()
}

// joinLocked has h join the record that readers share, and reports whether there is one that is open.
func (q *waitQueue) joinLocked(h *hold) bool {
	if r, now := q.shared, h.lockState.engine.watchdog.Now(); r != nil && r.isOpenLocked(now) {
		h.handedLocked(r, now)
		return true
	}
	q.shared = nil
	return false
}

// enqueueLocked makes the caller of c, whose claim asks, wait in its local queue.
func (s *lockState) enqueueLocked(op *waitOptions, c candidate) *waiter {
	op.fitted = op.fitted || c.queue.reply != nil && c.hold.lock.Traits().Permits() <= c.queue.reply.total
	if c.hold.lock.Traits().Counterpart != (contract.LockID{}) {
		c.changed = c.hold.wakerLocked()
	}
	return s.engine.enqueue(op, c)
}

// awaitTurn waits until the queue of w has admitted it, until its hold has got the lock by a hand-off or a shared
// record, or until the wait ends otherwise. Then it prepares the attempt t, as admit does. If code of the user panics
// meanwhile, or ends the goroutine, it gives up what the hold has.
func (s *lockState) awaitTurn(op *waitOptions, w *waiter, r *Request, t *target) (in admitted, err error) {
	awake := false
	defer func() {
		if !awake {
			s.abandon(w).EndAll(nil)
		}
	}()
	op.span.waits()
	err = op.Sleep(w.Done, nil, w.Value.changed, 0)
	awake = true
	in, guards, err := s.settle(op, w, r, err, t)
	guards.EndAll(nil)
	return in, err
}

// settle is the step after the sleep of w, which has ended with err. The caller cancels the guards.
func (s *lockState) settle(op *waitOptions, w *waiter, r *Request, err error, t *target) (
	in admitted, guards guard.Ends, _ error,
) {
	s.Lock()
	defer s.Unlock()
	if in, guards, err = s.settleLocked(op, w, err); err == nil {
		err = in.prepareLocked(t, r)
	} else if w.Value.hold.Asks() {
		w.Value.hold.unlockHoldLocked()
	}
	return in, guards, err
}

// settleLocked is settle without the attempt. After an error the caller still has its claim.
func (s *lockState) settleLocked(op *waitOptions, w *waiter, err error) (in admitted, guards guard.Ends, _ error) {
	h, q := w.Value.hold, w.Value.queue
	in.hold = h
	switch {
	// These cases come before err: if the caller gave up just now, it still has to use what it was handed, or to
	// release it.
	case h.IsAdopted():
		op.span.ends(pathHandoff)
		return in, nil, nil
	case !h.Asks(): // it got the lock by a hand-off or a shared record, and may have lost or released it since
		op.span.ends(pathHandoff)
		if h.State() != tenancy.Ended && !h.record.isKeptLocked(s.engine.watchdog.Now()) {
			return in, s.discardHandoffLocked(h), errRestart
		}
		in.holds = true
		return in, nil, nil
	case err == nil && !w.Waits():
		err = w.Err
	default:
		if err == nil { // the owner holds the counterpart: Redis decides at once on its attempt
			err = errBypassQueue
		} else {
			err = s.gaveUpLocked(op, q, err)
		}
		q.Leave(w)
	}
	if err == nil {
		h.queue = q
		return in, nil, nil
	}
	s.dropQueueLocked(q)
	if err == errBypassQueue {
		err = nil
	}
	return in, nil, err
}

// abandon is settle for a caller that does not go on, because code of the user has panicked, or ended the goroutine.
func (s *lockState) abandon(w *waiter) (guards guard.Ends) {
	s.Lock()
	defer s.Unlock()
	h, q := w.Value.hold, w.Value.queue
	switch {
	case h.IsAdopted():
		attempt := contract.Attempt{Field: h.Field().ID, HoldCount: 1, Lease: s.engine.WatchdogTimeout}
		s.oweLocked(duty{rollBack: h.commands(), attempt: attempt})
	case h.isOver(): // another goroutine of the owner has released it, or does so now, and sees to the rest
		return nil
	case !h.Asks():
		return s.discardHandoffLocked(h)
	default:
		q.Leave(w)
	}
	h.unlockHoldLocked()
	s.dropQueueLocked(q)
	return guards
}

// discardHandoffLocked gives up h, to which the lock was handed off, but whose validity was over, or nearly so, before
// its goroutine ran again: the process was paused in between. The old record is deleted in the background if no other
// hold shares it, and the caller cancels the guards of h.
func (s *lockState) discardHandoffLocked(h *hold) (guards guard.Ends) {
	left, last, guards := h.endOneLocked()
	if left > 0 { // other goroutines of the owner have re-entered h, which goes on for them
		return guards
	}
	s.forgetLocked(h)
	if last {
		s.oweLocked(duty{clear: h})
	}
	h.leaveQueueLocked()
	return guards
}
