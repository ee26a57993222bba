package engine

// Local queues: the goroutines of this process that wait for one lock. They are not to be confused with the line, which
// is the wait queue in Redis (line.go).
//
// Rules: a lock has a local queue in its lock state while goroutines contend for it or hold it, unless its admission is
// Uncoordinated; each half of a read/write lock has a queue of its own. If the lock is exclusive, only the caller that
// the queue has admitted sends requests, and the others wait in the order in which they came. The mutex of the lock
// state guards the queue. awaitUnlocking unlocks this mutex while it waits.

import (
	"errors"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/handoff"
	"github.com/relock-go/relock/internal/poller"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/waitqueue"
)

// A waiter waits in a local queue, or for the owner mutex of a hold.
type waiter = waitqueue.Waiter[candidate]

// A candidate is what a waiter waits for.
type candidate struct {
	hold    *hold         // of the lock that the caller wants
	handOff bool          // the lock may be handed off to hold
	since   time.Duration // when the call began to wait: see waitOptions.since
}

// A waitQueue is a local queue.
type waitQueue struct {
	waitqueue.Queue[candidate]
	half       string // LockID.Half of the lock
	registered bool   // it is in the queues of its lock state
	kept       bool   // it stays although no caller uses it: see keepQueueLocked
	busy       bool   // the last attempt of an admitted caller has found the lock busy

	blocker *blocker       // what that attempt has found, for the errors of all that wait here; or nil
	look    poller.Look    // what the poller has found since
	request inquiry        // of the admitted caller, or of the one that is releasing the lock
	policy  handoff.Policy // how this process shares the lock with other processes
	shared  *record        // the record that newcomers may share; or nil
	place   *place         // in the line; the last caller has left it to the next one; or nil
}

// foundBusy notes that an attempt of the caller that q has admitted has found the lock busy.
func (q *waitQueue) foundBusy(o *blocker) {
	q.busy, q.blocker, q.look = true, o, poller.Look{}
	if o.cause == nil {
		q.request = inquiry{}
	}
}

// asksLocked notes that the caller is about to make an attempt on targets, whose answer takes at most patience.
func (a *acquireOp) asksLocked(targets []target, patience time.Duration) {
	due := time.Now().Add(patience)
	a.found.request.beginUntil(due)
	for _, t := range targets {
		if q := t.hold.queue; q != nil && t.HoldCount == 1 {
			q.request.beginUntil(due)
			a.found.seesLocked(q)
		}
	}
}

// HandleFailure notes that a try of the attempt has failed: it implements send.FailureHandler.
func (a *acquireOp) HandleFailure() {
	a.found.request.failed = true
	a.states.Lock()
	defer a.states.Unlock()
	for _, t := range a.targets {
		if q := t.hold.queue; q != nil {
			q.request.failed = true
		}
	}
}

// gotNoAnswerLocked reports whether Redis has not answered the caller that q has admitted, for longer than an answer
// takes, or because it cannot be reached.
func (e *Engine) gotNoAnswerLocked(q *waitQueue) bool {
	return q.request.underWay() && (!time.Now().Before(q.request.due) || !e.sender.Healthy())
}

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

// foundFree notes that such an attempt was granted, and that the next one may be granted, too.
func (q *waitQueue) foundFree() { q.busy, q.blocker = false, nil }

// errBypassQueue ends the waits of callers in a local queue that are to make their next attempt without being admitted.
// There are two reasons: Redis has not answered the admitted caller, and the others must not wait for an unreachable
// Redis one after the other; or a semaphore has permits for all of them. Such an attempt acquires the lock only if it
// is free, and does not join the line, because the place of this process in the line belongs to the caller that the
// queue has admitted. If Redis answers that the lock is busy, the caller returns to its old position in the local
// queue.
var errBypassQueue = errors.New("no answer from Redis to the caller that is ahead in the queue")

// errOwnerChanged ends a wait in a local queue because another goroutine of the same owner has acquired one of the
// locks that the caller waits for, or the counterpart of one: the caller has to make another attempt than it had
// prepared. A late answer that may have granted the caller the lock ends it, too, and the next attempt finds out.
var errOwnerChanged = errors.New("the owner has acquired one of the locks meanwhile")

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

// sleepUnlocking sleeps as sleep does, with mu unlocked meanwhile. It locks mu again also if the user's ctx panics, or
// the Observer ends the goroutine.
func (op *waitOptions) sleepUnlocking(mu sync.Locker, wake <-chan struct{}, d time.Duration) error {
	mu.Unlock()
	defer mu.Lock()
	op.span.waits()
	return op.sleep(wake, nil, d)
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

// overUnlocking returns why the caller has no more time, or nil. It unlocks mu meanwhile, because it calls methods of
// the user's ctx.
func overUnlocking(mu sync.Locker, op *waitOptions) error {
	mu.Unlock()
	defer mu.Lock()
	return op.Over()
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

// needsQueueLocked reports whether a local queue has to admit the caller of h before it may contend for the lock of h.
func (h *hold) needsQueueLocked() bool {
	if h.state != fresh || h.lock.Traits().Admission != contract.Exclusive {
		return false
	}
	// If the owner holds the counterpart, the admitted caller may be waiting for the counterpart to be released. So this
	// owner must not wait for that caller.
	other := h.lockState.counterpartLocked(h)
	return other == nil || !other.state.holds()
}

func (h *hold) needsQueue() bool {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	return h.needsQueueLocked()
}

// leaveQueueLocked leaves the local queue that has admitted h, and so admits the next waiter.
func (h *hold) leaveQueueLocked() {
	if q := h.queue; q != nil {
		h.queue = nil
		if !h.lockState.engine.gotNoAnswerLocked(q) { // otherwise the waiters behind h are to know
			q.request = inquiry{}
		}
		q.Release()
		h.lockState.dropQueueLocked(q)
	}
}

func (h *hold) leaveQueue() {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	h.leaveQueueLocked()
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
