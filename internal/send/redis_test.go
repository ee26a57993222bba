package send

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

var (
	incr    = NewScript("redis.call('incr', KEYS[1]) return '1 0 0'")
	echoing = NewScript("return ARGV[1] .. ' ' .. #KEYS .. ' 0'")
)

// onEachServer runs f on an embedded server and on a redis-server.
func onEachServer(t *testing.T, f func(t *testing.T, rdb *redis.Client)) {
	t.Helper()
	t.Run("miniredis", func(t *testing.T) { f(t, testredis.Client(t, testredis.Mini(t).Addr())) })
	t.Run("redis-server", func(t *testing.T) { f(t, testredis.Client(t, testredis.Start(t).Addr())) })
}

func TestScriptThatTheServerDoesNotKnowIsSentWithItsSource(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx := context.Background()
		r := NewRedis(rdb, Synced{})
		call := func(n int) Call { return Call{Script: echoing, Keys: []string{"a", "b"}, Args: []any{n}} }
		for range 3 {
			require.NoError(t, rdb.ScriptFlush(ctx).Err())
			reply, err := ParseReply(r.Run(ctx, call(7), false))
			require.NoError(t, err)
			assert.Equal(t, Reply{7, 2, 0}, reply)

			require.NoError(t, rdb.ScriptFlush(ctx).Err())
			_, err = r.Run(ctx, Call{Script: incr, Keys: []string{"n"}}, false) // the server knows this script now
			require.NoError(t, err)
			replies, errs := parseOutcomes(r.RunAll(ctx, []Call{call(1), {Script: incr, Keys: []string{"n"}}, call(2)}, false))
			require.NoError(t, errors.Join(errs...))
			assert.Equal(t, []Reply{{1, 2, 0}, {1, 0, 0}, {2, 2, 0}}, replies)
		}
		n, err := rdb.Get(ctx, "n").Int()
		require.NoError(t, err)
		assert.Equal(t, 6, n, "each call has run once")
	})
}

func TestPipelineHasAnOutcomeForEachCall(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, rdb *redis.Client) {
		ctx := context.Background()
		require.NoError(t, rdb.HSet(ctx, "hash", "a", 1).Err())
		outcomes := NewRedis(
			rdb,
			Synced{},
		).RunAll(
			ctx,
			[]Call{{Script: incr, Keys: []string{"hash"}}, {Script: incr, Keys: []string{"n"}}},
			false,
		)
		require.Error(t, outcomes[0].Err)
		assert.True(t, Answered(outcomes[0].Err))
		assert.NoError(t, outcomes[1].Err)
	})
}

// go-redis must not send a script twice by itself.
func TestCallIsSentOnceByGoRedis(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	p := testredis.NewProxy(t, s.Addr())
	ctx := context.Background()
	require.NoError(t, s.Client().ScriptLoad(ctx, incr.Source()).Err())
	p.On(testredis.Script(incr.Digest()), testredis.LoseReply).Times(testredis.Always)
	r := NewRedis(p.Client(), Synced{})
	c := Call{Script: incr, Keys: []string{"n"}}
	_, err := r.Run(ctx, c, false)
	require.Error(t, err)
	assert.True(t, MayHaveRun(err))
	outcome := r.RunAll(ctx, []Call{c}, false)[0]
	require.Error(t, outcome.Err)
	assert.True(t, MayHaveRun(outcome.Err))
	n, err := s.Client().Get(ctx, "n").Int()
	require.NoError(t, err)
	assert.Equal(t, 2, n)
}

type pipelineHook func(next redis.ProcessPipelineHook) redis.ProcessPipelineHook

func (pipelineHook) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (pipelineHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h pipelineHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return h(next)
}

// A hook that refuses a pipeline has sent nothing, and sets no error on any command.
func TestRefusedPipelineIsTheErrorOfEachCall(t *testing.T) {
	rdb := testredis.Client(t, testredis.Mini(t).Addr())
	refused := errors.New("refused by a hook")
	rdb.AddHook(pipelineHook(func(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
		return func(context.Context, []redis.Cmder) error { return refused }
	}))
	calls := make2(Call{Script: incr, Keys: []string{"n"}})
	for _, o := range NewRedis(rdb, Synced{}).RunAll(context.Background(), calls, false) {
		assert.Equal(t, refused, o.Err)
	}
}

// The words of the commands of a pipeline are allocated together, but a hook of the user that appends to those of one
// command changes no other one.
func TestCommandsOfAPipelineHaveWordsOfTheirOwn(t *testing.T) {
	t.Parallel()
	rdb := testredis.Client(t, testredis.Mini(t).Addr())
	rdb.AddHook(pipelineHook(func(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
		return func(ctx context.Context, cmds []redis.Cmder) error {
			for _, cmd := range cmds {
				_ = append(cmd.Args(), "more")
			}
			return next(ctx, cmds)
		}
	}))
	var calls []Call
	for n := range 3 {
		calls = append(calls, Call{Script: echoing, Keys: []string{"a", "b"}, Args: []any{n}})
	}
	replies, errs := parseOutcomes(NewRedis(rdb, Synced{}).RunAll(context.Background(), calls, false))
	require.NoError(t, errors.Join(errs...))
	assert.Equal(t, []Reply{{0, 2, 0}, {1, 2, 0}, {2, 2, 0}}, replies)
}

func make2(c Call) []Call { return []Call{c, c} }

// A bounded call rests on the way in which go-redis makes up the read timeout of a command: see Timed.
func TestBoundIsTheReadTimeoutOfTheCommand(t *testing.T) {
	t.Parallel()
	p := testredis.NewProxy(t, testredis.Start(t).Addr())
	p.On(testredis.Command("evalsha"), testredis.StallReply).Times(testredis.Always)
	ctx := context.Background()
	timed := NewTimed(p.Client(func(o *redis.Options) { o.ReadTimeout = time.Hour }))
	testredis.Await(t, "a call ends with its bound", rideOut, func() bool {
		began := time.Now()
		_, err, sent := timed.RunBounded(ctx, began, Call{Script: echoing, Keys: []string{"a"}})
		took := time.Since(began)
		return sent && timedOut(err) && took >= boundedTime && took < 2*boundedTime
	})
}
