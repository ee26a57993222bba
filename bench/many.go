package main

// Very many locks, waiters and names, and how their memory is released.

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/relock-go/relock"
)

// keys returns the number of keys on all nodes.
func (s *server) keys(ctx context.Context) (float64, error) {
	n := int64(0)
	for _, node := range s.nodes {
		size, err := node.DBSize(ctx).Result()
		if err != nil {
			return 0, err
		}
		n += size
	}
	return float64(n), nil
}

// used returns the memory of Redis.
func (s *server) used(ctx context.Context) (float64, error) {
	info, err := s.admin.Info(ctx, "memory").Result()
	return field(info, "used_memory"), err
}

// memory measures what a lock leaves in this process and in Redis.
func (s *scale) memory(ctx context.Context, t *table) error {
	server, err := startServer(0)
	if err != nil {
		return err
	}
	defer server.close()
	p, err := openRelock(plain)(setting{addr: server.addr, lease: time.Minute})
	if err != nil {
		return err
	}
	defer p.Close()
	ctx = relock.ContextWithOwner(ctx)
	h := hoard{locks: slices.Max(s.locks)}
	names, releases := h.names(), make([]func() error, h.locks)
	inTurn := func(names []string) error { // so that few are held at the same time
		return each(names, func(i int) error {
			release, err := p.Acquire(ctx, names[i])
			if err != nil {
				return err
			}
			return release()
		})
	}
	if err := inTurn(names[:64]); err != nil { // the connections, the scripts, and memory that grows with the goroutines
		return err
	}
	before := remember()
	usedBefore, err := server.used(ctx)
	if err != nil {
		return err
	}
	t.head = []string{"for each", "heap of the process", "memory of Redis"}
	n := float64(h.locks)
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"name that was locked, and is no longer", func() error { return inTurn(names) }},
		{"lock that is held", func() error {
			return each(names, func(i int) (err error) {
				releases[i], err = p.Acquire(ctx, names[i])
				return err
			})
		}},
		{"lock that was held, after all of them were released", func() error {
			defer clear(releases) // and what its user keeps of it
			return each(names, func(i int) error { return releases[i]() })
		}},
	} {
		if err := step.do(); err != nil {
			return err
		}
		used, err := server.used(ctx)
		if err != nil {
			return err
		}
		t.add(step.name, kib(max(0, remember().heap-before.heap)/n), kib(max(0, used-usedBefore)/n))
	}
	runtime.KeepAlive(releases)
	waiter, err := s.wait(ctx, wait{"", 1, s.waiters, s.waiters})
	if err != nil {
		return err
	}
	t.add("goroutine that waits for a name of its own", waiter[0]+", and "+waiter[1]+" of stack", waiter[2])
	opened, err := start(ctx, turn{server: server, kind: kind{open: openRelock(plain)}})
	if err != nil {
		return err
	}
	t.add("Client and its Redis client, which have acquired one lock", kib(opened[heapEach]), "")
	t.note = fmt.Sprintf(
		"Of %s names and locks, %s goroutines and %d Clients. From opening a Redis client and a Client until the first "+
			"lock is held: %s (p50). Both have %s goroutines.",
		amount(n),
		amount(float64(s.waiters)),
		firstLocks,
		span(opened[firstLock]),
		digits(opened[goroutinesEach]),
	)
	return nil
}

