package relock

// Locker, the methods of every lock; and Lock, the plain lock.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/record"
)

// A Locker is a lock of any type in this package: these are the methods that all types have. The documentation of
// [Lock] describes each method in full.
//
// A Locker may be used by any number of goroutines at once. Two Lockers of the same type, name and Client stand for the
// same lock.
//
// Errors name the operation and the lock, and match the errors of this package with [errors.Is]. A bad name, lease or
// wait is ErrInvalid, and no request is sent. After Close every method except Name and Unlock returns ErrClosed. A
// method that finds data in Redis which neither this package nor Redisson has written returns ErrNotALock, and leaves
// the data unchanged.
type Locker interface {
	// Name returns the name of the lock.
	Name() string

	// Lock acquires the lock. It blocks until the lock is available or ctx is done. The lease is renewed automatically
	// until the last Unlock.
	Lock(ctx context.Context) error

	// LockLease is like Lock, but the lease is not renewed: the lock expires after lease.
	LockLease(ctx context.Context, lease time.Duration) error

	// TryLock is like Lock if lease is 0, and like LockLease otherwise, but waits for at most wait. It reports whether
	// the lock was acquired.
	TryLock(ctx context.Context, wait, lease time.Duration) (bool, error)

	// Unlock decrements the hold count of the caller, and releases the lock when the count reaches 0.
	Unlock(ctx context.Context) error

	// Do calls fn while it holds the lock. The context of fn is canceled when the lock is lost.
	Do(ctx context.Context, fn func(ctx context.Context) error) error

	// TryDo is like Do, but waits for at most wait. It reports whether fn was called: false with a nil error means that
	// other owners have the lock.
	TryDo(ctx context.Context, wait time.Duration, fn func(ctx context.Context) error) (ran bool, err error)

	// Guard returns a context that is canceled when the caller no longer holds the lock.
	Guard(ctx context.Context) (context.Context, error)

	// IsLocked reports whether any owner of any client, in any process, holds the lock.
	IsLocked(ctx context.Context) (bool, error)

	// IsHeld reports whether the caller holds the lock.
	IsHeld(ctx context.Context) (bool, error)

	// HoldCount returns the number of times that the caller has acquired the lock and not yet released it.
	HoldCount(ctx context.Context) (int, error)

	// TTL returns the remaining lease of the current holder, and 0 if no owner holds the lock.
	TTL(ctx context.Context) (time.Duration, error)

	// ForceUnlock releases the lock, whichever owner holds it, and reports whether it was held.
	ForceUnlock(ctx context.Context) (bool, error)
}

// A Lock is a reentrant lock: one owner at a time holds it, and may acquire it any number of times.
//
// Processes that wait for the lock have a wait queue in Redis. The lock passes from one process to the next in the
// order in which they joined the queue. A process has one entry, however many of its goroutines wait. It serves them in
// the order in which they called Lock, for the hand-off window (see [WithHandoffWindow]), before the lock passes to the
// next process. A process that has crashed loses its entry. A process that is paused can delay the others by up to 5s
// when its turn comes, and then loses its entry. If it has already lost one in this way, or with its connection, and has
// asked again since, it can delay them by a whole lease.
//
// TryLock with a wait of 0, and a RedLock that contains the lock, do not join the queue. They acquire the lock only if
// they find it free, which is rare while processes are waiting. Java services have no entry in the queue
// either: if some of them are waiting, the lock is left free for them once in each hand-off window. If all goroutines
// of all processes, and Java services, have to be served in one order, use a [FairLock].
type Lock struct{ handle }

// NewLock returns the lock with the given name. It sends no request. A name that is not valid, or an option that is not
// valid, is reported by the methods of the lock, as ErrInvalid: a name has 1 byte to 1 MiB, and in a Cluster the keys
// of the lock must be in one slot.
func (c *Client) NewLock(name string, opts ...LockOption) *Lock {
	o := newLockOptions(name, TypeLock, opts)
	return &Lock{newHandle(c, record.NewPlain(c.wire(), o.traits), o)}
}

// Token returns the fencing token of the caller's hold, which is greater than the token of every earlier hold of this
// lock. The token does not change when the owner acquires the lock again. Send it to the resource that the lock
// protects, with reads too, and have the resource reject any token that is lower than the highest one it has seen: then
// a holder that was paused beyond its lease cannot do any harm. Package fence does that for SQL databases. Token sends
// no request. The error is ErrInvalid for a lock without [Fenced], ErrNotHeld if the caller does not hold the lock, and
// ErrLockLost if the caller has lost it.
func (l *Lock) Token(ctx context.Context) (int64, error) { return l.fencingToken(ctx) }
