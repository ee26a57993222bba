package relock

// Storms: random work under random faults, and a check of all answers that clients got.
//
//	go test -run Storm -storm=10m -timeout=0        # each kind of lock for ten minutes
//	go test -run Storm/fair -storm=1m -storm.seed=7 # the work and the faults of seed 7
//	go test -run 'Storm/(sentinel|cluster)' -storm=1m # masters fail, and slots move
//
// Rules: all that is random comes from the seed, each worker and the nemesis having
// a sequence of its own; how these meet is up to the clock. Workers record the answers
// they get, the nemesis records its faults, and history.Check alone judges.

// Faults of whole processes: they are stopped, killed, or starved of their
// processor, while they hold locks and stand in queues.
//
// Rules: the process is this test binary, started again with RELOCK_TEST_CHILD,
// which names its task; it reports to its parent by lines of output.

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/history"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/trace"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The soak: every lock type at full speed for a long time, after which nothing
// has grown and nothing is left. It runs when it is asked for:
//
//	go test -run Soak -soak=30m -timeout=0 -v .

var (
	stormTime = flag.Duration("storm", 2*time.Second, "how long a storm over each kind of lock lasts")
	stormSeed = flag.Uint64("storm.seed", 0, "what the storms draw their work and faults from; 0: something new")
)

const (
	stormTimeout  = time.Second            // of the watchdogs
	stormLease    = 600 * time.Millisecond // the longest explicit one
	stormFault    = 2 * stormTimeout       // the longest fault
	stormSlack    = 3 * time.Second        // what a busy machine is given
	stormClients  = 4                      // half of them over proxies
	stormWorkers  = 3                      // of each client
	stormFairLife = 2 * fairLife           // of a waiter that has gone, where no other waiter sends heartbeats either
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
	{name: "plain", names: 2, nodes: 1, locks: single(newPlainLock)},
	{name: "fenced", names: 2, nodes: 1, locks: single(newFencedLock)},
	{name: "fair", names: 2, nodes: 1, fair: true, locks: single(newFencedFairLock)},
	{name: "semaphore", names: 2, nodes: 1, locks: single(newSemaphore)},
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
		single(newPlainLock), single(newFencedLock), single(newFencedFairLock), rwStorm,
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
	t.Parallel()
	seed := *stormSeed
	if seed == 0 {
		seed = rand.Uint64N(1_000_000) + 1
	}
	for _, kind := range stormKinds {
		t.Run(kind.name, func(t *testing.T) {
			if kind.nodes != 1 && kind.name != "red" && !isSet("storm") {
				testredis.OnlyLong(t)
			}
			t.Parallel()
			t.Logf("seed %d: go test -run 'Storm/^%s$' -storm=%v -storm.seed=%d", seed, kind.name, *stormTime, seed)
			newStorm(t, kind, seed).blow(*stormTime)
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
			c.engine.Probe().Sender().BatchAll()
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
	s.rage(context.Background(), took)
	finished := s.rec.Now()
	s.lookAfter() // with the clients that might still have something
	for _, p := range s.procs {
		p.close(s)
	}
	s.awaitNothing(soon, func() {})
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
			queue, err := s.admin.LRange(context.Background(), prefixName("redisson_lock_queue", name), 0, -1).Result()
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
				ctx:    ContextWithOwner(context.Background()),
			},
		)
	}
	// A script that could not use the line while a slot moved has left what its waiter asked for: see note_wish in
	// queue.lua.
	within := max(stormTimeout+stormLease+stormFairLife, 4*fairLife) + soon
	for taken := make(map[string]bool); len(taken) < len(s.names); {
		l, h := fresh[0].try(within)
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
		l, h := fresh[i%2].try(next)
		if h != nil && i%5 == 0 { // a waiter gives up meanwhile
			if _, other := fresh[(i+1)%2].try(50 * time.Millisecond); other != nil {
				other.give()
			}
			h.give()
			l, h = fresh[(i+1)%2].try(fairLife / 2)
		}
		if !assert.NotNil(s, h, "%v is refused, and is free: %v, %v", l.names, fresh[0].err, fresh[1].err) {
			return
		}
		h.give()
	}
	s.awaitNothing(within, func() {})
}

// try tries to acquire one of the locks.
func (w *stormWorker) try(wait time.Duration) (stormLock, *stormHold) {
	l := w.kind.locks(w.procs[w.proc].current(), w.names, w.rng)
	return l, w.take(l, takes{wait: wait})
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
	ctx := context.Background()
	for _, rdb := range s.rdbs {
		keys, err := rdb.Keys(ctx, "*").Result()
		require.NoError(s, err)
		channels, err := rdb.PubSubChannels(ctx, "*storm-*").Result()
		require.NoError(s, err)
		sharded, err := rdb.PubSubShardChannels(ctx, "*").Result()
		require.NoError(s, err)
		left = append(left, slices.DeleteFunc(slices.Concat(keys, channels, ofLocks(sharded)), func(key string) bool {
			return strings.HasPrefix(key, "redisson_lock_token:") || strings.HasPrefix(key, "relock_client:") ||
				onlyTombstones(rdb, key) || onlyFree(rdb, key)
		})...)
	}
	return left
}

// contents returns the contents of the hashes among keys.
func (s *storm) contents(keys []string) map[string]map[string]string {
	contents := make(map[string]map[string]string)
	for _, key := range keys {
		for _, rdb := range s.rdbs {
			if hash := rdb.HGetAll(context.Background(), key).Val(); len(hash) > 0 {
				contents[key] = hash
			}
		}
	}
	return contents
}

// A stormWorker acquires locks, works, and releases them.
type stormWorker struct {
	*storm
	number int
	proc   int
	rng    *rand.Rand
	ctx    context.Context
	err    error // why it did not acquire the last one that it asked for
}

func (w *stormWorker) run() {
	for !w.over.Load() {
		w.round()
		time.Sleep(time.Duration(w.rng.IntN(10)) * time.Millisecond)
	}
}

// between returns a random time.
func between(rng *rand.Rand, a, b time.Duration) time.Duration {
	return a + time.Duration(rng.Int64N(int64(b-a)))
}

