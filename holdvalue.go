package relock

// Holds as values: a hold that code can store, pass on, and release in any goroutine.
//
// Rules: a Hold has an owner of its own, which its context carries, and consists of nothing but that owner and its
// lock: it is acquired, renewed, lost and released like every other hold. It is released once, or detached once: then a
// ticket has all that another process needs to know of it. Its guard is created when Context is first called, because
// many callers need none. Methods of the user's context are called without a mutex held.

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/ticket"
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
	lock     acquirable
	ctx      context.Context                 // the context of Acquire, with the owner of the hold
	lease    time.Duration                   // the explicit lease; 0 if the hold is renewed automatically
	released atomic.Bool                     // also if it was detached
	guarded  atomic.Pointer[context.Context] // the result of Context, or nil if it was not called
}

// An acquirable is a lock that returns Holds. Each call is for the owner that ctx carries.
type acquirable interface {
	Locker
	acquire(ctx context.Context, op string, r engine.Request) (bool, error)
	unlock(ctx context.Context, op string) error
	fencingToken(ctx context.Context) (int64, error)
	// extend makes the hold, which has an explicit lease, last for at least lease from now on.
	extend(ctx context.Context, lease time.Duration) error
	// detach ends the hold, and returns a ticket with which it can be attached.
	detach(ctx context.Context, keep time.Duration) (text string, ended bool, err error)
	fail(op string, err error) error
}

// acquireHold implements Acquire for every lock.
func acquireHold(ctx context.Context, l acquirable, op string) (*Hold, error) {
	h, _, err := newHold(ctx, l, op, engine.Request{Wait: -1})
	return h, err
}

// tryAcquireHold implements TryAcquire for every lock.
func tryAcquireHold(ctx context.Context, l acquirable, wait, lease time.Duration) (*Hold, bool, error) {
	r, err := tryRequest(wait, lease)
	if err != nil {
		return nil, false, l.fail("tryacquire", err)
	}
	return newHold(ctx, l, "tryacquire", r)
}

// newHold acquires l for a new owner.
func newHold(ctx context.Context, l acquirable, op string, r engine.Request) (*Hold, bool, error) {
	if ctx != nil {
		ctx = ContextWithOwner(ctx)
	}
	if ok, err := l.acquire(ctx, op, r); !ok {
		return nil, false, err
	}
	return &Hold{lock: l, ctx: ctx, lease: r.Lease}, true, nil
}

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
// lock was lost. Any other error means that Redis has not confirmed the release, which is retried in the background;
// even then the Hold no longer has the lock.
func (h *Hold) Release(ctx context.Context) error { return h.release(ctx, "release") }

// release implements Release. Its errors name op.
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
		h.guardIs(endedContext(h.uncanceled(), err))
	}
	return err
}

var (
	errNoHold = fmt.Errorf(
		"%w: %w",
		ErrNotHeld,
		invalid("the Hold is nil or zero: Acquire or TryAcquire did not acquire the lock"),
	)
	errReleased  = fmt.Errorf("%w: this Hold has already been released or detached", ErrNotHeld)
	errManyLocks = invalid("the hold is that of a MultiLock or a RedLock: it cannot be detached, because it has " +
		"several keys")
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
	if made := h.guarded.Load(); made != nil {
		return *made
	}
	within := h.uncanceled()
	ctx, err := h.lock.Guard(within)
	switch {
	case err == nil:
		return h.guardIs(ctx)
	case h.released.Load() && !errors.Is(err, ErrLockLost):
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

// uncanceled returns the context of Acquire without its cancellation. It carries the owner of the hold.
func (h *Hold) uncanceled() context.Context { return context.WithoutCancel(h.ctx) }

func (h *Hold) owner() engine.Owner { return engine.OwnerOf(h.ctx) }

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
	switch {
	case h.none():
		return 0, failed("token", "", errNoHold)
	case h.released.Load():
		return 0, h.lock.fail("token", errReleased)
	}
	return h.lock.fencingToken(h.ctx)
}

// Extend makes a hold with an explicit lease last for at least lease from now on. It never shortens the remaining
// lease. For most locks it sends one request, and the new lease starts before that request is sent. A MultiLock extends
// all its locks. A RedLock needs the confirmation of a majority; it asks only the servers that hold it.
//
// The error is ErrLockLost if the lease has expired or the key of the lock is gone, and then the context of Context is
// canceled. It is ErrNotHeld after Release, and ErrInvalid for a lease below 1ms, for a hold that is renewed
// automatically, and for a lease that ends after [MaxHold]. If too few servers of a RedLock have confirmed it, the
// error is a [*QuorumError]. After any other error the hold is unchanged for this process, but its key in Redis may
// last longer, until Release.
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
		return invalid("lease %v is too short: it must be at least 1ms", lease)
	case h.lease == 0:
		return engine.ErrRenewed
	case h.released.Load():
		return errReleased
	}
	return h.lock.extend(h.owner().In(ctx), lease)
}

