// Package locktest has what the tests of several packages share: a bench on a Redis, the kinds of locks, and helpers for
// faults, the line, scripts and pages.
//
// A Bench belongs to one test: a Redis, and a name of its own in it. When the test ends, nothing of the name may be left
// there, and no Client may have a waiter or a subscription left. A test waits for conditions, and never sleeps.
package locktest

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
	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// ctx is the context of calls that nothing cancels.
var ctx = context.Background()

// Full returns how many cases a test tries, or for how long: plain, or long in the long form: see testredis.Long.
func Full[T int | uint64 | time.Duration](plain, long T) T { return testredis.Full(plain, long) }

// LockedBuffer is a buffer that a logger may write to while a test reads.
type LockedBuffer struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (b *LockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *LockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// WaitsInQueue reports whether an owner waits for l in the queue of this process.
func (b *Bench) WaitsInQueue(l relock.Locker) bool {
	return b.WaitersInQueue(l) > 0
}

// WaitersInQueue returns how many owners wait for l in the queue of this process.
func (b *Bench) WaitersInQueue(l relock.Locker) int {
	return Look(l).Waiters
}

// Asks reports whether an owner of this process contends for l.
func (b *Bench) Asks(l relock.Locker) bool {
	return Look(l).Front
}

// Look returns what this process knows of l.
func Look(l relock.Locker) engine.View { return EngineOf(ClientOf(l)).Probe().Look(LockOf(l), 0) }

func NewRand(seed int) *rand.Rand { return rand.New(rand.NewPCG(uint64(seed), 1)) }

const Forever = -1

// Send sends a call of a lock by itself.
func Send(c *relock.Client, what send.Call) (send.Reply, error) {
	answer := EngineOf(c).Probe().Sender().Do(&send.Wait{Ctx: ctx}, send.Request{Call: what}, time.Time{})
	r, _, err := answer.Forced()
	return r, err
}

// SendAttempt makes one attempt on a lock.
func SendAttempt(c *relock.Client, l contract.Record, a contract.Attempt) (contract.Outcome, error) {
	r, err := Send(c, l.Acquire(a))
	if err != nil {
		return contract.Outcome{}, err
	}
	return l.ReadReply(a, r)
}

// Released returns a release as an engine creates it that has not measured a round trip.
func Released(field string, left int, late bool) contract.Release {
	return contract.Release{Field: field, HoldCount: left, Late: late, Share: engine.LeastShare}
}

// AboutASecond is how long a connection that hangs may delay a call (L7), on a machine that is busy.
const AboutASecond = 3500 * time.Millisecond

// PatientClient returns a client over the proxy with the defaults of go-redis: it waits for an answer for five seconds.
func (b *FaultBench) PatientClient(opts ...relock.Option) *relock.Client {
	b.Helper()
	return b.ClientOn(b.Proxy.Client(), opts...)
}

// ProcessHook is a hook of a Redis client around single commands and pipelines.
type ProcessHook func(send func() error) error

func (ProcessHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h ProcessHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if name := cmd.Name(); name != "evalsha" && name != "eval" {
			return next(ctx, cmd)
		}
		return h(func() error { return next(ctx, cmd) })
	}
}

func (h ProcessHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if name := cmds[0].Name(); name != "evalsha" && name != "eval" {
			return next(ctx, cmds)
		}
		return h(func() error { return next(ctx, cmds) })
	}
}

// CommandHook is a hook of a Redis client that sees every command before it is sent.
type CommandHook func(cmd redis.Cmder)

func (CommandHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h CommandHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h(cmd)
		return next(ctx, cmd)
	}
}

func (h CommandHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			h(cmd)
		}
		return next(ctx, cmds)
	}
}

// FreeSoon checks that nothing except token counters is left in Redis, long before any lease expires.
func (b *Bench) FreeSoon() {
	b.Helper()
	fb := &FaultBench{Bench: b}
	testredis.Await(b, "nothing is left of the lock", Soon, func() bool { return len(fb.Records()) == 0 })
}

