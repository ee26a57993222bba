package engine

// The two halves of a read/write lock in one attempt: an owner may hold the other half of a lock that it asks for.
//
// Rules: an attempt names the field of the owner's hold on the other half, so that the script lets it pass. A hold that
// was named is not handed over and not shared: the attempt would be granted beside its successor.

import "slices"

// withCounterparts is wants with the holds that their owner has on the other halves by
// now: the owner may acquire one while this caller waits.
func withCounterparts(wants []target) []target {
	var changed []target
	for i, w := range wants {
		if w.hold.lock.Counterpart() == (LockID{}) {
			continue
		}
		other := w.hold.name.find(w.hold.lock.Counterpart(), w.hold.key.owner)
		if other == nil {
			other = counterpartAmong(wants, w)
		}
		if other == nil || other.field == w.Counterpart || !other.noteFieldSent() {
			continue
		}
		if changed == nil { // an abandoned attempt still reads the old wants
			changed = slices.Clone(wants)
		}
		changed[i].Counterpart = other.field
	}
	if changed != nil {
		return changed
	}
	return wants
}

// noteFieldSent notes that the field of h is going to be sent by an attempt on the other half, so that h is not handed
// over or shared. It returns false if h is over by now. It also returns false if h is shared: then other holds are
// in the way beside h, unless they all ask for the other half.
func (h *hold) noteFieldSent() bool {
	n := h.name
	n.Lock()
	defer n.Unlock()
	if h.state == ended {
		return false
	}
	h.fieldSent = true
	if h.state.wanted() {
		return true
	}
	for _, other := range h.record.holds {
		if other != h && n.counterpartLocked(other) == nil {
			return false
		}
	}
	n.endSharingLocked(h.record)
	return true
}

// counterpartAmong is the hold among wants that is on the other half of w, or nil.
func counterpartAmong(wants []target, w target) *hold {
	for _, other := range wants {
		if other.hold.key.id == w.hold.lock.Counterpart() {
			return other.hold
		}
	}
	return nil
}
