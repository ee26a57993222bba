//go:build go1.25

package send

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/petermattis/goid"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/push"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

// slack is the time that a busy machine may need in addition.
const slack = 2 * time.Second

// A userHook is a hook around single commands.
type userHook func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error

func (userHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h userHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { return h(ctx, cmd, next) }
}

func (userHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// traced returns a hook that appends name and the goroutine to a list for each script.
func traced(name string, list *traces) userHook {
	return func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if cmd.Name() == "evalsha" {
			list.add(trace{name, goid.Get()})
		}
		return next(context.WithValue(ctx, key{}, name), cmd) // as a tracer does
	}
}

type trace struct {
	hook      string
	goroutine int64
}

type traces struct {
	mu   sync.Mutex // guards list
	list []trace
}

func (l *traces) add(t trace) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, t)
}

// take returns the list and empties it.
func (l *traces) take() []trace {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.list
	l.list = nil
	return list
}

// A promptBench is a Sender on a Redis client with the defaults of go-redis.
type promptBench struct {
	*bench
	rdb    *redis.Client
	prompt *Prompt
}

func newPromptBench(t testing.TB, rdb *redis.Client) *promptBench {
	b := promptBenchThrough(t, rdb)
	b.rdb = rdb
	return b
}

// promptBenchThrough returns a promptBench whose calls go through outer, which is or embeds a client of go-redis.
func promptBenchThrough(t testing.TB, outer redis.UniversalClient) *promptBench {
	require.NoError(t, outer.ScriptLoad(context.Background(), echoing.Source()).Err())
	p := NewPrompt(outer, outer)
	require.NotNil(t, p)
	b := newBench(t, func(c *Config) {
		c.Transport, c.Bounded = p, p
		c.Idle = func(string) int { return int(outer.PoolStats().IdleConns) }
	})
	p.Spawn = b.config.Spawn
	return &promptBench{bench: b, prompt: p}
}

func echoRequest() Request {
	return Request{Call: Call{Script: echoing, Keys: []string{"a"}, Args: []any{1}}}
}

// send sends a request whose caller may send it itself.
func (b *promptBench) send(ctx context.Context) Answer {
	w := b.wait(ctx)
	w.OnCaller = true
	return b.Do(w, echoRequest(), time.Now())
}

// bounds sends requests until one was bounded, and the next one will be.
func (b *promptBench) bounds() {
	b.t.Helper()
	testredis.Await(b.t, "calls are bounded", 30*time.Second, func() bool {
		require.NoError(b.t, b.send(context.Background()).Err)
		w := b.wait(context.Background())
		w.OnCaller = true
		r := echoRequest()
		if b.prompt.Bound() == 0 {
			return false
		}
		_, err, sent := b.prompt.RunBounded(w.Ctx, time.Now(), r.Call)
		return sent && err == nil && b.mayBound(w, &r, time.Now())
	})
}

// Hooks that were added before and after ours see every command, in their order, and the caller sends it itself.
func TestHooksOfTheUserSeeEveryBoundedCommand(t *testing.T) {
	rdb := testredis.Client(t, testredis.Mini(t).Addr())
	var seen traces
	rdb.AddHook(traced("first", &seen))
	b := newPromptBench(t, rdb)
	check := func(hooks ...string) {
		b.bounds()
		seen.take()
		assert.NoError(t, b.send(context.Background()).Err)
		var want []trace
		for _, name := range hooks {
			want = append(want, trace{name, goid.Get()})
		}
		assert.Equal(t, want, seen.take())
	}
	check("first")
	rdb.AddHook(traced("second", &seen))
	for range 3 { // however it is sent, and while our hook is being added again
		seen.take()
		require.NoError(t, b.send(context.Background()).Err)
		var names []string
		for _, one := range seen.take() {
			names = append(names, one.hook)
		}
		assert.Equal(t, []string{"first", "second"}, names[len(names)-2:])
	}
	check("first", "second")
	NewPrompt(rdb, rdb)
	rdb.AddHook(traced("third", &seen))
	check("first", "second", "third")
}

// A Redis client has one hook of ours, and if hooks are added again and again, no more than maxHooks.
func TestRedisClientHasOneHook(t *testing.T) {
	rdb := testredis.Client(t, testredis.Mini(t).Addr())
	var made madeCounter
	rdb.AddHook(&made)
	first := NewPrompt(rdb, rdb)
	before := made.Load()
	var all sync.WaitGroup
	for range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			assert.Same(t, first.seat, NewPrompt(rdb, rdb).seat)
		}()
	}
	all.Wait()
	assert.Equal(t, before, made.Load(), "hooks that were added")
	for range 2 * maxHooks {
		first.seat.renew(rdb, first.seat.last.Load())
	}
	assert.EqualValues(t, before+maxHooks-1, made.Load())
}

