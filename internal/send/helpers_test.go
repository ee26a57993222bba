package send

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const rideOut = 30 * time.Second

// A fake is a Transport that answers each call with its first key, unless the test sets another answer.
type fake struct {
	mu      sync.Mutex // guards below
	run     func(ctx context.Context, c Call) (any, error)
	sent    []time.Time // when single calls were sent
	before  func(ctx context.Context) error
	batches [][]string // the first keys of the calls in each pipeline
}

func (f *fake) Run(ctx context.Context, c Call, _ bool) (any, error) {
	f.mu.Lock()
	f.sent = append(f.sent, time.Now())
	run := f.run
	f.mu.Unlock()
	if run == nil {
		return echo(c), nil
	}
	return run(ctx, c)
}

// RunAll returns the error of before as the outcome of the first call.
func (f *fake) RunAll(ctx context.Context, calls []Call, _ bool) []Outcome {
	outcomes := make([]Outcome, len(calls))
	var keys []string
	for i, c := range calls {
		outcomes[i].Answer = echo(c)
		keys = append(keys, c.Keys[0])
	}
	f.mu.Lock()
	f.batches = append(f.batches, keys)
	before := f.before
	f.mu.Unlock()
	if before != nil {
		outcomes[0].Err = before(ctx)
	}
	return outcomes
}

func (f *fake) setRun(run func(ctx context.Context, c Call) (any, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.run = run
}

func (f *fake) setBefore(before func(ctx context.Context) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = before
}

// times returns when single calls were sent.
func (f *fake) times() []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.sent)
}

func (f *fake) tries() int { return len(f.times()) }

func (f *fake) pipelines() [][]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.batches)
}

func echo(c Call) any { return []any{c.Keys[0]} }

func request(key string) Request { return Request{Call: Call{Keys: []string{key}}} }

// A bench is a Sender with a fake Transport.
type bench struct {
	*Sender
	t        testing.TB
	fake     *fake
	closed   chan struct{}
	working  atomic.Int64 // number of goroutines
	reroutes atomic.Int64
	log      *bytes.Buffer
}

func newBench(t testing.TB, change ...func(*Config)) *bench {
	b := &bench{t: t, fake: new(fake), closed: make(chan struct{}), log: new(bytes.Buffer)}
	c := Config{
		Transport:   b.fake,
		RetryBudget: rideOut,
		Spawn: func(f func()) {
			b.working.Add(1)
			go func() {
				defer b.working.Add(-1)
				f()
			}()
		},
		Reroute: func() { b.reroutes.Add(1) },
		Log:     slog.New(slog.NewTextHandler(b.log, nil)),
	}
	for _, f := range change {
		f(&c)
	}
	b.Sender = New(c)
	return b
}

// inline has callers send their calls themselves, once Redis isFast.
func inline(c *Config) {
	c.Bounded, c.Idle = prompt{c.Transport}, func(string) int { return 1 }
}

// prompt is a Bounder that runs calls as its Transport does.
type prompt struct{ Transport }

func (prompt) Bound() time.Duration { return boundedTime }

func (p prompt) RunBounded(ctx context.Context, _ time.Time, c Call) (any, error, bool) {
	answer, err := p.Run(ctx, c, false)
	return answer, err, true
}

// isFast makes the sender believe that Redis has answered fast for a while.
func (b *bench) isFast() {
	b.slowness.d.Store(int64(leastSlowness))
	b.batches.heard.Store(int64(time.Since(b.began)))
}

func (b *bench) wait(ctx context.Context) *Wait { return &Wait{Ctx: ctx, Closed: b.closed} }

// do sends a request for a caller without a deadline.
func (b *bench) do(r Request) Answer {
	return b.Do(b.wait(context.Background()), r, time.Time{})
}

func (b *bench) idle() {
	b.t.Helper()
	assert.Zero(b.t, b.working.Load(), "goroutines")
	assert.Zero(b.t, b.asking.Load(), "tries under way")
	assert.Zero(b.t, b.resent.Load(), "tries under way beside others")
}

// orphans collects the outcomes of orphaned tries.
type orphans struct {
	mu   sync.Mutex // guards below
	list []outcome
}

func (o *orphans) HandleOrphan(sent time.Time, answer any, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = append(o.list, outcome{sent, answer, err})
}

func (o *orphans) all() []outcome {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.list)
}

// refusal is an error reply from Redis.
type refusal string

func (e refusal) Error() string { return string(e) }
func (refusal) RedisError()     {}

// answers requires that the answer is key.
func answers(t testing.TB, key string, a Answer) {
	t.Helper()
	require.NoError(t, a.Err)
	require.Equal(t, []any{key}, a.Value)
}

// reply returns an answer in the form in which go-redis returns it.
func reply(n ...int64) any { return fmt.Sprint(n[0], n[1], n[2]) }

// pipelines is a Transport whose pipelines have the outcomes that the function returns.
type pipelines func() []Outcome

func (p pipelines) Run(context.Context, Call, bool) (any, error) { panic("a single call") }

func (p pipelines) RunAll(context.Context, []Call, bool) []Outcome { return p() }
