package engine

// The record that a hold has in Redis, or that several holds of this process share.
//
// Rules: a record is one field in Redis, from the attempt that was granted until the
// release. The field belongs to this record alone, and is released once: when the last hold has left.
// The end of its lease ends every hold of the record.

import (
	"time"

	"github.com/relock-go/relock/internal/lease"
)

type record struct {
	first *hold         // that was granted; its name, lock and keeper are those of the record
	field string        // in Redis
	since time.Duration // on the clock of the watchdog: when the answer came; validity counts from before the request
	lease lease.Lease

	// guarded by name.mu
	holds []*hold  // that share the record
	room  [1]*hold // memory for holds
	ended bool     // see endLocked

	adopted bool // the field was handed over to a hold that makes a record of its own with it
}

// newRecord is the record of h, which was granted by an answer that came at since.
func (h *hold) newRecord(since time.Duration) *record {
	r := &h.own
	r.first, r.field, r.since, r.holds = h, h.field, since, r.room[:0]
	r.lease.Holder = r
	return r
}

// joinLocked gives h, which is fresh, one level in r.
func (r *record) joinLocked(h *hold, since time.Duration) {
	h.field = r.field
	h.state, h.count, h.since, h.record = holding, 1, since, r
	if limits := h.lock.Limits(); limits.MinHold > 0 {
		h.keepUntil = limits.keepUntil(h.name.engine.watchdog.Now())
	}
	h.name.wakeOwnerLocked(h)
	h.place = len(r.holds)
	r.holds = append(r.holds, h)
}

// leaveRecordLocked takes h out of its record, and reports whether h was the last hold of the record.
func (h *hold) leaveRecordLocked() bool {
	r := h.record
	last := len(r.holds) - 1
	r.holds[h.place] = r.holds[last]
	r.holds[h.place].place = h.place
	r.holds[last] = nil
	r.holds = r.holds[:last]
	return last == 0
}

// endLocked ends the record: nobody joins it any more, and the watchdog lets go of its lease. Every record ends here,
// whether it was released, left to the next holder, or lost.
func (r *record) endLocked() {
	r.ended = true
	r.first.name.endSharingLocked(r)
	r.first.name.engine.watchdog.Remove(&r.lease)
}

// LeaseEnded ends all holds of the record. The watchdog calls it when the lease has ended. A hold that leaves at the
// same time does not change the loss of the others.
func (r *record) LeaseEnded(cause error) { reportLater(r.lose(cause, nil)) }

// holdsNow is a copy of the present holds of the record.
func (r *record) holdsNow() []*hold {
	r.first.name.Lock()
	defer r.first.name.Unlock()
	return append([]*hold(nil), r.holds...)
}

// isKeptLocked reports whether further holds may rely on r: it is valid for longer than a moment.
func (r *record) isKeptLocked(now time.Duration) bool {
	e := r.first.name.engine
	whole := lease.Validity(e.WatchdogTimeout)
	if e.watchdog.Renews(&r.lease) { // it may be a grant that has not been renewed yet
		whole = r.lease.WholeValidity()
	}
	return !r.ended && lease.EnoughValidityLeft(r.lease.LeftAt(now), whole, true)
}

// recordEnd is when the lease of the record of h is over at the latest. A renewal may be under way.
func (h *hold) recordEnd() time.Time {
	e, r := h.name.engine, h.record
	if r == nil {
		return time.Now()
	}
	if e.watchdog.Renews(&r.lease) {
		return time.Now().Add(e.WatchdogTimeout)
	}
	return e.watchdog.End(&r.lease).Add(lease.Drift(e.watchdog.Left(&r.lease)))
}