// A madeCounter counts how often hooks are asked for their functions.
type madeCounter struct{ atomic.Int64 }

func (*madeCounter) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *madeCounter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	c.Add(1)
	return next
}

func (*madeCounter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// The commands of the user have the time that the user gave them, also those that a hook sends with the context of a
// bounded command, those of a Conn, and the same script.
func TestOtherCommandsAreNotBounded(t *testing.T) {
	t.Parallel()
	p := testredis.NewProxy(t, testredis.Start(t).Addr())
	rdb := p.Client()
	var nested atomic.Bool
	var took time.Duration
	rdb.AddHook(userHook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if cmd.Name() == "evalsha" && nested.CompareAndSwap(true, false) {
			began := time.Now()
			assert.NoError(t, rdb.Incr(ctx, "n").Err())
			took = time.Since(began)
		}
		return next(ctx, cmd)
	}))
	b := newPromptBench(t, rdb)
	b.bounds()
	const late = 2 * promptTime
	ctx := context.Background()
	p.On(testredis.Script(echoing.Digest()), testredis.DelayReply(late))
	assert.NoError(t, rdb.EvalSha(ctx, echoing.Digest(), []string{"a"}, 1).Err())
	p.On(testredis.Command("incr"), testredis.DelayReply(late)).Times(2)
	assert.NoError(t, rdb.Incr(ctx, "n").Err())
	conn := rdb.Conn()
	assert.NoError(t, conn.Incr(ctx, "n").Err())
	assert.NoError(t, conn.Close())

	p.On(testredis.Command("incr"), testredis.DelayReply(late))
	nested.Store(true)
	assert.NoError(t, b.send(ctx).Err)
	assert.GreaterOrEqual(t, took, late)
	b.bounds()
	assert.NotZero(t, b.prompt.Bound(), "after all that")
}

// stalls makes the proxy answer no script any more, and checks that a caller whose context is canceled leaves soon.
func (b *promptBench) stalls(p *testredis.Proxy) Answer {
	b.t.Helper()
	p.On(testredis.Script(echoing.Digest()), testredis.DelayReply(time.Minute)).Times(testredis.Always)
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(promptTime/10, cancel)
	began := time.Now()
	a := b.send(ctx)
	assert.ErrorIs(b.t, a.Err, context.Canceled)
	assert.Less(b.t, time.Since(began), promptTime+promptTime/4+slack)
	return a
}

// A caller whose context is canceled leaves within the bound, whatever the hooks of the user do.
func TestBoundHoldsWhateverHooksDo(t *testing.T) {
	t.Parallel()
	var seen atomic.Int64
	count := userHook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if cmd.Name() == "evalsha" {
			seen.Add(1)
		}
		return next(ctx, cmd)
	})
	another := func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		other := redis.NewCmd(ctx, cmd.Args()...)
		err := next(ctx, other)
		if value, err := other.Result(); err == nil {
			cmd.(interface{ SetVal(any) }).SetVal(value)
		}
		return err
	}
	for name, row := range map[string]struct {
		before  userHook // the hook of the user, once does is set
		later   bool     // another hook is added then
		bounded bool     // the caller still sends the call itself
	}{
		"nothing":                   {bounded: true},
		"a hook was added later":    {later: true},
		"another command":           {before: another},
		"another command and later": {before: another, later: true},
		"another ctx": {bounded: true, before: func(_ context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			return next(context.Background(), cmd)
		}},
		"a longer ctx": {bounded: true, before: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			ctx, cancel := context.WithTimeout(ctx, time.Hour)
			defer cancel()
			return next(ctx, cmd)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := testredis.NewProxy(t, testredis.Start(t).Addr())
			rdb := p.Client()
			var does atomic.Bool
			rdb.AddHook(userHook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
				if does.Load() && row.before != nil && cmd.Name() == "evalsha" {
					return row.before(ctx, cmd, next)
				}
				return next(ctx, cmd)
			}))
			b := newPromptBench(t, rdb)
			b.bounds()
			does.Store(true)
			if row.later {
				seen.Store(0)
				rdb.AddHook(count)
			}
			a := b.stalls(p)
			assert.Equal(t, row.bounded, !a.Abandoned, "sent by the caller")
			if row.bounded {
				assert.Equal(t, 1, a.Unknown)
				assert.Equal(t, 1, a.Lost)
			}
			if row.later {
				testredis.Await(t, "the call goes through the hook", slack, func() bool { return seen.Load() == 1 })
			}
		})
	}
}

