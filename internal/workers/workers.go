// Package workers has the goroutines of a Client.
//
// Rules: Close waits for all work that was begun and has not ended: calls that
// have a request under way, and goroutines. A goroutine that has run a job
// waits for the next job, because the stack of a new goroutine has to grow first, which
// costs some microseconds.
package workers

import (
	"sync"
	"sync/atomic"
)

const mostIdle = 2 // goroutines that wait for a job

// A Pool runs jobs on goroutines, and counts the work that its Close waits for.
type Pool struct {
	stopped <-chan struct{} // closed: no goroutine waits for a job any more
	working atomic.Int64    // calls and goroutines
	idle    atomic.Int64    // goroutines that wait for a job
	jobs    chan func()
	closing atomic.Bool // Close waits

	mu      sync.Mutex    // guards below
	drained chan struct{} // closed when there is no work any more; nil: Close was not called, or it is closed
}

// New returns a Pool none of whose goroutines waits for a job once stopped is closed.
func New(stopped <-chan struct{}) *Pool {
	return &Pool{stopped: stopped, jobs: make(chan func())}
}

// Begin begins work that Close waits for, until End is called.
func (w *Pool) Begin() { w.working.Add(1) }

// End ends the work that Begin has begun.
func (w *Pool) End() {
	if w.working.Add(-1) > 0 || !w.closing.Load() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drainedLocked()
}

// NoMoreThan reports whether at most n calls and goroutines have not ended.
func (w *Pool) NoMoreThan(n int64) bool { return w.working.Load() <= n }

// Spawn runs job on a goroutine that has nothing to do, or on a new one.
func (w *Pool) Spawn(job func()) {
	select {
	case w.jobs <- job:
	default:
		w.Begin()
		go w.run(job)
	}
}

func (w *Pool) run(job func()) {
	defer w.End() // also when a hook of the Redis client ends the goroutine
	for job != nil {
		job()
		job = w.next()
	}
}

// next waits for a job, until w is stopped; nil: other goroutines wait already.
func (w *Pool) next() func() {
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

// Close returns a channel that is closed when there is no work any more.
func (w *Pool) Close() (drained <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	done := make(chan struct{})
	w.drained = done
	w.closing.Store(true) // before the look at working: the last work to end looks at closing after it
	w.drainedLocked()
	return done
}

func (w *Pool) drainedLocked() {
	if w.drained != nil && w.working.Load() == 0 {
		close(w.drained)
		w.drained = nil
	}
}

// AtWork is how many calls and goroutines have work to do. It is for tests.
func (w *Pool) AtWork() int64 { return w.working.Load() - w.idle.Load() }

// Mutex is the mutex of w, for tests that no code of the user is called with it held.
func (w *Pool) Mutex() *sync.Mutex { return &w.mu }
