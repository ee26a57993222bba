package relock

// Helpers that several test files share and that need no bubble. Those that need one are in fake_test.go.
//
// A test file has the name of its source file, and the tests of that part; those of a part with many rules have a
// second word, as semaphore_line has. These files are about more than one part:
//
//	conformance      the rules that every lock type keeps
//	notalock         keys that hold other data than a lock
//	guard, handoff   contexts that end with a hold; how a lock passes inside the process
//	extend           leases that are extended
//	limits           MaxHold and MinHold
//	tokens           fencing tokens
//	line, line_...   the wait queue in Redis: grants, places that expire, callers that leave, Java, permissions, and
//	                 read/write locks
//	tombstones       fields that must no longer acquire a lock
//	poller           how waiters notice that a lock is free
//	fair_model       the queue of a FairLock in every order of events, against a model
//	rw_model         the scripts of the read/write lock, against a model
//	scriptfaults     scripts that find other data in their keys, or may not run a command
//	shortcuts        the short cuts of scripts, against the code behind them
//	fuzz             input from Redis and from users
//	storm, storm_... many clients under faults; the history is checked
//	soak             many clients for a long time
//	faults           which test covers which row of docs/reliability.md
//	faults_...       faults between a Client and Redis, of Redis itself, and of processes
//	cluster          Redis Cluster
//	replication      replicas and failovers
//	security         TLS, permissions in Redis, and secrets in texts
//	trace            the effects of the scripts, as steps of the specification
//	docs             the code and the texts in the documentation, and what importing the package costs
//	virtual          waits and outages in virtual time, with several servers
//	example          the code of the documentation
//	bench            benchmarks
//	fake, helpers, main   no tests
//
// The tests of the engine, which need no Client, are in internal/engine.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// full returns how many cases a test tries, or for how long: plain, or long in the long form: see testredis.Long.
func full[T int | uint64 | time.Duration](plain, long T) T { return testredis.Full(plain, long) }

// lockedBuffer is a buffer that a logger may write to while a test reads.
type lockedBuffer struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// waitsInQueue reports whether an owner waits for l in the queue of this process.
func (b *bench) waitsInQueue(l known) bool {
	return b.waitersInQueue(l) > 0
}

// waitersInQueue returns how many owners wait for l in the queue of this process.
func (b *bench) waitersInQueue(l known) int {
	waiters, _, _ := waitersOf(l)
	return waiters
}

// asks reports whether an owner of this process contends for l.
func (b *bench) asks(l known) bool {
	_, front, _ := waitersOf(l)
	return front
}

func waitersOf(l known) (waiters int, front, busy bool) {
	h := l.inside()
	return h.client.engine.Probe().Waiters(h.lock)
}

func newRand(seed int) *rand.Rand { return rand.New(rand.NewPCG(uint64(seed), 1)) }

const forever = -1

// An answerError is an error reply of Redis.
type answerError string

func (e answerError) Error() string { return string(e) }
func (answerError) RedisError()     {}

// send sends a call of a lock by itself.
func (c *Client) send(what call) (reply, error) {
	answer := c.engine.Probe().Sender().Do(&send.Wait{Ctx: context.Background()}, send.Request{Call: what}, time.Time{})
	r, _, err := answer.Forced()
	return r, err
}

// sendAttempt makes one attempt on a lock.
func sendAttempt(l *fairLock, a contract.Attempt) (contract.Outcome, error) {
	r, err := l.client.send(l.Acquire(a))
	if err != nil {
		return contract.Outcome{}, err
	}
	return l.ReadReply(a, r)
}

// released returns a release as an engine creates it that has not measured a round trip.
func released(field string, left int, late bool) contract.Release {
	return contract.Release{Field: field, HoldCount: left, Late: late, Share: engine.LeastShare}
}

// aboutASecond is how long a connection that hangs may delay a call (L7), on a machine that is busy.
const aboutASecond = 3500 * time.Millisecond

// patientClient returns a client over the proxy with the defaults of go-redis: it waits for an answer for five seconds.
func (b *faultBench) patientClient(opts ...Option) *Client {
	b.Helper()
	return b.clientOn(b.proxy.Client(), opts...)
}

// processHook is a hook of a Redis client around single commands and pipelines.
type processHook func(send func() error) error

