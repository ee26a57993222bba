//go:build go1.25

package sim

// Mutations: whether the simulator finds bugs in the Go code of the library.
//
// Rules: a mutation is a mistake in the Go code: see internal/tests/mistakes. The test builds the simulator with a changed copy of the file, by means of an overlay of the go command, so that the working
// tree is not changed. It plays new plans until one fails. A plan that fails also without the mutation does not
// count. Most plans are those of TestSimulation with short leases, and with many faults in a short time, or none.
// Many mutations need several faults within seconds, and others are excused by any fault.
//
// Most mutations were found, in 1 to 68 seconds each, with half a core or less. 22 were not found, most of them within
// 50 seconds; each of those has a reason beside it. The reasons come from reading the code; they are not
// proofs. A longer run with -sim.missed looks for these, too. Most of them would be found with another rule of the
// witness rather than with more time.
//
// Of the bugs that relock once had, the last ones of the table are in the Go code, and others are in the scripts.
// Neither contains loops without a limit, which take real time but no virtual time.

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/tests/mistakes"
)

var (
	simMutations = flag.Int("sim.mutations", 0,
		"for how many seconds TestSimulationFindsMutations looks for each of them; 0: not at all")
	simMutation = flag.String("sim.mutation", "", "the mutation that this program has; for TestSimulationOfAMutation")
)

// A mutation is a mistake in the Go code, and how to look for it.
type mutation struct {
	mistakes.Mistake
	lookup
}

type lookup struct {
	focus  Focus
	missed string // why it is not found; "": it must be found
}

// mutationOf returns the mistake with how to look for it.
func mutationOf(m mistakes.Mistake) mutation { return mutation{m, lookups[m.Name]} }

// Kinds of faults that belong together.
var (
	deaths    = []string{"kill", "vanish", "outage"}
	slowness  = []string{"slow", "hold down", "stalled answers"}
	lateness  = []string{"late requests", "lost answers", "stalled answers"}
	silence   = []string{"hold", "hold up", "hold down", "freeze", "outage"}
	losses    = []string{"wipe", "rewind", "evict", "delete", "outage"}
	inOneLine = []Kind{Plain, FencedOne}
)

