package engine

// Duties: what remains to be done when the state of a name has changed.
//
// Rules: the state of a name changes under the mutex of the name, where nothing is sent and no goroutine is started.
// What follows from the change is noted as a duty. Who unlocks the name begins it, on a goroutine that Close waits for.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/handoff"
)

// A duty is to clear a hold, to undo an attempt, or to keep a wait queue for a while.
type duty struct {
	clear    *hold      // the hold; or nil
	rollBack Record     // the lock of attempt; or nil
	keep     *waitQueue // the wait queue of name; or nil

	name    *lockState
	before  *duty // the one that came due before it
	attempt Attempt
	unknown int             // tries of attempt that may still run
	ctx     context.Context // of the caller of attempt; or nil
}

// oweLocked notes what is to be done when the mutex is free.
func (s *lockState) oweLocked(d duty) {
	d.name, d.before = s, s.due
	s.due = &d
}

// begin begins last, and what came due before it.
func (e *Engine) begin(last *duty) {
	for d := last; d != nil; d = d.before {
		e.workers.Spawn(func() { d.fulfil(e) })
	}
}

// fulfil does what is due.
func (d *duty) fulfil(e *Engine) {
	switch {
	case d.clear != nil:
		d.clear.clear()
	case d.rollBack != nil:
		ctx := d.ctx
		if ctx == nil {
			ctx = context.Background()
		}
		_ = rollbacker{e}.rollBackOne(ctx, d.rollBack, d.attempt, d.unknown)
	default:
		select {
		case <-time.After(2 * handoff.MostUnannounced):
		case <-e.closed:
		}
		d.name.endKeeping(d.keep)
	}
}
