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
// is not handed off, and a goroutine that has a request under way finds out afterwards: see lossLocked and
// dismissLocked.

import (
	"cmp"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/guard"
	"github.com/relock-go/relock/internal/tenancy"
	"github.com/relock-go/relock/internal/waitqueue"
)

// expiredKept is how many lost holds with explicit leases an engine remembers, so that a late Unlock returns
// ErrLockLost.
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
	own          record                     // memory for the record that this hold makes
	fieldRoom    tenancy.Field              // memory for its first field
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

// rememberExpired remembers h, which was lost, and whose owner perhaps never unlocks it. It forgets the oldest one for that
// if there are too many.
func (e *Engine) rememberExpired(h *hold) {
	for {
		select {
		case e.expired <- h:
			return
		default:
			oldest := <-e.expired
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
// watchdog. If a forced release was answered since, or a hint has come, or may have been lost, the record may have been
// deleted.
func checkIfForcedLocked(h *hold, sent time.Duration) {
	s := h.lockState
	if e := s.engine; sent < max(s.forced, time.Duration(e.swept.Load())) {
		e.watchdog.Check(&h.record.lease)
	}
}
