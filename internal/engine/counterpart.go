package engine

// Counterparts: the owner of an attempt on one half of a read/write lock may hold the other half.
//
// Rules: an attempt names the field of the hold that its owner has on the counterpart, so that the script lets the
// owner pass. A hold whose field was sent like that is neither handed off nor shared: the attempt would let its owner
// pass the next holder of that field.

import (
	"github.com/relock-go/relock/internal/contract"
)

// nameCounterpart makes the attempt name the field of the hold that its owner has on the counterpart now. The owner may
// have acquired the counterpart while this caller waited.
func (t *target) nameCounterpart() {
	if t.hold.lock.Traits().Counterpart == (contract.LockID{}) {
		return
	}
	other := t.hold.lockState.find(t.hold.lock.Traits().Counterpart, t.hold.owner)
	if other != nil && other.Field().ID != t.Counterpart && noteFieldSent(other) {
		t.Counterpart = other.Field().ID
	}
}

// noteFieldSent notes that an attempt on the counterpart is going to name the field of h, so that h is not handed off
// or shared from now on. It returns false if the field must not be sent: h has ended or was lost, or shares its record
// with a hold whose owner does not ask for the counterpart, and which blocks the attempt as well. The record of a hold
// that was lost may still be there for a moment, and an attempt that passes it would make it last for longer.
func noteFieldSent(h *hold) bool {
	h.expireIfDue()
	s := h.lockState
	s.Lock()
	defer s.Unlock()
	if h.isOver() || h.IsLost() {
		return false
	}
	h.fieldSent = true
	for _, other := range h.record.holds {
		if other != h && other.counterpartLocked() == nil {
			return false
		}
	}
	s.endSharingLocked(h.record)
	return true
}