// takes describes how a lock is asked for.
type takes struct {
	lease  time.Duration // 0 for automatic renewal
	wait   time.Duration // negative to wait forever, 0 for one attempt
	cancel bool          // the context is canceled during the wait
}

func (w *stormWorker) round() {
	l := w.kind.locks(w.procs[w.proc].current(), w.names, w.rng)
	how := takes{wait: -1}
	switch {
	case w.recorder != nil: // leases that expire before their grants are received
		if w.rng.IntN(3) > 0 {
			how.lease = between(w.rng, 20*time.Millisecond, stormLease/3)
		}
	case w.rng.IntN(3) == 0:
		how.lease = between(w.rng, 20*time.Millisecond, stormLease)
	}
	switch w.rng.IntN(5) {
	case 0:
		how.wait = 0
	case 1, 2:
		how.wait = between(w.rng, time.Millisecond, stormTimeout)
		how.cancel = w.rng.IntN(2) == 0
	case 3:
		if how.lease == 0 {
			w.do(l)
			return
		}
	}
	h := w.take(l, how)
	if h == nil {
		return
	}
	h.work()
	var inner *stormHold
	if l.inside != nil && w.rng.IntN(3) == 0 {
		inner = w.take(stormLock{Locker: l.inside, names: l.names, shared: true}, takes{wait: 0})
	} else if w.rng.IntN(3) == 0 {
		h.again()
		h.work()
	}
	h.give()
	if inner != nil { // downgrade
		inner.work()
		inner.give()
	}
}

// op returns the record of one call.
func (w *stormWorker) op(kind history.Kind, l stormLock, c *Client) history.Op {
	return history.Op{
		Kind:   kind,
		Name:   l.names[0],
		Owner:  fmt.Sprintf("%s:%d", c.ID(), int64(engine.OwnerOf(w.ctx))),
		Client: w.proc,
		Shared: l.shared,
	}
}

// clientOf returns the Client that created l.
func clientOf(l Locker) *Client {
	switch l := l.(type) {
	case *MultiLock:
		return l.client
	case known:
		return l.inside().client
	}
	panic("bug")
}

// outcomeOf evaluates the results of a call.
func (w *stormWorker) outcomeOf(err error) history.Outcome {
	assert.NotErrorIs(w, err, ErrInvalid, "a valid call is refused")
	switch {
	case err == nil:
		return history.Done
	case errors.Is(err, ErrLockLost):
		return history.Lost
	case errors.Is(err, ErrNotHeld):
		return history.NotHeld
	}
	return history.Unsure
}

// take acquires a lock that its owner does not hold yet. It returns nil if that fails.
func (w *stormWorker) take(l stormLock, how takes) *stormHold {
	h := &stormHold{w: w, l: l, c: clientOf(l.Locker)}
	op := w.op(history.Take, l, h.c)
	op.Lease, op.Level = how.lease, 1
	// RedLocks that lose a round release their grants in the background; and of several locks another one may have
	// blocked.
	op.Once = how.wait == 0 && w.kind.nodes <= 1 && len(l.names) == 1
	if how.wait > 0 {
		op.GiveUp = w.rec.Now() + how.wait
		if len(l.names) > 1 || w.kind.nodes > 1 {
			op.GiveUp += send.ConnectTime // to release the locks of the set that it has acquired
		}
	}
	op = w.rec.Begin(w.number, op)
	ok, err := w.ask(l, how)
	w.err = err
	outcome := w.outcomeOf(err)
	if err == nil && !ok {
		outcome = history.Refused
	}
	op = w.rec.End(w.number, op, outcome)
	if outcome != history.Done {
		w.count(outcome.String())
		for _, name := range l.names {
			op.Name = name
			w.rec.Fail(op)
		}
		return nil
	}
	h.begin(op, nil)
	return h
}

// ask asks for l.
func (w *stormWorker) ask(l stormLock, how takes) (bool, error) {
	switch {
	case how.wait >= 0 && !how.cancel:
		return l.TryLock(w.ctx, how.wait, how.lease)
	case how.cancel:
		ctx, cancel := context.WithTimeout(w.ctx, how.wait)
		defer cancel()
		how.cancel, how.wait = false, -1
		inner := *w
		inner.ctx = ctx
		return inner.ask(l, how)
	case how.lease > 0:
		err := l.LockLease(w.ctx, how.lease)
		return err == nil, err
	}
	err := l.Lock(w.ctx)
	return err == nil, err
}

// do uses Do for it.
func (w *stormWorker) do(l stormLock) {
	h := &stormHold{w: w, l: l, c: clientOf(l.Locker)}
	take := w.op(history.Take, l, h.c)
	take.Level = 1
	take = w.rec.Begin(w.number, take)
	var give history.Op
	called := false
	err := l.Do(w.ctx, func(ctx context.Context) error {
		called = true
		h.begin(w.rec.End(w.number, take, history.Done), ctx)
		h.work()
		h.look(true)
		give = w.op(history.Give, l, h.c)
		give.GiveUp = w.rec.Now() + send.ConnectTime
		give = w.rec.Begin(w.number, give)
		return nil
	})
	if !called {
		take = w.rec.End(w.number, take, w.outcomeOf(err))
		assert.NotEqual(w, history.Done, take.Outcome, "Do did not call its function, and returned no error")
		if take.Outcome == history.Lost { // as soon as it was acquired
			take.Outcome = history.Unsure
		}
		for _, name := range l.names {
			take.Name = name
			w.rec.Fail(take)
		}
		return
	}
	h.then(w.rec.End(w.number, give, w.outcomeOf(err)))
	h.end()
}

// A stormHold is a hold of a worker.
type stormHold struct {
	w      *stormWorker
	l      stormLock
	c      *Client
	hold   history.Hold
	guard  context.Context
	levels int
	lost   bool

	dooms int64 // number of losses of the lock at the time of the acquire
	value int   // the value that was read under the lock
}