// A bounded call obeys the earlier deadline of a context that a hook of the user has put in place of ours.
func TestBoundedCallObeysTheDeadlineOfAHook(t *testing.T) {
	rdb := testredis.Client(t, testredis.Mini(t).Addr())
	var over atomic.Bool
	rdb.AddHook(userHook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if over.Load() {
			ctx = endingCtx{ctx, time.Now().Add(-time.Second)}
		}
		return next(ctx, cmd)
	}))
	b := newPromptBench(t, rdb)
	b.bounds()
	over.Store(true)
	_, err, sent := b.prompt.RunBounded(context.Background(), time.Now(), echoRequest().Call)
	assert.True(t, sent)
	assert.True(t, timedOut(err), "%v", err)
}

// A bounded call that times out has an unknown outcome, and the request is sent again on another goroutine, over
// another connection. Redis counts as unhealthy until it answers.
func TestBoundedCallWithoutAnAnswerIsSentAgain(t *testing.T) {
	t.Parallel()
	p := testredis.NewProxy(t, testredis.Start(t).Addr())
	rdb := p.Client()
	var seen traces
	rdb.AddHook(traced("", &seen))
	b := newPromptBench(t, rdb)
	b.bounds()
	seen.take()
	p.On(testredis.Script(echoing.Digest()), testredis.DelayReply(time.Minute))
	began := time.Now()
	a := b.send(context.Background())
	require.NoError(t, a.Err)
	assert.Equal(t, 1, a.Unknown)
	assert.Equal(t, 1, a.Lost)
	assert.GreaterOrEqual(t, time.Since(began), promptTime)
	list := seen.take()
	require.GreaterOrEqual(t, len(list), 2)
	assert.Equal(t, goid.Get(), list[0].goroutine)
	assert.NotEqual(t, goid.Get(), list[1].goroutine)
}

// When Redis is slow, but not so slow that a call has no answer in time, callers stop sending calls themselves.
func TestSlowAnswersEndBounds(t *testing.T) {
	t.Parallel()
	p := testredis.NewProxy(t, testredis.Start(t).Addr())
	var seen traces
	rdb := p.Client()
	rdb.AddHook(traced("", &seen))
	b := newPromptBench(t, rdb)
	b.bounds()
	p.Latency(promptTime / boundShare)
	assert.NoError(t, b.send(context.Background()).Err)
	seen.take()
	assert.NoError(t, b.send(context.Background()).Err)
	assert.NotEqual(t, goid.Get(), seen.take()[0].goroutine)
	p.Latency(0)
	b.bounds()
}

// A bounded call that gets no connection was not sent, and goes out in another way, also if a hook replaces its ctx.
func TestBoundedCallWaitsForAConnectionForAQuarterOfItsTime(t *testing.T) {
	s := testredis.Mini(t)
	rdb := testredis.Client(t, s.Addr(), func(o *redis.Options) { o.PoolSize = 1 })
	rdb.AddHook(userHook(func(_ context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		return next(context.Background(), cmd)
	}))
	b := newPromptBench(t, rdb)
	b.bounds()
	conn := rdb.Conn()
	require.NoError(t, conn.Ping(context.Background()).Err()) // it has the only connection
	ctx := context.Background()
	began := time.Now()
	_, err, sent := b.prompt.RunBounded(ctx, began, echoRequest().Call)
	assert.NoError(t, err)
	assert.False(t, sent)
	assert.GreaterOrEqual(t, time.Since(began), b.prompt.bound/5)
	assert.Less(t, time.Since(began), b.prompt.bound/4+slack)
	require.NoError(t, conn.Close())
	b.bounds()
}

// A call whose script the server does not know goes out with its source in another way.
func TestBoundedCallOfAnUnknownScript(t *testing.T) {
	rdb := testredis.Client(t, testredis.Mini(t).Addr())
	b := newPromptBench(t, rdb)
	b.bounds()
	require.NoError(t, rdb.ScriptFlush(context.Background()).Err())
	a := b.send(context.Background())
	assert.NoError(t, a.Err)
	assert.Zero(t, a.Unknown)
}

