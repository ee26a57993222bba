package main

import (
	"bytes"
	"context"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

// Every workload runs for a blink, with all peers, and gives a table, charts, and what the README is to have.
func TestEveryWorkloadRunsAndIsShown(t *testing.T) {
	if !testredis.Available() {
		require.NotEqual(t, "true", os.Getenv("CI"), "this test needs a redis-server")
		t.Skip("this test needs a redis-server")
	}
	dir := t.TempDir()
	readme := filepath.Join(dir, "README.md")
	require.NoError(t, os.WriteFile(readme, []byte("before\n"+begin+"old\n"+end+"after\n"), 0o600))
	p := plan{slice: 10 * time.Millisecond, rounds: 1, size: size{500, 200, 600 * time.Millisecond}, log: io.Discard}
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), p, &out, dir, readme, false))
	t.Log(out.String())
	document, err := os.ReadFile(readme)
	require.NoError(t, err)
	for _, w := range workloads(p.size) {
		assert.Contains(t, out.String(), "\n"+w.name+": ", "%s is not in the tables", w.name)
		assert.Contains(t, string(document), w.title, "%s is not in the document", w.name)
		_, err := os.Stat(filepath.Join(dir, "bench-"+w.name+".svg"))
		assert.NoError(t, err)
	}
	assert.NotContains(t, string(document), "old")
	assert.NotContains(t, out.String(), "NaN")
	for _, b := range bounds {
		assert.Contains(t, out.String(), b.what)
	}
}

// Every table of the page gets something to say, and takes the place of what was there.
func TestEveryTableOfThePageIsReplaced(t *testing.T) {
	if !testredis.Available() {
		require.NotEqual(t, "true", os.Getenv("CI"), "this test needs a redis-server")
		t.Skip("this test needs a redis-server")
	}
	page := filepath.Join(t.TempDir(), "scaling.md")
	var text strings.Builder
	for _, name := range append(names(), "machine") {
		begin, end := markers(name)
		text.WriteString(begin + "old\n" + end)
	}
	require.NoError(t, os.WriteFile(page, []byte(text.String()), 0o600))
	a := amounts{[]int{500}, 100, 600 * time.Millisecond, 50 * time.Millisecond, []shape{{2, 2}, {2, 1}}, []int{10}, time.Second}
	var out bytes.Buffer
	require.NoError(t, runScale(t.Context(), plan{log: io.Discard}, a, &out, page))
	t.Log(out.String())
	document, err := os.ReadFile(page)
	require.NoError(t, err)
	assert.NotContains(t, string(document), "old")
	assert.NotContains(t, string(document), "NaN")
	assert.GreaterOrEqual(t, strings.Count(string(document), "|---|"), len(names()))
	out.Reset()
	p := plan{work: "pairs", log: io.Discard}
	err = runScale(t.Context(), p, a, &out, page)
	assert.NoError(t, err)
	assert.True(t, strings.HasPrefix(out.String(), "\npairs\n"), "one table: %s", &out)
	assert.NotContains(t, out.String(), "\nrequests\n", "one table")
	assert.Error(t, runScale(t.Context(), p, a, io.Discard, filepath.Join(t.TempDir(), "none")), "a page that is not there")
}

// The page has the places for the tables.
func TestThePageHasPlacesForTheTables(t *testing.T) {
	page, err := os.ReadFile("../docs/scaling.md")
	require.NoError(t, err)
	for _, name := range append(names(), "machine") {
		begin, end := markers(name)
		_, err := put(string(page), begin, end, "")
		assert.NoError(t, err)
	}
}

