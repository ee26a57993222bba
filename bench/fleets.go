package main

// Fleets that want one name: measured as far as this machine goes, and simulated.
//
// Rules: a fleet that is measured is simulated too, with the round trip, the section
// and the requests that were measured; only then those are simulated that are larger.

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/bench/fleet"
)

// measuredFleets holds the simulation against what is true.
func (s *scale) measuredFleets(ctx context.Context, t *table) error {
	t.head = []string{"processes × goroutines", "share of the ideal rate", "simulated", "requests a section", "simulated", "longest wait", "simulated", "slowest process of the fastest", "simulated", "processes that had it", "simulated", "Redis CPU a section", "simulated"}
	length := max(4*s.slice, time.Second)
	for _, fair := range []bool{false, true} {
		for _, f := range s.fleets {
			if fair && f.goroutines > 1 {
				continue
			}
			row, err := s.measureFleet(ctx, f, fair, length)
			if err != nil {
				return err
			}
			t.add(row...)
		}
	}
	t.note = fmt.Sprintf("A section of 1 ms, %v through a proxy that takes %v there and back. The ideal is the rate of a sync.Mutex around the same section.", length, far)
	return nil
}

// measureFleet is a row: of a Lock with its simulation, or of a FairLock.
func (s *scale) measureFleet(ctx context.Context, f shape, isFair bool, length time.Duration) ([]string, error) {
	server, err := startServer(far)
	if err != nil {
		return nil, err
	}
	defer server.close()
	crowd := crowd{clients: f.processes, workers: f.goroutines, names: 1, section: time.Millisecond}
	open, name := openRelock(plain), fmt.Sprintf("%d × %d", f.processes, f.goroutines)
	if isFair {
		open, name = openRelock(fair), name+", `FairLock`"
	}
	before, err := s.crowdOn(ctx, server, openMutex, crowd, s.slice)
	if err != nil {
		return nil, err
	}
	pings := make(chan way, 1)
	go func() { pings <- server.way(ctx, length) }()
	got, err := s.crowdOn(ctx, server, open, crowd, length)
	pinged := <-pings
	if err := cmp.Or(err, pinged.err); err != nil {
		return nil, err
	}
	after, err := s.crowdOn(ctx, server, openMutex, crowd, s.slice)
	if err != nil {
		return nil, err
	}
	ideal := (before[rate] + after[rate]) / 2
	measured := []string{share(got[rate] / ideal), digits(got[requests]), span(got[longest]), share(got[evenClient]), percent(got[servedAll]), span(got[redisCPU])}
	simulated := make([]string, len(measured))
	if !isFair {
		o := s.simulate(f, time.Duration(float64(time.Second)/ideal), pinged.least, pinged.noise).Run(length, 1)
		simulated = []string{share(o.Share), digits(o.Requests), span(o.Longest.Seconds()), share(o.Even), percent(o.Served), span(o.Busy.Seconds())}
	}
	row := []string{name}
	for i := range measured {
		row = append(row, measured[i], simulated[i])
	}
	return row, nil
}

// A way is the shortest one to Redis and back, and how much longer half of it takes on average.
type way struct {
	least, noise time.Duration
	err          error
}

// way is what pings say in a time in which others are at work.
func (s *server) way(ctx context.Context, d time.Duration) way {
	c := redis.NewClient(&redis.Options{Addr: s.addr})
	defer c.Close()
	if err := c.Ping(ctx).Err(); err != nil { // this one has to connect
		return way{err: err}
	}
	least, sum, n := time.Hour, time.Duration(0), 0
	for end := time.Now().Add(d); time.Now().Before(end); n++ {
		start := time.Now()
		if err := c.Ping(ctx).Err(); err != nil {
			return way{err: err}
		}
		took := time.Since(start)
		least, sum = min(least, took), sum+took
		time.Sleep(time.Millisecond)
	}
	return way{least: least, noise: (sum/time.Duration(max(1, n)) - least) / 2}
}

// simulate is relock with its defaults.
func (s *scale) simulate(f shape, section, trip, noise time.Duration) fleet.Fleet {
	seconds := func(v float64) time.Duration { return time.Duration(v * float64(time.Second)) }
	return fleet.Fleet{
		Processes: f.processes, Goroutines: f.goroutines, Trip: trip, Noise: noise, Section: section,
		Slice: 10 * time.Millisecond, WakeDelay: time.Second,
		Attempt: seconds(s.attempt), Release: seconds(max(0, s.pair-s.attempt)), Message: seconds(s.message),
	}
}

// simulatedFleets are those that are larger than this machine.
func (s *scale) simulatedFleets(ctx context.Context, t *table) error {
	const section, trip = time.Millisecond, 400 * time.Microsecond
	t.head = []string{"processes × goroutines", "noise", "share of the ideal rate", "requests a section", "messages a section", "Redis is busy", "longest wait", "slowest process of the fastest", "processes that had it"}
	for _, goroutines := range []int{16, 1} {
		for _, n := range s.processes {
			for _, noise := range []time.Duration{50 * time.Microsecond, time.Millisecond} {
				if err := ctx.Err(); err != nil {
					return err
				}
				o := s.simulate(shape{n, goroutines}, section, trip, noise).Run(s.simulated, 1)
				t.add(fmt.Sprintf("%d × %d", n, goroutines), noise.String(), share(o.Share), digits(o.Requests), digits(o.Messages), percent(o.Load),
					span(o.Longest.Seconds()), share(o.Even), percent(o.Served))
			}
		}
	}
	t.note = fmt.Sprintf("Sections of %v, a round trip of %v at best; %v of it.", section, trip, s.simulated)
	return nil
}