// A hook that panics in a bounded call is an error of the call.
func TestPanicOfAHookInABoundedCall(t *testing.T) {
	rdb := testredis.Client(t, testredis.Mini(t).Addr())
	var panics atomic.Bool
	rdb.AddHook(userHook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
		if panics.Load() {
			panic("a hook")
		}
		return next(ctx, cmd)
	}))
	b := newPromptBench(t, rdb)
	b.bounds()
	panics.Store(true)
	a := b.send(context.Background())
	require.NotNil(t, PanicOf(a.Err))
	assert.Equal(t, "a hook", PanicOf(a.Err).Value)
}

// The time of a short read timeout is left as it is.
func TestBoundIsNoLongerThanTheReadTimeout(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{
		0: promptTime, time.Second: promptTime, 50 * time.Millisecond: 50 * time.Millisecond, -1: promptTime,
	} {
		rdb := testredis.Client(t, "127.0.0.1:1", func(o *redis.Options) { o.ReadTimeout = timeout })
		p := NewPrompt(rdb, rdb)
		assert.Equal(t, want, p.bound)
		assert.Equal(t, want, p.clone.Options().ReadTimeout)
	}
}

// A Redis client that was dropped is collected, although our hook was added to it.
func TestDroppedRedisClientIsCollected(t *testing.T) {
	addr := testredis.Mini(t).Addr()
	drop := func() (weak.Pointer[redis.Client], weak.Pointer[redis.Options]) {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		b := newPromptBench(t, rdb)
		b.bounds()
		return weak.Make(rdb), weak.Make(rdb.Options())
	}
	rdb, options := drop()
	testredis.Await(t, "the client is collected", 30*time.Second, func() bool {
		runtime.GC()
		_, found := seats.Load(options)
		return rdb.Value() == nil && !found
	})
}

// A bounder is a Bounder whose calls take d.
type bounder struct {
	bound, d time.Duration
	runs     int
}

func (b *bounder) Bound() time.Duration { return b.bound }

func (b *bounder) RunBounded(_ context.Context, _ time.Time, c Call) (any, error, bool) {
	b.runs++
	if b.d > b.bound {
		time.Sleep(b.bound)
		return nil, fmt.Errorf("read: %w", os.ErrDeadlineExceeded), true
	}
	time.Sleep(b.d)
	return echo(c), nil, true
}

// A call is bounded if the caller has the time, and an answer is expected in a small part of it.
func TestBoundedOnlyWhereAnAnswerIsExpected(t *testing.T) {
	type change struct {
		wait    func(*Wait)
		request func(*Request)
		sender  func(*Sender)
	}
	for name, row := range map[string]struct {
		change
		want bool
	}{
		"bounded":           {want: true},
		"not on the caller": {change: change{wait: func(w *Wait) { w.OnCaller = false }}},
		"a deadline": {want: true, change: change{wait: func(w *Wait) {
			w.Deadline = time.Now().Add(300 * time.Millisecond)
		}}},
		"a near deadline":    {change: change{wait: func(w *Wait) { w.Deadline = time.Now().Add(promptTime - 1) }}},
		"ctx has a deadline": {change: change{wait: func(w *Wait) { w.Ctx = endsAfter(500 * time.Millisecond) }}, want: true},
		"ctx ends soon":      {change: change{wait: func(w *Wait) { w.Ctx = endsAfter(promptTime - 1) }}},
		"patience":           {change: change{wait: func(w *Wait) { w.NoWait = true }}, want: true},
		"a pipeline":         {change: change{request: func(r *Request) { r.Pipeline = []Call{r.Call} }}},
		"a long call":        {change: change{request: func(r *Request) { r.Long = true }}},
		"unhealthy":          {change: change{sender: func(s *Sender) { s.unhealthy.Store(true) }}},
		"slow": {change: change{sender: func(s *Sender) {
			s.recordAnswer(time.Now().Add(-promptTime/boundShare-time.Millisecond), nil)
		}}},
		"no connection": {change: change{sender: func(s *Sender) { s.config.Idle = func(string) int { return 0 } }}},
		"at present not": {change: change{sender: func(s *Sender) {
			s.config.Bounded.(*bounder).bound = 0
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			in(t, func(b *bench) {
				b.isFast()
				w, r := b.wait(context.Background()), request("x")
				w.OnCaller = true
				if row.wait != nil {
					row.wait(w)
				}
				if row.request != nil {
					row.request(&r)
				}
				if row.sender != nil {
					row.sender(b.Sender)
				}
				b.Do(w, r, time.Time{})
				assert.Equal(t, row.want, b.config.Bounded.(*bounder).runs == 1)
				assert.Equal(t, !row.want, b.fake.tries()+len(b.fake.pipelines()) == 1)
			}, bounded(0))
		})
	}
}

// A connection that was idle counts as such for a moment. One that was not, and one to one of several servers, is asked
// for again.
func TestIdleConnectionsAreAskedForOnceInAWhile(t *testing.T) {
	for name, row := range map[string]struct {
		idle   int
		change func(*Config)
		asked  int // in four calls, two of them after idleTime
	}{
		"idle":            {idle: 1, asked: 2},
		"not idle":        {idle: 0, asked: 4},
		"several servers": {idle: 1, asked: 4, change: func(c *Config) { c.Home = func(string) string { return "one" } }},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			in(t, func(b *bench) {
				b.isFast()
				b.answered.Store(true)
				b.config.Idle = func(string) int { asked++; return row.idle }
				for range 2 {
					for range 2 {
						w, r := b.wait(context.Background()), request("x")
						w.OnCaller = true
						assert.Equal(b.t, row.idle > 0, b.mayBound(w, &r, time.Now()))
					}
					time.Sleep(idleTime)
				}
				assert.Equal(b.t, row.asked, asked)
			}, bounded(0), func(c *Config) {
				if row.change != nil {
					row.change(c)
				}
			})
		})
	}
}

