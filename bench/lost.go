package main

// Lost updates: what a lock of each library protects while processes pause, connections break, and Redis loses data.
//
// Rules: clients add 1 to a number that they share: each reads it, works, and writes it, in a critical section. If two
// of them are in their sections at the same time, an update is lost: the number is then less than the number of writes.
// Each client has a proxy of its own, and does before it writes what its library offers: it looks at the context of the
// hold, or asks how long the lock is still valid. A client that learns that it has lost the lock does not write. Only
// the row with fencing tokens has storage that refuses the tokens of earlier holders. The row without any lock shows
// that the measurement finds lost updates.

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
)

const (
	writers    = 4
	lostLease  = 500 * time.Millisecond
	lostPause  = 3 * lostLease / 2    // of a process, and of a connection that is silent
	lostWork   = 2 * time.Millisecond // between reading and writing
	lostOneIn  = 12                   // one section in so many is paused
	lostEvery  = 150 * time.Millisecond
	lostServed = 5 * time.Second // how long a client waits for the lock at most
)

// A section is a critical section that a client has entered.
type section struct {
	alive   func() bool // what the library says about the lock; nil if it says nothing
	token   int64       // the fencing token; 0: none
	release func()
}

// A protector is a library, or no lock at all, that protects the number.
type protector struct {
	name  string
	check string // what a client does before it writes
	open  func(setting) (enter entrance, end func(), err error)
}

// An entrance waits for the lock, and enters a critical section.
type entrance func(context.Context) (section, error)

var protectors = []protector{
	{"no lock", "nothing", func(setting) (entrance, func(), error) {
		return func(context.Context) (section, error) { return section{release: func() {}}, nil }, func() {}, nil
	}},
	{"relock", "`hold.Context().Err()`", protectRelock()},
	{"relock with `Fenced()`", "the same, and the storage refuses lower tokens", protectRelock(relock.Fenced())},
	{"rueidislock", "`ctx.Err()` of the lock", protectRueidis},
	{"redislock", "`lock.TTL(ctx)`, a request", protectRedislock},
	{"redsync", "`mutex.Until()`", protectRedsync},
}

func protectRelock(opts ...relock.LockOption) func(setting) (entrance, func(), error) {
	return func(s setting) (entrance, func(), error) {
		p, err := openRelock(plain)(s)
		if err != nil {
			return nil, nil, err
		}
		return func(ctx context.Context) (section, error) {
			h, err := p.(*relockPeer).client.NewLock("number", opts...).Acquire(ctx)
			if err != nil {
				return section{}, err
			}
			held := h.Context()
			token := int64(0)
			if len(opts) > 0 {
				token, err = h.Token()
			}
			return section{
				alive:   func() bool { return held.Err() == nil },
				token:   token,
				release: func() { _ = h.Release(ctx) }, // an error: it was lost
			}, err
		}, p.Close, nil
	}
}

func protectRueidis(s setting) (entrance, func(), error) {
	p, err := openRueidis(s)
	if err != nil {
		return nil, nil, err
	}
	return func(ctx context.Context) (section, error) {
		held, release, err := p.(rueidisPeer).WithContext(ctx, "number")
		return section{alive: func() bool { return held.Err() == nil }, release: release}, err
	}, p.Close, nil
}

func protectRedislock(s setting) (entrance, func(), error) {
	p, err := openRedislock(tuned)(s)
	if err != nil {
		return nil, nil, err
	}
	r := p.(*redislockPeer)
	return func(ctx context.Context) (section, error) {
		l, err := r.locks.Obtain(ctx, "number", r.lease, &redislock.Options{RetryStrategy: redislock.LinearBackoff(tuned)})
		return section{
			alive:   func() bool { left, err := l.TTL(ctx); return err == nil && left > 0 },
			release: func() { _ = l.Release(ctx) },
		}, err
	}, p.Close, nil
}

func protectRedsync(s setting) (entrance, func(), error) {
	p, err := openRedsync(redsync.WithRetryDelay(tuned))(s)
	if err != nil {
		return nil, nil, err
	}
	r := p.(*redsyncPeer)
	return func(ctx context.Context) (section, error) {
		m := r.locks.NewMutex("number", r.opts...)
		err := m.LockContext(ctx)
		return section{
			alive:   func() bool { return time.Now().Before(m.Until()) },
			release: func() { _, _ = m.UnlockContext(ctx) },
		}, err
	}, p.Close, nil
}

