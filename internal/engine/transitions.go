package engine

// Transitions: how a hold begins and ends, with what that means for the record and for the callers that wait. The states
// and their other events are in internal/tenancy.

import "time"

// handedLocked makes h hold the lock with the record r of another hold, from since on. Its caller, which may wait, then
// has not the owner mutex.
func (h *hold) handedLocked(r *record, since time.Duration) {
	h.acquiredLocked(r, since)
	h.ownerQueue.Release()
}

// acquiredLocked makes h, whose claim was granted, hold the lock with the record r, from since on.
func (h *hold) acquiredLocked(r *record, since time.Duration) {
	if !h.Acquired(&h.Claim, r.first.Field()) {
		return
	}
	h.since, h.record = since, r
	if limits := h.lock.Traits().Limits; limits.MinHold > 0 {
		h.keepUntil = endOf(limits.MinHold, h.lockState.engine.watchdog.Now())
	}
	h.lockState.wakeOwnerLocked(h)
	h.index = int32(len(r.holds))
	r.holds = append(r.holds, h)
}

// wakeOwnerLocked wakes the caller of the owner of h that waits for its counterpart. Now that the owner holds the lock,
// Redis grants or refuses its attempt at once.
func (s *lockState) wakeOwnerLocked(h *hold) {
	if other := h.counterpartLocked(); other != nil && other.Asks() {
		other.wakeLocked()
	}
}
