package main

// The time from the call of Unlock in one client until Lock returns in the other.
//
// Rules: the other client has waited for long enough to be asleep, and for a random time, so that pollers are met at
// any point of their pause. Round trips are those of a PING over the same connection, before and after. The longest
// hundredth is that of all rounds together.

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/relock-go/relock/bench/stats"
)

type handoff struct{ trip time.Duration }

// A handed has the results of a slice of hand-offs.
type handed struct {
	Waits []time.Duration
	Stuck int
}

func (h handoff) slice(ctx context.Context, t turn) (sample, error) {
	work := h.work
	if t.program != nil {
		work = t.program.handoffs(h)
	}
	return inRoundTrips(ctx, t, work, 2) // each of the two has a critical section
}

// inRoundTrips returns the sample of work whose waits are compared with the round trips before and after it. For each
// wait there is a number of critical sections.
func inRoundTrips(
	ctx context.Context,
	t turn,
	do func(context.Context, turn) (handed, error),
	sections int,
) (sample, error) {
	began, err := t.server.roundTrip(ctx)
	if err != nil {
		return nil, err
	}
	got, did, err := watched(ctx, t, do)
	if err != nil {
		return nil, err
	}
	ended, err := t.server.roundTrip(ctx)
	if err != nil {
		return nil, err
	}
	return got.sum(t, (began+ended)/2, did, sections), nil
}

// sum returns the sample of a slice with a number of critical sections for each wait.
func (got handed) sum(t turn, trip time.Duration, did work, sections int) sample {
	var waits stats.Histogram
	for _, wait := range got.Waits {
		waits.Add(wait)
		t.handed.Add(time.Duration(float64(oneTrip) * wait.Seconds() / trip.Seconds()))
	}
	return sample{
		handedOff:  waits.Quantile(0.5).Seconds() / trip.Seconds(),
		handedTail: float64(t.handed.Quantile(0.99)) / float64(oneTrip),
		p50:        waits.Quantile(0.5).Seconds(),
		longest:    waits.Max().Seconds(),
		trips:      trip.Seconds(),
		requests:   did.requests(t.kind.name) / float64(sections*len(got.Waits)),
		handoffs:   float64(t.handed.Count()),
		stuckCount: float64(got.Stuck),
	}
}

// oneTrip returns one round trip from a histogram of them.
const oneTrip = time.Second

// pause is the minimum time for which the other client waits.
func (h handoff) pause() time.Duration { return 4*h.trip + 2*time.Millisecond }

func (h handoff) work(ctx context.Context, t turn) (handed, error) {
	holder, waiter := t.peers[0], t.peers[1]
	return handedFor(ctx, t.took, func() (time.Duration, error) {
		holder, waiter = waiter, holder
		return h.once(ctx, holder, waiter)
	})
}

// handedFor repeats once for a while. A wait that was given up counts as one that is not served.
func handedFor(
	ctx context.Context,
	took time.Duration,
	once func() (time.Duration, error),
) (got handed, err error) {
	for end := time.Now().Add(took); time.Now().Before(end); {
		wait, err := once()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			got.Stuck++
		} else if err != nil {
			return handed{}, err
		}
		got.Waits = append(got.Waits, wait)
	}
	return got, nil
}

func (h handoff) once(ctx context.Context, holder, waiter peer) (time.Duration, error) {
	release, err := holder.Acquire(ctx, "bench")
	if err != nil {
		return 0, err
	}
	ctx, giveUp := context.WithTimeout(ctx, patience)
	defer giveUp()
	type got struct {
		at  time.Time
		err error
	}
	other := make(chan got, 1)
	go func() {
		release, err := waiter.Acquire(ctx, "bench")
		at := time.Now()
		if err == nil {
			err = release()
		}
		other <- got{at, err}
	}()
	time.Sleep(h.pause() + rand.N(10*time.Millisecond))
	called := time.Now()
	if err := release(); err != nil {
		return 0, err
	}
	g := <-other
	return g.at.Sub(called), g.err
}
