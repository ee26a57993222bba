package engine

// The entrance: how a caller waits in queues, until it is admitted to one or several of them.
//
// Rules: who waits here has no mutex. Whatever a caller knew of a lock state before is out of date then.

import (
	"time"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/tenancy"
)

// An entrance is where callers enter local queues, and wait there until they are admitted.
type entrance struct{ *Engine }

// number returns the number of the next waiter of op, which decides on its position in a queue: the number that op had
// when its last wait was ended to bypass the queue, or a new one.
func (e entrance) number(op *waitOptions) uint64 {
	if n := op.number; n != 0 {
		op.number = 0
		return n
	}
	return e.waiters.Add(1)
}

// gaveUp is gaveUpLocked for callers without the mutex.
func (e entrance) gaveUp(op *waitOptions, q *waitQueue, h *hold, err error) error {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	return e.gaveUpLocked(op, q, h, err)
}

// gaveUpLocked notes what a caller that has waited in q, and gives up because of err, knows of the one in front. It
// returns err, together with the reason why that one cannot have the lock, if other owners are not the reason. A caller
// whose time is up makes an attempt of its own if no caller here knows yet whether the lock is busy.
func (e entrance) gaveUpLocked(op *waitOptions, q *waitQueue, h *hold, err error) error {
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
	if err != send.ErrClosed && q.blocker != nil && q.blocker.cause != nil {
		return send.WithLast(err, q.blocker.cause)
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

// reserveTime is how long a caller may occupy a local queue while it waits in another one, the first time that it does
// so: see enterQueues.
const reserveTime = 100 * time.Millisecond

// enterQueues waits until the local queues of all targets, whose lock states are in states, have admitted the caller.
// As a rule, a caller that waits in one queue leaves the other ones, because a free lock must not wait for a caller
// that waits for another lock. But if all queues have waiters, the caller might never be admitted to all of them at the
// same time. So after every third failure it enters the queues in order and keeps those that have admitted it for a
// limited time, which doubles each time.
func (e entrance) enterQueues(op *waitOptions, states lockStates, targets []target) (err error) {
	reserve := reserveTime
	for misses := 1; ; misses++ {
		h, q := enterFreeQueues(states, targets), (*waitQueue)(nil)
		switch {
		case h == nil:
			return nil
		case misses%3 != 0:
			if q, err = e.enterOne(op, h); err == nil {
				continue // begin again, with this queue entered
			}
		default:
			if h, q, err = e.enterInOrder(op, targets, reserve); err == nil {
				return nil
			}
			reserve *= 2
			if err == send.ErrTimeUp {
				if err = op.Over(); err == nil { // only the time for which it keeps the queues is over
					continue
				}
			}
		}
		return e.gaveUp(op, q, h, err)
	}
}

// enterFreeQueues enters the local queues of all targets that have to pass one. If another caller is in one of them, it
// leaves them all, in the same step, and returns the hold that has to wait for that one.
func enterFreeQueues(states lockStates, targets []target) *hold {
	states.Lock()
	defer states.Unlock()
	for _, t := range targets {
		if !t.hold.tryQueueLocked() {
			leaveQueuesLocked(targets)
			return t.hold
		}
	}
	return nil
}

// enterInOrder enters the queues of all targets in order. If it does not get into all of them within reserve, counted
// from when the first one has admitted it, it leaves them all, and returns the hold and the queue for which it has
// waited in vain.
func (e entrance) enterInOrder(op *waitOptions, targets []target, reserve time.Duration) (*hold, *waitQueue, error) {
	short, keeps := *op, false
	defer func() {
		op.number = short.number
		op.waitedAs(&short)
	}()
	for _, t := range targets {
		if !t.hold.needsQueue() {
			continue
		}
		if q, err := e.enterOne(&short, t.hold); err != nil {
			leaveQueues(targets)
			return t.hold, q, err
		}
		if end := time.Now().Add(reserve); !keeps && (op.Deadline.IsZero() || end.Before(op.Deadline)) {
			short.Deadline = end
		}
		keeps = true
	}
	return nil, nil, nil
}

// enterOne waits in the local queue of the lock of h, which it returns.
func (e entrance) enterOne(op *waitOptions, h *hold) (*waitQueue, error) {
	q, w, err := e.joinQueue(op, h)
	if w == nil {
		return q, err
	}
	err = op.awaitTurn(w, q)
	if err == errBypassQueue || err == errOwnerChanged {
		op.number = w.Number
	}
	return q, err
}

// joinQueue is the step of enterOne before the sleep. If the queue is free, it needs no waiter.
func (e entrance) joinQueue(op *waitOptions, h *hold) (q *waitQueue, w *waiter, err error) {
	s := h.lockState
	s.Lock()
	defer s.Unlock()
	switch q = s.queueLocked(h.half()); {
	case q.TryEnter():
		h.queue = q
	case op.NoWait:
		err = send.ErrTimeUp
	default:
		w = q.Add(candidate{hold: h, since: e.beginWait(op)}, e.number(op))
		e.slow.Begins()
	}
	return q, w, err
}

func leaveQueues(targets []target) {
	for _, t := range targets {
		t.hold.leaveQueue()
	}
}

func leaveQueuesLocked(targets []target) {
	for _, t := range targets {
		t.hold.leaveQueueLocked()
	}
}

// yieldLocked returns how long the caller has to let other processes go first.
func (e entrance) yieldLocked(targets []target) (yield time.Duration) {
	for _, t := range targets {
		if q := t.hold.queue; q != nil {
			yield = max(yield, q.policy.Yield(e.watchdog.Now()))
		}
	}
	return yield
}
