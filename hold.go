package relock

// Holds as values: a hold that code can store, pass on, and release in any goroutine.
//
// Rules: a Hold has an owner of its own, which its context carries, and consists of nothing but that owner and its
// lock: it is acquired, renewed, lost and released like every other hold. It is released once, or detached once: see
// detach.go. Its guard is created when Context is first called, because many callers need none. Methods of the user's
// context are called without a mutex held.

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/opaque"
)

// An Acquirer is a lock that can be acquired as a value, a [Hold]. Every lock of this package is an Acquirer.
type Acquirer interface {
	// Name returns the name of the lock.
	Name() string

	// Acquire acquires the lock for a new owner. It blocks as [Locker.Lock] does, and the lease is renewed
	// automatically until Release. Two calls of Acquire exclude each other, even in one goroutine.
	Acquire(ctx context.Context) (*Hold, error)

	// TryAcquire is like Acquire, but waits for at most wait, with a lease as in [Locker.TryLock]. It reports whether
	// the lock was acquired.
	TryAcquire(ctx context.Context, wait, lease time.Duration) (*Hold, bool, error)
}

// A Hold is an acquired lock, as a value. It is not tied to a goroutine: any code may store it, pass it on and release
// it, and any number of goroutines may call its methods at once.
//
// TryAcquire returns a nil Hold together with false. The methods of a nil Hold may be called, so that Release can be
// deferred before the result is checked: they return errors that match both ErrNotHeld and ErrInvalid, and Context
// returns a context that is done.
type Hold struct {
	lock   *handle
	lease  time.Duration // the explicit lease; 0 if the hold is renewed automatically
	hidden opaque.Pointer[holdState]
}

// A holdState is what changes, and the context, which belongs to the user. Its Hold leads to it.
type holdState struct {
	Hold
	ctx      context.Context                 // the context of Acquire, with the owner of the hold
	released atomic.Bool                     // also if it was detached
	guarded  atomic.Pointer[context.Context] // the result of Context, or nil if it was not called
}

// newHold acquires l for a new owner.
func newHold(ctx context.Context, l *handle, op string, r engine.Request) (*Hold, bool, error) {
	if ctx != nil {
		ctx = ContextWithOwner(ctx)
	}
	if ok, err := l.acquire(ctx, op, r); !ok {
		return nil, false, err
	}
	return makeHold(ctx, l, r.Lease), true, nil
}

func makeHold(ctx context.Context, l *handle, lease time.Duration) *Hold {
	in := &holdState{Hold: Hold{lock: l, lease: lease}, ctx: ctx}
	in.hidden = opaque.To(in)
	return &in.Hold
}

func (h *Hold) in() *holdState { return h.hidden.Get() }

// none reports whether h holds nothing: it is nil, as after a TryAcquire that has not acquired the lock, or it is a
// zero Hold.
func (h *Hold) none() bool { return h == nil || h.lock == nil }

// Name returns the name of the lock. It is "" for a nil Hold.
func (h *Hold) Name() string {
	if h.none() {
		return ""
	}
	return h.lock.Name()
}

// Release releases the lock. It ignores the cancellation of ctx, takes at most 5s, and works after Close, as
// [Lock.Unlock] does. If code has acquired the lock again with the context of Context, the lock is held until that code
// has also called Unlock.
//
// Only the first call of Release releases the lock, and later calls return ErrNotHeld. The error is ErrLockLost if the
// lock was lost. If code was told of the loss, and has acquired the lock again with the context of Context, Release is
// about that later hold. Any other error means that Redis has not confirmed the release, which is retried in the
// background; even then the Hold no longer has the lock.
func (h *Hold) Release(ctx context.Context) error { return h.release(ctx, "release") }

// release implements Release. Its errors name op.
func (h *Hold) release(ctx context.Context, op string) error {
	err := h.usable(ctx)
	if err == nil && !h.in().released.CompareAndSwap(false, true) {
		err = errReleased
	}
	if err != nil {
		return failed(op, h.Name(), err)
	}
	err = h.lock.unlock(h.owner().In(ctx), op)
	if errors.Is(err, ErrLockLost) {
		h.guardIs(endedContext(h.uncanceled(), err))
	}
	return err
}

// usable returns why h cannot be used with ctx, or nil.
func (h *Hold) usable(ctx context.Context) error {
	switch {
	case h.none():
		return errNoHold
	case ctx == nil:
		return errNilContext
	case h.in().released.Load():
		return errReleased
	}
	return nil
}

var (
	errNoHold = fmt.Errorf(
		"%w: %w",
		ErrNotHeld,
		invalid("the Hold is nil or zero: Acquire or TryAcquire did not acquire the lock"),
	)
	errReleased = fmt.Errorf("%w: this Hold has already been released or detached", ErrNotHeld)
)

