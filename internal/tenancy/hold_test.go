package tenancy

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// The states of a hold, and what its methods report.
func TestHoldStates(t *testing.T) {
	all := map[State]struct{ wanted, holds, isLost bool }{
		Fresh:        {wanted: true},
		Adopting:     {wanted: true},
		Handed:       {holds: true},
		Holding:      {holds: true},
		Lost:         {isLost: true},
		Expired:      {isLost: true},
		LossReported: {isLost: true},
		Ended:        {},
	}
	assert.Len(t, all, int(Ended)+1, "all states are here")
	for s, c := range all {
		h := Hold{state: s}
		assert.Equal(t, c.wanted, h.Wanted(), "%v: wanted", s)
		assert.Equal(t, c.holds, h.Holds(), "%v: holds", s)
		assert.Equal(t, c.isLost, h.IsLost(), "%v: isLost", s)
	}
}

// newHoldIn returns a hold in this state, as the events make it.
func newHoldIn(state State) *Hold {
	h := &Hold{field: new(Field), state: state}
	if h.count = 1; h.Wanted() || state == Ended {
		h.count = 0
	}
	if h.adopts = state == Adopting; h.uses() {
		h.field.Use()
	}
	return h
}

// Each event leads from a state to one other state, or leaves it as it is. All others are impossible, and change nothing.
func TestEventsOfAHold(t *testing.T) {
	const impossible State = 255
	events := map[string]struct {
		do    func(h *Hold) error
		after [Ended + 1]State // by the state before
	}{
		"asks": {
			func(h *Hold) error { return h.AsksWith(new(Field)) },
			[...]State{Fresh, impossible, impossible, impossible, impossible, impossible, impossible, impossible},
		},
		"adopts": {
			func(h *Hold) error { return h.Adopts(new(Field)) },
			[...]State{Adopting, impossible, impossible, impossible, impossible, impossible, impossible, impossible},
		},
		"runs": {
			(*Hold).Runs,
			[...]State{Fresh, Fresh, Holding, Holding, Lost, Expired, LossReported, Ended},
		},
		"acquired": {
			func(h *Hold) error { return h.Acquired(new(Field)) },
			[...]State{Holding, impossible, impossible, impossible, impossible, impossible, impossible, impossible},
		},
		"handed": {
			func(h *Hold) error { return h.Handed(new(Field)) },
			[...]State{Handed, impossible, impossible, impossible, impossible, impossible, impossible, impossible},
		},
		"reentered": {
			(*Hold).Reentered,
			[...]State{impossible, impossible, Handed, Holding, impossible, impossible, impossible, impossible},
		},
		"lost": {
			func(h *Hold) error { return h.Lost(false) },
			[...]State{impossible, impossible, Lost, Lost, impossible, impossible, impossible, impossible},
		},
		"ran out": {
			func(h *Hold) error { return h.Lost(true) },
			[...]State{impossible, impossible, Expired, Expired, impossible, impossible, impossible, impossible},
		},
		"reported": {
			(*Hold).Reported,
			[...]State{Fresh, Adopting, Handed, Holding, LossReported, LossReported, LossReported, Ended},
		},
		"ended": {
			(*Hold).Ended,
			[...]State{Ended, impossible, Ended, Ended, Ended, Ended, Ended, impossible},
		},
	}
	for name, event := range events {
		for before := Fresh; before <= Ended; before++ {
			h := newHoldIn(before)
			was, field := *h, *h.field
			err := event.do(h)
			if after := event.after[before]; after != impossible {
				assert.NoError(t, err, "%s: a hold that was %v", name, before)
				assert.Equal(t, after, h.State(), "%s: a hold that was %v", name, before)
				continue
			}
			assert.ErrorIs(t, err, ErrImpossible, "%s: a hold that was %v", name, before)
			assert.Equal(t, was, *h, "%s: it stays as it is", name)
			assert.Equal(t, field, *was.field, "%s: so does its field", name)
		}
	}
}

// In all orders of six events, which come to two holds with one field: a hold uses the field if and only if it holds the
// lock or is about to adopt the field, and it has a hold count if it was acquired, and neither released nor given up.
func TestHoldsUseTheirFieldWhileTheyNeedIt(t *testing.T) {
	const length = 6
	events := []func(h *Hold, f *Field) error{
		func(h *Hold, f *Field) error { return h.Acquired(f) },
		func(h *Hold, f *Field) error { return h.Handed(f) },
		func(h *Hold, f *Field) error { return h.Adopts(f) },
		func(h *Hold, _ *Field) error { return h.Runs() },
		func(h *Hold, _ *Field) error { return h.Lost(true) },
		func(h *Hold, _ *Field) error { return h.Ended() },
	}
	var play func(holds [2]Hold, users int32, left int)
	order, played := make([]int, 0, length), 0
	play = func(holds [2]Hold, users int32, left int) {
		f := &Field{users: users}
		for i := range holds {
			holds[i].field = f
		}
		if left == 0 {
			played++
			return
		}
		before := holds
		for event := range 2 * len(events) {
			holds, f.users = before, users
			order = append(order[:length-left], event)
			h := &holds[event%2]
			err := events[event/2](h, f)
			if err != nil {
				if before != holds || f.users != users {
					t.Fatalf("%v: an event that is impossible has changed something", order)
				}
				continue
			}
			var uses int32
			for i := range holds {
				if holds[i].uses() {
					uses++
				}
				if acquired := !holds[i].Wanted() && holds[i].State() != Ended; acquired != (holds[i].Count() > 0) {
					t.Fatalf("%v: a hold that is %v has the hold count %d", order, holds[i].State(), holds[i].Count())
				}
			}
			if f.users != uses || f.InUse() != (uses > 0) {
				t.Fatalf("%v: the field has %d users, and %d holds use it", order, f.users, uses)
			}
			play(holds, f.users, left-1)
		}
	}
	play([2]Hold{}, 0, length)
	assert.Greater(t, played, 1000, "orders")
}

// Each Unlock takes one from the hold count, and none too many.
func TestHoldCountIsThatOfTheUnlocksToCome(t *testing.T) {
	var h Hold
	assert.NoError(t, h.Acquired(new(Field)))
	assert.NoError(t, h.Reentered())
	assert.NoError(t, h.Reentered())
	assert.Equal(t, 2, h.Lowered())
	assert.NoError(t, h.Lost(false))
	assert.Equal(t, 1, h.Lowered(), "also after a loss")
	assert.Zero(t, h.Lowered())
	assert.NoError(t, h.Ended())
	assert.Zero(t, h.Lowered())
	over := OverWith(&Field{ID: "x"})
	assert.Equal(t, Ended, over.State())
	assert.Equal(t, "x", over.Field().ID)
	assert.ErrorIs(t, over.Ended(), ErrImpossible)
}

// A hold that has adopted one field is not granted another one, and does not ask with another one.
func TestAdoptedFieldIsTheFieldOfTheHold(t *testing.T) {
	var h Hold
	f := new(Field)
	assert.NoError(t, h.Adopts(f))
	assert.NoError(t, h.Runs())
	assert.ErrorIs(t, h.AsksWith(new(Field)), ErrImpossible)
	assert.ErrorIs(t, h.Adopts(new(Field)), ErrImpossible)
	assert.ErrorIs(t, h.Acquired(new(Field)), ErrImpossible)
	assert.Same(t, f, h.Field())
	assert.NoError(t, h.Acquired(f))
	assert.NoError(t, h.Ended())
	assert.False(t, f.InUse())
}
