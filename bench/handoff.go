package main

// From Unlock being called in one client until Lock returns in the other.
//
// Rules: the other one has waited for long enough to sleep, and for a time that
// is random, so that pollers are met at any point of their pause.

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/relock-go/relock/bench/stats"
)

type handoff struct{ trip time.Duration }

func (h handoff) slice(ctx context.Context, t turn) (sample, error) {
	before, err := t.server.roundTrip(ctx)
	if err != nil {
		return nil, err
	}
	var waits stats.Histogram
	stuck := 0
	holder, waiter := t.peers[0], t.peers[1]
	for end := time.Now().Add(t.took); time.Now().Before(end); holder, waiter = waiter, holder {
		d, err := h.once(ctx, holder, waiter)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			stuck++
		} else if err != nil {
			return nil, err
		}
		waits.Add(d)
	}
	after, err := t.server.roundTrip(ctx)
	if err != nil {
		return nil, err
	}
	trip := (before + after).Seconds() / 2
	return sample{
		handedOff:  waits.Quantile(0.5).Seconds() / trip,
		handedTail: waits.Quantile(0.99).Seconds() / trip,
		p50:        waits.Quantile(0.5).Seconds(),
		longest:    waits.Max().Seconds(),
		trips:      trip,
		stuckCount: float64(stuck),
	}, nil
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
	time.Sleep(4*h.trip + 2*time.Millisecond + rand.N(10*time.Millisecond))
	called := time.Now()
	if err := release(); err != nil {
		return 0, err
	}
	g := <-other
	return g.at.Sub(called), g.err
}
