//go:build go1.25

package send

import (
	"context"
	"errors"
	"io"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A caller whose context was canceled while its goroutine sent a call leaves, and acquires nothing.
func TestInlineCallerWhoseCtxEndsMeanwhileLeaves(t *testing.T) {
	in(t, func(b *bench) {
		b.isFast()
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
	}, bounded(boundedTime/2))
}

func TestInlineCallerMayLeaveAfterAFailure(t *testing.T) {
	in(t, func(b *bench) {
		b.isFast()
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
	probed := make(chan struct{}, 1)
	b := newBench(t, func(c *Config) {
		c.Transport = renewing{outcomes: func() []Outcome { return outcomes() }}
		c.Probe = func(string, time.Duration) { probed <- struct{}{} }
	})
	calls := slices.Repeat([]Call{request("x").Call}, 3)
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
	assert.Eventually(t, func() bool { return len(probed) == 1 }, slack, time.Millisecond, "the other connections may be closed, too")

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
		b.isFast()
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
