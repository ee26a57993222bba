// Command bench measures relock, other lock libraries of Go, and Redisson, on a redis-server that it starts:
//
//	go run .                         # everything; the charts are written to charts
//	go run . -readme ../README.md -page README.md    # and a chart and the tables into these pages
//	go run . -short -check           # a short run of everything, which fails below the bounds
//	go run . -work fleet,handoff     # workloads whose names begin with one of these
//	go run . -scale -write scaling.md    # how cost grows, for that page
//	go run . -client -write client.md    # the effect of the options of a Redis client
//	go run . -lost -write README.md    # lost updates under faults
//
// The workloads fleet-4x1-1ms-far, fleet-16x1-1ms-far and so on are processes with one goroutine each that compete for
// one name: their rate depends only on the hand-off between processes. fleet-10000x1-simulated is a simulation of such
// processes, with costs of requests that are measured before. handoff and handoff-far measure that hand-off alone, in
// round trips of a PING over the same connection; readers-woken and readers-woken-far measure in the same unit how long
// it takes until all readers that waited for a writer have the lock. In the workloads leavers-… and bursts-… some of
// the calls are canceled while they wait, one by one or many at once; they are compared with the same load in which no
// call is canceled.
//
// Redisson takes part if Java 17 and Maven are installed; otherwise a line reports that it is left out. Maven downloads
// it once. With -redisson=false nothing of Java is started.
package main

// Rules: the libraries take turns in short slices of time, each round begins with another one, and relock is compared
// with the results of the others in the same round, so that noise of the machine affects all of them. Every ratio is
// printed with its 95% margin. Rounds are added for some minutes until the margins of all ratios are at most 3%.

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

	"github.com/relock-go/relock/bench/stats"
)

// A plan determines which workloads to run, and for how long.
type plan struct {
	work   string
	slice  time.Duration
	rounds int
	size   size
	longer time.Duration // how long a workload continues if the margins of its ratios are large
	brief  bool          // only pollers that poll often take part: others delay the end of a slice
	log    io.Writer     // lines of progress, which overwrite each other

	redisson func(context.Context) (dir string, err error) // builds the Java program; nil if it is left out
	java     string                                        // the directory of the program; "" if it is left out
}

var (
	long = plan{
		slice:  600 * time.Millisecond,
		rounds: 7,
		longer: 2 * time.Minute,
		size:   size{100_000, 10_000, 30 * time.Second},
	}
	short = plan{slice: 150 * time.Millisecond, rounds: 3, size: size{20_000, 10_000, 6 * time.Second}}
)

