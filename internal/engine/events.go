package engine

// Events: what an engine reports about callers and holds.
//
// Rules: every call that acquires locks ends in one Acquired or one GaveUp for each of its locks, unless it is refused
// for its arguments or because the Client is closed. If it has to wait, a Waiting comes before. The end of a hold that
// a call has told is reported once, as Released (with a hold count of 0), Expired or Lost, whichever part
// notices it. No mutex is held while an event is reported. Only the call that an event is about waits for the report.
// Without an Observer, each place that reports costs one check, and makes no measurements.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/contract"
)

// Events receives what an engine reports.
type Events interface {
	Report(ctx context.Context, v Event)

	LossesOmitted(n int) // how many losses the log did not get
	SubscriptionRefused(channel string, err error)
	SlowHold(s Subject, held time.Duration, stack []uintptr) // stack: program counters; nil: it is not known
	SlowWait(w SlowWait)
	SlowOmitted(n int) // how many slow holds and waits were not reported
}

// An Event is what has happened to a call, or to a hold.
type Event struct {
	What
	Subject
	Path      Path
	Time      time.Duration // since the call, or since the request that has acquired the lock; RenewalFailed: what is left of the lease
	HoldCount int           // Acquired, Released: that is reached
	Token     int64         // Acquired
	Contended bool          // GaveUp: the call has waited
	Detached  bool          // Released: by Detach
	Err       error         // GaveUp: nil if the time was up; Lost: the loss

	Logged bool  // Lost: the log gets it, too
	Cause  error // of the loss
}

// What happened. Calls that acquire or release, and renewals, are reported only if Config.Observed is set.
type What int

const (
	Waiting What = iota
	Acquired
	GaveUp
	Renewed
	RenewalFailed
	Released
	Expired
	Lost
)

// A Subject is what an event is about: a lock, and the owner of the call or the hold.
type Subject struct {
	Name  string
	Type  string
	Owner Owner
}

// A Path describes how a caller has acquired a lock.
type Path string

const (
	pathImmediate Path = "immediate" // the first attempt was granted, and the caller did not have to wait for another one
	pathQueue     Path = "queue"     // the caller waited for others of its process, and its first attempt was granted
	pathHandoff   Path = "handoff"   // the last holder handed the lock off, or shared its record
	pathNotified  Path = "notified"  // a message of the release or of the grant ended the wait
	pathPolled    Path = "polled"    // the caller asked again without a message
	pathAttached  Path = "attached"  // the caller has attached a hold that was detached, perhaps by another process
)

func subjectOf(kind contract.Lock, o Owner) Subject {
	return Subject{kind.Traits().Name, kind.Traits().Type, o.principal()}
}

// A SlowWait describes the calls of this process that wait for one lock.
type SlowWait struct {
	Subject               // the lock, and the owner that has waited for the longest time
	Waiters int           // how many calls wait for the lock
	Waited  time.Duration // how long the first of them has waited
	Holder  string        // describes the current holder; "": it is not known
}