func (processHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h processHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if name := cmd.Name(); name != "evalsha" && name != "eval" {
			return next(ctx, cmd)
		}
		return h(func() error { return next(ctx, cmd) })
	}
}

func (h processHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if name := cmds[0].Name(); name != "evalsha" && name != "eval" {
			return next(ctx, cmds)
		}
		return h(func() error { return next(ctx, cmds) })
	}
}

// commandHook is a hook of a Redis client that sees every command before it is sent.
type commandHook func(cmd redis.Cmder)

func (commandHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h commandHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h(cmd)
		return next(ctx, cmd)
	}
}

func (h commandHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			h(cmd)
		}
		return next(ctx, cmds)
	}
}

// freeSoon checks that nothing except token counters is left in Redis, long before any lease expires.
func (b *bench) freeSoon() {
	b.Helper()
	fb := &faultBench{bench: b}
	testredis.Await(b, "nothing is left of the lock", soon, func() bool { return len(fb.records()) == 0 })
}

// ofLocks returns the channels without those on which Clients listen while they have old holds.
func ofLocks(channels []string) []string {
	return slices.DeleteFunc(channels, func(name string) bool { return strings.HasPrefix(name, "relock_client:") })
}

// hearers returns how many connections have subscribed to a channel.
func (b *bench) hearers(channel string) int64 {
	return b.rdb.PubSubNumSub(context.Background(), channel).Val()[channel]
}

// scriptRuns returns how many scripts the server has run.
func (b *bench) scriptRuns() int {
	b.Helper()
	stats, err := b.rdb.Info(context.Background(), "commandstats").Result()
	b.must(err)
	var runs int
	for _, line := range strings.Split(stats, "\r\n") {
		var n int
		if _, err := fmt.Sscanf(line, "cmdstat_evalsha:calls=%d,", &n); err == nil {
			runs = n
		}
	}
	return runs
}

type pipeCounter struct {
	counter
	mu    sync.Mutex // guards pipes
	pipes []int
}

func (c *pipeCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.mu.Lock()
		c.pipes = append(c.pipes, len(cmds))
		c.mu.Unlock()
		return next(ctx, cmds)
	}
}

func (c *pipeCounter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pipes)
}

func (c *pipeCounter) calls() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pipes {
		n += p
	}
	return n
}

// nilCtx is passed to calls that have to reject it.
var nilCtx context.Context

// A recorder stores the events that it receives. It calls the engine for each event, which would deadlock if the engine
// held its mutex.
type recorder struct {
	NopObserver
	engine *engine.Engine

	mu     sync.Mutex // guards below
	events []any
}

