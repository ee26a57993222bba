//go:build go1.25

package send

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

// newFinite returns the Finite on a Redis client without a read timeout, whose requests end after limit.
func newFinite(t testing.TB, rdb *redis.Client, limit time.Duration) *Finite {
	f := NewFinite(rdb)
	require.NotNil(t, f)
	f.clone = rdb.WithTimeout(limit)
	return f
}

func withoutReadTimeout(o *redis.Options) { o.ReadTimeout, o.PoolSize = -1, 1 }

// A counter is a hook that counts the commands, alone and in pipelines.
type counter struct{ alone, piped atomic.Int64 }

func (*counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.alone.Add(1)
		return next(ctx, cmd)
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.piped.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// ends returns the error of call, which must not wait for ever.
func ends(t *testing.T, call func() error) error {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- call() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(rideOut):
		require.Fail(t, "it waits for ever")
		return nil
	}
}

// waysToSend are the ways in which a Finite sends a GET.
var waysToSend = map[string]func(ctx context.Context, f *Finite) error{
	"alone": func(ctx context.Context, f *Finite) error {
		return f.Process(ctx, redis.NewCmd(ctx, "get", "a"))
	},
	"pipeline": func(ctx context.Context, f *Finite) error {
		pipe := f.Pipeline()
		pipe.Get(ctx, "a")
		_, err := pipe.Exec(ctx)
		return err
	},
	"pipelined": func(ctx context.Context, f *Finite) error {
		_, err := f.Pipelined(ctx, func(pipe redis.Pipeliner) error { pipe.Get(ctx, "a"); return nil })
		return err
	},
}

// Without a read timeout, a request whose answer is lost ends nevertheless, and gives up its connection. All hooks see
// it, those that were added later as well.
func TestRequestWithoutAReadTimeoutEnds(t *testing.T) {
	for name, send := range waysToSend {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			proxy := testredis.NewProxy(t, testredis.Mini(t).Addr())
			rdb := proxy.Client(withoutReadTimeout)
			first, last := new(counter), new(counter)
			rdb.AddHook(first)
			f := newFinite(t, rdb, 200*time.Millisecond)
			fails := func() {
				t.Helper()
				before := first.alone.Load() + first.piped.Load()
				rule := proxy.On(testredis.Command("get"), testredis.StallReply)
				assert.Error(t, ends(t, func() error { return send(ctx, f) }))
				assert.NotZero(t, rule.Count())
				assert.Greater(t, first.alone.Load()+first.piped.Load(), before)
				testredis.Await(t, "the connection is free again", rideOut, func() bool { return send(ctx, f) == redis.Nil })
			}
			require.Equal(t, redis.Nil, send(ctx, f))
			fails()
			rdb.AddHook(last)
			require.Equal(t, redis.Nil, send(ctx, f)) // it finds another hook after ours
			assert.NotZero(t, last.alone.Load()+last.piped.Load(), "the hook that was added later")
			fails()
		})
	}
}

// Requests of the user on the same Redis client, and transactions, are passed on.
func TestFiniteHookPassesOtherRequestsOn(t *testing.T) {
	ctx := context.Background()
	rdb := testredis.Client(t, testredis.Mini(t).Addr(), withoutReadTimeout)
	f := newFinite(t, rdb, time.Nanosecond) // a request with this limit fails
	require.Equal(t, redis.Nil, waysToSend["alone"](ctx, f), "the first request has no limit")
	require.NoError(t, rdb.Set(ctx, "a", "1", 0).Err())
	_, err := rdb.TxPipelined(ctx, func(pipe redis.Pipeliner) error { pipe.Get(ctx, "a"); return nil })
	assert.NoError(t, err)
	_, err = rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error { pipe.Get(ctx, "a"); return nil })
	assert.NoError(t, err)
	for name, send := range waysToSend {
		assert.Error(t, send(ctx, f), name)
	}

	other := testredis.Client(t, testredis.Mini(t).Addr(), withoutReadTimeout) // a hook sends it something with the same ctx
	require.Equal(t, redis.Nil, waysToSend["alone"](ctx, newFinite(t, other, time.Nanosecond)))
	rdb.AddHook(userHook(func(ctx context.Context, _ redis.Cmder, _ redis.ProcessHook) error { return other.Get(ctx, "a").Err() }))
	assert.Equal(t, redis.Nil, waysToSend["alone"](ctx, f))
}

// A connection for subscriptions begins in time, although answers to its first requests are lost.
func TestSubscriptionWithoutAReadTimeoutBegins(t *testing.T) {
	ctx := context.Background()
	proxy := testredis.NewProxy(t, testredis.Mini(t).Addr())
	f := newFinite(t, proxy.Client(withoutReadTimeout), 200*time.Millisecond)
	rule := proxy.On(testredis.Command("hello"), testredis.StallReply).Times(testredis.Always)
	sub := f.Subscribe(ctx)
	defer sub.Close()
	assert.Error(t, ends(t, func() error { return sub.Subscribe(ctx, "a") }))
	rule.Release()
	testredis.Await(t, "it is subscribed", rideOut, func() bool { return sub.Subscribe(ctx, "a") == nil })
}

// A Redis client with a read timeout needs no Finite, and one that sets no deadlines can have none.
func TestFiniteIsForEndlessWaits(t *testing.T) {
	for timeout, want := range map[time.Duration]bool{0: false, time.Hour: false, -1: true, -2: false} {
		rdb := testredis.Client(t, "127.0.0.1:1", func(o *redis.Options) { o.ReadTimeout = timeout })
		assert.Equal(t, want, NewFinite(rdb) != nil, "read timeout %v", timeout)
	}
}

// A replacer is a hook that replaces contexts, and counts how often it is asked for its function for commands.
type replacer struct {
	counter
	made int
}

func (r *replacer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	r.made++
	return func(_ context.Context, cmd redis.Cmder) error { return next(context.Background(), cmd) }
}

// A hook is added once for each Redis client, however many use it, and once for each Finite if no request reaches it.
func TestFiniteAddsOneHook(t *testing.T) {
	for _, first := range []bool{true, false} { // the hook of the user, which keeps requests from reaching ours, or not
		rdb := testredis.Client(t, testredis.Mini(t).Addr(), withoutReadTimeout)
		require.NoError(t, rdb.Ping(context.Background()).Err()) // go-redis asks for the functions again for a connection
		hooks, later := new(replacer), new(counter)
		if first {
			rdb.AddHook(hooks)
		}
		for n := range 3 {
			f := newFinite(t, rdb, rideOut)
			for range 3 {
				require.Equal(t, redis.Nil, waysToSend["alone"](context.Background(), f))
			}
			if n == 0 && !first {
				rdb.AddHook(later)
				rdb.AddHook(hooks)
			}
		}
		assert.Equal(t, map[bool]int{true: 4, false: 2}[first], hooks.made)
	}
}
