package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/bench/stats"
	"github.com/relock-go/relock/internal/testredis"
)

// needsServer skips a test that measures something. With -short the arithmetic alone is tested.
func needsServer(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("this test needs time")
	}
	if !testredis.Available() {
		require.NotEqual(t, "true", os.Getenv("CI"), "this test needs a redis-server")
		t.Skip("this test needs a redis-server")
	}
}

// Every workload runs for a moment, with all libraries, and produces a table, charts, a row of the page, and for one
// workload the chart of the README.
func TestEveryWorkloadRunsAndIsShown(t *testing.T) {
	needsServer(t)
	dir := t.TempDir()
	readme, page := filepath.Join(dir, "README.md"), filepath.Join(dir, "page.md")
	for _, document := range []string{readme, page} {
		require.NoError(t, os.WriteFile(document, []byte("before\n"+begin+"old\n"+end+"after\n"), 0o600))
	}
	p := plan{slice: 10 * time.Millisecond, rounds: 1, size: size{500, 200, 600 * time.Millisecond}, log: io.Discard}
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), p, &out, output{dir, readme, page}, false))
	t.Log(out.String())
	few, err := os.ReadFile(readme)
	require.NoError(t, err)
	document, err := os.ReadFile(page)
	require.NoError(t, err)
	for _, w := range workloads(p.size) {
		assert.Contains(t, out.String(), "\n"+w.name+": ", "%s is not in the tables", w.name)
		assert.Contains(t, string(document), w.title, "%s is not in the document", w.name)
		assert.Equal(t, w.headline, strings.Contains(string(few), w.title), w.name)
		_, err := os.Stat(filepath.Join(dir, "bench-"+w.name+".svg"))
		assert.NoError(t, err)
	}
	assert.NotContains(t, string(document)+string(few), "old")
	assert.NotContains(t, out.String()+string(document), "NaN")
	assert.Contains(t, string(document), "- redislock 2ms: ", "the settings of the peers")
	for _, b := range bounds {
		assert.Contains(t, out.String(), b.what)
	}
	assert.False(t, strings.Contains(out.String(), "\n  redisson "), "a peer that was not asked for")
}

// Every table of a page is filled, and replaces the previous one.
func TestEveryTableOfAPageIsReplaced(t *testing.T) {
	needsServer(t)
	a := amounts{
		[]int{500},
		100,
		600 * time.Millisecond,
		50 * time.Millisecond,
		[]shape{{2, 2}, {2, 1}},
		[]int{10},
		time.Second,
		100 * time.Millisecond,
	}
	brief := plan{slice: 10 * time.Millisecond, rounds: 1, log: io.Discard}
	for _, tables := range [][]named{scaleTables, clientTables, lostTables} {
		t.Run(tables[0].name, func(t *testing.T) {
			page := filepath.Join(t.TempDir(), "page.md")
			var text strings.Builder
			for _, name := range append(names(tables), "machine") {
				begin, end := markers(name)
				text.WriteString(begin + "from before\n" + end)
			}
			require.NoError(t, os.WriteFile(page, []byte(text.String()), 0o600))
			var out bytes.Buffer
			require.NoError(t, runTables(t.Context(), brief, a, tables, &out, page))
			t.Log(out.String())
			document, err := os.ReadFile(page)
			require.NoError(t, err)
			assert.NotContains(t, string(document), "from before")
			assert.NotContains(t, string(document), "NaN")
			assert.GreaterOrEqual(t, strings.Count(string(document), "|---|"), len(names(tables)))
			assert.Error(
				t,
				runTables(t.Context(), brief, a, tables, io.Discard, filepath.Join(t.TempDir(), "none")),
				"a page that is not there",
			)
		})
	}
	var out bytes.Buffer
	require.NoError(t, runTables(t.Context(), plan{work: "pairs", log: io.Discard}, a, scaleTables, &out, ""))
	assert.True(t, strings.HasPrefix(out.String(), "\npairs\n"), "one table: %s", &out)
	assert.NotContains(t, out.String(), "\nrequests\n", "one table")
}

// The pages have the markers for their tables.
func TestPagesHavePlacesForTheirTables(t *testing.T) {
	for path, tables := range map[string][]named{
		"scaling.md": scaleTables, "client.md": clientTables, "README.md": lostTables,
	} {
		page, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, name := range append(names(tables), "machine") {
			begin, end := markers(name)
			_, err := put(string(page), begin, end, "")
			assert.NoError(t, err)
		}
	}
	for _, path := range []string{"../README.md", "README.md"} {
		page, err := os.ReadFile(path)
		require.NoError(t, err)
		_, err = put(string(page), begin, end, "")
		assert.NoError(t, err)
	}
}

