package relock

// The Observer of a Client, and the events that it receives about the locks of the Client.
//
// Rules: every call of Lock or TryLock that has sent a request ends in one Acquired or one
// GaveUp, and reports Waiting before that if it has to wait. Every hold ends in one
// Released (with no level left), Lapsed or Lost, whichever part notices the end. Nothing is
// reported with a mutex held, and only the call that an event is about waits for an
// Observer (report.go).

import (
	"context"
	"log/slog"
	"time"

	"github.com/relock-go/relock/internal/engine"
)

// An Observer receives the events of the locks of a Client: see [WithObserver].
//
// A call reports its events on its own goroutine, before the call returns: a slow
// Observer delays that caller, the callers that wait for a lock that the caller holds by then, and, while Waiting
// reports a caller of this Client, those that wait behind it in this process for the same lock.
// The Client notices renewals by itself, and losses that no call has asked about. One goroutine
// reports these, one event after the other, losses first: a slow Observer delays no
// renewal, no guard and no other caller, and receives these events later. At most 131,072 renewals
// wait to be reported, and further ones are dropped. Losses are never dropped, except when Close
// cannot report them within a second. An Observer must not call the lock that an event is about, and
// must not close the Client. A panic in an Observer is recovered; the first one is logged with its stack.
//
// ctx is the ctx of the call, or a background ctx where the Client acts by itself.
// The events of one goroutine come in the order in which they happened. The events of
// different goroutines come in no order: the Acquired of the next owner may come shortly before the
// Released of the previous one. Renewals and losses come at any time.
//
// The locks of a MultiLock are reported, each by itself, and not the MultiLock. The Observer of the
// Client of a RedLock receives the events of the RedLock. The events of each lock of a RedLock, with
// the type of that lock, go to the Observer of the Client that made the lock. After Close only
// Unlock is reported.
//
// An Observer has one method for each event, so that no event has fields which mean
// something only for another event. The events are structs, and an Observer embeds
// [NopObserver], so that new fields and new events break no Observer.
type Observer interface {
	// Waiting is called when a caller begins to wait for another owner to release the lock,
	// at most once for each call. Locks that are taken together by a MultiLock wait together.
	Waiting(ctx context.Context, e WaitingEvent)

	// Acquired is called when one level of a lock has been acquired, before Lock returns.
	Acquired(ctx context.Context, e AcquiredEvent)

	// GaveUp is called when a caller leaves without the lock: its time is up, its ctx has
	// ended, Redis did not answer or refused. It is not called for calls that end before they
	// ask: those with ErrInvalid, and those with a ctx or a Client that has ended before.
	GaveUp(ctx context.Context, e GaveUpEvent)

	// Renewed is called when the watchdog has renewed a hold, every third of its lease.
	Renewed(ctx context.Context, e RenewedEvent)

	// RenewalFailed is called when Redis has not answered a renewal, or refused it.
	// The watchdog tries again as long as the hold is valid.
	RenewalFailed(ctx context.Context, e RenewalFailedEvent)

	// Released is called when one level was released by Unlock, or handed over, before
	// Unlock returns. It is not called for an Unlock that fails because the hold has
	// ended: Lapsed or Lost was called for that hold.
	Released(ctx context.Context, e ReleasedEvent)

	// Lapsed is called when an explicit lease has run out, as its owner asked.
	Lapsed(ctx context.Context, e LapsedEvent)

	// Lost is called once when a hold was lost, by the part that notices first: the
	// watchdog, a guard, or a call of the owner. The guards of the hold have ended by then.
	Lost(ctx context.Context, e LostEvent)

	embedsNopObserver()
}

// NopObserver does nothing. Every Observer embeds it, and has methods of its own for
// the events that it uses.
type NopObserver struct{}

// Waiting does nothing.
func (NopObserver) Waiting(context.Context, WaitingEvent) {}

// Acquired does nothing.
func (NopObserver) Acquired(context.Context, AcquiredEvent) {}

// GaveUp does nothing.
func (NopObserver) GaveUp(context.Context, GaveUpEvent) {}

// Renewed does nothing.
func (NopObserver) Renewed(context.Context, RenewedEvent) {}

// RenewalFailed does nothing.
func (NopObserver) RenewalFailed(context.Context, RenewalFailedEvent) {}

// Released does nothing.
func (NopObserver) Released(context.Context, ReleasedEvent) {}

// Lapsed does nothing.
func (NopObserver) Lapsed(context.Context, LapsedEvent) {}

// Lost does nothing.
func (NopObserver) Lost(context.Context, LostEvent) {}

func (NopObserver) embedsNopObserver() {}

// LockInfo describes which lock an event is about, and whose call or hold.
type LockInfo struct {
	Name  string
	Type  LockType
	Owner Owner
}

// A LockType is a type of lock, or a half of one, as it appears in metrics.
type LockType string

// The types of locks. A MultiLock has none: its locks are reported instead.
const (
	TypeLock      LockType = "lock"
	TypeFair      LockType = "fair"
	TypeRead      LockType = "read"
	TypeWrite     LockType = "write"
	TypeRed       LockType = "redlock"
	TypeSemaphore LockType = "semaphore"
)

// An AcquirePath is how a caller came to hold a lock, as it appears in metrics.
type AcquirePath string

