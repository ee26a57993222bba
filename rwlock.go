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
	readAcquire = script("read_acquire", "hash zset", "clock", "readers")
	readRelease = script("read_release", "hash", "announce", "clock", "readers")
	readRenew   = script("read_renew", "hash", "clock", "readers")
	readInspect = script("read_inspect", "hash", "clock", "readers")
	readBundled = bundle(readAcquire, readRelease)

	writeAcquire = script("write_acquire", "hash zset string", "clock", "readers", "token")
	writeRelease = script("write_release", "hash zset", "announce", "clock", "readers", "writer")
	writeUndo    = script("write_undo", "hash zset", "announce", "clock", "readers", "writer")
	writeInspect = script("write_inspect", "hash")
	writeBundled = bundle(writeAcquire, writeUndo)

	rwForce = script("rw_force", "hash zset", "announce", "clock", "readers")
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

func (r *rwRecord) inspectHalf(ctx context.Context, what call) (state, error) {
	answer, err := r.client.send(ctx, what)
	return state{locked: answer[0] > 0, held: answer[1] > 0, ttl: fromMilliseconds(answer[2])}, err
}

func (r *rwRecord) forceHalf(ctx context.Context, half string) (bool, error) {
	answer, err := r.client.run(ctx, rwForce, r.keys, half, r.leases, r.announce, r.client.publish)
	return answer[0] == 1, err
}

type readLock struct{ rwRecord }

func (l *readLock) id() lockID       { return l.half("read") }
func (l *readLock) typ() LockType    { return TypeRead }
func (l *readLock) kin() lockID      { return l.half("write") }
func (l *readLock) passage() passage { return together }

func (l *readLock) takes(a attempt) call {
	return call{readAcquire, l.keys, []any{a.field, milliseconds(a.lease), a.level, l.leases, a.kin}}
}

// undoes sets the hold back to what it was before the attempt.
func (l *readLock) undoes(a attempt) call { return l.gives(a.field, a.level-1, false) }

// gives leaves so many levels of a hold. Strict, it refuses a key that holds something that no lock makes.
func (l *readLock) gives(field string, left int, strict bool) call {
	return call{readRelease, l.keys[:1], []any{field, left, l.leases, strict, l.announce, l.client.publish}}
}

func (l *readLock) bundled() bundledScript { return readBundled }

func (l *readLock) granted(_ attempt, r reply) (grant, error) { return heldBusyOrGone(r), nil }

func (l *readLock) acquire(ctx context.Context, a attempt) (grant, error) {
	return l.client.take(ctx, l, a)
}

func (l *readLock) release(ctx context.Context, field string, left int) (released, error) {
	return releasedBy(l.client.send(ctx, l.gives(field, left, true)))
}

func (l *readLock) renewal(field string, lease time.Duration, exact bool) call {
	return call{readRenew, l.keys[:1], []any{field, milliseconds(lease), exact, l.leases}}
}

func (l *readLock) abandon(ctx context.Context, a attempt) (bool, error) {
	return l.client.undo(ctx, l, a)
}

func (l *readLock) inspect(ctx context.Context, field string) (state, error) {
	return l.inspectHalf(ctx, call{readInspect, l.keys[:1], []any{field, l.leases}})
}

func (l *readLock) force(ctx context.Context) (bool, error) { return l.forceHalf(ctx, "read") }

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
	return call{writeAcquire, l.keys, []any{a.field, milliseconds(a.lease), a.level, l.leases, a.kin, milliseconds(life)}}
}

func (l *writeLock) undoes(a attempt) call {
	return call{writeUndo, l.keys[:2], []any{a.field, a.level - 1, l.leases, a.kin, l.announce, l.client.publish}}
}

func (l *writeLock) bundled() bundledScript { return writeBundled }

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
	return releasedBy(l.client.run(ctx, writeRelease, l.keys[:2], field, left, l.leases, l.announce, l.client.publish))
}

func (l *writeLock) tokens() bool { return len(l.keys) > 2 }

func (l *writeLock) renewal(field string, lease time.Duration, exact bool) call {
	return renewHash(l.keys[0], field+":write", lease, exact)
}

func (l *writeLock) abandon(ctx context.Context, a attempt) (bool, error) {
	return l.client.undo(ctx, l, a)
}

func (l *writeLock) inspect(ctx context.Context, field string) (state, error) {
	return l.inspectHalf(ctx, call{writeInspect, l.keys[:1], []any{field}})
}

func (l *writeLock) force(ctx context.Context) (bool, error) { return l.forceHalf(ctx, "write") }

// suffixName is Redisson's way to derive a key from a name by what follows it.
func suffixName(name, suffix string) string {
	if strings.Contains(name, "{") {
		return name + ":" + suffix
	}
	return "{" + name + "}:" + suffix
}
