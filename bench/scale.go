package main

// Tables of pages: how cost grows (scaling.md), and the effect of the options of a Redis client
// (client.md).
//
// Rules: each table has servers of its own, and markers of its own on the page. CPU seconds and bytes are valid on a
// busy machine, too; rates and times are not. A table that is calculated says so in its head, and is calculated from
// figures of the same run.

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"
)

// amounts are the numbers that are measured.
type amounts struct {
	locks     []int // number of locks that are held
	waiters   int
	lease     time.Duration // of the locks that are held
	slice     time.Duration // the length of a measurement
	fleets    []shape       // measured, and simulated
	processes []int         // simulated
	simulated time.Duration // the simulated time
	lost      time.Duration // how long each cell of the table of lost updates takes
}

// A shape is the number of processes and of their goroutines that compete for one name.
type shape struct{ processes, goroutines int }

func amountsFor(short bool) amounts {
	if short {
		return amounts{
			[]int{2000},
			500,
			3 * time.Second,
			300 * time.Millisecond,
			[]shape{{4, 16}, {16, 1}},
			[]int{10, 100},
			5 * time.Second,
			time.Second,
		}
	}
	return amounts{[]int{10_000, 100_000}, 10_000, 30 * time.Second, 3 * time.Second,
		[]shape{{4, 16}, {16, 16}, {128, 16}, {4, 1}, {16, 1}, {128, 1}}, []int{10, 100, 1000, 10_000},
		15 * time.Minute, 10 * time.Second}
}

// A scale is one run of all tables.
type scale struct {
	amounts
	requestTimes
}

// The requestTimes are CPU seconds of Redis, for requests that each come from a client of their own.
type requestTimes struct {
	pair           float64 // a lock and an unlock
	attempt        float64 // for a busy lock
	message        float64 // for each subscribed client
	turn, fairTurn float64 // for a client that is granted a lock and passes it on
}

// A table has the results.
type table struct {
	head []string
	rows [][]string
	note string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(t.head, " | "), strings.Repeat("---|", len(t.head)))
	for _, row := range t.rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
	}
	if t.note != "" {
		fmt.Fprintf(&b, "\n%s\n", t.note)
	}
	return b.String()
}

// A named table is filled by a function.
type named struct {
	name string
	fill func(*scale, context.Context, *table) error
}

// scaleTables are the tables of scaling.md, in the order in which they need one another.
var scaleTables = []named{
	{"pairs", (*scale).pairs},
	{"requests", (*scale).parts},
	{"cluster", (*scale).cluster},
	{"memory", (*scale).memory},
	{"held", (*scale).holds},
	{"waiting", (*scale).waits},
	{"fleets", (*scale).measuredFleets},
	{"simulated", (*scale).simulatedFleets},
}

// clientTables are the tables of client.md.
var clientTables = []named{
	{"users", (*scale).usersDefaults},
	{"users-1s", (*scale).usersShort},
	{"timeouts", (*scale).timeouts},
	{"slow", (*scale).slowServers},
	{"leaving", (*scale).leaving},
	{"hung", (*scale).hungConnections},
}

func names(tables []named) (all []string) {
	for _, t := range tables {
		all = append(all, t.name)
	}
	return all
}

func markers(table string) (begin, end string) {
	return "<!-- scale: " + table + " -->\n", "<!-- /scale: " + table + " -->\n"
}

// runTables fills the tables that are asked for, and writes them.
func runTables(ctx context.Context, p plan, a amounts, tables []named, out io.Writer, page string) error {
	var document string
	if page != "" { // checked before it takes minutes
		text, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		document = string(text)
		for _, name := range append([]string{"machine"}, names(tables)...) {
			begin, end := markers(name)
			if _, err := put(document, begin, end, ""); err != nil {
				return fmt.Errorf("%s: %w", page, err)
			}
		}
	}
	write := func(name, text string) (err error) {
		fmt.Fprintf(out, "\n%s\n\n%s", name, text)
		if page == "" {
			return nil
		}
		begin, end := markers(name)
		if document, err = put(document, begin, end, text); err != nil {
			return fmt.Errorf("%s: %w", page, err)
		}
		return nil
	}
	started, before := time.Now(), load()
	s := &scale{amounts: a}
	for _, t := range tables {
		if !p.wants(t.name) && t.name != "requests" { // others build on this one
			continue
		}
		var filled table
		fmt.Fprintf(p.log, "\r\033[K%s", t.name)
		if err := t.fill(s, ctx, &filled); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		fmt.Fprint(p.log, "\r\033[K")
		if !p.wants(t.name) {
			continue
		}
		if err := write(t.name, filled.markdown()); err != nil {
			return err
		}
	}
	said := fmt.Sprintf(
		"%s: %d processors for Redis and all clients, %s/%s, %s. It took %v. The load of the machine was %s before, and "+
			"%s after.\n",
		started.UTC().Format("2006-01-02"),
		runtime.NumCPU(),
		runtime.GOOS,
		runtime.GOARCH,
		runtime.Version(),
		time.Since(started).Round(time.Second),
		before,
		load(),
	)
	if p.wants("machine") {
		if err := write("machine", said); err != nil {
			return err
		}
	}
	if page == "" {
		return nil
	}
	return os.WriteFile(page, []byte(document), 0o644)
}

// load returns the load average of the last minute.
func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	last, _, _ := strings.Cut(string(text), " ")
	return last
}
