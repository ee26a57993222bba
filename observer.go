package relock

// What an Observer is told of the locks of a Client.
//
// Rules: every call of Lock or TryLock that has asked ends in one Acquired or one
// GaveUp, and says Waiting before that if it has to wait; every hold ends in one
// Released (with no level left), Lapsed or Lost, whoever notices. Nothing is
// reported with a mutex held, and nothing waits for an Observer but the call that an event is
// about (report.go). Without an Observer each place costs one nil check:
// what is measured for it alone is measured behind that.

import (
	"cmp"
	"context"
	"errors"
	"time"
)

// An Observer is told what happens to the locks of a Client: see [WithObserver].
//
// A call reports what it causes on its own goroutine, before the call returns: a slow
// Observer delays that caller, and the callers that wait for a lock that it holds by then. One
// goroutine of the Client reports what the Client notices by itself (renewals, and losses that no call
// has asked about), one event after the other, losses first: a slow Observer delays no
// renewal, no guard and no other caller, and hears of these later. More than 131,072 renewals that
// wait to be reported are dropped; losses never are, but for those that Close cannot report within
// a second. An Observer must not call the lock that it is told of, and must not close the Client.
// A panic in it is recovered; the first one is logged with its stack.
//
// ctx is that of the call; where the Client acts by itself it is a background one.
// The events of one goroutine come in the order in which they happened; those of
// different ones in no order, so that for a moment the next one may have acquired what
// the one before has not released; and renewals and losses at any time.
//
// A MultiLock is seen as its locks, each by itself. A RedLock is seen as itself by
// the Observer of its own Client, and each of its locks, as one of its own type, by
// the Observer of the Client that made it. After Close only Unlock is reported.
//
// It has one method for each event, so that no event has fields which mean
// something only for another one; the events are structs, and an Observer embeds
// [NopObserver], so that both can grow without breaking anybody.
type Observer interface {
	// Waiting is called when a caller begins to wait for others to release the lock,
	// at most once for each call. Locks that are taken together by a MultiLock wait together.
	Waiting(ctx context.Context, e WaitingEvent)

	// Acquired is called when one level of a lock has been acquired, before Lock returns.
	Acquired(ctx context.Context, e AcquiredEvent)

	// GaveUp is called when a caller leaves without the lock: its time is up, its ctx has
	// ended, Redis did not answer or refused. It is not called for what asks nobody:
	// ErrInvalid, and a ctx or a Client that has ended before.
	GaveUp(ctx context.Context, e GaveUpEvent)

	// Renewed is called when the watchdog has renewed a hold, every third of its lease.
	Renewed(ctx context.Context, e RenewedEvent)

	// RenewalFailed is called when Redis has not answered a renewal, or refused it.
	// It is tried again as long as the hold is trusted.
	RenewalFailed(ctx context.Context, e RenewalFailedEvent)

	// Released is called when one level was given back by Unlock, or handed over, before
	// Unlock returns. It is not called for an Unlock that fails because the hold has
	// ended: that was Lapsed or Lost.
	Released(ctx context.Context, e ReleasedEvent)

	// Lapsed is called when an explicit lease has run out, as was asked for.
	Lapsed(ctx context.Context, e LapsedEvent)

	// Lost is called when a hold was lost, once, by whoever notices first: the
	// watchdog, a guard, or a call of its owner. Its guards have ended by then.
	Lost(ctx context.Context, e LostEvent)

	embedsNopObserver()
}

// NopObserver does nothing. Every Observer embeds it, and has methods of its own for
// what it wants to know.
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

// The types of locks. A MultiLock has none: it is seen as its locks.
const (
	TypeLock  LockType = "lock"
	TypeFair  LockType = "fair"
	TypeRead  LockType = "read"
	TypeWrite LockType = "write"
	TypeRed   LockType = "redlock"
)

// An Owner is a goroutine or an owner made by [WithOwner]. No two of a process are the same.
type Owner int64

// String is the owner as it appears in errors.
func (o Owner) String() string { return owner(o).String() }

// An AcquirePath is how a caller came to hold a lock, as it appears in metrics.
type AcquirePath string

