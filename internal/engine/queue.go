package engine

// Wait queues: how goroutines of this process get past one another to Redis.
//
// Rules: each half of a name that a goroutine contends for or holds has a wait queue. Where a lock
// type is exclusive, one contender goes to Redis at a time and the others wait in order. The mutex
// of the name guards the wait queue. awaitLocked lets go of the mutex while it waits.

import (
	"errors"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/handoff"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/waitqueue"
)

// A waiter waits in a wait queue, or for the owner mutex of a hold. Its value is the hold that
// the lock may be handed to, or nil.
type waiter = waitqueue.Waiter[*hold]

type waitQueue struct {
	waitqueue.Queue[*hold]
	half       string // of the name
	registered bool   // with its name

	policy  handoff.Policy // of this process and of other processes
	shared  *record        // newcomers may share this record; or nil
	busy    bool           // the last attempt past this queue has found the lock busy
	blocker *blocker       // that it has found, for the errors of those that wait; or nil
	place   *place         // in the line, which the last caller has left to the next one; or nil
	kept    bool           // although no caller uses it: see keepQueueLocked
}

// foundBusy notes that an attempt past q has found the lock busy.
func (q *waitQueue) foundBusy(o *blocker) { q.busy, q.blocker = true, o }

// foundFree notes that an attempt past q was granted, and that the next one may be.
func (q *waitQueue) foundFree() { q.busy, q.blocker = false, nil }

// errBypassQueue refuses callers that wait in a wait queue, because Redis has not answered the caller in front. Their
// own requests may fare better. Each of them makes its next attempt past the wait queue, so that they do not wait for a
// dead Redis one after the other. Such an attempt takes a lock that is free, and does not join the line: the place of
// this process in the line belongs to the caller that the wait queue has admitted. After an attempt that Redis answers
// with busy, a caller takes its old place in the queue again at once.
var errBypassQueue = errors.New("no answer from Redis to the caller in front")

// errOwnerChanged ends a wait in a wait queue: another caller of the owner that waits has acquired one of the locks,
// or the other half of the lock. The attempt of this caller is not the same any more.
var errOwnerChanged = errors.New("the owner has come to hold one of the locks")

// An entrance admits callers of a process to its wait queues.
type entrance struct{ *Engine }

// number is the number of the next waiter of op: the number with which op was refused, or a new one.
func (e entrance) number(op *waitOptions) uint64 {
	if n := op.number; n != 0 {
		op.number = 0
		return n
	}
	return e.waiters.Add(1)
}

