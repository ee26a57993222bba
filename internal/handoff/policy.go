// Package handoff says how long a process hands a lock over inside itself, and for how long it
// lets other processes go first after that.
//
// Rules: a streak is the time for which this process has had a lock without another
// process in between. When the streak has lasted for a slice, the lock is released in Redis,
// and other processes attempt first: now, and until each of them has had the lock once. A mutex
// of the owner of Turns guards them, and they do nothing but count.
// Times are counted from some time before the first call, and come from one clock.
package handoff

import (
	"sync/atomic"
	"time"
)

const (
	// LongWindow is how long a slice lasts where round trips are long, unless the user asks for a longer one.
	LongWindow = 100 * time.Millisecond

	// MostUnannounced is the longest head start of other processes that were not told of a release, without a round trip.
	MostUnannounced = time.Second // the default poll interval

	windowTrips = 16                    // where round trips are long, a slice lasts this many of them, up to LongWindow
	mostPassed  = 1 << 16               // handovers of one streak
	leastYield  = time.Millisecond      // the least head start of other processes
	mostYield   = 20 * time.Millisecond // the longest one
	mostYielded = 1024                  // releases of other processes after which they go first again

	// A process whose releases reach no other client still lets other processes go first: once in unheardFor, for
	// unheardYield and a round trip. This is longer than the sleep of waiters that may not subscribe.
	unheardFor   = time.Second
	unheardYield = 15 * time.Millisecond
)

// Policy are the turns that this process and other processes have with one lock. The zero Turns are those of a lock that
// this process has never had.
type Policy struct {
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

// A Pace is how fast locks can change hands.
type Pace struct {
	RTT    time.Duration // of a request
	Window time.Duration // how long a streak may last; 0: nothing is handed over
}

// PaceOf is the pace where a request takes rtt, and the user asks for slices of this length. Where round trips are
// long, a slice is long too: the time between two slices, when no process has the lock, is then short in comparison.
func PaceOf(rtt, slice time.Duration) Pace {
	p := Pace{RTT: rtt}
	if slice > 0 {
		p.Window = max(slice, min(windowTrips*rtt, LongWindow))
	}
	return p
}

// Acquired notes that this process holds the lock from now on.
func (t *Policy) Acquired(now time.Duration) {
	if t.since == 0 {
		t.since = now
	}
}

// MayHandOff reports whether the streak may go on.
func (t *Policy) MayHandOff(now time.Duration, p Pace) bool {
	return t.passed < mostPassed && now-t.since < p.Window
}

// HandedOff notes that this process has handed the lock over inside itself.
func (t *Policy) HandedOff() { t.passed++ }

// Released notes a release in Redis, whose message has reached so many other clients. After a streak of a slice,
// other processes go first. They get a longer start if none of them was quick enough the last time.
// Where no client has received the message, some may be unable to: they go first once in a while.
func (t *Policy) Released(now time.Duration, p Pace, others int) {
	if now-t.since < p.Window {
		return
	}
	last := *t
	*t = Policy{}
	switch {
	case others == 0 && last.unheard == 0:
		t.unheard = now
	case others == 0 && now-last.unheard < unheardFor:
		t.unheard = last.unheard
	case others == 0: // waiters that may not subscribe, or a Client that may not publish
		t.unheard = now
		t.until = now + unheardYield + min(p.RTT, mostYield)
	default:
		if last.offered {
			t.missed = min(last.missed+1, 8)
		}
		t.offered = true
		t.until = now + min(p.start()<<t.missed, mostYield)
		t.yielded = min(others-1, mostYielded)
	}
}

// ReleasedUnannounced notes a release in Redis that other processes wait for and were not told of: they look once in a max wake
// delay. After a streak of a slice they go first for so long.
func (t *Policy) ReleasedUnannounced(now time.Duration, p Pace, pollInterval time.Duration) {
	if now-t.since >= p.Window {
		*t = Policy{until: now + min(pollInterval, MostUnannounced) + p.RTT}
	}
}

// Interrupted notes that another process has the lock.
func (t *Policy) Interrupted() {
	t.since, t.passed, t.offered, t.missed, t.unheard = 0, 0, false, 0, 0
}

// HeardRelease notes the message that another process has released the lock.
func (t *Policy) HeardRelease(now time.Duration, p Pace) {
	if t.yielded > 0 {
		t.yielded--
		t.until = now + p.start()
	}
}

// Yield is how long other processes go first from now on.
func (t *Policy) Yield(now time.Duration) time.Duration {
	if t.until == 0 {
		return 0
	}
	return max(0, t.until-now)
}

// start is the head start that other processes get.
func (p Pace) start() time.Duration { return min(leastYield+p.RTT, mostYield) }

// A RoundTrip is about how long a request takes. The zero RoundTrip has measured nothing, and says 0.
type RoundTrip struct{ d, seen atomic.Int64 }

// Get is about how long a request takes.
func (r *RoundTrip) Get() time.Duration { return time.Duration(r.d.Load()) }

// Observe adds one measurement; outliers count little. The first one may include connecting.
func (r *RoundTrip) Observe(d time.Duration) {
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
