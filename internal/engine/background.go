package engine

// Background work: how the duties of lock states are carried out. lockstate.go says when.

import (
	"cmp"
	"context"
)

// carryOut does what d says.
func (e *Engine) carryOut(d *duty) {
	if d.clear != nil {
		clearRecord(d.clear, 1)
	} else {
		e.undo(cmp.Or(d.ctx, context.Background()), d.rollBack, d.attempt, d.unknown)
	}
}
