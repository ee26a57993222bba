package main

// The tables and the charts.

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/relock-go/relock/bench/chart"
	"github.com/relock-go/relock/bench/stats"
)

// text writes the complete table of a workload.
func (r *result) text(w io.Writer) {
	fmt.Fprintf(w, "\n%s: %s\n", r.name, r.title)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "  \t%s (of %d rounds)\trelock is better by", r.figure.head, len(r.rows[0].samples))
	for _, m := range r.columns {
		fmt.Fprintf(t, "\t%s", m.head)
	}
	fmt.Fprintln(t)
	for i, row := range r.rows {
		times := ""
		if i > 0 {
			times = factor(r.better(row.of(r.figure)))
		}
		fmt.Fprintf(t, "  %s\t%s\t%s", row.kind.name, within(row.spread(r.figure), r.figure.write), times)
		for _, m := range r.columns {
			fmt.Fprintf(t, "\t%s", m.write(row.value(m)))
		}
		fmt.Fprintln(t)
	}
	_ = t.Flush()
}

// within returns the median and the range of most rounds.
func within(s stats.Spread, write func(float64) string) string {
	if s.Low == s.High {
		return write(s.Mid)
	}
	return fmt.Sprintf("%s (%s to %s)", write(s.Mid), write(s.Low), write(s.High))
}

// factor returns a ratio with its margin, and "" if there is none, as beside a figure of 0.
func factor(r ratio) string {
	if math.IsNaN(r.mid) {
		return ""
	}
	text := digits(r.mid) + "×"
	if math.IsNaN(r.margin) {
		return text + ", of one round"
	}
	return text + fmt.Sprintf(" ±%.0f%%", math.Ceil(100*r.margin))
}

// draw writes the chart of a workload.
func (r *result) draw(dir, note string) error {
	c := chart.Chart{Title: r.title, Unit: r.figure.head, Note: note}
	if r.less {
		c.Unit += ", less is better"
	}
	for i, row := range r.rows {
		s := row.spread(r.figure)
		bar := chart.Bar{Name: row.kind.name, Low: s.Low, Mid: s.Mid, High: s.High, Text: r.figure.write(s.Mid), Ours: i == 0}
		if r.high != nil {
			bar.Low, bar.High = s.Mid, row.spread(r.high).Mid
			bar.Text += ", 99%: " + r.high.write(bar.High)
		}
		c.Bars = append(c.Bars, bar)
	}
	f, err := os.Create(filepath.Join(dir, "bench-"+r.name+".svg"))
	if err != nil {
		return err
	}
	defer f.Close()
	return c.Write(f)
}

// A family is a column of the short table. It shows the best of its libraries.
type family struct {
	head  string
	peers []string
}

var families = []family{
	{"minimum", []string{"bare EVALSHA", "bare AutoPipeline", "bare grant", "bare read", "bare wake"}},
	{"sync.Mutex", []string{"sync.Mutex"}},
	{"relock, for comparison", []string{noneLeaves, "relock"}},
	{"rueidislock", []string{"rueidislock"}},
	{"redislock", []string{"redislock", "redislock 2ms"}},
	{"redsync", []string{"redsync", "redsync 2ms"}},
	{"Redisson (Java)", []string{"redisson"}},
}

// others has the columns of the README: those of other libraries.
var others = families[3:]

// markdown returns the short table of these workloads. A family that did not take part has no column. The rows
// link to their charts if linked is set.
func markdown(results []*result, columns []family, linked bool, note string) string {
	var b strings.Builder
	b.WriteString("| work | relock |")
	took := slices.DeleteFunc(slices.Clone(columns), func(f family) bool {
		return !slices.ContainsFunc(results, func(r *result) bool { return r.best(f.peers) != "" })
	})
	for _, f := range took {
		b.WriteString(" " + f.head + " |")
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(took)) + "\n")
	for _, r := range results {
		title := r.title
		if linked {
			title = fmt.Sprintf("[%s](charts/bench-%s.svg)", r.title, r.name)
		}
		fmt.Fprintf(&b, "| %s, %s | **%s** |", title, r.figure.head, r.figure.write(r.ours().spread(r.figure).Mid))
		for _, f := range took {
			b.WriteString(" " + cmp.Or(r.best(f.peers), "–") + " |")
		}
		b.WriteString("\n")
	}
	return b.String() + "\n" + note + "\n"
}

// best returns how much better relock is than the best of some libraries; "" if none took part. It returns no figure of
// the library, because the median of its rounds and that of relock need not have the ratio that is the mean of the
// ratios of the rounds. The first row is not compared with itself.
func (r *result) best(of []string) string {
	text, at := "", 0.0
	for _, name := range of {
		row := r.row(name)
		if row == nil || row == &r.rows[0] {
			continue
		}
		s := row.spread(r.figure)
		if text == "" || s.Mid > at != r.less {
			text, at = factor(r.better(row.of(r.figure))), s.Mid
		}
	}
	return text
}

// The table in a README is between these markers.
const (
	begin = "<!-- bench -->\n"
	end   = "<!-- /bench -->\n"
)

// put replaces the text between two markers, each of which must occur exactly once.
func put(document, begin, end, table string) (string, error) {
	if strings.Count(document, begin) != 1 || strings.Count(document, end) != 1 {
		return "", fmt.Errorf("it needs a line %q and a line %q", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	before, rest, _ := strings.Cut(document, begin)
	_, after, found := strings.Cut(rest, end)
	if !found {
		return "", fmt.Errorf("%q comes first", strings.TrimSpace(end))
	}
	return before + begin + "\n" + table + "\n" + end + after, nil
}
