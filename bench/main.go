// Command bench measures relock beside other lock libraries of Go, on a
// redis-server that it starts itself:
//
//	go run .                         # everything; the charts go to ../docs
//	go run . -readme ../README.md    # and the table into a README
//	go run . -short -check           # a moment of everything; fails below the bounds
//	go run . -work fleet,handoff     # workloads whose names begin so
//	go run . -scale -write ../docs/scaling.md    # what grows with what, for that page
package main

// Rules: the peers take turns in short slices of time, each round begins with
// another one, and relock is compared with what the others did in the same round:
// noise of the machine hits all of them. Every ratio is printed with its spread.

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A plan is what to run, and how long.
type plan struct {
	work   string
	slice  time.Duration
	rounds int
	size   size
	brief  bool // of the pollers only those that ask often: others keep a slice waiting when it is over
	log    io.Writer
}

var (
	long  = plan{slice: 600 * time.Millisecond, rounds: 5, size: size{100_000, 10_000, 30 * time.Second}}
	short = plan{slice: 150 * time.Millisecond, rounds: 3, size: size{20_000, 10_000, 6 * time.Second}}
)

func main() {
	var p plan
	inShort := flag.Bool("short", false, "less of everything, in under two minutes, and no charts unless asked for")
	flag.StringVar(&p.work, "work", "", "only workloads, or tables, whose names begin with one of these, separated by commas")
	flag.DurationVar(&p.slice, "slice", long.slice, "how long a peer's turn is")
	flag.IntVar(&p.rounds, "rounds", long.rounds, "how many turns each peer has")
	flag.IntVar(&p.size.held, "held", long.size.held, "how many locks are held")
	flag.IntVar(&p.size.awaited, "waiters", long.size.awaited, "how many goroutines wait")
	flag.DurationVar(&p.size.lease, "lease", long.size.lease, "of the locks that are held")
	docs := flag.String("docs", "../docs", "where the charts go; empty: nowhere")
	readme := flag.String("readme", "", "a file to put the table into, between its markers")
	demand := flag.Bool("check", false, "fail when a bound is not met")
	scale := flag.Bool("scale", false, "what grows with what, instead of the comparison")
	page := flag.String("write", "", "with -scale: a page to put its tables into, between their markers")
	flag.Parse()
	if *inShort {
		p.brief = true
		given := map[string]bool{}
		flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
		for name, value := range map[string]any{"slice": short.slice, "rounds": short.rounds, "held": short.size.held,
			"waiters": short.size.awaited, "lease": short.size.lease, "docs": ""} {
			if !given[name] {
				_ = flag.Set(name, fmt.Sprint(value)) // it is of its type
			}
		}
	}
	p.log = os.Stderr
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	work := func() error { return run(ctx, p, os.Stdout, *docs, *readme, *demand) }
	if *scale {
		work = func() error { return runScale(ctx, p, amountsFor(*inShort), os.Stdout, *page) }
	}
	if err := work(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run measures, and writes what is asked for.
func run(ctx context.Context, p plan, out io.Writer, docs, readme string, demand bool) error {
	started := time.Now()
	var results []*result
	if readme != "" { // before it takes minutes
		if document, err := os.ReadFile(readme); err != nil {
			return err
		} else if _, err := put(string(document), begin, end, ""); err != nil {
			return fmt.Errorf("%s: %w", readme, err)
		}
	}
	for _, w := range workloads(p.size) {
		if !p.wants(w.name) {
			continue
		}
		r, err := p.measure(ctx, w)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		r.text(out)
		results = append(results, r)
	}
	if len(results) == 0 {
		return fmt.Errorf("no workload begins with %q", p.work)
	}
	note := fmt.Sprintf("%d rounds of %v for each peer, taking turns; median (most of the rounds). Redis on the same %d processors, %s/%s, %s, %s.",
		p.rounds, p.slice, runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), time.Now().UTC().Format("2006-01-02"))
	fmt.Fprintln(out, "\npeers")
	for _, k := range kinds {
		fmt.Fprintf(out, "  %-14s %s\n", k.name, k.says)
	}
	fmt.Fprintf(out, "\n%s It took %v.\n\nbounds\n", note, time.Since(started).Round(time.Second))
	good := check(out, results)
	if docs != "" {
		for _, r := range results {
			if err := r.draw(docs, fmt.Sprintf("%d rounds, taking turns; the line is where most of them were. %d processors with Redis and all clients.",
				len(r.rows[0].samples), runtime.NumCPU())); err != nil {
				return err
			}
		}
	}
	if readme != "" {
		document, err := os.ReadFile(readme)
		if err != nil {
			return err
		}
		changed, err := put(string(document), begin, end, markdown(results, note))
		if err != nil {
			return fmt.Errorf("%s: %w", readme, err)
		}
		if err := os.WriteFile(readme, []byte(changed), 0o644); err != nil {
			return err
		}
	}
	if demand && !good {
		return fmt.Errorf("a bound is not met")
	}
	return nil
}

func (p plan) wants(name string) bool {
	for prefix := range strings.SplitSeq(p.work, ",") {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// measure runs all rounds of a workload.
func (p plan) measure(ctx context.Context, w workload) (*result, error) {
	s, err := startServer(w.trip)
	if err != nil {
		return nil, err
	}
	defer s.close()
	r := &result{workload: w}
	var turns []turn
	for _, name := range w.peers {
		if p.brief && slices.Contains(w.peers, name+" 2ms") {
			continue
		}
		t := turn{server: s, kind: kindOf(name), served: new([]int), took: p.slice / time.Duration(max(1, w.often))}
		for range w.clients {
			c, err := t.kind.open(setting{addr: s.addr, lease: 30 * time.Second})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			defer c.Close()
			t.peers = append(t.peers, c)
		}
		turns = append(turns, t)
		r.rows = append(r.rows, row{kind: t.kind})
	}
	rounds := 1 + p.rounds*max(1, w.often) // the first one warms up
	if w.rare {
		rounds = max(1, p.rounds/5)
	}
	for round := range rounds {
		for i := range turns {
			i = (i + round) % len(turns)
			fmt.Fprintf(p.log, "\r\033[K%s %d/%d %s", w.name, round+1, rounds, turns[i].kind.name)
			if err := s.admin.FlushAll(ctx).Err(); err != nil { // records that a waiter left when it gave up
				return nil, err
			}
			got, err := w.slice(ctx, turns[i])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", turns[i].kind.name, err)
			}
			if w.rare || round > 0 {
				r.rows[i].samples = append(r.rows[i].samples, got)
			}
		}
	}
	fmt.Fprint(p.log, "\r\033[K")
	return r, nil
}
