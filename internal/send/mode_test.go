package send

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A user that may do nothing may ask for the mode, in either version of the protocol, and leaves no entry in ACL LOG.
func TestEveryUserMayAskForTheMode(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, addr := range []string{
		testredis.Start(t).Addr(), testredis.StartCluster(t, 1, 0).Client().Options().Addrs[0],
	} {
		admin := testredis.Client(t, addr)
		want := strings.Contains(admin.Info(ctx, "cluster").Val(), "cluster_enabled:1")
		require.NoError(t, admin.Do(ctx, "acl", "setuser", "nobody", "reset", "on", ">secret").Err())
		for _, protocol := range []int{2, 3} {
			rdb := redis.NewClient(&redis.Options{
				Addr: addr, Username: "nobody", Password: "secret", Protocol: protocol, DisableIdentity: true,
			})
			inCluster, err := InClusterMode(ctx, rdb)
			assert.NoError(t, err)
			assert.Equal(t, want, inCluster, "protocol %d", protocol)
			assert.NoError(t, rdb.Close())
		}
		assert.Empty(t, admin.Do(ctx, "acl", "log").Val())
	}
}

// The mode is not known as long as the server admits no connection of the client, for example because its user has not
// been created yet.
func TestModeIsNotKnownBeforeTheClientIsAdmitted(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	admin := testredis.StartCluster(t, 1, 0).Client()
	rdb := redis.NewClient(&redis.Options{Addr: admin.Options().Addrs[0], Username: "later", Password: "secret"})
	t.Cleanup(func() { assert.NoError(t, rdb.Close()) })
	_, err := InClusterMode(ctx, rdb)
	assert.ErrorContains(t, err, "WRONGPASS")
	require.NoError(t, admin.Do(ctx, "acl", "setuser", "later", "reset", "on", ">secret").Err())
	inCluster, err := InClusterMode(ctx, rdb)
	assert.NoError(t, err)
	assert.True(t, inCluster)
}

// A server that does not know the question, or answers something else, is not in Cluster mode. Without an answer, the
// mode is not known.
func TestModeOfServersThatAnswerSomethingElse(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	inCluster, err := InClusterMode(ctx, testredis.Client(t, testredis.Mini(t).Addr())) // knows HELLO with a version only
	assert.NoError(t, err)
	assert.False(t, inCluster)
	failed := errors.New("failed")
	for name, c := range map[string]struct {
		answer any
		err    error
		want   bool
		known  bool
	}{
		"nothing":         {nil, nil, false, true},
		"a text":          {"OK", nil, false, true},
		"another map":     {map[any]any{"role": "master"}, nil, false, true},
		"an odd list":     {[]any{"mode"}, nil, false, true},
		"a list":          {[]any{"role", "mode", "mode", "cluster"}, nil, true, true},
		"a map":           {map[any]any{"mode": "cluster"}, nil, true, true},
		"a Sentinel":      {map[any]any{"mode": "sentinel"}, nil, false, true},
		"nil":             {nil, redis.Nil, false, true},
		"it is loading":   {nil, refusal("LOADING Redis is loading"), false, false},
		"no user yet":     {nil, refusal("WRONGPASS invalid username-password pair or user is disabled."), false, false},
		"no password":     {nil, refusal("NOAUTH HELLO must be called with the client already authenticated"), false, false},
		"it is protected": {nil, refusal("DENIED Redis is running in protected mode"), false, false},
		"it is unknown":   {nil, refusal("ERR unknown command 'HELLO'"), false, true},
		"no answer":       {nil, failed, false, false},
		"a hook panicked": {nil, &HookPanic{}, false, false},
	} {
		inCluster, err := InClusterMode(ctx, answering(func(cmd redis.Cmder) {
			if p := PanicOf(c.err); p != nil {
				panic(p)
			}
			cmd.SetErr(c.err)
			cmd.(onceCmd).SetVal(c.answer)
		}))
		assert.Equal(t, c.want, inCluster, name)
		assert.Equal(t, c.known, err == nil, "%s: %v", name, err)
	}
}

// answering is a Redis client that sends nothing.
type answering func(redis.Cmder)

func (a answering) Process(_ context.Context, cmd redis.Cmder) error {
	a(cmd)
	return cmd.Err()
}
