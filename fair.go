package relock

// The fair lock: first come, first served over all processes.
//
// Rules: the queue in Redis is the order, so every goroutine has a place of its own in
// that queue. A waiter shows a sign of life with every attempt, and makes an attempt at
// least every heartbeat. The script that frees the lock grants it to the first waiter if that
// waiter listens, as the line of a plain lock does (line.go); it wakes any other first waiter. The
// waiters of a Client listen to one channel. A waiter behind a program that knows the waiter's own
// channel alone, one of Java or of an older version, listens there too.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/send"
)

const (
	fairHeartbeat = time.Second
	fairLife      = 4 * fairHeartbeat // a waiter without a sign of life for so long counts as dead
)

var (
	fairAcquire = script("fair_acquire")
	fairRelease = script("fair_release")
	fairForce   = script("fair_force")
)

// spareOfFair is the key of what waiters want: without it the first waiter is woken and asks.
var spareOfFair = []send.OptionalKey{{Key: 4}}

// A FairLock is a reentrant lock whose waiters acquire it in the order in which they called Lock, whichever process
// they are in.
//
// It costs more than a Lock: every waiter sends a heartbeat to Redis about once a second. A waiter that has crashed, or
// is cut off from Redis, loses its position after about 4s, or after 8s if no other call on the lock has reached Redis
// meanwhile. Until then an Unlock skips it if Redis knows that its connection is closed. If it is granted the lock
// before that is noticed, the other waiters are delayed by up to 5s. A waiter that gives up loses its position at once,
// and a live waiter keeps its position however long it waits. A waiter whose grant expires before its process learns of
// it waits again, at the end of the queue.
//
// TryLock with a wait of 0 acquires the lock only if no connected waiter is in the queue. If all waiters crash, the
// queue stays in Redis until the next call on the lock, or until it expires, which takes one [WithFairWaitTimeout] for
// each waiter and one more.
//
// Java services share the queue. A Java waiter is woken when its turn comes, and acquires the lock with a request of
// its own. One that has crashed is noticed after its own timeout, as in Redisson.
type FairLock struct{ handle }

// NewFairLock returns the fair lock with the given name. It sends no request. A bad name is reported by the methods of
// the lock.
func (c *Client) NewFairLock(name string, opts ...LockOption) *FairLock {
	key, o := c.key(name), newLockOptions(opts)
	keys := []string{
		key,
		prefixName("redisson_lock_queue", key),
		prefixName("redisson_lock_timeout", key),
		prefixName("relock_lock_alive", key),
		lineKey(key),
	}
	if o.fenced {
		keys = append(keys, tokenKey(key))
	}
	l := &fairLock{
		hashLock: hashLock{client: c, keys: keys, facts: facts{
			Traits: engine.Traits{Lock: engine.LockID{Name: key}, Given: name, Kind: string(TypeFair), Admits: engine.Uncoordinated, Tokens: o.fenced, Limit: o.Limits},
			line:   keys[4],
		}},
		announce: prefixName("redisson_lock__channel", key) + ":",
	}
	return &FairLock{newHandle(c, name, l, keys, o)}
}

// Token returns the fencing token of the caller's hold: see [Lock.Token].
func (l *FairLock) Token(ctx context.Context) (int64, error) { return l.fencingToken(ctx) }

// fairLock is the record of a FairLock: the record of a Lock, and a queue beside it.
type fairLock struct {
	hashLock
	announce string // prefix of the channels; the field of the waiter to be woken follows
}

func (l *fairLock) BusyText(ttl, left, ago time.Duration) string {
	if ttl < 0 {
		return "other waiters are ahead in the queue"
	}
	return l.facts.BusyText(ttl, left, ago)
}

func (l *fairLock) Channel(a engine.Attempt) string {
	if a.NoWait {
		return ""
	}
	return l.announce + a.Field
}

// grants is the channel of all waiters of this Client: see lua/queue.lua.
func (l *fairLock) Grants(a engine.Attempt) string {
	if a.NoWait {
		return ""
	}
	return l.announce + "client:" + l.client.ID()
}

func (l *fairLock) Acquire(a engine.Attempt) call {
	asked := a.Asked
	if a.Delivery != engine.Push {
		asked = 0
	}
	return l.call(fairAcquire, a.Field, milliseconds(a.Lease), a.HoldCount, l.waitTimeout(), milliseconds(fairLife),
		!a.NoWait, asked, l.Tokens)
}

func (l *fairLock) ReadReply(a engine.Attempt, r reply) (engine.Outcome, error) {
	g, err := engine.ParseOutcome(r)
	return g.WithStanding(r).WithEntry(a, fairHeartbeat), err
}

func (l *fairLock) Release(r engine.Release) call {
	return l.leave(r, false)
}

func (l *fairLock) RollBack(a engine.Attempt) call {
	return l.leave(a.AsRelease(), true)
}

// leave sets the hold count. If undo is set, the caller leaves the queue, too.
func (l *fairLock) leave(r engine.Release, undo bool) call {
	return l.call(fairRelease, r.Field, r.HoldCount, l.waitTimeout(), milliseconds(fairLife), r.Late, undo)
}

func (l *fairLock) Force() call { return l.call(fairForce, l.waitTimeout(), milliseconds(fairLife)) }

// call is a call of script, whose arguments end with how waiters are told.
func (l *fairLock) call(script *luaScript, args ...any) call {
	return call{Script: script, Keys: l.keys, Optional: spareOfFair, Args: append(args, l.announce, l.client.publish)}
}

func (l *fairLock) waitTimeout() int64 { return milliseconds(l.client.fairWaitTimeout) }