// OfLocks returns the channels without those on which Clients listen while they have old holds.
func OfLocks(channels []string) []string {
	return slices.DeleteFunc(channels, func(name string) bool { return strings.HasPrefix(name, "relock_client:") })
}

// Hearers returns how many connections have subscribed to a channel.
func (b *Bench) Hearers(channel string) int64 {
	return b.Rdb.PubSubNumSub(ctx, channel).Val()[channel]
}

// ScriptRuns returns how many scripts the server has run.
func (b *Bench) ScriptRuns() int {
	b.Helper()
	stats, err := b.Rdb.Info(ctx, "commandstats").Result()
	b.Must(err)
	var runs int
	for _, line := range strings.Split(stats, "\r\n") {
		var n int
		if _, err := fmt.Sscanf(line, "cmdstat_evalsha:calls=%d,", &n); err == nil {
			runs = n
		}
	}
	return runs
}

type PipeCounter struct {
	Counter
	mu    sync.Mutex // guards pipes
	pipes []int
}

func (c *PipeCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.mu.Lock()
		c.pipes = append(c.pipes, len(cmds))
		c.mu.Unlock()
		return next(ctx, cmds)
	}
}

func (c *PipeCounter) Count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pipes)
}

func (c *PipeCounter) Calls() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pipes {
		n += p
	}
	return n
}

// NilCtx is passed to calls that have to reject it.
var NilCtx context.Context

// A Recorder stores the events that it receives. It calls the engine for each event, which would deadlock if the engine
// Held its mutex.
type Recorder struct {
	relock.NopObserver
	Engine *engine.Engine

	Mu     sync.Mutex // guards below
	Events []any
}

func (r *Recorder) note(e any) {
	if r.Engine != nil {
		_ = r.Engine.Open()
	}
	r.Mu.Lock()
	defer r.Mu.Unlock()
	r.Events = append(r.Events, e)
}

func (r *Recorder) Waiting(_ context.Context, e relock.WaitingEvent) { r.note(e) }

func (r *Recorder) Acquired(_ context.Context, e relock.AcquiredEvent) { r.note(e) }

func (r *Recorder) GaveUp(_ context.Context, e relock.GaveUpEvent) { r.note(e) }

func (r *Recorder) Renewed(_ context.Context, e relock.RenewedEvent) { r.note(e) }

func (r *Recorder) RenewalFailed(_ context.Context, e relock.RenewalFailedEvent) { r.note(e) }

func (r *Recorder) Released(_ context.Context, e relock.ReleasedEvent) { r.note(e) }

func (r *Recorder) Expired(_ context.Context, e relock.ExpiredEvent) { r.note(e) }

func (r *Recorder) Lost(_ context.Context, e relock.LostEvent) { r.note(e) }

// Take returns the events since the last call.
func (r *Recorder) Take() []any {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	events := r.Events
	r.Events = nil
	return events
}

// Told asserts that the events since the last call are want, in any order.
func (r *Recorder) Told(t *testing.T, want ...any) {
	t.Helper()
	got := r.Take()
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
	case relock.GaveUpEvent:
		if w, ok := want.(relock.GaveUpEvent); ok {
			err, target = g.Err, w.Err
			g.Err, w.Err = nil, nil
			got, want = g, w
		}
	case relock.RenewalFailedEvent:
		if w, ok := want.(relock.RenewalFailedEvent); ok {
			err, target = g.Err, w.Err
			g.Err, w.Err = nil, nil
			got, want = g, w
		}
	case relock.ReleasedEvent:
		if w, ok := want.(relock.ReleasedEvent); ok {
			err, target = g.Err, w.Err
			g.Err, w.Err = nil, nil
			got, want = g, w
		}
	case relock.LostEvent:
		if w, ok := want.(relock.LostEvent); ok {
			err, target = g.Cause, w.Cause
			g.Cause, w.Cause = nil, nil
			got, want = g, w
		}
	}
	return got == want && errors.Is(err, target) && (err == nil) == (target == nil)
}

