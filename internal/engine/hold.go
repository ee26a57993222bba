package engine

// A hold is what one owner has of one lock, from when its claim was granted until it has released the lock, or knows that
// it has lost it.
//
// Rules: a claim becomes at most one hold, in the same memory (claim.go). After the hold was released, the next acquire
// of its owner makes a new claim. If it was lost, an acquire has to return the loss first, unless the loss is that an
// explicit lease has expired. A hold is lost at most once. The first to notice the loss may be the watchdog, a request
// that finds no record, or a call or a guard that looks at the clock.
//
// The goroutines of one owner use a hold one at a time, with its owner mutex, which is a queue that a waiting goroutine
// can leave. Without the owner mutex a hold may only end: it is lost, or given up before its caller has run
// (discardHandoffLocked), or an Unlock has waited for the owner mutex in vain (lowerUnconfirmed). Then its record
// is not handed off, and a goroutine that has a request under way finds out afterwards: see loseLocked and
// dismissLocked.
//
// Records are what the key of a lock has for a hold, and what this process knows of it. The word means one of three things.
// In Redis, the record of a hold is a field, and a lease. In this process, the struct record is what the engine knows of
// one such record. In the contract with the lock types (package contract), the interface Record is a lock that has
// records in Redis, as data.
//
// A record belongs to one hold, or to several holds of this process that share it. It is one field in Redis,
// from the attempt that was granted until the release. The field is released once, when the last hold has left the
// record. If the lease of the record expires, all its holds end.

import (
	"cmp"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/guard"
	"github.com/relock-go/relock/internal/lease"
	"github.com/relock-go/relock/internal/tenancy"
	"github.com/relock-go/relock/internal/waitqueue"
)

// expiredKept is how many lost holds with explicit leases an engine remembers, so that a late Unlock returns ErrLockLost,
// and how many that MaxHold has ended: the next Lock of their owners must not acquire them again either.
const expiredKept = 1024

// A holdKey identifies the hold of an owner on a lock, among the holds of the same lock state.
type holdKey struct {
	half  string
	owner Owner
}

// A hold is what one owner has of one lock, together with the claim that it began as.
type hold struct {
	claim

	// guarded by lockState.mu
	tenancy.Hold                            // its state, hold count and field; see transitions.go
	ownerQueue   waitqueue.Queue[candidate] // the owner mutex, also before the lock is acquired
	record       *record                    // set when the lock is acquired
	index        int32                      // index in record.holds
	// since is when the hold began, on the clock of the watchdog: when the attempt that was granted was sent, when the
	// lock was handed off, or when the hold joined the record of another one.
	since time.Duration
	// keepUntil is until when the record has to stay in Redis because of MinHold, on the clock of the watchdog; 0: there
	// is no such time.
	keepUntil time.Duration
	token     int64 // the fencing token; 0: none
	loss      error // why the hold was lost; nil: it was not
	guards    guard.Ends
	waits     *time.Duration // since when the call waits for Redis that has the owner mutex; nil: none waits
	stack     *[]uintptr     // of the call that has acquired the lock, if there are warnings of holds; or nil
}

// Field returns the field that h has, or that its claim asks with; nil if the claim has not asked yet.
func (h *hold) Field() *tenancy.Field { return h.FieldOf(&h.Claim) }

// isOver reports whether h has ended, or its claim was given up.
func (h *hold) isOver() bool { return h.State() == tenancy.Ended || h.IsGivenUp() }

// heldLocked returns nil, or why the owner does not have the hold any more.
func (h *hold) heldLocked() error {
	if h.Holds() {
		return nil
	}
	return cmp.Or(h.loss, ErrNotHeld)
}

// lossOf returns why the hold was lost, or nil.
func lossOf(h *hold) error {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	return h.loss
}

// notHeldError returns the error of a call of o that needs a hold on the lock with this id.
func (s *lockState) notHeldError(id contract.LockID, o Owner) error {
	s.Lock()
	defer s.Unlock()
	o = o.principal()
	for h := range s.holds.all() {
		switch {
		case h.half() != id.Half || !h.Holds():
		case h.owner.principal() == o:
			return fmt.Errorf("%w: called by %v, which has acquired it only through a RedLock", ErrNotHeld, o)
		default:
			return fmt.Errorf("%w: called by %v, but held by %v in this process", ErrNotHeld, o, h.owner.principal())
		}
	}
	return fmt.Errorf("%w: called by %v, but not held by any owner in this process", ErrNotHeld, o)
}

// remember remembers h, which was lost, and whose owner perhaps never unlocks it, among latest. It forgets the oldest one
// for that if there are too many.
func remember(latest chan *hold, h *hold) {
	for {
		select {
		case latest <- h:
			return
		default:
			oldest := <-latest
			oldest.lockState.forget(oldest)
		}
	}
}

// waitsForRedis notes that the call that has the owner mutex waits, since then, until it unlocks that, because another
// process has the lock.
func (h *hold) waitsForRedis(since *time.Duration) {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	h.waits = since
	h.wakerLocked()
	if h.queue != nil {
		h.queue.policy.Interrupted()
	}
}

// age returns how long h has been held.
func (h *hold) age() time.Duration { return h.lockState.engine.watchdog.Now() - h.since }

// startRenewal makes the watchdog renew h from now on, if its lease was explicit.
func (h *hold) startRenewal() {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	if e := h.lockState.engine; h.Holds() {
		e.watchdog.Renew(&h.record.lease, e.WatchdogTimeout)
	}
}

// checkIfForcedLocked is called for a hold that was acquired by a request which was sent at sent, on the clock of the
// watchdog. If a forced release was answered since, or a hint has come, the record may have been deleted.
func checkIfForcedLocked(h *hold, sent time.Duration) {
	if s := h.lockState; sent < s.forced {
		s.engine.watchdog.Check(&h.record.lease)
	}
}

// A record is what this process knows of the record that one or more of its holds have in Redis.
type record struct {
	first *hold // the hold whose attempt was granted: its lock state and lock are those of the record
	// answeredAt is when the answer that granted the record came, on the clock of the watchdog. Newcomers may share the
	// record for a time that is counted from then; validity is counted from before the request.
	answeredAt time.Duration
	lease      lease.Lease

	// guarded by lockState.mu of first
	holds  []*hold    // those that have the record now
	room   [1]*hold   // memory for holds
	tokens tokenBlock // for the holds that the record is handed off to
	ended  bool       // see endLocked
}

// newRecord returns the record of h, which was granted by an answer that came at answeredAt.
func newRecord(h *hold, answeredAt time.Duration) *record {
	r := &h.lockState.record
	if r.first != nil { // others may refer to the first one
		r = new(record)
	}
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
	r.ended = true
	r.first.lockState.endSharingLocked(r)
	r.first.lockState.engine.watchdog.Remove(&r.lease)
}

// holdsNow returns the holds that have the record now.
func (r *record) holdsNow() []*hold {
	r.first.lockState.Lock()
	defer r.first.lockState.Unlock()
	return append([]*hold(nil), r.holds...)
}

// isKeptLocked reports whether further holds may use r: it has not ended, and enough of its validity is left. That of an
// explicit lease has to last until the first renewal.
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
