// Package workers has the goroutines of a Client.
//
// Rules: Close waits for all work that has begun and not ended, which means goroutines and calls that have a request
// under way. A goroutine that has finished a job waits for the next one, because the stack of a new goroutine has to
// grow first, which costs some microseconds. It does not wait for long: a Client that is not used has no goroutines,
// also if it is never closed. Goroutines have no profiler labels, because they outlive the call that needs the first
// job.
package workers

import (
	"context"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"
)

const (
	mostIdle = 2           // goroutines that wait for a job
	idleTime = time.Second // how long each of them waits
)

// A Pool runs jobs on goroutines, and counts the work that Close waits for.
type Pool struct {
	stopped <-chan struct{} // closed: goroutines no longer wait for jobs
	working atomic.Int64    // calls and goroutines that have not ended
	idle    atomic.Int64    // goroutines that wait for a job
	jobs    chan func()
	closing atomic.Bool // Close was called

	mu      sync.Mutex    // guards below
	drained chan struct{} // closed when all work has ended; nil: Close was not called, or the channel is closed
}

// New returns a Pool. Its goroutines stop waiting for jobs when stopped is closed.
func New(stopped <-chan struct{}) *Pool {
	return &Pool{stopped: stopped, jobs: make(chan func())}
}

// Begin starts work that Close waits for, until End is called.
func (p *Pool) Begin() { p.working.Add(1) }

// End ends the work that Begin started.
func (p *Pool) End() {
	if p.working.Add(-1) > 0 || !p.closing.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drainedLocked()
}

// Spawn runs job on a goroutine that waits for a job, or on a new one.
func (p *Pool) Spawn(job func()) {
	select {
	case p.jobs <- job:
		p.idle.Add(-1) // here, so that AtWork counts the job as soon as Spawn has returned
	default:
		p.Begin()
		go p.run(job)
	}
}

func (p *Pool) run(job func()) {
	defer p.End() // even if a hook of the Redis client ends the goroutine
	pprof.SetGoroutineLabels(context.Background())
	for job != nil {
		job()
		job = p.next()
	}
}

// next waits for a job, for idleTime or until p is stopped. It returns nil if there is none, or if enough other
// goroutines are waiting already.
func (p *Pool) next() func() {
	if p.idle.Add(1) <= mostIdle {
		select {
		case job := <-p.jobs:
			return job
		case <-time.After(idleTime):
		case <-p.stopped:
		}
	}
	p.idle.Add(-1)
	return nil
}

// Close returns a channel that is closed when all work has ended.
func (p *Pool) Close() (drained <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	done := make(chan struct{})
	p.drained = done
	// The order matters: the last work to end decrements working and then loads closing.
	p.closing.Store(true)
	p.drainedLocked()
	return done
}

func (p *Pool) drainedLocked() {
	if p.drained != nil && p.working.Load() == 0 {
		close(p.drained)
		p.drained = nil
	}
}

// AtWork returns the number of calls, and of goroutines with a job. It is for tests.
func (p *Pool) AtWork() int64 { return p.working.Load() - p.idle.Load() }
