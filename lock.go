package relock

// Locker, the methods of every lock; and Lock, the plain lock. The plain lock is the
// pattern for the other lock types: keys and scripts, and nothing that waits.

import (
	"cmp"
	"context"
	"time"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/send"
)

// Locker has the methods of every lock of this package. Any number of goroutines may
// share a lock, and two locks of the same name and Client are the same lock.
//
// Every error carries the operation and the lock's name and is matched with
// errors.Is. All methods return ErrInvalid, before anything is sent, for a bad
// name, lease or wait, and all but Unlock return ErrClosed after Close. Methods that ask
// Redis return ErrNotALock, at once, if a key of the lock holds data that neither
// this package nor Redisson makes, and leave the key as it is.
//
// Redisson: RLock.
type Locker interface {
	// Name is the lock's name, and the key of its record in Redis.
	//
	// Redisson: getName().
	Name() string

	// Lock waits until the caller holds the lock, or ctx ends: then the error
	// matches the error of ctx, nothing is held, and an attempt that was under way is undone.
	// The error says who has the lock, as far as this process knows: which of its goroutines
	// or owners; or another process, and how much of its lease is left.
	// The lease is the watchdog's, which renews it until the last Unlock. A caller
	// that holds the lock already gets one more level, and owes one more
	// Unlock; if the lock was lost meanwhile the error is ErrLockLost, once.
	// An error of Redis itself is returned after a few tries.
	//
	// A goroutine that ends without Unlock keeps the lock: no other goroutine can unlock
	// it, and the watchdog renews it until Close. Close logs at debug level which locks are held.
	//
	// Redisson: lock() and lockInterruptibly().
	Lock(ctx context.Context) error

	// LockLease is Lock with a lease that is not renewed: the hold is over after
	// lease, at least 1ms, rounded up to whole milliseconds, and then needs no
	// Unlock. A re-entry sets the longer of lease and the lease that is left, and
	// the watchdog goes on renewing a hold that it renews. A Lock inside a LockLease
	// hands the hold to the watchdog until the last Unlock. Trust ends
	// 1% of the lease and 2ms before the lease, so very short leases are over at once.
	// Where the answer of Redis comes when no more than half of the lease is left, LockLease asks
	// again, and the lease counts from the last request. After two such answers a quarter is
	// enough; after five that leave less the error is ErrLockLost.
	//
	// Redisson: lock(leaseTime, unit).
	LockLease(ctx context.Context, lease time.Duration) error

	// TryLock is Lock (lease 0) or LockLease that waits no longer than wait, and
	// with wait 0 makes one try: a lock that processes want all the time, and pass on to
	// one another, is never free for it. It returns false and no error when the time is up
	// and another owner has the lock. If Redis did not answer in time, TryLock returns an error. With
	// wait 0 that is after 0.4s; after up to 0.8s where answers take long at present, or Redis has not
	// answered yet; and for a RedLock when its nodes have had their WithNodeTimeout.
	//
	// Redisson: tryLock(waitTime, leaseTime, unit).
	TryLock(ctx context.Context, wait, lease time.Duration) (bool, error)

	// Unlock gives back one level. With the last level it leaves the record to the next
	// waiter of this process, without asking Redis (see WithHandoverSlice). Else it deletes
	// the record, and grants the lock to the next process in line or to the first waiter of a
	// FairLock, or wakes the waiters of other locks. Unlock keeps the values of
	// ctx but does not end with ctx, and takes 5s at most: a request that was cancelled still
	// releases its lock. Unlock works after Close, as long as the Redis client is open.
	//
	// The error is ErrNotHeld if the caller does not hold the lock, and ErrLockLost
	// if the caller held the lock and lost it. After any other error Redis has not confirmed the
	// release. The hold is over all the same: the release goes on in the background
	// until the record is gone, its lease is over, or the Client is closed.
	//
	// Redisson: unlock().
	Unlock(ctx context.Context) error

	// Do locks, calls fn with a guarded ctx (see Guard), and unlocks, also when fn
	// panics. It returns the error of fn, joined with that of Unlock: with ErrLockLost
	// if the lock was lost while fn ran. The ctx of fn ends when fn has returned, also
	// where the caller goes on holding the lock. A nil fn is ErrInvalid, before anything is locked.
	//
	// Redisson has none.
	Do(ctx context.Context, fn func(ctx context.Context) error) error

	// Guard returns a ctx that ends as soon as the caller's hold can no longer be
	// trusted: with cause ErrLockLost when it is lost or an explicit lease has run
	// out, also when Redis cannot be reached; context.Canceled after the last
	// Unlock; ErrClosed after Close. A ctx that already ends with the hold is returned
	// unchanged. The error is ErrNotHeld or ErrLockLost.
	//
	// Redisson has none: its holders do not learn of a loss.
	Guard(ctx context.Context) (context.Context, error)

	// IsLocked says whether any owner, of any client, holds the lock.
	//
	// Redisson: isLocked().
	IsLocked(ctx context.Context) (bool, error)

	// IsHeld says whether the caller holds the lock, and Redis confirms it.
	//
	// Redisson: isHeldByCurrentThread().
	IsHeld(ctx context.Context) (bool, error)

	// HoldCount is how many levels the caller holds, and so how many Unlocks the caller
	// owes; 0 if Redis does not confirm the hold.
	//
	// Redisson: getHoldCount().
	HoldCount(ctx context.Context) (int, error)

	// TTL is how much of the holder's lease is left, and 0 if no owner holds the lock.
	// It is -1 for a record without a lease, which only another program can make.
	//
	// Redisson: remainTimeToLive().
	TTL(ctx context.Context) (time.Duration, error)

	// ForceUnlock frees the lock for any holder, and says whether the lock was held. It
	// is an operator's tool: the holder is not asked, and notices the loss at its next
	// renewal, or at once if the holder is of this Client. The request is sent once, and not
	// repeated when the answer is lost. Data that are no lock are not deleted: see ErrNotALock.
	//
	// Redisson: forceUnlock().
	ForceUnlock(ctx context.Context) (bool, error)
}

