//go:build go1.25

package workers

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// inWorkersBubble calls f with a Pool in a bubble, and stops the Pool at the end.
func inWorkersBubble(t *testing.T, f func(w *Pool, stop func())) {
	synctest.Test(t, func(t *testing.T) {
		stopped := make(chan struct{})
		stop := sync.OnceFunc(func() { close(stopped) })
		defer stop()
		f(New(stopped), stop)
	})
}

// At most mostIdle goroutines are kept for later jobs. They end when there was none for idleTime, or the Client is closed.
func TestKeptGoroutines(t *testing.T) {
	inWorkersBubble(t, func(w *Pool, stop func()) {
		for range 3 {
			for range 3 * mostIdle {
				w.Spawn(func() { time.Sleep(time.Second) })
			}
			time.Sleep(time.Second + idleTime/2)
			require.EqualValues(t, mostIdle, w.working.Load(), "goroutines")
			require.EqualValues(t, mostIdle, w.idle.Load(), "goroutines that wait")
		}
		time.Sleep(idleTime)
		assert.Zero(t, w.working.Load(), "goroutines without a job for long")
		w.Spawn(func() {})
		synctest.Wait()
		stop()
		synctest.Wait()
		assert.Zero(t, w.working.Load(), "goroutines after Close")
	})
}

// A job goes to a goroutine that waits for one.
func TestIdleGoroutineTakesTheNextJob(t *testing.T) {
	inWorkersBubble(t, func(w *Pool, stop func()) {
		for range 10 * mostIdle {
			w.Spawn(func() {})
			synctest.Wait()
			require.EqualValues(t, 1, w.working.Load(), "goroutines")
		}
		stop()
	})
}

// A job counts as work as soon as Spawn has returned, also if a goroutine that waits for a job has taken it.
func TestJobIsAtWorkWhenSpawnHasReturned(t *testing.T) {
	stopped := make(chan struct{})
	defer close(stopped)
	w := New(stopped)
	for range 20000 {
		end, ended := make(chan struct{}), make(chan struct{})
		w.Spawn(func() {
			<-end
			close(ended)
		})
		at := w.AtWork()
		close(end)
		<-ended
		require.EqualValues(t, 1, at)
		for w.AtWork() > 0 {
			runtime.Gosched()
		}
	}
}

// Close waits for jobs and calls that are under way, and for jobs that these start.
func TestCloseWaitsForJobsUnderWay(t *testing.T) {
	const job, call, later = 2 * time.Second, 3 * time.Second, 4 * time.Second
	for name, begin := range map[string]func(w *Pool) (takes time.Duration){
		"nothing": func(*Pool) time.Duration { return 0 },
		"a job": func(w *Pool) time.Duration {
			w.Spawn(func() { time.Sleep(job) })
			return job
		},
		"a call": func(w *Pool) time.Duration {
			w.Begin()
			time.AfterFunc(call, w.End)
			return call
		},
		"several": func(w *Pool) time.Duration {
			w.Begin()
			for range 5 * mostIdle {
				w.Spawn(func() { time.Sleep(job) })
			}
			time.AfterFunc(call, w.End)
			return call
		},
		"a job begun by a job": func(w *Pool) time.Duration {
			w.Spawn(func() {
				time.Sleep(job)
				w.Spawn(func() { time.Sleep(later) })
			})
			return job + later
		},
		"a job whose goroutine a hook ends": func(w *Pool) time.Duration {
			w.Spawn(func() {
				time.Sleep(job)
				runtime.Goexit()
			})
			return job
		},
		"goroutines without a job": func(w *Pool) time.Duration {
			w.Spawn(func() {})
			synctest.Wait()
			return 0
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorkersBubble(t, func(w *Pool, stop func()) {
				takes := begin(w)
				stop()
				start := time.Now()
				<-w.Close()
				assert.Equal(t, takes, time.Since(start), "time taken")
				synctest.Wait()
				assert.Zero(t, w.working.Load(), "goroutines and calls after Close")
			})
		})
	}
}

// Close waits until nothing is under way. Jobs may start during that time and later, because Unlock works after
// Close.
func TestWorkAfterCloseIsDone(t *testing.T) {
	inWorkersBubble(t, func(w *Pool, stop func()) {
		w.Begin()
		stop()
		drained := w.Close()
		w.Spawn(func() {})
		synctest.Wait()
		select {
		case <-drained:
			require.Fail(t, "Close does not wait for a call")
		default:
		}
		w.End()
		<-drained
		done := false
		w.Spawn(func() { done = true })
		synctest.Wait()
		assert.True(t, done, "a job after Close")
		assert.Zero(t, w.working.Load(), "goroutines")
	})
}
