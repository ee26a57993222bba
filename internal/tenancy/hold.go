package tenancy

// Holds: what one owner has of one lock, from when its claim was granted.
//
//	None ────────── acquired ──► Holding
//	Holding ─────── lost ──────► Lost; Expired, if the lease was explicit, and has run out
//	Lost, Expired ─ reported ──► LossReported
//	any but None ── ended ─────► Ended
//
// Beside its state, a hold is told or not: a call tells the Observer, and returns to its owner, that it has the hold. As
// long as it is not told, nobody relies on it: its end is no event, and MinHold does not apply.
//
// Rules: each method that changes a hold is one event. A hold is a user of its field while it holds the lock: the events
// begin and end the use. The hold count is 1 when the lock was acquired, and 0 when the hold has ended. An event that is
// impossible in the state of the hold leaves everything as it is: see Strict.

import (
	"fmt"
	"slices"
)

// A State is the state of a hold. As a rule, it goes from None to Holding, and from there to Lost or Ended.
type State uint8

const (
	None         State = iota // its claim was not granted
	Holding                   // acquired
	Lost                      // lost, and its owner does not know yet
	Expired                   // lost because its explicit lease has expired: it needs no Unlock
	LossReported              // lost, and an acquire has returned the loss to its owner
	Ended                     // released, handed off, or detached
)

// possible has the states that may follow each state.
var possible = [...][]State{
	None:         {Holding},
	Holding:      {Lost, Expired, Ended},
	Lost:         {LossReported, Ended},
	Expired:      {LossReported, Ended},
	LossReported: {Ended},
	Ended:        {},
}

func (s State) String() string {
	return [...]string{"not there yet", "holding", "lost", "expired", "lost and reported", "over"}[s]
}

// A Hold is what one owner has of one lock. The zero value is that of a claim that was not granted.
type Hold struct {
	field *Field
	count int32
	state State
	told  bool
}

// State returns the state of the hold.
func (h *Hold) State() State { return h.state }

// Count returns the hold count.
func (h *Hold) Count() int { return int(h.count) }

// FieldOf returns the field that the hold has, or that its claim c asks with; nil if the claim has not asked yet. That of
// a hold never changes, so the engine asks for it also without the mutex.
func (h *Hold) FieldOf(c *Claim) *Field {
	if h.field != nil {
		return h.field
	}
	return c.field
}

// Holds reports whether the owner holds the lock.
func (h *Hold) Holds() bool { return h.state == Holding }

// IsLost reports whether the hold was lost, and not released since.
func (h *Hold) IsLost() bool { return h.state >= Lost && h.state <= LossReported }

// becomes changes the state, if that is possible.
func (h *Hold) becomes(next State) {
	if !h.can(slices.Contains(possible[h.state], next), next.String()) {
		return
	}
	if h.Holds() {
		h.field.Leave()
	}
	h.state = next
}

// can reports whether an event is possible, as ok says.
func (h *Hold) can(ok bool, event string) bool {
	return ok || impossible(fmt.Sprintf("a hold that is %v became %s", h.state, event))
}

// Acquired makes the owner hold the lock, which the claim c was granted, with the field f. It reports whether that is
// possible.
func (h *Hold) Acquired(c *Claim, f *Field) bool {
	if !h.can(h.state == None, "acquired") || !c.granted(f) {
		return false
	}
	h.state, h.field, h.count = Holding, f, 1
	return true
}

// Told notes that a call tells that it has the hold. It may have ended, or may have been lost, since it was acquired.
func (h *Hold) Told() {
	h.told = h.can(h.state != None, "told")
}

// IsTold reports whether Told was called.
func (h *Hold) IsTold() bool { return h.told }

// Reentered increments the hold count of a hold that was acquired once more.
func (h *Hold) Reentered() {
	if h.can(h.Holds(), "acquired once more") {
		h.count++
	}
}

// Lowered decrements the hold count, and returns what is left. A hold that has ended stays as it is.
func (h *Hold) Lowered() (left int) {
	if h.count > 0 {
		h.count--
	}
	return int(h.count)
}

// Lost notes that the owner has lost the lock. ranOut is set if an explicit lease has run out.
func (h *Hold) Lost(ranOut bool) {
	if ranOut {
		h.becomes(Expired)
	} else {
		h.becomes(Lost)
	}
}

// Reported notes that an acquire returns the loss to the owner, if the hold was lost.
func (h *Hold) Reported() {
	if h.state == Lost || h.state == Expired {
		h.becomes(LossReported)
	}
}

// Ended notes that the owner has released the lock.
func (h *Hold) Ended() {
	h.becomes(Ended)
	h.count = 0
}
