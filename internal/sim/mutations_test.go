//go:build go1.25

package sim

// Mutations: whether the simulator finds mistakes in the Go code of the library.
//
// Rules: a mutation changes one text, which its file has once, and breaks a promise of the library. The test builds the simulator
// with a changed copy of the file, by way of an overlay of the go command, so that the working tree stays as it is. It plays new
// plans until one fails. A plan that fails without the mutation too does not count. The plans are those of TestSimulation with
// short leases, and with much trouble in a short time: many mutations need several faults within seconds.

import (
	"bufio"
	"bytes"
	"cmp"
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

	"github.com/stretchr/testify/require"
)

var (
	simMutations = flag.Int("sim.mutations", 0, "for how many seconds TestSimulationFindsMutations looks for each of them; 0: not at all")
	simMutation  = flag.String("sim.mutation", "", "the mutation that this program has; for TestSimulationOfAMutation")
)

// A mutation is a change of the Go code.
type mutation struct {
	name, file string
	from, to   string
	focus      Focus
	missed     string // why it is not found; "": it has to be
}

// Kinds of faults that go together.
var (
	deaths    = []string{"kill", "vanish", "outage"}
	slowness  = []string{"slow", "hold down", "stalled answers"}
	lateness  = []string{"late requests", "lost answers", "stalled answers"}
	silence   = []string{"hold", "hold up", "hold down", "freeze", "outage"}
	losses    = []string{"wipe", "rewind", "evict", "delete", "outage"}
	inOneLine = []Kind{Plain, FencedOne}
)

