//go:build go1.25

package sim

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A seed determines one plan, which can be written and read again.
func TestSeedNamesAPlan(t *testing.T) {
	for seed := uint64(1); seed < 50; seed++ {
		plan := Draw(seed, Focus{})
		assert.Equal(t, plan, Draw(seed, Focus{}))
		text, err := json.Marshal(plan)
		require.NoError(t, err)
		var again Plan
		require.NoError(t, json.Unmarshal(text, &again))
		assert.Equal(t, plan, again)
	}
}

func TestFocusRestrictsAPlan(t *testing.T) {
	for seed := uint64(1); seed < 50; seed++ {
		for _, phase := range Draw(seed, Focus{[]Kind{Fair}, []string{"kill", "clock back"}}).Phases {
			for _, w := range phase.Workers {
				assert.Equal(t, Fair, w.Kind)
			}
			for _, f := range phase.Faults {
				assert.Contains(t, []string{"kill", "clock back"}, f.Kind)
			}
		}
	}
}

// Every kind of fault and of lock is drawn at some time.
func TestPlansHaveEverything(t *testing.T) {
	faults, kinds := map[string]bool{}, map[Kind]bool{}
	for seed := uint64(1); seed < 500; seed++ {
		for _, phase := range Draw(seed, Focus{}).Phases {
			for _, w := range phase.Workers {
				kinds[w.Kind] = true
			}
			for _, f := range phase.Faults {
				faults[f.Kind] = true
			}
		}
	}
	for _, k := range faultKinds {
		assert.True(t, faults[k.name], k.name)
	}
	for _, k := range []Kind{Plain, FencedOne, Fair, ReadWrite, Permits, Multi, Red, Leader, JavaPlain, JavaFair,
		JavaReadWrite, JavaPermits} {
		assert.True(t, kinds[k], k)
	}
}

// Parts of a plan that it does not need to fail are left out, and the rest still violates the same rule.
func TestReduceLeavesWhatFails(t *testing.T) {
	plan := Draw(3, Focus{})
	var guilty Worker
	var fault Fault
	for _, phase := range plan.Phases {
		if len(phase.Workers) > 1 && len(phase.Faults) > 1 {
			guilty, fault = phase.Workers[1], phase.Faults[1]
		}
	}
	require.NotEmpty(t, fault.Kind, "another seed is needed")
	played := 0
	small := Reduce(plan, 2, func(p Plan) *Violation {
		played++
		for _, phase := range p.Phases {
			if slices.ContainsFunc(phase.Workers, func(w Worker) bool { return w.ID == guilty.ID }) &&
				slices.Contains(phase.Faults, fault) {
				return &Violation{Rule: "the rule"}
			}
		}
		if played%3 == 0 {
			return &Violation{Rule: "another rule"}
		}
		return nil
	}, t.Logf)
	require.Len(t, small.Phases, 1)
	assert.Equal(t, []Fault{fault}, small.Phases[0].Faults)
	require.Len(t, small.Phases[0].Workers, 1)
	assert.Equal(t, guilty.ID, small.Phases[0].Workers[0].ID)
	assert.Equal(t, 1, small.Phases[0].Workers[0].Rounds)
}
