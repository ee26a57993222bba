package engine

// Background work: how the duties of lock states are carried out. lockstate.go says when.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/handoff"
)

// carryOut does what d says.
func (e *Engine) carryOut(d *duty) {
	switch {
	case d.clear != nil:
		clearRecord(d.clear)
	case d.rollBack != nil:
		e.undo(context.Background(), d.rollBack, d.attempt, mostUndone)
	default:
		select {
		case <-time.After(2 * handoff.MostUnannounced):
		case <-e.closed:
		}
		d.lockState.endKeeping(d.keep)
	}
}