// Soon is how long an immediate operation may take on a busy machine.
const Soon = 15 * time.Second // on a machine that is busy with something else

// OnEachServer runs test on a miniredis and on a real Redis; in the plain form and under the race
// detector on a miniredis only without a Redis.
func OnEachServer(t *testing.T, test func(t *testing.T, addr string)) {
	t.Run("miniredis", func(t *testing.T) {
		if testredis.Available() {
			testredis.OnlyLong(t)
			testredis.NotRaced(t)
		}
		test(t, testredis.Mini(t).Addr())
	})
	t.Run("redis", func(t *testing.T) { test(t, testredis.Start(t).Addr()) })
}

// A Bench belongs to one test: a Redis, and a name of its own in it.
type Bench struct {
	*testing.T
	Addr     string
	LockName string
	Rdb      *redis.Client
	Nodes    []*redis.Client // rdb, and clients of other servers
	Opts     []relock.Option // the options of its clients
}

var Benches atomic.Int64

// patient makes a client of the test itself wait for answers as long as the test does. The Clients under test have the
// defaults of go-redis.
func patient(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = Soon, Soon }

func NewBench(t *testing.T, addr string, others ...string) *Bench {
	testredis.Enter(t)
	b := &Bench{
		T: t, Addr: addr, Rdb: testredis.Client(t, addr, patient),
		LockName: fmt.Sprintf("lock-%06d", Benches.Add(1)), // no name is part of another one: see keys
	}
	b.Nodes = []*redis.Client{b.Rdb}
	for _, other := range others {
		b.Nodes = append(b.Nodes, testredis.Client(t, other, patient))
	}
	t.Cleanup(b.CheckNothingIsLeft)
	return b
}

// Client returns a new client of the bench's Redis, over a connection of its own.
func (b *Bench) Client(opts ...relock.Option) *relock.Client {
	b.Helper()
	return b.ClientOn(testredis.Client(b, b.Addr), opts...)
}

func (b *Bench) ClientOn(rdb redis.UniversalClient, opts ...relock.Option) *relock.Client {
	b.Helper()
	var all []*relock.Client // the Clients on the other servers; closed after c, whose RedLocks consist of their locks
	if rdb, ok := rdb.(*redis.Client); ok && len(b.Nodes) > 1 && rdb.Options().Addr == b.Addr {
		for _, node := range b.Nodes[1:] {
			all = append(all, b.ClientOn(testredis.Client(b, node.Options().Addr), opts...))
		}
	}
	c, err := relock.New(rdb, quietly(slices.Concat(b.Opts, opts))...)
	require.NoError(b, err)
	b.Cleanup(func() {
		Siblings.Delete(c)
		b.checkNothingLeaks(c)
		assert.NoError(b, c.Close())
	})
	if all != nil {
		Siblings.Store(c, all)
	}
	return c
}

// Siblings are the Clients on the other servers of a bench, by the Client on the first one.
var Siblings sync.Map // *Client -> []*Client

// Keys returns the keys in Redis that belong to the bench's name, without those that free locks leave.
func (b *Bench) Keys() []string { return b.keysOn(b.Rdb) }

func (b *Bench) keysOn(rdb *redis.Client) []string {
	keys, err := rdb.Keys(ctx, "*"+b.LockName+"*").Result()
	require.NoError(b, err)
	return slices.DeleteFunc(keys, func(key string) bool { return IsLeftFree(rdb, key) })
}

// IsLeftFree reports whether key is one that free locks leave: tombstones in a line, or the keys of its row.
func IsLeftFree(rdb redis.UniversalClient, key string) bool {
	return OnlyTombstones(rdb, key) ||
		slices.ContainsFunc(RecordLocks, func(k LockKind) bool { return k.Leaves != nil && k.Leaves(rdb, key) })
}

