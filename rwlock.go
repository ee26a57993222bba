package relock

// The read/write lock: many readers, or one writer.
//
// Rules: the read lock and the write lock are two locks that share a record, and each of them has holds of its own. A
// read hold has a lease of its own, or shares the lease of other readers of its process. A reader of this package lets
// waiting writers go first.

import (
	"context"
	"fmt"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/record"
)

var (
	readAcquire = record.Script("read_acquire")
	readRelease = record.Script("read_release")
	readRename  = record.Script("read_rename")
	readRenew   = record.Script("read_renew")
	readInspect = record.Script("read_inspect")

	writeAcquire = record.Script("write_acquire")
	writeRelease = record.Script("write_release")

	rwForce = record.Script("rw_force")
)

// errUpgrade is the error for a caller that holds the read lock and asks for the write lock.
var errUpgrade = fmt.Errorf(
	"%w: the caller holds the read lock and would wait for itself: release the read lock first, or acquire the write "+
		"lock before the read lock",
	ErrInvalid,
)

// errTooDeep is the error for an owner that holds the read lock record.MostHoldCount times and asks for it again.
var errTooDeep = fmt.Errorf(
	"%w: the caller already holds the read lock %d times, which is the limit for one owner",
	ErrInvalid,
	record.MostHoldCount,
)

// A RWLock is a reentrant lock that any number of readers or one writer can hold.
//
// The holder of the write lock may also acquire the read lock, and keeps it when it releases the write lock: this
// downgrades the lock. A reader cannot upgrade: the write lock returns ErrInvalid to it as soon as only its own read
// lock blocks it. If several readers ask for the write lock, all but one of them get that error. A goroutine that holds
// the read lock should not wait for another reader, because that reader may in turn be waiting behind a writer, as with
// [sync.RWMutex].
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
	key, o := c.key(name), newLockOptions(opts)
	keys := append([]string{key, record.PrefixName("relock_rwlock_writers", key)}, record.WritersLineKeys(key)...)
	announce := record.PrefixName("redisson_rwlock", key)
	rw := rwRecord{
		newRecordLock(c, name, TypeWrite, contract.Exclusive, o, announce, 3, keys...),
		record.SuffixName(key, ""),
	}
	r, w := &readLock{rw}, &writeLock{rw}
	w.traits.ID.Half, w.traits.Suffix = "write", record.WriteSuffix
	r.traits.ID.Half, r.traits.Type, r.granting = "read", string(TypeRead), ""
	r.traits.Admission, r.traits.Fenced = o.limits.OfReaders(), false
	r.traits.MaxHoldCount, r.traits.TooMany = record.MostHoldCount, errTooDeep
	r.traits.Counterpart, w.traits.Counterpart = w.traits.ID, r.traits.ID
	return &RWLock{
		read:  &ReadLock{newHandle(c, name, r, rw.keys, o.ofReader())},
		write: &WriteLock{newHandle(c, name, w, rw.keys, o)},
	}
}

// ofReader returns the options of the read lock, which has no tokens.
func (o lockOptions) ofReader() lockOptions {
	o.fenced = false
	return o
}

// Read returns the read lock, which many owners can hold at the same time.
func (l *RWLock) Read() *ReadLock { return l.read }

// Write returns the write lock, which one owner can hold while there are no readers.
func (l *RWLock) Write() *WriteLock { return l.write }

// Token returns the fencing token of the caller's hold, which is greater than the token of every earlier hold of the
// write lock: see [Lock.Token]. It sends no request. The error is ErrInvalid for a lock without [Fenced], ErrNotHeld if
// the caller does not hold the write lock, and ErrLockLost if the caller has lost it.
func (l *WriteLock) Token(ctx context.Context) (int64, error) { return l.fencingToken(ctx) }

// An rwRecord has the data that the read lock and the write lock share. Its keys are the lock, the writers that wait, their
// wait queue, and the token counter if the lock is fenced.
type rwRecord struct {
	recordLock
	leases string // the prefix of the keys of read leases
}

