package locktest

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
)

// A RedBench is a bench with five servers.
type RedBench struct {
	*Bench
	Servers []*testredis.Server
}

// NodeLocks returns locks with the name of the bench, one on each server, each of a Client of its own.
func (b *RedBench) NodeLocks(opts ...relock.Option) (locks []relock.Locker) {
	for _, rdb := range b.Nodes {
		locks = append(locks, b.ClientOn(testredis.Client(b, rdb.Options().Addr), opts...).NewLock(b.LockName))
	}
	return locks
}

// Within requires that f takes no longer than most, on a machine that is not busy.
func (b *Bench) Within(most time.Duration, what string, f func()) {
	b.Helper()
	start := time.Now()
	f()
	assert.LessOrEqual(b, time.Since(start), testredis.Scale(start, most), what)
}

// Has returns on how many nodes the lock has a record.
func (b *RedBench) Has() int {
	n := 0
	for _, rdb := range b.Nodes {
		if len(b.keysOn(rdb)) > 0 {
			n++
		}
	}
	return n
}

// A SilentGuard has ended without a signal on Done, as after a pause of the process.
type SilentGuard struct {
	context.Context
	Over *atomic.Bool
}

func (g SilentGuard) Done() <-chan struct{} { return nil }

func (g SilentGuard) Err() error {
	if g.Over.Load() {
		return relock.ErrLockLost
	}
	return nil
}