// begin is called when a lock was granted.
func (h *stormHold) begin(take history.Op, guard context.Context) {
	h.w.count("held")
	h.levels = 1
	h.hold.Take = take
	h.hold.Take.Token = h.token()
	at := h.w.rec.Now()
	if guard == nil {
		var err error
		if guard, err = h.l.Guard(h.w.ctx); err != nil {
			h.w.outcomeOf(err)
			h.lost = true
			return
		}
		h.hold.Trusted, h.hold.Untold = at, at
	}
	h.guard = guard
	h.dooms = h.doomed()
	h.look(true)
	if token := h.hold.Take.Token; token != 0 {
		at := h.w.rec.Now()
		var ok bool
		if h.value, ok = h.locked().read(token); !ok {
			h.hold.Overtaken = at
		}
		h.look(true)
	}
}

// doomed returns the number of losses that must be reported to its owner.
func (h *stormHold) doomed() int64 {
	return h.locked().deletions.Load() + h.w.procs[h.w.proc].holes.Load()
}

func (h *stormHold) locked() *guarded { return h.w.locked[h.l.names[0]] }

// write increments the value that the lock protects.
func (h *stormHold) write() {
	token := h.hold.Take.Token
	if token == 0 || h.hold.Overtaken != 0 || h.guard == nil {
		return
	}
	at := h.w.rec.Now()
	if !h.locked().write(token, h.value+1) {
		h.w.count("refused by a token")
		h.hold.Overtaken = at
	}
	h.value++
	h.look(true)
}

// token returns the fencing token of the hold, or 0 if it has none.
func (h *stormHold) token() int64 {
	l, ok := h.l.Locker.(interface {
		Token(context.Context) (int64, error)
	})
	if !ok {
		return 0
	}
	token, err := l.Token(h.w.ctx)
	if err != nil {
		return 0
	}
	return token
}

// look records whether the guard of the hold has ended. If ask is set, it also records whether the lock still confirms
// the hold, which makes the lock read the clock.
func (h *stormHold) look(ask bool) bool {
	if h.guard == nil {
		return false
	}
	at := h.w.rec.Now()
	select {
	case <-h.guard.Done():
		h.lost = true
		return false
	default:
		h.hold.Untold = at
	}
	if ask {
		if h.guard.Err() != nil {
			h.lost = true
			return false
		}
		h.hold.Trusted = at
	}
	return true
}

// work works for a while, or until its guard ends. Some workers wait for that end.
func (h *stormHold) work() {
	rng := h.w.rng
	d := between(rng, 0, 8*time.Millisecond)
	if rng.IntN(80) == 0 {
		d = between(rng, 0, 3*stormTimeout/2)
	}
	asks := rng.IntN(2) == 0 // if false, it relies on its guard
	if lease := h.hold.Take.Lease; lease > 0 && rng.IntN(20) == 0 {
		d = 2*stormLease + stormSlack
	}
	if h.guard == nil {
		return
	}
	step := time.NewTicker(2 * time.Millisecond)
	defer step.Stop()
	end := h.w.rec.Now() + d
	for h.look(asks) && h.w.rec.Now() < end {
		select {
		case <-h.guard.Done():
		case <-step.C:
		}
		if dooms := h.doomed(); h.hold.Take.Lease == 0 && h.dooms != dooms {
			h.dooms = dooms
			h.w.waiting.Add(1)
			defer h.w.waiting.Add(-1)
			end = h.w.rec.Now() + stormTimeout + stormSlack
		}
	}
	h.look(true)
	h.write()
	if !h.lost && rng.IntN(10) == 0 {
		h.countLevels()
	}
}

func (h *stormHold) countLevels() {
	w := h.w
	op := w.rec.Begin(w.number, w.op(history.Count, h.l, h.c))
	ctx, cancel := context.WithTimeout(w.ctx, stormTimeout)
	defer cancel()
	n, err := h.l.HoldCount(ctx)
	op = w.rec.End(w.number, op, w.outcomeOf(err))
	op.Level = n
	if err == nil && n == 0 {
		op.Outcome = history.Lost
	}
	h.then(op)
}

// again acquires the lock once more.
func (h *stormHold) again() {
	w := h.w
	how := takes{wait: 0}
	if w.rng.IntN(2) == 0 {
		how = takes{wait: stormTimeout, cancel: true}
	}
	if w.rng.IntN(2) == 0 && h.hold.Take.Lease > 0 {
		how.lease = between(w.rng, 20*time.Millisecond, stormLease)
	}
	if !h.look(true) {
		return
	}
	op := w.op(history.Take, h.l, h.c)
	op.Lease, op.Level, op.Once = how.lease, h.levels+1, how.wait == 0
	op = w.rec.Begin(w.number, op)
	ok, err := w.ask(h.l, how)
	outcome := w.outcomeOf(err)
	if err == nil && !ok {
		outcome = history.Refused
	}
	op = w.rec.End(w.number, op, outcome)
	if ok && !h.look(true) {
		// The hold was lost around that time, and the present one may be a new hold.
		op.Outcome = history.Unsure
		for _, name := range h.l.names {
			op.Name = name
			w.rec.Fail(op)
		}
		_ = h.l.Unlock(w.ctx)
		return
	}
	if ok {
		w.count("entered again")
		h.levels++
		op.Token = h.token()
	}
	h.then(op)
}

// then records the outcome of a call.
func (h *stormHold) then(op history.Op) {
	if op.Outcome == history.NotHeld && h.hold.Take.Lease > 0 {
		op.Outcome = history.Lost // there is no hold to release
	}
	if op.Outcome == history.Lost {
		h.lost = true
		h.w.count("lost")
	}
	h.hold.Then = append(h.hold.Then, op)
}

// give calls Unlock until the hold count is 0.
func (h *stormHold) give() {
	w := h.w
	for ; h.levels > 0; h.levels-- {
		h.look(true)
		op := w.op(history.Give, h.l, h.c)
		op.GiveUp, op.Level = w.rec.Now()+send.ConnectTime, h.levels-1
		op = w.rec.Begin(w.number, op)
		err := h.l.Unlock(w.ctx)
		h.then(w.rec.End(w.number, op, w.outcomeOf(err)))
	}
	h.end()
}

