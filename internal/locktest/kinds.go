package locktest

// The kinds of locks, and Lockers that are not of package relock.

import (
	"context"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/record"
)

// A LockMaker creates the lock under test.
type LockMaker func(c *relock.Client, name string) relock.Locker

// A LockKind is a type of lock, and what the tests for every type have to know about it.
type LockKind struct {
	Name       string
	One, Rival LockMaker // with one name they exclude one another

	Record string // the Redis type of the key of the lock
	Shared bool   // owners of one do not exclude one another
	// The sorted set of the holds and when their leases expire; nil if both are in the record.
	Holds func(name string) string
	// Additional keys of a hold expire with its lease if the record was replaced.
	Expires bool
	// Whether a free lock of this type leaves key; nil if it leaves nothing.
	Leaves func(rdb redis.UniversalClient, key string) bool
}

// RecordLocks are the lock types that have a record in Redis.
var RecordLocks = []LockKind{
	{Name: "lock", One: NewPlainLock, Rival: NewPlainLock, Record: "hash"},
	{Name: "fenced", One: NewFencedLock, Rival: NewFencedLock, Record: "hash"},
	{Name: "fair", One: NewFairLock, Rival: NewFairLock, Record: "hash"},
	{Name: "read", One: NewReadLock, Rival: NewWriteLock, Record: "hash", Shared: true, Expires: true},
	{Name: "write", One: NewWriteLock, Rival: NewReadLock, Record: "hash"},
	{
		Name:    "semaphore",
		One:     NewSemaphore,
		Rival:   NewSemaphore,
		Record:  "string",
		Holds:   record.PermitsKey,
		Expires: true,
		Leaves:  OnlyFree,
	},
}

// KindCalled returns the row of recordLocks with this name.
func KindCalled(name string) LockKind {
	for _, k := range RecordLocks {
		if k.Name == name {
			return k
		}
	}
	panic("bug: no lock type is called " + name)
}

// LockKinds are the lock types that have a record, one more form of a writer, and a lock that consists of others.
var LockKinds = append(slices.Clone(RecordLocks),
	LockKind{Name: "fenced write", One: newFencedWriteLock, Rival: newFencedWriteLock, Record: "hash"},
	LockKind{Name: "multi", One: newMixedMultiLock, Rival: newMixedMultiLock, Record: "hash"},
)

func newFencedWriteLock(c *relock.Client, name string) relock.Locker {
	return c.NewRWLock(name, relock.Fenced()).Write()
}

func newMixedMultiLock(c *relock.Client, name string) relock.Locker {
	return c.NewMultiLock(c.NewLock(name+"-before"), c.NewLock(name), c.NewRWLock(name+"-after").Write())
}

func NewReadLock(c *relock.Client, name string) relock.Locker { return c.NewRWLock(name).Read() }

func NewWriteLock(c *relock.Client, name string) relock.Locker { return c.NewRWLock(name).Write() }

// NewMultiLock returns a MultiLock with locks of every kind, acquired in several steps.
func NewMultiLock(c *relock.Client, name string) relock.Locker {
	return c.NewMultiLock(
		c.NewRWLock(name+"-r").Read(),
		c.NewLock(name+"-second"),
		c.NewFairLock(name+"-fair"),
		c.NewRWLock(name+"-w").Write(),
		c.NewMultiLock(c.NewLock(name), c.NewLock(name+"-fenced", relock.Fenced())),
	)
}

// A StubLocker is a foreign Locker: it wraps a Locker of the package, and overrides some answers.
type StubLocker struct {
	relock.Locker
	OnTryLock func(ctx context.Context, wait, lease time.Duration) (bool, error)
	OnUnlock  func(ctx context.Context) error
	OnGuard   func(ctx context.Context) (context.Context, error)
}

func (s StubLocker) Guard(ctx context.Context) (context.Context, error) {
	if s.OnGuard != nil {
		return s.OnGuard(ctx)
	}
	return s.Locker.Guard(ctx)
}

func (s StubLocker) TryLock(ctx context.Context, wait, lease time.Duration) (bool, error) {
	if s.OnTryLock != nil {
		return s.OnTryLock(ctx, wait, lease)
	}
	return s.Locker.TryLock(ctx, wait, lease)
}

func (s StubLocker) Unlock(ctx context.Context) error {
	err := s.Locker.Unlock(ctx)
	if s.OnUnlock != nil {
		err = s.OnUnlock(ctx)
	}
	return err
}
