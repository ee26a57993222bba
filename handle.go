package relock

// The methods that all lock types share. They check the arguments of the user, add the operation and the name to
// errors, and call the engine.

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/opaque"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/route"
	"github.com/relock-go/relock/internal/send"
)

// A handle implements Locker. It checks what the user has passed, adds the name to errors, and leaves the rest to the
// engine, or to a MultiLock. The owner is the one that ctx carries, or else the calling goroutine.
type handle struct {
	client *Client
	name   string
	bad    error                 // why the lock cannot be used, or nil
	lock   contract.Record       // nil for a MultiLock
	many   opaque.Pointer[multi] // zero for all locks except a MultiLock
}

// newHandle returns the handle of lock, which was made with these options.
func newHandle(c *Client, lock keyed, o lockOptions) handle {
	bad := cmp.Or(checkKeys(c, o.traits.Name, lock.Keys()), o.bad)
	return handle{client: c, name: o.traits.Name, bad: bad, lock: lock}
}

// A keyed lock has the keys of its record. The first one is that of the record itself.
type keyed interface {
	contract.Record
	Keys() []string
}

// Name returns the name of the lock, without the prefix of [WithKeyPrefix]. The name of a MultiLock or a RedLock
// consists of the names of its locks, with commas between them.
func (h *handle) Name() string { return h.name }

// Lock acquires the lock. If another owner holds it, Lock blocks until the lock is available or ctx is done. A
// Semaphore acquires one of its permits, a MultiLock all of its locks, and a RedLock a majority of them. Prefer Do,
// which also releases the lock, or TryDo, which also limits the wait.
//
// The lease of the lock is the watchdog timeout (see [WithWatchdogTimeout]). It is renewed automatically until the lock
// is released. The owner is the calling goroutine, or the owner that ctx carries (see [ContextWithOwner]). If the owner
// already holds the lock, Lock increments its hold count; each Lock needs a matching Unlock. A goroutine that exits
// without calling Unlock leaves the lock held: no other goroutine can release it, and it is renewed until the Client is
// closed. [MaxHold] sets a limit.
//
// If ctx is done first, the error matches ctx.Err() and names the current holder, as far as this process knows it. It
// also matches [ErrBusy] if other owners have the lock, and not if Redis may be the reason. The caller then holds
// nothing, and a request that is still in flight is rolled back; if Redis runs it even later, its key expires with its
// lease.
//
// If the caller held the lock and has lost it since, Lock returns ErrLockLost, unless an earlier Lock, or the Unlock of
// the first one, has already done so: after that the caller may acquire the lock again. It returns ErrClosed after
// Shutdown and Close, ErrInvalid for a bad name, and ErrNotALock if a key of the lock holds data of another kind. Other
// errors of Redis are returned after a few retries.
func (h *handle) Lock(ctx context.Context) error {
	_, err := h.acquire(ctx, "lock", engine.Request{Wait: -1})
	return err
}

// LockLease is like Lock, but the lease is not renewed: the lock expires after lease, and then needs no Unlock. The
// lease is at least 1ms, and is rounded up to whole milliseconds.
//
// If the owner already holds the lock with an explicit lease, the longer one of lease and the remaining lease applies.
// If the lock is renewed automatically, it stays so. A Lock by the owner of an explicit lease starts the automatic
// renewal, which lasts until the last Unlock.
//
// Because clocks may drift, the lock is valid for slightly less than lease: 1% of the lease and 2ms less. So a lease of
// 1ms or 2ms has expired as soon as it is acquired. If half of the lease or less remains when the answer of Redis
// arrives, LockLease asks again, and the lease counts from the last request. From the second answer on, more than a
// quarter of the lease is enough. If five answers leave less, LockLease returns ErrLockLost.
func (h *handle) LockLease(ctx context.Context, lease time.Duration) error {
	if lease < time.Millisecond {
		return h.fail("lock", invalid("lease %v is too short: it must be at least 1ms", lease))
	}
	_, err := h.acquire(ctx, "lock", engine.Request{Wait: -1, Lease: lease})
	return err
}