func TestRunStopsWithItsContext(t *testing.T) {
	needsServer(t)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	p := plan{slice: time.Hour, rounds: 1, log: io.Discard}
	assert.ErrorIs(t, run(ctx, p, io.Discard, output{}, false), context.Canceled)
}

func TestRedissonThatCannotBeBuiltIsLeftOutWithALine(t *testing.T) {
	needsServer(t)
	built := 0
	p := plan{
		work:   "alone-",
		slice:  time.Millisecond,
		rounds: 1,
		log:    io.Discard,
		redisson: func(context.Context) (string, error) {
			built++
			return "", errors.New("no Java")
		},
	}
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), p, &out, output{}, false))
	assert.Zero(t, built, "no workload of these has it")
	p.work = "alone"
	require.NoError(t, run(t.Context(), p, &out, output{}, false))
	assert.Equal(t, 1, built)
	assert.Equal(t, 1, strings.Count(out.String(), "Redisson is left out: no Java\n"), out.String())
}

const someInfo = "# Commandstats\r\ncmdstat_evalsha:calls=7,usec=1\r\ncmdstat_hget:calls=3,usec=1\r\n" +
	"cmdstat_eval:calls=1,usec=1\r\n" +
	"cmdstat_subscribe:calls=2,usec=1\r\ncmdstat_set:calls=4,usec=1\r\n" +
	"cmdstat_client|list:calls=9,usec=1\r\ncmdstat_info:calls=9,usec=1\r\nused_cpu_sys:1.5\r\nused_cpu_user:2\r\n" +
	"used_cpu_sys_children:5\r\n"

func TestParseInfoLeavesOutItsOwnCommands(t *testing.T) {
	w := parseInfo(someInfo)
	assert.Equal(t, float64(17), w.commands)
	assert.Equal(t, float64(8), w.scripts)
	assert.Equal(t, 3.5, w.redis)
}

func TestRequestsLeaveOutCommandsOfScripts(t *testing.T) {
	w := parseInfo(someInfo)
	assert.Equal(t, float64(10), w.requests("relock"))
	assert.Equal(t, float64(14), w.requests("redsync"), "it sends a SET by itself")
	assert.Equal(t, float64(10), w.requests("redisson"), "it sends no SET by itself")
	for kind := range byThemselves {
		assert.Equal(t, kind, kindOf(kind).name)
	}
	twice := parseInfo(someInfo)
	twice.add(w)
	assert.Equal(t, float64(20), twice.requests("relock"), "of two nodes")
	assert.Equal(t, float64(10), twice.since(w).requests("relock"), "of the time since then")
}

// The requests that are counted from the statistics are those that MONITOR shows.
func TestRequestsAreThoseThatClientsSend(t *testing.T) {
	needsServer(t)
	for _, k := range kinds {
		if k.open == nil {
			continue // TestRedissonItself
		}
		t.Run(k.name, func(t *testing.T) {
			server, err := startServer(0)
			require.NoError(t, err)
			defer server.close()
			turn := turn{server: server, kind: k, served: new([]int), took: 50 * time.Millisecond}
			defer func() { turn.close() }()
			require.NoError(t, plan{}.open(t.Context(), &turn, workload{clients: 2}))
			crowd := crowd{clients: 2, workers: 4, names: 1, section: time.Millisecond}
			_, err = crowd.slice(t.Context(), turn) // connects
			require.NoError(t, err)
			counted, shown := requestsOf(t, server, k.name, func() error {
				_, err := crowd.work(t.Context(), turn)
				return err
			})
			total := 0.0
			for _, n := range shown {
				total += n
			}
			assert.Equal(t, total, counted, "%v", shown)
		})
	}
}

// requestsOf returns the requests of do by clients of a kind: as they are counted, and each command as MONITOR shows
// it.
func requestsOf(
	t *testing.T,
	server *server,
	kind string,
	do func() error,
) (counted float64, shown map[string]float64) {
	t.Helper()
	monitor, err := net.Dial("tcp", server.addr)
	require.NoError(t, err)
	defer monitor.Close()
	_, err = fmt.Fprint(monitor, "MONITOR\r\n")
	require.NoError(t, err)
	lines := bufio.NewScanner(monitor)
	require.True(t, lines.Scan(), "MONITOR is not answered")
	before, err := server.work(t.Context())
	require.NoError(t, err)
	require.NoError(t, do())
	time.Sleep(50 * time.Millisecond) // background work
	after, err := server.work(t.Context())
	require.NoError(t, err)
	require.NoError(t, server.admin.Echo(t.Context(), "the end").Err())
	shown, infos := map[string]float64{}, 0
	for lines.Scan() && !strings.Contains(lines.Text(), `"the end"`) {
		_, command, _ := strings.Cut(lines.Text(), `] "`)
		command, _, _ = strings.Cut(strings.ToLower(command), `"`)
		switch {
		case strings.Contains(lines.Text(), " lua] "): // of a script
		case command == "info":
			infos++
		case infos == 1 && !slices.Contains(notWork, command):
			shown[command]++
		}
	}
	return after.since(before).requests(kind), shown
}

