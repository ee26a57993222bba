package main

// The cost of opening a Redis client and a lock client, until the first lock is held.
//
// Rules: each lock client has a Redis client of its own, like the first one of a process. All stay open until the
// memory is measured.

import (
	"context"
	"fmt"
	"time"

	"github.com/relock-go/relock/bench/stats"
)

const firstLocks = 32 // number of clients, opened one after the other

// start is the turn of a library that opens clients.
func start(ctx context.Context, t turn) (sample, error) {
	var took stats.Histogram
	var all []peer
	defer func() {
		for _, p := range all {
			p.Close()
		}
	}()
	before := remember()
	for i := range firstLocks {
		began := time.Now()
		p, err := t.kind.open(setting{addr: t.server.addr, lease: 30 * time.Second})
		if err != nil {
			return nil, err
		}
		all = append(all, p)
		release, err := p.Acquire(ctx, fmt.Sprint("bench:", i))
		took.Add(time.Since(began))
		if err != nil {
			return nil, err
		}
		if err := release(); err != nil {
			return nil, err
		}
	}
	after := remember()
	return sample{
		firstLock:      took.Quantile(0.5).Seconds(),
		goroutinesEach: (after.goroutines - before.goroutines) / firstLocks,
		heapEach:       (after.heap - before.heap) / firstLocks,
	}, nil
}