const (
	// PathImmediate: the first attempt was granted, without a wait for another caller.
	PathImmediate AcquirePath = "immediate"
	// PathQueue: the caller waited for other callers of its process, and its first attempt was granted.
	PathQueue AcquirePath = "queue"
	// PathHandover: the previous holder in its process handed the lock over, or a holder shared its record.
	PathHandover AcquirePath = "handover"
	// PathNotified: the caller was notified of the release or of its grant, or the lock was free when it had just begun
	// to listen.
	PathNotified AcquirePath = "notified"
	// PathPolled: the caller asked again without a notification. The lease in its way had ended, or a
	// notification was lost; or the caller showed that it is alive, as waiters of fair and write locks do.
	PathPolled AcquirePath = "polled"
)

// A WaitingEvent is about a caller who begins to wait.
type WaitingEvent struct {
	Lock LockInfo
}

// An AcquiredEvent is about a level of a lock that was acquired.
type AcquiredEvent struct {
	Lock   LockInfo
	Path   AcquirePath   // PathImmediate, or Waiting was called before
	Waited time.Duration // since the call, including the time that Redis took
	Level  int           // 1: a fresh hold; more: a re-entry
	Token  int64         // of a fenced lock; else 0
}

// A GaveUpEvent is about a caller who leaves without the lock.
type GaveUpEvent struct {
	Lock    LockInfo
	Waiting bool          // Waiting was called before
	Waited  time.Duration // since the call, including the time that Redis took
	Err     error         // of the call, without operation and name; nil: TryLock returns false
}

// A RenewedEvent is about a hold that was renewed.
type RenewedEvent struct {
	Lock LockInfo
}

// A RenewalFailedEvent is about a renewal that was not confirmed.
type RenewalFailedEvent struct {
	Lock LockInfo
	Err  error
	Left time.Duration // for which the hold is still trusted; negative: it is valid no longer
}

// A ReleasedEvent is about a level that was released.
type ReleasedEvent struct {
	Lock LockInfo
	Held time.Duration // since the attempt was sent that made the hold
	Left int           // levels; 0: the hold is over
	Err  error         // nil: done; else Redis did not confirm the release, and the record expires with its lease
}

// A LapsedEvent is about a hold whose explicit lease has run out.
type LapsedEvent struct {
	Lock LockInfo
	Held time.Duration // since the attempt was sent that made the hold
}

// A LostEvent is about a hold that was lost.
type LostEvent struct {
	Lock  LockInfo
	Held  time.Duration // since the attempt was sent that made the hold
	Cause error         // matches ErrLockLost
}

// userEvents hands what the engine reports to the Logger and the Observer of the user.
type userEvents struct {
	log      *slog.Logger
	observer *calmObserver // or nil
}

func infoOf(s engine.Subject) LockInfo { return LockInfo{s.Name, LockType(s.Type), Owner(s.Owner)} }

func (e *userEvents) Waiting(ctx context.Context, s engine.Subject) {
	e.observer.Waiting(ctx, WaitingEvent{infoOf(s)})
}

func (e *userEvents) Acquired(ctx context.Context, s engine.Subject, path engine.Path, waited time.Duration, level int, token int64) {
	e.observer.Acquired(ctx, AcquiredEvent{infoOf(s), AcquirePath(path), waited, level, token})
}

func (e *userEvents) GaveUp(ctx context.Context, s engine.Subject, waiting bool, waited time.Duration, err error) {
	e.observer.GaveUp(ctx, GaveUpEvent{infoOf(s), waiting, waited, err})
}

func (e *userEvents) Renewed(s engine.Subject) {
	e.observer.Renewed(context.Background(), RenewedEvent{infoOf(s)})
}

func (e *userEvents) RenewalFailed(s engine.Subject, err error, left time.Duration) {
	e.observer.RenewalFailed(context.Background(), RenewalFailedEvent{infoOf(s), err, left})
}

func (e *userEvents) Released(ctx context.Context, s engine.Subject, held time.Duration, left int, err error) {
	e.observer.Released(ctx, ReleasedEvent{infoOf(s), held, left, err})
}

func (e *userEvents) Lapsed(s engine.Subject, held time.Duration) {
	if e.observer != nil {
		e.observer.Lapsed(context.Background(), LapsedEvent{infoOf(s), held})
	}
}

func (e *userEvents) Lost(s engine.Subject, held time.Duration, loss, cause error, forced bool) {
	if !forced {
		e.log.Warn("relock: a lock was lost", "lock", cutName(s.Name), "type", s.Type, "owner", s.Owner.String(), "cause", cause)
	}
	if e.observer != nil {
		e.observer.Lost(context.Background(), LostEvent{infoOf(s), held, loss})
	}
}

func (e *userEvents) SubscriptionRefused(channel string, err error) {
	e.log.Warn("relock: Redis refuses the subscription on which releases are announced: "+
		"waiters ask again at the max wake delay instead; allow the channels redisson_* to this user",
		"channel", cutName(channel), "error", err)
}

func (e *userEvents) LineRefused(err error) {
	e.log.Warn("relock: Redis refuses the keys of the line in which processes wait: they wait for a plain lock, a write lock or a semaphore in no order, and a fair lock takes longer to pass on; "+
		"allow the keys relock_line:* to this user", "error", err)
}

func (e *userEvents) ClosedWithHolds(count int, some []string) {
	if e.log.Enabled(context.Background(), slog.LevelDebug) {
		e.log.Debug("relock: closed with locks held, whose records lapse with their leases", "count", count, "locks", some)
	}
}
