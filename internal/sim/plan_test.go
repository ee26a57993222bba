//go:build go1.25

package sim

import (
	"cmp"
	"encoding/json"
	"slices"
	"testing"
	"time"

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

// Every kind of fault and of lock is drawn at some time.
func TestPlansHaveEverything(t *testing.T) {
	faults, kinds, moves := map[string]bool{}, map[Kind]bool{}, map[Kind]bool{}
	for seed := uint64(1); seed < 500; seed++ {
		for _, phase := range Draw(seed, Focus{}).Phases {
			for _, w := range phase.Workers {
				kinds[w.Kind] = true
				moves[w.Kind] = moves[w.Kind] || w.Moves
			}
			for _, f := range phase.Faults {
				faults[f.Kind] = true
			}
		}
	}
	for _, k := range faultKinds {
		assert.True(t, faults[k.name], k.name)
	}
	for _, k := range []Kind{Plain, FencedOne, Fair, ReadWrite, Permits, Wide, Multi, Red, Leader, JavaPlain,
		JavaFair, JavaReadWrite, JavaPermits} {
		assert.True(t, kinds[k], k)
		assert.Equal(t, slices.Contains(movable, k), moves[k], k)
	}
}

// dense returns a plan that usually has short leases, and many faults in a short time, or none, because a fault
// excuses much.
func dense(p Plan, focus Focus) Plan {
	d := drawer{newRand(p.Seed, -1), focus}
	p.Phases = p.Phases[:2]
	if d.IntN(2) == 0 {
		p.Watchdog = 3 * time.Second
	}
	for i := range p.Phases {
		phase := &p.Phases[i]
		phase.Length, phase.Idle = min(phase.Length, time.Minute), min(phase.Idle, 20*time.Second)
		for k := range phase.Workers {
			w := &phase.Workers[k]
			w.Start, w.Rounds = d.upTo(5*time.Second), 60
			w.Section, w.Rest = min(w.Section, 15*time.Second), min(w.Rest, time.Second)
			if slices.Contains(focus.Faults, "degrade") { // this fault ends holds that last
				w.Section = 15 * time.Second
			}
		}
		if p.Seed%2 == 0 {
			phase.Faults, phase.Crash = nil, false
		}
		for _, f := range slices.Clone(phase.Faults) {
			for range 3 {
				f.At, f.For = d.upTo(phase.Length), min(f.For, d.about(100*time.Millisecond, 20*time.Second))
				phase.Faults = append(phase.Faults, f)
			}
		}
		slices.SortFunc(phase.Faults, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	}
	return p
}
