package main

// Callers that leave: what waiters that give up cost those that stay.
//
// Rules: the same callers compete for one name in both rows, as fast as they can. In the row of relock some of their
// calls are canceled while they wait, and the caller calls again at once; in the other row none is. So their ratio is
// the price of leaving, and not that of a longer queue. A critical section counts, whichever caller has it. After the
// end of a slice no caller leaves, so that every caller is served.

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// noneLeaves is the kind whose callers stay in these workloads.
const noneLeaves = "relock, none leaves"

// A quitting crowd is a crowd some of whose calls are canceled while they wait.
type quitting struct {
	crowd
	oneIn    int           // one call in so many stays until it holds the lock
	within   time.Duration // a call that leaves waits for a random time, at most this long
	together bool          // instead, all calls that leave and wait at this time are canceled at once, again and again
}

func (q quitting) slice(ctx context.Context, t turn) (sample, error) {
	if t.kind.name == noneLeaves {
		return q.crowd.slice(ctx, t)
	}
	l := &leaving{quitting: q, end: time.Now().Add(t.took)}
	ctx, stop := context.WithCancel(ctx)
	var bursts sync.WaitGroup
	if q.together {
		l.begin(ctx)
		bursts.Go(func() { l.cancelTogether(ctx) })
	}
	peers := t.peers
	t.peers = make([]peer, len(peers))
	for i, p := range peers {
		t.peers[i] = leaver{p, l}
	}
	got, err := q.crowd.slice(ctx, t)
	stop()
	bursts.Wait()
	if err != nil {
		return nil, err
	}
	got[leftEach] = l.perSection(got[rate] * t.took.Seconds())
	return got, nil
}

// The leaving is what the callers of one slice share.
type leaving struct {
	quitting
	end   time.Time
	left  atomic.Int64 // number of calls that were canceled while they waited
	burst atomic.Pointer[burst]
}

// perSection returns the number of canceled calls for each of a number of critical sections.
func (l *leaving) perSection(sections float64) float64 {
	return float64(l.left.Load()) / max(1, sections)
}

// A burst is the calls that are canceled at the same time.
type burst struct {
	ctx    context.Context
	cancel context.CancelFunc
}

// begin makes the calls from now on belong to a new burst, and returns the one before.
func (l *leaving) begin(ctx context.Context) *burst {
	ctx, cancel := context.WithCancel(ctx)
	return l.burst.Swap(&burst{ctx, cancel})
}

// cancelTogether cancels one burst after the other until the slice is over, and then the last one, which stays: a call
// that finds it is canceled at once.
func (l *leaving) cancelTogether(ctx context.Context) {
	ticker := time.NewTicker(l.within)
	defer ticker.Stop()
	for time.Now().Before(l.end) && ctx.Err() == nil {
		select {
		case <-ticker.C:
			l.begin(ctx).cancel()
		case <-ctx.Done():
		}
	}
	l.burst.Load().cancel()
}

// limit returns the context of a call that leaves, and a function that ends its use.
func (l *leaving) limit(ctx context.Context) (context.Context, func()) {
	if l.together {
		return l.burst.Load().ctx, func() {}
	}
	ctx, leave := context.WithCancel(ctx)
	timer := time.AfterFunc(rand.N(l.within), leave)
	return ctx, func() { timer.Stop(); leave() }
}

// A leaver is a peer whose calls leave.
type leaver struct {
	peer
	*leaving
}

func (l leaver) Acquire(ctx context.Context, name string) (func() error, error) {
	for rand.N(l.oneIn) > 0 && time.Now().Before(l.end) {
		trying, done := l.limit(ctx)
		release, err := l.peer.Acquire(trying, name)
		gone := trying.Err() != nil
		done() // a release does not look at the cancellation of its context
		if err == nil || !gone || ctx.Err() != nil {
			return release, err
		}
		l.left.Add(1)
	}
	return l.peer.Acquire(ctx, name)
}
