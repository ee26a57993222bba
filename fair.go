package relock

// The fair lock: first come, first served, across all processes.
//
// Rules: the queue in Redis determines the order, so every goroutine has an entry of its own in that queue. Each attempt
// of a waiter tells that it is alive, so it makes one each second, or more rarely far behind: see life_of in
// internal/lua/queue.lua. The script that releases the lock grants it to the first waiter, as for a plain lock. The
// waiters of a Client listen to one channel. A waiter behind a Java service, which knows only the waiter's own channel,
// listens to that channel, too.

import (
	"context"

	"github.com/relock-go/relock/internal/record"
)

// A FairLock is a reentrant lock whose waiters acquire it in the order in which they called Lock, whichever process
// they are in.
//
// It costs more than a Lock: every waiter asks about once a second. A waiter that can be granted the lock by a message
// asks less often if at least 32 others wait ahead of it: once in 8s behind 224 or more. A waiter that has crashed, or
// is cut off from Redis, is passed over if Redis knows that its connection is closed. It loses its position if the lock
// becomes free about 3s after its next request was due, which is after about 4s, or up to 11s. If no waiter has asked
// for 2s, all may have been cut off: that time then begins with the next request. If it is granted the lock
// before that, the other waiters are delayed by up to 5s. A waiter that gives up loses its position at once, and a waiter
// that is alive keeps its position for as long as it waits. If a grant expires before the process of the waiter learns
// of it, the waiter waits again, at the end of the queue.
//
// TryLock with a wait of 0 acquires the lock only if no waiter is in the queue that may be alive. If all waiters crash, the
// queue stays in Redis until the next call on the lock, or until it expires, a day after the last request.
//
// Java services share the queue. A Java waiter is notified when its turn comes, and acquires the lock with a request of
// its own. A Java waiter that has crashed is removed after the timeout of [WithFairWaitTimeout].
type FairLock struct{ handle }

// NewFairLock returns the fair lock with the given name. It sends no request. A name or an option that is not valid is
// reported by the methods of the lock, as ErrInvalid.
func (c *Client) NewFairLock(name string, opts ...LockOption) *FairLock {
	o := newLockOptions(name, TypeFair, opts)
	return &FairLock{newHandle(c, record.NewFair(c.wire(), o.traits), o)}
}

// Token returns the fencing token of the caller's hold, which is greater than the token of every earlier hold of this
// lock: see [Lock.Token]. It sends no request. The error is ErrInvalid for a lock without [Fenced], ErrNotHeld if the
// caller does not hold the lock, and ErrLockLost if the caller has lost it.
func (l *FairLock) Token(ctx context.Context) (int64, error) { return l.fencingToken(ctx) }
