// Package lease watches the leases of all holds of a client: it renews those that the watchdog keeps alive, and ends
// every lease that can no longer be valid.
//
// Rules:
//   - The validity of a lease starts before the request is sent, and lasts until sent + length - drift. Only a
//     confirmed answer moves the end of the validity, and never to an earlier time.
//   - The mutex of the Watchdog guards a Lease. Fields that are read without the mutex are atomic.
//   - The package knows nothing about locks. The functions that renew a lease, and the Holder that is told when it
//     ends, are given by the caller.
package lease

import (
	"cmp"
	"errors"
	"sync/atomic"
	"time"
)

// Causes with which a lease ends.
var (
	// ErrGone is the cause when the record of the lock no longer exists in Redis.
	ErrGone = errors.New("the hold is gone from Redis")

	// ErrExpired is the cause when the lease ran out because no renewal was confirmed in time.
	ErrExpired = errors.New("the lease has expired")
)

// Drift returns the allowance for one lease: how far the local clock may deviate from the clock of Redis, and how
// late a timer may fire.
func Drift(lease time.Duration) time.Duration {
	return lease/100 + 2*time.Millisecond
}

// Validity returns how long a lease is valid. It is at most about 100 years, so that adding it to a time cannot
// overflow.
func Validity(lease time.Duration) time.Duration {
	lease = min(lease, 100*365*24*time.Hour)
	return lease - Drift(lease)
}

// EnoughValidityLeft reports whether enough of the whole validity is left to return a hold to its owner. If not, the
// caller sends another request, which restores the validity. Of an explicit lease, half must be left, because the
// owner asked for all of it. A hold that the watchdog renews needs as much time as one renewal may take before it is
// sent again, and at least a tenth of its validity. If half of the validity is shorter than that, half is enough: a
// renewal that takes as long as this answer did still arrives in time. A lease that is too short to have any validity
// ends immediately, as documented.
func EnoughValidityLeft(left, whole time.Duration, renewed bool) bool {
	least := whole / 2
	if renewed {
		least = max(min(least, renewTime), whole/10)
	}
	return whole <= 0 || left > least
}

// Suffices reports whether an explicit lease is returned although once again no more than half of its validity is
// left. Redis is evidently always this slow, so another request would not help. With less than a quarter left, the
// lease would be of hardly any use to its owner.
func Suffices(left, whole time.Duration, renewed bool) bool { return !renewed && left > whole/4 }

// A Holder is told that its lease has ended, unless the lease was removed before.
type Holder interface {
	// LeaseEnded is called once, without the mutex held, and again if it has not returned because an error of the user
	// has panicked, or has ended the goroutine. The cause is ErrGone, or it wraps ErrExpired or the cause that is
	// configured for a lease that ends at its limit.
	LeaseEnded(cause error)
}

// A Lease is the time during which one hold is valid. All times are measured from the start of its Watchdog.
type Lease struct {
	Holder Holder // set before the lease is watched

	limit time.Duration // no request may ask for a lease that ends after this time; 0: there is no limit

	// Written with Watchdog.mu held, or before the lease is watched:
	until   atomic.Int64 // the end of the validity
	whole   atomic.Int64 // how long the last confirmed request was valid, from when it was sent
	renewed atomic.Bool  // the watchdog renews the lease; false: it runs out
	last    atomic.Bool  // the lease ends at its limit, so a renewal would gain nothing

	// The mutex of the Watchdog guards these:
	length    time.Duration // the lease that a renewal asks for
	sent      time.Duration // when the last confirmed request was sent
	renewAt   time.Duration
	retryAt   time.Duration // when to renew again if the last renewal fails
	checkAt   time.Duration // when the next check is due; 0: none is
	checkFrom time.Duration // no check is sent before
	old       bool          // a turn has found that it is old: see check.go
	asked     bool          // a renewal was sent and has not been confirmed
	underWay  int32         // renewals and checks that were sent, or are about to be sent, and have not ended
	failed    error         // of the last renewal, if it failed
	index     int           // in the heap; -1 when not watched
}

// SetLimit sets the limit of l, on the clock of the Watchdog. l must not be watched yet; 0 means no limit.
func (l *Lease) SetLimit(limit time.Duration) { l.limit = limit }

// Limit returns the limit of l; Never: it has none.
func (l *Lease) Limit() time.Duration { return cmp.Or(l.limit, Never) }

// WholeValidity returns how long the last confirmed request was valid, from when it was sent.
func (l *Lease) WholeValidity() time.Duration { return time.Duration(l.whole.Load()) }

// SetValidUntil sets the end of the validity of l without notifying its Holder. It is for tests, and for a lease that
// is not watched.
func (l *Lease) SetValidUntil(until time.Duration) { l.until.Store(int64(until)) }

// next returns when the lease needs attention.
func (l *Lease) next() time.Duration {
	at := time.Duration(l.until.Load())
	if l.hasMostRenewals() {
		return at
	}
	if l.renewed.Load() {
		at = min(at, l.renewAt)
	}
	if l.checkAt > 0 {
		at = min(at, l.checkAt)
	}
	if !l.old {
		at = min(at, l.sent+oldAge)
	}
	return at
}

// hasMostRenewals reports whether l has to wait for the end of a request before it is renewed or checked again.
func (l *Lease) hasMostRenewals() bool { return l.underWay == MostRenewals }

// IsRenewable reports whether a renewal of l makes it valid for longer. If not, l can only be checked.
func (l *Lease) IsRenewable() bool { return l.renewed.Load() && !l.last.Load() }

// slack returns how long before it is due a renewal may be sent. It is a part of the lease that is in force, because
// the first one may be much shorter than those that renewals ask for.
func (l *Lease) slack() time.Duration { return l.WholeValidity() / 30 }

// LeftAt returns how much longer l is valid, where now is the time on the clock of the watchdog.
func (l *Lease) LeftAt(now time.Duration) time.Duration { return time.Duration(l.until.Load()) - now }
