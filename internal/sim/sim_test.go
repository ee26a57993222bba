//go:build go1.25

package sim

import (
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"
)

var (
	simTime   = flag.Duration("sim", 0, "for how long, in real time, TestSimulation plays new plans; 0: the first few")
	simSeed   = flag.Uint64("sim.seed", 0, "the seed of the only plan; 0: as many new ones as there is time for")
	simPlan   = flag.String("sim.plan", "", "a file with the only plan, as a reduction has written it")
	simAgain  = flag.Int("sim.again", 1, "how often the only plan is played")
	simLocks  = flag.String("sim.locks", "", "which kinds of locks are used, with commas between; none: all")
	simFaults = flag.String("sim.faults", "", "which kinds of faults there are, with commas between; none: all")
	simReduce = flag.Bool("sim.reduce", false, "reduce a plan that fails, and write what is left to a file for -sim.plan")
)

const (
	enough   = 3 // plans that fail
	fewSeeds = 6 // the plans of a plain test, which are the same each time; see DEVELOPMENT.md for seeds that fail
)

func init() { logging.Disable() } // of go-redis, which reports every server that goes

// Hours of several processes and faults, and no promise is broken.
func TestSimulation(t *testing.T) {
	if *simSeed != 0 || *simPlan != "" {
		again(t)
		return
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // miniredis makes a new Lua for each script
	first, goesOn := uint64(300), func(seeds int64, _ time.Duration) bool { return seeds < fewSeeds }
	if *simTime > 0 {
		first, goesOn = rand.Uint64N(1_000_000_000)+1, func(seeds int64, took time.Duration) bool {
			return took < *simTime || seeds == 0
		}
	}
	var seeds, failed, holds, virtual atomic.Int64
	start := time.Now()
	t.Run("seeds", func(t *testing.T) {
		for range min(runtime.GOMAXPROCS(0), 4) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for goesOn(seeds.Load(), time.Since(start)) && failed.Load() < enough {
					v := play(t, Draw(first+uint64(seeds.Add(1)-1), focus()))
					virtual.Add(int64(v.Took))
					holds.Add(int64(v.Holds))
					if v.Found != nil {
						failed.Add(1)
					}
				}
			})
		}
	})
	t.Logf("%d seeds from %d: %v of virtual time and %d holds in %v, %d failed", seeds.Load(), first,
		time.Duration(virtual.Load()).Round(time.Minute), holds.Load(), time.Since(start).Round(time.Millisecond),
		failed.Load())
}

// again plays the plan that the flags name.
func again(t *testing.T) {
	plan := Draw(*simSeed, focus())
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

func focus() (f Focus) {
	for _, kind := range strings.FieldsFunc(*simLocks, isComma) {
		f.Locks = append(f.Locks, Kind(kind))
	}
	f.Faults = strings.FieldsFunc(*simFaults, isComma)
	return f
}

func isComma(r rune) bool { return r == ',' }

// play plays a plan, and fails the test if it finds something.
func play(t *testing.T, plan Plan) Verdict {
	v := Play(t, plan, options{})
	if v.Found == nil {
		return v
	}
	t.Errorf("seed %d: %v\nagain: go test ./internal/sim -run Simulation -sim.seed=%d\n%v%s", plan.Seed, v.Found,
		plan.Seed, plan, v.Report)
	if *simReduce {
		reduce(t, plan)
	}
	return v
}

// reduce leaves out of a plan what it does not need to fail, and logs what is left.
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
	t.Logf("reduced: %v\nagain: go test ./internal/sim -run Simulation -sim.plan=%s\n%v%s", v.Found, file.Name(), small,
		v.Report)
}
