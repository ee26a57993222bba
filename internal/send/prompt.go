package send

// Bounded calls: calls that end soon, with or without an answer, whatever read timeout the user has set.
//
// go-redis cannot be interrupted once a call is sent, but (*redis.Client).WithTimeout returns a clone that shares the
// pool of connections and has a shorter read timeout. The clone does not have the hooks of its parent. So a bounded
// call is given to the parent, whose hooks see it, and a hook of this package, the last one, gives it to the clone
// (hook.go).
//
// Rules:
//   - A call is given to the Process of the Redis client that the user has passed, which may be of a type of the user
//     that embeds a client of go-redis. Our hook is added to the client that is embedded.
//   - The hook refers to no Prompt: the command carries what the hook needs. The hook passes on every other command,
//     pipeline and dialing, but for those of a Finite (finite.go), whose context carries it.
//   - go-redis makes the functions of all hooks anew when another hook is added, and for each redis.Conn. Only the
//     function that was made when our hook was added is followed by no other hook. It alone may use the clone.
//   - No hook of the user is skipped, and no bounded call goes out without its bound. If another hook follows, or a
//     hook of the user has replaced the command, the call is not sent, and the sender makes an ordinary try.
//   - No call is bounded before an ordinary one has come through the hook and was answered, on a Cluster through that
//     of the same node. If a hook was added after ours, ours is added again. After a bounded call without an answer
//     this begins anew, so that of a node that hangs only the connections of calls that are under way are closed.
//   - A hook of the user, or a type of the user, that replaces both the command and its context, or leads it to another
//     Redis client, but not always, can have one call sent without its bound. If that call takes longer, no other call
//     is bounded.
//   - A bounded call waits for a connection for a quarter of its time at most. If it gets none, it was not sent. Only
//     the end of that wait has the error errUnsent: the error of a connection may look like that of any context.
//   - The context of a bounded call has a deadline, which the clone obeys. It holds also where go-redis gives a
//     connection more time than its read timeout, because the server is being maintained.
//   - If a hook of the user repeats a bounded call, none of its runs is forgotten, also if a later one is answered.
//   - A hook of the user may keep errors for itself. A bounded call that was not sent is known without its error.
//   - The clone has no hooks. If a bounded call is the first to use a connection, the hooks of the user do not see the
//     commands with which go-redis begins the connection.
//
// On a Cluster go-redis finds the node of a call, and follows redirections. Rules:
//   - Our hook is on each node, and gives the call to a clone of that node. All nodes that a call reaches, one after
//     the other, have the same time in all.
//   - go-redis has loaded the state of the Cluster before the first call is bounded, and loads it again beside the
//     calls. It looks for no information about the commands, because they have all that it would ask for. So it waits
//     for nothing but the node. Only a ClusterClient that reads from replicas needs that information: there no call is
//     bounded.
//   - go-redis pauses before it repeats a call that a replica, or a node whose client was closed, has refused. It sends
//     a call whose slot is being moved in a pipeline, and any call to a node of which our hook may know nothing. These
//     are the errors after which a bounded call counts as not sent. It was not run, and an ordinary try follows.
//   - So a call that has followed MOVED was run by the last node only.

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const promptTime = MinWait // how long a bounded call takes at most

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

// A Prompt is a Transport on a Redis client that is also a Bounder.
type Prompt struct {
	*Redis
	// Spawn runs f on another goroutine. It is set before the first call.
	Spawn func(f func())

	rdb      redis.UniversalClient // sends the bounded calls
	ordinary redis.UniversalClient // sends the other calls
	bound    time.Duration
	limit    limit // of the time for a connection

	// On a single client:
	clone *redis.Client
	seat  *seat
	// On a Cluster:
	cluster *redis.ClusterClient
	nodes   *nodes
	loading atomic.Bool // load is running
	loaded  atomic.Bool // go-redis has loaded the state of the Cluster

	proven atomic.Bool // an ordinary call has come through our hook, and nothing speaks against the next one
	off    atomic.Bool // calls are no longer bounded
}

