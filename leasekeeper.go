package relock

// The explicit leases of the steps of a MultiLock that are held while it waits for the other steps.
//
// Rules: no request shortens the lease of a lock that is held. So a short lease is extended again and again until all
// locks are held; startLeases then makes it the lease that the caller has asked for, if that is longer.

import (
	"context"
	"slices"
	"sync"
	"time"
)

// leastKept is the least lease in Redis of a step that waits for later ones, if the explicit lease is shorter: so that it
// need not be extended all the time. A process that crashes then leaves its locks for that long.
const leastKept = 2 * time.Second

// A leaseKeeper extends the explicit leases of the steps of a MultiLock that are acquired, while the caller waits for
// the other steps. It never shortens a lease. Its goroutine ends with end.
type leaseKeeper struct {
	stop func()

	mu    sync.Mutex // guards steps; no other mutex is locked while it is held
	steps []step     // those that were acquired; nothing extends the lease of a foreign Locker
}

// keepLeases returns a leaseKeeper for steps with this lease, of the owner of ctx. If there is nothing to extend, because
// the watchdog does so or because there is one step only, it keeps nothing. The caller must call end.
func (l *multi) keepLeases(ctx context.Context, lease time.Duration) *leaseKeeper {
	k := &leaseKeeper{stop: func() {}}
	if lease == 0 || len(l.steps) == 1 {
		return k
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	l.client.engine().Spawn(func() {
		defer close(ended)
		k.run(ctx, max(lease, leastKept))
	})
	k.stop = func() {
		cancel()
		<-ended
	}
	return k
}

// end ends the goroutine of k, and waits for that.
func (k *leaseKeeper) end() { k.stop() }

// add adds a step that was acquired.
func (k *leaseKeeper) add(s step) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.engine != nil {
		k.steps = append(k.steps, s)
	}
}

func (k *leaseKeeper) acquired() []step {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.steps)
}

// run extends the leases at every third of their length until ctx is done. An error is that of a lock that was lost,
// which its guard reports, or of a request that is repeated after the next third.
func (k *leaseKeeper) run(ctx context.Context, length time.Duration) {
	every := time.NewTicker(length / 3)
	defer every.Stop()
	for {
		select {
		case <-every.C:
		case <-ctx.Done():
			return
		}
		by := time.Now().Add(length / 3)
		forEach(k.acquired(), func(_ int, s step) error {
			return s.keepLease(ctx, length, by)
		})
	}
}
