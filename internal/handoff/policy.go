// Package handoff decides how long a process passes a lock on inside itself, and for how long it lets other processes
// go first after that.
//
// Rules: the tenure of a process is the time for which it has had a lock without another process in between. When the
// tenure has lasted for the hand-off window, the lock is released in Redis, and other processes attempt first: right
// then, and again until each of them has had the lock once. The owner of a Policy guards it with a mutex. A Policy
// only counts; it calls nothing. All times are read from one clock, which starts before the first call.
package handoff

import (
	"sync/atomic"
	"time"
)

const (
	// LongWindow is how long the hand-off window lasts where round trips are long, unless the user asks for a longer
	// one.
	LongWindow = 100 * time.Millisecond

	// MostUnannounced is the longest head start, not counting a round trip, of other processes that were not notified
	// of a release.
	MostUnannounced = time.Second // the default poll interval

	windowTrips = 16                    // where round trips are long, the window lasts this many of them, up to LongWindow
	leastYield  = time.Millisecond      // the shortest head start of other processes
	mostYield   = 20 * time.Millisecond // the longest one
	mostYielded = 1024                  // releases of other processes after which they go first again

	// A process whose releases reach no other client lets other processes go first, too: once in each unheardFor, for
	// unheardYield and a round trip. This is longer than the pause between two attempts of a waiter that may not
	// subscribe.
	unheardFor   = time.Second
	unheardYield = 15 * time.Millisecond
)

// A Policy decides when this process and other processes go first with one lock. The zero Policy is that of a lock
// that this process has never held.
type Policy struct {
	since time.Duration // the start of the tenure; 0: there is none
	until time.Duration // other processes go first until then

	yielded int  // outstanding releases of other processes after which they go first again
	offered bool // other processes went first after the last tenure
	missed  int  // how often in a row none of them acquired the lock then

	// unheard is the time since which no client has received a release, or when other processes last went first
	// because of that. 0: the last release was received.
	unheard time.Duration
}

// A Pace describes how fast locks can change hands.
type Pace struct {
	RTT    time.Duration // the duration of a request
	Window time.Duration // how long a tenure may last; 0: there are no hand-offs
}

// PaceOf returns the pace where a request takes rtt and the user asks for this hand-off window. Where round trips are
// long, the window is long too, so that the time between two tenures, when no process has the lock, is short in
// comparison.
func PaceOf(rtt, window time.Duration) Pace {
	p := Pace{RTT: rtt}
	if window > 0 {
		p.Window = max(window, min(windowTrips*rtt, LongWindow))
	}
	return p
}

// Acquired records that this process holds the lock from now on.
func (p *Policy) Acquired(now time.Duration) {
	if p.since == 0 {
		p.since = now
	}
}

// MayHandOff reports whether the tenure may continue.
func (p *Policy) MayHandOff(now time.Duration, pace Pace) bool {
	return now-p.since < pace.Window
}

// Released records a release in Redis, where others is the number of other clients that received its message. If the
// tenure has lasted for the hand-off window, other processes go first. Their head start is longer if none of them was
// quick enough the last time. If no client received the message, some may be waiting that cannot receive any: they go
// first once in a while.
func (p *Policy) Released(now time.Duration, pace Pace, others int) {
	if now-p.since < pace.Window {
		return
	}
	last := *p
	*p = Policy{}
	switch {
	case others == 0 && last.unheard == 0:
		p.unheard = now
	case others == 0 && now-last.unheard < unheardFor:
		p.unheard = last.unheard
	case others == 0: // these waiters may not subscribe, or this Client may not publish
		p.unheard = now
		p.until = now + unheardYield + min(pace.RTT, mostYield)
	default:
		if last.offered {
			p.missed = min(last.missed+1, 8)
		}
		p.offered = true
		p.until = now + min(pace.start()<<p.missed, mostYield)
		p.yielded = min(others-1, mostYielded)
	}
}

// ReleasedUnannounced records a release in Redis of which other processes that wait were not notified: they poll once
// in each poll interval. If the tenure has lasted for the hand-off window, they go first for about that time.
func (p *Policy) ReleasedUnannounced(now time.Duration, pace Pace, pollInterval time.Duration) {
	if now-p.since >= pace.Window {
		*p = Policy{until: now + min(pollInterval, MostUnannounced) + pace.RTT}
	}
}

// Interrupted records that another process has the lock.
func (p *Policy) Interrupted() {
	p.since, p.offered, p.missed, p.unheard = 0, false, 0, 0
}

// HeardRelease records the message that another process has released the lock.
func (p *Policy) HeardRelease(now time.Duration, pace Pace) {
	if p.yielded > 0 {
		p.yielded--
		p.until = now + pace.start()
	}
}

// Yield returns for how long other processes go first from now on.
func (p *Policy) Yield(now time.Duration) time.Duration {
	if p.until == 0 {
		return 0
	}
	return max(0, p.until-now)
}

// start returns the head start that other processes get.
func (p Pace) start() time.Duration { return min(leastYield+p.RTT, mostYield) }

// A RoundTrip estimates how long a request takes. The zero RoundTrip has no measurement and returns 0.
type RoundTrip struct{ d, seen atomic.Int64 }

// Get returns about how long a request takes.
func (r *RoundTrip) Get() time.Duration { return time.Duration(r.d.Load()) }

// Observe adds one measurement. Outliers count little. The first measurement may include the time to connect.
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