// NewPrompt returns the Prompt on rdb, to which it adds our hook. Calls that are not bounded go through ordinary, which
// is rdb or the Finite on it. NewPrompt returns nil if rdb sets no deadlines, reads from the replicas of a Cluster, or
// neither is nor embeds a *redis.Client or a *redis.ClusterClient.
func NewPrompt(rdb, ordinary redis.UniversalClient) *Prompt {
	p := &Prompt{Redis: NewRedis(ordinary, Synced{}), rdb: rdb, ordinary: ordinary}
	switch one, cluster := inside(rdb); {
	case one != nil && setsDeadlines(one):
		p.bound, p.clone, p.seat = boundOf(one.Options().ReadTimeout), boundedClone(one), seatOf(one)
	case cluster != nil && !cluster.Options().ReadOnly:
		o := cluster.Options()
		if o.ReadTimeout < 0 || o.WriteTimeout < 0 {
			return nil
		}
		p.bound, p.cluster, p.nodes = boundOf(o.ReadTimeout), cluster, nodesOf(cluster)
	default:
		return nil
	}
	p.limit.d = p.bound / 5
	return p
}

// boundOf returns how long a bounded call to a client with this read timeout takes at most.
func boundOf(readTimeout time.Duration) time.Duration {
	if readTimeout > 0 {
		return min(readTimeout, promptTime)
	}
	return promptTime
}

// boundedClone returns a clone of rdb for bounded calls.
func boundedClone(rdb *redis.Client) *redis.Client {
	clone := rdb.WithTimeout(boundOf(rdb.Options().ReadTimeout))
	clone.Options().ContextTimeoutEnabled = true
	return clone
}

// Bound implements Bounder.
func (p *Prompt) Bound() time.Duration {
	if !p.proven.Load() || p.off.Load() || p.seat != nil && !p.seat.proven.Load() {
		return 0
	}
	return p.bound
}

// seatFor returns the seat of our hook in the client to which a call with this key will go. It is nil if that is not
// known, or if the client has none, and then gets one. It sends no request.
func (p *Prompt) seatFor(key string) *seat {
	if p.seat != nil {
		return p.seat
	}
	if !p.loaded.Load() {
		return nil
	}
	node, err := p.cluster.MasterForKey(context.Background(), key)
	if err != nil {
		return nil
	}
	s := seatIn(node)
	if s == nil {
		p.Spawn(func() { p.nodes.add(node) })
	}
	return s
}

// Run implements Transport. Until calls can be bounded, it finds out whether they can.
func (p *Prompt) Run(ctx context.Context, c Call, taking bool) (any, error) {
	if p.off.Load() {
		return p.Redis.Run(ctx, c, taking)
	}
	at := p.seatFor(c.Keys[0])
	if at != nil && at.proven.Load() && p.proven.Load() {
		return p.Redis.Run(ctx, c, taking)
	}
	answer, err := runOn(ctx, prober{p, at}, c)
	if at == nil && (err == nil || Answered(err)) && !p.loaded.Load() && p.loading.CompareAndSwap(false, true) {
		p.Spawn(func() { p.load(c.Keys[0]) })
	}
	return answer, err
}

// load makes sure that go-redis has loaded the state of the Cluster, and that the node of key has our hook. As a rule the
// state was loaded for the first call. But it was not if that call was answered with an error of the loading, or by a
// hook.
func (p *Prompt) load(key string) {
	defer p.loading.Store(false)
	ctx, cancel := context.WithTimeout(context.Background(), ConnectTime)
	defer cancel()
	if node, err := p.cluster.MasterForKey(ctx, key); err == nil {
		p.nodes.add(node)
		p.loaded.Store(true)
	}
}

// A prober sends commands of Run and looks how far they come.
type prober struct {
	*Prompt
	at *seat
}

func (p prober) Process(ctx context.Context, cmd redis.Cmder) error {
	pass := p.passage(p.at)
	pass.onceCmd = cmd.(onceCmd)
	_, err := process(ctx, p.ordinary, pass)
	p.learn(pass, err, time.Time{})
	return err
}

// passage returns a passage to the client that has this seat.
func (p *Prompt) passage(at *seat) *passage {
	pass := &passage{at: at, clone: p.clone, nodes: p.nodes}
	if at != nil {
		pass.last = at.last.Load()
	}
	return pass
}

