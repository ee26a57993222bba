// Package tenancy is what a process has of one lock, as values: claims, holds, and the facts of the fields that they
// have in Redis. It is the part of the engine that can be read, and tested in all orders of events, by itself.
//
// A Claim (claim.go) is what one call wants of a lock for its owner, and a Hold (hold.go) is what the owner has of it
// after that. A Field (this file) has the facts of one field: who uses it in this process, and for how long Redis may
// have it.
//
// A field is the holder ID of one acquire operation. It may pass from one hold to the next: by a hand-off, or by the
// place that a caller leaves in the line. All who have it refer to the same Field, so
// what one of them learns is known to the others. These questions are answered here, and only here:
//
//   - InUse: may the field be deleted? When its last user has left.
//   - Reach.End: in how long has it expired at the latest?
//   - Reach.Longest: which lease may it have, or still get?
//
// Rules: the package knows neither Redis nor a clock, a goroutine or a mutex. Times are those of the clock of the
// watchdog. What requests may still do that no caller waits for is in internal/late, because it outlives the lock state;
// a Reach is told of it.
package tenancy

import "time"

// Strict makes events that are impossible, and so are bugs, panic. Tests and the simulator set it before they begin. In
// a service they leave everything as it is: that costs less than a crash.
var Strict bool

func impossible(what string) bool {
	if Strict {
		panic("bug: " + what)
	}
	return false
}

// A Field is what this process knows of one field. The mutex of the lock state guards all but ID, which never changes.
type Field struct {
	ID string

	users   int32
	expires time.Duration
}

// Use adds a user: a hold that has the lock with the field, a hold that is about to adopt it, or a reader that is being
// split off.
func (f *Field) Use() { f.users++ }

// Leave removes a user, and reports whether it was the last one.
func (f *Field) Leave() (last bool) {
	if f.users == 0 {
		return impossible("a field without users was left")
	}
	f.users--
	return f.users == 0
}

// InUse reports whether the field has users. As long as it has, it must not be deleted.
func (f *Field) InUse() bool { return f.users > 0 }

// MayLast notes that the lease of the field may end as late as at the time until.
func (f *Field) MayLast(until time.Duration) { f.expires = max(f.expires, until) }

// Expires returns when the lease has expired in Redis at the latest: the maximum over all requests that have set it, or
// may have, except those that internal/late still knows.
func (f *Field) Expires() time.Duration { return f.expires }

// A Reach is how far the lease of a field may reach: what requests have made of it, or may make of it.
type Reach struct {
	Rest    time.Duration // until the Field expires
	Renewal time.Duration // the lease that a renewal may set which is under way, or which the watchdog is going to send; 0: none
	Late    time.Duration // the longest lease that a request may set which no caller waits for; 0: none
	LateBy  time.Duration // for how long from now on such a request may run
}

// End returns in how long the lease has expired at the latest, even if all requests that may still run set their leases.
// It is not negative.
func (r Reach) End() time.Duration {
	end := max(r.Rest, r.Renewal, 0)
	if r.Late > 0 {
		end = max(end, r.LateBy+r.Late)
	}
	return end
}

// Longest returns the longest lease, counted from now, that the field has or may still get; 0: none.
func (r Reach) Longest() time.Duration { return max(r.Rest, r.Renewal, r.Late) }
