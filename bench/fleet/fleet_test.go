package fleet

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// a usual fleet, of two processes.
func usual() Fleet {
	return Fleet{
		Processes: 2, Goroutines: 16, Trip: 400 * time.Microsecond, Noise: 50 * time.Microsecond, Section: time.Millisecond,
		Slice: 10 * time.Millisecond, WakeDelay: time.Second,
		Attempt: 10 * time.Microsecond, Release: 15 * time.Microsecond, Message: 2 * time.Microsecond,
	}
}

func TestQueue(t *testing.T) {
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
		if e.at != at || !before.before(e) {
			t.Fatalf("%v after %v, want %v", e, before, at)
		}
		before = e
	}
}

func TestAlone(t *testing.T) {
	f := usual()
	f.Processes = 1
	got := f.Run(10*time.Second, 1)
	// Of each slice, a round trip to give back and one to take.
	if got.Share < 0.90 || got.Share > 0.94 || got.Messages != 0 || got.Even != 1 {
		t.Errorf("%+v", got)
	}
	f.Goroutines = 1
	got = f.Run(10*time.Second, 1)
	if got.Share < 0.48 || got.Share > 0.52 || got.Requests < 1.99 || got.Requests > 2.01 {
		t.Errorf("alone with it: %+v", got)
	}
	f.Slice = 0
	f.Goroutines = 16
	if got := f.Run(10*time.Second, 1); got.Requests < 1.99 || got.Requests > 2.01 {
		t.Errorf("without handover: %+v", got)
	}
}

func TestSameSeed(t *testing.T) {
	f := usual()
	if a, b := f.Run(time.Second, 7), f.Run(time.Second, 7); a != b {
		t.Errorf("%+v, %+v", a, b)
	}
}

// Every release is announced to all, and comes once for a tenure: a slice of sections where
// goroutines stand in line, or a single one.
func TestSizes(t *testing.T) {
	for n := 2; n <= 50; n *= 5 {
		for goroutines, sections := range map[int]float64{1: 1, 16: 10} {
			f := usual()
			f.Processes, f.Goroutines = n, goroutines
			got := f.Run(20*time.Second, 1)
			if each := got.Messages * sections / float64(n); each < 0.95 || each > 1.05 {
				t.Errorf("%d × %d: %.2f messages for each process and release", n, goroutines, each)
			}
			if got.Requests <= got.Messages || got.Share <= 0.4 || got.Share > 1 || got.Load <= 0 || got.Load > 1 {
				t.Errorf("%d × %d: %+v", n, goroutines, got)
			}
		}
	}
}

// A Redis that has more to do than it can makes a fleet slow, and does not stop it.
func TestOverload(t *testing.T) {
	f := usual()
	f.Processes, f.Goroutines = 1000, 1
	got := f.Run(20*time.Second, 1)
	if got.Load < 0.95 || got.Share <= 0 || got.Share > 0.3 {
		t.Errorf("%+v", got)
	}
}