// Forget makes Redis lose all keys that belong to the bench's name.
func (b *Bench) Forget() {
	b.Helper()
	for _, rdb := range b.Nodes {
		b.checkExpiry(rdb)
		if keys := b.keysOn(rdb); len(keys) > 0 {
			b.Must(rdb.Del(ctx, keys...).Err())
		}
	}
}

// OnlyTombstones reports whether key has the places of a line without entries, and expires: it keeps fields for a while
// that must no longer acquire the lock, because a request with them may still run.
func OnlyTombstones(rdb redis.UniversalClient, key string) bool {
	if !strings.HasPrefix(key, "relock_line:") || !strings.HasSuffix(key, ":waits") {
		return false
	}
	isClient := func(field string) bool { return len(field) == 36 }
	return !slices.ContainsFunc(rdb.HKeys(ctx, key).Val(), isClient) && Expires(rdb, key)
}

// checkExpiry checks that each key which relock alone writes has an expiry: otherwise it would stay forever where no
// Release removes it.
func (b *Bench) checkExpiry(rdb *redis.Client) {
	b.Helper()
	keys, err := rdb.Keys(ctx, "relock_*"+b.LockName+"*").Result()
	require.NoError(b, err)
	for _, key := range keys {
		assert.True(b, Expires(rdb, key), "%s has no expiry", key)
	}
}

// Expires reports whether key has an expiry, or has gone. A replica does not tell: its master is looked at, too.
func Expires(rdb redis.UniversalClient, key string) bool {
	const never = time.Duration(-1)
	return rdb.PTTL(ctx, key).Val() != never
}

func (b *Bench) CheckNothingIsLeft() {
	if b.Failed() {
		return
	}
	for _, rdb := range b.Nodes {
		b.checkExpiry(rdb)
		testredis.Await(b, "nothing of "+b.LockName+" is left in Redis", Soon, func() bool {
			for _, key := range b.keysOn(rdb) {
				if !strings.HasPrefix(key, "redisson_lock_token:") {
					return false
				}
			}
			return true
		})
		testredis.Await(b, "nothing of "+b.LockName+" is subscribed", Soon, func() bool {
			channels, err := rdb.PubSubChannels(ctx, "*"+b.LockName+"*").Result()
			require.NoError(b, err)
			return len(channels) == 0
		})
	}
}

// checkNothingLeaks checks that a Client which holds no lock has no lock state in use, which every call has, and no
// listener and no waiter left. Close would end them, so it runs before Close.
func (b *Bench) checkNothingLeaks(c *relock.Client) {
	p := EngineOf(c).Probe()
	if s := p.Stats(); b.Failed() || s.Leaving || s.Holds > 0 {
		return
	}
	const nothing = "0 names, 0 listeners, 0 awaited locks"
	left := ""
	for end := time.Now().Add(Soon); time.Now().Before(end) && left != nothing; time.Sleep(time.Millisecond) {
		s := p.Stats()
		left = fmt.Sprintf("%d names, %d listeners, %d awaited locks", s.Names, s.Listeners, s.Polled)
	}
	assert.Equal(b, nothing, left, "left in a Client that holds nothing")
}

func (b *Bench) Must(err error) {
	b.Helper()
	require.NoError(b, err)
}

func (b *Bench) MustBe(err, want error) {
	b.Helper()
	require.ErrorIs(b, err, want)
}

// LocksFor acquires l with a short explicit lease, which it returns: short, or a longer one if the answers of Redis come
// so late, on a machine that is busy with other work, that too little would be left of the lease.
func (b *Bench) LocksFor(ctx context.Context, l relock.Locker, short time.Duration) (lease time.Duration) {
	b.Helper()
	for lease = short; ; lease *= 2 {
		err := l.LockLease(ctx, lease)
		if lease > Soon || !errors.Is(err, engine.ErrLate) {
			b.Must(err)
			return lease
		}
	}
}

