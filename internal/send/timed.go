package send

// Bounded calls: calls that end soon, with or without an answer, whatever read timeout the user has set.
//
// go-redis cannot be interrupted once a call is sent. But a command that waits inside Redis has a read timeout of its
// own there, which every copy of the command keeps. So a bounded call is a copy of a BLMOVE, whose answer is one text as
// that of a script, with the words of the script and a short read timeout.
//
// Rules:
//   - The command goes through the Process of the user's client like any other. Hooks see the words of the script, and
//     another type than those of other commands.
//   - The bound is for the answer. For a connection the call waits for a quarter of its time at most. If it gets none, it
//     was not sent. The end of that wait has the error errUnsent, because the error of a connection may look like that of
//     any context; go-redis unwraps it if it could not begin the connection. A hook that sends the command again after its
//     time hides that it may have run.
//   - go-redis begins a new connection with the read timeout of the user. So there must be an idle connection, and the
//     server must have answered lately: see Sender.mayBound.
//   - A hook that answers in place of the command has sent another one, which has no bound. Then no call is bounded any
//     more.
//   - A caller stays longer while go-redis relaxes its timeouts because the server is being maintained, and on a Cluster
//     that leads the call from node to node: each has the whole time, and one that a slot moves to has the read timeout
//     of the user.

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	boundedTime   = MinWait          // how long a bounded call takes at most
	blockingExtra = 10 * time.Second // go-redis adds it to the read timeout of a command that waits inside Redis
)

// A Bounder sends calls whose time is limited.
type Bounder interface {
	// Bound returns how long RunBounded takes at most, without the time for a connection. It is 0 if calls cannot be
	// bounded.
	Bound() time.Duration
	// RunBounded runs one call, as Transport.Run does. If sent is false, the call was not sent, or not run because the
	// server does not know its script. Its context has the values of caller, but not its cancellation.
	RunBounded(caller context.Context, now time.Time, c Call) (answer any, err error, sent bool)
}

// errUnsent is the error of a bounded call that was not sent. The hooks of the user see it.
var errUnsent = fmt.Errorf("%w: relock sends this request on another goroutine", redis.ErrPoolTimeout)

// A Timed is a Bounder on a Redis client of any type.
type Timed struct {
	rdb   redis.UniversalClient
	bound time.Duration
	limit limit            // of the time for a connection
	form  *redis.StringCmd // of which every command is a copy
	off   atomic.Bool      // a hook sends other commands
}

// NewTimed returns the Timed on rdb. It returns nil if the options of rdb are not known, if it waits for answers without a
// limit, or if it reads from the replicas of a Cluster: then go-redis asks for information about commands first.
func NewTimed(rdb redis.UniversalClient) *Timed {
	t := &Timed{rdb: rdb}
	var read, write time.Duration
	switch one, cluster := OptionsOf(rdb); {
	case one != nil:
		read, write = one.ReadTimeout, one.WriteTimeout
	case cluster != nil && !cluster.ReadOnly:
		read, write = cluster.ReadTimeout, cluster.WriteTimeout
	default:
		return nil
	}
	if read <= 0 || write < 0 { // so go-redis stores -1 and -2: a new connection could take for ever to begin
		return nil
	}
	t.bound = min(read, boundedTime)
	t.limit.d = t.bound / 5
	t.form = form(rdb.Pipeline(), "evalsha", "", t.bound)
	return t
}

// form adds a command with this name to pipe, and returns it. Its words are all the same key. It has this read timeout if it
// is sent by itself.
func form(pipe redis.Pipeliner, name, key string, timeout time.Duration) *redis.StringCmd {
	cmd := pipe.BLMove(context.Background(), key, key, key, key, timeout-blockingExtra)
	cmd.Args()[0], cmd.Args()[5] = name, key
	cmd.SetFirstKeyPos(1) // where RunBounded puts the key, too
	cmd.SetStepCount(1)   // go-redis would ask a Cluster for it
	return cmd
}

// Bound implements Bounder.
func (t *Timed) Bound() time.Duration {
	if t.off.Load() {
		return 0
	}
	return t.bound
}

// RunBounded implements Bounder.
func (t *Timed) RunBounded(caller context.Context, now time.Time, c Call) (answer any, err error, sent bool) {
	cmd := &timedCmd{StringCmd: t.form.Clone().(*redis.StringCmd), of: t, ctx: connCtx{limited{t.limit.begin(now), caller}}}
	cmd.read, cmd.words = &cmd.own, c.appendTo(cmd.room[:0], false)
	cmd.StringCmd.Args()[1] = cmd.words[3]
	return cmd.outcome(c, t.rdb.Process(&cmd.ctx, cmd))
}

// outcome returns the results of RunBounded for a call. Process has returned failed.
func (c *timedCmd) outcome(call Call, failed error) (answer any, err error, sent bool) {
	text, err := c.Result()
	if text == "" && err == nil {
		err = failed
	}
	switch {
	case isAny(err, redis.ErrPoolTimeout),
		err == nil && text == "" && !c.read.Load(), // a hook has kept the command, or its error, for itself
		err != nil && redis.HasErrorPrefix(err, "NOSCRIPT"):
		return nil, nil, false
	case err != nil:
		return nil, explained(call, err), true
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, nil, true
	}
	return text, nil, true
}

// Probe sends a command about a key, and waits for the answer within that time. In a pipeline, for which there may be
// other connections, it waits as long as other commands do.
func (t *Timed) Probe(key string, within time.Duration, piped bool) error {
	pipe, ctx := t.rdb.Pipeline(), t.limit.begin(time.Now())
	cmd := form(pipe, "exists", key, within)
	if piped {
		_, err := pipe.Exec(ctx)
		return err
	}
	return t.rdb.Process(ctx, probeCmd{cmd})
}

// A probeCmd is sent once: of a connection that was closed, nothing more is to be learned.
type probeCmd struct{ *redis.StringCmd }

// NoRetry implements redis.Cmder.
func (probeCmd) NoRetry() bool { return true }

// A connCtx limits how long go-redis waits for a connection.
type connCtx struct{ limited }

func (c *connCtx) Err() error {
	if c.limited.Err() != nil {
		return errUnsent
	}
	return nil
}

// A timedCmd is a command that has a read timeout of its own, and is sent once.
type timedCmd struct {
	*redis.StringCmd // has other words, among which go-redis looks for the name and for the key
	words            []any
	read             *atomic.Bool // the words were read: the command, of which this one may be a copy, may have been sent
	of               *Timed

	// Allocated together:
	own  atomic.Bool
	ctx  connCtx
	room [12]any // for the words of most scripts
}

// Args implements redis.Cmder.
func (c *timedCmd) Args() []any {
	c.read.Store(true)
	return c.words
}

// NoRetry implements redis.Cmder.
func (*timedCmd) NoRetry() bool { return true }

// SetVal is for hooks that answer as *redis.Cmd allows it.
func (c *timedCmd) SetVal(answer any) {
	c.of.off.Store(true)
	c.StringCmd.SetVal(fmt.Sprint(answer))
}

// Clone implements redis.Cmder.
func (c *timedCmd) Clone() redis.Cmder {
	return &timedCmd{StringCmd: c.StringCmd.Clone().(*redis.StringCmd), words: slices.Clone(c.words), read: c.read, of: c.of}
}

// String is that of a *redis.Cmd.
func (c *timedCmd) String() string {
	same := redis.NewCmd(context.Background(), c.words...)
	same.SetVal(c.Val())
	same.SetErr(c.Err())
	return same.String()
}
