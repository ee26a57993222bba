//go:build go1.25

package send

import (
	"context"
	"errors"
	"io"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/petermattis/goid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The goroutine of the caller sends the call if it is certain to have an answer, or none, before the caller has to
// leave.
func TestInlineOnlyWhereNobodyHasToLeave(t *testing.T) {
	const prompt = ResendTime / 4
	canEnd, cancel := context.WithCancel(context.Background())
	defer cancel()
	within := func(d time.Duration) context.Context {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		t.Cleanup(cancel)
		return ctx
	}
	for name, test := range map[string]struct {
		config          time.Duration
		wait, unhealthy bool
		deadline        time.Duration // of the caller; 0: there is none
		ctx             context.Context
		want            bool
	}{
		"inline":               {prompt, true, false, 0, context.Background(), true},
		"with values":          {prompt, true, false, 0, withValue, true},
		"long read timeout":    {0, true, false, 0, context.Background(), false},
		"no time":              {prompt, false, false, 0, context.Background(), false},
		"ctx can be cancelled": {prompt, true, false, 0, canEnd, true},
		"ctx ends later":       {prompt, true, false, 0, within(time.Minute), true},
		"ctx ends before":      {prompt, true, false, 0, within(prompt + ResendTime), false},
		"time is up later":     {prompt, true, false, time.Minute, context.Background(), true},
		"time is up before":    {prompt, true, false, prompt + ResendTime, context.Background(), false},
		"Redis is unhealthy":   {prompt, true, true, 0, context.Background(), false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(c *Config) { c.OnCallerTime = test.config })
			b.unhealthy.Store(test.unhealthy)
			here, sender := goid.Get(), int64(0)
			b.fake.setRun(func(ctx context.Context, c Call) (any, error) {
				sender = goid.Get()
				assert.Equal(t, test.ctx.Value(key{}), ctx.Value(key{}))
				return echo(c), nil
			})
			w := b.wait(test.ctx)
			if w.OnCaller = test.wait; test.deadline > 0 {
				w.Deadline = time.Now().Add(test.deadline)
			}
			answers(t, "x", b.Do(w, request("x"), time.Time{}))
			assert.Equal(t, test.want, sender == here)
			assert.Eventually(t, func() bool { return b.working.Load() == 0 }, time.Second, time.Millisecond)
		})
	}
}

// A caller whose context was canceled while its goroutine sent a call, bounded or not, leaves, and acquires nothing.
func TestInlineCallerWhoseCtxEndsMeanwhileLeaves(t *testing.T) {
	for name, config := range map[string]func(*Config){"inline": inline, "bounded": bounded(boundedTime / 2)} {
		t.Run(name, func(t *testing.T) {
			in(t, func(b *bench) {
				b.isFast()
				b.fake.setRun(after(ResendTime/2, nil))
				ctx, cancel := context.WithCancel(context.Background())
				time.AfterFunc(boundedTime/4, cancel)
				var late orphans
				r := request("x")
				r.OnOrphan = &late
				w := b.wait(ctx)
				w.OnCaller = true
				a := b.Do(w, r, time.Time{})
				assert.ErrorIs(t, a.Err, context.Canceled)
				assert.True(t, a.Abandoned)
				assert.Zero(t, a.Unknown)
				assert.Equal(t, 1, a.Orphans)
				synctest.Wait()
				assert.Len(t, late.all(), 1)
			}, config)
		})
	}
}

func TestInlineCallerMayLeaveAfterAFailure(t *testing.T) {
	in(t, func(b *bench) {
		b.fake.setRun(after(0, refusal("LOADING x")))
		w := b.wait(context.Background())
		w.OnCaller, w.Deadline = true, time.Now().Add(time.Second)
		start := time.Now()
		time.AfterFunc(firstPause/4, func() { b.fake.setRun(after(time.Minute, nil)) })
		a := b.Do(w, request("x"), time.Time{})
		assert.ErrorIs(t, a.Err, ErrTimeUp)
		assert.True(t, a.Abandoned)
		assert.Equal(t, time.Second, time.Since(start))
		assert.False(t, w.OnCaller, "for later calls of the operation")
		time.Sleep(time.Minute)
	}, inline)
}