// Tries makes one attempt on l, whose result must be want.
func (b *Bench) Tries(l relock.Locker, want bool) {
	b.Helper()
	ok, err := UntilAnswered(func() (bool, error) { return l.TryLock(ctx, 0, 0) })
	require.NoError(b, err)
	require.Equal(b, want, ok, "TryLock answers")
}

// UntilAnswered calls try until Redis answers it: on a very busy machine that may be later than the call waits.
func UntilAnswered(try func() (bool, error)) (ok bool, err error) {
	ok, err = try()
	for end := time.Now().Add(Soon); errors.Is(err, engine.ErrNoAnswer) && time.Now().Before(end); {
		ok, err = try()
	}
	return ok, err
}

// IsLocked checks that l is locked, or free. A request that had no answer on a busy machine may acquire a free lock
// once more, and is rolled back within lateUndo.
func (b *Bench) IsLocked(l relock.Locker, want bool) {
	b.Helper()
	const lateUndo = 4 * time.Second
	for end := time.Now().Add(lateUndo); ; time.Sleep(10 * time.Millisecond) {
		got, err := l.IsLocked(ctx)
		require.NoError(b, err)
		if got == want || want || time.Now().After(end) {
			require.Equal(b, want, got, "IsLocked answers")
			return
		}
	}
}

func (b *Bench) Holds(l relock.Locker, want int) {
	b.Helper()
	n, err := l.HoldCount(ctx)
	require.NoError(b, err)
	require.Equal(b, want, n, "HoldCount answers")
	held, err := l.IsHeld(ctx)
	require.NoError(b, err)
	require.Equal(b, want > 0, held, "IsHeld answers")
}

// Elsewhere runs f on another goroutine and waits for it.
func Elsewhere[T any](f func() T) T {
	result := make(chan T)
	go func() { result <- f() }()
	return <-result
}

// StartWaiter locks l on another goroutine, and returns when that goroutine waits in Redis. The channel delivers the
// error of Lock.
func (b *Bench) StartWaiter(ctx context.Context, l relock.Locker) <-chan error {
	b.Helper()
	got := make(chan error, 1)
	go func() { got <- l.Lock(ctx) }()
	testredis.Await(b, "a waiter is subscribed", Soon, func() bool {
		channels, err := b.Rdb.PubSubChannels(context.Background(), "*"+b.LockName+"*").Result()
		return err == nil && len(channels) > 0
	})
	return got
}

func Await[T any](b *Bench, what string, c <-chan T) T {
	b.Helper()
	return AwaitFor(b, what, c, Soon)
}

func AwaitFor[T any](b *Bench, what string, c <-chan T, limit time.Duration) T {
	b.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(limit):
		require.Fail(b, "waited in vain", what)
		panic("unreachable")
	}
}

// A Counter counts the commands that a client sends.
type Counter struct{ N atomic.Int64 }

func (c *Counter) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (c *Counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			c.N.Add(1)
		}
		return next(ctx, cmd)
	}
}

