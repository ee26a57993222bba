package fleet

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// a usual fleet, of two processes.
func usual() Fleet {
	return Fleet{
		Processes: 2, Goroutines: 16, Trip: 400 * time.Microsecond, Noise: 50 * time.Microsecond, Section: time.Millisecond,
		Slice: 10 * time.Millisecond, WakeDelay: time.Second,
		Attempt: 10 * time.Microsecond, Release: 15 * time.Microsecond, Message: 2 * time.Microsecond,
	}
}

func TestQueueYieldsEventsInOrder(t *testing.T) {
	var q queue
	var want []time.Duration
	for range 1000 {
		at := time.Duration(rand.IntN(100))
		want = append(want, at)
		q.add(event{at: at})
	}
	slices.Sort(want)
	before := event{at: -1}
	for _, at := range want {
		e := q.next()
		require.Equal(t, at, e.at)
		require.True(t, before.before(e), "%v after %v", e, before)
		before = e
	}
}

func TestOneProcessLosesTwoRoundTripsASlice(t *testing.T) {
	f := usual()
	f.Processes = 1
	got := f.Run(10*time.Second, 1)
	// Of each slice, a round trip to release and one to take.
	assert.GreaterOrEqual(t, got.Share, 0.90)
	assert.LessOrEqual(t, got.Share, 0.94)
	assert.Zero(t, got.Messages)
	assert.Equal(t, float64(1), got.Even)
	f.Goroutines = 1
	got = f.Run(10*time.Second, 1)
	assert.GreaterOrEqual(t, got.Share, 0.48, "one goroutine")
	assert.LessOrEqual(t, got.Share, 0.52, "one goroutine")
	assert.GreaterOrEqual(t, got.Requests, 1.99, "one goroutine")
	assert.LessOrEqual(t, got.Requests, 2.01, "one goroutine")
	f.Slice = 0
	f.Goroutines = 16
	got = f.Run(10*time.Second, 1)
	assert.GreaterOrEqual(t, got.Requests, 1.99, "without handover")
	assert.LessOrEqual(t, got.Requests, 2.01, "without handover")
}

func TestSameSeedGivesTheSameRun(t *testing.T) {
	f := usual()
	a, b := f.Run(time.Second, 7), f.Run(time.Second, 7)
	assert.Equal(t, b, a)
}

// Every release is announced to all processes. It comes once for each record: after a slice of
// sections where goroutines wait in the process, or after a single section.
func TestEachReleaseIsAnnouncedToAllProcesses(t *testing.T) {
	for n := 2; n <= 50; n *= 5 {
		for goroutines, sections := range map[int]float64{1: 1, 16: 10} {
			f := usual()
			f.Processes, f.Goroutines = n, goroutines
			got := f.Run(20*time.Second, 1)
			each := got.Messages * sections / float64(n)
			assert.GreaterOrEqual(t, each, 0.95, "%d × %d: messages for each process and release", n, goroutines)
			assert.LessOrEqual(t, each, 1.05, "%d × %d: messages for each process and release", n, goroutines)
			assert.Greater(t, got.Requests, got.Messages, "%d × %d: %+v", n, goroutines, got)
			assert.Greater(t, got.Share, 0.4, "%d × %d: %+v", n, goroutines, got)
			assert.LessOrEqual(t, got.Share, float64(1), "%d × %d: %+v", n, goroutines, got)
			assert.Positive(t, got.Load, "%d × %d: %+v", n, goroutines, got)
			assert.LessOrEqual(t, got.Load, float64(1), "%d × %d: %+v", n, goroutines, got)
		}
	}
}

// A Redis that has more to do than it can makes a fleet slow, and does not stop it.
func TestOverloadSlowsAFleetAndDoesNotStopIt(t *testing.T) {
	f := usual()
	f.Processes, f.Goroutines = 1000, 1
	got := f.Run(20*time.Second, 1)
	assert.GreaterOrEqual(t, got.Load, 0.95)
	assert.Positive(t, got.Share)
	assert.LessOrEqual(t, got.Share, 0.3)
}
