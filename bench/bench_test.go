package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/testredis"
)

// Every workload runs for a blink, with all peers, and gives a table, charts, and what the README is to have.
func TestSmoke(t *testing.T) {
	if !testredis.Available() {
		if os.Getenv("CI") == "true" {
			t.Fatal("this test needs a redis-server")
		}
		t.Skip("this test needs a redis-server")
	}
	dir := t.TempDir()
	readme := filepath.Join(dir, "README.md")
	if err := os.WriteFile(readme, []byte("before\n"+begin+"old\n"+end+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := plan{slice: 10 * time.Millisecond, rounds: 1, size: size{500, 200, 600 * time.Millisecond}, log: io.Discard}
	var out bytes.Buffer
	if err := run(t.Context(), p, &out, dir, readme, false); err != nil {
		t.Fatal(err)
	}
	t.Log(out.String())
	document, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range workloads(p.size) {
		if !strings.Contains(out.String(), "\n"+w.name+": ") || !strings.Contains(string(document), w.title) {
			t.Errorf("%s is not in the tables", w.name)
		}
		if _, err := os.Stat(filepath.Join(dir, "bench-"+w.name+".svg")); err != nil {
			t.Error(err)
		}
	}
	if strings.Contains(string(document), "old") || strings.Contains(out.String(), "NaN") {
		t.Errorf("%s\n%s", document, &out)
	}
	for _, b := range bounds {
		if !strings.Contains(out.String(), b.what) {
			t.Errorf("nothing about %q", b.what)
		}
	}
}

// Every table of the page gets something to say, and takes the place of what was there.
func TestScale(t *testing.T) {
	if !testredis.Available() {
		if os.Getenv("CI") == "true" {
			t.Fatal("this test needs a redis-server")
		}
		t.Skip("this test needs a redis-server")
	}
	page := filepath.Join(t.TempDir(), "scaling.md")
	var text strings.Builder
	for _, name := range append(names(), "machine") {
		begin, end := markers(name)
		text.WriteString(begin + "old\n" + end)
	}
	if err := os.WriteFile(page, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	a := amounts{[]int{500}, 100, 600 * time.Millisecond, 50 * time.Millisecond, []shape{{2, 2}, {2, 1}}, []int{10}, time.Second}
	var out bytes.Buffer
	if err := runScale(t.Context(), plan{log: io.Discard}, a, &out, page); err != nil {
		t.Fatal(err)
	}
	t.Log(out.String())
	document, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(document), "old") || strings.Contains(string(document), "NaN") || strings.Count(string(document), "|---|") < len(names()) {
		t.Errorf("%s", document)
	}
	out.Reset()
	p := plan{work: "pairs", log: io.Discard}
	if err := runScale(t.Context(), p, a, &out, page); err != nil || !strings.HasPrefix(out.String(), "\npairs\n") || strings.Contains(out.String(), "\nrequests\n") {
		t.Errorf("one table: %v, %s", err, &out)
	}
	if err := runScale(t.Context(), p, a, io.Discard, filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a page that is not there")
	}
}

// The page has the places for the tables.
func TestScalePage(t *testing.T) {
	page, err := os.ReadFile("../docs/scaling.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(names(), "machine") {
		begin, end := markers(name)
		if _, err := put(string(page), begin, end, ""); err != nil {
			t.Error(err)
		}
	}
}

func TestRunThatIsStopped(t *testing.T) {
	if !testredis.Available() {
		t.Skip("this test needs a redis-server")
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	p := plan{slice: time.Hour, rounds: 1, log: io.Discard}
	if err := run(ctx, p, io.Discard, "", "", false); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestNoSuchWorkload(t *testing.T) {
	if err := run(t.Context(), plan{work: "none"}, io.Discard, "", "", false); err == nil {
		t.Error("no error")
	}
}

func TestPut(t *testing.T) {
	got, err := put("a\n"+begin+"old\n"+end+"b\n", begin, end, "new\n")
	if want := "a\n" + begin + "\nnew\n\n" + end + "b\n"; err != nil || got != want {
		t.Errorf("%q, %v", got, err)
	}
	if again, err := put(got, begin, end, "new\n"); err != nil || again != got {
		t.Errorf("again: %q, %v", again, err)
	}
	for _, bad := range []string{"", begin, end, end + begin, begin + end + end, begin + begin + end} {
		if _, err := put(bad, begin, end, "new\n"); err == nil {
			t.Errorf("%q was good", bad)
		}
	}
}

func TestParseInfo(t *testing.T) {
	w := parseInfo("# Commandstats\r\ncmdstat_evalsha:calls=7,usec=1\r\ncmdstat_hget:calls=3,usec=1\r\n" +
		"cmdstat_client|list:calls=9,usec=1\r\ncmdstat_info:calls=9,usec=1\r\nused_cpu_sys:1.5\r\nused_cpu_user:2\r\nused_cpu_sys_children:5\r\n")
	if w.commands != 10 || w.evalsha != 7 || w.redis != 3.5 {
		t.Errorf("%+v", w)
	}
}

func TestWriting(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{amount(0), "0"}, {amount(9994), "9994"}, {amount(9996), "10.0k"}, {amount(999_499), "999.5k"}, {amount(999_600), "1.00M"},
		{amount(math.NaN()), "-"},
		{digits(0), "0"}, {digits(0.00123), "0.0012"}, {digits(0.5), "0.50"}, {digits(9.999), "10.0"}, {digits(123), "123"},
		{span(0), "0s"}, {span(1.5e-6), "1.50µs"}, {span(0.25), "250ms"}, {span(3), "3.00s"}, {span(math.NaN()), "-"},
		{kib(100), "100 B"}, {kib(10 << 10), "10.0 KiB"},
		{percent(0.42), "42%"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
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
	if got := pretended(false).fastest(); got[0] != 10 || got[1] != 80 {
		t.Error(got)
	}
	if got := pretended(true).fastest(); got[0] != 5 || got[1] != 10 {
		t.Error(got)
	}
	r := pretended(false)
	if got := r.better(r.fastest()); got.Low != 0.5 || got.Mid != 1.25 || got.High != 2 {
		t.Error(got)
	}
	r = pretended(true)
	if got := r.better(r.fastest()); got.Low != 0.25 || got.High != 0.25 {
		t.Error(got)
	}
	if got := r.row("rueidislock"); got != nil {
		t.Error(got)
	}
}

func TestCheck(t *testing.T) {
	var out bytes.Buffer
	if check(&out, []*result{pretended(false)}) || !strings.Contains(out.String(), "FAILED") { // 0.75 of bare
		t.Error(out.String())
	}
	r := pretended(false)
	for i := range r.rows[0].samples {
		r.rows[0].samples[i][rate] = 39
	}
	out.Reset()
	if !check(&out, []*result{r}) || !strings.Contains(out.String(), " reached") {
		t.Error(out.String())
	}
	r.rows = r.rows[:1] // a bound that cannot be told is not met
	if check(io.Discard, []*result{r}) {
		t.Error("met by nothing")
	}
}

func TestEvenness(t *testing.T) {
	if got := evenness([]int{3, 6, 4}); got != 0.5 {
		t.Error(got)
	}
	if got := evenness([]int{0, 0}); !math.IsNaN(got) {
		t.Error(got)
	}
}

func TestGapsBetweenRenewals(t *testing.T) {
	r := newRenewals([]string{"a", "b"}, 50*time.Millisecond)
	send := func(name string, err error) {
		cmd := redis.NewCmd(t.Context(), "evalsha", "digest", 1, name)
		_ = r.ProcessPipelineHook(func(context.Context, []redis.Cmder) error { cmd.SetErr(err); return nil })(t.Context(), []redis.Cmder{cmd})
	}
	send("a", nil)
	send("b", nil)
	for range 4 {
		time.Sleep(20 * time.Millisecond)
		send("a", nil)
		send("b", io.EOF) // no confirmation
	}
	gap, late := r.longest()
	if gap < 80*time.Millisecond || late < 1 {
		t.Errorf("gap %v, late %d", gap, late)
	}
	if r.gap[0].Load() >= r.gap[1].Load() {
		t.Error("one that is renewed has a longer gap")
	}
	if r.seen.Load() != 6 || r.pipelines.Load() != 10 {
		t.Errorf("seen %d in %d", r.seen.Load(), r.pipelines.Load())
	}
}