func (c *Counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.N.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

func Second[T any](_ T, err error) error { return err }

type Pair[T any] struct {
	value T
	err   error
}

func PairOf[T any](value T, err error) Pair[T] { return Pair[T]{value, err} }

func (p Pair[T]) Get() (T, error) { return p.value, p.err }

// Content returns the content of a key of any type, and its lease.
func (b *Bench) Content(key string) string {
	b.Helper()
	var all any
	var err error
	switch kind := b.Rdb.Type(ctx, key).Val(); kind {
	case "hash":
		var pairs map[string]string
		pairs, err = b.Rdb.HGetAll(ctx, key).Result()
		var lines []string
		for _, field := range slices.Sorted(maps.Keys(pairs)) {
			lines = append(lines, field+"="+pairs[field])
		}
		all = lines
	case "list":
		all, err = b.Rdb.LRange(ctx, key, 0, -1).Result()
	case "set":
		var members []string
		members, err = b.Rdb.SMembers(ctx, key).Result()
		slices.Sort(members)
		all = members
	case "zset":
		all, err = b.Rdb.ZRangeWithScores(ctx, key, 0, -1).Result()
	case "stream":
		all, err = b.Rdb.XRange(ctx, key, "-", "+").Result()
	case "none":
	default:
		all, err = b.Rdb.Get(ctx, key).Result()
	}
	b.Must(err)
	return fmt.Sprintf("%v for %v", all, b.Rdb.PTTL(ctx, key).Val() >= 0)
}

// Between returns a random time.
func Between(rng *rand.Rand, a, b time.Duration) time.Duration {
	return a + time.Duration(rng.Int64N(int64(b-a)))
}

// A Watched hold is one that another Client is to release by force.
type Watched struct {
	Guarded context.Context
	Forced  relock.Locker                   // of the other Client
	Release func(ctx context.Context) error // by the holder
}

// Watch has l held by a new owner.
func (b *Bench) Watch(l, forced relock.Locker, lock func(l relock.Locker, owner context.Context) error) Watched {
	b.Helper()
	owner := relock.ContextWithOwner(ctx)
	b.Must(lock(l, owner))
	guarded, err := l.Guard(owner)
	b.Must(err)
	return Watched{guarded, forced, func(context.Context) error { return l.Unlock(owner) }}
}

// Hears waits until c has subscribed to its channel, which it does while it has an old hold.
func (b *Bench) Hears(c *relock.Client) {
	b.Helper()
	testredis.Await(b, "the holder listens", Soon, func() bool { return b.Hearers(record.ClientKey(c.ID())) == 1 })
}

// Rarely is a watchdog timeout with which no hold is renewed while a test runs.
const Rarely = 10 * time.Minute

// Hold acquires l.
func (b *Bench) Hold(l relock.Locker) *relock.Hold {
	b.Helper()
	h, err := l.(relock.Acquirer).Acquire(ctx)
	b.Must(err)
	return h
}

// HoldFor acquires l, which is free or soon will be, with a lease.
func (b *Bench) HoldFor(l relock.Locker, lease time.Duration) *relock.Hold {
	b.Helper()
	h, ok, err := l.(relock.Acquirer).TryAcquire(ctx, Soon, lease)
	b.Must(err)
	require.True(b, ok, "TryAcquire answers")
	return h
}

// Ends waits until ctx is done, which must be with this cause.
func (b *Bench) Ends(ctx context.Context, cause error) {
	b.Helper()
	Await(b, "the ctx of the hold ends", ctx.Done())
	b.MustBe(context.Cause(ctx), cause)
}

func NewFairLock(c *relock.Client, name string) relock.Locker { return c.NewFairLock(name) }

// Queue returns the queue of the bench's fair lock, as it is in Redis.
func (b *Bench) Queue() []string {
	b.Helper()
	queue, err := b.Rdb.LRange(ctx, "redisson_lock_queue:{"+b.LockName+"}", 0, -1).Result()
	b.Must(err)
	return queue
}

func (b *Bench) AwaitQueue(n int) {
	b.Helper()
	testredis.Await(b, fmt.Sprintf("%d wait in the queue", n), 2*Soon, func() bool { return len(b.Queue()) == n })
}

// FairPlaces returns the places of the waiters of the bench's fair lock that can be granted it by a message, by field.
func (b *Bench) FairPlaces() map[string]string {
	b.Helper()
	return FairPlaces(b.Rdb, b.LockName)
}

// FairPlaces returns those of another fair lock.
func FairPlaces(rdb redis.Cmdable, name string) map[string]string {
	places := rdb.HGetAll(ctx, record.PlacesKey(name)).Val()
	maps.DeleteFunc(places, func(field, place string) bool { return field == "" || strings.Fields(place)[2] == "0" })
	return places
}

// Counter is the token counter in Redis.
func (b *Bench) Counter() int64 {
	b.Helper()
	n, err := b.Rdb.Get(ctx, record.TokenKey(b.LockName)).Int64()
	b.Must(err)
	return n
}

const (
	JavaThread = "5a2d7b1e-4c02-4b8e-9d2f-0c5a3e1f7a10:42"
	JavaOther  = "6b3e8c2f-5d13-4c9f-8e30-1d6b4f208b21:7"
)

func (b *Bench) Inspect(c *relock.Client) relock.Inspection {
	b.Helper()
	i, err := c.Inspect(ctx, b.LockName)
	b.Must(err)
	assert.Equal(b, b.LockName, i.Name, "name")
	assert.LessOrEqual(b, time.Since(i.At).Abs(), time.Minute, "age of the inspection")
	return i
}

// CommandRuns returns how many commands with this name the server has run.
func (b *Bench) CommandRuns(name string) (n int) {
	b.Helper()
	stats, err := b.Rdb.Info(ctx, "commandstats").Result()
	b.Must(err)
	for _, line := range strings.Split(stats, "\r\n") {
		if _, err := fmt.Sscanf(line, "cmdstat_"+name+":calls=%d,", &n); err == nil {
			return n
		}
	}
	return 0
}

var ErrOff = errors.New("the power is off")

// Unlabeled is the default of WithLabel, which the Clients of most tests do not have: it takes the place of an option.
var Unlabeled relock.Option

// quietly returns the options of a Client that logs nothing, and has no label unless opts has Unlabeled: most tests count
// what is sent, or left.
func quietly(opts []relock.Option) []relock.Option {
	given := slices.DeleteFunc(slices.Clone(opts), func(o relock.Option) bool { return o == nil })
	quiet := []relock.Option{relock.WithLogger(slog.New(slog.DiscardHandler))}
	if len(given) == len(opts) {
		quiet = append(quiet, relock.WithLabel(""))
	}
	return append(quiet, given...)
}

// noPermission is what Redis answers to a user who lacks a permission.
type noPermission struct{}

func (noPermission) Error() string { return "NOPERM this user has no permissions to run the command" }

func (noPermission) RedisError() {}

// Refuser is a hook that refuses some commands, and counts them.
type Refuser struct {
	Is    func(redis.Cmder) bool
	Tries atomic.Int64
}

func (r *Refuser) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *Refuser) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !r.Is(cmd) {
			return next(ctx, cmd)
		}
		r.Tries.Add(1)
		cmd.SetErr(noPermission{})
		return noPermission{}
	}
}

