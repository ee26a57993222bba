package send

// Calls on go-redis, once each.
//
// Rules: a script is sent by its digest, and with its source to a server that does not
// know the script. A pipeline says for each call how the call went, also where a hook
// has sent nothing at all.

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// A Transport runs calls, once each.
type Transport interface {
	// Run runs one call by itself. If the call takes something, the error is
	// ErrNotSynced unless enough replicas have confirmed the call.
	Run(ctx context.Context, c Call, taking bool) (answer any, err error)
	// RunAll runs calls in pipelines. If they take or renew something, Unsynced says
	// whether enough replicas have confirmed them.
	RunAll(ctx context.Context, calls []Call, taking bool) []Outcome
}

// An Outcome is what became of one of several calls.
type Outcome struct {
	Answer   any
	Err      error
	Unsynced error // too few replicas have confirmed the call; or nil
}

// A Redis is the Transport on go-redis.
type Redis struct {
	rdb    redis.UniversalClient
	synced Synced
}

// NewRedis returns the Transport on rdb, whose replicas confirm as synced asks for.
func NewRedis(rdb redis.UniversalClient, synced Synced) *Redis {
	return &Redis{rdb, synced}
}

// Run implements Transport.
func (r *Redis) Run(ctx context.Context, c Call, taking bool) (any, error) {
	if taking && r.synced.Replicas > 0 {
		return r.runSynced(ctx, c)
	}
	return runOn(ctx, r.rdb, c)
}

// RunAll implements Transport.
func (r *Redis) RunAll(ctx context.Context, calls []Call, taking bool) []Outcome {
	if taking && r.synced.Replicas > 0 {
		return r.runAllSynced(ctx, calls)
	}
	return pipeline{rdb: r.rdb}.run(ctx, calls)
}

// A processor is a client or one of its connections.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

// runOn runs one call.
func runOn(ctx context.Context, rdb processor, c Call) (any, error) {
	cmd := c.command(ctx, false)
	_ = rdb.Process(ctx, cmd) // Result has the error, also where Process returns early
	answer, err := cmd.Result()
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd = c.command(ctx, true)
		_ = rdb.Process(ctx, cmd)
		answer, err = cmd.Result()
	}
	return answer, explained(c, err)
}

// A pipeline runs several calls on one server, and what else goes with them.
type pipeline struct {
	rdb    redis.UniversalClient
	synced Synced // a WAIT at the end
	asking bool   // an ASKING before each call: the slot is on its way to this server
}

// run sends all calls together, and then those together whose scripts the server did not know.
func (p pipeline) run(ctx context.Context, calls []Call) []Outcome {
	outcomes := make([]Outcome, len(calls))
	all := make([]int, len(calls))
	for i := range all {
		all[i] = i
	}
	if unknown := p.send(ctx, calls, all, false, outcomes); len(unknown) > 0 {
		p.send(ctx, calls, unknown, true, outcomes)
	}
	return outcomes
}

// send sends the calls with these numbers, by digest or with the whole source, and notes their outcomes. It
// returns the numbers of the calls whose scripts the server does not know.
func (p pipeline) send(ctx context.Context, calls []Call, which []int, whole bool, outcomes []Outcome) (unknown []int) {
	cmds := make([]onceCmd, len(which))
	pipe := p.rdb.Pipeline()
	for i, n := range which {
		if p.asking {
			_ = pipe.Process(ctx, newOnceCmd(ctx, "asking"))
		}
		cmds[i] = calls[n].command(ctx, whole)
		_ = pipe.Process(ctx, cmds[i])
	}
	var wait onceCmd
	if p.synced.Replicas > 0 {
		wait = p.synced.wait(ctx)
		_ = pipe.Process(ctx, wait)
	}
	_, failed := pipe.Exec(ctx) // the error of the first command that has one
	var unsynced error
	if p.synced.Replicas > 0 {
		unsynced = p.synced.verdict(wait.Result())
	}
	for i, n := range which {
		answer, err := cmds[i].Result()
		if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			unknown = append(unknown, n)
		}
		if answer == nil && err == nil {
			err = failed // of a hook, which has sent nothing
		}
		outcomes[n] = Outcome{answer, explained(calls[n], err), unsynced}
	}
	return unknown
}

// explained is err, the answer of Redis to c, with what its text does not say.
func explained(c Call, err error) error { return orNoPassword(orNotALock(c, err)) }

// orNoPassword returns err; or, where Redis did not read a request because no password came before it, err behind the
// name of that cause. Redis says NOAUTH only to short requests: it refuses one of more than ten words, or with a word
// of more than 16 KiB, while it reads it, and then closes the connection.
func orNoPassword(err error) error {
	if err == nil || !redis.HasErrorPrefix(err, "Protocol error: unauthenticated") {
		return err
	}
	return fmt.Errorf("NOAUTH: Redis asks for a password, and the Redis client has not given one: %w", err)
}