// results returns the results of two rounds, in which relock was twice and four times as fast as one library, and the
// other library was better.
func pretended(less bool) *result {
	r := &result{workload: workload{name: "alone", figure: rate, less: less}}
	for name, rates := range map[string][2]float64{"relock": {20, 40}, "redsync": {10, 10}, "redislock": {5, 80},
		"bare EVALSHA": {40, 40}} {
		row := row{kindOf(name), []sample{{rate: rates[0]}, {rate: rates[1]}}}
		if name == "relock" {
			r.rows = slices.Insert(r.rows, 0, row)
		} else {
			r.rows = append(r.rows, row)
		}
	}
	return r
}

func TestTheFastestIsThatOfEachRound(t *testing.T) {
	got := pretended(false).fastest() // in each of the two rounds
	assert.Equal(t, float64(10), got[0])
	assert.Equal(t, float64(80), got[1])
	got = pretended(true).fastest()
	assert.Equal(t, float64(5), got[0])
	assert.Equal(t, float64(10), got[1])
	r := pretended(false)
	better := r.better(r.fastest())
	assert.InDelta(t, 1, better.mid, 1e-9, "the geometric mean of 2 and 0.5")
	assert.Greater(t, better.margin, 1.0, "of two rounds little is known")
	r = pretended(true)
	better = r.better(r.fastest())
	assert.InDelta(t, 0.25, better.mid, 1e-9)
	assert.Nil(t, r.row("rueidislock"))
}

func TestFactorSaysHowSureItIs(t *testing.T) {
	assert.Equal(t, "1.30× ±2%", factor(ratio{1.3, 0.014}))
	assert.Equal(t, "1.30× ±4%", factor(ratio{1.3, 0.031}))
	assert.Equal(t, "1.30×, of one round", factor(ratio{1.3, math.NaN()}))
}

func TestCheckFailsWhereABoundIsNotReached(t *testing.T) {
	var out bytes.Buffer
	r := pretended(false)
	set := func(ours float64) {
		for i := range r.rows[0].samples {
			r.rows[0].samples[i][rate] = ours
		}
		out.Reset()
	}
	set(20) // half of bare
	assert.False(t, check(&out, []*result{r}))
	assert.Contains(t, out.String(), "FAILED")
	set(39)
	assert.True(t, check(&out, []*result{r}))
	assert.Regexp(t, `\d +reached\n`, out.String())
	set(30)
	assert.True(t, check(&out, []*result{r}), "a bound that is to be reached later")
	assert.Contains(t, out.String(), " not reached\n")
	r.rows = r.rows[:1] // a bound whose ratio cannot be computed is not met
	assert.False(t, check(io.Discard, []*result{r}), "a bound without figures is met")
}

func TestEveryBoundIsOfAWorkload(t *testing.T) {
	all := workloads(size{1, 1, time.Second})
	for _, b := range bounds {
		assert.True(
			t,
			slices.ContainsFunc(all, func(w workload) bool { return w.name == b.workload }),
			"%s: %s",
			b.workload,
			b.what,
		)
		assert.True(t, b.met(b.reach, b.demand), "%s: %s: the check demands more than is to be reached", b.workload, b.what)
	}
}