func (r *Refuser) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if r.Is(cmd) {
				r.Tries.Add(1)
				cmd.SetErr(noPermission{})
				return noPermission{}
			}
		}
		return next(ctx, cmds)
	}
}

// The locks whose holds can be detached, and those that exclude them. The permits are several of one hold.
var Detachable = append(slices.Clone(RecordLocks), LockKind{Name: "permits", One: newPermits, Rival: newPermits})

// Permits are all permits of a semaphore, which a hold has together.
type permits struct{ *relock.Semaphore }

const somePermits = 3

func newPermits(c *relock.Client, name string) relock.Locker {
	return permits{c.NewSemaphore(name, somePermits)}
}

func (p permits) Acquire(ctx context.Context) (*relock.Hold, error) {
	return p.AcquireN(ctx, somePermits)
}

func (p permits) TryAcquire(ctx context.Context, wait, lease time.Duration) (*relock.Hold, bool, error) {
	return p.TryAcquireN(ctx, somePermits, wait, lease)
}

// OnDetachable runs test for every lock type whose holds can be detached, on one server.
func OnDetachable(t *testing.T, test func(b *FaultBench, k LockKind)) {
	t.Parallel()
	server := testredis.Start(t)
	for _, k := range Detachable {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			test(NewFaultBenchOn(t, server), k)
		})
	}
}

// Renames matches the requests that detach or attach a hold.
var Renames = AnyOf(record.Script("lock_rename"), record.Script("read_rename"), record.Script("semaphore_rename"))

// Detach detaches h.
func (b *Bench) Detach(h *relock.Hold, keep time.Duration) (ticket string) {
	b.Helper()
	ticket, err := h.Detach(ctx, keep)
	b.Must(err)
	return ticket
}

