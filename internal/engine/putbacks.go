package engine

// Put-backs: the tickets to which an Attach that was given up returns their locks. See attach.go.

import (
	"sync"
	"sync/atomic"
)

// putBacks are the detached fields to which this process is giving the lock back.
type putBacks struct {
	// under maps the field to a chan struct{}, of the last Attach that has given up. It is closed when the field has the
	// lock again, or cannot get it, and those of the Attaches before are closed.
	under sync.Map
	ended atomic.Int64 // how many calls of Attach that have given up are undone, whatever the field
}

// isUnderWay reports whether this process is giving the lock back to field.
func (p *putBacks) isUnderWay(field string) bool {
	_, ok := p.under.Load(field)
	return ok
}