// TryLock is like Lock if lease is 0, and like LockLease otherwise, but waits for at most wait. It reports whether the
// lock was acquired: false with a nil error means that the wait has passed, and that other owners have the lock, as far
// as this process knows (see [ErrBusy]). If ctx is done before, the error matches ctx.Err(), and also ErrBusy if other
// owners have the lock. TryDo does the same for a function that is to run while the lock is held.
//
// With a wait of 0 TryLock makes one attempt and does not join a wait queue. It rarely acquires a lock for which other
// processes are waiting, because they pass it on to one another. A negative wait is ErrInvalid.
//
// If Redis does not answer when the wait has passed, also if it has answered at first, TryLock returns an error that
// matches neither, at most 0.2s later, and the attempt is rolled back. With a wait of 0 it waits for an answer for
// 0.4s, or for up to 0.8s if Redis has been slow lately or has not answered yet; a RedLock waits for the timeout of its
// nodes (see [WithRedLockNodeTimeout]).
func (h *handle) TryLock(ctx context.Context, wait, lease time.Duration) (bool, error) {
	r, err := tryRequest(wait, lease)
	if err != nil {
		return false, h.fail("trylock", err)
	}
	return h.acquire(ctx, "trylock", r)
}

// tryRequest returns the request of TryLock.
func tryRequest(wait, lease time.Duration) (engine.Request, error) {
	switch {
	case wait < 0:
		return engine.Request{}, invalid("wait %v is negative: to wait without a limit, use Lock", wait)
	case lease != 0 && lease < time.Millisecond:
		return engine.Request{}, invalid(
			"lease %v is too short: it must be at least 1ms, or 0 for a lease that is renewed automatically",
			lease,
		)
	}
	return engine.Request{Wait: wait, Lease: lease}, nil
}

func (h *handle) acquire(ctx context.Context, op string, r engine.Request) (ok bool, err error) {
	switch err = h.usable(ctx); {
	case err != nil:
	case h.isMany():
		ok, err = h.many.Get().acquire(ctx, r)
	default:
		ok, err = h.client.engine().Acquire(ctx, engine.OwnerOf(ctx), r, h.lock)
	}
	return ok, h.fail(op, err)
}

// Acquire acquires the lock for a new owner and returns it as a [Hold], which any goroutine may store, pass on and
// release. It blocks as Lock does, returns the same errors, such as [ErrBusy], and the lease is renewed automatically
// until Release. A Hold that is never released keeps the lock until the Client is closed; [MaxHold] sets a limit.
//
// Two calls of Acquire exclude each other, even in one goroutine and even if ctx carries an owner. To acquire the lock
// again while the Hold has it, call Lock with the context of [Hold.Context].
func (h *handle) Acquire(ctx context.Context) (*Hold, error) {
	hold, _, err := newHold(ctx, h, "acquire", engine.Request{Wait: -1})
	return hold, err
}

// TryAcquire is like Acquire, but waits for at most wait, as TryLock does. It reports whether the lock was acquired; if
// not, the Hold is nil. With a lease of 0 the hold is renewed automatically. Otherwise it expires after lease, unless
// [Hold.Extend] extends it. If code calls Lock or Do with the context of [Hold.Context], the lease is renewed
// automatically from that moment on.
func (h *handle) TryAcquire(ctx context.Context, wait, lease time.Duration) (*Hold, bool, error) {
	r, err := tryRequest(wait, lease)
	if err != nil {
		return nil, false, h.fail("tryacquire", err)
	}
	return newHold(ctx, h, "tryacquire", r)
}

// Unlock decrements the hold count of the caller, and releases the lock when the count reaches 0. A released lock is
// handed off to the next waiter of this process without a request (see [WithHandoffWindow]), or else to the next
// process in the wait queue. If no owner waits, the hold is deleted from Redis.
//
// Unlock uses the values of ctx, but ignores its cancellation, so that a canceled request still releases its lock. It
// takes at most 5s, or less than a second if the lock is known to be lost, and works after Close for as long as the
// Redis client is open.
//
// Unlock returns ErrNotHeld if the caller does not hold the lock, and ErrLockLost if the caller held it and has lost
// it. Any other error means that Redis has not confirmed the release. Even then the caller no longer holds the lock,
// and the release is retried in the background until the key is deleted, the lease has expired, or the Client is
// closed. It is not retried if the Redis client was closed: then the key stays until its lease has expired.
func (h *handle) Unlock(ctx context.Context) error { return h.unlock(ctx, "unlock") }

