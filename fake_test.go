//go:build go1.25

package relock

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake"
	"github.com/relock-go/relock/internal/wake/waketest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fakeRedis keeps records as Redis does, in the time of the bubble, and can take
// long, lose answers, and run requests late.
type fakeRedis struct {
	pubsub waketest.Server

	mu       sync.Mutex // guards below
	records  map[string]*fakeRecord
	tokens   int64
	requests []string                    // "acquire", "release", ...
	fault    func(verb string) fakeFault // of the next request
	latency  time.Duration               // each way
	bound    bool                        // requests are not sent when their ctx has ended
}

type fakeRecord struct {
	field   string
	levels  int
	expires time.Time
}

type fakeFault struct {
	err    error         // returned, after the request has run
	block  error         // returned, without the request running
	late   time.Duration // before the request runs; the answer comes then
	ghost  time.Duration // io.EOF comes at once, and the request runs so much later
	answer time.Duration // from the run of the request to its answer
	panics bool          // as a hook of the Redis client may
}

// subscribe makes a connection to subscribe on.
func (r *fakeRedis) subscribe() wake.Subscriber { return r.pubsub.Dial() }

func (r *fakeRedis) record(name string) *fakeRecord {
	rec := r.records[name]
	if rec != nil && !time.Now().Before(rec.expires) {
		delete(r.records, name)
		return nil
	}
	return rec
}

// do runs f as one request.
func (r *fakeRedis) do(verb string, f func()) error {
	r.mu.Lock()
	var fault fakeFault
	if r.fault != nil {
		fault = r.fault(verb)
	}
	latency := r.latency
	r.requests = append(r.requests, verb)
	r.mu.Unlock()
	if fault.ghost > 0 {
		time.AfterFunc(fault.ghost, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			f()
		})
		return io.EOF
	}
	if fault.panics {
		panic("a hook")
	}
	time.Sleep(latency + fault.late)
	if fault.block != nil {
		return fault.block
	}
	r.mu.Lock()
	f()
	r.mu.Unlock()
	time.Sleep(latency + fault.answer)
	return fault.err
}

func (r *fakeRedis) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *fakeRedis) count(verb string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, v := range r.requests {
		if v == verb {
			n++
		}
	}
	return n
}

// holder is the field that holds name, or "".
func (r *fakeRedis) holder(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec := r.record(name); rec != nil {
		return rec.field
	}
	return ""
}

// fakeLock is a plain lock on a fakeRedis: its calls have a verb instead of a script.
type fakeLock struct {
	traits
	redis *fakeRedis
	key   string // of the record
}

func newFakeLock(r *fakeRedis, name string) *fakeLock {
	return &fakeLock{traits{lock: lockID{name: name}, kind: string(TypeLock), admits: exclusive}, r, name}
}

func (l *fakeLock) call(verb string, args ...any) call {
	return call{Keys: []string{l.key}, Args: append([]any{verb}, args...)}
}

func (l *fakeLock) channel(attempt) string    { return "channel:" + l.key }
func (l *fakeLock) grants(attempt) string     { return "" }
func (l *fakeLock) unbury(string) call        { return call{} }
func (l *fakeLock) acquire(a attempt) call    { return l.call("acquire", a.field, a.lease, a.level) }
func (l *fakeLock) undo(a attempt) call       { return l.release(a.asRelease()) }
func (l *fakeLock) force() call               { return l.call("force") }
func (l *fakeLock) inspect(field string) call { return l.call("inspect", field) }

func (l *fakeLock) granted(_ attempt, r reply) (grant, error) { return parseGrant(r) }

func (l *fakeLock) release(r release) call {
	return l.call("release", r.field, r.left)
}

func (l *fakeLock) renew(field string, lease time.Duration, exact bool) call {
	return l.call("renew", field, lease, exact)
}

// Run runs a call: a fakeRedis is the transport of a Sender.
func (r *fakeRedis) Run(ctx context.Context, c call, _ bool) (any, error) {
	if err := ctx.Err(); r.bound && err != nil {
		return nil, err
	}
	var answer reply // an attempt that runs late writes it later
	err := r.do(c.Args[0].(string), func() { answer = r.run(c) })
	if err != nil {
		return nil, err
	}
	return []any{answer[0], answer[1], answer[2]}, nil
}

// RunAll runs calls as one request.
func (r *fakeRedis) RunAll(_ context.Context, calls []call, _ bool) []send.Outcome {
	outcomes := make([]send.Outcome, len(calls))
	err := r.do(calls[0].Args[0].(string), func() {
		for i, c := range calls {
			answer := r.run(c)
			outcomes[i].Answer = []any{answer[0], answer[1], answer[2]}
		}
	})
	if err != nil {
		outcomes = slices.Repeat([]send.Outcome{{Err: err}}, len(calls))
	}
	return outcomes
}