// Context returns a context for the work that the lock protects. It has the values of the context that was passed to
// Acquire, but not its cancellation: use [Hold.Guard] for work that is to end with the context of its caller.
//
// The context is canceled when the lock is no longer held. The cause is ErrLockLost if the lock is lost or its lease
// has expired, context.Canceled after Release, ErrDetached after Detach, and ErrClosed after Shutdown and Close. If
// the hold has already ended, the context is done. If code has acquired the lock again with this context, the context
// is canceled only when that code has also called Unlock. Context returns the same context each time.
//
// The context carries the owner of the Hold: code that calls Lock of the same lock with it acquires the lock again,
// without waiting.
func (h *Hold) Context() context.Context {
	if h.none() {
		return endedContext(context.Background(), errNoHold)
	}
	if made := h.in().guarded.Load(); made != nil {
		return *made
	}
	within := h.uncanceled()
	ctx, err := h.lock.Guard(within)
	switch {
	case err == nil:
		return h.guardIs(ctx)
	case h.in().released.Load() && !errors.Is(err, ErrLockLost):
		err = nil
	}
	return h.guardIs(endedContext(within, err))
}

// Guard returns a copy of ctx for the work that the lock protects: it has the values, the deadline and the cancellation
// of ctx, and is also canceled when the hold ends, with the causes of [Hold.Context]. It carries the owner of the hold,
// so that code that calls Lock of the same lock with it acquires the lock again, without waiting. Guard sends no
// request, and its resources are released when the returned context is done.
//
// The error is ErrNotHeld after Release, ErrLockLost if the lock was lost, and ErrClosed after Shutdown and Close.
func (h *Hold) Guard(ctx context.Context) (context.Context, error) {
	if err := h.usable(ctx); err != nil {
		return nil, failed("guard", h.Name(), err)
	}
	return h.lock.Guard(h.owner().In(ctx))
}

// guardIs makes ctx the result of Context if there is none yet, and returns the result.
func (h *Hold) guardIs(ctx context.Context) context.Context {
	h.in().guarded.CompareAndSwap(nil, &ctx)
	return *h.in().guarded.Load()
}

// uncanceled returns the context of Acquire without its cancellation. It carries the owner of the hold.
func (h *Hold) uncanceled() context.Context { return context.WithoutCancel(h.in().ctx) }

func (h *Hold) owner() engine.Owner { return engine.OwnerOf(h.in().ctx) }

// ended is a context that is already canceled.
var ended = endedContext(context.Background(), nil)

// endedContext returns a context that is already canceled with cause, or with context.Canceled if cause is nil.
func endedContext(parent context.Context, cause error) context.Context {
	ctx, end := context.WithCancelCause(parent)
	end(cause)
	return ctx
}

// Token returns the fencing token of the hold, which is greater than the token of every earlier hold of the lock: see
// [Lock.Token]. It sends no request. The error is ErrInvalid for a lock without [Fenced], ErrNotHeld after Release, and
// ErrLockLost if the lock was lost.
func (h *Hold) Token() (int64, error) {
	if err := h.usable(context.Background()); err != nil {
		return 0, failed("token", h.Name(), err)
	}
	return h.lock.fencingToken(h.in().ctx)
}

// Extend makes a hold with an explicit lease last for at least lease from now on. It never shortens the remaining
// lease. For most locks it sends one request, and up to four more if too little of the lease is left when the answer
// comes; the new lease starts before the last one is sent. A MultiLock extends all its locks; after an error some of
// them may last longer, and it is lost with the first of them. A RedLock needs the confirmation of a majority; it asks
// only the servers that hold it.
//
// The error is ErrLockLost if the lease has expired or the key of the lock is gone, and then the context of Context is
// canceled. It is ErrNotHeld after Release, and ErrInvalid for a lease below 1ms, for a hold that is renewed
// automatically, and for a lease that ends after [MaxHold]. If too few servers of a RedLock have confirmed it, the
// error is a [*QuorumError]. After any other error the hold is unchanged for this process, but its key in Redis may
// last longer, until Release.
func (h *Hold) Extend(ctx context.Context, lease time.Duration) error {
	err := h.usable(ctx)
	switch {
	case err != nil:
	case lease < time.Millisecond:
		err = invalid("lease %v is too short: it must be at least 1ms", lease)
	case h.lease == 0:
		err = engine.ErrRenewed
	default:
		err = h.lock.extend(h.owner().In(ctx), lease)
	}
	return failed("extend", h.Name(), err)
}

// extendLocker extends the caller's hold on l, which has an explicit lease. A Locker of another package has no Extend,
// but acquiring it once more sets its lease.
func extendLocker(ctx context.Context, l Locker, lease time.Duration) error {
	if ours, ok := l.(known); ok {
		return ours.inside().extend(ctx, lease)
	}
	guarded, err := l.Guard(ctx)
	if err != nil {
		return err
	}
	ok, err := l.TryLock(ctx, 0, lease)
	if ok {
		err = l.Unlock(ctx)
	}
	if err == nil && (!ok || guarded.Err() != nil) { // it was lost, and TryLock was a fresh acquire
		err = engine.LossError(engine.ErrExpired)
	}
	return err
}