func (h *handle) unlock(ctx context.Context, op string) error {
	err := h.usable(ctx)
	switch {
	case err != nil:
	case h.isMany():
		err = h.many.Get().release(ctx)
	default:
		err = h.client.engine().Release(ctx, h.lock, engine.OwnerOf(ctx))
	}
	return h.fail(op, err)
}

// extend extends the hold of the owner of ctx.
func (h *handle) extend(ctx context.Context, lease time.Duration) error {
	if h.isMany() {
		return h.many.Get().extend(ctx, lease)
	}
	return h.client.engine().Extend(ctx, h.lock, engine.OwnerOf(ctx), lease)
}

// isMany reports whether h is that of a MultiLock.
func (h *handle) isMany() bool { return h.many.Get() != nil }

// Guard returns a copy of ctx that is canceled as soon as the caller may no longer hold the lock. The cause is
// ErrLockLost if the lock is lost or an explicit lease has expired, even if Redis is unreachable; context.Canceled
// after the last Unlock; and ErrClosed after Shutdown and Close. If ctx already is such a context of this hold, Guard
// returns it unchanged; a context that [context.WithoutCancel] has made of one is another one, and is canceled with the
// hold alone. Guard sends no request. The error is ErrNotHeld or ErrLockLost if the caller does not hold the
// lock.
func (h *handle) Guard(ctx context.Context) (context.Context, error) {
	return ask(ctx, h, "guard", (*multi).guard, func(e *engine.Engine, o engine.Owner) (context.Context, error) {
		return e.Guard(ctx, h.lock, o)
	})
}

func (h *handle) fencingToken(ctx context.Context) (token int64, err error) {
	switch err = h.usable(ctx); {
	case err != nil:
	case h.lock == nil:
		err = invalid("a MultiLock has no token: each of its locks may have one")
	case !h.lock.Traits().Fenced:
		err = invalid("the lock was created without Fenced()")
	default:
		token, err = h.client.engine().Token(h.lock, engine.OwnerOf(ctx))
	}
	return token, h.fail("token", err)
}

// IsLocked asks Redis, and reports whether any owner of any client, in any process, holds the lock. For a Semaphore it
// reports whether any permit is held, for a MultiLock whether any of its locks is held, and for a RedLock whether a
// majority of its locks is.
func (h *handle) IsLocked(ctx context.Context) (bool, error) {
	left, err := h.ttl(ctx, "is locked")
	return left != 0, err
}

// IsHeld reports whether the caller holds the lock. If this process has such a hold, IsHeld asks Redis to confirm it;
// if Redis no longer has it, the lock is lost, and the contexts of Guard are canceled.
func (h *handle) IsHeld(ctx context.Context) (bool, error) {
	holdCount, err := h.holdCount(ctx, "is held")
	return holdCount > 0, err
}

// HoldCount returns the number of times that the caller has acquired the lock and not yet released it. It asks Redis to
// confirm the hold, as IsHeld does, and is 0 if Redis does not. For a MultiLock it is the smallest hold count of its
// locks.
func (h *handle) HoldCount(ctx context.Context) (int, error) {
	return h.holdCount(ctx, "hold count")
}

func (h *handle) holdCount(ctx context.Context, op string) (int, error) {
	return ask(ctx, h, op, (*multi).holdCount, func(e *engine.Engine, o engine.Owner) (int, error) {
		return e.HoldCount(ctx, h.lock, o)
	})
}

// TTL asks Redis for the remaining lease of the current holder, in whole milliseconds. It is 0 if no owner holds the
// lock, and negative if the key has no expiry, which no lock of this package or of Redisson leaves behind. For a
// MultiLock it is the longest TTL of its locks. For a Semaphore it is the time until all permits have expired, and
// negative if a Java service holds a permit without a lease.
func (h *handle) TTL(ctx context.Context) (time.Duration, error) {
	return h.ttl(ctx, "ttl")
}

