package send

// Bounded calls: calls that end soon, with or without an answer, whatever read timeout the user has set.
//
// go-redis cannot be interrupted once a call is sent. But a command that waits inside Redis has a read timeout of its
// own there, which every copy of the command keeps. So a bounded call is a copy of a BLMOVE, whose answer is one text as
// that of a script, with the words of the script and a short read timeout.
//
// Rules:
//   - The command goes through the Process of the user's client like any other. Hooks see the words of the script, and
//     another type than those of other commands. All copies of a command count as one.
//   - The bound is for the answer. For a connection the call waits for a quarter of its time at most. If it gets none, it
//     was not sent. Only the end of that wait has the error errUnsent: the error of a connection may look like that of
//     any context.
//   - go-redis begins a new connection with the read timeout of the user. So there must be an idle connection, and the
//     server must have answered lately: see Sender.mayBound.
//   - If a hook repeats a call, or hides that it has no answer, a run that Redis may still be going to make is not
//     forgotten. After each run that has failed go-redis asks the command whether it may be repeated, and later tells it
//     the error, unless a hook keeps it. Hooks may do both as well, so it matters who does.
//   - A hook that answers in place of the command has sent another one, which has no bound. Then no call is bounded any
//     more.
//   - A caller stays longer while go-redis relaxes its timeouts because the server is being maintained, and on a Cluster
//     that leads the call from node to node: each has the whole time, and one that a slot moves to has the read timeout
//     of the user.

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	boundedTime   = MinWait          // how long a bounded call takes at most
	blockingExtra = 10 * time.Second // go-redis adds it to the read timeout of a command that waits inside Redis
)

// goRedis is the path of its package.
var goRedis = reflect.TypeFor[redis.Client]().PkgPath()

// A Bounder sends calls whose time is limited.
type Bounder interface {
	// Bound returns how long RunBounded takes at most, without the time for a connection. It is 0 if calls cannot be
	// bounded.
	Bound() time.Duration
	// RunBounded runs one call, as Transport.Run does. If sent is false, the call was not sent, or not run because the
	// server does not know its script. Its context has the values of caller, but not its cancellation.
	RunBounded(caller context.Context, now time.Time, c Call) (answer any, err error, sent bool)
	// Probe sends a command about a key, and waits for the answer for as long.
	Probe(key string)
}

// errUnsent is the error of a bounded call that was not sent. The hooks of the user see it.
var errUnsent = fmt.Errorf("%w: relock sends this request on another goroutine", redis.ErrPoolTimeout)

// errRepeated is the error of a bounded call that a hook of the user has repeated, or whose missing answer it has hidden,
// so that Redis may still run the call, whatever the hook returns. The request is sent again, and that try counts.
var errRepeated = errors.New("a hook of the Redis client has hidden an outcome of this request, which Redis may still run")

// A Timed is a Bounder on a Redis client of any type.
type Timed struct {
	rdb   redis.UniversalClient
	bound time.Duration
	limit limit            // of the time for a connection
	form  *redis.StringCmd // of which every command is a copy
	off   atomic.Bool      // a hook sends other commands
}

// NewTimed returns the Timed on rdb. It returns nil if the options of rdb are not known, if it sets no deadlines, or if
// it reads from the replicas of a Cluster: then go-redis asks for information about commands first.
func NewTimed(rdb redis.UniversalClient) *Timed {
	t := &Timed{rdb: rdb, bound: boundedTime}
	var read, write time.Duration
	switch one, cluster := OptionsOf(rdb); {
	case one != nil:
		read, write = one.ReadTimeout, one.WriteTimeout
	case cluster != nil && !cluster.ReadOnly:
		read, write = cluster.ReadTimeout, cluster.WriteTimeout
	default:
		return nil
	}
	if read < 0 || write < 0 { // so go-redis stores -2; -1, no limit, is 0 there
		return nil
	}
	if read > 0 {
		t.bound = min(read, boundedTime)
	}
	t.limit.d = t.bound / 5
	t.form = rdb.Pipeline().BLMove(context.Background(), "", "", "", "", t.bound-blockingExtra)
	t.form.Args()[0] = "evalsha" // its name
	t.form.SetFirstKeyPos(1)     // where command puts the key
	t.form.SetStepCount(1)       // go-redis would ask a Cluster for it
	return t
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
	cmd := t.command(caller, now)
	cmd.words = c.appendTo(cmd.room[:0], false)
	cmd.StringCmd.Args()[1] = cmd.words[3]
	failed := t.rdb.Process(&cmd.ctx, cmd)
	if cmd.runs.replaced.Load() {
		t.off.Store(true)
	}
	return cmd.outcome(c, failed)
}

