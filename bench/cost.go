package main

// The work of Redis for uncontended locks, and the cost of one request.

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
)

func fenced(c *relock.Client, name string) relock.Locker {
	return c.NewLock(name, relock.Fenced())
}

func write(c *relock.Client, name string) relock.Locker { return c.NewRWLock(name).Write() }

// both returns a lock on two names.
func both(c *relock.Client, name string) relock.Locker {
	return c.NewMultiLock(c.NewLock("{"+name+"}a"), c.NewLock("{"+name+"}b"))
}

// pairs measures the work of Redis for one lock/unlock pair.
func (s *scale) pairs(ctx context.Context, t *table) error {
	t.head = []string{
		"lock and unlock",
		"requests",
		"commands, including those in scripts",
		"Redis CPU",
		"client CPU",
		"per second, here",
		"per second that saturate one Redis (calculated)",
	}
	for _, k := range []struct {
		name  string
		open  func(setting) (peer, error)
		crowd crowd
	}{
		{"`Lock`, 1 goroutine", openRelock(plain), crowd{clients: 1, workers: 1, names: 1}},
		{"`Lock`, 64 goroutines, each with its own name", openRelock(plain), crowd{clients: 1, workers: 64, names: 64}},
		{"with `Fenced()`", openRelock(fenced), crowd{clients: 1, workers: 64, names: 64}},
		{"`FairLock`", openRelock(fair), crowd{clients: 1, workers: 64, names: 64}},
		{"`RWLock`, read", openRelock(read), crowd{clients: 1, workers: 64, names: 64}},
		{"`RWLock`, write", openRelock(write), crowd{clients: 1, workers: 64, names: 64}},
		{"`MultiLock` of two", openRelock(both), crowd{clients: 1, workers: 64, names: 64}},
		{"`Lock`, 64 goroutines, one name", openRelock(plain), crowd{clients: 1, workers: 64, names: 1}},
	} {
		got, err := s.crowd(ctx, 0, k.open, k.crowd)
		if err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
		full := amount(1 / got[redisCPU])
		if k.crowd.names < k.crowd.workers {
			full = "" // Redis is not the bottleneck
		}
		t.add(
			k.name,
			digits(got[scripts]),
			digits(got[commands]),
			span(got[redisCPU]),
			span(got[ourCPU]),
			amount(got[rate]),
			full,
		)
	}
	each, perSecond, err := s.batched(ctx)
	if err != nil {
		return err
	}
	t.add("the requests of `Lock`, 100 pairs in a pipeline", "2", "", span(each), "", amount(perSecond), amount(1/each))
	return nil
}

// crowd makes clients of their own work for a slice of time.
func (s *scale) crowd(
	ctx context.Context,
	trip time.Duration,
	open func(setting) (peer, error),
	c crowd,
) (sample, error) {
	server, err := startServer(trip)
	if err != nil {
		return nil, err
	}
	defer server.close()
	return s.crowdOn(ctx, server, open, c, s.slice)
}

func (s *scale) crowdOn(
	ctx context.Context,
	server *server,
	open func(setting) (peer, error),
	c crowd,
	took time.Duration,
) (sample, error) {
	t := turn{server: server, took: s.slice / 5, served: new([]int)}
	for range c.clients {
		p, err := open(setting{addr: server.addr, lease: 30 * time.Second})
		if err != nil {
			return nil, err
		}
		defer p.Close()
		t.peers = append(t.peers, p)
	}
	if _, err := c.slice(ctx, t); err != nil { // connects, and loads the scripts
		return nil, err
	}
	t.took, t.served = took, new([]int)
	return c.slice(ctx, t)
}

// bares returns clients that send what relock sends, each over one connection.
func bares(server *server, n int) (all []*barePeer, err error) {
	for range n {
		p, err := openBare(plain)(setting{addr: server.addr, lease: 30 * time.Second})
		if err != nil {
			return nil, err
		}
		all = append(all, p.(*barePeer))
	}
	return all, nil
}

// batched measures the work of Redis for a pair if it has little to do except run the scripts.
func (s *scale) batched(ctx context.Context) (each, perSecond float64, err error) {
	server, err := startServer(0)
	if err != nil {
		return 0, 0, err
	}
	defer server.close()
	all, err := bares(server, 1)
	if err != nil {
		return 0, 0, err
	}
	defer all[0].Close()
	var batch [][]any
	for i := range 100 {
		pair, err := all[0].pair(ctx, fmt.Sprint("bench:", i))
		if err != nil {
			return 0, 0, err
		}
		batch = append(batch, pair[0], pair[1])
	}
	did, n, err := server.repeat(ctx, s.slice, 2, func(int) error {
		_, err := all[0].rdb.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, args := range batch {
				p.Do(ctx, args...)
			}
			return nil
		})
		return err
	})
	return did.redis / n / 100, 100 * n / did.took.Seconds(), err
}

