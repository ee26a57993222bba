package engine

// Effects: what has to be done between two steps of a call, while the mutex of the lock state is free.
//
// Rules: a call changes a lock state in steps. A step is a function that locks the mutex and unlocks it again, with
// what it calls: no function …Locked lets the mutex go. If something has to be done first for which the mutex must be
// free, the step leaves the lock state as the other callers may find it, and returns an effect. The call carries the
// effect out, and takes the next step, which knows nothing of the lock state but what the call itself has there: the
// owner mutex of a hold.
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
	waiter *waiter    // the caller sleeps until it has the owner mutex of a hold
	held   bool       // waiter: the owner holds the lock, so the caller waits for an answer of Redis, not for others
	look   *hold      // the hold ends as lost if it has expired
	guards guard.Ends // they are canceled: their owner gives up the hold
}

// carryOut does what todo says, for a call with the options op, which has no mutex. It returns an error if the wait of
// the call has ended.
func (todo *effect) carryOut(op *waitOptions) error {
	switch {
	case todo.waiter != nil:
		return todo.awaitOwner(op)
	case todo.look != nil:
		todo.look.expireIfDue()
	default:
		todo.guards.EndAll(nil)
	}
	return nil
}

// awaitOwner waits for the owner mutex. If the owner holds the lock, a caller that does not wait for other owners waits
// here too, for as long as it would wait for an answer of Redis. If the wait ends sooner, the waiter leaves the queue,
// also if code of the user panics meanwhile, or ends the goroutine.
func (todo *effect) awaitOwner(op *waitOptions) (err error) {
	wait := op.Wait
	if todo.held && op.NoWait && !op.Patient && op.Deadline.IsZero() {
		wait.Deadline = time.Now().Add(todo.waiter.Value.hold.lockState.engine.sender.Patience())
	}
	err = send.ErrClosed // any error: Sleep may not return
	defer func() {
		if err != nil {
			op.leaveOwners(todo.waiter, todo.held)
		}
	}()
	op.span.waits()
	if err = wait.Sleep(todo.waiter.Done, nil, nil, 0); err == send.ErrTimeUp && todo.held && op.NoWait {
		err = ErrNoAnswer
	}
	return err
}
