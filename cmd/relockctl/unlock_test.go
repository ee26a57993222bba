package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/testredis"
)

// A beforeForce is a hook that calls then once, before the script that releases a lock by force is sent: of those that
// unlock runs on a lock, it has the fewest keys.
type beforeForce struct{ then func() }

func (*beforeForce) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*beforeForce) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *beforeForce) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); strings.HasPrefix(cmd.Name(), "eval") && args[2].(int) <= 4 && h.then != nil {
			then := h.then
			h.then = nil
			then()
		}
		return next(ctx, cmd)
	}
}

// A holder that has acquired the lock after it was shown does not lose it.
func TestUnlockLeavesHoldersThatWereNotShown(t *testing.T) {
	s := testredis.Start(t)
	ctx := relock.ContextWithOwner(ctx) // the hook is called on another goroutine
	before, later := newClient(t, s.Client()), newClient(t, s.Client())
	unlock := func(name string, then func()) error {
		rdb := s.Client()
		rdb.AddHook(&beforeForce{then})
		nowhere, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		must(t, err)
		defer nowhere.Close()
		p := &program{out: nowhere, err: nowhere, yes: true, client: newClient(t, rdb), redis: &connection{rdb, s.Addr()}}
		return p.unlock(ctx, name)
	}

	first, next := before.NewLock("orders"), later.NewLock("orders")
	must(t, first.Lock(ctx))
	err := unlock("orders", func() { must(t, first.Unlock(ctx)); must(t, next.Lock(ctx)) })
	assert.Equal(t, errChanged, err)
	held, err := next.IsHeld(ctx)
	must(t, err)
	assert.True(t, held, "the lock of the next holder")

	must(t, next.Unlock(ctx))
	must(t, next.Lock(ctx))
	err = unlock("orders", func() { must(t, next.Unlock(ctx)) })
	var status statusError
	require.ErrorAs(t, err, &status)
	assert.Equal(t, statusFree, status.status, "the lock was released meanwhile")
}

// A user who may look at a lock, and not release it, is told which permissions that needs, although Redis refuses only a
// command inside of the script.
func TestUnlockWithoutPermissionNamesThePage(t *testing.T) {
	s := testredis.Start(t)
	rdb := s.Client()
	must(t, newClient(t, rdb).NewLock("orders").Lock(ctx))
	must(t, rdb.Do(ctx, "acl", "setuser", "looker", "reset", "on", ">x", "~*", "&*", "+evalsha", "+eval", "+hget", "+hmget",
		"+hrandfield", "+pttl", "+lrange", "+zrangebyscore", "+get", "+time", "+info", "+ping").Err())
	_, errs, status := ctl(t, "", "", "--url", "redis://looker:x@"+s.Addr(), "unlock", "--yes", "orders")
	assert.Equal(t, statusFailed, status)
	assert.Contains(t, errs, `force unlock "orders": `)
	assert.Contains(t, errs, "\nThe permissions that the user needs: "+permissions)
	assert.Equal(t, int64(1), rdb.Exists(ctx, "orders").Val())
}
