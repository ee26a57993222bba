package relock

// The read/write lock: many readers, or one writer.
//
// Rules: the halves are two locks that share a record, each with holds of its own;
// a read hold has leases of its own, or shares those of others of its process; a relock
// reader lets waiting writers go first.

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// writerLife is how long a sign that a writer waits holds off readers; it is renewed with every attempt.
const (
	writerHeartbeat = time.Second
	writerLife      = 3 * writerHeartbeat
)

var (
	rwScript  = script("rwlock", "hash zset string", "announce", "token")
	rwBundled = bundle(rwScript, rwScript)
)

// errUpgrade ends a write lock whose caller is in its own way.
var errUpgrade = fmt.Errorf("%w: the caller holds the read lock and would wait for itself: unlock it first, or take the write lock first and the read lock inside", ErrInvalid)

// A RWLock is a reentrant lock that many readers hold together, or one writer.
// Whoever holds the write lock may take the read lock too, and keeps it when it
// unlocks the write lock: a downgrade. The other way round does not work: a reader
// that asks for the write lock gets ErrInvalid once nobody but itself is in its way.
//
// Readers of this package let a waiting writer go first, so that readers that come
// without a pause do not keep it out; Java readers cannot be made to. After each
// writer, readers have the same chance as the next one.
//
// When several readers ask for the write lock, all but one of them are refused. A
// goroutine that reads should not wait for another reader: a writer may be in
// line between them, as with sync.RWMutex.
//
// Readers of one Client that the watchdog keeps share a record in Redis, one reader
// there, which the last of them gives back: see [WithHandoverSlice].
//
// Redisson: getReadWriteLock.
type RWLock struct {
	read  *ReadLock
	write *WriteLock
}

// A ReadLock is the half of a RWLock that many hold together. Every hold has a
// lease of its own, or one with others of its Client. IsLocked, TTL and ForceUnlock are about all readers.
//
// Redisson: RReadWriteLock.readLock.
type ReadLock struct{ handle }

// A WriteLock is the half of a RWLock that one holds alone.
//
// Redisson: RReadWriteLock.writeLock.
type WriteLock struct{ handle }

// NewRWLock returns the read/write lock called name. It sends nothing; a bad name
// is reported by the methods. Fenced is for the write lock.
//
// Redisson: getReadWriteLock.
func (c *Client) NewRWLock(name string, opts ...LockOption) *RWLock {
	o := newLockOptions(opts)
	rw := rwRecord{
		client:   c,
		announce: prefixName("redisson_rwlock", name),
		leases:   suffixName(name, ""),
		keys:     []string{name, prefixName("relock_rwlock_writers", name)},
	}
	all := rw.keys
	if o.fenced {
		all = append(all[:2:2], tokenKey(name))
	}
	return &RWLock{
		read:  &ReadLock{newHandle(c, &readLock{rw}, all, lockOptions{})},
		write: &WriteLock{newHandle(c, &writeLock{rwRecord: rw, keys: all}, all, o)},
	}
}

// Read is the half that many hold together.
func (l *RWLock) Read() *ReadLock { return l.read }

// Write is the half that one holds alone.
func (l *RWLock) Write() *WriteLock { return l.write }

// Token is the fencing token of the caller's hold: see [Lock.Token].
func (l *WriteLock) Token(ctx context.Context) (int64, error) { return l.fencingToken(ctx) }

// rwRecord is what the halves share.
type rwRecord struct {
	client   *Client
	keys     []string
	announce string
	leases   string // what the keys of read leases begin with
}

func (r *rwRecord) half(half string) lockID { return lockID{r.keys[0], half} }
func (r *rwRecord) channel(attempt) string  { return r.announce }
func (r *rwRecord) bundled() bundledScript  { return rwBundled }

func (r *rwRecord) call(keys []string, verb, field string, level int, lease time.Duration, kin string, life time.Duration) call {
	return call{rwScript, keys, []any{verb, r.announce, r.leases, field, level, milliseconds(lease), kin, milliseconds(life), r.client.publish}}
}

func (r *rwRecord) run(ctx context.Context, verb, field string, level int) (reply, error) {
	return r.client.send(ctx, r.call(r.keys, verb, field, level, 0, "", 0))
}

