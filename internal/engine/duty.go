package engine

// Duties: background work that follows from a change of a lock state.
//
// Rules: a lock state changes under its mutex, where no request is sent and no background work is begun. If a function
// that has the mutex finds that such work is needed, it notes a duty, and the next Unlock of the lock state begins the
// duty, on a goroutine that Close waits for. A function that does not have the mutex calls workers.Spawn instead, which
// begins the work at once on such a goroutine. Work that has to be done before the call returns, for example canceling
// guards and reporting a loss, is neither: a function that has the mutex returns it to its caller (see ending and
// effect). The end of a step begins the duties that it has noted, so a duty is noted only after the change that it
// follows from is complete.

import (
	"context"

	"github.com/relock-go/relock/internal/contract"
)

// A duty is background work that must not begin before the lock state is unlocked. There are three kinds, and exactly
// one of the first three fields is set: to delete the record of a hold, to roll back an attempt, and to keep a local
// queue for some time.
type duty struct {
	clear    *hold           // the hold to clear; or nil
	rollBack contract.Record // the lock of the attempt to roll back; or nil
	keep     *waitQueue      // the local queue of name to keep; or nil

	lockState *lockState
	before    *duty            // the duty that was noted before this one; or nil
	attempt   contract.Attempt // rollBack: the attempt
	unknown   int              // rollBack: how many tries of the attempt have an unknown outcome
	ctx       context.Context  // rollBack: the ctx of the caller; nil: context.Background
}

// oweLocked notes a duty, which the next Unlock of s begins.
func (s *lockState) oweLocked(d duty) {
	d.lockState, d.before = s, s.duties
	s.duties = &d
}

// begin begins last, and all duties that were noted before it. The caller has unlocked the lock state.
func (e *Engine) begin(last *duty) {
	for d := last; d != nil; d = d.before {
		e.workers.Spawn(func() { e.fulfil(d) })
	}
}
