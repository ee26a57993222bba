//go:build go1.25

package sim

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// The scripts among the commands that Redis ran are shown by name.
func TestScriptsHaveNames(t *testing.T) {
	plan := Draw(1, Focus{Locks: []Kind{Plain, Fair, ReadWrite, Permits, JavaPermits}})
	var seen, unknown []string
	synctest.Test(t, func(*testing.T) {
		w := newWorld(plan)
		for _, phase := range plan.Phases {
			phase.Faults, phase.Length = nil, min(phase.Length, time.Minute)
			w.play(phase)
			for _, c := range w.redis[0].Recent() {
				if args := named(c.Args, w.redis[0].Source); c.Args[0] != "evalsha" && c.Args[0] != "eval" {
					continue
				} else if args[1] == c.Args[1] {
					unknown = append(unknown, args[1])
				} else {
					seen = append(seen, args[1])
				}
			}
		}
		w.close()
	})
	assert.Empty(t, unknown)
	slices.Sort(seen)
	seen = slices.Compact(seen)
	assert.GreaterOrEqual(t, len(seen), 5, "%v", seen)
	t.Logf("%v", seen)
}
