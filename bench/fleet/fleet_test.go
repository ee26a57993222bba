package fleet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// usual returns a fleet of two processes.
func usual() Fleet {
	return Fleet{
		Processes: 2, Goroutines: 16, Trip: 400 * time.Microsecond, Noise: 50 * time.Microsecond, Section: time.Millisecond,
		Slice: 10 * time.Millisecond, WakeDelay: time.Second,
		Attempt: 15 * time.Microsecond, Release: 25 * time.Microsecond, Message: 5 * time.Microsecond,
		Look: 15 * time.Microsecond,
	}
}

// From a release to the next critical section there is one round trip: to Redis, and with the message to the next
// process.
func TestGrantTakesOneRoundTrip(t *testing.T) {
	f := usual()
	f.Processes, f.Goroutines, f.Noise = 16, 1, 0
	got := f.Run(time.Second, 10*time.Second, 1)
	turn := f.Section + f.Trip + f.Release + f.Message
	assert.InDelta(t, f.Section.Seconds()/turn.Seconds(), got.Share, 0.01)
	assert.InDelta(t, 16*turn.Seconds(), got.Longest.Seconds(), 2*turn.Seconds())
	assert.Equal(t, 0, got.Overtaken)
}

// A critical section, or a hand-off window of them, costs an attempt and a release, however many processes wait.
func TestRequestsDoNotGrowWithTheProcesses(t *testing.T) {
	for _, n := range []int{4, 32, 128} {
		for goroutines, sections := range map[int]float64{1: 1, 16: 10} {
			f := usual()
			f.Processes, f.Goroutines = n, goroutines
			got := f.Run(time.Minute, time.Minute, 1) // the first attempts are slow, and so the first windows are long
			assert.InDelta(t, 2, got.Requests*sections, 0.2, "%d × %d", n, goroutines)
			assert.LessOrEqual(t, got.Looks, 1.01*float64(n)*got.Share/f.Section.Seconds(), "%d × %d: %+v", n, goroutines, got)
			assert.Equal(t, float64(1), got.Served, "%d × %d", n, goroutines)
			assert.GreaterOrEqual(t, got.Even, 0.9, "%d × %d", n, goroutines)
			assert.Zero(t, got.Overtaken, "%d × %d", n, goroutines)
		}
	}
}

// With 10,000 processes the wait is so long that each grant is confirmed: there is an attempt, a confirmation and a
// release. Polls are counted separately: processes near the head of the queue poll the lock once a second.
func TestTenThousandProcessesAreServedInOrder(t *testing.T) {
	f := usual()
	f.Processes, f.Goroutines, f.Arrival = 10_000, 1, 10*time.Second
	got := f.Run(time.Minute, 2*time.Minute, 1)
	t.Logf("%+v", got)
	assert.Equal(t, float64(1), got.Served)
	assert.Zero(t, got.Overtaken)
	assert.GreaterOrEqual(t, got.Even, 0.8, "a turn more or less")
	assert.LessOrEqual(t, got.Requests, 3.005, "a request may be counted in another time than its section")
	assert.LessOrEqual(t, got.Looks, 0.5)
	assert.LessOrEqual(t, got.Longest, 15*time.Duration(f.Processes)*(f.Section+f.Trip)/10)
	assert.LessOrEqual(t, got.Load, 0.25)
}
