package main

// The tables of client.md that show what users get: with the defaults of go-redis, and with a short read timeout.
//
// Rules: each row is a workload as those of the comparison with other libraries (workloads.go), and all clients of
// go-redis have the same options. The processor time is that of this process, in user and system mode, for a section.

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/relock-go/relock/bench/stats"
)

// usersRounds is the number of slices of each library in a row, before they are divided by workload.often.
const usersRounds = 4

// The peers of the rows. A worker whose context is never canceled could hang with rueidislock.
var (
	peersAlone = []string{"relock", "bare EVALSHA", "redislock", "redsync"}
	peersMany  = []string{"relock", "bare EVALSHA", "bare AutoPipeline", "redislock", "redsync", "rueidislock"}
)

// usersWorkloads returns the rows of a table.
func usersWorkloads(timeout time.Duration) (all []workload) {
	add := func(title string, masters int, c crowd, peers ...string) {
		c.clients, c.names = 1, c.workers
		all = append(all, workload{
			name: fmt.Sprintf("users-%v-%d", timeout, len(all)), title: title, masters: masters, clients: 1,
			often:   max(1, 20/max(2, c.workers/16)), // a slice has many sections of each worker
			timeout: timeout, peers: peers, slice: c.slice, figure: rate,
		})
	}
	alone := func(title string, masters int, c crowd, first string) {
		c.workers = 1
		add(title, masters, c, append([]string{first}, peersAlone[1:]...)...)
	}
	alone("1 goroutine, `context.Background()`", 0, crowd{endless: true}, "relock")
	alone("the same, with a context that can be canceled", 0, crowd{}, "relock")
	alone("the same, with a deadline of 500ms", 0, crowd{within: 500 * time.Millisecond}, "relock")
	alone("the same, with `TryLock(ctx, 300*time.Millisecond, 0)`", 0, crowd{endless: true}, "relock TryLock")
	for _, n := range []int{4, 8, 16, 32, 64, 1000} {
		add(fmt.Sprintf("%s goroutines, a name for each", grouped(n)), 0, crowd{workers: n}, peersMany...)
	}
	alone("1 goroutine, a Cluster of three masters", 3, crowd{endless: true}, "relock")
	add("64 goroutines, a name for each, a Cluster of three masters", 3, crowd{workers: 64}, peersMany...)
	return all
}

// grouped returns n with commas.
func grouped(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", grouped(n/1000), n%1000)
}

// usersDefaults and usersShort fill the tables.
func (s *scale) usersDefaults(ctx context.Context, t *table) error {
	return s.users(ctx, t, readTimeouts[0])
}

func (s *scale) usersShort(ctx context.Context, t *table) error { return s.users(ctx, t, time.Second) }

func (s *scale) users(ctx context.Context, t *table, timeout time.Duration) error {
	compared := peersMany[1:]
	t.head = []string{"work", "relock, sections per second"}
	for _, name := range compared {
		t.head = append(t.head, "of "+name)
	}
	t.head = append(t.head, "processor time of a section", "of bare EVALSHA", "of bare AutoPipeline")
	p := plan{slice: s.slice / 5, rounds: usersRounds, log: io.Discard}
	for _, w := range usersWorkloads(timeout) {
		r, err := p.measure(ctx, w)
		if err != nil {
			return fmt.Errorf("%s: %w", w.title, err)
		}
		ours := r.ours()
		cells := []string{w.title, amount(ours.value(rate))}
		for _, name := range compared {
			cells = append(cells, r.factorOf(name, rate))
		}
		t.add(append(cells, span(ours.value(ourCPU)), r.factorOf("bare EVALSHA", ourCPU), r.factorOf("bare AutoPipeline", ourCPU))...)
	}
	return nil
}

// factorOf returns the figure of relock as a multiple of that of another row, or "" if that one did not take part.
func (r *result) factorOf(name string, m *metric) string {
	other := r.row(name)
	if other == nil {
		return ""
	}
	return factor(meanOf(stats.Ratios(r.ours().of(m), other.of(m))))
}