var mutations = []mutation{
	// Trust.
	{"trustFromTheAnswer", "acquire.go", "h, sent := w.hold, res.sent", "h, sent := w.hold, time.Now()", Focus{Faults: slowness}, ""},
	{"renewalFromTheAnswer", "watchdog.go", "w.confirmLocked(l, sent, cmp.Or(answers", "w.confirmLocked(l, w.now(), cmp.Or(answers",
		Focus{inOneLine, []string{"slow", "hold up", "refuse"}}, ""},
	{"grantFromTheMessage", "line.go", "state: held, token: g.token}, sent: sent}", "state: held, token: g.token}, sent: time.Now()}",
		Focus{inOneLine, slowness}, ""},
	{"grantFromTheLastRequest", "line.go", "sent := a.place.sentAt(g.asked)", "sent := a.place.asked[0].sent", Focus{inOneLine, slowness}, ""},
	{"numbersRepeat", "line.go", "placeRequest{rand.Uint64(), now}", "placeRequest{min(rand.Uint64(), 1), now}", Focus{inOneLine, slowness}, ""},
	{"wholeLeaseOfAGrant", "line.go", "res.provisional = g.lease", "res.provisional = 0", Focus{Locks: inOneLine}, ""},
	{"anyGrant", "line.go", "g.lease < w.lease && !w.renewed:", "false:", Focus{Locks: inOneLine}, ""},
	{"errorConfirms", "watchdog.go", "l.failed = answers[i].err\n\t\t\tw.retryLocked(l)",
		"w.confirmLocked(l, sent, l.length, true)\n\t\t\theap.Fix(&w.leases, l.index)", Focus{Faults: []string{"hold", "refuse", "outage"}}, ""},
	{"extendUnanswered", "holdvalue.go", "case err != nil:\n\t\th.leaseUncertain = true\n\t\treturn err", "case err != nil:\n\t\th.leaseUncertain = true",
		Focus{Faults: []string{"hold", "refuse", "outage"}}, ""},

	// Renewing and losing.
	{"goneConfirms", "watchdog.go", "case !answers[i].held:", "case !answers[i].held && l.length < 0:", Focus{inOneLine, losses}, ""},
	{"goneIsTriedAgain", "watchdog.go", "w.removeLocked(l)\n\t\t\tgone = append(gone, l.holder)", "w.retryLocked(l)", Focus{inOneLine, losses}, ""},
	{"renewedTooLate", "watchdog.go", "l.renewAt = sent + length/3", "l.renewAt = sent + length", Focus{}, ""},
	{"renewedOnce", "watchdog.go", "l.renewAt = min(l.retryAt, now+renewTime)", "l.renewAt, l.retryAt = until, until",
		Focus{Faults: []string{"cut", "lost answers", "stalled answers"}}, ""},
	{"endUntold", "watchdog.go", "e.holder.leaseEnded(e.because())", "_ = e.because()", Focus{Faults: silence}, ""},
	{"guardGoesOn", "guard.go", "end.cancel(cause)", "_ = cause", Focus{}, ""},
	{"lossUntold", "hold.go", "endGuards(guards, h.withName(h.loss))", "_ = guards", Focus{inOneLine, losses}, ""},
	{"lossIsNoError", "release.go", "case loss != nil: // the record may still have been there\n\t\treturn loss",
		"case loss != nil: // the record may still have been there\n\t\treturn nil", Focus{inOneLine, losses}, ""},
	{"maxHoldForgotten", "acquire.go", "h.record.lease.limit.Store(", "_ = int64(", Focus{Locks: inOneLine}, ""},
	{"atLeastForgotten", "limits.go", "if d := h.lock.limits().atLeast; d > 0 {", "if d := h.lock.limits().atLeast; d < 0 {",
		Focus{Locks: inOneLine}, ""},

	// Giving back.
	{"handedOverAndReleased", "release.go", "if h.handOverLocked() {\n\t\treturn 0, false", "if h.handOverLocked() {\n\t\treturn 0, true", Focus{}, ""},
	{"sharedAndReleased", "release.go", "last = h.state == lost || h.leaveRecordLocked()", "last = h.leaveRecordLocked() || true",
		Focus{Locks: []Kind{ReadWrite}}, ""},
	{"reentryUncounted", "acquire.go", "h.levels++\n", "", Focus{}, ""},
	{"releasedOnce", "release.go", "if err != nil && left == 0 {\n\t\te.workers.spawn(h.clear)", "if err != nil && left == 0 {",
		Focus{Faults: []string{"hold", "freeze", "outage"}}, ""},
	{"cancelUndoesNothing", "acquire.go", "undone := a.engine.undo(a.Ctx, left, a.unknown) // 5", "undone := make(chan struct{})\n\tclose(undone)",
		Focus{}, ""},
	{"undoneOnce", "release.go", "{0, 20 * time.Millisecond, 200 * time.Millisecond, time.Second}", "{0}", Focus{Faults: lateness}, ""},
	{"lateAnswerIsKept", "acquire.go", "a.engine.undoAll(a.Ctx, wants, unknown) // 5", "_ = unknown", Focus{Faults: slowness}, ""},
	{"lateGrantIsKept", "line.go", "e.undoSoon(b, g.field, !e.made(g.field), 0)", "_ = g.field", Focus{Locks: inOneLine}, ""},
	{"tombstoneDroppedSoon", "tombstones.go", "case f.open > 0:\n\t\tf.drop = drop", "case f.open > 0:\n\t\treturn true", Focus{inOneLine, lateness}, ""},
	{"noTombstoneAsked", "release.go", "a.late = a.late || mayRun", "", Focus{inOneLine, lateness}, ""},
	{"tombstoneStays", "tombstones.go", "_ = e.sender.Once(&w, send.Request{Call: drop})", "_ = w", Focus{inOneLine, lateness}, ""},
	{"tryUndoesNothing", "acquire.go", "a.unknown += answer.Unknown", "", Focus{Faults: lateness}, ""},

	// Waiting.
	{"sleepsForEver", "acquire.go", "delay := e.pollDelay(res.wait)", "delay := time.Hour", Focus{[]Kind{ReadWrite, Permits}, deaths}, ""},
	{"wakeUpDropped", "pubsub.go", "l.last = message\n\t\t\tl.wakeUp()", "l.last = message", Focus{}, ""},
	{"subscribedUnnoticed", "subscription.go", "if len(s.unconfirmed) > 0 {", "if len(s.unconfirmed) > 1000 {", Focus{}, ""},
	{"notWokenAfterReconnect", "pubsub.go", "if ch.settled {\n\t\tch.wakeLocked()\n\t}", "", Focus{Faults: []string{"cut", "refuse", "outage"}}, ""},
	{"oldSubscription", "pubsub.go", "default:\n\t\t\tch.confirmed, ch.asked = false, true", "default:\n\t\t\tch.asked = true",
		Focus{inOneLine, []string{"cut", "refuse", "outage"}}, ""},
	{"javaUnheard", "acquire.go", "a.subscription.watch(in, res.apart || res.deaf)", "a.subscription.watch(in, false)", Focus{Locks: []Kind{JavaPlain}}, ""},
	{"nobodyLooks", "lookout.go", "l.wake(names[n-1])", "_ = n", Focus{inOneLine, deaths}, ""},
	{"headLooks", "lookout.go", "return ahead < nearHead || rand.IntN(ahead/nearHead+1) == 0", "return ahead == 0", Focus{inOneLine, deaths}, ""},
	{"lookoutEndsForGood", "lookout.go", "l.running = len(l.waiters) > 0\n\treturn !l.running", "return len(l.waiters) == 0", Focus{inOneLine, deaths}, ""},
	{"fieldsNotCompared", "lookout.go", "fields += s.field + \" \"", "_ = s.field", Focus{inOneLine, []string{"hold down", "stalled answers", "slow"}}, ""},
	{"leaverStaysQueued", "handover.go", "p.sees(g.obstacle)\n\t\tg.Leave(w)", "p.sees(g.obstacle)", Focus{}, ""},
	{"handedOverAndStuck", "handover.go", "g.Release()\n\treturn true", "return true", Focus{}, ""},
	{"handedOverForEver", "turns.go", "return t.passed < mostPassed && now-t.since < p.slice", "return p.slice > 0", Focus{Locks: inOneLine}, ""},
	{"sharedForEver", "sharing.go", "return now-r.since < r.first.name.engine.pace().slice && r.isKeptLocked(now)", "return r.isKeptLocked(now)",
		Focus{Locks: []Kind{ReadWrite}}, ""},
	{"placeForgotten", "line.go", "q.place = &left\n", "", Focus{Locks: inOneLine}, ""},
	{"groupKeepsSome", "group.go", "if w.hold != nil && (granted == nil || granted[i].field != w.field) {", "if w.hold != nil && i == 0 {",
		Focus{Locks: []Kind{Multi}}, ""},
	{"halfIsAMajority", "redlock.go", "needed: len(locks)/2 + 1}", "needed: len(locks) / 2}", Focus{Locks: []Kind{Red}}, ""},

	// What relock once did wrong.
	{"joinsPastTheQueue", "line.go", "case a.isPastQueue():", "case a.isPastQueue() && w.level > 1:", Focus{inOneLine, silence}, ""},
	{"hardlyAnyValidity", "acquire.go", "a.engine.inTime(a.wants, res.sent, asked):", "a.engine.inTime(a.wants, res.sent, asked) || asked > 0:",
		Focus{Faults: slowness}, ""},
	{"shortTryIsSlow", "internal/send/wait.go", "least := now.Add(MinWait)", "least := now.Add(ConnectTime)", Focus{Faults: silence}, ""},
}

