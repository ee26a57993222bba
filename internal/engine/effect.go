package engine

// Effects: what has to be done between two steps of a call, while the mutex of the lock state is free.
//
// Rules: a call changes a lock state in steps. A step is a function that locks the mutex and unlocks it again, with
// what it calls: no function …Locked lets the mutex go. If something has to be done first for which the mutex must be
// free, the step leaves the lock state as the other callers may find it, and returns an effect. The call carries the
// effect out, and takes the next step, which knows nothing of the lock state but what the call itself has there: the
// owner mutex of a hold, or its position in a queue.
//
//	for {
//		todo, err := step() // with the mutex
//		if todo == nil {
//			return err
//		}
//		err = todo.carryOut(op) // without it
//	}
//
// An effect may call code of the user, which may panic, or end the goroutine. Then there is no next step, and the call
// gives up what it has in the lock state.
//
// What need not be done before the next step is a duty (lockstate.go), and what follows from a loss is an ending (loss.go).

import (
	"time"

	"github.com/relock-go/relock/internal/guard"
	"github.com/relock-go/relock/internal/send"
)

// An effect is what has to be done before the next step of a call: one of the things below. A step returns nil if the
// call needs no other step, as most calls do.
type effect struct {
	waiter *waiter       // the caller sleeps until it has the owner mutex of a hold, or was admitted to a local queue
	held   bool          // waiter: the owner holds the lock, so the caller waits for an answer of Redis, not for others
	look   *hold         // the hold ends as lost if it has expired
	pause  time.Duration // other processes go first for that long
	guards guard.Ends    // they are canceled: their owner gives up the hold
}

// carryOut does what todo says, for a call with the options op, which has no mutex. It returns an error if the wait of
// the call has ended, or is to begin anew (errOwnerChanged).
func (todo *effect) carryOut(op *waitOptions) error {
	switch {
	case todo.waiter != nil && todo.waiter.Value.queue != nil:
		return op.awaitTurn(todo.waiter)
	case todo.waiter != nil:
		return todo.awaitOwner(op)
	case todo.look != nil:
		todo.look.expireIfDue()
	case todo.pause > 0:
		op.span.waits()
		return op.sleep(nil, nil, todo.pause)
	default:
		todo.guards.EndAll(nil)
	}
	return nil
}

// awaitOwner waits for the owner mutex. If the owner holds the lock, a caller that does not wait for other owners waits
// here too, for as long as it would wait for an answer of Redis.
func (todo *effect) awaitOwner(op *waitOptions) error {
	h, wait := todo.waiter.Value.hold, *op
	s := h.lockState
	if todo.held {
		wait.Wait = s.engine.patienceOf(op)
	}
	err := wait.awaitTurn(todo.waiter)
	switch {
	case err == nil, err == errOwnerChanged:
	case !todo.held:
		s.Lock()
		defer s.Unlock()
		op.found.waitsBehindLocked(s.name, s.findQueueLocked(h.half()))
	case err == send.ErrTimeUp && op.NoWait:
		return ErrNoAnswer
	}
	return err
}

// patienceOf returns for how long the caller of op waits for an answer of Redis to another goroutine of its owner.
func (e *Engine) patienceOf(op *waitOptions) send.Wait {
	patient := op.Wait
	if op.NoWait && !op.Patient && op.Deadline.IsZero() {
		patient.Deadline = time.Now().Add(e.sender.Patience())
	}
	patient.NoWait = false
	return patient
}
