package relock

// Turns: how long this process hands a lock over inside itself, and for how long it
// lets other processes go first after that.
//
// Rules: a streak is the time for which this process has had a lock without another
// process in between. When the streak has lasted for a slice, the lock is released in Redis,
// and other processes attempt first: now, and until each of them has had the lock once. The
// rest of the package uses only the methods of turns; the mutex of the name guards them.
// Times are on the clock of the watchdog.

import (
	"sync/atomic"
	"time"
)

const (
	sliceTrips  = 16                     // where round trips are long, a slice lasts this many of them,
	longSlice   = 100 * time.Millisecond // but no longer than this
	mostPassed  = 1 << 16                // handovers of one streak
	leastYield  = time.Millisecond       // the least head start of other processes
	mostYield   = 20 * time.Millisecond  // the longest one
	mostYielded = 1024                   // releases of other processes after which they go first again
	leastShare  = 10 * time.Millisecond
	mostUntold  = time.Second // the default max wake delay

	// A process whose releases reach no other client still lets other processes go first: once in unheardFor, for
	// unheardYield and a round trip. This is longer than the sleep of waiters that may not subscribe.
	unheardFor   = time.Second
	unheardYield = 15 * time.Millisecond
)

type turns struct {
	since time.Duration // of the streak; 0: there is none
	until time.Duration // until then other processes go first

	passed  int  // handovers of the streak
	yielded int  // releases of other processes still to come, after which they go first too
	offered bool // other processes went first the last time
	missed  int  // how often in a row none of them had the lock then

	// Since when no client has received a release, or when other processes last went first because of that. 0: the
	// last release was received.
	unheard time.Duration
}

// A pace is how fast locks can change hands.
type pace struct {
	rtt   time.Duration // of a request
	slice time.Duration // how long a streak may last; 0: nothing is handed over
}

// granted notes that this process holds the lock from now on.
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

// released notes a release in Redis, whose message has reached so many other clients. After a streak of a slice,
// other processes go first. They get a longer start if none of them was quick enough the last time.
// Where no client has received the message, some may be unable to: they go first once in a while.
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

// untold notes a release in Redis that other processes wait for and were not told of: they look once in a max wake delay.
// After a streak of a slice they go first for so long.
func (t *turns) untold(now time.Duration, p pace, maxWakeDelay time.Duration) {
	if now-t.since >= p.slice {
		*t = turns{until: now + min(maxWakeDelay, mostUntold) + p.rtt}
	}
}

// interrupted notes that another process has the lock.
func (t *turns) interrupted() {
	t.since, t.passed, t.offered, t.missed, t.unheard = 0, 0, false, 0, 0
}

// heardRelease notes the message that another process has released the lock.
func (t *turns) heardRelease(now time.Duration, p pace) {
	if t.yielded > 0 {
		t.yielded--
		t.until = now + p.start()
	}
}

// yield is how long other processes go first from now on.
func (t *turns) yield(now time.Duration) time.Duration {
	if t.until == 0 {
		return 0
	}
	return max(0, t.until-now)
}

// shareTime is how long a line may keep a lock from those that have no place in it, for example Java services.
func (e *engine) shareTime() time.Duration { return max(e.pace().slice, leastShare) }

// start is the head start that other processes get.
func (p pace) start() time.Duration { return min(leastYield+p.rtt, mostYield) }

// pace is the pace that e has measured. Where round trips are long, a slice is long too: the time between
// two slices, when no process has the lock, is then short in comparison.
func (e *engine) pace() pace {
	p := pace{rtt: e.rtt.get()}
	if e.slice > 0 {
		p.slice = max(e.slice, min(sliceTrips*p.rtt, longSlice))
	}
	return p
}

// A roundTrip is about how long a request takes.
type roundTrip struct{ d, seen atomic.Int64 }

func (r *roundTrip) get() time.Duration { return time.Duration(r.d.Load()) }

// observe adds one measurement; outliers count little. The first one may include connecting.
func (r *roundTrip) observe(d time.Duration) {
	old, seen := r.d.Load(), r.seen.Add(1)
	switch d := int64(d); {
	case old == 0, seen == 2 && d < old:
		r.d.Store(d)
	case d < old:
		r.d.Store(old - (old-d)/4)
	default:
		r.d.Store(old + min(d-old, old)/16)
	}
}
