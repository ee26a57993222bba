package main

// The time from the call of Unlock of a writer until all the readers that wait hold the lock.
//
// Rules: those of handoff.go. Each reader is in a process of its own, so that none of them can share the request of
// another one. It keeps the lock until all have it, so that no release takes part. The time is that of the last one.

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// A woken is a number of waiting readers, and one more process with the writer.
type woken struct {
	trip    time.Duration
	readers int
}

func (w woken) slice(ctx context.Context, t turn) (sample, error) {
	work := w.work
	if t.program != nil {
		work = t.program.woken(w)
	}
	return inRoundTrips(ctx, t, work, w.readers+1)
}

// pause is the minimum time for which the readers wait. It is long, because a reader of Redisson that is about to sleep
// when it is woken sleeps on: here dozens of them begin to wait at once.
func (w woken) pause() time.Duration { return 4*w.trip + 200*time.Millisecond }

func (w woken) work(ctx context.Context, t turn) (handed, error) {
	return handedFor(ctx, t.took, func() (time.Duration, error) {
		return w.once(ctx, t.peers[0], t.peers[1:])
	})
}

// once wakes all readers once.
func (w woken) once(ctx context.Context, writer peer, readers []peer) (time.Duration, error) {
	release, err := writer.Acquire(ctx, "bench")
	if err != nil {
		return 0, err
	}
	ctx, giveUp := context.WithTimeout(ctx, patience)
	defer giveUp()
	held, errs := make([]time.Time, len(readers)), make([]error, len(readers))
	var shared, left sync.WaitGroup
	all := make(chan struct{}) // closed when all readers have the lock, or have given up
	shared.Add(len(readers))
	for i, reader := range readers {
		left.Go(func() {
			release, err := reader.(sharer).Share(ctx, "bench")
			held[i] = time.Now()
			shared.Done()
			<-all
			if err == nil {
				err = release()
			}
			errs[i] = err
		})
	}
	time.Sleep(w.pause() + rand.N(10*time.Millisecond))
	called := time.Now()
	err = release()
	shared.Wait()
	close(all)
	left.Wait()
	return slices.MaxFunc(held, time.Time.Compare).Sub(called), cmp.Or(append(errs, err)...)
}
