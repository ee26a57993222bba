package lua

// The scripts of a plain lock, request by request.

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
)

const (
	java  = "5a2d7b1e-4c02-4b8e-9d2f-0c5a3e1f7a10:42" // a client, and one of its owners
	ahead = 9_000_000_000_000_000                     // a token counter that the clock has not reached
)

// onEachServer runs test on a miniredis and on a real Redis; in the plain form on a miniredis only without a Redis.
func onEachServer(t *testing.T, test func(t *testing.T, addr string)) {
	t.Run("miniredis", func(t *testing.T) {
		if testredis.Available() {
			testredis.OnlyLong(t)
		}
		test(t, testredis.Mini(t).Addr())
	})
	t.Run("redis", func(t *testing.T) { test(t, testredis.Start(t).Addr()) })
}

// The scripts of a plain lock keep the contracts of their headers, even when they run again.
func TestScriptsOfALock(t *testing.T) {
	const minute = 60_000
	type step struct {
		script string
		tokens bool // a third key
		args   []any
		want   send.Reply // -7: any number
		record string     // afterwards: "field=hold count" or ""
		pttl   int64      // afterwards: about
	}
	const any7 = -7
	acquire := func(field string, lease, level int, want send.Reply, record string, pttl int64) step {
		return step{"lock_acquire", false, []any{field, lease, level}, want, record, pttl}
	}
	release := func(field string, left int, want send.Reply, record string, pttl int64) step {
		return step{"lock_release", false, []any{field, "channel", "publish", minute, left}, want, record, pttl}
	}
	renew := func(field string, lease int, want send.Reply, record string, pttl int64) step {
		return step{"renew", false, []any{field, lease}, want, record, pttl}
	}
	// Locks have only fields of a form of their own.
	fields := map[string]string{"a": java + ":01", "b": java + ":02"}
	onEachServer(t, func(t *testing.T, addr string) {
		for name, steps := range map[string][]step{
			"acquire, again, and by another": {
				acquire("a", minute, 1, send.Reply{1, 0, 0}, "a=1", minute),
				acquire("a", minute, 1, send.Reply{1, 0, 0}, "a=1", minute),
				acquire("b", minute, 1, send.Reply{0, any7, 0}, "a=1", minute),
				acquire("b", minute, 2, send.Reply{-1, 0, 0}, "a=1", minute),
			},
			"levels are set and not added": {
				acquire("a", minute, 2, send.Reply{-1, 0, 0}, "", -2),
				acquire("a", minute, 1, send.Reply{1, 0, 0}, "a=1", minute),
				acquire("a", minute, 2, send.Reply{1, 0, 0}, "a=2", minute),
				acquire("a", minute, 2, send.Reply{1, 0, 0}, "a=2", minute),
				release("a", 1, send.Reply{1, 0, 0}, "a=1", minute),
				release("a", 1, send.Reply{1, 0, 0}, "a=1", minute),
				release("a", 0, send.Reply{1, 0, 0}, "", -2),
				release("a", 0, send.Reply{-1, 0, 0}, "", -2),
				release("a", 1, send.Reply{-1, 0, 0}, "", -2),
			},
			"a release is for its own hold": {
				acquire("a", minute, 1, send.Reply{1, 0, 0}, "a=1", minute),
				release("b", 0, send.Reply{-1, 0, 0}, "a=1", minute),
				release("b", 1, send.Reply{-1, 0, 0}, "a=1", minute),
			},
			"a lease is never shortened": {
				acquire("a", 2*minute, 1, send.Reply{1, 0, 0}, "a=1", 2*minute),
				acquire("a", minute, 2, send.Reply{1, 0, 0}, "a=2", 2*minute),
				renew("a", minute, send.Reply{1, 0, 0}, "a=2", 2*minute),
				renew("a", 3*minute, send.Reply{1, 0, 0}, "a=2", 3*minute),
				release("a", 1, send.Reply{1, 0, 0}, "a=1", 3*minute),
			},
			"renewing makes nothing and is for its own hold": {
				renew("a", minute, send.Reply{-1, 0, 0}, "", -2),
				acquire("a", minute, 1, send.Reply{1, 0, 0}, "a=1", minute),
				renew("b", 5*minute, send.Reply{-1, 0, 0}, "a=1", minute),
			},
			"force": {
				{"force", false, []any{"channel", "publish"}, send.Reply{0, 0, 0}, "", -2},
				acquire("a", minute, 1, send.Reply{1, 0, 0}, "a=1", minute),
				{"force", false, []any{"channel", "publish"}, send.Reply{1, 0, 0}, "", -2},
			},
			"inspect": {
				{"inspect", false, []any{""}, send.Reply{0, 0, -2}, "", -2},
				acquire("a", minute, 1, send.Reply{1, 0, 0}, "a=1", minute),
				acquire("a", minute, 2, send.Reply{1, 0, 0}, "a=2", minute),
				{"inspect", false, []any{"a"}, send.Reply{1, 2, any7}, "a=2", minute},
				{"inspect", false, []any{"b"}, send.Reply{1, 0, any7}, "a=2", minute},
			},
			"a token is drawn by a fresh hold only": {
				{"lock_acquire", true, []any{"a", minute, 1}, send.Reply{1, 0, ahead + 1}, "a=1", minute},
				{"lock_acquire", true, []any{"a", minute, 2}, send.Reply{1, 0, 0}, "a=2", minute},
				{"lock_acquire", true, []any{"b", minute, 1}, send.Reply{0, any7, 0}, "a=2", minute},
				{"lock_acquire", true, []any{"a", minute, 1}, send.Reply{1, 0, ahead + 2}, "a=1", minute},
				release("a", 0, send.Reply{1, 0, 0}, "", -2),
				{"lock_acquire", true, []any{"b", minute, 1}, send.Reply{1, 0, ahead + 3}, "b=1", minute},
			},
		} {
			t.Run(name, func(t *testing.T) {
				rdb, ctx := testredis.Client(t, addr), t.Context()
				const lock, line, tokens = "lock", "relock_line:{lock}", "redisson_lock_token:{lock}"
				require.NoError(t, rdb.FlushDB(ctx).Err())
				require.NoError(t, rdb.Set(ctx, tokens, ahead, 0).Err())
				for i, s := range steps {
					keys := []string{lock, line}
					if s.tokens {
						keys = append(keys, tokens)
					}
					args := slices.Clone(s.args)
					for n, arg := range args {
						if field, ok := fields[fmt.Sprint(arg)]; ok {
							args[n] = field
						}
					}
					c := send.Call{Script: send.NewScript(Source(s.script)), Keys: keys, Args: args}
					got, _, err := send.ParseForced(send.NewRedis(rdb, send.Synced{}).Run(ctx, c, false))
					for j := range got {
						if s.want[j] == any7 && got[j] > 0 {
							got[j] = any7
						}
					}
					assert.NoError(t, err, "step %d", i)
					assert.Equal(t, s.want, got, "step %d", i)
					record := ""
					for field, levels := range rdb.HGetAll(ctx, lock).Val() {
						record += map[string]string{fields["a"]: "a", fields["b"]: "b"}[field] + "=" + levels
					}
					pttl, err := rdb.Do(ctx, "pttl", lock).Int64()
					assert.NoError(t, err, "step %d", i)
					assert.Equal(t, s.record, record, "step %d", i)
					assert.LessOrEqual(t, pttl, s.pttl, "step %d", i)
					assert.GreaterOrEqual(t, pttl, s.pttl-10_000, "step %d", i)
				}
				assert.Subset(t, []string{lock, tokens}, rdb.Keys(ctx, "*").Val(), "keys that are left")
			})
		}
	})
}
