package locktest

import (
	"context"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/inside"
)

// Unlabeled is the default of WithLabel, which the Clients of most tests do not have.
var Unlabeled = inside.Unlabeled.(relock.Option)

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