// end records the hold, for every lock to which it belonged.
func (h *stormHold) end() {
	for _, name := range h.l.names {
		hold := h.hold
		hold.Take.Name = name
		hold.Then = slices.Clone(hold.Then)
		for i := range hold.Then {
			hold.Then[i].Name = name
		}
		h.w.rec.Hold(hold)
	}
}

// A nemesis causes faults, one after the other, until its time is up.
type nemesis struct {
	*storm
	rng *rand.Rand
	end time.Time
}

func (n *nemesis) run() {
	if n.recorder != nil {
		n.hurry()
		return
	}
	faults := []func(){
		n.shake,
		n.shake,
		n.shake,
		n.shake,
		n.killConnections,
		n.flushScripts,
		n.blackHole,
		n.slowLine,
		n.restartProcess,
	}
	switch {
	case n.kind.on == sentinel:
		faults = append(faults, n.delete, n.failOver, n.failOver)
	case n.kind.on == cluster:
		faults = append(faults, n.delete, n.failOver, n.failOver, n.moveSlot, n.moveSlot)
	case n.kind.nodes == 1:
		faults = append(faults, n.freeze, n.pause, n.delete, n.delete, n.restartEmpty)
	default:
		faults = append(faults, n.freeze, n.pause, n.killMinority, n.killMinority)
	}
	n.sleep(0, min(time.Until(n.end)/2, 5*stormTimeout)) // a time without faults
	for n.sleep(0, stormTimeout/2) {
		if n.rng.IntN(6) == 0 {
			n.sleep(0, 2*stormTimeout) // a time without faults
			continue
		}
		faults[n.rng.IntN(len(faults))]()
	}
}

// sleep sleeps for a while, and reports whether there is time left.
func (n *nemesis) sleep(least, most time.Duration) bool {
	d := between(n.rng, least, most)
	if left := time.Until(n.end); left < d {
		time.Sleep(max(0, left))
		return false
	}
	time.Sleep(d)
	return true
}

// await waits until the losses that it caused have been reported to the holders.
func (n *nemesis) await(most time.Duration) {
	deadline := time.Now().Add(most)
	for time.Now().Before(deadline) && n.sleep(stormTimeout/50, stormTimeout/20) && n.waiting.Load() > 0 {
	}
}

// last lets a fault last, sometimes for long enough that the holders notice their loss.
func (n *nemesis) last(who ...*stormProcess) {
	if n.rng.IntN(2) == 0 {
		n.sleep(stormTimeout/5, stormFault)
		return
	}
	for _, p := range who {
		p.holes.Add(1)
	}
	n.sleep(stormTimeout+stormTimeout/5, stormFault)
}

// hurt records the fault that f causes, and for how long it may have effects.
func (n *nemesis) hurt(what string, client int, f func()) {
	n.count(what)
	from := n.rec.Now()
	f()
	n.rec.Fault(
		history.Fault{Kind: history.Disturbs, What: what, Client: client, From: from, To: n.rec.Now() + stormTimeout/2},
	)
}

func (n *nemesis) hush(what string, client int, from time.Duration) {
	n.rec.Fault(history.Fault{Kind: history.Silences, What: what, Client: client, From: from, To: n.rec.Now()})
}

func (n *nemesis) forget(what, name string, f func()) {
	n.count(what)
	from := n.rec.Now()
	f()
	n.rec.Fault(
		history.Fault{Kind: history.Forgets, What: what, Name: name, Client: history.AllClients, From: from, To: n.rec.Now()},
	)
}

// onProxies is hurt for the processes that use proxies.
func (n *nemesis) onProxies(what string, f func()) {
	from := n.rec.Now()
	n.hurt(what, 1, f)
	for i := 3; i < stormClients; i += 2 {
		n.rec.Fault(
			history.Fault{Kind: history.Disturbs, What: what, Client: i, From: from, To: n.rec.Now() + stormTimeout/2},
		)
	}
}

// shake makes the proxies lose, stall, drop, delay and hold a few requests.
func (n *nemesis) shake() {
	kinds := []struct {
		what  string
		fault testredis.Fault
	}{
		{"answers lost", testredis.LoseReply},
		{"answers stalled", testredis.StallReply},
		{"requests dropped", testredis.DropRequest},
		{"requests held", testredis.HoldRequest},
		{"requests delayed", testredis.DelayRequest(between(n.rng, 0, stormTimeout))},
		{"answers delayed", testredis.DelayReply(between(n.rng, 0, stormTimeout))},
	}
	k := kinds[n.rng.IntN(len(kinds))]
	match := func(cmd []string) bool { return strings.HasPrefix(strings.ToLower(cmd[0]), "eval") }
	switch n.rng.IntN(3) {
	case 0:
		match = n.anyOf(renewScript, readRenew)
	case 1:
		match = n.anyOf(lockRelease, fairRelease, readRelease, writeRelease)
	}
	times := 1 + n.rng.IntN(4)
	n.onProxies(k.what, func() {
		var rules []*testredis.Rule
		for _, p := range n.proxies {
			rules = append(rules, p.On(match, k.fault).Times(times))
		}
		n.sleep(0, stormTimeout)
		for _, r := range rules {
			r.Release()
		}
	})
}

// hurry causes short faults that bring the scripts of the line into all of their cases. A record ends with a script, or
// with its lease.
func (n *nemesis) hurry() {
	rare := []func(){n.freeze, n.blackHole, n.restartProcess, n.flushScripts, n.pause}
	often := []func(){n.shake, n.killConnections, n.delayAsks, n.delayAsks, n.delayAll, n.delayAll}
	for n.sleep(0, stormTimeout/10) {
		faults := often
		if n.rng.IntN(10) == 0 {
			faults = rare
		}
		faults[n.rng.IntN(len(faults))]()
	}
}

// delayAsks makes requests run late, some of them after their callers have given up.
func (n *nemesis) delayAsks() {
	n.onProxies("asks delayed", func() {
		for _, p := range n.proxies {
			p.On(n.anyOf(lockAcquire), testredis.DelayRequest(between(n.rng, 0, stormTimeout/2))).Times(20)
		}
		n.sleep(0, stormTimeout/4)
	})
}