// lookups has with which locks and faults to look for each mistake; none: with all of them.
var lookups = map[string]lookup{
	"trustFromTheAnswer":   {focus: Focus{Faults: slowness}},
	"renewalFromTheAnswer": {focus: Focus{inOneLine, []string{"degrade"}}},
	"grantFromTheMessage": {
		focus: Focus{inOneLine, []string{"degrade"}},
		missed: "a grant is confirmed by a request at once, which corrects the validity. Only a link that falls silent " +
			"at that moment shows the mutation",
	},
	"grantFromTheLastRequest": {
		focus:  Focus{inOneLine, []string{"degrade"}},
		missed: "as grantFromTheMessage",
	},
	"numbersRepeat": {
		focus:  Focus{inOneLine, []string{"degrade"}},
		missed: "as grantFromTheLastRequest",
	},
	"wholeLeaseOfAGrant": {focus: Focus{Locks: inOneLine}},
	"anyGrant":           {focus: Focus{Locks: inOneLine}},
	"errorConfirms":      {focus: Focus{Faults: []string{"hold", "refuse", "outage"}}},
	"extendUnanswered": {
		focus: Focus{inOneLine, []string{"hold", "refuse", "degrade"}},
		missed: "Redis has usually run the request, or answers the next Extend; and only one worker in seventy extends " +
			"a lease",
	},
	"goneConfirms":     {focus: Focus{inOneLine, losses}},
	"goneIsTriedAgain": {focus: Focus{inOneLine, losses}},
	"renewedTooLate":   {},
	"renewedOnce": {
		focus:  Focus{Faults: []string{"cut", "lost answers", "stalled answers"}},
		missed: "the fault that affects the only renewal excuses the loss of the hold",
	},
	"endUntold":            {focus: Focus{Faults: silence}},
	"guardGoesOn":          {},
	"lossUntold":           {focus: Focus{inOneLine, losses}},
	"lossIsNoError":        {focus: Focus{inOneLine, losses}},
	"maxHoldForgotten":     {focus: Focus{Locks: inOneLine}},
	"atLeastForgotten":     {focus: Focus{Locks: inOneLine}},
	"handedOffAndReleased": {},
	"sharedAndReleased":    {focus: Focus{Locks: []Kind{ReadWrite}}},
	"reentryUncounted":     {},
	"releasedOnce": {
		focus:  Focus{Faults: []string{"hold", "freeze", "outage"}},
		missed: "the record expires with its lease, which the fault that affects the release excuses",
	},
	"cancelUndoesNothing": {
		missed: "the late answer and the late grant are rolled back, too; nothingIsUndone removes all three together",
	},
	"nothingIsUndone": {},
	"undoneOnce": {
		focus:  Focus{Faults: lateness},
		missed: "a tombstone has the same effect",
	},
	"lateAnswerIsKept": {
		focus:  Focus{Faults: slowness},
		missed: "the rollback of the call that has left usually runs later, and rolls it back, too",
	},
	"lateGrantIsKept": {
		focus:  Focus{Locks: inOneLine},
		missed: "the rollback of the wait that has ended usually runs later, and rolls it back, too",
	},
	"noTombstoneAsked": {
		focus:  Focus{inOneLine, lateness},
		missed: "as noTombstone in mistakes_test.go",
	},
	"tryUndoesNothing": {
		focus:  Focus{Faults: lateness},
		missed: "the rollback is sent only once; a request that runs after it expires with its lease, as after any fault",
	},
	"sleepsForEver":       {focus: Focus{[]Kind{ReadWrite, Permits}, deaths}},
	"wakeUpDropped":       {},
	"subscribedUnnoticed": {},
	"notWokenAfterReconnect": {
		focus: Focus{Faults: []string{"cut", "refuse", "outage"}},
		missed: "the poller of the process wakes the waiter within a poll interval, and the fault excuses the " +
			"delay",
	},
	"oldSubscription": {
		focus:  Focus{inOneLine, []string{"cut", "refuse", "outage"}},
		missed: "a script tells the waiter that its subscription is lost, or drops its place, which the poller notices",
	},
	"javaUnheard": {
		focus: Focus{Locks: []Kind{JavaPlain}},
		missed: "the poller notices a holder without a line, and wakes the waiter within a poll interval; no lock that " +
			"Java uses must be handed off at once",
	},
	"nobodyLooks":        {focus: Focus{inOneLine, deaths}},
	"headLooks":          {focus: Focus{inOneLine, deaths}},
	"lookoutEndsForGood": {focus: Focus{inOneLine, deaths}},
	"fieldsNotCompared": {
		focus:  Focus{inOneLine, []string{"hold down", "stalled answers", "slow"}},
		missed: "the grant expires after five seconds, which the fault that has lost its message excuses",
	},
	"leaverStaysQueued": {},
	"handedOffAndStuck": {},
	"tokenGivenTwice":   {focus: Focus{Locks: []Kind{FencedOne}}},
	"restOfABlockKept":  {focus: Focus{Locks: []Kind{FencedOne}}},
	"handedOffForever":  {focus: Focus{Locks: inOneLine}},
	"sharedForEver": {
		focus: Focus{Locks: []Kind{ReadWrite}},
		missed: "with few readers in a process there is soon a moment without any, and a writer may take a long " +
			"time",
	},
	"placeForgotten": {
		focus: Focus{Locks: inOneLine},
		missed: "the grant of the place that was left reaches no caller and is released at once; the order of calls " +
			"that give up is not checked as closely",
	},
	"multiKeepsSome":     {focus: Focus{Locks: []Kind{Multi}}},
	"halfIsAMajority":    {focus: Focus{Locks: []Kind{Red}}},
	"liveTicket":         {focus: Focus{Locks: inOneLine}},
	"noPutBack":          {focus: Focus{Locks: movable}},
	"detachedGoesOn":     {focus: Focus{Locks: movable}},
	"tokenStaysBehind":   {focus: Focus{Locks: []Kind{FencedOne, Fair}}},
	"maxHoldBeginsAgain": {focus: Focus{Locks: inOneLine}},
	"attachedFromTheAnswer": {
		focus: Focus{inOneLine, []string{"degrade"}},
		missed: "only a link that falls silent after an Attach, and before the first renewal, shows the mutation: " +
			"TestFaultAttachIsValidFromBeforeTheRequest",
	},
	"joinsPastTheQueue": {
		focus: Focus{inOneLine, silence},
		missed: "the place of the process goes to another of its callers, and a caller that was passed over while " +
			"Redis was silent may wait longer, which the fault excuses",
	},
	"hardlyAnyValidity": {
		focus: Focus{Faults: slowness},
		missed: "from three quarters of a lease to all of it must pass twice before an answer, but leases are either " +
			"much longer or shorter than answers take",
	},
	"shortTryIsSlow": {
		focus:  Focus{Faults: silence},
		missed: "most connections end a read sooner, and the call then returns because its time is up",
	},
}

