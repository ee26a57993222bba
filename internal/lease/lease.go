// Package lease keeps the leases of all holds of a client: it renews the leases that
// are not explicit, and ends the leases that can no longer be valid.
//
// Rules:
//   - Trust is counted from before a request was sent: sent + length - drift.
//     Only a confirmed answer moves the end of the trust, and never back.
//   - A Lease is guarded by the mutex of its Watchdog. What others read without the mutex is atomic.
//   - Neither knows locks: how a lease is renewed, and who is told of its end, are functions
//     of those whose leases they are.
package lease

import (
	"errors"
	"sync/atomic"
	"time"
)

// Causes of the end of a lease.
var (
	// ErrGone is the cause of a lease whose record is no longer there.
	ErrGone = errors.New("the record in Redis is gone")

	// ErrExpired is the cause of a lease that ran out without having been renewed.
	ErrExpired = errors.New("the lease has run out")
)

// Drift is how much a clock may gain on the clock of Redis, and how late a timer may be, during one lease.
func Drift(lease time.Duration) time.Duration {
	return lease/100 + 2*time.Millisecond
}

// Validity is how long a lease is valid. It is limited to 100 years, so that times can be added to it.
func Validity(lease time.Duration) time.Duration {
	lease = min(lease, 100*365*24*time.Hour)
	return lease - Drift(lease)
}

// EnoughValidityLeft reports whether enough of the whole trust is left to return a hold to its owner. If not, another
// request restores it. Of an explicit lease half must be left: the owner has asked for the whole. A hold that the
// watchdog renews needs the time for a renewal that takes as long as one may take before it is sent again, and a tenth
// at least. Where half of the trust is shorter than that, half must be left: then a renewal that takes as long as this
// answer still comes in time. Leases that are too short for any trust are over at once, as documented.
func EnoughValidityLeft(left, whole time.Duration, renewed bool) bool {
	least := whole / 2
	if renewed {
		least = max(min(least, renewTime), whole/10)
	}
	return whole <= 0 || left > least
}

// Suffices reports whether an explicit lease, of which no more than half is left once again, is returned all the same:
// Redis always takes long, and another request would bring no more. Of a lease that has less than a quarter left its
// owner has hardly any use.
func Suffices(left, whole time.Duration, renewed bool) bool { return !renewed && left > whole/4 }

// A Holder is told when its lease has ended before it was removed.
type Holder interface {
	// LeaseEnded is called once, without the mutex held. cause is ErrGone, or wraps ErrExpired or the cause of an end at
	// the limit.
	LeaseEnded(cause error)
}

// A Lease is the time for which one hold is valid. Times are counted from the start of its Watchdog.
type Lease struct {
	Holder Holder // set before the lease is watched

	// Written with Watchdog.mu held, or before the lease is watched:
	until   atomic.Int64 // trusted until then
	whole   atomic.Int64 // for so long the last confirmed request was valid from when it was sent
	renewed atomic.Bool  // by the watchdog; false: the lease runs out
	limit   atomic.Int64 // no request may ask for a lease that ends later; 0: none
	last    atomic.Bool  // the lease ends at its limit: a renewal would gain nothing

	// guarded by Watchdog.mu
	length   time.Duration // that a renewal asks for
	sent     time.Duration // when the last confirmed request was sent
	renewAt  time.Duration
	retryAt  time.Duration // when to renew again if the last renewal fails
	asked    bool          // a renewal was sent and has not been confirmed
	underWay int           // renewals that were sent, or are about to be sent, and have not ended
	failed   error         // of the last renewal, if it failed
	index    int           // in the heap; -1 when not watched
}

// SetLimit gives l, which is not watched yet, a limit on the clock of its Watchdog; 0: none.
func (l *Lease) SetLimit(limit time.Duration) { l.limit.Store(int64(limit)) }

// IsLimited reports whether l has a limit.
func (l *Lease) IsLimited() bool { return l.limit.Load() > 0 }

// EndsAtLimit reports whether l is not renewed any more, because a renewal would gain nothing.
func (l *Lease) EndsAtLimit() bool { return l.last.Load() }

// WholeValidity is for how long the last confirmed request was valid from when it was sent.
func (l *Lease) WholeValidity() time.Duration { return time.Duration(l.whole.Load()) }

// LimitValidity sets until when l is valid, and tells nobody. It is for tests.
func (l *Lease) SetValidUntil(until time.Duration) { l.until.Store(int64(until)) }

// next is when the lease needs attention.
func (l *Lease) next() time.Duration {
	until := time.Duration(l.until.Load())
	if l.renewed.Load() {
		return min(l.renewAt, until)
	}
	return until
}

// LeftAt is how long l is valid from now on, where now was read from the watchdog.
func (l *Lease) LeftAt(now time.Duration) time.Duration { return time.Duration(l.until.Load()) - now }

// withinLimit is until, or the limit of l if that is sooner.
func (l *Lease) withinLimit(until int64) int64 {
	if limit := l.limit.Load(); limit > 0 {
		return min(until, limit)
	}
	return until
}