// Detach ends the hold in this process, and keeps the lock in Redis for keep, so that another process, or this one,
// can go on with it: [Client.Attach] turns the ticket into a Hold again. So one process can acquire a lock, for
// example the handler of a request, and another one do the work and release it. A keep of 0 is the watchdog timeout of
// the Client.
//
// The lease is not renewed meanwhile. If no process attaches the hold, the lock expires when keep has passed. [MinHold]
// and [MaxHold] still count from when the lock was acquired: the lock is kept for at least the rest of MinHold, and at
// most the rest of MaxHold. The fencing token stays the same.
//
// The ticket is a text of at most 512 printable ASCII characters, without spaces. It works once, and it is a secret:
// any process that has it can attach the hold, and so release the lock. The contexts of the hold are canceled with the
// cause [ErrDetached] before Detach sends its request, and Release and Extend then return ErrNotHeld.
//
// If Redis does not confirm the request within 5s, or ctx is done before that, Detach returns an error and no ticket.
// The hold has ended then, too, and the lock is released in the background. But if ctx is done before the request is
// sent, the hold goes on. So call Release after an error: it returns ErrNotHeld if the hold has ended.
//
// The error is ErrLockLost if the lock was lost, and ErrNotHeld after Release. It is ErrInvalid for a keep below 1ms,
// and for a hold of a MultiLock or a RedLock. It is also ErrInvalid if the owner has acquired the lock again, or holds
// or awaits the other half of the read/write lock. The name of the lock may be too long for a ticket, which has room
// for about 250 bytes: this is ErrInvalid, too. The hold goes on then. Detach works during Shutdown. After Close it
// returns ErrClosed.
func (h *Hold) Detach(ctx context.Context, keep time.Duration) (ticket string, err error) {
	if h.none() {
		return "", failed("detach", "", errNoHold)
	}
	ticket, err = h.detach(ctx, keep)
	return ticket, h.lock.fail("detach", err)
}

func (h *Hold) detach(ctx context.Context, keep time.Duration) (text string, err error) {
	switch {
	case ctx == nil:
		return "", errNilContext
	case keep != 0 && keep < time.Millisecond:
		return "", invalid("keep %v is too short: it must be at least 1ms, or 0 for the watchdog timeout", keep)
	case h.released.Load():
		return "", errReleased
	}
	_ = h.Context() // it has to exist when the hold ends, because a later one would not know why
	text, ended, err := h.lock.detach(h.owner().In(ctx), keep)
	if ended {
		h.released.Store(true)
	}
	return text, err
}

// fitsTicket returns an error if the ticket t may be too long when the rest of it is known.
func fitsTicket(t ticket.Ticket) error {
	const last = math.MaxInt64
	t.ID, t.Token, t.MaxEnd, t.MinEnd, t.KeepEnd = strings.Repeat("x", longestID), last, last, last, last
	if _, err := t.Encode(); err != nil {
		return invalid("%w", err)
	}
	return nil
}

// longestID is how many bytes the holder ID of a detached hold has at most: see engine.DetachedPermits.
const longestID = len("00000000-0000-0000-0000-000000000000:0:0123456789012345+1000")