func TestInlineCallWithoutAConnectionEndsSoon(t *testing.T) {
	in(t, func(b *bench) {
		b.fake.setRun(waitsForConnection)
		w := b.wait(context.Background())
		w.OnCaller = true
		start := time.Now()
		a := b.Once(w, request("x"))
		assert.ErrorContains(t, a.Err, "no connection to Redis within 1s")
		assert.True(t, Transient(a.Err))
		assert.GreaterOrEqual(t, time.Since(start), ResendTime)
		assert.LessOrEqual(t, time.Since(start), ResendTime+ResendTime/4)
	}, inline)
}

// After a call without an answer Redis counts as unhealthy until a call is answered, and the servers are found again.
func TestHealthIsThatOfTheLastCall(t *testing.T) {
	b := newBench(t)
	for _, test := range []struct {
		err       error
		unhealthy bool
		reroutes  int64
	}{
		{nil, false, 0},
		{io.EOF, true, 1},
		{&HookPanic{Value: 1}, true, 0}, // it says nothing about Redis
		{ErrHookExited, true, 0},
		{refusal("WRONGTYPE x"), false, 0},
		{errors.New("x"), true, 1},
		{nil, false, 0},
		{&HookPanic{Value: 1}, false, 0},
		{refusal("CLUSTERDOWN x"), false, 1},
	} {
		b.reroutes.Store(0)
		b.recordHealth(test.err)
		assert.Equal(t, test.unhealthy, b.unhealthy.Load(), "%v", test.err)
		assert.Equal(t, test.reroutes, b.reroutes.Load(), "%v", test.err)
	}
}

// renewing is a Transport for pipelines only.
type renewing struct {
	Transport
	outcomes func() []Outcome
}

func (r renewing) RunAll(_ context.Context, _ []Call, taking bool) []Outcome {
	if !taking {
		panic("nothing would wait for replicas")
	}
	return r.outcomes()
}

func TestAllSendsOnceAndTellsEachError(t *testing.T) {
	var outcomes func() []Outcome
	b := newBench(t, func(c *Config) { c.Transport = renewing{outcomes: func() []Outcome { return outcomes() }} })
	calls := make([]Call, 3)
	sent := 0
	outcomes = func() []Outcome {
		sent++
		return []Outcome{{Answer: reply(1, 0, 0)}, {Err: io.EOF}, {Answer: reply(1, 2, 3), Err: ErrNotSynced}}
	}
	replies, errs := b.All(context.Background(), calls)
	assert.Equal(t, []error{nil, io.EOF, ErrNotSynced}, errs)
	assert.Equal(t, Reply{1, 0, 0}, replies[0])
	assert.Equal(t, 1, sent)
	assert.True(t, b.unhealthy.Load())

	b.unhealthy.Store(false)
	outcomes = func() []Outcome { panic("a hook") }
	replies, errs = b.All(context.Background(), calls)
	assert.Len(t, replies, 3)
	require.Len(t, errs, 3)
	for _, err := range errs {
		require.NotNil(t, PanicOf(err))
		assert.Equal(t, "a hook", PanicOf(err).Value)
	}
	assert.Contains(t, b.log.String(), "a hook of the Redis client panicked")
	assert.False(t, b.unhealthy.Load())
}

// A hook that ends the caller's own goroutine leaves the Sender unchanged.
func TestHookThatEndsTheCallerLeavesNothingBehind(t *testing.T) {
	in(t, func(b *bench) {
		b.fake.setRun(func(context.Context, Call) (any, error) {
			runtime.Goexit()
			return nil, nil
		})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			w := b.wait(context.Background())
			w.OnCaller = true
			b.Do(w, request("x"), time.Time{})
			assert.Fail(t, "the goroutine goes on")
		}()
		<-ended
	}, inline)
}
