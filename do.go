package relock

// Do and TryDo: a function that runs while a lock is held. Lead is the same for elections.
//
// Rules: the function is called at most once. A hold that is lost before that has protected nothing, so it is acquired
// again. After a loss the error of the function is that of a canceled context as a rule: callers must not take the loss
// for a cancellation, so the result matches ErrLockLost instead, and its text tells of the loss once. The same applies
// to Shutdown and Close, and ErrClosed.

import (
	"context"
	"errors"
	"time"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/guard"
)

// Do acquires the lock as Lock does, calls fn on the goroutine of the caller, and releases the lock, even if fn panics.
// If the lock cannot be acquired, fn is not called, and Do returns the error of Lock, which matches [ErrBusy] if ctx was
// done while other owners had the lock. A nil fn is ErrInvalid. To limit the wait, and to tell errors of the lock from
// those of fn, use TryDo.
//
// The context of fn is canceled when ctx is, when the lock is lost (see Guard), and when fn returns. Do returns the
// error of fn, joined with the error of Unlock, so that it matches ErrLockLost if the lock was lost while fn was
// running. If that was the reason why the context of fn was canceled, the error does not match context.Canceled, even
// if fn has returned the error of its context: a loss is not to be taken for a cancellation. If Shutdown or Close has
// canceled the context of fn, and fn has returned the error of its context, Do returns [ErrClosed] in its place.
//
// If fn calls Lock after the loss, with the owner of ctx, the first call returns ErrLockLost, and the next one acquires
// the lock again. The release at the end of Do is then about that later hold.
//
// If the lock is lost before fn is called, Do acquires it again, as nothing has been done under it. So ErrLockLost
// means that fn was called, with two exceptions: the owner already held the lock, in an outer section, and has lost it;
// or the lock was lost in this way several times in a row, because Redis takes too long to answer. TryDo reports
// whether fn was called.
func (h *handle) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	if fn == nil {
		return h.fail("do", errNilFunction)
	}
	_, err := doHeld(ctx, h, "lock", "do", engine.Request{Wait: -1}, fn)
	return err
}

// TryDo is like Do, but waits for the lock for at most wait, as TryLock does: with a wait of 0 it makes one attempt. It
// reports whether fn was called. The result is
//
//   - true, and the error of Do, if fn was called;
//   - false, and nil, if wait has passed and, as far as this process knows, other owners have the lock (see [ErrBusy]);
//   - false, and an error that matches that of ctx, if ctx is done before; it also matches ErrBusy if other owners have
//     the lock;
//   - false, and another error, if Redis does not answer in time, and for the other reasons for which Lock returns one.
//
// So if fn was not called, an HTTP handler answers 409 to a nil error and to ErrBusy, and 503 to the others. If fn was
// called, the error is that of fn, joined with that of the release, so a handler keeps the error of fn in a variable: if
// that is nil, the work is done, whatever became of the lock. The error of fn may match ErrBusy, too, if fn has waited
// for another lock.
//
// The wait includes the time that Redis takes to answer. If Redis does not answer, TryDo returns up to 0.2s after wait.
// Errors of the acquisition name the operation trylock. A negative wait and a nil fn are ErrInvalid.
func (h *handle) TryDo(
	ctx context.Context,
	wait time.Duration,
	fn func(ctx context.Context) error,
) (ran bool, err error) {
	r, err := tryRequest(wait, 0)
	if fn == nil {
		err = errNilFunction
	}
	if err != nil {
		return false, h.fail("trydo", err)
	}
	return doHeld(ctx, h, "trylock", "trydo", r, fn)
}

var errNilFunction = invalid("the function is nil")

// doHeld acquires l, calls fn and releases l, for the method call. It reports whether fn was called. Errors of the
// acquisition name op.
func doHeld(
	ctx context.Context,
	l *handle,
	op, call string,
	r engine.Request,
	fn func(ctx context.Context) error,
) (ran bool, err error) {
	if many := l.many.Get(); many != nil && len(many.ends) > 0 && ctx != nil {
		within, end := context.WithCancel(ctx) // Guard creates guards at other Clients, which end with the call
		defer end()
		ctx = within
	}
	began, wait := time.Now(), r.Wait
	for asked := 1; ; asked++ {
		ok, err := l.acquire(ctx, op, r)
		if !ok {
			return false, err
		}
		ran, cause, err := callHeld(ctx, l, call, fn)
		if ran || !lostUnused(cause) || asked == engine.MostAsked {
			return ran, err
		}
		if r.Wait > 0 {
			r.Wait = max(0, wait-time.Since(began))
		}
	}
}

// lostUnused reports whether err, the error of a hold whose function was not called, is a loss after which the lock is
// acquired again.
func lostUnused(err error) bool {
	return errors.Is(err, ErrLockLost) && !errors.Is(err, engine.ErrLate)
}

// callHeld calls fn, for the method op of l, with a context that ends with the hold that ctx leads to, and with the call.
// Then it releases the hold, also if code of the user panics, and returns the outcome. cause is why the context of fn
// has ended before, or why there is none, and fn was not called.
func callHeld(
	ctx context.Context,
	l *handle,
	op string,
	fn func(ctx context.Context) error,
) (ran bool, cause, err error) {
	defer func() {
		// This also runs if fn panics: then err is dropped, and the panic continues.
		err = outcome(err, cause, l.Unlock(ctx), ran && l.isMany())
	}()
	guarded, err := l.Guard(ctx)
	if err != nil {
		return false, err, err
	}
	within, end := guard.NewCall(guarded)
	defer end()
	ran = true
	err = fn(within)
	if cause = context.Cause(within); isClosing(cause) {
		cause = l.fail(op, cause)
	}
	return ran, cause, err
}

// outcome returns the error of a call that has held a lock: err, the error of its function, joined with released, that
// of the release. cause is why the context of the function was canceled before it returned; or nil. If that is the loss
// of the lock, the outcome does not match context.Canceled, and does not repeat the loss, unless released may be about
// several locks. If it is that the Client is closed, cause takes the place of context.Canceled, and of ErrClosed.
func outcome(err, cause, released error, several bool) error {
	if isClosing(cause) {
		err = closedInstead(err, cause)
	}
	switch {
	case err == nil:
		return released
	case released == nil:
		return err
	case !errors.Is(released, ErrLockLost) || !errors.Is(cause, ErrLockLost):
		return errors.Join(err, released)
	case err == context.Canceled: // not errors.Is: an error that wraps it has a text
		return released
	}
	if errors.Is(err, context.Canceled) {
		err = uncanceled{err}
	}
	if several || !errors.Is(err, cause) {
		return errors.Join(err, released)
	}
	return err
}

// isClosing reports whether cause is that the Client is closed, and not the loss of a lock.
func isClosing(cause error) bool {
	return errors.Is(cause, ErrClosed) && !errors.Is(cause, ErrLockLost)
}

// closedInstead returns err as an error that matches closed, and not context.Canceled, if err matches that.
func closedInstead(err, closed error) error {
	switch {
	case err == context.Canceled, err == ErrClosed: // not errors.Is: an error that wraps it has a text
		return closed
	case !errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, ErrClosed):
		return uncanceled{err}
	}
	return errors.Join(uncanceled{err}, closed)
}

// An uncanceled error matches what it wraps, except context.Canceled.
type uncanceled struct{ error }

// Is implements [errors.Is].
func (u uncanceled) Is(target error) bool {
	return target != context.Canceled && errors.Is(u.error, target)
}

// As implements [errors.As].
func (u uncanceled) As(target any) bool { return errors.As(u.error, target) }
