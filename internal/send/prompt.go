package send

// Bounded calls: calls that end soon, with or without an answer, whatever read timeout the user has set.
//
// go-redis cannot be interrupted once a call is sent, but (*redis.Client).WithTimeout returns a clone that shares the
// pool of connections and has a shorter read timeout. The clone does not have the hooks of its parent. So a bounded
// call is given to the parent, whose hooks see it, and a hook of this package, the last one, gives it to the clone.
//
// Rules:
//   - A Redis client has one such hook, however many Clients use it. The hook refers to none of them: the command
//     carries what the hook needs. It passes on every other command, pipeline and dialing, but for those of a Finite
//     (finite.go), whose context carries it.
//   - go-redis makes the functions of all hooks anew when another hook is added, and for each redis.Conn. Only the
//     function that was made when our hook was added is followed by no other hook. It alone may use the clone.
//   - No hook of the user is skipped, and no bounded call goes out without its bound. If another hook follows, or a
//     hook of the user has replaced the command, the call is not sent, and the sender makes an ordinary try.
//   - No call is bounded before an ordinary one has come through the hook. If a hook was added after ours, ours is
//     added again.
//   - A hook of the user that replaces both the command and its context, but not always, can have one call sent without
//     its bound. If that call takes longer, no other call is bounded.
//   - A bounded call waits for a connection for a quarter of its time at most. If it gets none, it was not sent. Only
//     the end of that wait has the error errUnsent: the error of a connection may look like that of any context.
//   - The context of a bounded call has a deadline, which the clone obeys. It holds also where go-redis gives a
//     connection more time than its read timeout, because the server is being maintained.
//   - If a hook of the user repeats a bounded call, none of its runs is forgotten, also if a later one is answered.
//   - A hook of the user may keep errors for itself. A bounded call that was not sent is known without its error.
//   - The clone has no hooks. If a bounded call is the first to use a connection, the hooks of the user do not see the
//     commands with which go-redis begins the connection.

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/redis/go-redis/v9"
)

const (
	promptTime = MinWait // how long a bounded call takes at most
	maxHooks   = 8       // times that our hook is added to one Redis client
)

// A Bounder sends calls whose time is limited.
type Bounder interface {
	// Bound returns how long RunBounded takes at most, without the time for a connection. It is 0 if calls cannot be
	// bounded at present.
	Bound() time.Duration
	// RunBounded runs one call, as Transport.Run does. If sent is false, the call was not sent, or not run because the
	// server does not know its script. Its context has the values of caller, but not its cancellation.
	RunBounded(caller context.Context, now time.Time, c Call) (answer any, err error, sent bool)
}

// errUnsent is the error of a bounded call that was not sent. The hooks of the user see it.
var errUnsent = errors.New("relock has not sent this request, and sends it on another goroutine")

// errRepeated is the error of a bounded call that a hook of the user has repeated, or whose missing answer it has hidden,
// so that Redis may still run the call, whatever the hook returns. The request is sent again, and that try counts.
var errRepeated = errors.New("a hook of the Redis client has hidden an outcome of this request, which Redis may still run")

// A Prompt is a Transport on a *redis.Client that is also a Bounder.
type Prompt struct {
	*Redis
	// Spawn runs f on another goroutine. It is set before the first call.
	Spawn func(f func())

	rdb, clone *redis.Client
	ordinary   redis.UniversalClient // sends the other calls
	seat       *seat
	bound      time.Duration
	limit      limit // of the time for a connection

	proven atomic.Bool // an ordinary call has come through our hook, and nothing speaks against the next one
	off    atomic.Bool // calls are no longer bounded
}

// NewPrompt returns the Prompt on rdb, to which it adds our hook. Calls that are not bounded go through ordinary, which
// is rdb or the Finite on it. NewPrompt returns nil if rdb sets no deadlines.
func NewPrompt(rdb *redis.Client, ordinary redis.UniversalClient) *Prompt {
	if !setsDeadlines(rdb) {
		return nil
	}
	bound := promptTime
	if t := rdb.Options().ReadTimeout; t > 0 {
		bound = min(t, bound)
	}
	clone := rdb.WithTimeout(bound)
	clone.Options().ContextTimeoutEnabled = true
	return &Prompt{
		Redis: NewRedis(ordinary, Synced{}), rdb: rdb, clone: clone, ordinary: ordinary,
		seat: seatOf(rdb), bound: bound, limit: limit{d: bound / 5},
	}
}

