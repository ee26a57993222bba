package tenancy

// Claims: what a call wants of one lock for its owner, until it has a hold.
//
//	Asking ─────────────── adopts ──────────► Adopted
//	Asking, Adopted ────── granted ─────────► Granted
//	Asking, Adopted ────── gives up ────────► GivenUp
//
// Rules: each method that changes a claim is one event. A claim that was left a field is a user of it, from then
// until it was granted or given up. A claim that was granted has no field any more: its hold has it. An event that is
// impossible in the state of the claim leaves everything as it is: see Strict.

import "fmt"

// A ClaimState is the state of a claim.
type ClaimState uint8

const (
	Asking  ClaimState = iota // its caller asks, or waits until it may
	Adopted                   // left a record: its caller has to adopt it by an attempt with the field of that record
	Granted                   // there is a hold
	GivenUp                   // there is no hold, and there will be none
)

func (s ClaimState) String() string {
	return [...]string{"asking", "adopted", "granted", "given up"}[s]
}

// A Claim is what a call wants of one lock. The zero value asks, and has no field.
type Claim struct {
	field *Field
	state ClaimState
}

// Asks reports whether the lock is not acquired yet: the caller asks Redis, or waits until it may.
func (c *Claim) Asks() bool { return c.state <= Adopted }

// IsAdopted reports whether the caller was left a record, with whose field it asks: the claim is a user of it.
func (c *Claim) IsAdopted() bool { return c.state == Adopted }

// IsGivenUp reports whether the claim was given up.
func (c *Claim) IsGivenUp() bool { return c.state == GivenUp }

// can reports whether an event is possible, as ok says.
func (c *Claim) can(ok bool, event string) bool {
	return ok || impossible(fmt.Sprintf("a claim that is %v %s", c.state, event))
}

// AsksWith makes the caller ask with the field f from now on.
func (c *Claim) AsksWith(f *Field) {
	if c.can(c.state == Asking, "asks with another field") {
		c.field = f
	}
}

// Adopts leaves the field f, and the record that it has in Redis, to the claim, which has to adopt them by an attempt of
// its own. The claim uses f from now on.
func (c *Claim) Adopts(f *Field) {
	if c.can(c.state == Asking, "was left a field") {
		f.Use()
		c.field, c.state = f, Adopted
	}
}

// GivesUp notes that the caller does not acquire the lock.
func (c *Claim) GivesUp() {
	if !c.can(c.Asks(), "was given up") {
		return
	}
	if c.IsAdopted() {
		c.field.Leave()
	}
	c.state = GivenUp
}

// granted ends the claim: a hold with the field f begins, which is a user of f. It reports whether that is possible.
func (c *Claim) granted(f *Field) bool {
	if !c.can(c.Asks() && !(c.IsAdopted() && c.field != f), "was granted a field") {
		return false
	}
	if !c.IsAdopted() {
		f.Use()
	}
	c.field, c.state = nil, Granted
	return true
}
