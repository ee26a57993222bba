package engine

// Records: "record" means one of three things. In Redis, the record of a hold is what the key of its lock has for it: a
// field, and a lease. In this process, the struct record is what the engine knows of one such record. In the contract
// with the lock types (package contract), the interface Record is a lock that has records in Redis, as data.
//
// Rules: a record belongs to one hold, or to several holds of this process that share it. It is one field in Redis,
// from the attempt that was granted until the release. The field is released once, when the last hold has left the
// record. If the lease of the record expires, all its holds end.

import (
	"time"

	"github.com/relock-go/relock/internal/lease"
)

// A record is what this process knows of the record that one or more of its holds have in Redis.
type record struct {
	first *hold // the hold whose attempt was granted: its lock state, lock and vote are those of the record
	// answeredAt is when the answer that granted the record came, on the clock of the watchdog. Newcomers may share the
	// record for a time that is counted from then; validity is counted from before the request.
	answeredAt time.Duration
	lease      lease.Lease

	// guarded by lockState.mu of first
	holds  []*hold     // those that have the record now
	room   [1]*hold    // memory for holds
	tokens *tokenBlock // for the holds that the record is handed off to; or nil
	ended  bool        // see endLocked
}

// newRecord returns the record of h, which was granted by an answer that came at answeredAt.
func (h *hold) newRecord(answeredAt time.Duration) *record {
	r := &h.own
	r.first, r.answeredAt, r.holds = h, answeredAt, r.room[:0]
	r.lease.Holder, r.lease.Unrecorded = r, h.vote != nil
	return r
}

// leaveRecordLocked removes h from its record, and reports whether its field has no users any more. That no other hold
// has the record is a condition of its own, so that it is right even if the users were miscounted: see ledger.Strict.
func (h *hold) leaveRecordLocked() bool {
	r := h.record
	last := len(r.holds) - 1
	r.holds[h.index] = r.holds[last]
	r.holds[h.index].index = h.index
	r.holds[last] = nil
	r.holds = r.holds[:last]
	h.field.Leave()
	return len(r.holds) == 0 && !h.field.InUse()
}

// endLocked ends the record: no hold joins it any more, and the watchdog forgets its lease. Every record ends here,
// whether it was released, left to a hold that adopts its field, or lost.
func (r *record) endLocked() {
	r.ended, r.tokens = true, nil
	r.first.lockState.endSharingLocked(r)
	r.first.lockState.engine.watchdog.Remove(&r.lease)
}

// LeaseEnded ends all holds of the record as lost. The watchdog calls it when the lease has expired, or the record in
// Redis is gone.
//
// The watchdog calls LeaseEnded, and the methods of renewing, without a mutex, and by then the record may have been
// released, handed off or lost. So whatever it calls must look again, under the mutex of the lock state, at whether the
// record has ended (r.ended), and at which holds are left. To look at r.holds is enough, as lose and holdsNow do: a
// record that has ended has no holds. (A renewal may still be sent for a record that has ended, because it never
// creates one.)
func (r *record) LeaseEnded(cause error) { reportLater(r.lose(cause, nil)) }

// holdsNow returns the holds that have the record now.
func (r *record) holdsNow() []*hold {
	r.first.lockState.Lock()
	defer r.first.lockState.Unlock()
	return append([]*hold(nil), r.holds...)
}

// isKeptLocked reports whether further holds may use r: it has not ended, and enough of its validity is left.
func (r *record) isKeptLocked(now time.Duration) bool {
	e := r.first.lockState.engine
	whole := lease.Validity(e.WatchdogTimeout)
	if e.watchdog.Renews(&r.lease) { // a grant of the line may have a shorter lease until its first renewal
		whole = r.lease.WholeValidity()
	}
	return !r.ended && lease.EnoughValidityLeft(r.lease.LeftAt(now), whole, true)
}