// delayAll makes all requests take longer than short leases, which expire before their grants are received.
func (n *nemesis) delayAll() {
	n.onProxies("late grants", func() {
		for _, p := range n.proxies {
			p.Latency(between(n.rng, 0, stormTimeout/5))
		}
		n.sleep(stormTimeout/5, stormTimeout/2)
		for _, p := range n.proxies {
			p.Latency(0)
		}
	})
}

// anyOf matches the runs of these scripts, even if they are recorded.
func (n *nemesis) anyOf(scripts ...*luaScript) testredis.Match {
	if n.recorder != nil {
		for i, script := range scripts {
			scripts[i] = n.recorder.Sent(script)
		}
	}
	return anyOf(scripts...)
}

func (n *nemesis) killConnections() {
	kind := []string{"normal", "pubsub"}[n.rng.IntN(2)]
	n.hurt("connections killed", history.AllClients, func() {
		for _, rdb := range n.rdbs {
			_ = rdb.Do(context.Background(), "client", "kill", "type", kind, "skipme", "yes").Err()
		}
	})
}

// freeze pauses a server, or, of several servers, a minority or more.
func (n *nemesis) freeze() {
	some := 1 + n.rng.IntN(len(n.servers))
	n.hurt("frozen", history.AllClients, func() {
		of := n.rng.Perm(len(n.servers))[:some]
		for _, i := range of {
			n.servers[i].Freeze()
		}
		from := n.rec.Now()
		if some > len(n.servers)/2 {
			n.last(n.procs[:stormClients]...)
			n.hush("a frozen Redis", history.AllClients, from)
		} else {
			n.last()
		}
		for _, i := range of {
			n.servers[i].Thaw()
		}
	})
}

func (n *nemesis) pause() {
	mode := []string{"all", "write"}[n.rng.IntN(2)]
	n.hurt("paused", history.AllClients, func() {
		d := between(n.rng, 0, stormTimeout)
		for _, rdb := range n.rdbs {
			_ = rdb.Do(context.Background(), "client", "pause", d.Milliseconds(), mode).Err()
		}
		time.Sleep(d)
	})
}

func (n *nemesis) flushScripts() {
	n.hurt("scripts flushed", history.AllClients, func() {
		for _, rdb := range n.rdbs {
			_ = rdb.ScriptFlush(context.Background()).Err()
		}
	})
}

func (n *nemesis) blackHole() {
	n.onProxies("black hole", func() {
		if n.rng.IntN(2) == 0 { // at the end of a connection that becomes slow
			d := between(n.rng, 0, stormTimeout/8)
			for _, p := range n.proxies {
				p.Latency(d)
			}
			n.sleep(0, stormTimeout)
		}
		for _, p := range n.proxies {
			p.BlackHole(true)
		}
		from := n.rec.Now()
		n.last(n.procs[1], n.procs[3])
		for i := 1; i < stormClients; i += 2 {
			n.hush("a black hole", i, from)
		}
		for _, p := range n.proxies {
			p.Latency(0)
			p.BlackHole(false)
			if n.rng.IntN(2) == 0 {
				p.CutAll()
			}
		}
	})
}

// restartProcess closes the Clients of one process while they are used.
func (n *nemesis) restartProcess() {
	i := n.rng.IntN(stormClients)
	n.hurt("clients closed", i, func() { n.procs[i].restart(n.storm) })
}

// slowLine makes all requests over the proxies take longer.
func (n *nemesis) slowLine() {
	n.onProxies("slow line", func() {
		d := between(n.rng, 0, stormTimeout/8)
		for _, p := range n.proxies {
			p.Latency(d)
		}
		n.sleep(0, stormFault)
		for _, p := range n.proxies {
			p.Latency(0)
		}
	})
}

// delete deletes records, as an operator may do.
func (n *nemesis) delete() {
	name := n.names[n.rng.IntN(len(n.names))]
	alone := n.rng.IntN(4) > 0 // no other fault, so that every holder has to notice
	if alone {
		n.sleep(stormTimeout/2, stormTimeout)
	}
	n.forget("deleted", name, func() {
		keys := []string{name}
		for _, k := range recordLocks {
			if k.holds != nil {
				keys = append(keys, k.holds(name))
			}
		}
		testredis.Await(n, "the records are deleted", soon, func() bool { // just after a failover it may be refused
			return n.admin.Del(context.Background(), keys...).Err() == nil
		})
	})
	n.locked[name].deletions.Add(1)
	if alone {
		n.await(stormTimeout/2 + stormSlack)
	}
}

func (n *nemesis) restartEmpty() {
	n.hurt("restarted empty", history.AllClients, func() {
		n.forget("data lost", "", n.servers[0].Restart)
	})
}

// killMinority kills some servers, which stay offline for as long as records that they have lost may be valid for a
// client.
func (n *nemesis) killMinority() {
	n.hurt("a minority killed", history.AllClients, func() {
		some := n.rng.Perm(len(n.servers))[:1+n.rng.IntN((len(n.servers)-1)/2)]
		for _, i := range some {
			n.servers[i].Kill()
		}
		time.Sleep(stormTimeout + stormTimeout/5)
		for _, i := range some {
			n.servers[i].Restart()
		}
	})
}