// A number is what the clients share.
type number struct {
	mu      sync.Mutex // guards below
	value   int
	writes  int
	highest int64 // the highest token that wrote
}

func (n *number) read() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.value
}

func (n *number) write(value int, token int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if token < n.highest {
		return
	}
	n.highest = token
	n.value = value
	n.writes++
}

// lost returns the number of updates that were lost.
func (n *number) lost() int { return n.writes - n.value }

// A trouble is what happens meanwhile.
type trouble struct {
	name        string
	before      bool // sections pause before the client looks whether it still has the lock
	after       bool // sections pause between the look and the write
	cuts, wipes bool // connections break or are silent; Redis loses its data
}

var troubles = []trouble{
	{name: "paused before the check", before: true},
	{name: "paused after the check", after: true},
	{name: "connections cut or silent", cuts: true},
	{name: "Redis loses its data", wipes: true},
}

// lostTables is the table of docs/benchmarks.md about lost updates.
var lostTables = []named{{"lost", (*scale).lostUpdates}}

func (s *scale) lostUpdates(ctx context.Context, t *table) error {
	t.head = []string{"protected by", "before each write"}
	for _, trouble := range troubles {
		t.head = append(t.head, trouble.name)
	}
	for _, p := range protectors {
		row := []string{p.name, p.check}
		for _, trouble := range troubles {
			n, err := p.protect(ctx, trouble, s.lost)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", p.name, trouble.name, err)
			}
			row = append(row, fmt.Sprintf("%d of %d", n.lost(), n.writes))
		}
		t.add(row...)
	}
	t.note = fmt.Sprintf("Lost updates, of all writes. Each cell is %v with %d clients, a lease of %v, and %v of work "+
		"in a section. A pause, and the silence of a connection, lasts %v. A row with fewer writes is one whose lock stayed "+
		"held for longer by a client that was paused or silent.", s.lost, writers, lostLease, lostWork, lostPause)
	return nil
}

// protect has the clients add 1 for a while.
func (p protector) protect(ctx context.Context, trouble trouble, took time.Duration) (*number, error) {
	server, err := startServer(0)
	if err != nil {
		return nil, err
	}
	defer server.close()
	ctx, stop := context.WithTimeout(ctx, took)
	defer stop()
	var n number
	var all sync.WaitGroup
	proxies := make([]*testredis.Proxy, writers)
	for i := range proxies {
		proxy := testredis.NewProxy(&server.house, server.addr)
		proxies[i] = proxy
		enter, end, err := p.open(setting{addr: proxy.Addr(), lease: lostLease, timeout: lostLease})
		if err != nil {
			return nil, err
		}
		defer end()
		all.Go(func() {
			for ctx.Err() == nil {
				n.add(ctx, enter, trouble, proxy)
			}
		})
	}
	all.Go(func() { trouble.make(ctx, proxies, server.admin) })
	all.Wait()
	return &n, nil
}

// add adds 1 in a critical section.
func (n *number) add(ctx context.Context, enter entrance, t trouble, p *testredis.Proxy) {
	trying, done := context.WithTimeout(ctx, lostServed)
	defer done()
	s, err := enter(trying)
	if err != nil { // the connection is broken, or the time is up
		time.Sleep(tuned)
		return
	}
	defer s.release()
	paused := rand.N(lostOneIn) == 0
	value := n.read()
	time.Sleep(lostWork)
	if paused && t.before {
		pause(p)
	}
	if s.alive != nil && !s.alive() {
		return
	}
	if paused && t.after {
		pause(p)
	}
	n.write(value+1, s.token)
}

// pause pauses a client as a SIGSTOP of its process would: it neither sends nor receives anything.
func pause(p *testredis.Proxy) {
	p.BlackHole(true)
	time.Sleep(lostPause)
	p.BlackHole(false)
}

// make breaks connections, and deletes all data, until ctx is done.
func (t trouble) make(ctx context.Context, proxies []*testredis.Proxy, admin *redis.Client) {
	ticker := time.NewTicker(lostEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		p := proxies[rand.N(len(proxies))]
		switch {
		case t.wipes:
			_ = admin.FlushAll(ctx) // an error: the time is up
		case t.cuts && rand.N(2) == 0:
			p.CutAll()
		case t.cuts:
			pause(p)
		}
	}
}
