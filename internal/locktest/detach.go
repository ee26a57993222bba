package locktest

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/require"
)

// The locks whose holds can be detached, and those that exclude them. The permits are several of one hold.
var Detachable = append(slices.Clone(RecordLocks), LockKind{Name: "permits", One: newPermits, Rival: newPermits})

// Permits are all permits of a semaphore, which a hold has together.
type permits struct{ *relock.Semaphore }

const somePermits = 3

func newPermits(c *relock.Client, name string) relock.Locker {
	return permits{c.NewSemaphore(name, somePermits)}
}

func (p permits) Acquire(ctx context.Context) (*relock.Hold, error) {
	return p.AcquireN(ctx, somePermits)
}

func (p permits) TryAcquire(ctx context.Context, wait, lease time.Duration) (*relock.Hold, bool, error) {
	return p.TryAcquireN(ctx, somePermits, wait, lease)
}

// OnDetachable runs test for every lock type whose holds can be detached, on one server.
func OnDetachable(t *testing.T, test func(b *FaultBench, k LockKind)) {
	t.Parallel()
	server := testredis.Start(t)
	for _, k := range Detachable {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			test(NewFaultBenchOn(t, server), k)
		})
	}
}

// Renames matches the requests that detach or attach a hold.
var Renames = AnyOf(record.Script("lock_rename"), record.Script("fair_rename"), record.Script("read_rename"), record.Script("semaphore_rename"))

// Detach detaches h.
func (b *Bench) Detach(h *relock.Hold, keep time.Duration) (ticket string) {
	b.Helper()
	ticket, err := h.Detach(context.Background(), keep)
	b.Must(err)
	return ticket
}

// Attach attaches a hold.
func (b *Bench) Attach(c *relock.Client, ticket string) *relock.Hold {
	b.Helper()
	h, err := c.Attach(context.Background(), ticket)
	b.Must(err)
	return h
}

// Excludes checks that l, which h excludes, cannot be acquired.
func (b *Bench) Excludes(l relock.Locker) {
	b.Helper()
	h, ok, err := l.(relock.Acquirer).TryAcquire(context.Background(), 0, 0)
	b.Must(err)
	require.False(b, ok, "the lock is free: %v", h)
}

// Follows checks that l can be acquired, soon.
func (b *Bench) Follows(l relock.Locker) {
	b.Helper()
	b.Must(b.HoldFor(l, 0).Release(context.Background()))
}

// LeaseIn returns the remaining lease in Redis.
func (b *Bench) LeaseIn(c *relock.Client) time.Duration {
	b.Helper()
	i, err := c.Inspect(context.Background(), b.LockName)
	b.Must(err)
	require.Len(b, i.Holders, 1)
	return i.Holders[0].Remaining
}