// failOver promotes the replica of a master. The master works, is killed or is paused, and returns some time later.
// Clients that require no replica may lose its records.
func (n *nemesis) failOver() {
	name := n.names[n.rng.IntN(len(n.names))]
	old, of := n.masterOf(name)
	end, back, behind := old.Kill, old.Restart, n.rng.IntN(2) == 0
	switch n.rng.IntN(4) {
	case 0:
		end, back = old.Freeze, old.Thaw
	case 1, 2: // before any lease has expired
		end, back, behind = func() { n.takeOver(old) }, func() {}, true
	}
	n.hurt("failover", history.AllClients, func() {
		from := n.rec.Now()
		if behind { // the replica has not received the last writes
			n.count("replica behind")
			old.RefuseReplicas()
			n.sleep(stormTimeout/5, stormTimeout/2)
		}
		if n.sentinel != nil {
			n.sentinel.FailoverAfter(end)
		} else {
			n.cluster.FailoverAfter(old, end)
		}
		for _, name := range of {
			n.locked[name].deletions.Add(1)
		}
		n.sleep(0, stormTimeout)
		back()
		old.AcceptReplicas()
		n.settle()
		if n.kind.sync {
			master, _ := n.masterOf(name)
			master.AwaitReplicas("{"+name+"}", 1) // the master counts a replica that is back only when the replica reports it
			return
		}
		for _, name := range of {
			n.rec.Fault(
				history.Fault{
					Kind:   history.Forgets,
					What:   "not replicated",
					Name:   name,
					Client: history.AllClients,
					From:   from,
					To:     n.rec.Now(),
				},
			)
		}
	})
}

// takeOver promotes the replica of a working master.
func (n *nemesis) takeOver(old *testredis.Server) {
	var to *testredis.Server
	var cmd []any
	if n.sentinel != nil {
		to, cmd = n.sentinel.Sentinels()[0], []any{"sentinel", "failover", n.sentinel.MasterName()}
	} else {
		to, cmd = n.cluster.ReplicasOf(old)[0], []any{"cluster", "failover", "takeover"}
	}
	testredis.Await(n, "a replica may take over", soon, func() bool {
		return to.Client().Do(context.Background(), cmd...).Err() == nil
	})
}

// masterOf returns the master of a name, and the other names for which it is the master.
func (n *nemesis) masterOf(name string) (*testredis.Server, []string) {
	if n.sentinel != nil {
		return n.sentinel.Master(), n.names
	}
	master := n.cluster.MasterOf(name)
	return master, slices.DeleteFunc(
		slices.Clone(n.names),
		func(other string) bool { return n.cluster.MasterOf(other) != master },
	)
}

func (n *nemesis) settle() {
	if n.sentinel != nil {
		n.sentinel.Settle()
	} else {
		n.cluster.Settle()
	}
}

// moveSlot moves the slot of a lock to another master, sometimes slowly.
func (n *nemesis) moveSlot() {
	name := n.names[n.rng.IntN(len(n.names))]
	from := n.cluster.MasterOf(name)
	to := from
	for to == from {
		to = n.cluster.MasterOf(fmt.Sprint(n.rng.Int()))
	}
	n.hurt("slot moved", history.AllClients, func() {
		finish := n.cluster.BeginMigration(name, to)
		if n.rng.IntN(2) == 0 {
			n.sleep(0, stormFault)
		}
		finish()
		if n.kind.sync {
			to.AwaitReplicas("{"+name+"}", 1)
		}
	})
}

var soakTime = flag.Duration("soak", 0, "how long TestSoak runs; 0: not at all")

func TestSoak(t *testing.T) {
	if *soakTime == 0 {
		t.Skip("it runs with -soak=30m")
	}
	ctx := context.Background()
	servers := []*testredis.Server{testredis.Start(t), testredis.Start(t), testredis.Start(t)}
	type service struct {
		clients []*Client
		rdbs    []*redis.Client
	}
	services := make([]service, 4)
	for i := range services {
		for _, s := range servers {
			rdb := redis.NewClient(&redis.Options{Addr: s.Addr()})
			c, err := New(rdb)
			require.NoError(t, err)
			services[i].clients, services[i].rdbs = append(services[i].clients, c), append(services[i].rdbs, rdb)
		}
	}
	kinds := map[string]func(s service, name string) []Locker{
		"plain":  func(s service, name string) []Locker { return []Locker{s.clients[0].NewLock(name)} },
		"fenced": func(s service, name string) []Locker { return []Locker{s.clients[0].NewLock(name, Fenced())} },
		"fair":   func(s service, name string) []Locker { return []Locker{s.clients[0].NewFairLock(name)} },
		"rw": func(s service, name string) []Locker {
			rw := s.clients[0].NewRWLock(name)
			return []Locker{rw.Read(), rw.Read(), rw.Read(), rw.Write()}
		},
		"semaphore": func(s service, name string) []Locker { return []Locker{s.clients[0].NewSemaphore(name, 3)} },
		"multi":     func(s service, name string) []Locker { return []Locker{newWideMultiLock(s.clients[0], name)} },
		"red": func(s service, name string) []Locker {
			var all []Locker
			for _, c := range s.clients {
				all = append(all, c.NewLock(name))
			}
			return []Locker{s.clients[0].NewRedLock(all...)}
		},
	}
	var sections, gaveUp, unanswered, failed, over atomic.Int64
	var workers sync.WaitGroup
	for kind, locks := range kinds {
		for _, s := range services {
			for worker := range 4 {
				waitgroup.Go(&workers, func() {
					for n := 0; over.Load() == 0; n++ {
						name := "soak-" + kind
						if n%2 == 1 { // names are used for a while and then no more
							name = fmt.Sprintf("%s-%d", name, n/2%1000)
						}
						for _, l := range locks(s, name) {
							var ok bool
							var err error
							switch (n + worker) % 4 {
							case 0:
								ok, err = l.TryLock(ctx, 5*time.Millisecond, 0)
							case 1:
								ok, err = l.TryLock(ctx, time.Second, time.Minute)
							default:
								err = l.Lock(ctx)
								ok = err == nil
							}
							switch {
							case errors.Is(err, engine.ErrNoAnswer): // the machine is busy
								unanswered.Add(1)
							case err != nil:
								failed.Add(1)
								assert.NoError(t, err)
								return
							case !ok:
								gaveUp.Add(1)
							default:
								sections.Add(1)
								if err := l.Unlock(ctx); err != nil {
									failed.Add(1)
									assert.NoError(t, err)
									return
								}
							}
						}
					}
				})
			}
		}
	}

	type sample struct {
		heap       uint64
		goroutines int
		keys       int64
	}
	var samples []sample
	const count = 30
	for range count {
		time.Sleep(*soakTime / count)
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		s := sample{heap: m.HeapAlloc, goroutines: runtime.NumGoroutine()}
		for _, rdb := range services[0].rdbs {
			s.keys += rdb.DBSize(ctx).Val()
		}
		samples = append(samples, s)
		t.Logf("%d sections, %d gave up, %d unanswered, %d errors: heap %d KiB, %d goroutines, %d keys",
			sections.Load(), gaveUp.Load(), unanswered.Load(), failed.Load(), s.heap>>10, s.goroutines, s.keys)
	}
	over.Store(1)
	workers.Wait()

	// The least of the last third is compared with the most of the second third: anything that grows is above it.
	least := slices.MinFunc(samples[2*count/3:], func(a, b sample) int { return int(a.heap) - int(b.heap) })
	most := slices.MaxFunc(samples[count/3:2*count/3], func(a, b sample) int { return int(a.heap) - int(b.heap) })
	assert.LessOrEqual(t, least.heap, most.heap, "the heap grows, in bytes")
	leastG := slices.MinFunc(samples[2*count/3:], func(a, b sample) int { return a.goroutines - b.goroutines })
	mostG := slices.MaxFunc(samples[count/3:2*count/3], func(a, b sample) int { return a.goroutines - b.goroutines })
	assert.LessOrEqual(t, leastG.goroutines, mostG.goroutines, "goroutines pile up")
	for _, rdb := range services[0].rdbs {
		testredis.Await(t, "nothing is left", soon, func() bool {
			keys := rdb.Keys(ctx, "*").Val()
			return !slices.ContainsFunc(
				keys,
				func(key string) bool { return !strings.HasPrefix(key, "redisson_lock_token") && !isLeftFree(rdb, key) },
			)
		})
		testredis.Await(t, "nothing is subscribed", soon, func() bool { return len(ofLocks(rdb.PubSubChannels(ctx, "*").Val())) == 0 })
	}
	for _, s := range services {
		for i, c := range s.clients {
			assert.NoError(t, c.Close())
			_ = s.rdbs[i].Close()
		}
	}
}