const (
	// PathImmediate: the first attempt was granted, without a wait for another caller.
	PathImmediate AcquirePath = "immediate"
	// PathQueue: the caller waited for others of its process, and its first attempt was granted.
	PathQueue AcquirePath = "queue"
	// PathHandover: the holder before it in its process handed the lock over, or shared it.
	PathHandover AcquirePath = "handover"
	// PathNotified: the caller was notified of the release, or the lock was free when it had just begun to listen.
	PathNotified AcquirePath = "notified"
	// PathPolled: the caller asked again without a notification: the lease in its way had ended, or a
	// notification was lost; or to show that it lives, as waiters of fair and write locks do.
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
	Waited time.Duration // since the call, with the time that Redis took
	Level  int           // 1: a fresh hold; more: a re-entry
	Token  int64         // of a fenced lock; else 0
}

// A GaveUpEvent is about a caller who leaves without the lock.
type GaveUpEvent struct {
	Lock    LockInfo
	Waiting bool          // was called before
	Waited  time.Duration // since the call, with the time that Redis took
	Err     error         // what the call returns, without operation and name; nil: TryLock returns false
}

// A RenewedEvent is about a hold that was renewed.
type RenewedEvent struct {
	Lock LockInfo
}

// A RenewalFailedEvent is about a renewal that was not confirmed.
type RenewalFailedEvent struct {
	Lock LockInfo
	Err  error
	Left time.Duration // for which the hold is still trusted; negative: no longer
}

// A ReleasedEvent is about a level that was given back.
type ReleasedEvent struct {
	Lock LockInfo
	Held time.Duration // since the attempt was sent that made the hold
	Left int           // levels; 0: the hold is over
	Err  error         // nil: done; else Redis did not confirm it, and the record lapses with its lease
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

func infoOf(b description, o owner) LockInfo { return LockInfo{b.id().name, b.typ(), Owner(o)} }

func (h *hold) info() LockInfo { return infoOf(h.lock, h.key.owner) }

// age is for how long h has been held.
func (h *hold) age() time.Duration { return h.name.engine.watchdog.now() - h.since }

// A span is one call of Lock or TryLock as an Observer sees it; nil where there is none.
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

// waits notes that the caller is going to wait for others.
func (s *span) waits() {
	if s == nil || s.path != PathImmediate {
		return
	}
	s.path = PathQueue
	for _, l := range s.locks {
		s.observer.Waiting(s.ctx, WaitingEvent{l})
	}
}

// ends notes why the wait, which was noted before, has ended; what comes last counts.
func (s *span) ends(path AcquirePath) {
	if s != nil {
		s.path = path
	}
}

// asked notes what was asked for.
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

// observedRenew is renew, with a report.
func (e *engine) observedRenew(ctx context.Context, leases []*lease) []renewal {
	answers := e.renew(ctx, leases)
	if ctx.Err() != nil {
		return answers
	}
	background := context.Background()
	var events []func()
	for i, l := range leases {
		a, left := answers[i], e.watchdog.left(l)
		for _, h := range l.holder.(*record).holdsNow() {
			switch {
			case a.err != nil:
				events = append(events, func() { e.observer.RenewalFailed(background, RenewalFailedEvent{h.info(), a.err, left}) })
			case a.held:
				events = append(events, func() { e.observer.Renewed(background, RenewedEvent{h.info()}) })
			}
		}
	}
	e.reporter.renewal(events)
	return answers
}

// observeRelease reports that a level of h was given back, unless the hold had ended before.
func (e *engine) observeRelease(ctx context.Context, h *hold, left int, err error) {
	if e.observer != nil && h.lossOf() == nil {
		e.observer.Released(ctx, ReleasedEvent{h.info(), h.age(), left, err})
	}
}

// observeEnd is the report that h has ended now because of cause, for the log and the Observer. A lease that ran
// out as it was asked for is no news for the log, and neither is a lock that this client forced open.
func (h *hold) observeEnd(cause error) (report func()) {
	e, held := h.name.engine, h.age()
	if h.unreported {
		return func() {}
	}
	return func() {
		if !h.expired && !errors.Is(cause, errForced) {
			e.log.Warn("relock: a lock was lost",
				"lock", cutName(h.key.id.name), "type", string(h.lock.typ()), "owner", h.key.owner.String(), "cause", cause)
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
