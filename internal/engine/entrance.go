package engine

// The entrance: how a caller waits in a local queue, until it is admitted.
//
// Rules: who waits here has no mutex. Whatever a caller knew of a lock state before is out of date then.

import (
	"time"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/tenancy"
)

// number returns the number of the next waiter of op, which decides on its position in a queue: the number that op had
// when its last wait was ended to bypass the queue, or a new one.
func (e *Engine) number(op *waitOptions) uint64 {
	if n := op.number; n != 0 {
		op.number = 0
		return n
	}
	return e.waiters.Add(1)
}

// enqueue makes the call of op wait for what c is. It begins to wait now, unless it has waited before.
func (e *Engine) enqueue(op *waitOptions, c candidate) *waiter {
	c.since = e.beginWait(op)
	w := c.in().Add(c, e.number(op))
	e.slowBegins()
	return w
}

// gaveUpLocked notes what a caller that has waited in q, and gives up because of err, knows of the one in front. It
// returns err, together with the reason why that one cannot have the lock, if other owners are not the reason. A caller
// whose time is up makes an attempt of its own if no caller here knows yet whether the lock is busy.
func (e *Engine) gaveUpLocked(op *waitOptions, q *waitQueue, h *hold, err error) error {
	switch err {
	case errBypassQueue, errOwnerChanged:
		return err
	}
	f := &op.found
	f.waitsBehindLocked(h.lockState.name, q)
	f.unseen = !q.owned
	if err == send.ErrTimeUp && f.unseen && f.reply == nil && !f.request.inDoubt(time.Now()) {
		return errBypassQueue
	}
	if err != send.ErrClosed && q.reply != nil && q.reply.cause != nil {
		return send.WithLast(err, q.reply.cause)
	}
	return err
}

// awaitTurn waits until w is admitted: to its local queue, or to the owner mutex of its hold; or until its next attempt
// bypasses the queue. If the wait ends sooner, w leaves the queue, also if code of the user panics meanwhile, or ends
// the goroutine.
func (op *waitOptions) awaitTurn(w *waiter) (err error) {
	err = errOwnerChanged // any error: await may not return
	defer func() { err = op.endTurn(w, err) }()
	err = op.await(w)
	return err
}

// endTurn is the step after the sleep of w, which has ended with err. It returns why w is not admitted, or nil.
func (op *waitOptions) endTurn(w *waiter, err error) error {
	h := w.Value.hold
	s := h.lockState
	s.Lock()
	defer s.Unlock()
	if w.Value.queue != nil {
		return s.turnLocked(op, w, err)
	}
	if err == nil && w.Waits() {
		err = errOwnerChanged
	}
	if err != nil {
		if !w.Waits() && h.State() == tenancy.Ended {
			s.forgetLocked(h) // it has ended since, and no other goroutine has the owner mutex: as unlockHoldLocked does
		}
		h.ownerQueue.Leave(w)
	}
	return err
}

// turnLocked is the step after the sleep of w in its local queue, which has ended with err. It returns why w neither was
// admitted nor bypasses the queue, or nil.
func (s *lockState) turnLocked(op *waitOptions, w *waiter, err error) error {
	h, q := w.Value.hold, w.Value.queue
	switch {
	case err == nil && w.Waits(): // the owner holds the counterpart: Redis decides at once on its attempt
		err = errBypassQueue
		q.Leave(w)
	case err != nil:
		err = s.engine.gaveUpLocked(op, q, h, err)
		q.Leave(w)
	default:
		err = w.Err
	}
	switch err {
	case nil:
		h.queue = q
		return nil
	case errBypassQueue:
		op.number, op.bypass, err = w.Number, true, nil
	}
	s.dropQueueLocked(q)
	return err
}

// yieldLocked returns how long the caller of h has to let other processes go first.
func (e *Engine) yieldLocked(h *hold) time.Duration {
	if h.queue == nil {
		return 0
	}
	return h.queue.policy.Yield(e.watchdog.Now())
}
