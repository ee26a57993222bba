package engine

// Background work: how the duties of lock states are carried out. lockstate.go says when.

import "context"

// carryOut does what d says.
func (e *Engine) carryOut(d *duty) {
	if d.clear != nil {
		clearRecord(d.clear)
	} else {
		e.undo(context.Background(), d.rollBack, d.attempt, nil)
	}
}
