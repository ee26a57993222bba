package tenancy

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func init() { Strict = true }

// happens does an event, and reports whether it is possible.
func happens(event func()) (possible bool) {
	defer func() { possible = recover() == nil }()
	event()
	return true
}

// The states of a claim, and what its methods report.
func TestClaimStates(t *testing.T) {
	all := map[ClaimState]struct{ wanted, asks, adopting, givenUp, uses bool }{
		Asking:   {wanted: true, asks: true},
		Adopting: {wanted: true, adopting: true, uses: true},
		Adopted:  {wanted: true, asks: true, uses: true},
		Granted:  {},
		GivenUp:  {givenUp: true},
	}
	assert.Len(t, all, int(GivenUp)+1, "all states are here")
	for s, of := range all {
		c := Claim{state: s}
		assert.Equal(t, of.wanted, c.Wanted(), "%v: wanted", s)
		assert.Equal(t, of.asks, c.Asks(), "%v: asks", s)
		assert.Equal(t, of.adopting, c.IsAdopting(), "%v: adopting", s)
		assert.Equal(t, of.givenUp, c.IsGivenUp(), "%v: given up", s)
		assert.Equal(t, of.uses, c.uses(), "%v: uses its field", s)
	}
}

// newClaimIn returns a claim in this state, as the events make it.
func newClaimIn(state ClaimState) *Claim {
	c := &Claim{field: new(Field), state: state}
	if c.uses() {
		c.field.Use()
	}
	if state == Granted {
		c.field = nil
	}
	return c
}

// Each event leads from a state of a claim to one other state. All others are impossible, and change nothing.
func TestEventsOfAClaim(t *testing.T) {
	const impossible ClaimState = 255
	events := map[string]struct {
		do    func(c *Claim)
		after [GivenUp + 1]ClaimState // by the state before
	}{
		"asks": {
			func(c *Claim) { c.AsksWith(new(Field)) },
			[...]ClaimState{Asking, impossible, impossible, impossible, impossible},
		},
		"adopts": {
			func(c *Claim) { c.Adopts(new(Field)) },
			[...]ClaimState{Adopting, impossible, impossible, impossible, impossible},
		},
		"runs": {
			(*Claim).Runs,
			[...]ClaimState{impossible, Adopted, impossible, impossible, impossible},
		},
		"granted": {
			func(c *Claim) { new(Hold).Acquired(c, c.field) },
			[...]ClaimState{Granted, impossible, Granted, impossible, impossible},
		},
		"granted another field": {
			func(c *Claim) { new(Hold).Acquired(c, new(Field)) },
			[...]ClaimState{Granted, impossible, impossible, impossible, impossible},
		},
		"given up": {
			(*Claim).GivesUp,
			[...]ClaimState{GivenUp, impossible, GivenUp, impossible, impossible},
		},
	}
	for name, event := range events {
		for before := Asking; before <= GivenUp; before++ {
			c := newClaimIn(before)
			was, field := *c, Field{}
			if c.field != nil {
				field = *c.field
			}
			done := happens(func() { event.do(c) })
			if after := event.after[before]; after != impossible {
				assert.True(t, done, "%s: a claim that was %v", name, before)
				assert.Equal(t, after, c.state, "%s: a claim that was %v", name, before)
				continue
			}
			assert.False(t, done, "%s: a claim that was %v", name, before)
			assert.Equal(t, was, *c, "%s: it stays as it is", name)
			if was.field != nil {
				assert.Equal(t, field, *was.field, "%s: so does its field", name)
			}
		}
	}
}

// A claim that has adopted one field is not granted another one, and does not ask with another one.
func TestAdoptedFieldIsTheFieldOfTheHold(t *testing.T) {
	var c Claim
	var h Hold
	f := new(Field)
	c.Adopts(f)
	c.Runs()
	assert.Panics(t, func() { c.AsksWith(new(Field)) })
	assert.Panics(t, func() { c.Adopts(new(Field)) })
	assert.Panics(t, func() { h.Acquired(&c, new(Field)) })
	assert.Same(t, f, h.FieldOf(&c))
	assert.True(t, h.Acquired(&c, f))
	assert.Nil(t, c.field, "it is that of the hold now")
	assert.Same(t, f, h.FieldOf(&c))
	assert.True(t, h.Ended())
	assert.Same(t, f, h.FieldOf(&c), "of a hold that has ended, too")
	assert.False(t, f.InUse())
}
