//go:build go1.25

package sim

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

var (
	simTime   = flag.Duration("sim", 0, "for how long, in real time, TestSimulation plays new plans; 0: the first few")
	simSeed   = flag.Uint64("sim.seed", 0, "the seed of the only plan; 0: as many new ones as there is time for")
	simFirst  = flag.Uint64("sim.first", 0, "the first of the seeds that are played with -sim; 0: a new one")
	simPlan   = flag.String("sim.plan", "", "a file with the only plan, as a reduction has written it")
	simAgain  = flag.Int("sim.again", 1, "how often the only plan is played")
	simLocks  = flag.String("sim.locks", "", "which kinds of locks are used, with commas between; none: all")
	simFaults = flag.String("sim.faults", "", "which kinds of faults there are, with commas between; none: all")
	simDoubts = flag.Int("sim.doubts", 0,
		"how many plans may break a rule of progress before the test fails; each of them wants to be looked at")
	simReduce = flag.Bool("sim.reduce", false, "reduce a plan that fails, and write what is left to a file for -sim.plan")
)

const enough = 3 // plans that fail

func TestMain(m *testing.M) { testredis.Main(m, "internal/sim").Run() }

// Several processes and faults are simulated for hours, and no rule is violated.
func TestSimulation(t *testing.T) {
	if *simSeed != 0 || *simPlan != "" {
		again(t)
		return
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // miniredis creates a new Lua state for each script
	// Without -sim the plans are always the same; see DEVELOPMENT.md for seeds that fail.
	few := int64(testredis.Full(2, 6))
	first, goesOn := uint64(300), func(seeds int64, _ time.Duration) bool { return seeds < few }
	if *simTime > 0 {
		first, goesOn = rand.Uint64N(1_000_000_000)+1, func(seeds int64, took time.Duration) bool {
			return took < *simTime || seeds == 0
		}
		if *simFirst != 0 {
			first = *simFirst
		}
	}
	wanted := focus(t)
	var seeds, failed, holds, moved, virtual atomic.Int64
	var summary sync.Map // seed -> the violation that it has found
	start := time.Now()
	t.Run("seeds", func(t *testing.T) {
		for range min(runtime.GOMAXPROCS(0), 4) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for goesOn(seeds.Load(), time.Since(start)) && failed.Load() < enough {
					v := Play(t, Draw(first+uint64(seeds.Add(1)-1), wanted), options{})
					virtual.Add(int64(v.Took))
					holds.Add(int64(v.Holds))
					moved.Add(int64(v.Moved))
					if v.Found != nil {
						bad := failed.Add(1) > int64(*simDoubts) || v.Found.IsUnsafe()
						summary.Store(v.Plan.Seed, v.Found)
						tell(t, v, bad)
					}
				}
			})
		}
	})
	t.Logf("%d seeds from %d: %v of virtual time and %d holds, of which %d were attached, in %v, %d failed", seeds.Load(), first,
		time.Duration(virtual.Load()).Round(time.Minute), holds.Load(), moved.Load(), time.Since(start).Round(time.Millisecond),
		failed.Load())
	summary.Range(func(seed, found any) bool {
		t.Logf("seed %d: %v", seed, found) // again, after the long reports
		return true
	})
}

// again plays the plan that the flags select.
func again(t *testing.T) {
	plan := Draw(*simSeed, focus(t))
	if *simPlan != "" {
		text, err := os.ReadFile(*simPlan)
		require.NoError(t, err)
		plan = Plan{}
		require.NoError(t, json.Unmarshal(text, &plan))
	}
	failed := 0
	for range *simAgain {
		if play(t, plan).Found != nil {
			failed++
		}
	}
	t.Logf("failed in %d of %d runs", failed, *simAgain)
}

// focus returns the Focus of the flags.
func focus(t *testing.T) (f Focus) {
	var kinds []Kind
	for _, kind := range strings.FieldsFunc(*simLocks, isComma) {
		kinds = append(kinds, Kind(kind))
	}
	f = Focus{kinds, strings.FieldsFunc(*simFaults, isComma)}
	require.NoError(t, f.check())
	return f
}

func isComma(r rune) bool { return r == ',' }

// play plays a plan, and fails the test if there is a violation.
func play(t *testing.T, plan Plan) Verdict {
	v := Play(t, plan, options{})
	if v.Found != nil {
		tell(t, v, true)
	}
	return v
}

// tell reports the violation of a plan, and fails the test if bad is set.
func tell(t *testing.T, v Verdict, bad bool) {
	say := t.Logf
	if bad {
		say = t.Errorf
	}
	again := fmt.Sprintf("-sim.seed=%d", v.Plan.Seed)
	if *simLocks != "" {
		again += fmt.Sprintf(" -sim.locks=%q", *simLocks)
	}
	if *simFaults != "" {
		again += fmt.Sprintf(" -sim.faults=%q", *simFaults)
	}
	say("seed %d: %v\nagain: go test ./internal/sim -v -run '^TestSimulation$' %s\n%v%s", v.Plan.Seed, v.Found, again,
		v.Plan, v.Report)
	if *simReduce {
		reduce(t, v.Plan)
	}
}

// reduce removes from a plan what it does not need to fail, and logs the result.
func reduce(t *testing.T, plan Plan) {
	small := Reduce(plan, 2, func(p Plan) *Violation { return Play(t, p, options{}).Found }, t.Logf)
	v := Play(t, small, options{})
	text, err := json.Marshal(small)
	require.NoError(t, err)
	file, err := os.CreateTemp("", "sim-*.json")
	require.NoError(t, err)
	_, err = file.Write(text)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	t.Logf("reduced: %v\nagain: go test ./internal/sim -v -run '^TestSimulation$' -sim.plan=%s\n%v%s", v.Found,
		file.Name(), small, v.Report)
}
