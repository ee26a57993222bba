package main

// Lost updates: what a lock of each library protects while processes pause, connections break, and Redis loses data.
//
// Rules: clients add 1 to a number that they share: each reads it, works, and writes it, in a critical section. If two
// of them are in their sections at the same time, an update is lost: the number is then less than the number of writes.
// Each client has a proxy of its own, and does before it writes what its library offers: it looks at the context of the
// hold, or asks how long the lock is still valid. A client that learns that it has lost the lock does not write. Only
// the rows with fencing tokens have storage that refuses the tokens of earlier holders: in one of them it compares the
// token of each write, and in those of package fence a client also admits its token before it reads. The row without
// any lock shows that the measurement finds lost updates.

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/testsql"
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
	store func(context.Context) (s storage, end func(), err error) // nil: in memory
}

// An entrance waits for the lock, and enters a critical section.
type entrance func(context.Context) (section, error)

var protectors = []protector{
	{"no lock", "nothing", func(setting) (entrance, func(), error) {
		return func(context.Context) (section, error) { return section{release: func() {}}, nil }, func() {}, nil
	}, nil},
	{"relock", "`hold.Context().Err()`", protectRelock(), nil},
	{"relock with `Fenced()`", "the same, and the storage refuses lower tokens", protectRelock(relock.Fenced()), nil},
	{"relock and `fence` on PostgreSQL", inTx, protectRelock(relock.Fenced()), onPostgres},
	{"relock and `fence` on SQLite", inTx, protectRelock(relock.Fenced()), onSQLite},
	{"rueidislock", "`ctx.Err()` of the lock", protectRueidis, nil},
	{"redislock", "`lock.TTL(ctx)`, a request", protectRedislock, nil},
	{"redsync", "`mutex.Until()`", protectRedsync, nil},
}

const inTx = "the same; it reads in a `Tx`, and writes in another one"

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

// A storage has the number that the clients share. A look and a write return errRefused if they refuse the token.
type storage interface {
	look(ctx context.Context, token int64) (value int, err error)
	write(ctx context.Context, value int, token int64) error
	value(context.Context) (int, error)
}

var errRefused = errors.New("a later token was admitted")

// An inMemory is storage that compares the tokens of writes, and not those of looks.
type inMemory struct {
	mu      sync.Mutex // guards below
	number  int
	highest int64 // the highest token that wrote
}

func (m *inMemory) value(context.Context) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.number, nil
}

func (m *inMemory) look(ctx context.Context, _ int64) (int, error) { return m.value(ctx) }

func (m *inMemory) write(_ context.Context, value int, token int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if token < m.highest {
		return errRefused
	}
	m.highest, m.number = token, value
	return nil
}

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

// lostTables is the table of README.md about lost updates.
var lostTables = []named{{"lost", (*scale).lostUpdates}}

func (s *scale) lostUpdates(ctx context.Context, t *table) error {
	t.head = []string{"protected by", "before each write"}
	for _, trouble := range troubles {
		t.head = append(t.head, trouble.name)
	}
	for _, p := range protectors {
		row := []string{p.name, p.check}
		for _, trouble := range troubles {
			lost, writes, err := p.protect(ctx, trouble, s.lost)
			switch {
			case errors.Is(err, testsql.ErrNotInstalled):
				row = append(row, "not installed")
			case err != nil:
				return fmt.Errorf("%s, %s: %w", p.name, trouble.name, err)
			default:
				row = append(row, fmt.Sprintf("%d of %d", lost, writes))
			}
		}
		t.add(row...)
	}
	t.note = fmt.Sprintf("Lost updates, of all writes. Each cell is %v with %d clients, a lease of %v, and %v of work "+
		"in a section. A pause, and the silence of a connection, lasts %v. A row with fewer writes is one whose lock stayed "+
		"held for longer by a client that was paused or silent.", s.lost, writers, lostLease, lostWork, lostPause)
	return nil
}

// A lostCell is what the clients of one cell of the table have done.
type lostCell struct {
	store  storage
	writes atomic.Int64

	mu     sync.Mutex // guards failed
	failed error      // of the storage
}

// protect has the clients add 1 for a while, and returns how many of the writes were lost.
func (p protector) protect(ctx context.Context, trouble trouble, took time.Duration) (lost, writes int, err error) {
	server, err := startServer(0)
	if err != nil {
		return 0, 0, err
	}
	defer server.close()
	c := lostCell{store: &inMemory{}}
	if p.store != nil {
		store, end, err := p.store(ctx)
		if err != nil {
			return 0, 0, err
		}
		defer end()
		c.store = store
	}
	limited, stop := context.WithTimeout(ctx, took)
	defer stop()
	var all sync.WaitGroup
	proxies := make([]*testredis.Proxy, writers)
	for i := range proxies {
		proxy := testredis.NewProxy(&server.house, server.addr)
		proxies[i] = proxy
		enter, end, err := p.open(setting{addr: proxy.Addr(), lease: lostLease, timeout: lostLease})
		if err != nil {
			return 0, 0, err
		}
		defer end()
		all.Go(func() {
			for limited.Err() == nil {
				c.add(limited, enter, trouble, proxy)
			}
		})
	}
	all.Go(func() { trouble.make(limited, proxies, server.admin) })
	all.Wait()
	value, err := c.store.value(ctx)
	writes = int(c.writes.Load())
	return writes - value, writes, errors.Join(err, c.failed)
}

// add adds 1 in a critical section.
func (c *lostCell) add(ctx context.Context, enter entrance, t trouble, p *testredis.Proxy) {
	trying, done := context.WithTimeout(ctx, lostServed)
	defer done()
	s, err := enter(trying)
	if err != nil { // the connection is broken, or the time is up
		time.Sleep(tuned)
		return
	}
	defer s.release()
	ctx = context.WithoutCancel(ctx) // whether a write that is canceled was committed is unknown
	paused := rand.N(lostOneIn) == 0
	value, err := c.store.look(ctx, s.token)
	if err != nil {
		c.fail(err)
		return
	}
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
	if err := c.store.write(ctx, value+1, s.token); err != nil {
		c.fail(err)
		return
	}
	c.writes.Add(1)
}

// fail notes an error of the storage.
func (c *lostCell) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !errors.Is(err, errRefused) {
		c.failed = err
	}
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