func (h *handle) ttl(ctx context.Context, op string) (time.Duration, error) {
	return ask(ctx, h, op, (*multi).ttl, func(e *engine.Engine, _ engine.Owner) (time.Duration, error) {
		s, err := e.Inspect(ctx, h.lock, "")
		if !s.Locked {
			return 0, err
		}
		return cmp.Or(s.TTL, time.Millisecond), err // it ends in less than that
	})
}

// ForceUnlock releases the lock, whichever owner holds it, and reports whether it was held. It is a tool for operators:
// the holder is not asked, and may still be working. A holder that uses this Client loses the lock at once. Another
// Client of this package is told by a message, asks Redis, and cancels the contexts of the hold, usually within two
// round trips. It listens for such messages while one of its holds is older than a second, unless it renews them more
// often than that: then its next renewal tells it.
//
// The message may be lost, or not allowed (see docs/security.md), and it is not sent to Java services, nor for a name
// of more than 1 KiB. Then the holder notices at its next renewal, a third of the watchdog timeout later at most. A
// hold that is not renewed has an explicit lease, or is in its last lease before [MaxHold]. Its holder notices when it
// next asks Redis about the lock, for example with Unlock, IsHeld or HoldCount, or when the lease expires.
//
// The request is sent once, and is not retried if its answer is lost, because it could release a later hold. If Redis
// runs it after ForceUnlock has returned an error, the holder is not told either. A MultiLock releases all its locks,
// and a Semaphore all its permits. A key that holds data of another kind is not deleted: see [ErrNotALock].
func (h *handle) ForceUnlock(ctx context.Context) (bool, error) {
	return h.forceSeen(ctx)
}

// forceSeen releases the lock; if there are fields, only the holds that have one of them in Redis, for [Client.ForceUnlock].
func (h *handle) forceSeen(ctx context.Context, fields ...string) (bool, error) {
	return ask(ctx, h, "force unlock", (*multi).force, func(e *engine.Engine, _ engine.Owner) (bool, error) {
		if red, ok := h.lock.(*redLock); ok {
			return red.free(ctx)
		}
		return e.Force(ctx, h.lock, fields...)
	})
}

// ask calls many for a MultiLock, and one for every other lock, for the method op.
func ask[T any](
	ctx context.Context, h *handle, op string,
	many func(*multi, context.Context) (T, error), one func(*engine.Engine, engine.Owner) (T, error),
) (answer T, err error) {
	switch err = h.usable(ctx); {
	case err != nil:
	case h.isMany():
		if err = h.many.Get().open(ctx); err == nil {
			answer, err = many(h.many.Get(), ctx)
		}
	default:
		answer, err = one(h.client.engine(), engine.OwnerOf(ctx))
	}
	return answer, h.fail(op, err)
}

func (h *handle) usable(ctx context.Context) error {
	switch {
	case h.lock == nil && !h.isMany() && h.bad == nil:
		return invalid("the lock is a zero value: create it with NewLock or another method of a Client")
	case ctx == nil:
		return errNilContext
	}
	return h.bad
}

func (h *handle) fail(op string, err error) error { return failed(op, h.name, err) }

// failed adds the operation and the name of the lock to err. If err is a panic of a hook of the Redis client, failed
// panics with the same value, as go-redis itself would.
func failed(op, name string, err error) error {
	if err == nil {
		return nil
	}
	if p := send.PanicOf(err); p != nil {
		panic(p.Value)
	}
	return fmt.Errorf("relock: %s %s: %w", op, shortName(name), err)
}

// checkKeys returns an error if a lock with the given name and keys cannot work.
func checkKeys(c *Client, name string, keys []string) error {
	switch {
	case c == nil:
		return invalid("the Client is nil")
	case name == "":
		return invalid("the name is empty")
	case len(keys[0]) > record.LongestName:
		return invalid("the name has %d bytes, with the key prefix: at most %d are allowed", len(keys[0]), record.LongestName)
	}
	first := keys[0]
	if c.in().servers.RoutesBySlot() {
		// A release is announced only in the shard of the lock.
		for _, key := range append([]string{record.PrefixName("redisson_lock__channel", first)}, keys...) {
			if route.SlotPart(key) != route.SlotPart(first) {
				return invalid(
					"the keys and the channel of a lock of this name are in different slots of the Cluster: use a name without " +
						"braces, or with one {tag}",
				)
			}
		}
	}
	return nil
}