// endingCtx has a deadline at which nothing happens.
type endingCtx struct {
	context.Context
	at time.Time
}

func (c endingCtx) Deadline() (time.Time, bool) { return c.at, true }

func endsAfter(d time.Duration) context.Context {
	return endingCtx{context.Background(), time.Now().Add(d)}
}

// isFast makes the sender believe that Redis has answered fast for a while.
func (b *bench) isFast() { b.speed.d.Store(int64(leastSpeed)) }

func bounded(takes time.Duration) func(*Config) {
	return func(c *Config) {
		c.Bounded, c.Idle = &bounder{bound: promptTime, d: takes}, func(string) int { return 1 }
	}
}

// After a bounded call without an answer every request has a goroutine of its own, until Redis is fast again.
func TestAfterABoundedCallWithoutAnAnswer(t *testing.T) {
	in(t, func(b *bench) {
		b.isFast()
		b.fake.setRun(after(3*time.Second, nil))
		send := func() Answer {
			w := b.wait(context.Background())
			w.OnCaller = true
			return b.Do(w, request("x"), time.Now())
		}
		a := send()
		answers(b.t, "x", a)
		assert.Positive(b.t, a.Unknown)
		bounder := b.config.Bounded.(*bounder)
		assert.Equal(b.t, 1, bounder.runs)
		b.fake.setRun(nil)
		bounder.d = 0
		for range 5 {
			answers(b.t, "x", send())
			assert.Equal(b.t, 1, bounder.runs, "Redis was slow just now")
		}
		for range 30 {
			answers(b.t, "x", send())
		}
		assert.Greater(b.t, bounder.runs, 1, "Redis is fast again")
		time.Sleep(time.Minute)
	}, bounded(time.Second))
}

// A bounded call without an answer is no error for its caller: the request has no answer yet.
func TestBoundedCallWithoutAnAnswerIsSilent(t *testing.T) {
	in(t, func(b *bench) {
		b.isFast()
		b.fake.setRun(after(time.Minute, nil))
		w := b.wait(context.Background())
		w.OnCaller, w.Deadline = true, time.Now().Add(2*promptTime)
		a := b.Do(w, request("x"), time.Now())
		assert.Equal(b.t, ErrTimeUp, a.Err)
		assert.Equal(b.t, 1, a.Unknown)
		assert.Equal(b.t, 1, a.Lost)
		assert.True(b.t, a.Abandoned)
		assert.Len(b.t, b.fake.times(), 1)
		time.Sleep(2 * time.Minute)
	}, bounded(time.Second))
}

