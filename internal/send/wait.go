package send

// How long a caller waits, and the only place where callers wait.
//
// Rules: every wait ends with a wake-up, at its deadline, when the context is done, or with Close. The answer to a
// call that is under way is worth waiting for, so its caller stays for at least MinWait. A call that cannot be
// interrupted is abandoned, and its outcome goes to the OrphanHandler.

import (
	"context"
	"time"
)

// MinWait is the minimum time that a caller waits for the answer to a call that is under way.
const MinWait = 200 * time.Millisecond

// A Wait describes how long one caller waits, in all calls of one operation.
type Wait struct {
	Ctx      context.Context // also for the values that hooks of the Redis client see
	Closed   <-chan struct{} // closed with the Client; nil: the caller continues after Close
	Deadline time.Time       // zero: there is none

	// NoWait marks a caller that does not wait for other owners. It waits for an answer as long as Sender.Patience
	// returns, unless it has a Deadline or is Patient.
	NoWait  bool
	Patient bool // its context limits how long it stays
	// OnCaller marks a caller whose goroutine may send calls, if it has the time for an answer. The first failure
	// clears OnCaller, because from then on the caller may have to abandon a call.
	OnCaller bool
	// Background marks a goroutine that cleans up and must not panic. After a hook has panicked or ended a goroutine,
	// the call is sent again.
	Background bool
}

// ended returns the reason why nothing can be sent any more, regardless of the deadline, or nil.
func (w *Wait) ended() error {
	if w.Ctx.Err() != nil {
		return CtxError(w.Ctx)
	}
	select {
	case <-w.Closed:
		return ErrClosed
	default:
		return nil
	}
}

// Over returns the reason why the wait must end, or nil.
func (w *Wait) Over() error {
	if why := w.ended(); why != nil {
		return why
	}
	if !w.Deadline.IsZero() && !time.Now().Before(w.Deadline) {
		return ErrTimeUp
	}
	return nil
}

// hasUntil reports whether the caller may stay until t.
func (w *Wait) hasUntil(t time.Time) bool {
	if !w.Deadline.IsZero() && w.Deadline.Before(t) {
		return false
	}
	end, ends := w.Ctx.Deadline()
	return !ends || !end.Before(t)
}

// HasTime reports whether a caller that waits for other owners has more time left than d.
func (w *Wait) HasTime(d time.Duration) bool {
	return !w.NoWait && w.hasUntil(time.Now().Add(d))
}

// Sleep returns nil when one of the channels is ready or d has passed, where 0 means no limit. Otherwise it returns
// the reason why the wait must end. A nil channel is never ready.
func (w *Wait) Sleep(wake, ready, changed <-chan struct{}, d time.Duration) error {
	_, why := w.sleep(wake, ready, changed, d)
	return why
}

// sleep is Sleep. woken reports whether it has received from wake.
func (w *Wait) sleep(wake, ready, changed <-chan struct{}, d time.Duration) (woken bool, why error) {
	if !w.Deadline.IsZero() {
		left := time.Until(w.Deadline)
		if left <= 0 {
			return false, ErrTimeUp
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
		return true, nil
	case <-ready:
	case <-changed:
	case <-timeUp:
		select {
		case <-wake: // at the same time
			return true, nil
		default:
			return false, w.Over()
		}
	case <-w.Ctx.Done():
		return false, CtxError(w.Ctx)
	case <-w.Closed:
		return false, ErrClosed
	}
	return false, nil
}

// sleepFor is sleep for the time of a limit. A deadline long after that needs no timer, which would cost something for
// nothing.
func (w Wait) sleepFor(wake <-chan struct{}, l *limit) (woken bool, why error) {
	now := time.Now()
	if w.Deadline.Sub(now) > 2*l.d {
		w.Deadline = time.Time{}
	}
	return w.sleep(wake, l.begin(now).Done(), nil, 0)
}

// WithMinWait returns w with a deadline that leaves at least MinWait, for a call that is under way.
func (w *Wait) WithMinWait(now time.Time) Wait {
	longer := *w
	if least := now.Add(MinWait); !w.Deadline.IsZero() && w.Deadline.Before(least) {
		longer.Deadline = least
	}
	return longer
}
