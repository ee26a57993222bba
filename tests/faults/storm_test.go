package faults

// Storms: random work under random faults, and a check of all answers that clients got.
//
//	go test ./tests/faults -run Storm -storm=10m -timeout=0        # each kind of lock for ten minutes
//	go test ./tests/faults -run Storm/fair -storm=1m -storm.seed=7 # the work and the faults of seed 7
//	go test ./tests/faults -run 'Storm/(sentinel|cluster)' -storm=1m # masters fail, and slots move
//
// Rules: all that is random comes from the seed, each worker and the nemesis having
// a sequence of its own; how these meet is up to the clock. Workers record the answers
// they get, the nemesis records its faults, and history.Check alone judges.

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/history"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/tests/seeds"
	"github.com/relock-go/relock/internal/trace"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	stormTime = flag.Duration("storm", 2*time.Second, "how long a storm over each kind of lock lasts")
	storms    = seeds.New("storm") // a seed is what a storm draws its work and faults from
)

const (
	stormTimeout  = time.Second            // of the watchdogs
	stormLease    = 600 * time.Millisecond // the longest explicit one
	stormFault    = 2 * stormTimeout       // the longest fault
	stormSlack    = 3 * time.Second        // what a busy machine is given
	stormClients  = 4                      // half of them over proxies
	stormWorkers  = 3                      // of each client
	stormFairLife = 2 * record.FairLife    // of a waiter that has gone, where no other waiter sends heartbeats either
	stormFailover = 20 * time.Second       // the longest time until the old master is back
)

// A stormKind is the kind of lock that a storm tests.
type stormKind struct {
	name  string
	names int  // number of locks
	nodes int  // number of independent servers
	on    site // if nodes is 0
	sync  bool // an acquire needs the confirmation of all replicas
	fair  bool
	locks func(c []*Client, names []string, rng *rand.Rand) stormLock
}

// A site describes how servers belong together.
type site int

const (
	sentinel site = 1 + iota
	cluster
)

// A stormLock is one lock, and its relation to the locks of other workers.
type stormLock struct {
	Locker
	names  []string
	shared bool
	inside Locker // may be acquired inside and kept; or nil
}

func single(lock func(c *Client, name string) Locker) func([]*Client, []string, *rand.Rand) stormLock {
	return func(c []*Client, names []string, rng *rand.Rand) stormLock {
		name := names[rng.IntN(len(names))]
		return stormLock{Locker: lock(c[0], name), names: []string{name}}
	}
}

var stormKinds = []stormKind{
	{name: "plain", names: 2, nodes: 1, locks: single(locktest.NewPlainLock)},
	{name: "fenced", names: 2, nodes: 1, locks: single(locktest.NewFencedLock)},
	{name: "fair", names: 2, nodes: 1, fair: true, locks: single(newFencedFairLock)},
	{name: "semaphore", names: 2, nodes: 1, locks: single(locktest.NewSemaphore)},
	{name: "rw", names: 2, nodes: 1, locks: rwStorm},
	{name: "multi", names: 4, nodes: 1, locks: func(c []*Client, names []string, rng *rand.Rand) stormLock {
		var some []string
		var locks []Locker
		for _, i := range rng.Perm(len(names))[:1+rng.IntN(3)] {
			some = append(some, names[i])
			if i == 0 {
				locks = append(locks, c[0].NewFairLock(names[i])) // cannot be acquired in one step
			} else {
				locks = append(locks, c[0].NewLock(names[i]))
			}
		}
		if len(locks) == 1 {
			return stormLock{Locker: locks[0], names: some}
		}
		return stormLock{Locker: c[0].NewMultiLock(locks...), names: some}
	}},
	{name: "red", names: 2, nodes: 3, locks: redStorm},
	{name: "red5", names: 2, nodes: 5, locks: redStorm},
	{name: "sentinel", names: 4, on: sentinel, sync: true, fair: true, locks: mixedStorm},
	{name: "cluster", names: 4, on: cluster, fair: true, locks: mixedStorm},
	{name: "cluster-synced", names: 4, on: cluster, sync: true, fair: true, locks: mixedStorm},
}

