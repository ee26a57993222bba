package relock

// The fair lock: first come, first served over all processes.
//
// Rules: the queue in Redis is the order, so every goroutine stands in it by
// itself; whoever stands there shows a sign of life with every attempt, and makes
// one at least every heartbeat.

import (
	"context"
	"time"
)

const (
	fairHeartbeat = time.Second
	fairLife      = 4 * fairHeartbeat // without one for so long, a waiter counts as dead
)

var (
	fairAcquire = script("fair_acquire", "hash list zset zset string", "announce", "clock", "queue", "token")
	fairRelease = script("fair_release", "hash list zset zset", "announce", "clock", "queue")
	fairUndo    = script("fair_undo", "hash list zset zset", "announce", "clock", "queue")
	fairForce   = script("fair_force", "hash list zset zset", "announce", "clock", "queue")
)

// A FairLock is a reentrant lock whose waiters get it in the order in which they
// came, whichever process they are in. It costs more than a Lock: every waiter
// asks Redis by itself, about once a second, to show that it lives. One that has
// crashed, or is cut off from Redis, loses its place after about four seconds (eight
// where nobody else was heard of either), one that gives up at once; one that lives
// keeps it however long it waits. TryLock with wait 0 gets the lock only when nobody
// waits. If all who wait crash, the queue stays in Redis until the next call.
//
// Redisson: getFairLock, whose queue it shares. A crashed Java waiter is noticed
// as Redisson does, after its timeout.
type FairLock struct{ handle }

// NewFairLock returns the fair lock called name. It sends nothing; a bad name is
// reported by the methods.
//
// Redisson: getFairLock.
func (c *Client) NewFairLock(name string, opts ...LockOption) *FairLock {
	o := newLockOptions(opts)
	l := &fairLock{
		client:   c,
		announce: prefixName("redisson_lock__channel", name) + ":",
		keys: []string{
			name,
			prefixName("redisson_lock_queue", name),
			prefixName("redisson_lock_timeout", name),
			prefixName("relock_lock_alive", name),
		},
	}
	if o.fenced {
		l.keys = append(l.keys, tokenKey(name))
	}
	return &FairLock{newHandle(c, l, l.keys, o)}
}

// Token is the fencing token of the caller's hold: see [Lock.Token].
func (l *FairLock) Token(ctx context.Context) (int64, error) { return l.fencingToken(ctx) }

// fairLock is the record of a FairLock: that of a Lock, and a queue beside it.
type fairLock struct {
	client   *Client
	keys     []string
	announce string // and the field of whoever is woken
}

func (l *fairLock) id() lockID       { return lockID{name: l.keys[0]} }
func (l *fairLock) typ() LockType    { return TypeFair }
func (l *fairLock) kin() lockID      { return lockID{} }
func (l *fairLock) passage() passage { return eachForItself }

func (l *fairLock) channel(a attempt) string {
	if a.once {
		return ""
	}
	return l.announce + a.field
}

func (l *fairLock) acquire(ctx context.Context, a attempt) (grant, error) {
	r, err := l.client.attemptOne(ctx, call{fairAcquire, l.keys, []any{a.field, milliseconds(a.lease), a.level,
		milliseconds(l.client.fairWaitTimeout), milliseconds(fairLife), !a.once, l.announce, l.client.publish}})
	if err != nil {
		return grant{}, err
	}
	return heldBusyOrGone(r).standing(a, fairHeartbeat), nil
}

func (l *fairLock) release(ctx context.Context, field string, left int) (released, error) {
	return releasedBy(l.client.run(ctx, fairRelease, l.keys[:4], field, left, milliseconds(fairLife), l.announce, l.client.publish))
}

func (l *fairLock) renewal(field string, lease time.Duration, exact bool) call {
	return renewHash(l.keys[0], field, lease, exact)
}

func (l *fairLock) abandon(ctx context.Context, a attempt) (bool, error) {
	r, err := l.client.run(ctx, fairUndo, l.keys[:4], a.field, a.level-1,
		milliseconds(l.client.fairWaitTimeout), milliseconds(fairLife), l.announce, l.client.publish)
	return r[0] == 1, err
}

func (l *fairLock) inspect(ctx context.Context, field string) (state, error) {
	return inspectHash(ctx, l.client, l.keys[0], field)
}

func (l *fairLock) force(ctx context.Context) (bool, error) {
	r, err := l.client.run(ctx, fairForce, l.keys[:4], milliseconds(fairLife), l.announce, l.client.publish)
	return r[0] == 1, err
}
