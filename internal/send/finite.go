package send

// A Redis client that waits for answers without a limit (ReadTimeout: -1), and its requests that end nevertheless.
//
// Where the network has lost an answer, such a client waits for it for as long as the connection exists, and the
// connection stays in use. After a few seconds without answers the whole pool would be, for ever. So the requests of
// this package, and of those that use a Finite, wait for their answers as they do with the default read timeout.
//
// Rules:
//   - A request is given to the Redis client of the user, whose hooks see it, and which may be of a type of the user.
//     Our hook (hook.go), the last one, gives it to a clone that has a read timeout. The context of the request tells
//     the hook which clone that is. If a hook or a type of the user passes another context, the request goes out
//     without a limit.
//   - No hook of the user is skipped. If one was added after ours, the request goes out without a limit, and ours is
//     added again. The requests of a redis.Conn, which WithSyncedReplicas needs, have no limit either.
//   - The clone has no hooks, so the hooks of the user do not see the commands with which it begins a connection.
//   - A Redis client that sets no deadlines at all (ReadTimeout or WriteTimeout: -2) is left alone: its connections may
//     not support them, as those over SSH, and every request of a clone would fail.
//   - All other requests of the Redis client are passed on.

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// A Finite is a Redis client whose Process, Pipeline and Pipelined wait for answers for ConnectTime at most. The
// connections of Subscribe begin within that time, unless the Redis client is of a type of the user, which may have a
// Subscribe of its own. All other methods are those of the Redis client.
type Finite struct {
	redis.UniversalClient
	// Spawn runs f on another goroutine. It is set before the first request.
	Spawn func(f func())

	clone *redis.Client
	seat  *seat
}

// NewFinite returns the Finite on rdb, to which it adds our hook. It returns nil if rdb has a read timeout, sets no
// deadlines, or neither is nor embeds a *redis.Client.
func NewFinite(rdb redis.UniversalClient) *Finite {
	one, _ := inside(rdb)
	if one == nil || one.Options().ReadTimeout != 0 || !setsDeadlines(one) {
		return nil
	}
	return &Finite{UniversalClient: rdb, clone: one.WithTimeout(ConnectTime), seat: seatOf(one)}
}

// setsDeadlines reports whether go-redis sets deadlines for its connections. Of the timeouts in the options, it stores
// -1, which is no limit, as 0, and -2, which is no deadline, as -1.
func setsDeadlines(rdb *redis.Client) bool {
	o := rdb.Options()
	return o.ReadTimeout >= 0 && o.WriteTimeout >= 0
}

// Process implements redis.UniversalClient.
func (f *Finite) Process(ctx context.Context, cmd redis.Cmder) error {
	return f.UniversalClient.Process(finiteCtx{ctx, f}, cmd)
}

// Pipeline implements redis.UniversalClient.
func (f *Finite) Pipeline() redis.Pipeliner { return finitePipeline{f.UniversalClient.Pipeline(), f} }

// Pipelined implements redis.UniversalClient.
func (f *Finite) Pipelined(ctx context.Context, fill func(redis.Pipeliner) error) ([]redis.Cmder, error) {
	return f.UniversalClient.Pipelined(finiteCtx{ctx, f}, fill)
}

// Subscribe implements redis.UniversalClient. go-redis begins a connection with requests, whose answers may be lost.
func (f *Finite) Subscribe(ctx context.Context, channels ...string) *redis.PubSub {
	if _, is := f.UniversalClient.(*redis.Client); !is {
		return f.UniversalClient.Subscribe(ctx, channels...)
	}
	return f.clone.Subscribe(ctx, channels...)
}

type finitePipeline struct {
	redis.Pipeliner
	of *Finite
}

// Exec implements redis.Pipeliner.
func (p finitePipeline) Exec(ctx context.Context) ([]redis.Cmder, error) {
	return p.Pipeliner.Exec(finiteCtx{ctx, p.of})
}

// A finiteCtx is the context of a request of a Finite.
type finiteCtx struct {
	context.Context
	of *Finite
}

type finiteKey struct{}

func (c finiteCtx) Value(key any) any {
	if key == (finiteKey{}) {
		return c.of
	}
	return c.Context.Value(key)
}

// finiteOf returns the Finite whose request has this context, or nil. The request has come to the hook h, which has
// passed it to other hooks unless it is the last one. Then the next requests will find another last hook.
func finiteOf(ctx context.Context, h *hook, last bool) *Finite {
	f, _ := ctx.Value(finiteKey{}).(*Finite)
	if f == nil || f.seat != h.seat || !h.isLast() {
		return nil
	}
	if !last {
		f.Spawn(h.renew)
		return nil
	}
	return f
}

// process runs a command in place of the next hook.
func (f *Finite) process(ctx context.Context, cmd redis.Cmder) error {
	return f.clone.Process(ctx, cmd)
}

// processAll runs a pipeline in place of the next hook.
func (f *Finite) processAll(ctx context.Context, cmds []redis.Cmder) error {
	pipe := f.clone.Pipeline()
	for _, cmd := range cmds {
		_ = pipe.Process(ctx, cmd)
	}
	_, err := pipe.Exec(ctx)
	return err
}