func newFencedFairLock(c *Client, name string) Locker { return c.NewFairLock(name, Fenced()) }

func rwStorm(c []*Client, names []string, rng *rand.Rand) stormLock {
	name := names[rng.IntN(len(names))]
	l := c[0].NewRWLock(name, Fenced())
	if rng.IntN(3) > 0 {
		return stormLock{Locker: l.Read(), names: []string{name}, shared: true}
	}
	return stormLock{Locker: l.Write(), names: []string{name}, inside: l.Read()}
}

// mixedStorm has a lock of a different kind for each name.
func mixedStorm(c []*Client, names []string, rng *rand.Rand) stormLock {
	i := rng.IntN(4)
	return []func([]*Client, []string, *rand.Rand) stormLock{
		single(locktest.NewPlainLock), single(locktest.NewFencedLock), single(newFencedFairLock), rwStorm,
	}[i](c, names[i:i+1], rng)
}

func redStorm(c []*Client, names []string, rng *rand.Rand) stormLock {
	name := names[rng.IntN(len(names))]
	var locks []Locker
	for _, node := range c {
		locks = append(locks, node.NewLock(name))
	}
	return stormLock{Locker: c[0].NewRedLock(locks...), names: []string{name}}
}

func TestStorm(t *testing.T) {
	if !testredis.IsSet("storm") && !storms.IsChosen() {
		testredis.OnlyLong(t)
	}
	t.Parallel()
	for _, kind := range stormKinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			storms.Of(kind.name).Play(t, 1, func(q *seeds.Sequence) {
				q.Logf("go test ./tests/faults -run 'Storm/^%s$' -storm=%v -storm.seed=%d", kind.name, *stormTime, q.Seed)
				newStorm(q.T, kind, q.Seed).blow(*stormTime)
			})
		})
	}
}

// A storm is one kind of lock, the workers that use it, and the goroutines that disturb them.
type storm struct {
	*testing.T
	kind     stormKind
	seed     uint64
	names    []string
	sentinel *testredis.Sentinel // or nil
	cluster  *testredis.Cluster  // or nil
	servers  []*testredis.Server
	rdbs     []*redis.Client       // clients of an operator, one for each server
	admin    redis.UniversalClient // a client of an operator, for the first server, or for the group of servers
	proxies  []*testredis.Proxy
	procs    []*stormProcess
	rec      *history.Recorder
	recorder *trace.Recorder // recorder of scripts, or nil
	over     atomic.Bool     // workers have to finish
	locked   map[string]*guarded
	waiting  atomic.Int64 // number of holders that wait for the report of their loss

	mu    sync.Mutex     // guards tally
	tally map[string]int // number of events of each kind
}

// A guarded is the resource that one lock protects: a value that is read and written under the lock. By fencing tokens
// it rejects a holder that has been overtaken.
type guarded struct {
	deletions atomic.Int64 // number of deletions of the lock

	mu       sync.Mutex // guards below
	greatest int64      // the greatest token that it has received
	value    int
	written  int
}

// read returns the value, and false if it has already received a greater token.
func (g *guarded) read(token int64) (int, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if token < g.greatest {
		return 0, false
	}
	g.greatest = token
	return g.value, true
}

func (g *guarded) write(token int64, value int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if token < g.greatest {
		return false
	}
	g.value = value
	g.written++
	return true
}

// A stormProcess stands for one process: a Client for each Redis.
type stormProcess struct {
	rdbs     []redis.UniversalClient
	together bool // all requests are sent in batches

	holes atomic.Int64 // number of long times without a reply

	mu      sync.Mutex // guards clients
	clients []*Client
}

func (p *stormProcess) current() []*Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clients
}

// restart closes the Clients, if there are any, and creates new ones.
func (p *stormProcess) restart(s *storm) {
	opts := []Option{WithWatchdogTimeout(stormTimeout), WithPollInterval(300 * time.Millisecond),
		WithRedLockNodeTimeout(stormTimeout / 3), WithLogger(slog.New(slog.DiscardHandler))}
	if s.kind.sync {
		opts = append(opts, WithSyncedReplicas(1, stormTimeout/4))
	}
	var made []*Client
	for _, rdb := range p.rdbs {
		c, err := New(rdb, opts...)
		require.NoError(s, err)
		if p.together {
			locktest.EngineOf(c).Probe().Sender().BatchAll()
		}
		made = append(made, c)
	}
	p.mu.Lock()
	old := p.clients
	p.clients = made
	p.mu.Unlock()
	for _, c := range old {
		_ = c.Close() // requests in flight during a fault end with the timeouts
	}
}