// A bounded call that was not sent goes out in another way, also if a hook of the user keeps the error for itself.
func TestBoundedCallWhoseErrorAHookKeepsIsSent(t *testing.T) {
	t.Parallel()
	for name, hinder := range map[string]func(b *promptBench) (end func()){
		"a hook was added later": func(b *promptBench) func() {
			b.rdb.AddHook(userHook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
				return next(ctx, cmd)
			}))
			return func() {}
		},
		"no connection": func(b *promptBench) func() {
			conn := b.rdb.Conn()
			require.NoError(b.t, conn.Ping(context.Background()).Err())
			return func() { assert.NoError(b.t, conn.Close()) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			rdb := testredis.Client(t, testredis.Mini(t).Addr(), func(o *redis.Options) { o.PoolSize = 1 })
			rdb.AddHook(userHook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
				if err := next(ctx, cmd); Answered(err) {
					return err
				}
				return nil
			}))
			b := newPromptBench(t, rdb)
			b.bounds()
			end := hinder(b)
			_, err, sent := b.prompt.RunBounded(context.Background(), time.Now(), echoRequest().Call)
			assert.NoError(t, err)
			assert.False(t, sent)
			end()
			assert.NoError(t, b.send(context.Background()).Err)
		})
	}
}

// A lateConn is a connection whose reads report in their own way that the time is up, as those of some tunnels do.
type lateConn struct{ net.Conn }

func (c lateConn) Read(b []byte) (n int, err error) {
	if n, err = c.Conn.Read(b); errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("read: %w", context.DeadlineExceeded)
	}
	return n, err
}

// A bounded call that was sent counts as sent: also if a hook repeats it, and the repetition gets no connection, or is
// answered, because Redis may run the first one later; and if its connection reports the end of its time as a context
// does.
func TestBoundedCallThatWasSentCounts(t *testing.T) {
	t.Parallel()
	var repeated atomic.Int64
	stalls := testredis.DelayReply(time.Minute)
	for name, row := range map[string]struct {
		repeats func(err error) bool // whether the hook of the user repeats the call
		opts    []func(*redis.Options)
		reply   testredis.Fault
		times   int64 // it is repeated with success
	}{
		"repeated":              {repeats: func(err error) bool { return err != nil }, reply: stalls},
		"repeated with success": {repeats: ended, reply: testredis.LoseReply, times: 1},
		"over a tunnel": {reply: stalls, opts: []func(*redis.Options){func(o *redis.Options) {
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, addr)
				return lateConn{conn}, err
			}
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			p := testredis.NewProxy(t, testredis.Start(t).Addr())
			rdb := p.Client(row.opts...)
			rdb.AddHook(userHook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
				err := next(ctx, cmd)
				if cmd.Name() == "evalsha" && row.repeats != nil && row.repeats(err) {
					repeated.Add(row.times)
					if row.times > 0 {
						cmd.SetErr(nil)
					}
					err = next(ctx, cmd)
				}
				return err
			}))
			b := newPromptBench(t, rdb)
			b.bounds()
			repeated.Store(0)
			p.On(testredis.Script(echoing.Digest()), row.reply)
			a := b.send(context.Background())
			require.NoError(t, a.Err)
			assert.Equal(t, row.times, repeated.Load())
			assert.Equal(t, 1, a.Unknown)
			assert.Equal(t, 1, a.Lost)
		})
	}
}

// A relaxer relaxes the timeouts of the connections on which it is told of something, as go-redis does while a server
// is being maintained.
type relaxer struct{ relaxed atomic.Bool }

func (r *relaxer) HandlePushNotification(_ context.Context, c push.NotificationHandlerContext, _ []any) error {
	c.Conn.(interface {
		SetRelaxedTimeout(read, write time.Duration)
	}).SetRelaxedTimeout(time.Minute, time.Minute)
	r.relaxed.Store(true)
	return nil
}

// The bound holds on a connection whose timeouts go-redis has relaxed.
func TestBoundHoldsWithRelaxedTimeouts(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	rdb := testredis.Client(t, s.Addr(), func(o *redis.Options) { o.PoolSize = 1 })
	var r relaxer
	require.NoError(t, rdb.RegisterPushNotificationHandler("invalidate", &r, false))
	b := newPromptBench(t, rdb)
	b.bounds()
	ctx := context.Background()
	require.NoError(t, rdb.Do(ctx, "client", "tracking", "on", "bcast").Err())
	testredis.Await(t, "the timeouts are relaxed", slack, func() bool {
		return rdb.Set(ctx, "a", 1, 0).Err() == nil && r.relaxed.Load()
	})
	b.bounds()
	other := testredis.Client(t, s.Addr())
	require.NoError(t, other.Do(ctx, "client", "pause", 5000, "all").Err())
	began := time.Now()
	_, err, sent := b.prompt.RunBounded(ctx, began, echoRequest().Call)
	assert.True(t, sent)
	assert.True(t, timedOut(err), "%v", err)
	assert.Less(t, time.Since(began), b.prompt.bound*5/4+slack)
}
