package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
