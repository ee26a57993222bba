package engine

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/tenancy"
)

// An event that is impossible panics in tests. In a service the hold stays as it is, and ends as lost.
func TestImpossibleEventEndsTheHoldAsLost(t *testing.T) {
	defer func(before bool) { tenancy.Strict = before }(tenancy.Strict)
	for name, do := range map[string]func(h *hold){
		"asks":      func(h *hold) { h.asksLocked(new(tenancy.Field)) },
		"adopts":    func(h *hold) { h.adoptsLocked(new(tenancy.Field)) },
		"adopted":   (*hold).adoptedLocked,
		"gives up":  (*hold).givesUpLocked,
		"acquired":  func(h *hold) { h.acquiredLocked(h.newRecord(0), 0) },
		"handed":    func(h *hold) { h.handedLocked(h.newRecord(0), 0) },
		"reentered": (*hold).reenteredLocked,
		"lost":      func(h *hold) { h.lostLocked(false) },
		"ran out":   func(h *hold) { h.lostLocked(true) },
		"ended":     (*hold).endedLocked,
	} {
		h := &hold{claim: claim{lockState: &lockState{engine: new(Engine)}}}
		h.Claim, h.Hold = tenancy.Over(new(tenancy.Field))
		h.ownerQueue.TryEnter()
		tenancy.Strict = true
		assert.Panics(t, func() { do(h) }, name)
		tenancy.Strict = false
		do(h)
		assert.Equal(t, tenancy.Ended, h.State(), "%s: it stays as it is", name)
		if assert.NotNil(t, h.lockState.duties, "%s: it ends as lost", name) {
			assert.Same(t, h, h.lockState.duties.lose)
			assert.ErrorIs(t, h.lockState.duties.cause, tenancy.ErrImpossible)
		}
	}
}
