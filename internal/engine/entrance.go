package engine

// The entrance: how a caller waits in a local queue, until it is admitted.
//
// Rules: who waits here has no mutex. Whatever a caller knew of a lock state before is out of date then.

import (
	"time"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/tenancy"
	"github.com/relock-go/relock/internal/waitqueue"
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

// enqueue makes the call of op wait in q for what c is. It begins to wait now, unless it has waited before.
func (e *Engine) enqueue(op *waitOptions, q *waitqueue.Queue[candidate], c candidate) *waiter {
	c.since = e.beginWait(op)
	w := q.Add(c, e.number(op))
	e.slow.begins()
	return w
}

// gaveUp is gaveUpLocked for callers without the mutex.
func (e *Engine) gaveUp(op *waitOptions, q *waitQueue, h *hold, err error) error {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	return e.gaveUpLocked(op, q, h, err)
}

// gaveUpLocked notes what a caller that has waited in q, and gives up because of err, knows of the one in front. It
// returns err, together with the reason why that one cannot have the lock, if other owners are not the reason. A caller
// whose time is up makes an attempt of its own if no caller here knows yet whether the lock is busy.
func (e *Engine) gaveUpLocked(op *waitOptions, q *waitQueue, h *hold, err error) error {
	switch err {
	case nil, errBypassQueue, errOwnerChanged:
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

// awaitTurn waits until w is admitted: to the local queue q or, if q is nil, to the owner mutex of its hold. If the
// wait ends sooner, w leaves the queue, also if code of the user panics meanwhile, or ends the goroutine.
func (op *waitOptions) awaitTurn(w *waiter, q *waitQueue) (err error) {
	err = errOwnerChanged // any error: await may not return
	defer func() { err = endTurn(w, q, err) }()
	err = op.await(w)
	return err
}

// endTurn is the step after the sleep of w, which has ended with err. It returns why w is not admitted, or nil.
func endTurn(w *waiter, q *waitQueue, err error) error {
	h := w.Value.hold
	s, queue := h.lockState, &h.ownerQueue
	if q != nil {
		queue = &q.Queue
	}
	s.Lock()
	defer s.Unlock()
	if err == nil {
		if err = w.Err; w.Waits() {
			err = errOwnerChanged
		}
	}
	if err != nil {
		if admitted := !w.Waits() && w.Err == nil; q == nil && admitted && h.State() == tenancy.Ended {
			s.forgetLocked(h) // it has ended since, and no other goroutine has the owner mutex: as unlockHoldLocked does
		}
		queue.Leave(w)
	}
	if q != nil {
		if err == nil {
			h.queue = q
		}
		s.dropQueueLocked(q) // unless a caller is admitted
	}
	return err
}

// enterQueue waits until the local queue of the lock of h has admitted the caller.
func (e *Engine) enterQueue(op *waitOptions, h *hold) error {
	q, w, err := e.joinQueue(op, h)
	if w != nil {
		err = op.awaitTurn(w, q)
		if err == errBypassQueue || err == errOwnerChanged {
			op.number = w.Number
		}
	}
	return e.gaveUp(op, q, h, err)
}

// joinQueue is the step of enterQueue before the sleep. If the queue is free, it needs no waiter.
func (e *Engine) joinQueue(op *waitOptions, h *hold) (q *waitQueue, w *waiter, err error) {
	s := h.lockState
	s.Lock()
	defer s.Unlock()
	switch q = s.queueLocked(h.half()); {
	case q.TryEnter():
		h.queue = q
	case op.NoWait:
		err = send.ErrTimeUp
	default:
		w = e.enqueue(op, &q.Queue, candidate{hold: h})
	}
	return q, w, err
}

// yieldLocked returns how long the caller of h has to let other processes go first.
func (e *Engine) yieldLocked(h *hold) time.Duration {
	if h.queue == nil {
		return 0
	}
	return h.queue.policy.Yield(e.watchdog.Now())
}