func (r *rwRecord) done(ctx context.Context, verb, field string, level int) (bool, error) {
	answer, err := r.run(ctx, verb, field, level)
	return answer[0] == 1, err
}

func (r *rwRecord) inspectHalf(ctx context.Context, verb, field string) (state, error) {
	answer, err := r.run(ctx, verb, field, 0)
	return state{locked: answer[0] > 0, held: answer[1] > 0, ttl: fromMilliseconds(answer[2])}, err
}

type readLock struct{ rwRecord }

func (l *readLock) id() lockID       { return l.half("read") }
func (l *readLock) typ() LockType    { return TypeRead }
func (l *readLock) kin() lockID      { return l.half("write") }
func (l *readLock) passage() passage { return together }

func (l *readLock) takes(a attempt) call {
	return l.call(l.keys, "read", a.field, a.level, a.lease, a.kin, 0)
}

func (l *readLock) undoes(a attempt) call {
	return l.call(l.keys, "abandon-read", a.field, a.level-1, 0, "", 0)
}

func (l *readLock) granted(_ attempt, r reply) (grant, error) { return heldBusyOrGone(r), nil }

func (l *readLock) acquire(ctx context.Context, a attempt) (grant, error) {
	return l.client.take(ctx, l, a)
}

func (l *readLock) release(ctx context.Context, field string, left int) (released, error) {
	return releasedBy(l.run(ctx, "unread", field, left))
}

func (l *readLock) renewal(field string, lease time.Duration, exact bool) call {
	verb := "renew-read"
	if exact {
		verb = "settle-read"
	}
	return l.call(l.keys[:1], verb, field, 0, lease, "", 0) // a script of one key goes on while its slot moves
}

func (l *readLock) abandon(ctx context.Context, a attempt) (bool, error) {
	return l.client.undo(ctx, l, a)
}

func (l *readLock) inspect(ctx context.Context, field string) (state, error) {
	return l.inspectHalf(ctx, "inspect-read", field)
}

func (l *readLock) force(ctx context.Context) (bool, error) {
	return l.done(ctx, "force-read", "", 0)
}

type writeLock struct {
	rwRecord
	keys []string // with the token counter of a fenced lock
}

func (l *writeLock) id() lockID       { return l.half("write") }
func (l *writeLock) typ() LockType    { return TypeWrite }
func (l *writeLock) kin() lockID      { return l.half("read") }
func (l *writeLock) passage() passage { return oneByOne }

func (l *writeLock) takes(a attempt) call {
	life := writerLife
	if a.once {
		life = 0
	}
	return l.call(l.keys, "write", a.field, a.level, a.lease, a.kin, life)
}

func (l *writeLock) undoes(a attempt) call {
	return l.call(l.keys, "abandon-write", a.field, a.level-1, 0, a.kin, 0)
}

func (l *writeLock) granted(a attempt, r reply) (grant, error) {
	if r[0] == -2 {
		return grant{}, errUpgrade
	}
	return heldBusyOrGone(r).standing(a, writerHeartbeat), nil
}

func (l *writeLock) acquire(ctx context.Context, a attempt) (grant, error) {
	return l.client.take(ctx, l, a)
}

func (l *writeLock) release(ctx context.Context, field string, left int) (released, error) {
	return releasedBy(l.run(ctx, "unwrite", field, left))
}

func (l *writeLock) tokens() bool { return len(l.keys) > 2 }

func (l *writeLock) renewal(field string, lease time.Duration, exact bool) call {
	return renewHash(l.keys[0], field+":write", lease, exact)
}

func (l *writeLock) abandon(ctx context.Context, a attempt) (bool, error) {
	return l.client.undo(ctx, l, a)
}

func (l *writeLock) inspect(ctx context.Context, field string) (state, error) {
	return l.inspectHalf(ctx, "inspect-write", field)
}

func (l *writeLock) force(ctx context.Context) (bool, error) {
	return l.done(ctx, "force-write", "", 0)
}

// suffixName is Redisson's way to derive a key from a name by what follows it.
func suffixName(name, suffix string) string {
	if strings.Contains(name, "{") {
		return name + ":" + suffix
	}
	return "{" + name + "}:" + suffix
}