// enterLocked waits until the caller is admitted to q. It lets go of mu meanwhile.
func (e entrance) enterLocked(mu sync.Locker, op *waitOptions, q *waitqueue.Queue[*hold]) error {
	if q.TryEnter() {
		return nil
	}
	if op.NoWait {
		return send.ErrTimeUp
	}
	w := q.Add(nil, e.number(op))
	err := e.awaitLocked(mu, op, w)
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

// enterOwnersLocked waits for another caller of the owner, which uses the hold of q for a request and will soon be
// done: a caller that does not wait for other owners waits for it as long as for an answer.
func (e entrance) enterOwnersLocked(mu sync.Locker, op *waitOptions, q *waitqueue.Queue[*hold]) error {
	patient := *op
	patient.NoWait = false
	if op.NoWait && !op.Patient && op.Deadline.IsZero() {
		patient.Deadline = time.Now().Add(e.sender.Patience())
	}
	err := e.enterLocked(mu, &patient, q)
	if err == send.ErrTimeUp && op.NoWait {
		return ErrNoAnswer
	}
	return err
}

// awaitLocked waits until w is done, or returns why the wait ended sooner. It lets go of mu meanwhile.
func (e entrance) awaitLocked(mu sync.Locker, op *waitOptions, w *waiter) error {
	mu.Unlock()
	op.span.waits()
	err := op.sleep(w.Done, nil, 0)
	mu.Lock()
	if err == nil && w.Waits() {
		return errOwnerChanged
	}
	return err
}

// reserveTime is how long a wait queue may be kept, for the first time, for a caller that waits at other wait queues.
const reserveTime = 100 * time.Millisecond

// enterQueuesLocked waits until the wait queues of all targets have admitted the caller. As a rule no caller
// waits in one wait queue while it occupies another one: a free lock must not wait for a caller that
// waits for a third lock. But where all wait queues have waiters, no caller would ever pass them
// together. So after a few tries the caller keeps the wait queues that it has entered, in their
// order and for a moment, which is twice as long each time.
func (e entrance) enterQueuesLocked(mu sync.Locker, op *waitOptions, targets []target) error {
	misses, reserve := 0, reserveTime
	for i := 0; i < len(targets); i++ {
		h := targets[i].hold
		if h.queue != nil || !h.needsQueueLocked() {
			continue
		}
		if q := h.name.queueLocked(h.key.id.Half); q.TryEnter() {
			h.queue = q
			continue
		}
		if misses++; misses%3 == 0 {
			if err := e.enterInOrderLocked(mu, op, targets, reserve); err != send.ErrTimeUp {
				return err
			}
			if why := overUnlocked(mu, op); why != nil { // if nil, the reserve is over, and not the time of the caller
				return why
			}
			reserve *= 2
			i = -1
			continue
		}
		leaveQueuesLocked(targets)
		if err := e.enterOneLocked(mu, op, h); err != nil {
			return err
		}
		i = -1 // begin again, with this wait queue entered
	}
	return nil
}

// overUnlocked reports why op is over, or nil. It lets go of mu meanwhile, because it calls a ctx of the user.
func overUnlocked(mu sync.Locker, op *waitOptions) error {
	mu.Unlock()
	defer mu.Lock()
	return op.Over()
}

// enterInOrderLocked enters all wait queues in order. It keeps the entered ones for no longer than reserve.
func (e entrance) enterInOrderLocked(mu sync.Locker, op *waitOptions, targets []target, reserve time.Duration) error {
	leaveQueuesLocked(targets)
	short, keeps := *op, false
	for _, t := range targets {
		if !t.hold.needsQueueLocked() {
			continue
		}
		if err := e.enterOneLocked(mu, &short, t.hold); err != nil {
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

// enterOneLocked waits in the wait queue of h.
func (e entrance) enterOneLocked(mu sync.Locker, op *waitOptions, h *hold) error {
	q := h.name.queueLocked(h.key.id.Half)
	if err := e.enterLocked(mu, op, &q.Queue); err != nil {
		op.sees(q.blocker)
		h.name.dropQueueLocked(q)
		return err
	}
	h.queue = q
	return nil
}

// needsQueueLocked reports whether h has to be alone in this process to contend for its lock.
func (h *hold) needsQueueLocked() bool {
	if h.state != fresh || h.lock.Admission() != Exclusive {
		return false
	}
	// The admitted caller may wait for this owner's other half, so this owner must not wait for the admitted caller.
	other := h.name.counterpartLocked(h)
	return other == nil || !other.state.holds()
}

func (h *hold) needsQueue() bool {
	h.name.Lock()
	defer h.name.Unlock()
	return h.needsQueueLocked()
}

// leaveQueueLocked lets the next waiter contend for the lock of h.
func (h *hold) leaveQueueLocked() {
	if q := h.queue; q != nil {
		h.queue = nil
		q.Release()
		h.name.dropQueueLocked(q)
	}
}

func (h *hold) leaveQueue() {
	h.name.Lock()
	defer h.name.Unlock()
	h.leaveQueueLocked()
}

func leaveQueuesLocked(targets []target) {
	for _, t := range targets {
		t.hold.leaveQueueLocked()
	}
}

// enterQueue waits until the caller may make an attempt on one lock: the wait queue has admitted the caller, and
// the caller has let other processes go first when it is their turn.
func (e entrance) enterQueue(op *waitOptions, targets []target) error {
	s := targets[0].hold.name
	s.Lock()
	err := e.enterQueuesLocked(s, op, targets)
	yield := e.yieldLocked(targets)
	s.Unlock()
	if err == nil && yield > 0 && op.HasTime(yield) {
		op.span.waits()
		err = op.sleep(nil, nil, yield)
	}
	return err
}

// yieldLocked is how long other processes go first.
func (e entrance) yieldLocked(targets []target) (yield time.Duration) {
	for _, t := range targets {
		if q := t.hold.queue; q != nil {
			yield = max(yield, q.policy.Yield(e.watchdog.Now()))
		}
	}
	return yield
}