func main() {
	var p plan
	inShort := flag.Bool("short", false, "a short run of everything, in some minutes, without charts unless -charts is set")
	flag.StringVar(
		&p.work,
		"work",
		"",
		"run only workloads, or tables, whose names begin with one of these prefixes, separated by commas",
	)
	flag.DurationVar(
		&p.longer,
		"longer",
		long.longer,
		"how long a workload continues if the margins of its ratios are large",
	)
	flag.DurationVar(&p.slice, "slice", long.slice, "the length of a turn of a library")
	flag.IntVar(&p.rounds, "rounds", long.rounds, "the number of turns of each library")
	flag.IntVar(&p.size.held, "held", long.size.held, "the number of locks that are held")
	flag.IntVar(&p.size.awaited, "waiters", long.size.awaited, "the number of goroutines that wait")
	flag.DurationVar(&p.size.lease, "lease", long.size.lease, "the lease of the locks that are held")
	charts := flag.String("charts", "charts", "the directory for the charts; empty for no charts")
	readme := flag.String("readme", "", "write a table of four workloads into this README, between its markers")
	all := flag.String("page", "", "write all rows into this page, between its markers")
	demand := flag.Bool("check", false, "fail if a bound is not met")
	java := flag.Bool("redisson", true, "measure Redisson, too, if Java 17 and Maven are installed")
	scale := flag.Bool("scale", false, "measure how cost grows, instead of the comparison")
	client := flag.Bool("client", false, "measure the effect of the options of a Redis client, instead of the comparison")
	lost := flag.Bool("lost", false, "count lost updates under faults, instead of the comparison")
	page := flag.String("write", "",
		"with -scale, -client or -lost: write the tables into this page, between their markers")
	flag.Parse()
	if *inShort {
		p.brief = true
		given := map[string]bool{}
		flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
		for name, value := range map[string]any{"slice": short.slice, "rounds": short.rounds, "longer": short.longer,
			"held":    short.size.held,
			"waiters": short.size.awaited, "lease": short.size.lease, "charts": ""} {
			if !given[name] {
				_ = flag.Set(name, fmt.Sprint(value)) // it is of its type
			}
		}
	}
	p.log = io.Discard
	if isTerminal(os.Stderr) {
		p.log = os.Stderr
	}
	if *java {
		p.redisson = buildRedisson
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	work := func() error { return run(ctx, p, os.Stdout, output{*charts, *readme, *all}, *demand) }
	switch {
	case *scale:
		work = func() error { return runTables(ctx, p, amountsFor(*inShort), scaleTables, os.Stdout, *page) }
	case *lost:
		work = func() error { return runTables(ctx, p, amountsFor(*inShort), lostTables, os.Stdout, *page) }
	case *client:
		work = func() error { return runTables(ctx, p, amountsFor(*inShort), clientTables, os.Stdout, *page) }
	}
	if err := work(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// run measures, and writes the results.
func run(ctx context.Context, p plan, out io.Writer, to output, demand bool) error {
	started := time.Now()
	var results []*result
	for _, page := range []string{to.readme, to.page} { // checked before it takes minutes
		if err := into(page, ""); err != nil {
			return err
		}
	}
	wanted := p.wanted()
	if len(wanted) == 0 {
		return fmt.Errorf("no workload begins with %q", p.work)
	}
	p.prepare(ctx, out, wanted)
	for _, w := range wanted {
		r, err := p.measure(ctx, w)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		r.text(out)
		results = append(results, r)
	}
	machine := fmt.Sprintf("Redis ran on the same %d processors, %s/%s, %s, %s.",
		runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version(), time.Now().UTC().Format("2006-01-02"))
	note := fmt.Sprintf("Each row is %d rounds of %v for each column, taking turns, or more rounds until the margins of "+
		"the ratios are small. A figure is the median of the rounds. A ratio is the "+
		"geometric mean of the ratios of the rounds, and its margin the 95%% confidence interval. %s",
		p.rounds, p.slice, machine)
	fmt.Fprintln(out, "\nlibraries")
	var settings strings.Builder
	for _, k := range kinds {
		if !slices.ContainsFunc(results, func(r *result) bool { return r.row(k.name) != nil }) {
			continue
		}
		fmt.Fprintf(out, "  %-14s %s\n", k.name, k.says)
		fmt.Fprintf(&settings, "- %s: %s\n", k.name, k.says)
	}
	fmt.Fprintf(out, "\n%s It took %v.\n\nbounds\n", note, time.Since(started).Round(time.Second))
	good := check(out, results)
	if to.charts != "" {
		for _, r := range results {
			if err := r.draw(to.charts, fmt.Sprintf("%d rounds, taking turns; the line is where most of them were. %d "+
				"processors with Redis and all clients.",
				len(r.rows[0].samples), runtime.NumCPU())); err != nil {
				return err
			}
		}
	}
	few := slices.DeleteFunc(slices.Clone(results), func(r *result) bool { return !r.headline })
	if err := into(to.readme, "\n"+markdown(few, others, false, machine)+"\n"); err != nil {
		return err
	}
	page := markdown(results, families, true, note) + "\nThe columns and the rows of the charts, and their settings:\n\n"
	if err := into(to.page, page+settings.String()); err != nil {
		return err
	}
	if demand && !good {
		return fmt.Errorf("a bound is not met")
	}
	return nil
}

// An output has the destinations of charts and tables; "" for none.
type output struct{ charts, readme, page string }

// into writes a table into a page, between its markers.
func into(page, table string) error {
	if page == "" {
		return nil
	}
	document, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	changed, err := put(string(document), begin, end, table)
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	if table == "" {
		return nil
	}
	return os.WriteFile(page, []byte(changed), 0o644)
}

func (p plan) wants(name string) bool {
	for prefix := range strings.SplitSeq(p.work, ",") {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// wanted returns the workloads that are to run.
func (p plan) wanted() (all []workload) {
	for _, w := range workloads(p.size) {
		if p.wants(w.name) {
			all = append(all, w)
		}
	}
	return all
}

// prepare builds Redisson if one of the workloads needs it, or reports that it is left out.
func (p *plan) prepare(ctx context.Context, out io.Writer, wanted []workload) {
	if p.redisson == nil ||
		!slices.ContainsFunc(wanted, func(w workload) bool { return slices.Contains(w.peers, "redisson") }) {
		return
	}
	var err error
	if p.java, err = p.redisson(ctx); err != nil {
		fmt.Fprintf(out, "Redisson is left out: %v\n", err)
	}
}

// measure runs all rounds of a workload.
func (p plan) measure(ctx context.Context, w workload) (*result, error) {
	s, err := w.start()
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
		t := turn{server: s, kind: kindOf(name), served: new([]int), handed: new(stats.Histogram),
			took: p.slice * time.Duration(max(1, w.longer)) / time.Duration(max(1, w.often))}
		if t.kind.open == nil && p.java == "" {
			continue
		}
		if err := p.open(ctx, &t, w); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		defer t.close()
		turns = append(turns, t)
		r.rows = append(r.rows, row{kind: t.kind})
	}
	rounds := 1 + p.rounds*max(1, w.often) // the first one warms up
	if w.rare {
		rounds = max(1, p.rounds/5)
	}
	began := time.Now()
	for round := 0; round < rounds || !w.rare && time.Since(began) < p.longer && !r.isSure(); round++ {
		for i := range turns {
			i = (i + round) % len(turns)
			fmt.Fprintf(p.log, "\r\033[K%s %d/%d %s", w.name, round+1, max(rounds, round+1), turns[i].kind.name)
			for _, node := range s.nodes {
				if err := node.FlushAll(ctx).Err(); err != nil { // deletes records that a waiter left when it gave up
					return nil, err
				}
			}
			got, err := w.slice(ctx, turns[i])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", turns[i].kind.name, err)
			}
			if w.rare || round > 0 {
				r.rows[i].samples = append(r.rows[i].samples, got)
			} else {
				turns[i].forget()
			}
		}
	}
	fmt.Fprint(p.log, "\r\033[K")
	r.compare()
	return r, nil
}

// start starts the servers of the workload.
func (w workload) start() (*server, error) {
	if w.masters > 0 {
		return startCluster(w.masters)
	}
	return startServer(w.trip)
}

// open starts the clients for a turn.
func (p plan) open(ctx context.Context, t *turn, w workload) (err error) {
	s := setting{addr: t.server.addr, lease: 30 * time.Second, timeout: w.timeout}
	if t.kind.open == nil {
		t.program, err = startRedisson(ctx, p.java, s, w.clients, max(2*time.Second, 8*p.slice))
		return err
	}
	for range w.clients {
		c, err := t.kind.open(s)
		if err != nil {
			t.close()
			return err
		}
		t.peers = append(t.peers, c)
	}
	return nil
}

// forget discards the results of the library so far.
func (t turn) forget() { *t.served, *t.handed = nil, stats.Histogram{} }

func (t turn) close() {
	if t.program != nil {
		t.program.close(shutdown)
	}
	for _, c := range t.peers {
		c.Close()
	}
}
