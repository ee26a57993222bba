package main

// The tables of client.md: the effect of the options of a Redis client on locks.
//
// Rules: clients with different options take turns in short slices of time, on the same server. Faults are caused by a
// proxy.

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/relock-go/relock/bench/stats"
	"github.com/relock-go/relock/internal/testredis"
)

var readTimeouts = []time.Duration{
	5 * time.Second, time.Second, 500 * time.Millisecond, 200 * time.Millisecond, 50 * time.Millisecond,
	20 * time.Millisecond,
}

// nearTimer is a timer that fires repeatedly beside a goroutine with a long read timeout: it shows whether the read
// timeout makes the difference, or any timer that fires soon.
const nearTimer = 20 * time.Millisecond

// timeouts measures the rate of one goroutine with each read timeout.
func (s *scale) timeouts(ctx context.Context, t *table) error {
	t.head = []string{
		"`ReadTimeout`",
		"two bare EVALSHA, pairs per second",
		"lock/unlock pairs per second, `context.Background()`",
		"of bare",
		"with a context that can be canceled",
		"of bare",
	}
	server, err := startServer(0)
	if err != nil {
		return err
	}
	defer server.close()
	type runner struct {
		peer  peer
		ctx   context.Context
		timer time.Duration // a timer that fires repeatedly meanwhile; 0 if there is none
		rates []float64
	}
	canEnd, cancel := context.WithCancel(ctx)
	defer cancel()
	var all []*runner
	type line struct {
		said           string
		timeout, timer time.Duration
	}
	var lines []line
	for _, timeout := range readTimeouts {
		lines = append(lines, line{said(timeout), timeout, 0})
	}
	lines = append(lines, line{fmt.Sprintf("1s, and a timer that fires every %v", nearTimer), time.Second, nearTimer})
	for _, l := range lines {
		timeout := l.timeout
		bare, err := openBare(plain)(setting{addr: server.addr, lease: 30 * time.Second, timeout: timeout})
		if err != nil {
			return err
		}
		defer bare.Close()
		ours, err := openRelock(plain)(setting{addr: server.addr, lease: 30 * time.Second, timeout: timeout})
		if err != nil {
			return err
		}
		defer ours.Close()
		all = append(
			all,
			&runner{bare, context.Background(), l.timer, nil},
			&runner{ours, context.Background(), l.timer, nil},
			&runner{ours, canEnd, l.timer, nil},
		)
	}
	const rounds = 40
	for round := range rounds + 1 {
		for i := range all {
			r := all[(i+round)%len(all)]
			stop := keepTimer(r.timer)
			rate, err := pairsASecond(r.ctx, r.peer, s.slice/40)
			stop()
			if err != nil {
				return err
			}
			if round > 0 { // the first one connects
				r.rates = append(r.rates, rate)
			}
		}
	}
	for i, l := range lines {
		bare, ours, cancellable := all[3*i], all[3*i+1], all[3*i+2]
		part := func(r *runner) string {
			ratios := stats.Ratios(r.rates, bare.rates)
			return factor(meanOf(ratios))
		}
		t.add(
			l.said,
			amount(median(bare.rates)),
			amount(median(ours.rates)),
			part(ours),
			amount(median(cancellable.rates)),
			part(cancellable),
		)
	}
	return nil
}

// keepTimer keeps a timer that fires after d, repeatedly, until stop is called. If d is 0, there is none.
func keepTimer(d time.Duration) (stop func()) {
	if d == 0 {
		return func() {}
	}
	ticker, done := time.NewTicker(d), make(chan struct{})
	var over sync.WaitGroup
	over.Go(func() {
		for {
			select {
			case <-ticker.C:
			case <-done:
				return
			}
		}
	})
	return func() {
		ticker.Stop()
		close(done)
		over.Wait()
	}
}

// said returns the text for a read timeout.
func said(timeout time.Duration) string {
	if timeout == readTimeouts[0] {
		return "5s, the default of go-redis"
	}
	return timeout.String()
}

// pairsASecond returns the number of lock/unlock pairs per second of one goroutine.
func pairsASecond(ctx context.Context, p peer, d time.Duration) (float64, error) {
	n, start := 0.0, time.Now()
	for time.Since(start) < d {
		release, err := p.Acquire(ctx, "bench")
		if err != nil {
			return 0, err
		}
		if err := release(); err != nil {
			return 0, err
		}
		n++
	}
	return n / time.Since(start).Seconds(), nil
}