func (p *stormProcess) close(s *storm) {
	for _, c := range p.current() {
		assert.NoError(s, c.Close())
	}
}

func newStorm(t *testing.T, kind stormKind, seed uint64) *storm {
	return newRecordedStorm(t, kind, seed, nil)
}

// newRecordedStorm returns a storm whose scripts are recorded, unless recorder is nil.
func newRecordedStorm(t *testing.T, kind stormKind, seed uint64, recorder *trace.Recorder) *storm {
	s := &storm{
		T:        t,
		kind:     kind,
		seed:     seed,
		recorder: recorder,
		rec:      history.New(),
		tally:    make(map[string]int),
		locked:   make(map[string]*guarded),
	}
	for i := range kind.names {
		name := fmt.Sprintf("storm-%s-%d", kind.name, i)
		s.names = append(s.names, name)
		s.locked[name] = &guarded{}
	}
	switch kind.on {
	case sentinel:
		s.sentinel = testredis.StartSentinel(t, 1)
		s.servers = append(s.sentinel.Replicas(), s.sentinel.Master())
	case cluster:
		s.cluster = testredis.StartCluster(t, 3, 1)
		s.servers = s.cluster.Nodes()
	default:
		for range kind.nodes {
			s.servers = append(s.servers, testredis.Start(t))
		}
	}
	for _, server := range s.servers {
		s.rdbs = append(s.rdbs, server.Client())
		s.proxies = append(s.proxies, testredis.NewProxy(t, server.Addr()))
	}
	s.admin = s.connect(nil)[0]
	for i := range stormClients {
		p := &stormProcess{together: i%4 < 2}
		if i%2 == 0 {
			p.rdbs = s.connect(nil)
		} else {
			p.rdbs = s.connect(s.overProxies)
		}
		p.restart(s)
		s.procs = append(s.procs, p)
	}
	return s
}

// connect creates the clients of one process.
func (s *storm) connect(
	dial func(ctx context.Context, network, addr string) (net.Conn, error),
) (all []redis.UniversalClient) {
	const impatient = 300 * time.Millisecond
	off := testredis.NoNotifications()
	switch {
	case s.sentinel != nil:
		return append(all, s.sentinel.Client(func(o *redis.FailoverOptions) {
			o.Dialer, o.ReadTimeout, o.DialTimeout = dial, impatient, impatient
		}))
	case s.cluster != nil:
		return append(all, s.cluster.Client(func(o *redis.ClusterOptions) {
			o.Dialer, o.ReadTimeout, o.DialTimeout, o.MaintNotificationsConfig = dial, impatient, impatient, off
		}))
	}
	for _, server := range s.servers {
		rdb := server.Client(func(o *redis.Options) {
			o.Dialer, o.ReadTimeout, o.DialTimeout, o.MaintNotificationsConfig = dial, impatient, impatient, off
		})
		if s.recorder != nil {
			rdb.AddHook(s.recorder)
		}
		all = append(all, rdb)
	}
	return all
}

// overProxies dials the proxies instead of the servers.
func (s *storm) overProxies(ctx context.Context, network, addr string) (net.Conn, error) {
	for i, server := range s.servers {
		if addr == server.Addr() {
			addr = s.proxies[i].Addr()
		}
	}
	return new(net.Dialer).DialContext(ctx, network, addr)
}

// rand returns the sequence of one worker, or of the nemesis.
func (s *storm) rand(whose int) *rand.Rand {
	kind := fnv.New64()
	_, _ = kind.Write([]byte(s.kind.name))
	return rand.New(rand.NewPCG(s.seed+kind.Sum64(), uint64(whose)))
}

func (s *storm) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tally[what]++
}

