package relock

// Holds as values: a hold that code can store, pass on, and release on any goroutine.
//
// Rules: a Hold has an owner of its own, which its ctx carries, and is nothing but that owner and its lock: it is taken,
// renewed, lost and given back as every other hold. It is released once. Its guard is made when Context is first
// called, because many callers need none. Methods of the user's ctx are called without a mutex held.

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock/internal/engine"
)

// An Acquirer gives out holds as values. Every lock of this package is an Acquirer.
//
// Redisson has none.
type Acquirer interface {
	// Name is the name of the lock: see [Locker].
	Name() string

	// Acquire waits until it has the lock, or ctx ends, as [Locker.Lock] does, and returns
	// the hold. The watchdog renews the hold until Release.
	//
	// Every hold has an owner of its own, also where ctx carries one: two calls of Acquire
	// exclude each other, on one goroutine too. Code that is to re-enter the lock calls
	// Lock with the ctx of [Hold.Context].
	//
	// The hold lasts until Release, and not as long as the Hold can be reached: a
	// Hold that is forgotten without Release keeps the lock until Close.
	//
	// Redisson has none: the owner of its locks is the thread.
	Acquire(ctx context.Context) (*Hold, error)

	// TryAcquire is Acquire that waits no longer than wait, as [Locker.TryLock] does; with
	// wait 0 it makes one try. With a lease the hold is over after lease, unless [Hold.Extend] is called, or code re-enters the
	// lock with the ctx of [Hold.Context]: by Lock or Do, from which on the watchdog renews the hold until Release. With
	// lease 0 the watchdog renews it. TryAcquire returns nil, false and no error when the time is up
	// and another owner has the lock.
	//
	// Redisson has none.
	TryAcquire(ctx context.Context, wait, lease time.Duration) (*Hold, bool, error)
}

// A Hold is a lock that is held, as a value. It belongs to the code that has it and
// to no goroutine. Any number of goroutines may call its methods.
//
// The methods of a nil *Hold, which TryAcquire returns with false, are safe to call, so that Release may be deferred before
// the result is looked at: their error matches ErrNotHeld and ErrInvalid, and Context returns a context that is done.
//
// Redisson has none.
type Hold struct {
	lock     acquirable
	ctx      context.Context // of Acquire, with the owner of the hold
	lease    time.Duration   // 0: the watchdog renews it
	released atomic.Bool
	guarded  atomic.Pointer[context.Context] // the result of Context; nil: it was not called
}

// An acquirable is a lock that gives out Holds. Each call is for the owner that ctx carries.
type acquirable interface {
	Locker
	acquire(ctx context.Context, op string, r engine.Request) (bool, error)
	unlock(ctx context.Context, op string) error
	fencingToken(ctx context.Context) (int64, error)
	// extend lets the hold, whose lease is explicit, last at least for lease from now on.
	extend(ctx context.Context, lease time.Duration) error
	fail(op string, err error) error
}

// acquireHold is Acquire of every lock.
func acquireHold(ctx context.Context, l acquirable, op string) (*Hold, error) {
	h, _, err := newHold(ctx, l, op, engine.Request{Wait: -1})
	return h, err
}

// tryAcquireHold is TryAcquire of every lock.
func tryAcquireHold(ctx context.Context, l acquirable, wait, lease time.Duration) (*Hold, bool, error) {
	r, err := tryRequest(wait, lease)
	if err != nil {
		return nil, false, l.fail("tryacquire", err)
	}
	return newHold(ctx, l, "tryacquire", r)
}

// newHold takes l for a new owner.
func newHold(ctx context.Context, l acquirable, op string, r engine.Request) (*Hold, bool, error) {
	if ctx != nil {
		ctx = WithOwner(ctx)
	}
	if ok, err := l.acquire(ctx, op, r); !ok {
		return nil, false, err
	}
	return &Hold{lock: l, ctx: ctx, lease: r.Lease}, true, nil
}

// none reports whether h holds nothing: it is nil, as after a TryAcquire that has not acquired the lock, or it is zero.
func (h *Hold) none() bool { return h == nil || h.lock == nil }

// Name is the name of the lock: see [Locker]. A nil Hold has none.
func (h *Hold) Name() string {
	if h.none() {
		return ""
	}
	return h.lock.Name()
}

// Release gives the hold back, as [Locker.Unlock] does: it keeps the values of ctx but does not
// end with ctx, takes 5s at most, and works after Close. A level that code took with the ctx of
// Context is given back by its own Unlock.
//
// A hold is released once: of several calls one releases it, and the others return
// ErrNotHeld. The error is ErrLockLost if the hold was lost. After any other error Redis has not
// confirmed the release, and the hold is over all the same: see [Locker.Unlock].
//
// Redisson has none.
func (h *Hold) Release(ctx context.Context) error { return h.release(ctx, "release") }

// release is Release. Its errors name op.
func (h *Hold) release(ctx context.Context, op string) error {
	switch {
	case h.none():
		return failed(op, "", errNoHold)
	case ctx == nil:
		return h.lock.fail(op, errNilContext)
	case !h.released.CompareAndSwap(false, true):
		return h.lock.fail(op, errReleased)
	}
	err := h.lock.unlock(h.owner().In(ctx), op)
	if errors.Is(err, ErrLockLost) {
		h.guardIs(endedContext(h.detached(), err))
	}
	return err
}

var (
	errNoHold   = fmt.Errorf("%w: %w", ErrNotHeld, invalid("the Hold is nil or zero: Acquire or TryAcquire has not acquired the lock"))
	errReleased = fmt.Errorf("%w: this hold was released before", ErrNotHeld)
)

