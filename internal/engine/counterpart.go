package engine

// The two halves of a read/write lock in one attempt: an owner may hold the other half of a lock that it asks for.
//
// Rules: an attempt names the field of the owner's hold on the other half, so that the script lets it pass. A hold that
// was named is not handed over and not shared: the attempt would be granted beside its successor.

import "slices"

// withCounterparts is targets with the holds that their owner has on the other halves by
// now: the owner may acquire one while this caller waits.
func withCounterparts(targets []target) []target {
	var changed []target
	for i, t := range targets {
		if t.hold.lock.Counterpart() == (LockID{}) {
			continue
		}
		other := t.hold.name.find(t.hold.lock.Counterpart(), t.hold.key.owner)
		if other == nil {
			other = counterpartAmong(targets, t)
		}
		if other == nil || other.field == t.Counterpart || !other.noteFieldSent() {
			continue
		}
		if changed == nil { // an abandoned attempt still reads the old wants
			changed = slices.Clone(targets)
		}
		changed[i].Counterpart = other.field
	}
	if changed != nil {
		return changed
	}
	return targets
}

// noteFieldSent notes that the field of h is going to be sent by an attempt on the other half, so that h is not handed
// over or shared. It returns false if h is over by now. It also returns false if h is shared: then other holds are
// in the way beside h, unless they all ask for the other half.
func (h *hold) noteFieldSent() bool {
	s := h.name
	s.Lock()
	defer s.Unlock()
	if h.state == ended {
		return false
	}
	h.fieldSent = true
	if h.state.wanted() {
		return true
	}
	for _, other := range h.record.holds {
		if other != h && s.counterpartLocked(other) == nil {
			return false
		}
	}
	s.endSharingLocked(h.record)
	return true
}

// counterpartAmong is the hold among targets that is on the other half of t, or nil.
func counterpartAmong(targets []target, t target) *hold {
	for _, other := range targets {
		if other.hold.key.id == t.hold.lock.Counterpart() {
			return other.hold
		}
	}
	return nil
}