// Attach returns the hold that was detached with [Hold.Detach], under a new owner: its lease is renewed automatically
// until Release, as if the lock had been acquired here. It need not be the Client, or the process, that has detached
// it, but it must use the same Redis, and a prefix ([WithKeyPrefix]) that fits the key of the lock. Attach does not
// wait for other owners.
//
// A ticket works once: the error is ErrNotHeld if the hold was attached before, has expired, or was released by force.
// This does not mean that the work was done, because the process that has attached the hold may have crashed.
// It is ErrInvalid for a ticket that is damaged or whose key does not fit, and ErrClosed after Shutdown and Close.
// After any other error the ticket can be used again, until the time that was passed to Detach is over: if Redis has
// already attached the hold, it is detached again, as soon as Redis can be reached. Another call of this Client waits
// for that, and returns an error other than ErrNotHeld if it takes longer than 5 s. To another Client the ticket is
// used until then: it gets ErrNotHeld.
//
// The context of [Hold.Context] has the values of ctx. If ctx is canceled, Attach ends, but a hold that it has returned
// does not.
func (c *Client) Attach(ctx context.Context, ticket string) (*Hold, error) {
	name, h, err := c.attach(ctx, ticket)
	return h, failed("attach", name, err)
}

func (c *Client) attach(ctx context.Context, text string) (name string, _ *Hold, err error) {
	switch {
	case c == nil:
		return "", nil, invalid("the Client is nil")
	case ctx == nil:
		return "", nil, errNilContext
	}
	t, err := ticket.Decode(text)
	if err != nil {
		return "", nil, invalid("%w", err)
	}
	l, err := c.lockOf(t)
	if err != nil {
		return t.Key, nil, err
	}
	ctx = ContextWithOwner(ctx)
	d := engine.Detached{Field: t.ID, Token: t.Token, MaxEnd: t.MaxEnd, MinEnd: t.MinEnd, KeepEnd: t.KeepEnd}
	if err := c.engine.Attach(ctx, l.record, engine.OwnerOf(ctx), d); err != nil {
		return l.name, nil, err
	}
	return l.name, &Hold{lock: l, ctx: ctx}, nil
}

// lockOf returns the lock of a ticket. When its MaxHold and its MinHold end is in the ticket.
func (c *Client) lockOf(t ticket.Ticket) (*handle, error) {
	name, ok := strings.CutPrefix(t.Key, c.keyPrefix)
	permits, detached := engine.DetachedPermits(t.ID)
	switch {
	case !ok || name == "":
		return nil, invalid("the ticket is for a key that does not begin with the prefix %s of this Client, or that has no "+
			"name",
			shortName(c.keyPrefix))
	case !detached || uuid.Validate(t.ID[:strings.IndexByte(t.ID, ':')]) != nil,
		permits > 1 && LockType(t.Type) != TypeSemaphore:
		return nil, invalid("the ticket has no ID of a detached hold")
	}
	var opts []LockOption
	if t.Token != 0 {
		opts = append(opts, Fenced())
	}
	if t.MinEnd > 0 {
		opts = append(opts, MinHold(time.Millisecond))
	}
	var h *handle
	switch LockType(t.Type) {
	case TypeLock:
		h = &c.NewLock(name, opts...).handle
	case TypeFair:
		h = &c.NewFairLock(name, opts...).handle
	case TypeRead:
		h = &c.NewRWLock(name, opts...).Read().handle
	case TypeWrite:
		h = &c.NewRWLock(name, opts...).Write().handle
	case TypeSemaphore:
		several, err := c.NewSemaphore(name, 1, opts...).several(permits)
		if err != nil {
			return nil, err
		}
		h = several
	default:
		return nil, invalid("the ticket is for a lock of the type %s, which this version does not know", shortName(t.Type))
	}
	return h, h.bad
}

// numberOf returns the number at the end of a field.
func numberOf(field string) uint64 {
	n, _ := strconv.ParseUint(field[strings.LastIndexByte(field, ':')+1:], 10, 64)
	return n
}

// isDetached reports whether c has been detached.
func (c Contender) isDetached() bool { return c.Client != "" && c.Owner == engine.NoOwner.String() }

// hideNumber replaces the number of a detached hold in its Field, because it attaches the hold, by a checksum, which
// tells this hold from others. Very many numbers have the same checksum.
func (h *Holder) hideNumber() {
	if !h.Detached {
		return
	}
	h.id, h.Field = h.Field, fmt.Sprintf("%s:0:%04x", h.Client, crc32.ChecksumIEEE([]byte(h.Field))&0xffff)
	if h.Write {
		h.Field += writeSuffix
	}
}

// extendLocker extends the caller's hold on l, which has an explicit lease. A Locker of another package has no Extend,
// but acquiring it once more sets its lease.
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
	if err == nil && (!ok || guarded.Err() != nil) { // it was lost, and TryLock was a fresh acquire
		err = engine.LossError(engine.ErrExpired)
	}
	return err
}
