//go:build go1.25

package sim

import (
	"encoding/json"
	"flag"
	"fmt"
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
	"github.com/relock-go/relock/internal/tests/seeds"
)

var (
	simulations = seeds.New("sim")

	simPlan   = flag.String("sim.plan", "", "a file with the only plan, as a reduction has written it")
	simAgain  = flag.Int("sim.again", 1, "how often each plan is played")
	simLocks  = flag.String("sim.locks", "", "which kinds of locks are used, with commas between; none: all")
	simFaults = flag.String("sim.faults", "", "which kinds of faults there are, with commas between; none: all")
	simDoubts = flag.Int("sim.doubts", 0,
		"how many plans may break a rule of progress, if they do not break one again at once, before the test fails; each of "+
			"them wants to be looked at")
	simReduce = flag.Bool("sim.reduce", false, "reduce a plan that fails, and write what is left to a file for -sim.plan")
)

func TestMain(m *testing.M) { testredis.Main(m, "internal/sim").Run() }

// Several processes and faults are simulated for hours, and no rule is violated.
func TestSimulation(t *testing.T) {
	if *simPlan != "" {
		text, err := os.ReadFile(*simPlan)
		require.NoError(t, err)
		plan := parse(t, string(text))
		for range *simAgain {
			if v := Play(t, plan); v.Found != nil {
				tell(t, v, true)
			}
		}
		return
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // miniredis creates a new Lua state for each script
	simulations.Workers = min(runtime.GOMAXPROCS(0), 4)
	wanted := focus(t)
	var failed, holds, moved, virtual atomic.Int64
	var summary sync.Map // seed -> the violation that it has found
	start := time.Now()
	simulations.Play(t, testredis.Full(2, 6), func(q *seeds.Sequence) {
		plan := Draw(q.Seed, wanted)
		if strings.HasPrefix(q.File, "{") {
			plan = parse(t, q.File)
		}
		for range *simAgain {
			v := Play(q.T, plan)
			q.Note(plan.String())
			virtual.Add(int64(v.Took))
			holds.Add(int64(v.Holds))
			moved.Add(int64(v.Moved))
			if v.Found != nil {
				bad := failed.Add(1) > int64(*simDoubts) || v.Found.IsUnsafe() ||
					Play(q.T, plan).Found != nil // where the check is wrong, that seldom repeats
				summary.Store(q.Seed, v.Found)
				q.Keep(tell(q.T, v, bad))
			}
		}
	})
	t.Logf("%v of virtual time and %d holds, of which %d were attached, in %v, %d failed",
		time.Duration(virtual.Load()).Round(time.Minute), holds.Load(), moved.Load(), time.Since(start).Round(time.Millisecond),
		failed.Load())
	summary.Range(func(seed, found any) bool {
		t.Logf("seed %d: %v", seed, found) // again, after the long reports
		return true
	})
}

// parse returns the plan that a reduction has written.
func parse(t *testing.T, text string) (plan Plan) {
	require.NoError(t, json.Unmarshal([]byte(text), &plan))
	return plan
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

// tell reports the violation of a plan, and fails the test if bad is set. It returns the plan, reduced if a flag says so.
func tell(t *testing.T, v Verdict, bad bool) string {
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
	plan := v.Plan
	if *simReduce {
		plan = reduce(t, plan)
	}
	text, err := json.Marshal(plan)
	require.NoError(t, err)
	return string(text)
}

// reduce removes from a plan what it does not need to fail, and logs the result.
func reduce(t *testing.T, plan Plan) Plan {
	small := Reduce(plan, 2, func(p Plan) *Violation { return Play(t, p).Found }, t.Logf)
	v := Play(t, small)
	text, err := json.Marshal(small)
	require.NoError(t, err)
	file, err := os.CreateTemp("", "sim-*.json")
	require.NoError(t, err)
	_, err = file.Write(text)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	t.Logf("reduced: %v\nagain: go test ./internal/sim -v -run '^TestSimulation$' -sim.plan=%s\n%v%s", v.Found,
		file.Name(), small, v.Report)
	return small
}
