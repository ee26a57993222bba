package relock

// Turns: how long this process hands a lock on inside itself, and for how long it
// lets other processes go first after that.
//
// Rules: a streak is the time for which this process has had a lock without another
// process in between. When it has lasted for a slice, the lock is really released,
// and others attempt first: now, and until each of them has had the lock once. The
// methods of turns are all that the rest of the package knows of this; the mutex of the
// name guards them. Times are on the clock of the watchdog.

import (
	"sync/atomic"
	"time"
)

const (
	sliceTrips  = 16                     // a slice lasts so many round trips, where those are long,
	longSlice   = 100 * time.Millisecond // but for their sake no longer than this
	mostPassed  = 1 << 16                // handovers of one streak
	leastYield  = time.Millisecond       // the start that others get, at least
	mostYield   = 20 * time.Millisecond  // and at most
	mostYielded = 1024                   // releases after which others go first again

	unheardFor   = time.Second           // so often a process whose releases nobody hears lets others go first all the same,
	unheardYield = 15 * time.Millisecond // for so long and a round trip: longer than waiters sleep that may not subscribe
)

type turns struct {
	since time.Duration // of the streak; 0: there is none
	until time.Duration // others go first

	passed  int  // handovers
	yielded int  // releases still to come after which others go first too
	offered bool // others went first the last time, and
	missed  int  // so often none of them had the lock then

	unheard time.Duration // since when nobody has heard a release, or others went first because of that; 0: somebody has
}

// A pace is how fast locks can change hands.
type pace struct {
	rtt   time.Duration // of a request
	slice time.Duration // how long a streak may last; 0: nothing is handed over
}

// granted notes that this process holds the lock since now.
func (t *turns) granted(now time.Duration) {
	if t.since == 0 {
		t.since = now
	}
}

// mayHandOver says whether the streak may go on.
func (t *turns) mayHandOver(now time.Duration, p pace) bool {
	return t.passed < mostPassed && now-t.since < p.slice
}

func (t *turns) handedOver() { t.passed++ }

// released notes a real release, which so many others have heard. If the streak was long enough,
// others go first. They get a longer start if none of them was quick enough the last time.
// Where nobody has heard the release, there may be others that cannot: they go first once in a while.
func (t *turns) released(now time.Duration, p pace, others int) {
	if now-t.since < p.slice {
		return
	}
	last := *t
	*t = turns{}
	switch {
	case others == 0 && last.unheard == 0:
		t.unheard = now
	case others == 0 && now-last.unheard < unheardFor:
		t.unheard = last.unheard
	case others == 0: // waiters that may not subscribe, or a Client that may not publish
		t.unheard = now
		t.until = now + unheardYield + min(p.rtt, mostYield)
	default:
		if last.offered {
			t.missed = min(last.missed+1, 8)
		}
		t.offered = true
		t.until = now + min(p.start()<<t.missed, mostYield)
		t.yielded = min(others-1, mostYielded)
	}
}

// interrupted notes that another process has the lock.
func (t *turns) interrupted() {
	t.since, t.passed, t.offered, t.missed, t.unheard = 0, 0, false, 0, 0
}

// heardRelease notes that another process has released the lock.
func (t *turns) heardRelease(now time.Duration, p pace) {
	if t.yielded > 0 {
		t.yielded--
		t.until = now + p.start()
	}
}

// yield is for how long others go first from now on.
func (t *turns) yield(now time.Duration) time.Duration {
	if t.until == 0 {
		return 0
	}
	return max(0, t.until-now)
}

// start is how far ahead of this process others may go.
func (p pace) start() time.Duration { return min(leastYield+p.rtt, mostYield) }

// pace is what e has measured: where round trips are long, a slice lasts so long that
// the time in between, when nobody has the lock, does not count.
func (e *engine) pace() pace {
	p := pace{rtt: e.rtt.get()}
	if e.slice > 0 {
		p.slice = max(e.slice, min(sliceTrips*p.rtt, longSlice))
	}
	return p
}

// A roundTrip is about how long a request takes.
type roundTrip struct{ d atomic.Int64 }

func (r *roundTrip) get() time.Duration { return time.Duration(r.d.Load()) }

// observe learns from one request; outliers count little.
func (r *roundTrip) observe(d time.Duration) {
	old := r.d.Load()
	switch d := int64(d); {
	case old == 0:
		r.d.Store(d)
	case d < old:
		r.d.Store(old - (old-d)/4)
	default:
		r.d.Store(old + min(d-old, old)/16)
	}
}
