package relock

// Helpers that several test files share and that need no bubble. Those that need one are in fake_test.go.
//
// A test file has the name of its source file, and the tests of that part. These files are about more than one part:
//
//	conformance      the rules that every lock type keeps; keys that hold other data than a lock
//	guard, handoff   contexts that end with a hold; how a lock passes inside the process
//	limits           MaxHold and MinHold
//	line             the wait queue in Redis; tombstones; how waiters notice that a lock is free
//	fair_model       the queue of a FairLock in every order of events, against a model
//	rw_model         the scripts of the read/write lock, against a model
//	scriptfaults     scripts that find other data in their keys, or may not run a command
//	shortcuts        the short cuts of scripts, against the code behind them
//	fuzz             input from Redis and from users
//	storm            many clients under faults, for a short or a long time (the soak); the history is checked;
//	                 processes that are paused, killed and starved
//	faults           faults between a Client and Redis, and of Redis itself; which test covers which row of
//	                 docs/reliability.md
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
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
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
