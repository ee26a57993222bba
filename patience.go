package relock

// How long a caller is willing to wait, and the one place where callers wait.
//
// Rules: every wait ends by a wake-up, its time, the ctx, or Close; a request
// that cannot be interrupted is left behind, and whoever sent it tidies up.

import (
	"context"
	"time"
)

// answerTime is what a request is given at least.
const answerTime = 200 * time.Millisecond

type patience struct {
	ctx      context.Context
	closed   <-chan struct{} // of the client; nil: goes on after Close
	deadline time.Time       // zero: none
	once     bool            // one try, no waiting for others
	prompt   bool            // requests end soon by themselves, and need not be left behind
	alone    bool            // requests are not of one call each
	parts    bool            // requests are those of a composite, whose parts bound them
	unheard  bool            // Redis has not answered at all, and that is why it was given up
	past     bool            // the next attempt is made past the gate
	number   uint64          // of the ticket with which it was turned away from a gate; 0: it was not
	// A request was under way when its caller left.
	leftBehind bool
	// No caller waits who could be told of a panic of a hook: the request is tried again.
	background bool
	seen       *sighting // of the call, or nil

	obstacle *obstacle // what the last attempt found, or nil

	changed <-chan struct{} // wakes too: see group; nil: nothing
}

// hasTime says whether a caller who may wait has more time than d.
func (p *patience) hasTime(d time.Duration) bool {
	return !p.once && (p.deadline.IsZero() || time.Until(p.deadline) > d)
}

// patienceFor is that of a caller of e who asks b, and waits until ctx or e ends.
func (e *engine) patienceFor(ctx context.Context, b backend) *patience {
	return &patience{ctx: ctx, closed: e.closed, prompt: ctx.Done() == nil && e.promptly(), parts: isComposite(b)}
}

// worthAnAnswer is p for a request that is under way: however short the wait, it is worth its answer.
func (p *patience) worthAnAnswer() patience {
	patient := *p
	if !p.deadline.IsZero() {
		patient.deadline = later(p.deadline, time.Now().Add(answerTime))
	}
	return patient
}

// over says why there is no more time, or nil.
func (p *patience) over() error {
	if p.ctx.Err() != nil {
		return ctxError(p.ctx)
	}
	select {
	case <-p.closed:
		return ErrClosed
	default:
	}
	if !p.deadline.IsZero() && !time.Now().Before(p.deadline) {
		return errTimeUp
	}
	return nil
}

// wait sleeps until one of the channels wakes it or d has passed (0: no limit),
// and returns nil; or until there is no more time, and says why.
func (p *patience) wait(wake, ready <-chan struct{}, d time.Duration) error {
	if !p.deadline.IsZero() {
		left := time.Until(p.deadline)
		if left <= 0 {
			return errTimeUp
		}
		if d == 0 || left < d {
			d = left
		}
	}
	var timeUp <-chan time.Time
	if d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		timeUp = timer.C
	}
	select {
	case <-wake:
	case <-ready:
	case <-p.changed:
	case <-timeUp:
		return p.over()
	case <-p.ctx.Done():
		return ctxError(p.ctx)
	case <-p.closed:
		return ErrClosed
	}
	return nil
}
