package relock

// The Observer of a Client, and the events that it receives about the locks of the Client.
//
// Rules: every call of Lock or TryLock that has sent a request ends in one Acquired or one
// GaveUp, and reports Waiting before that if it has to wait. Every hold ends in one
// Released (with no level left), Lapsed or Lost, whichever part notices the end. Nothing is
// reported with a mutex held, and only the call that an event is about waits for an
// Observer (report.go). Without an Observer each place costs one nil check:
// measurements for the Observer alone are made behind that check.

import (
	"cmp"
	"context"
	"errors"
	"time"
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
	// The watchdog tries again as long as the hold is trusted.
	RenewalFailed(ctx context.Context, e RenewalFailedEvent)

	// Released is called when one level was given back by Unlock, or handed over, before
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

// LockInfo says which lock an event is about, and whose call or hold.
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

// An Owner is a goroutine or an owner made by [WithOwner]. No two owners of a process have the same number.
type Owner int64

// String is the owner as it appears in errors.
func (o Owner) String() string { return owner(o).String() }

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
	Left time.Duration // for which the hold is still trusted; negative: it is trusted no longer
}

// A ReleasedEvent is about a level that was given back.
type ReleasedEvent struct {
	Lock LockInfo
	Held time.Duration // since the attempt was sent that made the hold
	Left int           // levels; 0: the hold is over
	Err  error         // nil: done; else Redis did not confirm the release, and the record lapses with its lease
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

func infoOf(b description, o owner) LockInfo { return LockInfo{b.name(), b.typ(), Owner(o)} }

func (h *hold) info() LockInfo { return infoOf(h.lock, h.key.owner) }

// age is how long h has been held.
func (h *hold) age() time.Duration { return h.name.engine.watchdog.Now() - h.since }

// A span is one call of Lock or TryLock as an Observer sees it; nil where there is no Observer.
type span struct {
	observer Observer
	ctx      context.Context
	locks    []LockInfo
	began    time.Time
	path     AcquirePath
	wants    []want // of the locks; empty: everything was handed over
}

// startSpan begins a span.
func startSpan[L description](e *engine, ctx context.Context, bs []L, o owner) *span {
	if e.observer == nil {
		return nil
	}
	s := &span{observer: e.observer, ctx: ctx, began: time.Now(), path: PathImmediate}
	for _, b := range bs {
		s.locks = append(s.locks, infoOf(b, o))
	}
	return s
}

// waits notes that the caller is going to wait for another owner.
func (s *span) waits() {
	if s == nil || s.path != PathImmediate {
		return
	}
	s.path = PathQueue
	for _, l := range s.locks {
		s.observer.Waiting(s.ctx, WaitingEvent{l})
	}
}

// ends notes why the wait, which was noted before, has ended; the last path counts.
func (s *span) ends(path AcquirePath) {
	if s != nil {
		s.path = path
	}
}

// asked notes which levels the call asked for.
func (s *span) asked(wants []want) {
	if s != nil {
		s.wants = wants
	}
}

// finish reports the outcome.
func (s *span) finish(err error) {
	if s == nil {
		return
	}
	waited := time.Since(s.began)
	for i, l := range s.locks {
		switch {
		case err == errTimeUp:
			s.observer.GaveUp(s.ctx, GaveUpEvent{Lock: l, Waiting: s.path != PathImmediate, Waited: waited})
		case err != nil:
			s.observer.GaveUp(s.ctx, GaveUpEvent{l, s.path != PathImmediate, waited, err})
		case len(s.wants) == 0:
			s.observer.Acquired(s.ctx, AcquiredEvent{l, s.path, waited, 1, 0})
		default:
			w := s.wants[i]
			s.observer.Acquired(s.ctx, AcquiredEvent{l, s.path, waited, w.level, w.hold.token})
		}
	}
}

// observeRelease reports that a level of h was given back, unless the hold had ended before.
func (e *engine) observeRelease(ctx context.Context, h *hold, left int, err error) {
	if e.observer != nil && h.lossOf() == nil {
		e.observer.Released(ctx, ReleasedEvent{h.info(), h.age(), left, err})
	}
}

// observeEnd is the report that h has ended now because of cause, for the log and the Observer. The log gets
// no line for an explicit lease that ran out, nor for a lock that this client forced open.
func (h *hold) observeEnd(cause error) (report func()) {
	e, held := h.name.engine, h.age()
	if h.unreported {
		return func() {}
	}
	return func() {
		if !h.expired && !errors.Is(cause, errForced) {
			e.log.Warn("relock: a lock was lost",
				"lock", cutName(h.lock.name()), "type", string(h.lock.typ()), "owner", h.key.owner.String(), "cause", cause)
		}
		switch {
		case e.observer == nil:
		case h.expired:
			e.observer.Lapsed(context.Background(), LapsedEvent{h.info(), held})
		default:
			e.observer.Lost(context.Background(), LostEvent{h.info(), held, cmp.Or(h.loss, lossError(cause))})
		}
	}
}