// Bound implements Bounder.
func (p *Prompt) Bound() time.Duration {
	if !p.proven.Load() || p.off.Load() {
		return 0
	}
	return p.bound
}

// Run implements Transport. Until calls can be bounded, it finds out whether they can.
func (p *Prompt) Run(ctx context.Context, c Call, taking bool) (any, error) {
	if p.proven.Load() || p.off.Load() {
		return p.Redis.Run(ctx, c, taking)
	}
	return runOn(ctx, prober{p}, c)
}

// A prober sends commands of Run and looks how far they come.
type prober struct{ *Prompt }

func (p prober) Process(ctx context.Context, cmd redis.Cmder) error {
	pass := &passage{onceCmd: cmd.(onceCmd), hook: p.seat.hook.Load()}
	err := p.ordinary.Process(ctx, pass)
	p.learn(pass, 0)
	return err
}

// RunBounded implements Bounder.
func (p *Prompt) RunBounded(caller context.Context, now time.Time, c Call) (answer any, err error, sent bool) {
	pass := &passage{hook: p.seat.hook.Load(), clone: p.clone, end: now.Add(p.bound + p.bound/4)}
	pass.ctx = passageCtx{p.limit.begin(now), caller, pass}
	pass.onceCmd = c.command(&pass.ctx, false)
	_ = p.rdb.Process(&pass.ctx, pass) // Result returns the error, even if Process returns early
	answer, err = pass.Result()
	p.learn(pass, time.Since(now))
	notRun := isNotRun(err) || answer == nil && err == nil && pass.unsent.Load()
	earlier := pass.lost.Load() // runs before the one that has this outcome
	if MayRunLater(err) {
		earlier--
	}
	switch {
	case notRun && pass.ran.Load(), !notRun && earlier > 0:
		return nil, errRepeated, true
	case notRun:
		return nil, nil, false
	}
	return answer, explained(c, err), true
}

// isNotRun reports whether the clone has not sent a call, or its server does not know the script.
func isNotRun(err error) bool {
	return err != nil && (errors.Is(err, errUnsent) || redis.HasErrorPrefix(err, "NOSCRIPT"))
}

// learn draws the conclusions from a command that has ended. took is 0 if it was not bounded.
func (p *Prompt) learn(pass *passage, took time.Duration) {
	switch way := pass.way.Load(); {
	case way == throughFirst:
		if !p.proven.Load() {
			p.proven.Store(true)
		}
		return
	case way == throughLater && pass.hook != nil:
		p.Spawn(func() { p.seat.renew(p.rdb, pass.hook) })
	case way == replaced, took > p.bound:
		p.off.Store(true)
	}
	p.proven.Store(false)
}

// A passage is a command that our hook looks out for.
type passage struct {
	onceCmd
	hook  *hook
	clone *redis.Client // nil: the command is not bounded
	ctx   passageCtx    // with which a bounded command is sent
	end   time.Time     // when a bounded command ends
	way   atomic.Uint32

	// Of the runs of a bounded command:
	ran    atomic.Bool  // Redis may have run one
	lost   atomic.Int32 // how many Redis may run later
	unsent atomic.Bool  // the last one was not sent, or not run because the server does not know the script
}

// The ways of a passage.
const (
	elsewhere    uint32 = iota // our hook has not seen it
	throughFirst               // the function that may use the clone
	throughLater               // another function
	replaced                   // our hook has seen another command in its place
)

// A passageCtx is canceled with one context, has the values of another, and leads to its passage.
type passageCtx struct {
	context.Context
	values  context.Context
	passage *passage
}

type passageKey struct{}

func (c *passageCtx) Value(key any) any {
	if key == (passageKey{}) {
		return c.passage
	}
	return c.values.Value(key)
}

// passageOf returns the passage that cmd is, or in the place of which a hook of the user sends cmd.
func passageOf(ctx context.Context, cmd redis.Cmder) *passage {
	if pass, ok := cmd.(*passage); ok {
		return pass
	}
	args := cmd.Args()
	if len(args) < 2 || args[0] != any("evalsha") {
		return nil
	}
	pass, _ := ctx.Value(passageKey{}).(*passage)
	if pass == nil || pass.way.Load() != elsewhere || args[1] != pass.Args()[1] {
		return nil
	}
	return pass
}