// each calls f for all, by several goroutines.
func each(names []string, f func(i int) error) error {
	const goroutines = 64
	var all sync.WaitGroup
	errs := make([]error, goroutines)
	for g := range goroutines {
		all.Go(func() {
			for i := g; i < len(names) && errs[g] == nil; i += goroutines {
				errs[g] = f(i)
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// holds measures the cost of keeping locks.
func (s *scale) holds(ctx context.Context, t *table) error {
	t.head = []string{
		"held",
		"on",
		"heap each",
		"renewals per second",
		"pipelines per second",
		"longest time between renewals, in thirds of the lease",
		"late, lost",
		"CPU of Redis, of the client",
		"client CPU per renewal",
	}
	for _, masters := range []int{1, 3} {
		for _, n := range s.locks {
			if masters > 1 && n < slices.Max(s.locks) {
				continue // one Redis already shows that the number changes nothing
			}
			got, err := s.hold(ctx, n, masters)
			if err != nil {
				return err
			}
			on := "one Redis"
			if masters > 1 {
				on = fmt.Sprintf("a Cluster of %d", masters)
			}
			t.add(
				amount(float64(n)),
				on,
				kib(got[heapEach]),
				amount(got[scriptRate]),
				digits(got[pipelineRate]),
				digits(got[longestGap]),
				amount(got[seldom])+", "+amount(got[lostLocks]),
				percent(got[redisLoad])+", "+percent(got[ourLoad]),
				span(got[ourLoad]/got[scriptRate]),
			)
		}
	}
	t.note = fmt.Sprintf(
		"The lease is %v. A lock is late if it was not renewed within two thirds of the lease. CPU is a share of one "+
			"processor; that of Redis is of all masters.",
		s.lease,
	)
	return nil
}

func (s *scale) hold(ctx context.Context, n, masters int) (sample, error) {
	start := func() (*server, error) { return startServer(0) }
	if masters > 1 {
		start = func() (*server, error) { return startCluster(masters) }
	}
	server, err := start()
	if err != nil {
		return nil, err
	}
	defer server.close()
	return hoard{n, s.lease}.held(ctx, turn{server: server, kind: kindOf("relock"), took: s.slice})
}

// A wait is goroutines of some processes that wait for locks which are never released.
type wait struct {
	what                       string
	clients, goroutines, names int // goroutines of each client
}

// waits measures the cost of waiters, and how they arrive and leave.
func (s *scale) waits(ctx context.Context, t *table) error {
	t.head = []string{
		"waiters",
		"heap each",
		"stack each",
		"memory of Redis, per name or process",
		"all subscribed after",
		"requests per second",
		"CPU of Redis, of the client",
		"all gave up within",
		"all left after",
	}
	n := s.waiters
	for _, w := range []wait{
		{amount(float64(n)) + " goroutines, for a name each", 1, n, n},
		{amount(float64(n)) + " goroutines of one process, for one name", 1, n, 1},
		{"100 processes, for one name", 100, 1, 1},
	} {
		row, err := s.wait(ctx, w)
		if err != nil {
			return fmt.Errorf("%s: %w", w.what, err)
		}
		t.add(append([]string{w.what}, row...)...)
	}
	t.note = "A channel stays subscribed for half a second after its last waiter has left. CPU is a share of one " +
		"processor."
	return nil
}

func (s *scale) wait(ctx context.Context, w wait) ([]string, error) {
	server, err := startServer(0)
	if err != nil {
		return nil, err
	}
	defer server.close()
	open := openRelock(plain)
	holder, err := open(setting{addr: server.addr, lease: 2 * time.Minute})
	if err != nil {
		return nil, err
	}
	defer holder.Close()
	names := hoard{locks: w.names}.names()
	if err := acquireAll(ctx, holder, names, nil); err != nil {
		return nil, err
	}
	before, stack := remember(), stacks()
	usedBefore, err := server.used(ctx)
	if err != nil {
		return nil, err
	}
	waiting, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var all sync.WaitGroup
	began := time.Now()
	for range w.clients {
		p, err := open(setting{addr: server.addr, lease: 2 * time.Minute})
		if err != nil {
			return nil, err
		}
		defer p.Close()
		for i := range w.goroutines {
			all.Go(func() { _, _ = p.Acquire(waiting, names[i%len(names)]) }) // they are never granted
		}
	}
	// A process has a channel of its own for each name.
	joined, err := server.subscribed(ctx, began, max(w.names, w.clients), w.clients)
	if err != nil {
		return nil, err
	}
	time.Sleep(2 * time.Second) // until all sleep
	after, stackAfter := remember(), stacks()
	used, err := server.used(ctx)
	if err != nil {
		return nil, err
	}
	did, err := server.during(ctx, s.slice)
	if err != nil {
		return nil, err
	}
	began = time.Now()
	giveUp()
	all.Wait()
	gone := time.Since(began)
	left, err := server.subscribed(ctx, began, 0, 0)
	if err != nil {
		return nil, err
	}
	n, seconds := float64(w.clients*w.goroutines), did.took.Seconds()
	return []string{
		kib((after.heap - before.heap) / n),
		kib((stackAfter - stack) / n),
		kib(max(0, used-usedBefore) / float64(max(w.names, w.clients))),
		span(joined.Seconds()),
		amount(
			did.scripts / seconds,
		),
		percent(did.redis/seconds) + ", " + percent(did.ours/seconds),
		span(gone.Seconds()),
		span(left.Seconds()),
	}, nil
}

func stacks() float64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.StackInuse)
}

// subscribed waits until a number of channels is subscribed, by a number of connections, and returns how long after
// began that was.
func (s *server) subscribed(ctx context.Context, began time.Time, channels, by int) (time.Duration, error) {
	for {
		info, err := s.admin.Info(ctx, "stats").Result()
		if err != nil {
			return 0, err
		}
		hearing, err := s.hearing(ctx)
		if err != nil {
			return 0, err
		}
		if field(info, "pubsub_channels") == float64(channels+hearing) {
			_, subscribers, err := s.connections(ctx)
			if err != nil || by == 0 || subscribers == by {
				return time.Since(began), err
			}
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		if time.Since(began) > time.Minute {
			return 0, fmt.Errorf("after a minute %v channels are subscribed, not %d", field(info, "pubsub_channels"), channels)
		}
	}
}