// Context is the ctx for the work that the lock protects. It has the values of the ctx of Acquire, but not its end: use
// [Hold.Guard] for work that also ends with the ctx of its caller.
// It ends as a guarded ctx does (see [Locker.Guard]): with cause ErrLockLost when the hold is lost or its lease has
// run out, context.Canceled after Release, and ErrClosed after Close. Where the hold is over
// already, the ctx has ended. Levels that code took with the ctx keep it alive after Release, until they are given
// back. Context returns the same ctx each time.
//
// The ctx carries the owner of the hold: code that calls Lock of the same lock with it
// re-enters the lock.
//
// Redisson has none: its holders do not learn of a loss.
func (h *Hold) Context() context.Context {
	if h.none() {
		return endedContext(context.Background(), errNoHold)
	}
	if made := h.guarded.Load(); made != nil {
		return *made
	}
	within := h.detached()
	ctx, err := h.lock.Guard(within)
	switch {
	case err == nil:
		return h.guardIs(ctx)
	case h.released.Load() && !errors.Is(err, ErrLockLost):
		err = nil
	}
	return h.guardIs(endedContext(within, err))
}

// Guard returns a context for the work that the lock protects, with the values, the deadline and the cancellation of ctx.
// It is also canceled when the hold ends, with the causes of [Hold.Context]: ErrLockLost when the hold is lost or its
// lease has expired, context.Canceled after Release, and ErrClosed after Close. It carries the owner of the hold in place
// of an owner in ctx, so that code that calls Lock of the same lock with it re-enters the lock. Guard sends nothing, and
// nothing of it is kept once the returned context is done.
//
// The error is ErrNotHeld after Release, ErrLockLost if the hold was lost, and ErrClosed after Shutdown and Close.
//
// Redisson has none.
func (h *Hold) Guard(ctx context.Context) (context.Context, error) {
	switch {
	case h.none():
		return nil, failed("guard", "", errNoHold)
	case ctx == nil:
		return nil, h.lock.fail("guard", errNilContext)
	case h.released.Load():
		return nil, h.lock.fail("guard", errReleased)
	}
	return h.lock.Guard(h.owner().In(ctx))
}

// guardIs makes ctx the result of Context if there is none yet, and returns the result.
func (h *Hold) guardIs(ctx context.Context) context.Context {
	h.guarded.CompareAndSwap(nil, &ctx)
	return *h.guarded.Load()
}

// detached is the ctx of Acquire without its end, with the owner of the hold.
func (h *Hold) detached() context.Context { return context.WithoutCancel(h.ctx) }

func (h *Hold) owner() engine.Owner { return engine.OwnerOf(h.ctx) }

// endedContext is a ctx that has ended with cause; nil: context.Canceled.
func endedContext(parent context.Context, cause error) context.Context {
	ctx, end := context.WithCancelCause(parent)
	end(cause)
	return ctx
}

// Token is the fencing token of the hold, if the lock was made with Fenced: see [Lock.Token].
// The error is ErrInvalid for other locks, ErrNotHeld after Release, or ErrLockLost.
//
// Redisson: RFencedLock.getToken.
func (h *Hold) Token() (int64, error) {
	switch {
	case h.none():
		return 0, failed("token", "", errNoHold)
	case h.released.Load():
		return 0, h.lock.fail("token", errReleased)
	}
	return h.lock.fencingToken(h.ctx)
}

// Extend lets a hold with an explicit lease last at least for lease from now on. It never
// shortens what is left: a request that arrives late must not cut a longer lease. The
// record in Redis stays for as long, and trust counts from before the request, as for every lease. Extend is
// one request for a lock with a record. A MultiLock extends all its locks. A RedLock needs a
// majority; the nodes that do not hold it are not asked again.
//
// The error is ErrLockLost if the lease has run out or the record is gone, and then the ctx of
// Context ends. It is ErrNotHeld after Release, and ErrInvalid for a lease under 1ms, for a
// hold that the watchdog renews, and for a lease that would last longer than MaxHold allows. Where too
// few nodes of a RedLock answered, it is a [*QuorumError]. After another error the hold is as it was, for
// this process; in Redis its record may last longer, until Release.
//
// Redisson has none: a lock in a thread that holds it sets its lease anew, and adds a level.
func (h *Hold) Extend(ctx context.Context, lease time.Duration) error {
	if h.none() {
		return failed("extend", "", errNoHold)
	}
	return h.lock.fail("extend", h.extend(ctx, lease))
}

func (h *Hold) extend(ctx context.Context, lease time.Duration) error {
	switch {
	case ctx == nil:
		return errNilContext
	case lease < time.Millisecond:
		return invalid("lease %v: at least 1ms", lease)
	case h.lease == 0:
		return engine.ErrRenewed
	case h.released.Load():
		return errReleased
	}
	return h.lock.extend(h.owner().In(ctx), lease)
}

// extendLocker extends the caller's hold on l, whose lease is explicit. A Locker of another package has no Extend, but one
// level more sets the lease.
func extendLocker(ctx context.Context, l Locker, lease time.Duration) error {
	if ours, ok := l.(acquirable); ok {
		return ours.extend(ctx, lease)
	}
	guarded, err := l.Guard(ctx)
	if err != nil {
		return err
	}
	ok, err := l.TryLock(ctx, 0, lease)
	if ok {
		err = l.Unlock(ctx)
	}
	if err == nil && (!ok || guarded.Err() != nil) { // it was lost, and the level was a fresh hold
		err = engine.LossError(engine.ErrLapsed)
	}
	return err
}