// RunBounded implements Bounder.
func (p *Prompt) RunBounded(caller context.Context, now time.Time, c Call) (answer any, err error, sent bool) {
	at := p.seatFor(c.Keys[0])
	if at == nil || !at.proven.Load() {
		return nil, nil, false
	}
	pass := p.passage(at)
	pass.end = now.Add(p.bound + p.bound/4)
	pass.ctx = passageCtx{p.limit.begin(now), caller, pass}
	pass.toClone = cloneCtx{&pass.ctx, pass}
	pass.onceCmd = c.commandIn(&pass.own, make([]any, 0, c.words()), &pass.ctx, false)
	answer, err = process(&pass.ctx, p.rdb, pass)
	p.learn(pass, err, now)
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

// learn draws the conclusions from a command that has ended with err. It was bounded, from began on, unless began is
// zero.
func (p *Prompt) learn(pass *passage, err error, began time.Time) {
	switch way, h := pass.way.Load(), pass.seen.Load(); way {
	case throughFirst:
		switch {
		case pass.lost.Load() > 0 || !pass.bounded() && MayRunLater(err):
			h.seat.proven.Store(false)
		case !pass.bounded() && (err == nil || Answered(err)) && h.isLast():
			h.seat.proven.Store(true)
			p.proven.Store(true)
		}
	case throughLater:
		h.seat.proven.Store(false)
		p.Spawn(h.renew)
	default:
		if way == replaced || !began.IsZero() && time.Since(began) > p.bound {
			p.off.Store(true)
		}
		p.proven.Store(false)
		if pass.at != nil {
			pass.at.proven.Store(false)
		}
	}
}

// A passage is a command that our hook looks out for.
type passage struct {
	onceCmd
	at    *seat         // of the client to which the command should go; nil: it is not known
	last  uint32        // the number of the last hook there
	clone *redis.Client // of that client; nil: that of the hook
	nodes *nodes        // nil: there is no Cluster
	end   time.Time     // when a bounded command ends; zero: the command is not bounded

	// Of a bounded command:
	own     redis.Cmd  // memory for onceCmd
	ctx     passageCtx // with which it is sent
	toClone cloneCtx   // the same for the clone, unless a hook of the user has replaced ctx

	way  atomic.Uint32
	seen atomic.Pointer[hook] // our hook that has seen it last

	// Of the runs of a bounded command:
	ran    atomic.Bool  // Redis may have run one
	lost   atomic.Int32 // how many Redis may run later
	unsent atomic.Bool  // the last one was not sent, or not run because the server does not know the script
}

func (p *passage) bounded() bool { return !p.end.IsZero() }

// cloneIn returns the clone with which h may send the command, or nil.
func (p *passage) cloneIn(h *hook) *redis.Client {
	if p.clone != nil && p.at == h.seat {
		return p.clone
	}
	return h.clone
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

// run sends a bounded command through the clone of h. ctx is what the hooks of the user have made of its context.
func (p *passage) run(ctx context.Context, h *hook) error {
	if err := ctx.Err(); err != nil && ctx.Done() != p.ctx.Done() {
		p.unsent.Store(true)
		return err
	}
	clone := p.cloneIn(h)
	if h.seat != p.at && clone.PoolStats().IdleConns == 0 { // of p.at the sender knows it
		return p.refuse(p)
	}
	toClone := &p.toClone
	if ctx != context.Context(&p.ctx) {
		toClone = &cloneCtx{ctx, p}
	}
	err := clone.Process(toClone, p)
	if p.nodes != nil && p.nodes.misled(err) {
		return p.refuse(p)
	}
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

// refuse ends a bounded command, which is cmd or in the place of cmd, without sending it.
func (p *passage) refuse(cmd redis.Cmder) error {
	p.unsent.Store(true)
	cmd.SetErr(errUnsent)
	return errUnsent
}

// A cloneCtx is the context with which the clone runs a passage. It has the values of another context.
type cloneCtx struct {
	context.Context
	passage *passage
}

// Deadline implements context.Context. The deadline limits how long the clone waits for an answer.
func (c *cloneCtx) Deadline() (time.Time, bool) {
	if d, ok := c.Context.Deadline(); ok && d.Before(c.passage.end) {
		return d, true
	}
	return c.passage.end, true
}

// Done implements context.Context. The channel limits how long the clone waits for a connection.
func (c *cloneCtx) Done() <-chan struct{} { return c.passage.ctx.Done() }

// Err implements context.Context.
func (c *cloneCtx) Err() error {
	if c.passage.ctx.Err() != nil {
		return errUnsent
	}
	return nil
}