func (s *storm) rules() history.Rules {
	r := history.Rules{
		Timeout: stormTimeout,
		Slack:   stormSlack,
		Free:    2*(stormFault+stormTimeout) + stormFairLife + stormSlack,
		Fair:    s.kind.fair,
	}
	switch {
	case s.kind.name == "multi": // an owner that has some of the locks waits for the others, which other owners have
		r.Free *= 2
		r.Parts = true
	case s.kind.on != 0: // two masters may fail within that time
		r.Free += 2 * stormFailover
		r.Calm = stormSlack
	case s.kind.nodes > 1: // several owners may block each other repeatedly
		r.Calm = stormSlack
	default:
		r.Calm, r.Wait = stormSlack, time.Minute
	}
	return r
}

// blow runs all workers for a while, and then checks the results of their calls.
func (s *storm) blow(took time.Duration) {
	var watchers sync.WaitGroup
	end := make(chan struct{})
	waitgroup.Go(&watchers, func() { s.pulse(end) })
	if s.kind.fair {
		waitgroup.Go(&watchers, func() { s.watchQueues(end) })
	}
	s.rage(ctx, took)
	finished := s.rec.Now()
	s.lookAfter() // with the clients that might still have something
	for _, p := range s.procs {
		p.close(s)
	}
	s.awaitNothing(locktest.Soon, func() {})
	close(end)
	watchers.Wait()

	over := s.rec.Now()
	h := s.rec.History()
	start := time.Now()
	for _, v := range history.Check(h, s.rules()) {
		assert.Fail(s, fmt.Sprint(v))
	}
	for name, g := range s.locked {
		assert.Equal(s, g.written, g.value, "%s: each write adds one to the value, and no write is lost", name)
	}
	if s.Failed() {
		for _, f := range h.Faults {
			s.Logf("%v to %v: client %d, %q: %s", f.From, f.To, f.Client, f.Name, f.What)
		}
	}
	s.Logf(
		"workers done at %v, all over at %v; %d holds, %d attempts that got none, %d sightings in queues, checked in %v; %v",
		finished,
		over,
		len(h.Holds),
		len(h.Failed),
		len(h.Queued),
		time.Since(start),
		s.tally,
	)
}

// rage runs all workers, with ctx, and the nemesis for a while.
func (s *storm) rage(ctx context.Context, took time.Duration) {
	var workers sync.WaitGroup
	for i := range stormClients * stormWorkers {
		w := &stormWorker{storm: s, number: i, proc: i % stormClients, rng: s.rand(i), ctx: ctx}
		if i%2 == 0 {
			w.ctx = ContextWithOwner(w.ctx)
		}
		waitgroup.Go(&workers, w.run)
	}
	n := &nemesis{storm: s, rng: s.rand(-1), end: time.Now().Add(took)}
	n.run()
	s.over.Store(true)

	done := make(chan struct{})
	go func() {
		workers.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(s.rules().Free + stormClients*stormWorkers*stormTimeout):
		var stacks strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
		assert.Fail(s, "workers hang\n"+stacks.String())
	}
}

// pulse records when this machine is paused.
func (s *storm) pulse(end <-chan struct{}) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	last := s.rec.Now()
	for {
		select {
		case <-tick.C:
		case <-end:
			return
		}
		now := s.rec.Now()
		if now-last > 200*time.Millisecond {
			s.count("stalls of this machine")
			s.rec.Fault(
				history.Fault{
					Kind:   history.Stalls,
					What:   "this machine stood still",
					Client: history.AllClients,
					From:   last,
					To:     now,
				},
			)
		}
		last = now
	}
}

