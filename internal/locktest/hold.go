package locktest

import (
	"context"
	"time"

	"github.com/relock-go/relock"
	"github.com/stretchr/testify/require"
)

// Hold acquires l.
func (b *Bench) Hold(l relock.Locker) *relock.Hold {
	b.Helper()
	h, err := l.(relock.Acquirer).Acquire(context.Background())
	b.Must(err)
	return h
}

// HoldFor acquires l, which is free or soon will be, with a lease.
func (b *Bench) HoldFor(l relock.Locker, lease time.Duration) *relock.Hold {
	b.Helper()
	h, ok, err := l.(relock.Acquirer).TryAcquire(context.Background(), Soon, lease)
	b.Must(err)
	require.True(b, ok, "TryAcquire answers")
	return h
}

// Ends waits until ctx is done, which must be with this cause.
func (b *Bench) Ends(ctx context.Context, cause error) {
	b.Helper()
	Await(b, "the ctx of the hold ends", ctx.Done())
	b.MustBe(context.Cause(ctx), cause)
}
