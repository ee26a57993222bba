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

// newClaimIn returns a claim in this state, as the events make it.
func newClaimIn(state ClaimState) *Claim {
	c := &Claim{field: new(Field), state: state}
	if c.IsAdopted() {
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
			[...]ClaimState{Asking, impossible, impossible, impossible},
		},
		"adopts": {
			func(c *Claim) { c.Adopts(new(Field)) },
			[...]ClaimState{Adopted, impossible, impossible, impossible},
		},
		"granted": {
			func(c *Claim) { new(Hold).Acquired(c, c.field) },
			[...]ClaimState{Granted, Granted, impossible, impossible},
		},
		"granted another field": {
			func(c *Claim) { new(Hold).Acquired(c, new(Field)) },
			[...]ClaimState{Granted, impossible, impossible, impossible},
		},
		"given up": {
			(*Claim).GivesUp,
			[...]ClaimState{GivenUp, GivenUp, impossible, impossible},
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
