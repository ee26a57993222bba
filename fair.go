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
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/record"
)

var (
	fairAcquire = record.Script("fair_acquire")
	fairRelease = record.Script("fair_release")
	fairForce   = record.Script("fair_force")
)

// A FairLock is a reentrant lock whose waiters acquire it in the order in which they called Lock, whichever process
// they are in.
//
// It costs more than a Lock: every waiter asks about once a second. A waiter that can be granted the lock by a message
// asks less often if at least 32 others wait ahead of it: once in 25s behind more than 768. A waiter that has crashed, or
// is cut off from Redis, is passed over if Redis knows that its connection is closed. It loses its position if the lock
// becomes free about 3s after its next request was due, which is after about 4s, or up to 28s. If no waiter has asked
// for 2s, all may have been cut off: that time then begins with the next request. If it is granted the lock
// before that, the other waiters are delayed by up to 5s. A waiter that gives up loses its position at once, and a waiter
// that is alive keeps its position for as long as it waits. If a grant expires before the process of the waiter learns
// of it, the waiter waits again, at the end of the queue.
//
// TryLock with a wait of 0 acquires the lock only if no waiter is in the queue that may be alive. If all waiters crash, the
// queue stays in Redis until the next call on the lock, or until it expires: after one [WithFairWaitTimeout] for each
// waiter, and one more.
//
// Java services share the queue. A Java waiter is notified when its turn comes, and acquires the lock with a request of
// its own. A Java waiter that has crashed is removed after the timeout of [WithFairWaitTimeout].
type FairLock struct{ handle }

// NewFairLock returns the fair lock with the given name. It sends no request. A name or an option that is not valid is
// reported by the methods of the lock, as ErrInvalid.
func (c *Client) NewFairLock(name string, opts ...LockOption) *FairLock {
	key, o := c.key(name), newLockOptions(opts)
	l := &fairLock{newRecordLock(c, name, TypeFair, contract.Uncoordinated, o,
		record.PrefixName("redisson_lock__channel", key)+":", 4,
		key,
		record.PrefixName("redisson_lock_queue", key),
		record.PrefixName("redisson_lock_timeout", key),
		record.PlacesKey(key),
		record.LineKeys(key)[1],
	)}
	return &FairLock{newHandle(c, name, l, l.keys, o)}
}

// Token returns the fencing token of the caller's hold, which is greater than the token of every earlier hold of this
// lock: see [Lock.Token]. It sends no request. The error is ErrInvalid for a lock without [Fenced], ErrNotHeld if the
// caller does not hold the lock, and ErrLockLost if the caller has lost it.
func (l *FairLock) Token(ctx context.Context) (int64, error) { return l.fencingToken(ctx) }

// fairLock is the record of a FairLock: the record of a Lock, and a queue with keys of its own.
type fairLock struct {
	recordLock // announce is the prefix of the channels: the field of the waiter to be notified follows
}

func (l *fairLock) BusyText(ttl, left, ago time.Duration) string {
	if ttl < 0 {
		return "other waiters are ahead in the queue"
	}
	return l.recordLock.BusyText(ttl, left, ago)
}

func (l *fairLock) Channel(a contract.Attempt) string {
	if a.NoWait {
		return ""
	}
	return l.announce + a.Field
}

// Grants returns the channel of all waiters of this Client: see internal/lua/queue.lua.
func (l *fairLock) Grants(a contract.Attempt) string {
	if a.NoWait {
		return ""
	}
	return l.announce + "client:" + l.client.ID()
}

func (l *fairLock) Acquire(a contract.Attempt) call {
	var asked any = 0
	if a.Delivery == contract.Push {
		asked = a.Asked
	}
	return l.call(fairAcquire, upToDefaults([]any{a.Field, milliseconds(a.Lease), l.waitTimeout(),
		l.announce, l.client.publishVerb()}, []any{a.HoldCount, !a.NoWait, asked, grantLeaseIn(a)},
		1, true, 0, 0))
}

func (l *fairLock) ReadReply(a contract.Attempt, r reply) (contract.Outcome, error) {
	g, err := contract.ParseOutcome(r)
	return g.WithStanding(r).WithEntry(a, record.FairHeartbeat), err
}

func (l *fairLock) Release(r contract.Release) call {
	return l.leave(r, false)
}

func (l *fairLock) RollBack(a contract.Attempt) call {
	return l.leave(a.AsRelease(), true)
}

// leave sets the hold count. If undo is set, the caller also leaves the queue.
func (l *fairLock) leave(r contract.Release, undo bool) call {
	return l.call(fairRelease, upToDefaults([]any{r.Field, l.waitTimeout(),
		l.announce, l.client.publishVerb()}, []any{r.HoldCount, r.Late, undo}, 0, false, false))
}

func (l *fairLock) Rename(r contract.Rename) call {
	return call{Script: lockRename, Keys: []string{l.keys[0], l.line}, Args: renameArgs(r, "", r.Late)}
}

func (l *fairLock) Force(seen ...string) call {
	return l.forced(fairForce, seen, l.waitTimeout(), l.announce, l.client.publishVerb())
}

func (l *fairLock) waitTimeout() int64 { return milliseconds(l.client.fairWaitTimeout) }
