package engine

// Spans: what a call that acquires locks tells the Observer. See events.go for the rules.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
)

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
