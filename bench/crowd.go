package main

// Workers that acquire locks as fast as they can.
//
// Rules: a slice of time belongs to one library. A worker that waits when the slice is over continues to wait for its
// turn, so that the longest wait is measured. Its critical section then counts for the waits and not for the rate. A
// worker that is not served within the patience is told to give up, and is counted as not served.

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"sync"
	"time"

	"github.com/relock-go/relock/bench/stats"
)

const patience = 2 * time.Second

// A crowd is a number of clients, each with workers, that acquire locks and hold them for a while.
type crowd struct {
	clients, workers int           // workers of each client
	names            int           // 1 if all compete for the same name; otherwise each worker has its own, or draws one
	section          time.Duration // the time for which the lock is held, asleep
	drawn            bool          // each acquisition draws its name, by a Zipf distribution
	skew             float64       // its exponent: 0 if all names are equally likely
	endless          bool          // the context of all calls is never canceled, so that a worker that hangs stays so
	within           time.Duration // the deadline of the context of each section; 0 if it has none
}

// A line is a crowd whose waits are also reported in round trips.
type line struct{ crowd }

func (l line) slice(ctx context.Context, t turn) (sample, error) {
	trip, err := t.server.roundTrip(ctx)
	if err != nil {
		return nil, err
	}
	got, err := l.crowd.slice(ctx, t)
	if err != nil {
		return nil, err
	}
	got[trips] = trip.Seconds()
	return got, nil
}

// A worker has the results of one worker.
type worker struct {
	_        [64]byte // workers are written by different processors
	sections int      // critical sections that ended within the slice
	all      int
	waits    stats.Histogram
	stuck    bool
	err      error
}

// A tally has the results of all workers of a slice.
type tally struct {
	Sections          []int // of each worker, the critical sections that ended within the slice
	All, Stuck        int
	P50, P99, Longest time.Duration // waits
	CPU               time.Duration // of a process of their own, if they have one
}

func (c crowd) slice(ctx context.Context, t turn) (sample, error) {
	work := c.work
	if t.program != nil {
		work = t.program.crowd(c)
	}
	got, did, err := watched(ctx, t, work)
	if err != nil {
		return nil, err
	}
	did.ours += got.CPU.Seconds()
	return c.sum(got, t, did), nil
}

// work makes workers of this process use the clients of t.
func (c crowd) work(ctx context.Context, t turn) (tally, error) {
	end := time.Now().Add(t.took)
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	timer := time.AfterFunc(t.took+patience, giveUp)
	defer timer.Stop()

	draw := c.draws()
	workers := make([]worker, c.clients*c.workers)
	var all sync.WaitGroup
	for i := range workers {
		name := func() string { return draw(i) }
		ctx := ctx
		if c.endless {
			ctx = context.Background()
		}
		all.Go(func() { workers[i].work(ctx, t.peers[i/c.workers], name, c, end) })
	}
	all.Wait()
	return count(workers)
}

// draws returns a function that returns the name that a worker acquires next.
func (c crowd) draws() func(worker int) string {
	// below has the sum of the weights of a name and of those before it.
	names, below := make([]string, c.names), make([]float64, c.names)
	sum := 0.0
	for i := range names {
		names[i] = fmt.Sprint("bench:", i)
		sum += math.Pow(float64(i+1), -c.skew)
		below[i] = sum
	}
	return func(worker int) string {
		switch {
		case c.names <= 1:
			return "bench"
		case !c.drawn:
			return names[worker%c.names]
		}
		i := sort.SearchFloat64s(below, rand.Float64()*sum)
		return names[min(i, c.names-1)]
	}
}

func (w *worker) work(ctx context.Context, p peer, name func() string, c crowd, end time.Time) {
	for {
		asked := time.Now()
		if !asked.Before(end) {
			return
		}
		if !w.enter(ctx, p, name(), c, asked) {
			return
		}
		w.all++
		if time.Now().Before(end) {
			w.sections++
		}
	}
}

// enter runs one critical section, and reports whether the worker goes on.
func (w *worker) enter(ctx context.Context, p peer, name string, c crowd, asked time.Time) bool {
	if c.within > 0 {
		within, cancel := context.WithTimeout(ctx, c.within)
		defer cancel()
		ctx = within
	}
	release, err := p.Acquire(ctx, name)
	w.waits.Add(time.Since(asked))
	if err != nil {
		if w.stuck = ctx.Err() != nil; !w.stuck {
			w.err = err
		}
		return false
	}
	if c.section > 0 {
		time.Sleep(c.section)
	}
	w.err = release()
	return w.err == nil
}

// count returns the results of all workers together.
func count(workers []worker) (tally, error) {
	var waits stats.Histogram
	var got tally
	for i := range workers {
		w := &workers[i]
		if w.err != nil {
			return tally{}, w.err
		}
		waits.Merge(&w.waits)
		got.Sections = append(got.Sections, w.sections)
		got.All += w.all
		if w.stuck {
			got.Stuck++
		}
	}
	got.P50, got.P99, got.Longest = waits.Quantile(0.5), waits.Quantile(0.99), waits.Max()
	return got, nil
}

// sum returns the sample of a slice.
func (c crowd) sum(got tally, t turn, did work) sample {
	if *t.served == nil {
		*t.served = make([]int, len(got.Sections))
	}
	sections, perWorker, perClient := 0, *t.served, make([]int, c.clients)
	for i, n := range got.Sections {
		sections += n
		perWorker[i] += n
		perClient[i/c.workers] += perWorker[i]
	}
	all := float64(got.All)
	return sample{
		rate:       float64(sections) / t.took.Seconds(),
		p50:        got.P50.Seconds(),
		p99:        got.P99.Seconds(),
		longest:    got.Longest.Seconds(),
		evenWorker: evenness(perWorker),
		evenClient: evenness(perClient),
		servedAll:  served(perClient),
		requests:   did.requests(t.kind.name) / all,
		commands:   did.commands / all,
		scripts:    did.scripts / all,
		redisCPU:   did.redis / all,
		ourCPU:     did.ours / all,
		stuckCount: float64(got.Stuck),
	}
}
