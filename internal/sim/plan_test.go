//go:build go1.25

package sim

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

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
