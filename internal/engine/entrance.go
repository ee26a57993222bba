package engine

// The entrance: how a caller waits in local queues, until it is admitted to one or several of them.
//
// Rules: awaitUnlocking unlocks the mutex of the lock state while it waits. Whatever a caller knew of the lock state
// before is out of date then.

import (
	"sync"
	"time"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/waitqueue"
)

// gaveUpLocked notes what a caller that has waited in q, and gives up because of err, knows of the one in front. It
// returns err, together with the reason why that one cannot have the lock, if other owners are not the reason.
func (e entrance) gaveUpLocked(op *waitOptions, q *waitQueue, h *hold, err error) error {
	switch err {
	case nil, errBypassQueue, errOwnerChanged:
		return err
	}
	op.found.waitsBehindLocked(h.lockState.name, q)
	if err != send.ErrClosed && q.blocker != nil && q.blocker.cause != nil {
		return send.WithLast(err, q.blocker.cause)
	}
	return err
}

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

// enterUnlocking waits until q has admitted the caller, which wants the lock of h. It unlocks mu meanwhile.
func (e entrance) enterUnlocking(mu sync.Locker, op *waitOptions, q *waitqueue.Queue[candidate], h *hold) error {
	if q.TryEnter() {
		return nil
	}
	if op.NoWait {
		return send.ErrTimeUp
	}
	w, returned := q.Add(candidate{hold: h, since: e.beginWait(op)}, e.number(op)), false
	e.slow.Begins()
	defer func() {
		if !returned { // code of the user has panicked, or ended the goroutine
			q.Leave(w)
		}
	}()
	err := e.awaitUnlocking(mu, op, w)
	returned = true
	if err != nil {
		q.Leave(w)
	} else {
		err = w.Err
	}
	if err == errBypassQueue || err == errOwnerChanged {
		op.number = w.Number
	}
	return err
}

// enterOwnersUnlocking waits for the owner mutex of h while another goroutine of the same owner uses h for a request. A
// caller that does not wait for other owners waits here too, for as long as it would wait for an answer of Redis.
func (e entrance) enterOwnersUnlocking(mu sync.Locker, op *waitOptions, h *hold) error {
	patient, now := *op, time.Now()
	patient.NoWait = false
	switch {
	case !op.NoWait || op.Patient:
	case op.Deadline.IsZero():
		patient.Deadline = now.Add(e.sender.Patience())
	default:
		patient.Wait = patient.WithMinWait(now)
	}
	err := e.enterUnlocking(mu, &patient, &h.ownerQueue, h)
	op.waitedAs(&patient)
	if err == send.ErrTimeUp && op.NoWait {
		return ErrNoAnswer
	}
	return err
}

// awaitUnlocking waits until w is done, or returns why the wait ended sooner. It unlocks mu meanwhile.
func (e entrance) awaitUnlocking(mu sync.Locker, op *waitOptions, w *waiter) error {
	err := op.sleepUnlocking(mu, w.Done, 0)
	if err == nil && w.Waits() {
		return errOwnerChanged
	}
	return err
}

// reserveTime is how long a caller may occupy a local queue while it waits in another one, the first time that it does
// so: see enterQueuesUnlocking.
const reserveTime = 100 * time.Millisecond

// enterQueuesUnlocking waits until the local queues of all targets have admitted the caller. It unlocks mu meanwhile.
// As a rule, a caller that waits in one queue leaves the other ones, because a free lock must not wait for a caller
// that waits for another lock. But if all queues have waiters, the caller might never be admitted to all of them at the
// same time. So after every third failure it enters the queues in order and keeps those that have admitted it for a
// limited time, which doubles each time.
func (e entrance) enterQueuesUnlocking(mu sync.Locker, op *waitOptions, targets []target) error {
	misses, reserve := 0, reserveTime
	for i := 0; i < len(targets); i++ {
		h := targets[i].hold
		if h.queue != nil || !h.needsQueueLocked() {
			continue
		}
		q := h.lockState.queueLocked(h.key.half)
		if q.TryEnter() {
			h.queue = q
			continue
		}
		if misses++; misses%3 == 0 {
			if err := e.enterInOrderUnlocking(mu, op, targets, reserve); err != send.ErrTimeUp {
				return e.gaveUpLocked(op, q, h, err)
			}
			if why := overUnlocking(mu, op); why != nil { // if nil, only the time for which it keeps the queues is over
				return e.gaveUpLocked(op, q, h, why)
			}
			reserve *= 2
			i = -1
			continue
		}
		leaveQueuesLocked(targets)
		if err := e.enterOneUnlocking(mu, op, h); err != nil {
			return e.gaveUpLocked(op, q, h, err)
		}
		i = -1 // begin again, with this queue entered
	}
	return nil
}

// enterInOrderUnlocking enters the queues of all targets in order. If it does not get into all of them within reserve,
// counted from when the first one has admitted it, it leaves them all.
func (e entrance) enterInOrderUnlocking(mu sync.Locker, op *waitOptions, targets []target, reserve time.Duration) error {
	leaveQueuesLocked(targets)
	short, keeps := *op, false
	defer func() {
		op.number = short.number
		op.waitedAs(&short)
	}()
	for _, t := range targets {
		if !t.hold.needsQueueLocked() {
			continue
		}
		if err := e.enterOneUnlocking(mu, &short, t.hold); err != nil {
			leaveQueuesLocked(targets)
			return err
		}
		if end := time.Now().Add(reserve); !keeps && (op.Deadline.IsZero() || end.Before(op.Deadline)) {
			short.Deadline = end
		}
		keeps = true
	}
	return nil
}

// enterOneUnlocking waits in the local queue of the lock of h.
func (e entrance) enterOneUnlocking(mu sync.Locker, op *waitOptions, h *hold) error {
	q := h.lockState.queueLocked(h.key.half)
	defer h.lockState.dropQueueLocked(q) // unless a caller is admitted
	if err := e.enterUnlocking(mu, op, &q.Queue, h); err != nil {
		return err
	}
	h.queue = q
	return nil
}

func leaveQueuesLocked(targets []target) {
	for _, t := range targets {
		t.hold.leaveQueueLocked()
	}
}

// passQueueUnlocking waits until the local queue has admitted the caller, or until its next attempt bypasses the queue.
// It returns how long the caller has to let other processes go first. It unlocks mu meanwhile.
func (e entrance) passQueueUnlocking(mu sync.Locker, op *waitOptions, targets []target) (yield time.Duration, err error) {
	switch err = e.enterQueuesUnlocking(mu, op, targets); err {
	case nil:
		return e.yieldLocked(targets), nil
	case errBypassQueue, errOwnerChanged:
		return 0, nil
	}
	return 0, err
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
