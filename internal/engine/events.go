package engine

// What an engine reports: events about callers and holds.
//
// Rules: every call that has sent a request ends in one Acquired or one GaveUp, and reports Waiting before that if it
// has to wait. Every hold ends in one Released (with no level left), Expired or Lost, whichever part notices the end.
// Nothing is reported with a mutex held, and only the call that an event is about waits until it is reported. Where
// nobody observes, each place costs one check: measurements for the observer alone are made behind that check.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/send"
)

// Events hears what an engine reports. The engine calls those from Waiting to Released only where events are observed.
type Events interface {
	Waiting(ctx context.Context, s Subject)
	Acquired(ctx context.Context, s Subject, path Path, waited time.Duration, level int, token int64)
	GaveUp(ctx context.Context, s Subject, waiting bool, waited time.Duration, err error) // nil: the time was up
	Renewed(s Subject)
	RenewalFailed(s Subject, err error, left time.Duration)
	Released(ctx context.Context, s Subject, held time.Duration, left int, err error)

	Expired(s Subject, held time.Duration)
	Lost(s Subject, held time.Duration, loss, cause error, forced bool)
	SubscriptionRefused(channel string, err error)
	LineRefused(err error)
	ClosedWithHolds(count int, some []string)
}

// A Subject is what an event is about: a lock, and whose call or hold.
type Subject struct {
	Name  string
	Type  string
	Owner Owner
}

// A Path is how a caller came to hold a lock.
type Path string

const (
	pathImmediate Path = "immediate" // the first attempt was granted, without a wait for another caller
	pathQueue     Path = "queue"     // the caller waited for others of its process, and its first attempt was granted
	pathHandoff   Path = "handoff"   // the holder before it handed the lock over, or shared its record
	pathNotified  Path = "notified"  // of the release, or of its grant
	pathPolled    Path = "polled"    // it asked again without a notification
)

func subjectOf(kind Lock, o Owner) Subject { return Subject{kind.Name(), kind.Type(), o} }

func (h *hold) subject() Subject { return subjectOf(h.lock, h.key.owner) }

// age is how long h has been held.
func (h *hold) age() time.Duration { return h.name.engine.watchdog.Now() - h.since }

// A span is one call of Lock or TryLock as events see it; nil where nobody observes.
type span struct {
	events  Events
	ctx     context.Context
	locks   []Subject
	began   time.Time
	path    Path
	targets []target // of the locks; empty: everything was handed over
}

// startSpan begins a span.
func startSpan[L Lock](e *Engine, ctx context.Context, bs []L, o Owner) *span {
	if !e.Observed {
		return nil
	}
	s := &span{events: e.Events, ctx: ctx, began: time.Now(), path: pathImmediate}
	for _, b := range bs {
		s.locks = append(s.locks, subjectOf(b, o))
	}
	return s
}

// waits notes that the caller is going to wait for another owner.
func (s *span) waits() {
	if s == nil || s.path != pathImmediate {
		return
	}
	s.path = pathQueue
	for _, l := range s.locks {
		s.events.Waiting(s.ctx, l)
	}
}

// ends notes why the wait, which was noted before, has ended; the last path counts.
func (s *span) ends(path Path) {
	if s != nil {
		s.path = path
	}
}

// asked notes which levels the call asked for.
func (s *span) asked(targets []target) {
	if s != nil {
		s.targets = targets
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
		case err == send.ErrTimeUp:
			s.events.GaveUp(s.ctx, l, s.path != pathImmediate, waited, nil)
		case err != nil:
			s.events.GaveUp(s.ctx, l, s.path != pathImmediate, waited, err)
		case len(s.targets) == 0:
			s.events.Acquired(s.ctx, l, s.path, waited, 1, 0)
		default:
			t := s.targets[i]
			s.events.Acquired(s.ctx, l, s.path, waited, t.HoldCount, t.hold.token)
		}
	}
}

// observeRelease reports that a level of h was released, unless the hold had ended before.
func (e *Engine) observeRelease(ctx context.Context, h *hold, left int, err error) {
	if e.Observed && h.lossOf() == nil {
		e.Events.Released(ctx, h.subject(), h.age(), left, err)
	}
}