func (r *rwRecord) Force(seen ...string) call {
	return r.forced(rwForce, seen, r.traits.ID.Half, r.leases, r.announce, r.client.publishVerb())
}

type readLock struct{ rwRecord }

func (l *readLock) BusyText(_, _, _ time.Duration) string { // the reply does not tell which of the two
	return "another process (or Client) holds the write lock, or waits for it"
}

func (l *readLock) Acquire(a contract.Attempt) call {
	return call{
		Script: readAcquire,
		Keys:   l.keys[:4],
		Args:   upToDefaults([]any{a.Field, milliseconds(a.Lease), l.leases}, []any{a.HoldCount, a.Counterpart}, 1, ""),
	}
}

func (l *readLock) ReadReply(_ contract.Attempt, r reply) (contract.Outcome, error) {
	return contract.ParseOutcome(r)
}

func (l *readLock) Release(r contract.Release) call {
	return l.call(readRelease, upToDefaults(
		[]any{r.Field, l.leases, l.announce, l.client.publishVerb(), milliseconds(r.Share)},
		[]any{r.HoldCount, r.Late}, 0, false))
}

// RollBack sets the hold count back to what it was before the attempt.
func (l *readLock) RollBack(a contract.Attempt) call { return l.Release(a.AsRelease()) }

func (l *readLock) Renew(field string, lease time.Duration, exact bool) call {
	return call{Script: readRenew, Keys: l.keys[:1], Args: []any{field, milliseconds(lease), exact, l.leases}}
}

func (l *readLock) Rename(r contract.Rename) call {
	return call{Script: readRename, Keys: []string{l.keys[0], l.line}, Args: renameArgs(r, "", r.Splits, l.leases, r.Late)}
}

func (l *readLock) Inspect(field string) call {
	return call{Script: readInspect, Keys: l.keys[:1], Args: []any{field, l.leases}}
}

type writeLock struct{ rwRecord }

func (l *writeLock) Acquire(a contract.Attempt) call {
	life := record.WriterLife
	if a.NoWait {
		life = 0
	}
	return l.call(writeAcquire, upToDefaults(
		[]any{a.Field, milliseconds(a.Lease), l.leases, milliseconds(life), l.announce, l.client.publishVerb()},
		[]any{a.HoldCount, deliveryOf(a), a.Counterpart, askedIn(a), a.TokensWanted(l.traits.Fenced), grantLeaseIn(a)},
		1, contract.Defer, "", 0, 1, 0))
}

func (l *writeLock) ReadReply(a contract.Attempt, r reply) (contract.Outcome, error) {
	if r[0] == -2 {
		return contract.Outcome{}, errUpgrade
	}
	g, err := contract.ParseOutcome(r)
	return g.WithStanding(r).WithEntry(a, record.WriterHeartbeat), err
}

func (l *writeLock) Release(r contract.Release) call {
	return l.leave(r, false, "")
}

func (l *writeLock) RollBack(a contract.Attempt) call {
	return l.leave(a.AsRelease(), true, a.Counterpart)
}

// leave sets the hold count. If undo is set, the caller also stops waiting. The field of its read hold is readField.
func (l *writeLock) leave(r contract.Release, undo bool, readField string) call {
	return l.call(writeRelease, upToDefaults(
		[]any{r.Field, l.leases, l.announce, l.client.publishVerb(), milliseconds(r.Share)},
		[]any{r.HoldCount, r.Late, undo, readField}, 0, false, false, ""))
}

func (l *writeLock) Rename(r contract.Rename) call {
	return call{
		Script: lockRename,
		Keys:   []string{l.keys[0], l.line},
		Args:   renameArgs(r, record.WriteSuffix, r.Late),
	}
}

func (l *writeLock) Inspect(field string) call {
	if field != "" {
		field += record.WriteSuffix
	}
	return call{Script: inspectScript, Keys: l.keys[:1], Args: []any{field, "write"}}
}