// slowServers measures locks on a server whose answers are slow.
func (s *scale) slowServers(ctx context.Context, t *table) error {
	t.head = []string{
		"answers take",
		"`ReadTimeout`",
		"critical sections of 10",
		"time of a critical section, p50",
		"connections opened",
	}
	for _, slow := range []time.Duration{20 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond} {
		for _, timeout := range []time.Duration{5 * time.Second, time.Second, 200 * time.Millisecond, 50 * time.Millisecond} {
			done, took, opened, err := slowSections(ctx, slow, timeout)
			if err != nil {
				return err
			}
			t.add(slow.String(), said(timeout), fmt.Sprint(done), span(took), fmt.Sprint(opened))
		}
	}
	return nil
}

// slowSections tries ten critical sections. The result took is in seconds.
func slowSections(ctx context.Context, slow, timeout time.Duration) (done int, took float64, opened uint32, err error) {
	server, err := startServer(slow)
	if err != nil {
		return 0, 0, 0, err
	}
	defer server.close()
	server.proxy.Latency(0)
	p, err := openRelock(plain)(setting{addr: server.addr, lease: 30 * time.Second, timeout: timeout})
	if err != nil {
		return 0, 0, 0, err
	}
	defer p.Close()
	if _, err := pairsASecond(ctx, p, time.Millisecond); err != nil { // connects, and loads the scripts
		return 0, 0, 0, err
	}
	pool := p.(*relockPeer).rdb
	before := pool.PoolStats().Misses
	server.proxy.Latency(slow / 2)
	var waits []float64
	for i := range 10 {
		start := time.Now()
		within, cancel := context.WithTimeout(ctx, 5*time.Second)
		release, err := p.Acquire(within, fmt.Sprint("bench:", i))
		if err == nil {
			err = release()
		}
		cancel()
		if err == nil {
			done++
			waits = append(waits, time.Since(start).Seconds())
		}
	}
	return done, median(waits), pool.PoolStats().Misses - before, nil
}

// leaving measures how long Lock takes to return after its context was canceled, on a server that does not answer.
func (s *scale) leaving(ctx context.Context, t *table) error {
	t.note = "Forty locks, each over its own connection that hangs. The context is canceled 10 ms after the call."
	return t.hungRows(ctx, "Lock returns after the cancellation, p50", true)
}

// hungConnections measures how long a Lock takes whose connection hangs, while others do not.
func (s *scale) hungConnections(ctx context.Context, t *table) error {
	t.note = "Forty locks. The answer to the first request of each is lost, and nothing else arrives on its connection."
	return t.hungRows(ctx, "Lock over a connection that hangs, p50", false)
}

// hungRows returns the waits of hungLocks, a row for each read timeout.
func (t *table) hungRows(ctx context.Context, head string, always bool) error {
	t.head = []string{"`ReadTimeout`", head, "p99"}
	for _, timeout := range readTimeouts[:5] {
		waits, err := hungLocks(ctx, timeout, always)
		if err != nil {
			return err
		}
		t.add(said(timeout), span(waits.Quantile(0.5).Seconds()), span(waits.Quantile(0.99).Seconds()))
	}
	return nil
}

const hung = 40 // number of locks

// hungLocks acquires locks at the same time. The first request of each, or every request if always is set, has no
// answer. The waits are measured from the call until Lock returns, or from the cancellation if always is set.
func hungLocks(ctx context.Context, timeout time.Duration, always bool) (*stats.Histogram, error) {
	server, err := startServer(2 * time.Millisecond)
	if err != nil {
		return nil, err
	}
	defer server.close()
	const canceled = 10 * time.Millisecond
	var mu sync.Mutex // guards waits and first
	var waits stats.Histogram
	var first error
	var all sync.WaitGroup
	for i := range hung {
		p, err := openRelock(plain)(setting{addr: server.addr, lease: 30 * time.Second, timeout: timeout})
		if err != nil {
			return nil, err
		}
		defer p.Close()
		if _, err := pairsASecond(ctx, p, time.Millisecond); err != nil {
			return nil, err
		}
		times := 1
		if always {
			times = testredis.Always
		}
		name := fmt.Sprint("bench:", i)
		stalled := server.proxy.On(
			func(cmd []string) bool { return len(cmd) > 3 && cmd[0] == "evalsha" && cmd[3] == name },
			testredis.StallReply,
		).Times(
			times,
		)
		defer stalled.Release()
		all.Go(func() {
			trying, cancel := context.WithCancel(ctx)
			defer cancel()
			start := time.Now()
			if always {
				time.AfterFunc(canceled, cancel)
			}
			release, err := p.Acquire(trying, name)
			took := time.Since(start)
			if always {
				took = max(0, took-canceled)
			} else if err == nil {
				err = release()
			}
			mu.Lock()
			defer mu.Unlock()
			waits.Add(took)
			if err != nil && !always {
				first = err
			}
		})
	}
	all.Wait()
	return &waits, first
}
