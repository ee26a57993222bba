package main

// Fleets of processes that compete for one name: measured as far as this machine allows, and simulated.
//
// Rules: a fleet that is measured is simulated, too, with the round trip, the critical section and the requests that
// were measured. Only then larger fleets are simulated.

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/bench/fleet"
)

// measuredFleets compares the simulation with measurements.
func (s *scale) measuredFleets(ctx context.Context, t *table) error {
	t.head = []string{
		"processes × goroutines",
		"share of the ideal rate",
		"requests per critical section",
		"longest wait",
		"slowest process, compared with the fastest",
		"processes that held it",
		"Redis CPU per critical section",
	}
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
	t.note = fmt.Sprintf(
		"Critical sections of 1 ms, %v through a proxy with a round trip of %v. The ideal is the rate of a sync.Mutex "+
			"around the same critical section. In brackets: simulated.",
		length,
		far,
	)
	return nil
}

// measureFleet returns the row of a Lock or a FairLock, with its simulation.
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
	before, err := s.crowdOn(ctx, server, openMutex, crowd, s.slice/3)
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
	after, err := s.crowdOn(ctx, server, openMutex, crowd, s.slice/3)
	if err != nil {
		return nil, err
	}
	ideal := (before[rate] + after[rate]) / 2
	same := s.simulate(f, isFair, time.Duration(float64(time.Second)/ideal), pinged.least, pinged.noise)
	same.Connect = pinged.connect
	o := same.Run(s.slice/5, length, 1)
	return []string{name,
		beside(share(got[rate]/ideal), share(o.Share)),
		beside(digits(got[requests]), digits(o.Requests+o.Looks)),
		beside(span(got[longest]), span(o.Longest.Seconds())),
		beside(share(got[evenClient]), share(o.Even)),
		beside(percent(got[servedAll]), percent(o.Served)),
		beside(span(got[redisCPU]), span(o.Busy.Seconds()))}, nil
}

// beside returns a measured figure with the simulated one in brackets.
func beside(measured, simulated string) string { return measured + " (" + simulated + ")" }

// A way has the shortest round trip to Redis, how much longer half of it takes on average, and how much longer the
// first request of a connection takes.
type way struct {
	least, noise, connect time.Duration
	err                   error
}

// way measures round trips with pings while other clients are working.
func (s *server) way(ctx context.Context, d time.Duration) way {
	c := redis.NewClient(&redis.Options{Addr: s.addr})
	defer c.Close()
	began := time.Now()
	if err := c.Ping(ctx).Err(); err != nil { // this one has to connect
		return way{err: err}
	}
	first := time.Since(began)
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
	return way{least: least, noise: (sum/time.Duration(max(1, n)) - least) / 2, connect: first - least}
}

// simulate simulates relock with its defaults. A release costs the rest of the turn of a process.
func (s *scale) simulate(f shape, isFair bool, section, trip, noise time.Duration) fleet.Fleet {
	seconds := func(v float64) time.Duration { return time.Duration(max(0, v) * float64(time.Second)) }
	release := s.turn - s.attempt - s.message
	if isFair {
		release = s.fairTurn - 2*s.attempt - s.message
	}
	return fleet.Fleet{
		Processes: f.processes, Goroutines: f.goroutines, Fair: isFair, Trip: trip, Noise: noise, Section: section,
		Slice: 10 * time.Millisecond, WakeDelay: time.Second,
		Attempt: seconds(s.attempt), Release: seconds(release), Message: seconds(s.message), Look: seconds(s.attempt),
	}
}

// simulatedFleets are fleets that are too large for this machine.
func (s *scale) simulatedFleets(ctx context.Context, t *table) error {
	t.head = []string{
		"processes × goroutines",
		"noise",
		"share of the ideal rate",
		"requests per critical section",
		"polls per critical section",
		"Redis is busy",
		"longest wait",
		"processes that held it",
		"overtaken",
	}
	for _, goroutines := range []int{16, 1} {
		for _, n := range s.processes {
			for _, noise := range []time.Duration{50 * time.Microsecond, time.Millisecond} {
				if err := ctx.Err(); err != nil {
					return err
				}
				o := s.simulateLarge(shape{n, goroutines}, noise)
				t.add(
					fmt.Sprintf("%d × %d", n, goroutines),
					noise.String(),
					share(o.Share),
					digits(o.Requests),
					digits(o.Looks),
					percent(o.Load),
					span(o.Longest.Seconds()),
					percent(o.Served),
					amount(float64(o.Overtaken)),
				)
			}
		}
	}
	t.note = fmt.Sprintf(
		"Critical sections of %v, a shortest round trip of %v; %v simulated.",
		nearSection,
		nearTrip,
		s.simulated,
	)
	return nil
}

// The critical section and the round trip of fleets that are only simulated.
const nearSection, nearTrip = time.Millisecond, 400 * time.Microsecond

// simulateLarge makes the processes arrive one after the other: if many arrive at once, the first answers are late, and
// the hand-off windows long.
func (s *scale) simulateLarge(f shape, noise time.Duration) fleet.Outcome {
	large := s.simulate(f, false, nearSection, nearTrip, noise)
	large.Arrival = s.simulated / 10
	return large.Run(s.simulated/2, s.simulated, 1)
}

// inSimulation is the turn of relock in a fleet that is too large for any machine of this size, with costs that were
// measured in the same turn.
func (f shape) inSimulation(ctx context.Context, t turn) (sample, error) {
	s := &scale{amounts: amounts{slice: t.took, simulated: 2 * time.Minute}}
	if err := s.requestCosts(ctx); err != nil {
		return nil, err
	}
	o := s.simulateLarge(f, 50*time.Microsecond)
	return sample{
		rate:       o.Share / nearSection.Seconds(),
		requests:   o.Requests,
		looks:      o.Looks,
		allOfThem:  o.Requests + o.Looks,
		servedAll:  o.Served,
		overtaken:  float64(o.Overtaken),
		longest:    o.Longest.Seconds(),
		evenClient: o.Even,
		redisLoad:  o.Load,
	}, nil
}
