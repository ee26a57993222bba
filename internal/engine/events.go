package engine

// Events: what an engine reports about callers and holds.
//
// Rules: every call that acquires locks ends in one Acquired or one GaveUp for each of its locks, unless it is refused
// for its arguments or because the Client is closed. If it has to wait, a Waiting comes before. The end of a hold is
// reported once, as Released (with a hold count of 0), Detached, Expired or Lost, whichever part notices it. No mutex
// is held while an event is reported. Only the call that an event is about waits for the report. Without an Observer,
// each place that reports costs one check, and makes no measurements.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
)

// Events receives what an engine reports. Those from Waiting to Detached are called only if Config.Observed is set.
type Events interface {
	Waiting(ctx context.Context, s Subject)
	Acquired(ctx context.Context, s Subject, path Path, waited time.Duration, holdCount int, token int64)
	GaveUp(ctx context.Context, s Subject, waiting bool, waited time.Duration, err error) // nil: the time was up
	Renewed(s Subject)
	RenewalFailed(s Subject, err error, left time.Duration)
	Released(ctx context.Context, s Subject, held time.Duration, left int, err error)
	Detached(ctx context.Context, s Subject, held time.Duration)

	Expired(s Subject, held time.Duration)
	Lost(s Subject, held time.Duration, loss, cause error, logged bool) // logged: the log gets it, too
	LossesOmitted(n int)                                                // how many losses the log did not get
	SubscriptionRefused(channel string, err error)
	LineRefused(err error)
	ClosedWithHolds(count int, some []string)
	SlowHold(s Subject, held time.Duration, stack []uintptr) // stack: program counters; nil: it is not known
	SlowWait(w SlowWait)
	SlowOmitted(n int) // how many slow holds and waits were not reported
}

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
	return Subject{kind.Traits().Name, kind.Traits().Type, o}
}

func (h *hold) subject() Subject { return subjectOf(h.lock, h.key.owner) }

// age returns how long h has been held.
func (h *hold) age() time.Duration { return h.lockState.engine.watchdog.Now() - h.since }

// A span is one call that acquires locks, as events describe it. It is nil if there is no Observer.
type span struct {
	engine  *Engine
	ctx     context.Context
	locks   []Subject
	began   time.Time
	path    Path
	targets []target // one for each lock; empty: the lock was handed off
	token   int64    // of a hold that was handed off to the call
}

// startSpan begins the span of a call of o for the locks bs.
func startSpan[L contract.Lock](e *Engine, ctx context.Context, bs []L, o Owner) *span {
	if !e.Observed {
		return nil
	}
	s := &span{engine: e, ctx: ctx, began: time.Now(), path: pathImmediate}
	for _, b := range bs {
		s.locks = append(s.locks, subjectOf(b, o))
	}
	return s
}

// waits notes that the caller is about to wait for another owner.
func (s *span) waits() {
	if s == nil || s.path != pathImmediate {
		return
	}
	s.path = pathQueue
	for _, l := range s.locks {
		s.engine.Events.Waiting(s.ctx, l)
	}
}

// ends notes what has ended a wait. The last path that was noted is reported.
func (s *span) ends(path Path) {
	if s != nil {
		s.path = path
	}
}

// asked notes the targets of the call.
func (s *span) asked(targets []target) {
	if s != nil {
		s.targets = targets
	}
}

// handedOff notes the fencing token of a hold that was handed off to the call. If the call has made an attempt before,
// it has begun again since.
func (s *span) handedOff(token int64) {
	if s != nil {
		s.targets, s.token = nil, token
	}
}

// finish reports the outcome of the call.
func (s *span) finish(err error) {
	if s == nil {
		return
	}
	waited, events := time.Since(s.began), s.engine.Events
	for i, l := range s.locks {
		switch {
		case err == send.ErrTimeUp:
			events.GaveUp(s.ctx, l, s.path != pathImmediate, waited, nil)
		case err != nil:
			events.GaveUp(s.ctx, l, s.path != pathImmediate, waited, err)
		case len(s.targets) == 0:
			events.Acquired(s.ctx, l, s.path, waited, 1, s.token)
		default:
			t := s.targets[i]
			events.Acquired(s.ctx, l, s.path, waited, t.HoldCount, t.hold.token)
		}
	}
}

// observeRelease reports that the hold count of h was lowered to left, unless the hold was lost before.
func (e *Engine) observeRelease(ctx context.Context, h *hold, left int, err error) {
	if e.Observed && h.lossOf() == nil {
		e.Events.Released(ctx, h.subject(), h.age(), left, err)
	}
}
