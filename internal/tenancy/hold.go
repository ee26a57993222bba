package tenancy

// Holds: what one owner has of one lock.
//
//	          adopts                 runs
//	Fresh ──────────────► Adopting ────────► Fresh
//	Fresh ── acquired ──► Holding
//	Fresh ── handed ────► Handed ── runs ──► Holding
//	Handed, Holding ───── lost ────────────► Lost; Expired, if the lease was explicit, and has run out
//	Lost, Expired ─────── reported ────────► LossReported
//	any ───────────────── ended ───────────► Ended
//
// Rules: each method that changes a hold is one event. A hold is a user of its field while it holds the lock, and while
// it is about to adopt the field: the events begin and end the use. The hold count is 1 when the lock was acquired, and
// 0 when the hold has ended. An event that is impossible in the state of the hold leaves everything as it is, and
// returns an error that wraps ErrImpossible.

import (
	"errors"
	"fmt"
	"slices"
)

// ErrImpossible is wrapped by the errors of events that cannot happen.
var ErrImpossible = errors.New("bug in relock, please report it")

// A State is the state of a hold. As a rule, it goes from Fresh to Holding, and from there to Lost or Ended.
type State uint8

const (
	Fresh        State = iota // not acquired yet
	Adopting                  // left a record, which an attempt has to adopt, and its caller has not run since
	Handed                    // acquired by a hand-off, or by sharing a record, and its caller has not run since
	Holding                   // acquired
	Lost                      // lost, and its owner does not know yet
	Expired                   // lost because its explicit lease has expired: it needs no Unlock
	LossReported              // lost, and an acquire has returned the loss to its owner
	Ended                     // released, handed off, detached, or given up before it was acquired
)

// possible has the states that may follow each state.
var possible = [...][]State{
	Fresh:        {Adopting, Handed, Holding, Ended},
	Adopting:     {Fresh},
	Handed:       {Holding, Lost, Expired, Ended},
	Holding:      {Lost, Expired, Ended},
	Lost:         {LossReported, Ended},
	Expired:      {LossReported, Ended},
	LossReported: {Ended},
	Ended:        {},
}

var names = [...]string{
	"fresh", "adopting", "handed", "holding", "lost", "expired", "loss reported", "ended",
}

func (s State) String() string { return names[s] }

// holds reports whether the owner holds the lock.
func (s State) holds() bool { return s == Handed || s == Holding }

// A Hold is what one owner has of one lock. The zero value is fresh, and has no field.
type Hold struct {
	field  *Field
	count  int32
	state  State
	adopts bool // it uses the field that it is going to adopt
}

// OverWith returns a hold that has ended with the field f.
func OverWith(f *Field) Hold { return Hold{field: f, state: Ended} }

// State returns the state of the hold.
func (h *Hold) State() State { return h.state }

// Count returns the hold count.
func (h *Hold) Count() int { return int(h.count) }

// Field returns the field that the hold has, or asks with; nil if it has not asked yet.
func (h *Hold) Field() *Field { return h.field }

// Wanted reports whether the lock is not acquired yet.
func (h *Hold) Wanted() bool { return h.state <= Adopting }

// Holds reports whether the owner holds the lock.
func (h *Hold) Holds() bool { return h.state.holds() }

// IsLost reports whether the hold was lost, and not released since.
func (h *Hold) IsLost() bool { return h.state >= Lost && h.state <= LossReported }

// uses reports whether the hold is a user of its field.
func (h *Hold) uses() bool { return h.adopts || h.Holds() }

// becomes changes the state, if that is possible.
func (h *Hold) becomes(next State) error {
	if !slices.Contains(possible[h.state], next) {
		return fmt.Errorf("%w: a hold that is %v became %v", ErrImpossible, h.state, next)
	}
	used := h.Holds()
	h.state = next
	if used && !h.Holds() {
		h.field.Leave()
	}
	return nil
}

// AsksWith makes the hold ask with the field f from now on.
func (h *Hold) AsksWith(f *Field) error {
	if h.state != Fresh || h.uses() {
		return fmt.Errorf("%w: a hold that is %v, and uses a field, asks with another one", ErrImpossible, h.state)
	}
	h.field = f
	return nil
}

// Adopts leaves the field f, and the record that it has in Redis, to the hold, which has to adopt them by an attempt of
// its own. It uses f until it has ended.
func (h *Hold) Adopts(f *Field) error {
	if h.adopts {
		return fmt.Errorf("%w: a hold that has adopted a field adopts another one", ErrImpossible)
	}
	err := h.becomes(Adopting)
	if err == nil {
		f.Use()
		h.field, h.adopts = f, true
	}
	return err
}

// Acquired makes the owner hold the lock with the field f.
func (h *Hold) Acquired(f *Field) error { return h.joins(f, Holding) }

// Handed makes the owner hold the lock with the field f of another hold. Its caller is about to run.
func (h *Hold) Handed(f *Field) error { return h.joins(f, Handed) }

func (h *Hold) joins(f *Field, next State) error {
	if h.state != Fresh { // Handed becomes Holding without joining anything
		return fmt.Errorf("%w: a hold that is %v joined a record", ErrImpossible, h.state)
	}
	if h.adopts && h.field != f {
		return fmt.Errorf("%w: a hold has adopted one field, and was granted another one", ErrImpossible)
	}
	if !h.adopts {
		f.Use()
	}
	h.state, h.field, h.adopts, h.count = next, f, false, 1
	return nil
}

// Runs notes that the caller runs to which the lock or a record was handed off. The hold may have ended, or may have
// been lost, since.
func (h *Hold) Runs() error {
	switch h.state {
	case Adopting:
		return h.becomes(Fresh)
	case Handed:
		return h.becomes(Holding)
	}
	return nil
}

// Reentered increments the hold count of a hold that was acquired once more.
func (h *Hold) Reentered() error {
	if !h.Holds() {
		return fmt.Errorf("%w: a hold that is %v was acquired once more", ErrImpossible, h.state)
	}
	h.count++
	return nil
}

// Lowered decrements the hold count, and returns what is left. A hold that has ended stays as it is.
func (h *Hold) Lowered() (left int) {
	if h.count > 0 {
		h.count--
	}
	return int(h.count)
}

// Lost notes that the owner has lost the lock. ranOut is set if an explicit lease has run out.
func (h *Hold) Lost(ranOut bool) error {
	if ranOut {
		return h.becomes(Expired)
	}
	return h.becomes(Lost)
}

// Reported notes that an acquire returns the loss to the owner, if the hold was lost.
func (h *Hold) Reported() error {
	if h.state == Lost || h.state == Expired {
		return h.becomes(LossReported)
	}
	return nil
}

// Ended notes that the owner has released the lock, or does not acquire it.
func (h *Hold) Ended() error {
	err := h.becomes(Ended)
	if err != nil {
		return err
	}
	if h.count = 0; h.adopts {
		h.adopts = false
		h.field.Leave()
	}
	return nil
}
