package relock

// The read/write lock: many readers, or one writer.
//
// Rules: the read lock and the write lock are two locks that share a record, and each of them has holds of its own. A
// read hold has a lease of its own, or shares the lease of other readers of its process. A reader of this package lets
// waiting writers go first.

import (
	"context"

	"github.com/relock-go/relock/internal/record"
)

// A RWLock is a reentrant lock that any number of readers or one writer can hold.
//
// The holder of the write lock may also acquire the read lock, and keeps it when it releases the write lock: this
// downgrades the lock. A reader cannot upgrade: the write lock returns ErrInvalid to it as soon as only its own read
// lock blocks it. A goroutine that holds the read lock should not wait for another reader, because that reader may in
// turn be waiting behind a writer, as with [sync.RWMutex].
//
// Readers of this package let a waiting writer go first, so that a steady stream of readers does not starve it. Java
// readers do not. After a writer has released the lock, readers have the same chance as the next writer. The writers of
// several processes have a wait queue in Redis, as for a [Lock].
//
// An owner can hold the read lock at most 10,000 times at once; the next Lock returns ErrInvalid. At most 10,000
// readers hold the lock in Redis, and others wait. These limits exist because a script blocks Redis while it runs. If
// Java readers exceed them, the methods of this package return ErrNotALock until those readers have released the lock.
// Readers of one Client whose lease is renewed automatically share one entry in Redis, and count as one reader there.
type RWLock struct {
	read  *ReadLock
	write *WriteLock
}

// A ReadLock is the read lock of a [RWLock]. Its IsLocked, TTL and ForceUnlock apply to all readers. It has no fencing
// token.
type ReadLock struct{ handle }

// A WriteLock is the write lock of a [RWLock].
type WriteLock struct{ handle }

// NewRWLock returns the read/write lock with the given name. It sends no request. A name or an option that is not valid
// is reported by the methods of the lock, as ErrInvalid. The option [Fenced] applies to the write lock, and the other
// options to both.
func (c *Client) NewRWLock(name string, opts ...LockOption) *RWLock {
	o := newLockOptions(name, "", opts)
	r, w := record.NewReadWrite(c.wire(), o.traits)
	return &RWLock{&ReadLock{newHandle(c, r, o)}, &WriteLock{newHandle(c, w, o)}}
}

// Read returns the read lock, which many owners can hold at the same time.
func (l *RWLock) Read() *ReadLock { return l.read }

// Write returns the write lock, which one owner can hold while there are no readers.
func (l *RWLock) Write() *WriteLock { return l.write }

// Token returns the fencing token of the caller's hold, which is greater than the token of every earlier hold of the
// write lock: see [Lock.Token]. It sends no request. The error is ErrInvalid for a lock without [Fenced], ErrNotHeld if
// the caller does not hold the write lock, and ErrLockLost if the caller has lost it.
func (l *WriteLock) Token(ctx context.Context) (int64, error) { return l.fencingToken(ctx) }
