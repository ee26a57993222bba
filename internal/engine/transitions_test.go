package engine

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/ledger"
)

// newHoldIn returns a hold in this state, of an engine that could begin nothing.
func newHoldIn(state holdState) *hold {
	return &hold{lockState: &lockState{engine: new(Engine)}, state: state, field: new(ledger.Field)}
}

// The states of a hold, and what their methods report.
func TestHoldStates(t *testing.T) {
	all := map[holdState]struct{ wanted, holds, isLost bool }{
		fresh:        {wanted: true},
		adopting:     {wanted: true},
		handed:       {holds: true},
		holding:      {holds: true},
		lost:         {isLost: true},
		expired:      {isLost: true},
		lossReported: {isLost: true},
		ended:        {},
	}
	assert.Len(t, all, int(ended)+1, "all states are here")
	for s, c := range all {
		assert.Equal(t, c.wanted, s.wanted(), "%v: wanted", s)
		assert.Equal(t, c.holds, s.holds(), "%v: holds", s)
		assert.Equal(t, c.isLost, s.isLost(), "%v: isLost", s)
	}
}

// Each event leads from a state to one other state, or leaves it as it is. All others are impossible.
func TestEventsOfAHold(t *testing.T) {
	const impossible holdState = 255
	events := map[string]struct {
		do    func(h *hold)
		after [ended + 1]holdState // by the state before
	}{
		"adopts": {
			func(h *hold) { h.adoptsLocked(new(ledger.Field)) },
			[...]holdState{
				adopting, impossible, impossible, impossible, impossible, impossible, impossible, impossible,
			},
		},
		"runs": {
			(*hold).runsLocked,
			[...]holdState{fresh, fresh, holding, holding, lost, expired, lossReported, ended},
		},
		"lost": {
			func(h *hold) { h.lostLocked(false) },
			[...]holdState{impossible, impossible, lost, lost, impossible, impossible, impossible, impossible},
		},
		"ran out": {
			func(h *hold) { h.lostLocked(true) },
			[...]holdState{impossible, impossible, expired, expired, impossible, impossible, impossible, impossible},
		},
		"reported": {
			(*hold).reportedLocked,
			[...]holdState{fresh, adopting, handed, holding, lossReported, lossReported, lossReported, ended},
		},
		"ended": {
			(*hold).endedLocked,
			[...]holdState{ended, impossible, ended, ended, ended, ended, ended, impossible},
		},
		"acquired": {
			func(h *hold) { h.becomesLocked(holding) },
			[...]holdState{holding, impossible, holding, impossible, impossible, impossible, impossible, impossible},
		},
		"handed": {
			func(h *hold) { h.becomesLocked(handed) },
			[...]holdState{handed, impossible, impossible, impossible, impossible, impossible, impossible, impossible},
		},
	}
	defer func(before bool) { ledger.Strict = before }(ledger.Strict)
	for name, event := range events {
		for before := fresh; before <= ended; before++ {
			after := event.after[before]
			h := newHoldIn(before)
			if ledger.Strict = true; after != impossible {
				event.do(h)
				assert.Equal(t, after, h.state, "%s: a hold that was %v", name, before)
				assert.Nil(t, h.lockState.duties)
				continue
			}
			assert.Panics(t, func() { event.do(h) }, "%s: a hold that was %v", name, before)
			ledger.Strict = false
			event.do(h)
			assert.Equal(t, before, h.state, "in a service it stays as it is")
			if assert.NotNil(t, h.lockState.duties, "in a service it ends as lost") {
				assert.Same(t, h, h.lockState.duties.lose)
				assert.ErrorIs(t, h.lockState.duties.cause, errImpossible)
			}
		}
	}
}
