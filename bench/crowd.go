package main

// Workers that take locks as fast as they come.
//
// Rules: a slice of time belongs to one peer. A worker that waits when the slice
// is over still waits for its turn, so that the longest wait is seen. Its section
// then counts as a wait and not for the rate. A worker that is not served within
// the patience is stuck, is told to give up, and is counted.

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/relock-go/relock/bench/stats"
)

const patience = 2 * time.Second

// A crowd is some clients, each with workers, that take names and stay a while.
type crowd struct {
	clients, workers int           // workers of each client
	names            int           // 1: all want the same one; otherwise each worker has its own
	section          time.Duration // slept with the lock held
	endless          bool          // the ctx of all calls never ends: what is stuck stays so
}

// A worker is what one of them has seen.
type worker struct {
	_        [64]byte // workers are written by different processors
	sections int      // that were over within the slice
	all      int
	waits    stats.Histogram
	stuck    bool
	err      error
}

func (c crowd) slice(ctx context.Context, t turn) (sample, error) {
	before, err := t.server.work(ctx)
	if err != nil {
		return nil, err
	}
	end := time.Now().Add(t.took)
	ctx, giveUp := context.WithCancel(ctx)
	defer giveUp()
	timer := time.AfterFunc(t.took+patience, giveUp)
	defer timer.Stop()

	workers := make([]worker, c.clients*c.workers)
	var all sync.WaitGroup
	for i := range workers {
		name := "bench"
		if c.names > 1 {
			name = fmt.Sprint("bench:", i%c.names)
		}
		ctx := ctx
		if c.endless {
			ctx = context.Background()
		}
		all.Go(func() { workers[i].work(ctx, t.peers[i/c.workers], name, c.section, end) })
	}
	all.Wait()
	after, err := t.server.work(context.WithoutCancel(ctx))
	if err != nil {
		return nil, err
	}
	return c.sum(workers, t, after.since(before))
}

func (w *worker) work(ctx context.Context, p peer, name string, section time.Duration, end time.Time) {
	for {
		asked := time.Now()
		if !asked.Before(end) {
			return
		}
		release, err := p.Acquire(ctx, name)
		w.waits.Add(time.Since(asked))
		if err != nil {
			if w.stuck = ctx.Err() != nil; !w.stuck {
				w.err = err
			}
			return
		}
		if section > 0 {
			time.Sleep(section)
		}
		if err := release(); err != nil {
			w.err = err
			return
		}
		w.all++
		if time.Now().Before(end) {
			w.sections++
		}
	}
}

// sum is what all workers together have seen.
func (c crowd) sum(workers []worker, t turn, did work) (sample, error) {
	var waits stats.Histogram
	sections, all, stuck := 0, 0, 0
	if *t.served == nil {
		*t.served = make([]int, len(workers))
	}
	perWorker, perClient := *t.served, make([]int, c.clients)
	for i := range workers {
		w := &workers[i]
		if w.err != nil {
			return nil, w.err
		}
		waits.Merge(&w.waits)
		sections += w.sections
		all += w.all
		perWorker[i] += w.sections
		perClient[i/c.workers] += perWorker[i]
		if w.stuck {
			stuck++
		}
	}
	return sample{
		rate:       float64(sections) / t.took.Seconds(),
		p50:        waits.Quantile(0.5).Seconds(),
		p99:        waits.Quantile(0.99).Seconds(),
		longest:    waits.Max().Seconds(),
		evenWorker: evenness(perWorker),
		evenClient: evenness(perClient),
		servedAll:  served(perClient),
		commands:   did.commands / float64(all),
		scripts:    did.evalsha / float64(all),
		redisCPU:   did.redis / float64(all),
		ourCPU:     did.ours / float64(all),
		stuckCount: float64(stuck),
	}, nil
}
