package engine

// Spans: what a call that acquires locks tells the Observer. See events.go for the rules.

import (
	"cmp"
	"context"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
)

// A span is one call that acquires locks, as events describe it. It is nil if there is no Observer.
type span struct {
	engine *Engine
	ctx    context.Context
	lock   Subject
	began  time.Time
	path   Path
	count  int // the hold count that the call has last asked for
}

// startSpan begins the span of a call of o for kind.
func startSpan(e *Engine, ctx context.Context, kind contract.Lock, o Owner) *span {
	if !e.Observed {
		return nil
	}
	return &span{engine: e, ctx: ctx, lock: subjectOf(kind, o), began: time.Now(), path: pathImmediate}
}

// waits notes that the caller is about to wait for another owner.
func (s *span) waits() {
	if s == nil || s.path != pathImmediate {
		return
	}
	s.path = pathQueue
	s.engine.Events.Report(s.ctx, Event{What: Waiting, Subject: s.lock})
}

// ends notes what has ended a wait. The last path that was noted is reported.
func (s *span) ends(path Path) {
	if s != nil {
		s.path = path
	}
}

// asks notes the hold count that the call asks for, or gets by a hand-off.
func (s *span) asks(holdCount int) {
	if s != nil {
		s.count = holdCount
	}
}

// finish reports the outcome of the call, which has acquired h, or failed with err.
func (s *span) finish(h *hold, err error) {
	if s == nil {
		return
	}
	v := Event{What: GaveUp, Subject: s.lock, Time: time.Since(s.began), Contended: s.path != pathImmediate}
	switch {
	case err == nil:
		v.What, v.Path, v.HoldCount, v.Token = Acquired, s.path, s.count, h.token
	case err != send.ErrTimeUp:
		v.Err = err
	}
	s.engine.Events.Report(s.ctx, v)
}

// drop is finish for an outcome that the caller does not keep: the Observer hears of it only if it has heard that the call
// waits.
func (s *span) drop(err error) {
	if s != nil && s.path != pathImmediate {
		s.finish(nil, cmp.Or(err, send.ErrTimeUp))
	}
}