// A child is a process that holds or awaits the lock of every type.
type child struct {
	*testing.T
	cmd   *exec.Cmd
	lines chan string
}

// startChild runs a child until the test ends.
func startChild(b *faultBench, env []string, does ...string) *child {
	b.Helper()
	c := &child{T: b.T, cmd: exec.Command(os.Args[0], "-test.run=^TestChild$", "-test.v"), lines: make(chan string, 1000)}
	c.cmd.Env = append(append(os.Environ(), env...), "RELOCK_TEST_CHILD="+b.addr+" "+b.name+" "+strings.Join(does, " "))
	out, err := c.cmd.StdoutPipe()
	b.must(err)
	b.must(c.cmd.Start())
	go func() {
		defer close(c.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			if line, ok := strings.CutPrefix(s.Text(), "child: "); ok {
				c.lines <- line
			}
		}
	}()
	b.Cleanup(func() {
		_ = c.cmd.Process.Signal(syscall.SIGCONT)
		_ = c.cmd.Process.Kill() // it may have exited
		_ = c.cmd.Wait()
	})
	return c
}

// says waits for the next line of the child, and requires that it is want.
func (c *child) says(want string) {
	c.Helper()
	select {
	case line, ok := <-c.lines:
		require.True(c, ok, "the child has ended")
		require.Equal(c, want, line, "the child says")
	case <-time.After(childStart):
		require.Fail(c, "the child does not answer", "want %q", want)
	}
}

func (c *child) signal(s syscall.Signal) {
	c.Helper()
	require.NoError(c, c.cmd.Process.Signal(s))
}

const (
	childLease = 2 * time.Second
	childStart = 4 * soon // its program starts, together with many others, under the race detector
)

// TestChild is the program of a child.
func TestChild(t *testing.T) {
	does := strings.Fields(os.Getenv("RELOCK_TEST_CHILD"))
	if len(does) == 0 {
		return // it is used by the tests below
	}
	b := &faultBench{bench: &bench{T: t, addr: does[0], name: does[1], rdb: testredis.Client(t, does[0])}}
	ctx := context.Background()
	say := func(format string, args ...any) { fmt.Printf("child: "+format+"\n", args...) }
	c := b.client(WithWatchdogTimeout(childLease))
	switch does[2] {
	case "hold":
		l := lockOf(does[3]).one(c, b.name)
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		last := time.Now()
		say("held")
		for {
			pause := syscall.NsecToTimespec(1e6)
			_ = syscall.Nanosleep(&pause, nil) // not a timer of Go, because other goroutines would also wait for it
			now := time.Now()
			if now.Sub(last) > childLease {
				break
			}
			last = now
		}
		say("paused, guard alive: %v", guarded.Err() == nil)
		held, err := l.IsHeld(ctx)
		say("held: %v, %v", held, err)
		say("unlock says lost: %v", errors.Is(l.Unlock(ctx), ErrLockLost))
	case "wait":
		say("waiting")
		b.must(lockOf(does[3]).one(c, b.name).Lock(ctx))
		say("held")
	case "take":
		l := lockOf(does[3]).one(c, b.name)
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		say("held, guard: %v, alive: %v", err, guarded != nil && guarded.Err() == nil)
	case "many":
		manyLocks(b, c)
		say("done, failed: %v", t.Failed())
	}
}

func lockOf(kind string) faultLock {
	for _, k := range faultLocks {
		if k.name == kind {
			return k
		}
	}
	panic("no lock type " + kind)
}

// Row 32: a holder is paused for longer than its lease, and another client acquires the lock. When the holder
// continues, its guard has ended before it can check it, and its Unlock does not affect the new holder.
func TestFaultPausedHolderFindsItsGuardEnded(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		c := startChild(b, nil, "hold", k.name)
		c.says("held")
		b.tries(k.rival(b.direct, b.name), false)
		c.signal(syscall.SIGSTOP)
		ctx := context.Background()
		next := k.rival(b.direct, b.name)
		start := time.Now()
		b.must(next.Lock(ctx))
		time.Sleep(time.Until(start.Add(childLease + childLease/2))) // the pause lasts longer than the lease
		c.signal(syscall.SIGCONT)
		c.says("paused, guard alive: false")
		c.says("held: false, <nil>")
		c.says("unlock says lost: true")
		b.holds(next, 1)
		b.must(next.Unlock(ctx))
	})
}