var (
	failedSeed = regexp.MustCompile(`^seed (\d+): (.+)`)
	panicked   = regexp.MustCompile(`^(panic|fatal error): .+`)
)

func TestSimulationFindsMutations(t *testing.T) {
	if *simMutations == 0 {
		t.Skip("-sim.mutations says for how many seconds to look")
	}
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			if m.missed != "" {
				t.Skip(m.missed)
			}
			program := m.build(t)
			begin := time.Now()
			found := m.look(t, program)
			if found == "" {
				t.Errorf("mutation %s: not found in %d s", m.name, *simMutations)
				return
			}
			fmt.Printf("mutation %s: found in %.0f s: %.300s\n", m.name, time.Since(begin).Seconds(), found)
		})
	}
}

// build builds the simulator with the mutation.
func (m mutation) build(t *testing.T) (program string) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	file := filepath.Join(root, m.file)
	source, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, 1, bytes.Count(source, []byte(m.from)), "%s has the text that the mutation changes", m.file)
	dir := t.TempDir()
	changed, overlay, program := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "sim.test")
	require.NoError(t, os.WriteFile(changed, bytes.Replace(source, []byte(m.from), []byte(m.to), 1), 0o600))
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {file: changed}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, replace, 0o600))
	compile := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", overlay, "-o", program, "./internal/sim")
	compile.Dir = root
	out, err := compile.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

// look has the program play plans until one fails, and says how; "": none has failed in time.
func (m mutation) look(t *testing.T, program string) (found string) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(*simMutations)*time.Second+time.Minute)
	defer cancel()
	run := exec.CommandContext(ctx, program, "-test.run=^TestSimulationOfAMutation$", "-test.v", "-test.timeout=0",
		"-sim.mutation="+m.name, fmt.Sprintf("-sim=%ds", *simMutations))
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
	m := mutations[slices.IndexFunc(mutations, func(m mutation) bool { return m.name == *simMutation })]
	first, begin := rand.Uint64N(1_000_000_000)+1, time.Now()
	var seeds atomic.Int64
	t.Run("seeds", func(t *testing.T) {
		for range min(runtime.GOMAXPROCS(0), 4) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for time.Since(begin) < *simTime {
					plan := m.draw(first + uint64(seeds.Add(1)-1))
					if v := Play(t, plan, options{}); v.Found != nil {
						fmt.Printf("seed %d: %v\n", plan.Seed, v.Found)
					}
				}
			})
		}
	})
	fmt.Printf("%d plans of %s from %d\n", seeds.Load(), m.name, first)
}

// draw draws the plan of a seed.
func (m mutation) draw(seed uint64) Plan { return dense(Draw(seed, m.focus), m.focus) }

// dense is a plan with short leases, and with much trouble in a short time; or with none: a fault excuses much.
func dense(p Plan, focus Focus) Plan {
	d := drawer{newRand(p.Seed, -1), focus}
	p.Watchdog, p.Phases = 3*time.Second, p.Phases[:2]
	for i := range p.Phases {
		phase := &p.Phases[i]
		phase.Length, phase.Idle = min(phase.Length, time.Minute), min(phase.Idle, 20*time.Second)
		for k := range phase.Workers {
			w := &phase.Workers[k]
			w.Start, w.Rounds = d.upTo(5*time.Second), 60
			w.Section, w.Rest = min(w.Section, 8*time.Second), min(w.Rest, time.Second)
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
