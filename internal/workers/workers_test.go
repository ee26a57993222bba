//go:build go1.25

package workers

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
			for range 10 {
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
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := new(Pool)
				takes := begin(w)
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
	synctest.Test(t, func(t *testing.T) {
		w := new(Pool)
		w.Begin()
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
