package send

// A Redis client that waits for answers without a limit (ReadTimeout: -1), and its requests that end nevertheless.
//
// Where the network has lost an answer, such a client waits for it for as long as the connection exists, and the
// connection stays in use. After a few seconds without answers the whole pool would be, for ever. So the requests of
// this package, and of those that use a Finite, wait for their answers as they do with the default read timeout.
//
// Rules:
//   - A request is given to the Redis client of the user, whose hooks see it, and which may be of a type of the user. A
//     hook of this package, the last one, gives it to a clone that has a read timeout. The context of the request tells
//     the hook which clone that is. If a hook or a type of the user passes another context, the request goes out
//     without a limit.
//   - No hook of the user is skipped. go-redis makes the functions of all hooks anew when another hook is added, and only
//     those that were made when our hook was added are followed by no other hook. If no such function has seen a
//     request, it has gone out without a limit, and our hook is added, however many Clients use the Redis client. So the
//     first request has no limit. The requests of a redis.Conn, which WithSyncedReplicas needs, have none either.
//   - The clone has no hooks, so the hooks of the user do not see the commands with which it begins a connection.
//   - A Redis client that sets no deadlines at all (ReadTimeout or WriteTimeout: -2) is left alone: its connections may
//     not support them, as those over SSH, and every request of a clone would fail.
//   - All other requests of the Redis client are passed on.

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A Finite is a Redis client whose Process, Pipeline and Pipelined wait for answers for ConnectTime at most. The
// connections of Subscribe begin within that time, unless the Redis client is of a type of the user, which may have a
// Subscribe of its own. All other methods are those of the Redis client.
type Finite struct {
	redis.UniversalClient
	clone   *redis.Client
	options *redis.Options // of the Redis client
	hooked  atomic.Bool    // our hook was added to a client that had none
}

// NewFinite returns the Finite on rdb. It returns nil if rdb has a read timeout, sets no deadlines, or neither is nor
// embeds a *redis.Client.
func NewFinite(rdb redis.UniversalClient) *Finite {
	one, _ := OptionsOf(rdb)
	clonable, ok := embedded(rdb).(interface {
		WithTimeout(time.Duration) *redis.Client
	})
	if !ok || one == nil || one.ReadTimeout != 0 || !setDeadlines(one.ReadTimeout, one.WriteTimeout) {
		return nil
	}
	return &Finite{UniversalClient: rdb, clone: clonable.WithTimeout(ConnectTime), options: one}
}

// setDeadlines reports whether go-redis sets deadlines for its connections. Of the timeouts in the options, it stores
// -1, which is no limit, as 0, and -2, which is no deadline, as -1.
func setDeadlines(read, write time.Duration) bool { return read >= 0 && write >= 0 }

// Process implements redis.UniversalClient.
func (f *Finite) Process(ctx context.Context, cmd redis.Cmder) error {
	r := &finiteCtx{Context: ctx, of: f}
	defer r.end()
	return f.UniversalClient.Process(r, cmd)
}

// Pipeline implements redis.UniversalClient.
func (f *Finite) Pipeline() redis.Pipeliner { return finitePipeline{f.UniversalClient.Pipeline(), f} }

// Pipelined implements redis.UniversalClient.
func (f *Finite) Pipelined(ctx context.Context, fill func(redis.Pipeliner) error) ([]redis.Cmder, error) {
	r := &finiteCtx{Context: ctx, of: f}
	defer r.end()
	return f.UniversalClient.Pipelined(r, fill)
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
	r := &finiteCtx{Context: ctx, of: p.of}
	defer r.end()
	return p.Pipeliner.Exec(r)
}

// A finiteCtx is the context of a request of a Finite.
type finiteCtx struct {
	context.Context
	of       *Finite
	limited  atomic.Bool
	followed atomic.Pointer[finiteHook] // our last hook that the request has passed
}

type finiteKey struct{}

func (r *finiteCtx) Value(key any) any {
	if key == (finiteKey{}) {
		return r
	}
	return r.Context.Value(key)
}

// end adds our hook if the request had no limit, unless that was done already. The hooks of the user are asked for their
// functions then.
func (r *finiteCtx) end() {
	if r.limited.Load() {
		return
	}
	done := &r.of.hooked
	if h := r.followed.Load(); h != nil {
		done = &h.replaced
	}
	if done.CompareAndSwap(false, true) {
		_ = CatchPanic(func() error { r.of.AddHook(&finiteHook{options: r.of.options}); return nil })
	}
}

// A finiteHook is our hook.
type finiteHook struct {
	options          *redis.Options // of the Redis client that has the hook: a command of another one may have the same context
	made, madeForAll atomic.Bool    // the functions that no other hook follows, for commands and for pipelines
	replaced         atomic.Bool    // another hook follows, and after that ours was added again
}

// cloneFor returns the clone for a request with this context, or nil. The function that asks was made first, or not.
func (h *finiteHook) cloneFor(ctx context.Context, first bool) *redis.Client {
	r, _ := ctx.Value(finiteKey{}).(*finiteCtx)
	if r == nil || r.of.options != h.options {
		return nil
	}
	if !first {
		r.followed.Store(h)
		return nil
	}
	r.limited.Store(true)
	return r.of.clone
}

// DialHook implements redis.Hook.
func (*finiteHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (h *finiteHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	first := h.made.CompareAndSwap(false, true)
	return func(ctx context.Context, cmd redis.Cmder) error {
		if clone := h.cloneFor(ctx, first); clone != nil {
			return clone.Process(ctx, cmd)
		}
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements redis.Hook. Of the two functions that go-redis makes when the hook is added, the first
// one is for pipelines, and the second one for transactions.
func (h *finiteHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	first := h.madeForAll.CompareAndSwap(false, true)
	return func(ctx context.Context, cmds []redis.Cmder) error {
		clone := h.cloneFor(ctx, first)
		if clone == nil {
			return next(ctx, cmds)
		}
		pipe := clone.Pipeline()
		for _, cmd := range cmds {
			_ = pipe.Process(ctx, cmd)
		}
		_, err := pipe.Exec(ctx)
		return err
	}
}
