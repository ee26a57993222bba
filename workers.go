package relock

// The goroutines of a Client.
//
// Rules: Close waits for all work that was begun and has not ended: calls that
// have a request under way, and goroutines. A goroutine that has run a job
// waits for the next job, because the stack of a new goroutine has to grow first, which
// costs some microseconds.

import (
	"sync"
	"sync/atomic"
)

const mostIdle = 2 // goroutines that wait for a job

type workers struct {
	stopped <-chan struct{} // Close: no goroutine waits for a job any more
	working atomic.Int64    // calls and goroutines
	idle    atomic.Int64    // goroutines that wait for a job
	jobs    chan func()
	closing atomic.Bool // Close waits

	mu      sync.Mutex    // guards below
	drained chan struct{} // closed when there is no work any more; nil: Close was not called, or it is closed
}

func newWorkers(stopped <-chan struct{}) *workers {
	return &workers{stopped: stopped, jobs: make(chan func())}
}

// begin and end enclose work that Close waits for.
func (w *workers) begin() { w.working.Add(1) }

func (w *workers) end() {
	if w.working.Add(-1) > 0 || !w.closing.Load() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drainedLocked()
}

// noMoreThan reports whether at most n calls and goroutines have work to do.
func (w *workers) noMoreThan(n int64) bool { return w.working.Load() <= n }

// spawn runs job on a goroutine that has nothing to do, or on a new one.
func (w *workers) spawn(job func()) {
	select {
	case w.jobs <- job:
	default:
		w.begin()
		go w.run(job)
	}
}

func (w *workers) run(job func()) {
	defer w.end() // also when a hook of the Redis client ends the goroutine
	for job != nil {
		job()
		job = w.next()
	}
}

// next waits for a job, until Close; nil: other goroutines wait already.
func (w *workers) next() func() {
	defer w.idle.Add(-1)
	if w.idle.Add(1) > mostIdle {
		return nil
	}
	select {
	case job := <-w.jobs:
		return job
	case <-w.stopped:
		return nil
	}
}

// close returns a channel that is closed when there is no work any more.
func (w *workers) close() (drained <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	done := make(chan struct{})
	w.drained = done
	w.closing.Store(true) // before the look at working: the last work to end looks at closing after it
	w.drainedLocked()
	return done
}

func (w *workers) drainedLocked() {
	if w.drained != nil && w.working.Load() == 0 {
		close(w.drained)
		w.drained = nil
	}
}
