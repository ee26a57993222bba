package engine

// Counterparts: the owner of an attempt on one half of a read/write lock may hold the other half.
//
// Rules: an attempt names the field of the hold that its owner has on the counterpart, so that the script lets the
// owner pass. A hold whose field was sent like that is neither handed off nor shared: the attempt would let its owner
// pass the next holder of that field.

import (
	"slices"

	"github.com/relock-go/relock/internal/contract"
)

// withCounterparts returns targets with the fields of the holds that their owner has on the counterparts now. The owner
// may have acquired a counterpart while this caller waited.
func withCounterparts(targets []target) []target {
	var changed []target
	for i, t := range targets {
		if t.hold.lock.Traits().Counterpart == (contract.LockID{}) {
			continue
		}
		other := t.hold.lockState.find(t.hold.lock.Traits().Counterpart, t.hold.owner)
		if other == nil {
			other = counterpartAmong(targets, t)
		}
		if other == nil || other.Field().ID == t.Counterpart || !other.noteFieldSent() {
			continue
		}
		if changed == nil { // a new slice: an abandoned attempt still reads the old one
			changed = slices.Clone(targets)
		}
		changed[i].Counterpart = other.Field().ID
	}
	if changed != nil {
		return changed
	}
	return targets
}

// noteFieldSent notes that an attempt on the counterpart is going to name the field of h, so that h is not handed off
// or shared from now on. It returns false if the field must not be sent: h has ended or was lost, or shares its record
// with a hold whose owner does not ask for the counterpart, and which blocks the attempt as well. The record of a hold
// that was lost may still be there for a moment, and an attempt that passes it would make it last for longer.
func (h *hold) noteFieldSent() bool {
	h.expireIfDue()
	s := h.lockState
	s.Lock()
	defer s.Unlock()
	if h.isOver() || h.IsLost() {
		return false
	}
	h.fieldSent = true
	if h.Wanted() {
		return true
	}
	for _, other := range h.record.holds {
		if other != h && other.counterpartLocked() == nil {
			return false
		}
	}
	s.endSharingLocked(h.record)
	return true
}

// counterpartAmong returns the hold among targets that is on the counterpart of t, or nil.
func counterpartAmong(targets []target, t target) *hold {
	for _, other := range targets {
		if other.hold.id() == t.hold.lock.Traits().Counterpart {
			return other.hold
		}
	}
	return nil
}
