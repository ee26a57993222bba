package send

// Calls through go-redis, each of which is sent once.
//
// Rules: a script is sent by its digest, and with its source to a server that does not know the script. A pipeline
// returns an outcome for each call, even if a hook has sent nothing at all.

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// A Transport runs calls, and sends each of them once.
type Transport interface {
	// Run runs one call by itself. If the call acquires or extends something (taking), the error is ErrNotSynced unless
	// enough replicas have confirmed the call.
	Run(ctx context.Context, c Call, taking bool) (answer any, err error)
	// RunAll runs calls in pipelines. If they acquire or renew something (taking), they are for one server as a rule, and
	// the error of those that do is ErrNotSynced unless enough replicas have confirmed them. RunAll does not keep calls.
	RunAll(ctx context.Context, calls []Call, taking bool) []Outcome
}

// An Outcome is the result of one of several calls.
type Outcome struct {
	Answer any
	Err    error
}

// Redis is the Transport on a go-redis client.
type Redis struct {
	rdb    redis.UniversalClient
	synced Synced
}

// NewRedis returns the Transport on rdb. Calls must be confirmed by replicas as synced requires.
func NewRedis(rdb redis.UniversalClient, synced Synced) *Redis {
	return &Redis{rdb, synced}
}

// Run implements Transport.
func (r *Redis) Run(ctx context.Context, c Call, taking bool) (any, error) {
	if taking && r.synced.Replicas > 0 {
		o := r.runSynced(ctx, []Call{c})[0]
		return o.Answer, o.Err
	}
	answer, err := r.process(ctx, c.command(ctx, false))
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
		answer, err = r.process(ctx, c.command(ctx, true))
	}
	return answer, explained(c, err)
}

// RunAll implements Transport.
func (r *Redis) RunAll(ctx context.Context, calls []Call, taking bool) []Outcome {
	if taking && r.synced.Replicas > 0 {
		return r.runSynced(ctx, calls)
	}
	return pipeline{r.rdb, false}.run(ctx, calls)
}

// process runs cmd, and returns its result, which go-redis stores in cmd. The Process of a type of the user may return
// an error and leave cmd as it is.
func (r *Redis) process(ctx context.Context, cmd onceCmd) (answer any, err error) {
	failed := r.rdb.Process(ctx, cmd)
	answer, err = cmd.Result()
	if answer == nil && err == nil {
		err = failed
	}
	return answer, err
}

// A pipeline runs several calls on one server.
type pipeline struct {
	rdb    interface{ Pipeline() redis.Pipeliner }
	asking bool // an ASKING precedes each call, because the slot is being moved to this server
}

// run sends all calls together, and then sends those together whose scripts the server did not know.
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

// send sends the calls with these indexes, by digest or with the whole source, and stores their outcomes. It returns
// the indexes of the calls whose scripts the server does not know.
func (p pipeline) send(ctx context.Context, calls []Call, which []int, whole bool, outcomes []Outcome) (unknown []int) {
	cmds, pipe := make([]onceCmd, len(which)), p.rdb.Pipeline()
	for i, n := range which {
		if p.asking {
			_ = pipe.Process(ctx, newOnceCmd(ctx, "asking"))
		}
		cmds[i] = calls[n].command(ctx, whole)
		_ = pipe.Process(ctx, cmds[i])
	}
	_, failed := pipe.Exec(ctx) // the error of the first command that failed
	for i, n := range which {
		answer, err := cmds[i].Result()
		if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") {
			unknown = append(unknown, n)
		}
		if answer == nil && err == nil {
			err = failed // a hook returned this error and sent nothing
		}
		outcomes[n] = Outcome{answer, explained(calls[n], err)}
	}
	return unknown
}

// explained returns err, with which Redis answered c, together with information that its text does not contain.
func explained(c Call, err error) error { return orMisled(orNotALock(c, err)) }

// unauthenticated is the beginning of the answer to a long request without a password.
const unauthenticated = "Protocol error: unauthenticated"

// orMisled returns err, or an error that names the cause if the Redis client was made without what it needs. Redis
// answers NOAUTH only to short requests. It refuses a request with more than ten words, or with a word of more than
// 16 KiB, while it reads it, and then closes the connection.
func orMisled(err error) error {
	switch {
	case err == nil:
	case redis.HasErrorPrefix(err, unauthenticated):
		return fmt.Errorf("NOAUTH: Redis requires a password, and the Redis client has sent none: %w", err)
	case RefusedWith(err, "READONLY"):
		return fmt.Errorf("this is a replica: use the address of the primary: %w", err)
	case Forbidden(err) && (strings.HasSuffix(err.Error(), " a key") || strings.HasSuffix(err.Error(), " keys used as arguments")):
		return fmt.Errorf("grant the user all keys of the lock, those of the pattern ~relock_* too: %w", err)
	}
	return err
}
