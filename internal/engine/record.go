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

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/send"
)

// A record is what this process knows of the record that one or more of its holds have in Redis.
type record struct {
	first *hold  // the hold whose attempt was granted: its lock state, lock and vote are those of the record
	field string // in Redis; never changes
	// answeredAt is when the answer that granted the record came, on the clock of the watchdog. Newcomers may share the
	// record for a time that is counted from then; validity is counted from before the request.
	answeredAt time.Duration
	lease      lease.Lease

	// guarded by lockState.mu of first
	holds    []*hold     // those that have the record now
	room     [1]*hold    // memory for holds
	tokens   *tokenBlock // for the holds that the record is handed off to; or nil
	splits   int32       // holds that are being detached from it while others may use it: see detach.go
	ended    bool        // see endLocked
	adopted  bool        // the field was handed off to a hold that makes a record of its own with it, and releases it
	unwanted bool        // it has ended, and what is left of it in Redis, or what a request makes of it, is deleted
	clears   uint8       // calls of clearAfter that are under way, and delete it
	// expires is when the lease in Redis has expired at the latest, on the clock of the watchdog: the maximum over all
	// requests that have set it, or may have, except those that internal/late still knows. The two mayLastLocked raise it,
	// and handOffLocked passes it on with the field; only recordEnd, mayOutliveLocked and mayGetLocked ask for it.
	expires time.Duration
}

// newRecord returns the record of h, which was granted by an answer that came at answeredAt.
func (h *hold) newRecord(answeredAt time.Duration) *record {
	r := &h.own
	r.first, r.field, r.answeredAt, r.holds = h, h.field, answeredAt, r.room[:0]
	r.lease.Holder, r.lease.Unrecorded = r, h.vote != nil
	return r
}

// joinLocked makes h, which is fresh, hold the lock with the record r, from since on.
func (r *record) joinLocked(h *hold, since time.Duration) {
	h.field = r.field
	h.state, h.count, h.since, h.record = holding, 1, since, r
	if limits := h.lock.Traits().Limits; limits.MinHold > 0 {
		h.keepUntil = keptUntil(limits, h.lockState.engine.watchdog.Now())
	}
	h.lockState.wakeOwnerLocked(h)
	h.index = int32(len(r.holds))
	r.holds = append(r.holds, h)
}

// isUsedLocked reports whether a hold has the field of r in Redis, has it split, or has adopted it or is about to. Then
// nobody else deletes the field: see leaveRecordLocked, detaching.end, dismissLocked and needs.
func (r *record) isUsedLocked() bool { return len(r.holds) > 0 || r.splits > 0 || r.adopted }

// leaveRecordLocked removes h from its record, and reports whether the record is not used any more.
func (h *hold) leaveRecordLocked() bool {
	r := h.record
	last := len(r.holds) - 1
	r.holds[h.index] = r.holds[last]
	r.holds[h.index].index = h.index
	r.holds[last] = nil
	r.holds = r.holds[:last]
	return !r.isUsedLocked()
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

// mayLast notes that a request of h which sets a lease of this length has ended with err, or was answered if err is nil.
// If the record has ended while the request was under way, and nobody else deletes it, it is deleted.
func (h *hold) mayLast(length time.Duration, err error) {
	length = bounded(length)
	// The error may be one of a hook of the user. Its methods are called here, before the mutex is locked.
	switch {
	case err != nil && !send.MayHaveRun(err) && !send.Answered(err):
		return
	case send.MayRunLater(err):
		length += late.Life
	}
	h.lockState.Lock()
	defer h.lockState.Unlock()
	h.mayLastLocked(length)
}

// mayLastLocked notes that the record that has the field of h may last for length from now, which is bounded.
func (h *hold) mayLastLocked(length time.Duration) {
	r := h.record
	if r == nil || r.adopted {
		r = h.lockState.heirLocked(h.field)
	}
	if r == nil {
		return
	}
	r.expires = max(r.expires, h.lockState.engine.watchdog.Now()+length)
	if r.unwanted && !r.isUsedLocked() { // who has set unwanted did not know of the request
		r.first.deleteIfLeftLocked()
	}
}

// attemptUntil returns the attempt with which a record with the field of h is rolled back. Its lease ends at expires,
// on the clock of the watchdog.
func (h *hold) attemptUntil(expires time.Duration) contract.Attempt {
	return contract.Attempt{Field: h.field, HoldCount: 1, Lease: expires - h.lockState.engine.watchdog.Now()}
}

// deleteIfLeftLocked has the record of h, which has ended, deleted if it may be left in Redis.
func (h *hold) deleteIfLeftLocked() {
	if h.vote == nil && h.record.clears == 0 && h.mayOutliveLocked() {
		h.lockState.oweLocked(duty{clear: h})
	}
}

// beginClear notes that a goroutine deletes the record of h until it calls end.
func (h *hold) beginClear() (end func()) {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	h.record.clears++
	return func() {
		h.lockState.Lock()
		defer h.lockState.Unlock()
		h.record.clears--
	}
}

// heirLocked returns the record that has field, or will have it if it is granted; or nil. The hold that has made a
// request with the field may be another one: its caller has left its place in the line, or its record, or has made
// another attempt of a MultiLock.
func (s *lockState) heirLocked(field string) *record {
	for h := range s.holds.all() {
		switch r := h.record; {
		case r == nil && h.field == field:
			return &h.own
		case r != nil && r.field == field && !r.adopted:
			return r
		}
	}
	return nil
}

// recordEnd returns when the lease of the record of h has expired in Redis at the latest, even if all requests that may
// still run set their leases.
func (h *hold) recordEnd() time.Time {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	e, r := h.lockState.engine, h.record
	if r == nil {
		return time.Now()
	}
	w := e.watchdog
	now := w.Now()
	end := max(r.expires, now)
	if w.Renews(&r.lease) && !r.ended || w.IsRenewing(&r.lease) { // a record that has ended gets no more
		end = max(end, now+bounded(e.WatchdogTimeout))
	}
	if longest := e.late.Longest(h.field); longest > 0 {
		end = max(end, now+late.Life+bounded(longest))
	}
	return time.Now().Add(end - now)
}

// untilOver returns a function that reports whether the lease of the record of h has expired in Redis for certain. It
// follows the requests that set leases meanwhile, and remembers what requests may do that internal/late then forgets.
func (h *hold) untilOver() (isOver func() bool) {
	end := h.recordEnd()
	return func() bool {
		if later := h.recordEnd(); later.After(end) { // the present time at the earliest
			end = later
		}
		return !time.Now().Before(end)
	}
}

// outlivesBy is how much longer a record may last than its validity and the drift before it is deleted. A record whose
// answer took that long on its way lasts so much longer.
const outlivesBy = 250 * time.Millisecond

// mayOutliveLocked reports whether the record of h, whose lease has ended and is not renewed any more, may last longer
// in Redis than this process relies on it. Then it has to be deleted, because it would block others.
func (h *hold) mayOutliveLocked() bool {
	w, r := h.lockState.engine.watchdog, h.record
	end := w.At(w.End(&r.lease)) + lease.Drift(r.lease.WholeValidity())
	return r.expires > end+outlivesBy || w.IsRenewing(&r.lease) || h.lockState.engine.late.Longest(h.field) > 0
}
