// Package workers has the goroutines of a Client.
//
// Rules: Close waits for all work that has begun and not ended, which means goroutines and calls that have a request
// under way. Goroutines have no profiler labels, because they outlive the call that has begun them.
package workers

import (
	"context"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"
)

// A Pool runs jobs on goroutines, and counts the work that Close waits for. The zero Pool has no work.
type Pool struct {
	working atomic.Int64           // calls and goroutines that have not ended
	drained atomic.Pointer[func()] // called when all work has ended; nil: Close was not called
}

// Begin starts work that Close waits for, until End is called.
func (p *Pool) Begin() { p.working.Add(1) }

// End ends the work that Begin started.
func (p *Pool) End() {
	p.working.Add(-1)
	p.look()
}

// Spawn runs job on another goroutine.
func (p *Pool) Spawn(job func()) {
	p.Begin()
	go func() {
		defer p.End() // even if a hook of the Redis client ends the goroutine
		pprof.SetGoroutineLabels(context.Background())
		job()
	}()
}

// Within runs job on another goroutine, and reports whether it has ended within d, and before ctx is done.
func (p *Pool) Within(ctx context.Context, d time.Duration, job func()) bool {
	ended := make(chan struct{})
	p.Spawn(func() {
		defer close(ended)
		job()
	})
	select {
	case <-ended:
		return true
	case <-time.After(d):
	case <-ctx.Done():
	}
	return false
}

// Close returns a channel that is closed when all work has ended.
func (p *Pool) Close() <-chan struct{} {
	done := make(chan struct{})
	drained := sync.OnceFunc(func() { close(done) })
	// The order matters: the last work to end decrements working and then loads drained.
	p.drained.Store(&drained)
	p.look()
	return done
}

// look finds out whether Close was called, and all work has ended.
func (p *Pool) look() {
	if drained := p.drained.Load(); drained != nil && p.working.Load() == 0 {
		(*drained)()
	}
}

// AtWork returns the number of calls and goroutines. It is for tests.
func (p *Pool) AtWork() int64 { return p.working.Load() }