func TestRunStopsWithItsContext(t *testing.T) {
	if !testredis.Available() {
		t.Skip("this test needs a redis-server")
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	p := plan{slice: time.Hour, rounds: 1, log: io.Discard}
	assert.ErrorIs(t, run(ctx, p, io.Discard, "", "", false), context.Canceled)
}

func TestUnknownWorkloadIsAnError(t *testing.T) {
	assert.Error(t, run(t.Context(), plan{work: "none"}, io.Discard, "", "", false))
}

func TestPutReplacesTheTextBetweenMarkers(t *testing.T) {
	got, err := put("a\n"+begin+"old\n"+end+"b\n", begin, end, "new\n")
	assert.NoError(t, err)
	assert.Equal(t, "a\n"+begin+"\nnew\n\n"+end+"b\n", got)
	again, err := put(got, begin, end, "new\n")
	assert.NoError(t, err)
	assert.Equal(t, got, again, "a second time")
	for _, bad := range []string{"", begin, end, end + begin, begin + end + end, begin + begin + end} {
		_, err := put(bad, begin, end, "new\n")
		assert.Error(t, err, "%q", bad)
	}
}

func TestParseInfoLeavesOutItsOwnCommands(t *testing.T) {
	w := parseInfo("# Commandstats\r\ncmdstat_evalsha:calls=7,usec=1\r\ncmdstat_hget:calls=3,usec=1\r\n" +
		"cmdstat_client|list:calls=9,usec=1\r\ncmdstat_info:calls=9,usec=1\r\nused_cpu_sys:1.5\r\nused_cpu_user:2\r\nused_cpu_sys_children:5\r\n")
	assert.Equal(t, float64(10), w.commands)
	assert.Equal(t, float64(7), w.evalsha)
	assert.Equal(t, 3.5, w.redis)
}

func TestFiguresAreRounded(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{amount(0), "0"}, {amount(9994), "9994"}, {amount(9996), "10.0k"}, {amount(999_499), "999.5k"}, {amount(999_600), "1.00M"},
		{amount(math.NaN()), "-"},
		{digits(0), "0"}, {digits(0.00123), "0.0012"}, {digits(0.5), "0.50"}, {digits(9.999), "10.0"}, {digits(123), "123"},
		{span(0), "0s"}, {span(1.5e-6), "1.50µs"}, {span(0.25), "250ms"}, {span(3), "3.00s"}, {span(math.NaN()), "-"},
		{kib(100), "100 B"}, {kib(10 << 10), "10.0 KiB"},
		{percent(0.42), "42%"},
	} {
		assert.Equal(t, c.want, c.got)
	}
}

// results of two rounds, in which relock was twice and four times as fast as one library, and the other one better.
func pretended(less bool) *result {
	r := &result{workload: workload{name: "alone", figure: rate, less: less}}
	for name, rates := range map[string][2]float64{"relock": {20, 40}, "redsync": {10, 10}, "redislock": {5, 80}, "bare EVALSHA": {40, 40}} {
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
	assert.Equal(t, 0.5, better.Low)
	assert.Equal(t, 1.25, better.Mid)
	assert.Equal(t, float64(2), better.High)
	r = pretended(true)
	better = r.better(r.fastest())
	assert.Equal(t, 0.25, better.Low)
	assert.Equal(t, 0.25, better.High)
	assert.Nil(t, r.row("rueidislock"))
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
	assert.Contains(t, out.String(), " reached")
	r.rows = r.rows[:1] // a bound that cannot be told is not met
	assert.False(t, check(io.Discard, []*result{r}), "a bound without figures is met")
}

func TestEvennessIsTheSlowestToTheFastest(t *testing.T) {
	assert.Equal(t, 0.5, evenness([]int{3, 6, 4}))
	assert.True(t, math.IsNaN(evenness([]int{0, 0})))
}

func TestGapsAreThoseBetweenConfirmedRenewals(t *testing.T) {
	r := newRenewals([]string{"a", "b"}, 50*time.Millisecond)
	send := func(name string, err error) {
		cmd := redis.NewCmd(t.Context(), "evalsha", "digest", 1, name)
		_ = r.ProcessPipelineHook(func(context.Context, []redis.Cmder) error { cmd.SetErr(err); return nil })(t.Context(), []redis.Cmder{cmd})
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
