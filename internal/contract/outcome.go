package contract

// Outcomes: what a lock type reads in the reply to an attempt.

import (
	"time"

	"github.com/relock-go/relock/internal/send"
)

// An Outcome is the result of an attempt, as the reply of Redis describes it.
type Outcome struct {
	Status      Status
	Wait        time.Duration // Busy: the time until the next attempt at the latest; negative: the reply has none
	TTL         time.Duration // Busy: the rest of the lease of the current holder; negative: the reply has none
	Token       int64         // Held: the fencing token of a fenced lock
	Following   int           // Held: how many tokens after token belong to the next holds of this process
	More        int           // Held: the number of permits that are still free, if the lock is a semaphore
	Total       int           // Busy: the number of permits of the semaphore, at least 1; 0 for other locks
	LeavesEntry bool          // Busy: the attempt left an entry in Redis, to be rolled back if the caller gives up

	// Differs is set if Redis has another number of permits, Stored, than the semaphore was made with.
	Differs bool
	Stored  int

	Standing Standing // Busy: how the caller notices that it can have the lock
}

// A Status is the answer of Redis to an attempt.
type Status int

const (
	Busy Status = iota
	Held
	Gone // the hold that was to be re-entered does not exist
)

// A View is the state of a lock in Redis.
type View struct {
	Locked bool          // an owner holds the lock
	Held   bool          // the field that was asked about holds the lock
	TTL    time.Duration // of the record; negative: there is no record, or it has no lease
}

// ParseOutcome reads what all lock types have in the reply to an attempt: {1, token, following} is Held, {0, pttl, ?}
// Busy, and {-1, ?, ?} Gone. The token is that of the hold, or 0; following is how many more the caller was given after
// it, for the holds that follow in this process. The numbers shown as ? differ between lock types, which read them by
// themselves.
func ParseOutcome(r send.Reply) (Outcome, error) {
	switch r[0] {
	case 1:
		return Outcome{Status: Held, Token: r[1], Following: int(r[2])}, nil
	case 0:
		return Outcome{Status: Busy, Wait: send.FromMilliseconds(r[1]), TTL: send.FromMilliseconds(r[1])}, nil
	case -1:
		return Outcome{Status: Gone}, nil
	}
	return Outcome{}, send.Unexpected(r)
}

// WithStanding returns the outcome of an attempt on a lock with a line. The third number of the reply r to such an
// attempt is the standing of the caller, if the lock is busy.
func (o Outcome) WithStanding(r send.Reply) Outcome {
	if o.Status == Busy {
		o.Standing = Standing(r[2])
	}
	return o
}

// WithEntry returns the outcome of an attempt on a lock whose waiters have an entry in Redis. If the lock is busy, the
// attempt a has left or renewed the entry, unless a does not wait. The caller has to make another attempt, which renews
// the entry, before the time heartbeat has passed.
func (o Outcome) WithEntry(a Attempt, heartbeat time.Duration) Outcome {
	if o.Status == Busy {
		o.LeavesEntry = !a.NoWait
		if o.Wait < 0 || o.Wait > heartbeat {
			o.Wait = heartbeat
		}
	}
	return o
}