var (
	lockAcquire = script("lock_acquire")
	lockRelease = script("lock_release")
	lockForce   = script("force")
	lockBundled = bundle(lockAcquire, lockRelease)
)

// spareOfLock is the place of the line among the keys of a plain lock.
var spareOfLock = []send.Spare{{Key: 1}}

// A Lock is a reentrant lock: one owner at a time holds it, any number of times.
//
// Processes that wait for it stand in a line in Redis, and the lock passes from one to
// the next in the order in which they joined it. A process has one place, whatever the
// number of its waiters. It serves them in the order in which they came, for a slice
// (see WithHandoverSlice), before the lock passes to the next process. A process that has
// died loses its place. One that is stopped keeps the others waiting for 5s at most when its
// turn comes, and for its lease if it missed a turn before and has asked since. TryLock with
// wait 0, and a MultiLock or RedLock of this lock, take it before the line if they find it
// free, which a lock with a line seldom is. Java services have no place in the line: once in a
// slice the lock is left free for them, if some wait. For an order over the goroutines of all
// processes, and of Java, take a [FairLock].
//
// Redisson: RLock, and with [Fenced] RFencedLock, with which it shares its record.
type Lock struct{ handle }

// NewLock returns the lock called name. It sends nothing; a bad name is reported
// by the methods.
//
// Redisson: getLock and getFencedLock.
func (c *Client) NewLock(name string, opts ...LockOption) *Lock {
	key, o := c.key(name), newLockOptions(opts)
	keys := []string{key, lineKey(key)}
	if o.fenced {
		keys = append(keys, tokenKey(key))
	}
	announce := prefixName("redisson_lock__channel", key)
	l := &plainLock{
		hashLock: hashLock{client: c, keys: keys, facts: facts{
			Traits:   engine.Traits{Lock: engine.LockID{Name: key}, Given: name, Kind: string(TypeLock), Admits: engine.Exclusive, Tokens: o.fenced, Limit: o.Limits, Script: lockBundled},
			granting: c.grantChannel(announce), line: keys[1],
		}},
		announce: announce,
	}
	if c != nil {
		l.told = [2]any{announce, c.publish}
	}
	return &Lock{newHandle(c, name, l, keys, o)}
}

// Token is the fencing token of the caller's hold: greater than that of every
// hold of this lock before it. A re-entry keeps the token. Send the token to the resource
// that the lock protects, and have the resource refuse a token lower than one it has received:
// then a holder that was paused beyond its lease can do no harm. The error is ErrInvalid for a
// lock made without Fenced, ErrNotHeld, or ErrLockLost.
//
// Redisson: RFencedLock.getToken, which returns the counter, not the caller's own token.
func (l *Lock) Token(ctx context.Context) (int64, error) { return l.fencingToken(ctx) }

// plainLock is the record of a Lock: a hash {field -> levels}, the line beside it, and the token counter of a fenced one.
type plainLock struct {
	hashLock
	announce string // the channel
	told     [2]any // the last arguments of each call: announce, and how a message is published there
}

func (l *plainLock) Channel(engine.Attempt) string { return l.announce }

func (l *plainLock) Acquire(a engine.Attempt) call {
	return call{Script: lockAcquire, Keys: l.keys, Spare: spareOfLock, Args: []any{a.Field, milliseconds(a.Lease), a.Level,
		cmp.Or(a.Line, engine.PassesLine), a.Asked, l.Tokens, l.told[0], l.told[1]}}
}

func (l *plainLock) Granted(_ engine.Attempt, r reply) (engine.Outcome, error) {
	g, err := engine.ParseGrant(r)
	return g.InLine(r), err
}

func (l *plainLock) Release(r engine.Release) call {
	return call{Script: lockRelease, Keys: l.keys, Spare: spareOfLock, Args: []any{r.Field, r.Left, l.told[0], l.told[1],
		milliseconds(r.Share), r.Late}}
}

// undo sets the hold back to its levels before the attempt.
func (l *plainLock) Undo(a engine.Attempt) call { return l.Release(a.AsRelease()) }

func (l *plainLock) Force() call {
	return call{Script: lockForce, Keys: l.keys, Spare: spareOfLock, Args: l.told[:]}
}
