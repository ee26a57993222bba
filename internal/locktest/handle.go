package locktest

import (
	"context"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
)

// A Watched hold is one that another Client is to release by force.
type Watched struct {
	Guarded context.Context
	Forced  relock.Locker                   // of the other Client
	Release func(ctx context.Context) error // by the holder
}

// Watch has l held by a new owner.
func (b *Bench) Watch(l, forced relock.Locker, lock func(l relock.Locker, owner context.Context) error) Watched {
	b.Helper()
	owner := relock.ContextWithOwner(context.Background())
	b.Must(lock(l, owner))
	guarded, err := l.Guard(owner)
	b.Must(err)
	return Watched{guarded, forced, func(context.Context) error { return l.Unlock(owner) }}
}

// Hears waits until c has subscribed to its channel, which it does while it has an old hold.
func (b *Bench) Hears(c *relock.Client) {
	b.Helper()
	testredis.Await(b, "the holder listens", Soon, func() bool { return b.Hearers(record.ClientChannel(c.ID())) == 1 })
}

// Rarely is a watchdog timeout with which no hold is renewed while a test runs.
const Rarely = 10 * time.Minute
