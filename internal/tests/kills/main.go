// Command kills shows which tests find which mistakes: it makes each mistake of internal/tests/mistakes, one at a time,
// and runs each suite of suites.go with it. It judges which tests may go.
//
//	make kills [MISTAKES=regexp] [SUITES=regexp]     # for example MISTAKES=scripts/ or MISTAKES='barge|noGrant'
//	go run ./internal/tests/kills -each -suites 'line-|fair-'
//
// It runs in the root of the repository, and changes nothing there. It prints one page: a row for each mistake, and a
// column for each suite.
//
// Rules: a suite finds a mistake if it fails with it, twice, and it must pass without any. A run that takes too long finds
// nothing: the machine may be busy.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/relock-go/relock/internal/tests/mistakes"
)

var (
	mistakesToMake = flag.String("mistakes", ".", "a pattern of mistakes, each of which is called scripts/NAME or code/NAME")
	suitesToRun    = flag.String("suites", ".", "a pattern of suites")
	atOnce         = flag.Int("at-once", 4, "how many suites run side by side")
	longest        = flag.Duration("timeout", 5*time.Minute, "how long a run of a suite may take")
	each           = flag.Bool("each", false, "run all tests of each suite, and list those that fail with each mistake")
	logs           = flag.String("logs", "", "a directory for what the suites print; none: it is thrown away")
)

// A kind of mistakes; a suite has a set of them.
type kind int

const (
	scripts kind = 1 << iota
	code
)

// A row is a mistake. The first row has none.
type row struct {
	mistakes.Mistake
	kind kind
}

func (r row) name() string {
	switch {
	case r.Name == "":
		return "none"
	case r.kind == scripts:
		return "scripts/" + r.Name
	}
	return "code/" + r.Name
}

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	rows, columns, err := chosen()
	if err != nil {
		return err
	}
	b, err := newBuilder()
	if err != nil {
		return err
	}
	defer b.close()
	m := &matrix{builder: b, rows: rows, suites: columns, cells: make(map[[2]int]outcome)}
	if err := m.passes(ctx); err != nil {
		return err
	}
	err = m.fill(ctx)
	m.print(os.Stdout) // as far as it is known
	return err
}

// chosen returns the mistakes and the suites that the flags name.
func chosen() (rows []row, columns []suite, err error) {
	wanted, err := regexp.Compile(*mistakesToMake)
	if err != nil {
		return nil, nil, err
	}
	run, err := regexp.Compile(*suitesToRun)
	if err != nil {
		return nil, nil, err
	}
	kinds := kind(0)
	for _, m := range mistakes.Scripts {
		if r := (row{m, scripts}); wanted.MatchString(r.name()) {
			rows, kinds = append(rows, r), kinds|r.kind
		}
	}
	for _, m := range mistakes.Code {
		if r := (row{m, code}); wanted.MatchString(r.name()) {
			rows, kinds = append(rows, r), kinds|r.kind
		}
	}
	for _, s := range suites {
		if run.MatchString(s.name) && s.of&kinds != 0 {
			columns = append(columns, s)
		}
	}
	if len(rows) == 0 || len(columns) == 0 {
		return nil, nil, fmt.Errorf("no mistake of %q, or no suite of %q", *mistakesToMake, *suitesToRun)
	}
	return rows, columns, nil
}

// A matrix has what each suite did with each mistake.
type matrix struct {
	*builder
	rows   []row
	suites []suite

	mu    sync.Mutex
	cells map[[2]int]outcome // row and suite
	took  map[int]time.Duration
}

// passes requires that all suites pass without a mistake.
func (m *matrix) passes(ctx context.Context) error {
	m.took = make(map[int]time.Duration)
	var wrong []string
	err := m.parallel(ctx, len(m.suites), func(i int) error {
		s := m.suites[i]
		if _, err := m.program(ctx, row{}, s.dir); err != nil { // which would count as time of the suite
			return err
		}
		begin := time.Now()
		o, err := m.try(ctx, row{}, s)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.took[i] = time.Since(begin)
		if o.mark != missed {
			wrong = append(wrong, fmt.Sprintf("%s does not pass without a mistake (%c): %s", s.name, o.mark, strings.Join(o.tests, " ")))
		}
		return err
	})
	if err == nil && wrong != nil {
		err = fmt.Errorf("%s", strings.Join(wrong, "\n"))
	}
	return err
}

// fill runs each suite with each mistake.
func (m *matrix) fill(ctx context.Context) error {
	n := len(m.suites)
	return m.parallel(ctx, len(m.rows)*n, func(i int) error {
		r, s := m.rows[i/n], m.suites[i%n]
		if i%n == n-1 {
			defer fmt.Fprintf(os.Stderr, "%s (%d of %d)\n", r.name(), i/n+1, len(m.rows))
		}
		if can, err := m.canFind(ctx, r, s); err != nil || !can {
			return err
		}
		o, err := m.try(ctx, r, s)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.cells[[2]int{i / n, i % n}] = o
		return err
	})
}

// parallel calls do with the numbers up to n, and returns an error of one of the calls.
func (m *matrix) parallel(ctx context.Context, n int, do func(i int) error) (first error) {
	next := make(chan int)
	var mu sync.Mutex
	var all sync.WaitGroup
	for range *atOnce {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := range next {
				if err := do(i); err != nil {
					mu.Lock()
					first = err
					mu.Unlock()
				}
			}
		}()
	}
	for i := 0; i < n && ctx.Err() == nil; i++ {
		mu.Lock()
		failed := first != nil
		mu.Unlock()
		if failed {
			break
		}
		next <- i
	}
	close(next)
	all.Wait()
	if first == nil {
		first = ctx.Err()
	}
	return first
}