// Four processes take turns of 1 ms and a trip of 3 ms; in the first of two rounds one waits for two rounds of all.
func TestCompareTellsTurnsByTheMutexOfTheSameRound(t *testing.T) {
	r := &result{workload: workload{name: lineName(4), figure: rate, inLine: 4}, rows: []row{
		{kindOf("relock"), []sample{{rate: 250, longest: 0.032, trips: 0.003}, {rate: 400, longest: 0.010, trips: 0.003}}},
		{kindOf("redsync"), []sample{{rate: 100, longest: 1, trips: 0.003}, {rate: 300, longest: 1, trips: 0.003}}},
		{kindOf("sync.Mutex"), []sample{{rate: 1000, longest: 0, trips: 0.003}, {rate: 500, longest: 0, trips: 0.003}}},
	}}
	r.compare()
	ours := r.ours()
	assert.InDeltaSlice(t, []float64{0.25, 0.8}, ours.of(ofMutex), 1e-9)
	assert.InDeltaSlice(t, []float64{2, 0.5}, ours.of(longestTurns), 1e-9)
	assert.InDelta(t, 2, ours.value(longestTurns), 1e-9, "the longest counts")
	assert.InDelta(t, 2.5, ofBest("redsync")(&result{rows: []row{r.rows[0], {kindOf("redsync"), []sample{{rate: 5}}},
		{kindOf("redislock"), []sample{{rate: 2}}}}, workload: workload{figure: rate, less: true}}), 1e-9)
	assert.True(t, math.IsNaN(ofBest("rueidislock")(r)), "a peer that did not take part")
	assert.True(t, math.IsNaN(figureOfKind("rueidislock", rate)(r)), "a peer that did not take part")
	assert.InDelta(t, 200, figureOfKind("redsync", rate)(r), 1e-9)
	r.rows = r.rows[:2]
	r.compare() // without the mutex
}

// The median is that of a slice. The longest hundredth is that of all slices together, each in its own round trips.
func TestHandoffsAreToldInRoundTrips(t *testing.T) {
	turn := turn{kind: kindOf("relock"), handed: new(stats.Histogram)}
	did := work{calls: map[string]float64{"evalsha": 300, "hget": 900}}
	first := handed{Waits: slices.Repeat([]time.Duration{4 * time.Millisecond}, 100)}.sum(turn, 2*time.Millisecond, did, 2)
	assert.InDelta(t, 2, first[handedOff], 0.07)
	assert.InDelta(t, 2, first[handedTail], 0.07)
	assert.Equal(t, 1.5, first[requests], "of 200 sections")
	second := handed{
		Waits: slices.Repeat([]time.Duration{6 * time.Millisecond}, 2),
		Stuck: 1,
	}.sum(
		turn,
		time.Millisecond,
		did,
		2,
	)
	assert.InDelta(t, 6, second[handedOff], 0.2)
	assert.InDelta(t, 6, second[handedTail], 0.2, "2 of 102")
	assert.Equal(t, float64(102), second[handoffs])
	third := handed{Waits: slices.Repeat([]time.Duration{time.Millisecond}, 2)}.sum(turn, time.Millisecond, did, 3)
	assert.Equal(t, float64(50), third[requests], "of 6 sections")
	assert.Equal(t, float64(1), second[stuckCount])
	r := row{turn.kind, []sample{first, second}}
	assert.Equal(t, second[handedTail], r.value(handedTail), "all slices are in the last one")
}

func TestGapsAreThoseBetweenConfirmedRenewals(t *testing.T) {
	r := newRenewals([]string{"a", "b"}, 50*time.Millisecond)
	send := func(name string, err error) {
		cmd := redis.NewCmd(t.Context(), "evalsha", "digest", 1, name)
		_ = r.ProcessPipelineHook(
			func(context.Context, []redis.Cmder) error { cmd.SetErr(err); return nil },
		)(
			t.Context(),
			[]redis.Cmder{cmd},
		)
	}
	send("a", nil)
	send("b", nil)
	for range 4 {
		time.Sleep(20 * time.Millisecond) // the gap that is measured
		send("a", nil)
		send("b", io.EOF) // no confirmation
	}
	gap, late := r.longest()
	assert.GreaterOrEqual(t, gap, 80*time.Millisecond, "the longest gap")
	assert.GreaterOrEqual(t, late, 1, "late renewals")
	assert.Less(t, r.gap[0].Load(), r.gap[1].Load(), "a lock that is renewed has the shorter gap")
	assert.Equal(t, int64(6), r.seen.Load(), "renewals")
	assert.Equal(t, int64(10), r.pipelines.Load(), "pipelines")
}

// The first of 1,000 names is drawn as often as the exponent says.
func TestNamesAreDrawnByZipf(t *testing.T) {
	for skew, want := range map[float64]float64{0: 1.0 / 1000, 0.8: 1 / 15.5, 0.99: 1 / 7.73} {
		draw := crowd{names: 1000, drawn: true, skew: skew}.draws()
		first := 0
		const draws = 200_000
		for range draws {
			if draw(0) == "bench:0" {
				first++
			}
		}
		assert.InEpsilon(t, want, float64(first)/draws, 0.3, "%g", skew)
	}
	draw := crowd{names: 4}.draws()
	assert.Equal(t, []string{"bench:0", "bench:1", "bench:0"}, []string{draw(0), draw(5), draw(8)})
}
