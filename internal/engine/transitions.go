package engine

// Transitions: all changes of the state of a claim, and of the hold that it becomes. Each of the methods here is one
// event of tenancy.Claim or tenancy.Hold, which have the pictures of the states, with what it means for the record and
// for the callers that wait.
//
// Rules: no other function calls an event. One that is impossible in the state of the claim or the hold is a bug of this
// package. In tests and in the simulator it panics. In a service the hold stays as it is, and ends as lost, with a cause
// that describes what has happened: that costs less than a crash, or a second holder.

import (
	"time"

	"github.com/relock-go/relock/internal/tenancy"
)

// doneLocked is called after an event of h, which held the lock before if held is set. It reports whether the event was
// possible: err is that of the event.
func (h *hold) doneLocked(held bool, err error) bool {
	if err == nil {
		if held && !h.Holds() && h.lockState.closed {
			h.lockState.engine.draining.end(1)
		}
		return true
	}
	if tenancy.Strict {
		panic(err)
	}
	h.lockState.oweLocked(duty{lose: h, cause: err})
	return false
}

// handedLocked makes h hold the lock with the record r of another hold, from since on. Its caller, which may wait, then
// has not the owner mutex.
func (h *hold) handedLocked(r *record, since time.Duration) {
	h.acquiredLocked(r, since)
	h.ownerQueue.Release()
}

// acquiredLocked makes h, whose claim was granted, hold the lock with the record r, from since on.
func (h *hold) acquiredLocked(r *record, since time.Duration) {
	if !h.doneLocked(false, h.Acquired(&h.Claim, r.first.Field())) {
		return
	}
	h.since, h.record = since, r
	if limits := h.lock.Traits().Limits; limits.MinHold > 0 {
		h.keepUntil = keptUntil(limits, h.lockState.engine.watchdog.Now())
	}
	h.lockState.wakeOwnerLocked(h)
	h.index = int32(len(r.holds))
	r.holds = append(r.holds, h)
}

// asksLocked makes the claim of h ask with the field f from now on.
func (h *hold) asksLocked(f *tenancy.Field) { h.doneLocked(false, h.AsksWith(f)) }

// adoptsLocked leaves the field f, and the record that it has in Redis, to the claim of h, which has to adopt it by an
// attempt of its own.
func (h *hold) adoptsLocked(f *tenancy.Field) { h.doneLocked(false, h.Adopts(f)) }

// adoptedLocked notes that the caller runs to which a record was left.
func (h *hold) adoptedLocked() { h.doneLocked(false, h.Runs()) }

// givesUpLocked notes that the caller of h does not acquire the lock.
func (h *hold) givesUpLocked() { h.doneLocked(false, h.GivesUp()) }

// reenteredLocked notes that the owner of h has acquired the lock once more.
func (h *hold) reenteredLocked() { h.doneLocked(true, h.Reentered()) }

// toldLocked notes that a call tells that it has h. The hold may have ended, or may have been lost, since it was acquired.
func (h *hold) toldLocked() { h.doneLocked(false, h.Told()) }

// lostLocked notes that the owner of h has lost the lock. ranOut is set if an explicit lease has run out.
func (h *hold) lostLocked(ranOut bool) { h.doneLocked(h.Holds(), h.Lost(ranOut)) }

// reportedLocked notes that an acquire returns the loss of h to its owner, if it was lost.
func (h *hold) reportedLocked() { h.doneLocked(false, h.Reported()) }

// endedLocked notes that the owner of h has released the lock.
func (h *hold) endedLocked() { h.doneLocked(h.Holds(), h.Ended()) }

// wakeOwnerLocked wakes the caller of the owner of h that waits for its counterpart. Now that the owner holds the lock,
// Redis grants or refuses its attempt at once.
func (s *lockState) wakeOwnerLocked(h *hold) {
	if other := h.counterpartLocked(); other != nil && other.Wanted() {
		wakeCaller(other.changed)
	}
}