// repeat makes a number of goroutines call f for a while, and returns how often they did.
func (s *server) repeat(
	ctx context.Context,
	d time.Duration,
	goroutines int,
	f func(i int) error,
) (work, float64, error) {
	var n atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	before, err := s.work(ctx)
	if err != nil {
		return work{}, 0, err
	}
	end := time.Now().Add(d)
	for i := range goroutines {
		all.Go(func() {
			for time.Now().Before(end) && failed.Load() == nil {
				if err := f(i); err != nil {
					failed.Store(&err)
					return
				}
				n.Add(1)
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return work{}, 0, *err
	}
	after, err := s.work(ctx)
	if err != nil {
		return work{}, 0, err
	}
	did := after.since(before)
	did.took = after.at.Sub(before.at)
	return did, float64(n.Load()), nil
}

// parts returns the cost of single requests, each of them from a process of its own, so that nothing is batched.
func (s *scale) parts(ctx context.Context, t *table) error {
	if err := s.requestCosts(ctx); err != nil {
		return err
	}
	t.head = []string{"one request, of a process that sends no other request with it", "Redis CPU"}
	t.add("a lock and an unlock, for a name without waiters", span(s.pair))
	t.add("an attempt on a busy lock", span(s.attempt))
	t.add("for each process that receives a message", span(s.message))
	t.add("a turn in the wait queue of a `Lock`: an attempt, and a release that grants", span(s.turn))
	t.add("a turn in the queue of a `FairLock`", span(s.fairTurn))
	t.note = fmt.Sprintf(
		"Calculated: polling one lock costs about as much as an attempt, and the first 32 processes of a wait queue poll "+
			"once per second. So polling %s locks "+
			"with that many waiting processes saturates one Redis.",
		amount(1/s.attempt/32),
	)
	return nil
}

// requestCosts measures the cost of single requests.
func (s *scale) requestCosts(ctx context.Context) error {
	server, err := startServer(0)
	if err != nil {
		return err
	}
	defer server.close()
	const clients = 32
	all, err := bares(server, clients)
	if err != nil {
		return err
	}
	taken := make([][]any, clients)
	for i, p := range all {
		defer p.Close()
		pair, err := p.pair(ctx, "taken")
		if err != nil {
			return err
		}
		taken[i] = pair[0]
	}
	did, n, err := server.repeat(ctx, s.slice, clients, func(i int) error {
		release, err := all[i].Acquire(ctx, fmt.Sprint("bench:", i))
		if err != nil {
			return err
		}
		return release()
	})
	if err != nil {
		return err
	}
	s.pair = did.redis / n
	if _, err := all[0].relock.Acquire(ctx, "taken"); err != nil {
		return err
	}
	did, n, err = server.repeat(ctx, s.slice, clients, func(i int) error {
		return all[i].rdb.Do(ctx, taken[i]...).Err()
	})
	if err != nil {
		return err
	}
	s.attempt = did.redis / n

	const hearers = 256
	silent, err := s.publish(ctx, server, 0)
	if err != nil {
		return err
	}
	loud, err := s.publish(ctx, server, hearers)
	if err != nil {
		return err
	}
	s.message = max(0, (loud-silent)/hearers)
	return s.turns(ctx)
}

// turns measures the work of Redis for a process that gets a lock from another one and passes it on.
func (s *scale) turns(ctx context.Context) error {
	for _, kind := range []struct {
		cost *float64
		lock func(*relock.Client, string) relock.Locker
	}{{&s.turn, plain}, {&s.fairTurn, fair}} {
		got, err := s.crowd(ctx, 0, openRelock(kind.lock), crowd{clients: 16, workers: 1, names: 1})
		if err != nil {
			return err
		}
		*kind.cost = got[redisCPU]
	}
	return nil
}

// publish measures the work of Redis for a message to a number of connections.
func (s *scale) publish(ctx context.Context, server *server, hearers int) (float64, error) {
	for range hearers {
		rdb := redis.NewClient(&redis.Options{Addr: server.addr})
		defer rdb.Close()
		hearer := rdb.Subscribe(ctx, "bench")
		defer hearer.Close()
		if _, err := hearer.Receive(ctx); err != nil {
			return 0, err
		}
		go func() {
			for {
				if _, err := hearer.ReceiveMessage(ctx); err != nil { // it is closed
					return
				}
			}
		}()
	}
	did, n, err := server.repeat(ctx, s.slice, 1, func(int) error {
		return server.admin.Publish(ctx, "bench", "0").Err()
	})
	return did.redis / n, err
}

// cluster measures how the load is shared among masters.
func (s *scale) cluster(ctx context.Context, t *table) error {
	t.head = []string{
		"masters",
		"lock/unlock pairs per second, here",
		"Redis CPU, all together",
		"client CPU",
		"share of the busiest master",
		"per second that saturate it (calculated)",
	}
	c := crowd{clients: 1, workers: 256, names: 256}
	each := 0.0
	for _, masters := range []int{1, 3} {
		got, busiest, err := s.masters(ctx, masters, c)
		if err != nil {
			return err
		}
		each = got[redisCPU]
		t.add(
			fmt.Sprint(masters),
			amount(got[rate]),
			span(each),
			span(got[ourCPU]),
			percent(busiest),
			amount(1/(each*busiest)),
		)
	}
	for _, masters := range []int{10, 30, 100} {
		share := 1 / float64(masters)
		t.add(fmt.Sprint(masters)+" (calculated)", "", "", "", percent(share), amount(1/(each*share)))
	}
	return nil
}

func (s *scale) masters(ctx context.Context, masters int, c crowd) (got sample, busiest float64, err error) {
	server, err := startCluster(masters)
	if err != nil {
		return nil, 0, err
	}
	defer server.close()
	if got, err = s.crowdOn(ctx, server, openRelock(plain), c, s.slice); err != nil {
		return nil, 0, err
	}
	most, sum := 0.0, 0.0
	for _, node := range server.nodes {
		info, err := node.Info(ctx, "commandstats").Result()
		if err != nil {
			return nil, 0, err
		}
		n := parseInfo(info).scripts
		most, sum = max(most, n), sum+n
	}
	return got, most / sum, nil
}

// field returns a number from INFO.
func field(info, name string) float64 {
	_, after, _ := strings.Cut(info, "\n"+name+":")
	var v float64
	_, _ = fmt.Sscan(after, &v)
	return v
}
