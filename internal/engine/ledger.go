package engine

// The ledger: who needs a field, and for how long Redis may have it.
//
// Rules: these questions are answered here, by the facts in internal/tenancy and internal/late, and nowhere else. All
// holds, records and places that have a field, one after the other or together, refer to one tenancy.Field. A hold, a
// hold that is about to adopt the field, and a reader that is being split off are its users; they are counted, because
// the last of them deletes the field. The callers that ask with a field are not counted: to delete it is what they do
// when they give up, and others look for them (isNeededLocked, uses).

import (
	"slices"
	"time"

	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/tenancy"
)

// newField makes a new field, with which the caller of h asks from now on.
func (h *hold) newField() *tenancy.Field {
	f := &h.lockState.field
	if f.ID != "" { // others may refer to the first one
		f = new(tenancy.Field)
	}
	f.ID = h.lockState.engine.fields.newField(h.owner.principal(), h.lock.Traits().Permits())
	h.AsksWith(f)
	return f
}

// has reports whether h has field, or some of the same permits, or asks with it.
func (h *hold) has(field string) bool { return h.Field() != nil && overlap(h.Field().ID, field) }

// mayLast notes that a request of h which sets a lease of this length has ended with err, or was answered if err is nil.
func mayLast(h *hold, length time.Duration, err error) {
	length = bounded(length)
	// The error may be one of a hook of the user. Its methods are called here, before the mutex is locked.
	switch {
	case err != nil && !send.MayHaveActed(err):
		return
	case send.MayRunLater(err):
		length += late.Life
	}
	h.lockState.Lock()
	defer h.lockState.Unlock()
	h.mayLastLocked(length)
}

// mayLastLocked notes that the field of h may last for length from now, which is bounded, and so may that of the hold
// that its owner has of the counterpart, because both are in one key.
func (h *hold) mayLastLocked(length time.Duration) {
	end := h.lockState.engine.watchdog.Now() + length
	h.Field().MayLast(end)
	if other := h.counterpartLocked(); other != nil && other.Holds() {
		other.Field().MayLast(end)
	}
}

// clearIfOverLocked has the record of h deleted if h has ended or was lost, and no other hold or request uses its field. It
// reports whether that is so.
func (h *hold) clearIfOverLocked() bool {
	over := (h.isOver() || h.IsLost()) && !h.Field().InUse()
	if over {
		h.lockState.oweLocked(duty{clear: h})
	}
	return over
}

// reachLocked returns how far the lease of h, which has a record, may reach by the requests that have set it, or may
// still do so without being sent anew.
func (h *hold) reachLocked() tenancy.Reach {
	e := h.lockState.engine
	r := tenancy.Reach{
		Rest:   h.Field().Expires() - e.watchdog.Now(),
		Late:   bounded(e.late.Longest(h.Field().ID)),
		LateBy: late.Life,
	}
	if e.watchdog.IsRenewing(&h.record.lease) {
		r.Renewal = bounded(e.WatchdogTimeout)
	}
	return r
}

// recordEnd returns when the lease of the record of h has expired in Redis at the latest, even if all requests that may
// still run set their leases.
func recordEnd(h *hold) time.Time {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	if h.record == nil {
		return time.Now()
	}
	e, reach := h.lockState.engine, h.reachLocked()
	if e.watchdog.Renews(&h.record.lease) && !h.record.ended { // a record that has ended gets no more
		reach.Renewal = bounded(e.WatchdogTimeout)
	}
	return time.Now().Add(reach.End())
}

// releasedLocked returns a hold that had the record with this field, if its release is under way; or nil.
func (s *lockState) releasedLocked(field string) *hold {
	for h := range s.holds.all() {
		if h.State() == tenancy.Ended && h.record != nil && h.has(field) {
			return h
		}
	}
	return nil
}

// isNeededLocked reports whether an owner holds the lock with field, or asks for it, or is going to: it may have shared
// the record of the hold for which the field was made, or adopted it, or its place in the line. It wakes the caller that
// asks if granted is set.
func (s *lockState) isNeededLocked(field string, granted bool) bool {
	for h := range s.holds.all() {
		if h.has(field) && (h.Asks() || h.Holds()) {
			if granted && h.Asks() {
				h.wakeLocked()
			}
			return true
		}
	}
	return s.hasPlaceLocked(field)
}

// hasPlaceLocked reports whether field belongs to a place in the line that was left to the next caller.
func (s *lockState) hasPlaceLocked(field string) bool {
	return slices.ContainsFunc(s.queues, func(q *waitQueue) bool { return q.place != nil && overlap(q.place.field.ID, field) })
}

// uses reports whether a caller of this process waits with field, holds the lock with it or is releasing it, or whether
// field belongs to a place that was left to the next caller.
func (s *lockState) uses(field string) bool {
	s.Lock()
	defer s.Unlock()
	for h := range s.holds.all() {
		if h.has(field) {
			return true
		}
	}
	return s.hasPlaceLocked(field)
}
