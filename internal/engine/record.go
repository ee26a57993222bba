package engine

// Records: what the key of a lock has for a hold, and what this process knows of it. The word means one of three things.
// In Redis, the record of a hold is a field, and a lease. In this process, the struct record is what the engine knows of
// one such record. In the contract with the lock types (package contract), the interface Record is a lock that has
// records in Redis, as data.
//
// Rules: a record belongs to one hold, or to several holds of this process that share it. It is one field in Redis,
// from the attempt that was granted until the release. The field is released once, when the last hold has left the
// record. If the lease of the record expires, all its holds end.

import (
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/lease"
)

// A record is what this process knows of the record that one or more of its holds have in Redis.
type record struct {
	first *hold // the hold whose attempt was granted: its lock state and lock are those of the record
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
func newRecord(h *hold, answeredAt time.Duration) *record {
	r := &h.own
	r.first, r.answeredAt, r.holds = h, answeredAt, r.room[:0]
	r.lease.Holder = r
	return r
}

// leaveRecordLocked removes h, which has just ended or was lost, from its record, and reports whether its field has no
// users any more. That no other hold has the record is a condition of its own, so that it is right even if the users
// were miscounted: see tenancy.Strict.
func (h *hold) leaveRecordLocked() bool {
	r := h.record
	last := len(r.holds) - 1
	r.holds[h.index] = r.holds[last]
	r.holds[h.index].index = h.index
	r.holds[last] = nil
	r.holds = r.holds[:last]
	return len(r.holds) == 0 && !h.Field().InUse()
}

// endLocked ends the record: no hold joins it any more, and the watchdog forgets its lease. Every record ends here,
// whether it was released, left to a hold that adopts its field, or lost.
func (r *record) endLocked() {
	r.ended, r.tokens = true, nil
	r.first.lockState.endSharingLocked(r)
	r.first.lockState.engine.watchdog.Remove(&r.lease)
}

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

// endSharingLocked makes newcomers share r no longer.
func (s *lockState) endSharingLocked(r *record) {
	if r.first.lock.Traits().Admission != contract.Shared {
		return
	}
	if q := s.findQueueLocked(r.first.lock.Traits().ID.Half); q != nil && q.shared == r {
		q.shared = nil
		s.dropQueueLocked(q)
	}
}

// tokenForLocked returns the token of the next hold, whose lock is to be handed r. If ok is false, the hold needs a
// token that only Redis can draw.
func (r *record) tokenForLocked(next contract.Lock) (token int64, ok bool) {
	switch {
	case !next.Traits().Fenced:
		return 0, true
	case next.Traits().DrawsSingly:
		return 0, false
	}
	token = r.tokens.take()
	return token, token != 0
}