// A process is paused between its request and the answer for longer than the lease, and another client holds the lock
// meanwhile. When the process continues it asks again, and holds what it reports.
func TestFaultAnswerLaterThanTheLeaseIsNoHold(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		if k.red { // its nodes have timeouts of their own
			return
		}
		ctx := context.Background()
		over := &faultBench{bench: &bench{T: b.T, addr: b.proxy.Addr(), name: b.name, rdb: b.rdb}}
		answer := b.proxy.On(k.takes, testredis.DelayReply(100*time.Millisecond))
		c := startChild(over, nil, "take", k.name)
		awaitFor(b.bench, "it is granted", answer.Fired(), childStart)
		c.signal(syscall.SIGSTOP)
		next := k.rival(b.direct, b.name)
		b.must(next.Lock(ctx))
		b.must(next.Unlock(ctx))
		c.signal(syscall.SIGCONT)
		c.says("held, guard: <nil>, alive: true")
	})
}

// Row 60: a holder is killed. Waiters acquire the lock when its lease expires, and not later.
func TestFaultKilledHolderBlocksForItsLease(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		c := startChild(b, nil, "hold", k.name)
		c.says("held")
		c.signal(syscall.SIGKILL)
		start := time.Now()
		next := k.rival(b.direct, b.name)
		b.must(next.Lock(context.Background()))
		assert.LessOrEqual(b, time.Since(start), childLease+soon, "time that the dead holder blocked others")
		b.must(next.Unlock(context.Background()))
	})
}

// Rows 43, 60: a waiter is killed: at the head of the queue of a fair lock, or a writer that keeps out readers. The
// others acquire the lock within seconds.
func TestFaultKilledWaiterBlocksForSeconds(t *testing.T) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		ctx := context.Background()
		held := k.rival(b.direct, b.name)
		b.must(held.Lock(ctx))
		c := startChild(b, nil, "wait", k.name)
		c.says("waiting")
		testredis.Await(b, "it waits in Redis", soon, func() bool {
			channels, err := b.rdb.PubSubChannels(ctx, "*"+b.name+"*").Result()
			return err == nil && len(channels) > 0
		})
		c.signal(syscall.SIGKILL)
		next, owner := k.one(b.client(), b.name), ContextWithOwner(ctx)
		got := make(chan error, 1)
		go func() { got <- next.Lock(owner) }()
		stays(b, "it is held", got, 100*time.Millisecond)
		b.must(held.Unlock(ctx))
		select {
		case err := <-got:
			b.must(err)
		case <-time.After(2*fairLife + soon):
			require.Fail(b, "the dead waiter is in the way")
		}
		b.must(next.Unlock(owner))
	})
}

// Row 43: processes are killed while they wait: the release passes the lock on to the next process that is alive.
func TestFaultKilledWaitersDelayNobody(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"lock", "fair"} {
		t.Run(kind, func(t *testing.T) {
			b, k := newFaultBench(t), lockOf(kind)
			ctx := context.Background()
			held := k.one(b.direct, b.name)
			b.must(held.Lock(ctx))
			wait := func(n int) {
				t.Helper()
				testredis.Await(b, fmt.Sprintf("%d wait in Redis, and listen", n), childStart, func() bool {
					waiters := 0
					for field := range b.wishes() { // a client has an entry, or a waiter its request
						if len(field) == 36 || strings.Contains(field, ":") {
							waiters++
						}
					}
					return waiters == n
				})
			}
			var dead []*child
			for n := range 3 {
				dead = append(dead, startChild(b, nil, "wait", k.name))
				wait(n + 1)
			}
			next, owner := k.one(b.client(), b.name), ContextWithOwner(ctx)
			got := make(chan error, 1)
			go func() { got <- next.Lock(owner) }()
			wait(4)
			b.hears(b.direct)
			for _, c := range dead {
				c.signal(syscall.SIGKILL)
			}
			testredis.Await(b, "their connections are gone", soon, func() bool {
				listening := b.rdb.Do(ctx, "client", "list", "type", "pubsub").Val().(string)
				return strings.Count(listening, "\n") == 2 // of the holder, and of the next one
			})
			start := time.Now()
			b.must(held.Unlock(ctx))
			b.must(await(b.bench, "the next one has the lock", got))
			took := time.Since(start) // milliseconds, on a machine that is not busy
			assert.Less(t, took, fairLife/2, "time that three dead processes delay a living one")
			t.Logf("the lock passed on within %v", took)
			b.must(next.Unlock(owner))
			assert.Empty(t, b.queue(), "nobody waits, and the dead are gone")
		})
	}
}

// Row 40: one processor, other processes that load it, and many locks: the locks are renewed, or their holders learn of
// the loss in time.
func TestFaultStarvedProcessTrustsNoLostLock(t *testing.T) {
	t.Parallel()
	b := newFaultBenchOn(t, testredis.Start(t))
	startChild(b, []string{"GOMAXPROCS=1"}, "many").says("done, failed: false")
}

func manyLocks(b *faultBench, c *Client) {
	ctx := context.Background()
	for range 4 {
		go func() {
			for !time.Now().IsZero() { // until the process exits
			}
		}()
	}
	var locks []*Lock
	var guards []context.Context
	for i := range full(10, 50) {
		l := c.NewLock(fmt.Sprint(b.name, i))
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		locks, guards = append(locks, l), append(guards, guarded)
	}
	kept := 0
	for start := time.Now(); time.Since(start) < 2*childLease; time.Sleep(childLease / 20) {
		for i, l := range locks {
			there := b.rdb.Exists(ctx, l.Name()).Val()
			if there == 0 {
				require.Error(b, guards[i].Err(), "%s is trusted, and free", l.Name())
			}
		}
	}
	for i, l := range locks {
		if guards[i].Err() == nil {
			kept++
		}
		_ = l.Unlock(ctx)
	}
	assert.NotZero(b, kept, "all are lost, and a lack of processor time does not explain that")
}