func (r *recorder) note(e any) {
	if r.engine != nil {
		_ = r.engine.Open()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *recorder) Waiting(_ context.Context, e WaitingEvent)             { r.note(e) }
func (r *recorder) Acquired(_ context.Context, e AcquiredEvent)           { r.note(e) }
func (r *recorder) GaveUp(_ context.Context, e GaveUpEvent)               { r.note(e) }
func (r *recorder) Renewed(_ context.Context, e RenewedEvent)             { r.note(e) }
func (r *recorder) RenewalFailed(_ context.Context, e RenewalFailedEvent) { r.note(e) }
func (r *recorder) Released(_ context.Context, e ReleasedEvent)           { r.note(e) }
func (r *recorder) Expired(_ context.Context, e ExpiredEvent)             { r.note(e) }
func (r *recorder) Lost(_ context.Context, e LostEvent)                   { r.note(e) }

// take returns the events since the last call.
func (r *recorder) take() []any {
	r.mu.Lock()
	defer r.mu.Unlock()
	events := r.events
	r.events = nil
	return events
}

// told asserts that the events since the last call are want, in any order.
func (r *recorder) told(t *testing.T, want ...any) {
	t.Helper()
	got := r.take()
	for _, w := range want {
		i := slices.IndexFunc(got, func(g any) bool { return sameEvent(g, w) })
		if !assert.GreaterOrEqual(t, i, 0, "no event: %+v", w) {
			continue
		}
		got = slices.Delete(got, i, i+1)
	}
	assert.Empty(t, got, "events that were not wanted")
}

// sameEvent compares two events, and their errors by errors.Is.
func sameEvent(got, want any) bool {
	var err, target error
	switch g := got.(type) {
	case GaveUpEvent:
		if w, ok := want.(GaveUpEvent); ok {
			err, target = g.Err, w.Err
			g.Err, w.Err = nil, nil
			got, want = g, w
		}
	case RenewalFailedEvent:
		if w, ok := want.(RenewalFailedEvent); ok {
			err, target = g.Err, w.Err
			g.Err, w.Err = nil, nil
			got, want = g, w
		}
	case ReleasedEvent:
		if w, ok := want.(ReleasedEvent); ok {
			err, target = g.Err, w.Err
			g.Err, w.Err = nil, nil
			got, want = g, w
		}
	case LostEvent:
		if w, ok := want.(LostEvent); ok {
			err, target = g.Cause, w.Cause
			g.Cause, w.Cause = nil, nil
			got, want = g, w
		}
	}
	return got == want && errors.Is(err, target) && (err == nil) == (target == nil)
}

// soon is how long an immediate operation may take on a busy machine.
const soon = 15 * time.Second // on a machine that is busy with something else

// onEachServer runs test on a miniredis and on a real Redis; in the plain form and under the race
// detector on a miniredis only without a Redis.
func onEachServer(t *testing.T, test func(t *testing.T, addr string)) {
	t.Run("miniredis", func(t *testing.T) {
		if testredis.Available() {
			testredis.OnlyLong(t)
			testredis.NotRaced(t)
		}
		test(t, testredis.Mini(t).Addr())
	})
	t.Run("redis", func(t *testing.T) { test(t, testredis.Start(t).Addr()) })
}

// A bench belongs to one test: a Redis, and a name of its own in it.
type bench struct {
	*testing.T
	addr  string
	name  string
	rdb   *redis.Client
	nodes []*redis.Client // rdb, and clients of other servers
	opts  []Option        // the options of its clients
}

var benches atomic.Int64

// patient makes a client of the test itself wait for answers as long as the test does. The Clients under test have the
// defaults of go-redis.
func patient(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = soon, soon }

func newBench(t *testing.T, addr string, others ...string) *bench {
	testredis.Enter(t)
	b := &bench{
		T: t, addr: addr, rdb: testredis.Client(t, addr, patient),
		name: fmt.Sprintf("lock-%06d", benches.Add(1)), // no name is part of another one: see keys
	}
	b.nodes = []*redis.Client{b.rdb}
	for _, other := range others {
		b.nodes = append(b.nodes, testredis.Client(t, other, patient))
	}
	t.Cleanup(b.checkNothingIsLeft)
	return b
}

// client returns a new client of the bench's Redis, over a connection of its own.
func (b *bench) client(opts ...Option) *Client {
	b.Helper()
	return b.clientOn(testredis.Client(b, b.addr), opts...)
}

func (b *bench) clientOn(rdb redis.UniversalClient, opts ...Option) *Client {
	b.Helper()
	var all []*Client // the Clients on the other servers; closed after c, whose RedLocks consist of their locks
	if rdb, ok := rdb.(*redis.Client); ok && len(b.nodes) > 1 && rdb.Options().Addr == b.addr {
		for _, node := range b.nodes[1:] {
			all = append(all, b.clientOn(testredis.Client(b, node.Options().Addr), opts...))
		}
	}
	quiet := []Option{WithLogger(slog.New(slog.DiscardHandler)), WithLabel("")} // most tests count what is sent, or left
	c, err := New(rdb, append(append(quiet, b.opts...), opts...)...)
	require.NoError(b, err)
	b.Cleanup(func() {
		siblings.Delete(c)
		b.checkNothingLeaks(c)
		assert.NoError(b, c.Close())
	})
	if all != nil {
		siblings.Store(c, all)
	}
	return c
}

// siblings are the Clients on the other servers of a bench, by the Client on the first one.
var siblings sync.Map // *Client -> []*Client

// keys returns the keys in Redis that belong to the bench's name, without those that free locks leave.
func (b *bench) keys() []string { return b.keysOn(b.rdb) }

func (b *bench) keysOn(rdb *redis.Client) []string {
	keys, err := rdb.Keys(context.Background(), "*"+b.name+"*").Result()
	require.NoError(b, err)
	return slices.DeleteFunc(keys, func(key string) bool { return isLeftFree(rdb, key) })
}

// isLeftFree reports whether key is one that free locks leave: tombstones in a line, or the keys of its row.
func isLeftFree(rdb redis.UniversalClient, key string) bool {
	return onlyTombstones(rdb, key) ||
		slices.ContainsFunc(recordLocks, func(k lockKind) bool { return k.leaves != nil && k.leaves(rdb, key) })
}

// forget makes Redis lose all keys that belong to the bench's name.
func (b *bench) forget() {
	b.Helper()
	for _, rdb := range b.nodes {
		b.checkExpiry(rdb)
		if keys := b.keysOn(rdb); len(keys) > 0 {
			b.must(rdb.Del(context.Background(), keys...).Err())
		}
	}
}

// onlyTombstones reports whether key is a line without entries, which expires, or the tombstone of a reader that has
// left: they keep fields for a while that must no longer acquire the lock, because a request with them may still run.
func onlyTombstones(rdb redis.UniversalClient, key string) bool {
	if strings.HasSuffix(key, ":rwlock_timeout:0") {
		value, err := rdb.Get(context.Background(), key).Result()
		if redis.HasErrorPrefix(err, "MOVED") { // a replica: its master is looked at, too
			return true
		}
		left := rdb.PTTL(context.Background(), key).Val()
		return value == "0" && left > 0 && left <= late.Life
	}
	if !strings.HasPrefix(key, "relock_line:") {
		return false
	}
	for _, field := range rdb.HKeys(context.Background(), key).Val() {
		if !slices.Contains([]string{"over", "first", "last", "shared"}, field) {
			return false
		}
	}
	return expires(rdb, key)
}

// checkExpiry checks that each key which relock alone writes has an expiry: otherwise it would stay forever where no
// release removes it.
func (b *bench) checkExpiry(rdb *redis.Client) {
	b.Helper()
	keys, err := rdb.Keys(context.Background(), "relock_*"+b.name+"*").Result()
	require.NoError(b, err)
	for _, key := range keys {
		assert.True(b, expires(rdb, key), "%s has no expiry", key)
	}
}

// expires reports whether key has an expiry, or has gone. A replica does not tell: its master is looked at, too.
func expires(rdb redis.UniversalClient, key string) bool {
	const never = time.Duration(-1)
	return rdb.PTTL(context.Background(), key).Val() != never
}

func (b *bench) checkNothingIsLeft() {
	if b.Failed() {
		return
	}
	for _, rdb := range b.nodes {
		b.checkExpiry(rdb)
		testredis.Await(b, "nothing of "+b.name+" is left in Redis", soon, func() bool {
			for _, key := range b.keysOn(rdb) {
				if !strings.HasPrefix(key, "redisson_lock_token:") {
					return false
				}
			}
			return true
		})
		testredis.Await(b, "nothing of "+b.name+" is subscribed", soon, func() bool {
			channels, err := rdb.PubSubChannels(context.Background(), "*"+b.name+"*").Result()
			require.NoError(b, err)
			return len(channels) == 0
		})
	}
}

// checkNothingLeaks checks that a Client which holds no lock has no lock state in use, which every call has, and no
// listener and no waiter left. Close would end them, so it runs before Close.
func (b *bench) checkNothingLeaks(c *Client) {
	p := c.engine.Probe()
	if s := p.Stats(); b.Failed() || s.Leaving || s.Holds > 0 {
		return
	}
	const nothing = "0 names, 0 listeners, 0 awaited locks"
	left := ""
	for end := time.Now().Add(soon); time.Now().Before(end) && left != nothing; time.Sleep(time.Millisecond) {
		s := p.Stats()
		left = fmt.Sprintf("%d names, %d listeners, %d awaited locks", s.Names, s.Listeners, s.Polled)
	}
	assert.Equal(b, nothing, left, "left in a Client that holds nothing")
}

func (b *bench) must(err error) {
	b.Helper()
	require.NoError(b, err)
}

func (b *bench) mustBe(err, want error) {
	b.Helper()
	require.ErrorIs(b, err, want)
}

// locksFor acquires l with a short explicit lease, which it returns: short, or a longer one if the answers of Redis come
// so late, on a machine that is busy with other work, that too little would be left of the lease.
func (b *bench) locksFor(ctx context.Context, l Locker, short time.Duration) (lease time.Duration) {
	b.Helper()
	for lease = short; ; lease *= 2 {
		err := l.LockLease(ctx, lease)
		if lease > soon || !errors.Is(err, engine.ErrLate) {
			b.must(err)
			return lease
		}
	}
}

// tries makes one attempt on l, whose result must be want.
func (b *bench) tries(l Locker, want bool) {
	b.Helper()
	ok, err := untilAnswered(func() (bool, error) { return l.TryLock(context.Background(), 0, 0) })
	require.NoError(b, err)
	require.Equal(b, want, ok, "TryLock answers")
}

// untilAnswered calls try until Redis answers it: on a very busy machine that may be later than the call waits.
func untilAnswered(try func() (bool, error)) (ok bool, err error) {
	ok, err = try()
	for end := time.Now().Add(soon); errors.Is(err, engine.ErrNoAnswer) && time.Now().Before(end); {
		ok, err = try()
	}
	return ok, err
}

// isLocked checks that l is locked, or free. A request that had no answer on a busy machine may acquire a free lock
// once more, and is rolled back within lateUndo.
func (b *bench) isLocked(l Locker, want bool) {
	b.Helper()
	const lateUndo = 4 * time.Second
	for end := time.Now().Add(lateUndo); ; time.Sleep(10 * time.Millisecond) {
		got, err := l.IsLocked(context.Background())
		require.NoError(b, err)
		if got == want || want || time.Now().After(end) {
			require.Equal(b, want, got, "IsLocked answers")
			return
		}
	}
}

func (b *bench) holds(l Locker, want int) {
	b.Helper()
	n, err := l.HoldCount(context.Background())
	require.NoError(b, err)
	require.Equal(b, want, n, "HoldCount answers")
	held, err := l.IsHeld(context.Background())
	require.NoError(b, err)
	require.Equal(b, want > 0, held, "IsHeld answers")
}

// elsewhere runs f on another goroutine and waits for it.
func elsewhere[T any](f func() T) T {
	result := make(chan T)
	go func() { result <- f() }()
	return <-result
}

// startWaiter locks l on another goroutine, and returns when that goroutine waits in Redis. The channel delivers the
// error of Lock.
func (b *bench) startWaiter(ctx context.Context, l Locker) <-chan error {
	b.Helper()
	got := make(chan error, 1)
	go func() { got <- l.Lock(ctx) }()
	testredis.Await(b, "a waiter is subscribed", soon, func() bool {
		channels, err := b.rdb.PubSubChannels(context.Background(), "*"+b.name+"*").Result()
		return err == nil && len(channels) > 0
	})
	return got
}

func await[T any](b *bench, what string, c <-chan T) T {
	b.Helper()
	return awaitFor(b, what, c, soon)
}

func awaitFor[T any](b *bench, what string, c <-chan T, limit time.Duration) T {
	b.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(limit):
		require.Fail(b, "waited in vain", what)
		panic("unreachable")
	}
}