var (
	failedSeed = regexp.MustCompile(`^seed (\d+): (.+)`)
	panicked   = regexp.MustCompile(`^(panic|fatal error): .+`)
)

// The simulator knows how to look for each mutation.
func TestMutationsAreLookedFor(t *testing.T) {
	require.Len(t, lookups, len(mistakes.Code))
	for _, m := range mistakes.Code {
		assert.Contains(t, lookups, m.Name)
	}
}

func TestSimulationFindsMutations(t *testing.T) {
	if *simMutations == 0 {
		t.Skip("-sim.mutations says for how many seconds to look")
	}
	for _, m := range mistakes.Code {
		m := mutationOf(m)
		t.Run(m.Name, func(t *testing.T) {
			if m.missed != "" && !*simMissed {
				t.Skip(m.missed)
			}
			program := m.build(t)
			begin := time.Now()
			found := m.look(t, program)
			if found == "" {
				t.Errorf("mutation %s: not found in %d s", m.Name, *simMutations)
				return
			}
			fmt.Printf("mutation %s: found in %.0f s: %.300s\n", m.Name, time.Since(begin).Seconds(), found)
		})
	}
}

// build builds the simulator with the mutation.
func (m mutation) build(t *testing.T) (program string) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	file := filepath.Join(root, m.File)
	source, err := os.ReadFile(file)
	require.NoError(t, err)
	dir := t.TempDir()
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	program = filepath.Join(dir, "sim.test")
	require.NoError(t, os.WriteFile(changed, []byte(m.In(string(source))), 0o600))
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {file: changed}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, replace, 0o600))
	compile := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", overlay, "-o", program,
		"./internal/sim")
	compile.Dir = root
	out, err := compile.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// look lets the program play plans until one fails, and returns the failure, or "" if none has failed in time.
func (m mutation) look(t *testing.T, program string) (found string) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(*simMutations)*time.Second+time.Minute)
	defer cancel()
	run := exec.CommandContext(ctx, program, "-test.run=^TestSimulationOfAMutation$", "-test.v", "-test.timeout=0",
		"-sim.mutation="+m.Name, fmt.Sprint("-sim.mutations=", *simMutations))
	out, w := io.Pipe()
	run.Stdout, run.Stderr = w, w
	require.NoError(t, run.Start())
	go func() {
		_ = run.Wait()
		_ = w.Close()
	}()
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		line := lines.Text()
		if found != "" {
			continue // until the program has ended
		}
		if at := failedSeed.FindStringSubmatch(line); at != nil {
			seed, err := strconv.ParseUint(at[1], 10, 64)
			require.NoError(t, err)
			if failsOnlySo(t, m.draw(seed)) {
				found = line
			}
		} else if panicked.MatchString(line) && !strings.Contains(line, "hangs") {
			found = line
		} else if strings.Contains(line, "plans of") {
			t.Log(line)
		}
		if found != "" {
			cancel()
		}
	}
	return found
}

// TestSimulationOfAMutation plays plans in a program that has a mutation.
func TestSimulationOfAMutation(t *testing.T) {
	if *simMutation == "" {
		t.Skip("this program has no mutation")
	}
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // as in TestSimulation
	m := mutationOf(mistakes.Code[slices.IndexFunc(mistakes.Code, func(m mistakes.Mistake) bool { return m.Name == *simMutation })])
	first, begin := rand.Uint64N(1_000_000_000)+1, time.Now()
	var seeds atomic.Int64
	t.Run("seeds", func(t *testing.T) {
		for range min(runtime.GOMAXPROCS(0), 4) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for time.Since(begin) < time.Duration(*simMutations)*time.Second {
					plan := m.draw(first + uint64(seeds.Add(1)-1))
					if v := Play(t, plan, options{}); v.Found != nil {
						fmt.Printf("seed %d: %v\n", plan.Seed, v.Found)
					}
				}
			})
		}
	})
	fmt.Printf("%d plans of %s from %d\n", seeds.Load(), m.Name, first)
}

// draw draws the plan of a seed. Every third one is long.
func (m mutation) draw(seed uint64) Plan {
	p := Draw(seed, m.focus)
	if seed%3 > 0 {
		p = dense(p, m.focus)
	}
	return p
}
