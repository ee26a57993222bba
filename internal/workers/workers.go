// Package workers has the goroutines of a Client.
//
// Rules: Close waits for all work that has begun and not ended, which means goroutines and calls that have a request
// under way. A goroutine that has finished a job waits for the next one, because the stack of a new goroutine has to
// grow first, which costs some microseconds.
package workers

import (
	"sync"
	"sync/atomic"
)

const mostIdle = 2 // goroutines that wait for a job

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
func (w *Pool) Begin() { w.working.Add(1) }

// End ends the work that Begin started.
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

// Spawn runs job on a goroutine that waits for a job, or on a new one.
func (w *Pool) Spawn(job func()) {
	select {
	case w.jobs <- job:
		w.idle.Add(-1) // here, so that AtWork counts the job as soon as Spawn has returned
	default:
		w.Begin()
		go w.run(job)
	}
}

func (w *Pool) run(job func()) {
	defer w.End() // even if a hook of the Redis client ends the goroutine
	for job != nil {
		job()
		job = w.next()
	}
}

// next waits for a job until w is stopped. It returns nil if enough other goroutines are waiting already.
func (w *Pool) next() func() {
	if w.idle.Add(1) <= mostIdle {
		select {
		case job := <-w.jobs:
			return job
		case <-w.stopped:
		}
	}
	w.idle.Add(-1)
	return nil
}

// Close returns a channel that is closed when all work has ended.
func (w *Pool) Close() (drained <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	done := make(chan struct{})
	w.drained = done
	// The order matters: the last work to end decrements working and then loads closing.
	w.closing.Store(true)
	w.drainedLocked()
	return done
}

func (w *Pool) drainedLocked() {
	if w.drained != nil && w.working.Load() == 0 {
		close(w.drained)
		w.drained = nil
	}
}

// AtWork returns the number of calls, and of goroutines with a job. It is for tests.
func (w *Pool) AtWork() int64 { return w.working.Load() - w.idle.Load() }

// Mutex returns the mutex of w, for tests which check that the user's code is never called with it held.
func (w *Pool) Mutex() *sync.Mutex { return &w.mu }