// A counter counts the commands that a client sends.
type counter struct{ n atomic.Int64 }

func (c *counter) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			c.n.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.n.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

func second[T any](_ T, err error) error { return err }

type pair[T any] struct {
	value T
	err   error
}

func pairOf[T any](value T, err error) pair[T] { return pair[T]{value, err} }

func (p pair[T]) get() (T, error) { return p.value, p.err }

// content returns the content of a key of any type, and its lease.
func (b *bench) content(key string) string {
	b.Helper()
	ctx := context.Background()
	var all any
	var err error
	switch kind := b.rdb.Type(ctx, key).Val(); kind {
	case "hash":
		var pairs map[string]string
		pairs, err = b.rdb.HGetAll(ctx, key).Result()
		var lines []string
		for _, field := range slices.Sorted(maps.Keys(pairs)) {
			lines = append(lines, field+"="+pairs[field])
		}
		all = lines
	case "list":
		all, err = b.rdb.LRange(ctx, key, 0, -1).Result()
	case "set":
		var members []string
		members, err = b.rdb.SMembers(ctx, key).Result()
		slices.Sort(members)
		all = members
	case "zset":
		all, err = b.rdb.ZRangeWithScores(ctx, key, 0, -1).Result()
	case "stream":
		all, err = b.rdb.XRange(ctx, key, "-", "+").Result()
	case "none":
	default:
		all, err = b.rdb.Get(ctx, key).Result()
	}
	b.must(err)
	return fmt.Sprintf("%v for %v", all, b.rdb.PTTL(ctx, key).Val() >= 0)
}