// Attach attaches a hold.
func (b *Bench) Attach(c *relock.Client, ticket string) *relock.Hold {
	b.Helper()
	h, err := c.Attach(ctx, ticket)
	b.Must(err)
	return h
}

// Excludes checks that l, which h excludes, cannot be acquired.
func (b *Bench) Excludes(l relock.Locker) {
	b.Helper()
	h, ok, err := l.(relock.Acquirer).TryAcquire(ctx, 0, 0)
	b.Must(err)
	require.False(b, ok, "the lock is free: %v", h)
}

// Follows checks that l can be acquired, soon.
func (b *Bench) Follows(l relock.Locker) {
	b.Helper()
	b.Must(b.HoldFor(l, 0).Release(ctx))
}

// LeaseIn returns the remaining lease in Redis.
func (b *Bench) LeaseIn(c *relock.Client) time.Duration {
	b.Helper()
	i, err := c.Inspect(ctx, b.LockName)
	b.Must(err)
	require.Len(b, i.Holders, 1)
	return i.Holders[0].Remaining
}

// NewSemaphore returns a semaphore with one permit, which excludes as a lock does.
func NewSemaphore(c *relock.Client, name string) relock.Locker { return c.NewSemaphore(name, 1) }

// OnlyFree reports whether key belongs to a semaphore of which no permit is held. Its counter is never deleted, and
// expired permits stay until the next call.
func OnlyFree(rdb redis.UniversalClient, key string) bool {
	taken := key
	if !strings.HasSuffix(key, ":timeout") {
		if _, err := rdb.Get(ctx, key).Int(); err != nil || strings.HasPrefix(key, "redisson_") ||
			strings.Contains(key, ":rwlock_timeout:") {
			return false
		}
		taken = record.PermitsKey(key)
	}
	held, err := rdb.ZCount(ctx, taken, fmt.Sprint(time.Now().UnixMilli()), "+inf").Result()
	return err == nil && held == 0
}

// Permits checks the total of free and held permits, and returns how many are free.
func (b *Bench) Permits(want int) (free int) {
	b.Helper()
	var counter *redis.StringCmd
	var taken *redis.IntCmd
	_, err := b.Rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
		counter, taken = p.Get(ctx, b.LockName), p.ZCard(ctx, record.PermitsKey(b.LockName))
		return nil
	})
	b.Must(err)
	free, err = counter.Int()
	b.Must(err)
	require.Equal(b, want, free+int(taken.Val()), "permits, of which %d are free", free)
	return free
}

// NewSmallRedBench returns a bench with three servers.
func NewSmallRedBench(t *testing.T) *RedBench {
	t.Parallel()
	b := NewBench(t, testredis.Mini(t).Addr(), testredis.Mini(t).Addr(), testredis.Mini(t).Addr())
	b.Opts = []relock.Option{relock.WithRedLockNodeTimeout(Soon)}
	return &RedBench{b, nil}
}

// A RedBench is a bench with five servers.
type RedBench struct {
	*Bench
	Servers []*testredis.Server
}

// NodeLocks returns locks with the name of the bench, one on each server, each of a Client of its own.
func (b *RedBench) NodeLocks(opts ...relock.Option) (locks []relock.Locker) {
	for _, rdb := range b.Nodes {
		locks = append(locks, b.ClientOn(testredis.Client(b, rdb.Options().Addr), opts...).NewLock(b.LockName))
	}
	return locks
}

// Within requires that f takes no longer than most, on a machine that is not busy.
func (b *Bench) Within(most time.Duration, what string, f func()) {
	b.Helper()
	start := time.Now()
	f()
	assert.LessOrEqual(b, time.Since(start), testredis.Scale(start, most), what)
}

// Has returns on how many nodes the lock has a record.
func (b *RedBench) Has() int {
	n := 0
	for _, rdb := range b.Nodes {
		if len(b.keysOn(rdb)) > 0 {
			n++
		}
	}
	return n
}