// watchQueues records the waiters in the queues.
func (s *storm) watchQueues(end <-chan struct{}) {
	seen := make(map[string]bool)
	for {
		for _, name := range s.names {
			from := s.rec.Now()
			queue, err := s.admin.LRange(ctx, record.PrefixName("redisson_lock_queue", name), 0, -1).Result()
			if err != nil {
				continue
			}
			at := s.rec.Now()
			for _, field := range queue {
				part := strings.Split(field, ":")
				if len(part) == 3 && !seen[field] {
					seen[field] = true
					s.rec.Queued(history.Queued{Name: name, Owner: part[0] + ":" + part[1], From: from, At: at})
				}
			}
		}
		select {
		case <-end:
			return
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// lookAfter checks that new clients can acquire every lock now, and can acquire each lock as soon as another client has
// released it. It checks that nothing is left in Redis.
func (s *storm) lookAfter() {
	var fresh []*stormWorker
	for i := range 2 {
		p := &stormProcess{rdbs: s.connect(nil)}
		p.restart(s)
		s.procs = append(s.procs, p)
		fresh = append(
			fresh,
			&stormWorker{
				storm:  s,
				number: -1,
				proc:   len(s.procs) - 1,
				rng:    s.rand(-2 - i),
				ctx:    ContextWithOwner(ctx),
			},
		)
	}
	// What waiters that have died asked for stays for a while: see note_wish in queue.lua.
	within := max(stormTimeout+stormLease+stormFairLife, 4*record.FairLife) + locktest.Soon
	try := func(w *stormWorker, wait time.Duration) (l stormLock, h *stormHold) {
		for end := time.Now().Add(within); ; { // a replica may be about to connect again
			if l, h = w.try(wait); h != nil || !errors.Is(w.err, ErrNotSynced) || time.Now().After(end) {
				return l, h
			}
		}
	}
	for taken := make(map[string]bool); len(taken) < len(s.names); {
		l, h := try(fresh[0], within)
		if !assert.NotNil(s, h, "%v cannot be taken %v after the storm: %v", l.names, within, fresh[0].err) {
			return
		}
		h.give()
		for _, name := range l.names {
			taken[name] = taken[name] || !l.shared
		}
	}
	s.awaitNothing(within, func() {
		if _, h := fresh[0].try(0); h != nil { // the next call evicts waiters that died in a queue
			h.give()
		}
	})
	next := time.Duration(0)
	// An Unlock returns when a majority has confirmed it: the requests to the others may still be in flight.
	if s.kind.nodes > 1 {
		next = time.Second
	}
	for i := range 20 {
		l, h := try(fresh[i%2], next)
		if h != nil && i%5 == 0 { // a waiter gives up meanwhile
			if _, other := fresh[(i+1)%2].try(50 * time.Millisecond); other != nil {
				other.give()
			}
			h.give()
			l, h = try(fresh[(i+1)%2], record.FairLife/2)
		}
		if !assert.NotNil(s, h, "%v is refused, and is free: %v, %v", l.names, fresh[0].err, fresh[1].err) {
			return
		}
		h.give()
	}
	s.awaitNothing(within, func() {})
}

// awaitNothing waits until there is nothing in Redis except counters of tokens. It calls meanwhile until then.
func (s *storm) awaitNothing(within time.Duration, meanwhile func()) {
	for deadline := time.Now().Add(within); ; meanwhile() {
		left := s.left()
		if len(left) == 0 {
			return
		}
		if !assert.False(s, time.Now().After(deadline), "left in Redis: %v", s.contents(left)) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (s *storm) left() (left []string) {
	for _, rdb := range s.rdbs {
		keys, err := rdb.Keys(ctx, "*").Result()
		require.NoError(s, err)
		channels, err := rdb.PubSubChannels(ctx, "*storm-*").Result()
		require.NoError(s, err)
		sharded, err := rdb.PubSubShardChannels(ctx, "*").Result()
		require.NoError(s, err)
		left = append(left, slices.DeleteFunc(slices.Concat(keys, channels, locktest.OfLocks(sharded)), func(key string) bool {
			return strings.HasPrefix(key, "redisson_lock_token:") ||
				strings.HasPrefix(key, "relock_client:") && locktest.Expires(rdb, key) ||
				locktest.OnlyTombstones(rdb, key) || locktest.OnlyFree(rdb, key)
		})...)
	}
	return left
}

// contents returns the contents of the hashes among keys.
func (s *storm) contents(keys []string) map[string]map[string]string {
	contents := make(map[string]map[string]string)
	for _, key := range keys {
		for _, rdb := range s.rdbs {
			if hash := rdb.HGetAll(ctx, key).Val(); len(hash) > 0 {
				contents[key] = hash
			}
		}
	}
	return contents
}
