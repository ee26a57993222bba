package send

// How long a caller waits, and the one place where callers wait.
//
// Rules: every wait ends by a wake-up, its time, the ctx, or Close. A call that is
// under way is worth its answer: its caller stays for MinWait at least. A call that
// cannot be interrupted is abandoned, and its outcome goes to the OrphanHandler.

import (
	"context"
	"time"
)

// MinWait is the least time that the answer to a call under way is waited for.
const MinWait = 200 * time.Millisecond

// A Wait is how long one caller waits, over all calls of one operation.
type Wait struct {
	Ctx      context.Context // also for the values that hooks of the Redis client see
	Closed   <-chan struct{} // of the Client; nil: the caller goes on after Close
	Deadline time.Time       // zero: none

	// NoWait is a caller that does not wait for others. It stays for an answer as long as Sender.Patience says, unless
	// it has a Deadline or is Patient.
	NoWait  bool
	Patient bool // its ctx bounds how long it stays
	// OnCaller is a caller whose goroutine may send, if it has the time for an answer. The first failure
	// clears Inline: from then on the caller may have to abandon a call.
	OnCaller bool
	// Background is a goroutine that tidies up and must not panic: after a panic of a
	// hook, and after a hook that ends a goroutine, the call is sent again.
	Background bool
}

// ended reports why nothing can be sent any more, whatever the time is; or nil.
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

// Over reports why there is no more time, or nil.
func (w *Wait) Over() error {
	if why := w.ended(); why != nil {
		return why
	}
	if !w.Deadline.IsZero() && !time.Now().Before(w.Deadline) {
		return ErrTimeUp
	}
	return nil
}

// HasTime reports whether a caller that waits for others has more time than d.
func (w *Wait) HasTime(d time.Duration) bool {
	return !w.NoWait && (w.Deadline.IsZero() || time.Until(w.Deadline) > d)
}

// Sleep returns nil when one of the channels is ready or d has passed (0: no limit),
// or the reason why there is no more time. A nil channel is never ready.
func (w *Wait) Sleep(wake, ready, changed <-chan struct{}, d time.Duration) error {
	if !w.Deadline.IsZero() {
		left := time.Until(w.Deadline)
		if left <= 0 {
			return ErrTimeUp
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
	case <-changed:
	case <-timeUp:
		return w.Over()
	case <-w.Ctx.Done():
		return CtxError(w.Ctx)
	case <-w.Closed:
		return ErrClosed
	}
	return nil
}

// WithMinWait returns w for a call that is under way.
func (w *Wait) WithMinWait(now time.Time) Wait {
	longer := *w
	if least := now.Add(MinWait); !w.Deadline.IsZero() && w.Deadline.Before(least) {
		longer.Deadline = least
	}
	return longer
}
