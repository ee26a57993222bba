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
	count  int   // the hold count that the call has asked for; 0: the lock was handed off
	hold   *hold // count: whose token is reported
	token  int64 // of a hold that was handed off to the call
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
	s.engine.Events.Waiting(s.ctx, s.lock)
}

// ends notes what has ended a wait. The last path that was noted is reported.
func (s *span) ends(path Path) {
	if s != nil {
		s.path = path
	}
}

// asked notes the last attempt of the call.
func (s *span) asked(t *target) {
	if s != nil {
		s.count, s.hold = t.HoldCount, t.hold
	}
}

// handedOff notes the fencing token of a hold that was handed off to the call. If the call has made an attempt before,
// it has begun again since.
func (s *span) handedOff(token int64) {
	if s != nil {
		s.count, s.token = 0, token
	}
}

// finish reports the outcome of the call.
func (s *span) finish(err error) {
	if s == nil {
		return
	}
	waited, events := time.Since(s.began), s.engine.Events
	switch {
	case err == send.ErrTimeUp:
		events.GaveUp(s.ctx, s.lock, s.path != pathImmediate, waited, nil)
	case err != nil:
		events.GaveUp(s.ctx, s.lock, s.path != pathImmediate, waited, err)
	case s.count == 0:
		events.Acquired(s.ctx, s.lock, s.path, waited, 1, s.token)
	default:
		events.Acquired(s.ctx, s.lock, s.path, waited, s.count, s.hold.token)
	}
}

// drop is finish for an outcome that the caller does not keep: the Observer hears of it only if it has heard that the call
// waits.
func (s *span) drop(err error) {
	if s != nil && s.path != pathImmediate {
		s.finish(cmp.Or(err, send.ErrTimeUp))
	}
}