// outcome returns the results of RunBounded for a call. Process has returned failed.
func (c *timedCmd) outcome(call Call, failed error) (answer any, err error, sent bool) {
	text, err := c.Result()
	if text == "" && err == nil {
		err = failed
	}
	notRun := errors.Is(err, errUnsent) || err != nil && redis.HasErrorPrefix(err, "NOSCRIPT")
	switch read := c.runs.read.Load(); {
	case notRun && !read, text == "" && err == nil && !read:
		return nil, nil, false
	case !notRun && MayRunLater(err):
		return nil, explained(call, err), true
	case c.runs.lost.Load() || c.runs.failed.Load():
		return nil, errRepeated, true
	case notRun:
		return nil, nil, false
	case err != nil:
		return nil, explained(call, err), true
	}
	return numberOr(text), nil, true
}

// numberOr returns the integer that text is, or else text.
func numberOr(text string) any {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n
	}
	return text
}

// Probe implements Bounder.
func (t *Timed) Probe(key string) {
	cmd := t.command(context.Background(), time.Now())
	cmd.words = append(cmd.room[:0], "exists", key)
	cmd.StringCmd.Args()[0], cmd.StringCmd.Args()[1] = "exists", key
	_ = t.rdb.Process(&cmd.ctx, cmd)
}

// command returns a command without words.
func (t *Timed) command(caller context.Context, now time.Time) *timedCmd {
	cmd := &timedCmd{StringCmd: t.form.Clone().(*redis.StringCmd), ctx: connCtx{limited{t.limit.begin(now), caller}}}
	cmd.runs = &cmd.own
	return cmd
}

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
	runs             *runs // own, or that of the command of which this one is a copy

	// Allocated together:
	own  runs
	ctx  connCtx
	room [12]any // for the words of most scripts
}

// runs are what is known about the runs of a command.
type runs struct {
	read     atomic.Bool // the words were read: the command may have been sent
	failed   atomic.Bool // the last run has failed, and it is not known how
	lost     atomic.Bool // Redis may run it later
	replaced atomic.Bool // a hook has answered
}

// Args implements redis.Cmder.
func (c *timedCmd) Args() []any {
	c.runs.read.Store(true)
	return c.words
}

// NoRetry implements redis.Cmder.
func (c *timedCmd) NoRetry() bool {
	if calledBy(".processWithRetry") && c.runs.failed.Swap(true) {
		c.runs.lost.Store(true)
	}
	return true
}

// SetErr implements redis.Cmder.
func (c *timedCmd) SetErr(err error) {
	told := c.runs.failed.Load() && calledBy(".Process")
	if told {
		c.runs.failed.Store(false)
	}
	if told && err == nil || MayRunLater(err) {
		c.runs.lost.Store(true)
	}
	c.StringCmd.SetErr(err)
}

// calledBy reports whether the function that calls it was called by a function whose name ends like this. That of a hook
// would be called for other reasons.
func calledBy(end string) bool {
	var caller [1]uintptr
	runtime.Callers(3, caller[:])
	frame, _ := runtime.CallersFrames(caller[:]).Next()
	return strings.HasPrefix(frame.Function, goRedis) && strings.HasSuffix(frame.Function, end)
}

// SetVal is for hooks that answer as *redis.Cmd allows it.
func (c *timedCmd) SetVal(answer any) {
	c.runs.replaced.Store(true)
	c.StringCmd.SetVal(fmt.Sprint(answer))
}

// Clone implements redis.Cmder.
func (c *timedCmd) Clone() redis.Cmder {
	return &timedCmd{StringCmd: c.StringCmd.Clone().(*redis.StringCmd), words: slices.Clone(c.words), runs: c.runs}
}

// String is that of a *redis.Cmd.
func (c *timedCmd) String() string {
	same := redis.NewCmd(context.Background(), c.words...)
	same.SetVal(c.Val())
	same.SetErr(c.Err())
	return same.String()
}
