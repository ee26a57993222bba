package tenancy

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// newHoldIn returns a hold in this state, as the events make it.
func newHoldIn(state State) *Hold {
	h := &Hold{state: state}
	if state != None {
		h.field = new(Field)
	}
	if state != None && state != Ended {
		h.count = 1
	}
	if h.Holds() {
		h.field.Use()
	}
	return h
}

// Each event leads from a state to one other state, or leaves it as it is. All others are impossible, and change nothing.
func TestEventsOfAHold(t *testing.T) {
	const impossible State = 255
	events := map[string]struct {
		do    func(h *Hold)
		after [Ended + 1]State // by the state before
	}{
		"acquired": {
			func(h *Hold) { h.Acquired(new(Claim), new(Field)) },
			[...]State{Holding, impossible, impossible, impossible, impossible, impossible},
		},
		"told": {
			(*Hold).Told,
			[...]State{impossible, Holding, Lost, Expired, LossReported, Ended},
		},
		"reentered": {
			(*Hold).Reentered,
			[...]State{impossible, Holding, impossible, impossible, impossible, impossible},
		},
		"lost": {
			func(h *Hold) { h.Lost(false) },
			[...]State{impossible, Lost, impossible, impossible, impossible, impossible},
		},
		"ran out": {
			func(h *Hold) { h.Lost(true) },
			[...]State{impossible, Expired, impossible, impossible, impossible, impossible},
		},
		"reported": {
			(*Hold).Reported,
			[...]State{None, Holding, LossReported, LossReported, LossReported, Ended},
		},
		"ended": {
			func(h *Hold) { h.Ended() },
			[...]State{impossible, Ended, Ended, Ended, Ended, impossible},
		},
	}
	for name, event := range events {
		for before := None; before <= Ended; before++ {
			h := newHoldIn(before)
			was, field := *h, Field{}
			if h.field != nil {
				field = *h.field
			}
			done := happens(func() { event.do(h) })
			if after := event.after[before]; after != impossible {
				assert.True(t, done, "%s: a hold that was %v", name, before)
				assert.Equal(t, after, h.State(), "%s: a hold that was %v", name, before)
				continue
			}
			assert.False(t, done, "%s: a hold that was %v", name, before)
			assert.Equal(t, was, *h, "%s: it stays as it is", name)
			if was.field != nil {
				assert.Equal(t, field, *was.field, "%s: so does its field", name)
			}
		}
	}
}

// In all orders of six events, which come to two claims and their holds with one field: they use the field if and only
// if the owner holds the lock, or is about to adopt the field, and a hold has a hold count if it was acquired, and was
// not released.
func TestHoldsUseTheirFieldWhileTheyNeedIt(t *testing.T) {
	const length = 6
	type owner struct {
		Claim
		hold Hold
	}
	events := []func(o *owner, f *Field){
		func(o *owner, f *Field) { o.hold.Acquired(&o.Claim, f) },
		func(o *owner, f *Field) { o.Adopts(f) },
		func(o *owner, _ *Field) { o.GivesUp() },
		func(o *owner, _ *Field) { o.hold.Told() },
		func(o *owner, _ *Field) { o.hold.Lost(true) },
		func(o *owner, _ *Field) { o.hold.Ended() },
	}
	var play func(owners [2]owner, users int32, left int)
	order, played := make([]int, 0, length), 0
	play = func(owners [2]owner, users int32, left int) {
		f := &Field{users: users}
		for i := range owners {
			for _, at := range []**Field{&owners[i].field, &owners[i].hold.field} {
				if *at != nil {
					*at = f
				}
			}
		}
		if left == 0 {
			played++
			return
		}
		before := owners
		for event := range 2 * len(events) {
			owners, f.users = before, users
			order = append(order[:length-left], event)
			if !happens(func() { events[event/2](&owners[event%2], f) }) {
				if before != owners || f.users != users {
					t.Fatalf("%v: an event that is impossible has changed something", order)
				}
				continue
			}
			var uses int32
			for i := range owners {
				o := &owners[i]
				if o.hold.Holds() || o.IsAdopted() {
					uses++
				}
				if o.hold.Holds() && o.IsAdopted() {
					t.Fatalf("%v: the claim and its hold both use the field", order)
				}
				if began := o.state == Granted; began != (o.hold.State() != None) {
					t.Fatalf("%v: a claim that is %v has a hold that is %v", order, o.state, o.hold.State())
				}
				if has := o.hold.State() != None && o.hold.State() != Ended; has != (o.hold.Count() > 0) {
					t.Fatalf("%v: a hold that is %v has the hold count %d", order, o.hold.State(), o.hold.Count())
				}
			}
			if f.users != uses || f.InUse() != (uses > 0) {
				t.Fatalf("%v: the field has %d users, and %d holds and claims use it", order, f.users, uses)
			}
			play(owners, f.users, left-1)
		}
	}
	play([2]owner{}, 0, length)
	assert.Greater(t, played, 1000, "orders")
}

// Each Unlock takes one from the hold count, and none too many.
func TestHoldCountIsThatOfTheUnlocksToCome(t *testing.T) {
	var h Hold
	h.Acquired(new(Claim), new(Field))
	h.Reentered()
	h.Reentered()
	assert.Equal(t, 2, h.Lowered())
	h.Lost(false)
	assert.Equal(t, 1, h.Lowered(), "also after a loss")
	assert.Zero(t, h.Lowered())
	h.Ended()
	assert.Zero(t, h.Lowered())
	assert.Panics(t, func() { h.Ended() })
	Strict = false
	defer func() { Strict = true }()
	h.Reentered()
	assert.Zero(t, h.Count(), "in a service everything stays as it is")
}