// run sends a bounded command through the clone. ctx is what the hooks of the user have made of its context.
func (p *passage) run(ctx context.Context) error {
	if err := ctx.Err(); err != nil && ctx.Done() != p.ctx.Done() {
		p.unsent.Store(true)
		return err
	}
	err := p.clone.Process(cloneCtx{ctx, p}, p)
	notRun := isNotRun(err)
	p.unsent.Store(notRun || !MayHaveRun(err) && !Answered(err))
	switch {
	case notRun:
	case MayRunLater(err):
		p.lost.Add(1)
		fallthrough
	case MayHaveRun(err):
		p.ran.Store(true)
	}
	return err
}

// A cloneCtx is the context with which the clone runs a passage. It has the values of another context.
type cloneCtx struct {
	context.Context
	passage *passage
}

// Deadline implements context.Context. The deadline limits how long the clone waits for an answer.
func (c cloneCtx) Deadline() (time.Time, bool) {
	if d, ok := c.Context.Deadline(); ok && d.Before(c.passage.end) {
		return d, true
	}
	return c.passage.end, true
}

// Done implements context.Context. The channel limits how long the clone waits for a connection.
func (c cloneCtx) Done() <-chan struct{} { return c.passage.ctx.Done() }

// Err implements context.Context.
func (c cloneCtx) Err() error {
	if c.passage.ctx.Err() != nil {
		return errUnsent
	}
	return nil
}

// A hook is our hook.
type hook struct {
	made, madeForAll atomic.Bool // the functions that may use the clone were made: for commands, and for pipelines
}

// DialHook implements redis.Hook.
func (*hook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook implements redis.Hook. Of the two functions that go-redis makes when the hook is added, the first
// one is for pipelines, and the second one for transactions.
func (h *hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	first := h.madeForAll.CompareAndSwap(false, true)
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if f := finiteOf(ctx, h, first); f != nil {
			return f.processAll(ctx, cmds)
		}
		return next(ctx, cmds)
	}
}

// ProcessHook implements redis.Hook. It is first called when the hook is added. It must not add a hook, because
// go-redis holds a mutex.
func (h *hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	first := h.made.CompareAndSwap(false, true)
	return func(ctx context.Context, cmd redis.Cmder) error {
		run := next
		if f := finiteOf(ctx, h, first); f != nil {
			run = f.process
		}
		pass := passageOf(ctx, cmd)
		if pass == nil || pass.hook != h {
			return run(ctx, cmd)
		}
		way := throughFirst
		if !first {
			way = throughLater
		} else if cmd != redis.Cmder(pass) {
			way = replaced
		}
		pass.way.Store(way)
		switch {
		case pass.clone == nil:
			return run(ctx, cmd)
		case way == throughFirst:
			return pass.run(ctx)
		}
		pass.unsent.Store(true)
		cmd.SetErr(errUnsent)
		return errUnsent
	}
}

// A seat is the place of our hook in a Redis client.
type seat struct {
	hook   atomic.Pointer[hook] // the last one that was added; nil: it is being added
	adding atomic.Bool
	added  int // times, while adding is set
}

// seats has the *seat of each Redis client to which our hook was added, by a weak pointer to its options. They are a
// part of the Redis client, and do not refer to it.
var seats sync.Map

// seatOf returns the seat in rdb. The first time it adds our hook.
func seatOf(rdb *redis.Client) *seat {
	options := rdb.Options()
	key := weak.Make(options)
	if s, ok := seats.Load(key); ok {
		return s.(*seat)
	}
	one, found := seats.LoadOrStore(key, new(seat))
	s := one.(*seat)
	if !found {
		runtime.AddCleanup(options, func(key weak.Pointer[redis.Options]) { seats.Delete(key) }, key)
		s.renew(rdb, nil)
	}
	return s
}

// renew adds our hook to rdb, unless another one than last was added meanwhile.
func (s *seat) renew(rdb *redis.Client, last *hook) {
	if !s.adding.CompareAndSwap(false, true) {
		return
	}
	defer s.adding.Store(false)
	if s.hook.Load() != last || s.added == maxHooks {
		return
	}
	s.added++
	h := new(hook)
	_ = CatchPanic(func() error { rdb.AddHook(h); return nil }) // the hooks of the user are asked for their functions
	s.hook.Store(h)
}