func (r *fakeRedis) run(c call) reply {
	name, args := c.Keys[0], c.Args[1:]
	rec := r.record(name)
	switch c.Args[0] {
	case "acquire":
		return r.acquire(rec, name, args[0].(string), args[1].(time.Duration), args[2].(int))
	case "release":
		if rec == nil || rec.field != args[0].(string) {
			return reply{-1}
		}
		if rec.levels = args[1].(int); rec.levels == 0 {
			delete(r.records, name)
			return reply{1, int64(r.pubsub.Publish("channel:" + name))}
		}
		return reply{1}
	case "renew":
		if rec == nil || rec.field != args[0].(string) {
			return reply{-1}
		}
		if end := time.Now().Add(args[1].(time.Duration)); args[2].(bool) || end.After(rec.expires) {
			rec.expires = end
		}
		return reply{1}
	case "force":
		if rec == nil {
			return reply{}
		}
		delete(r.records, name)
		r.pubsub.Publish("channel:" + name)
		return reply{1}
	}
	panic(fmt.Sprint("no such verb: ", c.Args[0]))
}

func (r *fakeRedis) acquire(rec *fakeRecord, name, field string, lease time.Duration, level int) reply {
	switch {
	case rec == nil && level == 1:
		r.records[name] = &fakeRecord{field, 1, time.Now().Add(lease)}
		r.tokens++
		return reply{1, 0, r.tokens}
	case rec == nil || rec.field != field && level > 1:
		return reply{-1}
	case rec.field != field:
		return reply{0, milliseconds(time.Until(rec.expires))}
	}
	rec.levels = level
	if end := time.Now().Add(lease); end.After(rec.expires) {
		rec.expires = end
	}
	if level > 1 {
		return reply{1}
	}
	r.tokens++
	return reply{1, 0, r.tokens}
}

// A bubbleEngine is an engine on a fakeRedis, inside a bubble.
type bubbleEngine struct {
	*engine
	redis *fakeRedis
	t     *testing.T
}

func newBubbleEngine(t *testing.T) *bubbleEngine {
	r := &fakeRedis{records: make(map[string]*fakeRecord)}
	return joinBubbleEngine(t, r, "client")
}

// fakeConfig is the config of an engine on r.
func fakeConfig(r *fakeRedis, id string, o options) config {
	c := new(Client).config(id, o)
	c.servers = oneServer(r.subscribe)
	return c
}

// joinBubbleEngine makes another client of the same Redis.
func joinBubbleEngine(t *testing.T, r *fakeRedis, id string, opts ...Option) *bubbleEngine {
	return joinSending(t, r, id, send.Config{Transport: r}, opts...)
}

// joinSending is joinBubbleEngine for a client that sends in a certain way.
func joinSending(t *testing.T, r *fakeRedis, id string, config send.Config, opts ...Option) *bubbleEngine {
	o, err := newOptions(append([]Option{WithLogger(slog.New(slog.DiscardHandler))}, opts...))
	require.NoError(t, err)
	e := &bubbleEngine{newEngine(fakeConfig(r, id, o), config), r, t}
	t.Cleanup(func() {
		assert.NoError(t, e.close())
		assert.Zero(t, e.waitQueues(), "wait queues are left")
	})
	return e
}

// acquire is that of the engine for one lock.
func (e *bubbleEngine) acquire(ctx context.Context, b lockType, o owner, r request) (bool, error) {
	return e.engine.acquire(ctx, o, r, b)
}

// lock, unlock and guarded assert, and do not require: goroutines other than the test's call them too.
func (e *bubbleEngine) lock(o owner) {
	e.t.Helper()
	ok, err := e.acquire(context.Background(), newFakeLock(e.redis, "x"), o, request{wait: forever})
	assert.NoError(e.t, err, "%v does not get the lock", o)
	assert.True(e.t, ok, "%v does not get the lock", o)
}

func (e *bubbleEngine) unlock(o owner) {
	e.t.Helper()
	assert.NoError(e.t, e.release(context.Background(), newFakeLock(e.redis, "x"), o), "%v cannot unlock", o)
}

func (e *bubbleEngine) lockWith(ctx context.Context, o owner, r request) (bool, error) {
	return e.acquire(ctx, newFakeLock(e.redis, "x"), o, r)
}

func (e *bubbleEngine) unlockErr(o owner) error {
	return e.release(context.Background(), newFakeLock(e.redis, "x"), o)
}

func (e *bubbleEngine) guarded(o owner) context.Context {
	e.t.Helper()
	ctx, err := e.guard(context.Background(), newFakeLock(e.redis, "x"), o)
	assert.NoError(e.t, err, "no guard for %v", o)
	return ctx
}

// inBubble runs f on a new engine in a bubble, and asserts afterwards that the engine has no wait queues left.
// It runs f twice: once every request may be abandoned, as after a request without an answer;
// once a request of a caller who has the time runs on the goroutine of that caller.
func inBubble(t *testing.T, f func(t *testing.T, e *bubbleEngine)) {
	t.Helper()
	for name, inline := range map[string]time.Duration{"goroutine": 0, "inline": send.ResendTime} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &fakeRedis{records: make(map[string]*fakeRecord)}
				f(t, joinSending(t, r, "client", send.Config{Transport: r, Inline: inline}))
			})
		})
	}
}

// abandonedBubbleEngine is joinBubbleEngine for a test that closes the engine itself, with locks held.
func abandonedBubbleEngine(t *testing.T, redis *fakeRedis, opts ...Option) *bubbleEngine {
	t.Helper()
	o, err := newOptions(opts)
	require.NoError(t, err)
	return &bubbleEngine{newEngine(fakeConfig(redis, "client", o), send.Config{Transport: redis}), redis, t}
}
