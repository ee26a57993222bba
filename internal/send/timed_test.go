//go:build go1.25

package send

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/petermattis/goid"
	"github.com/redis/go-redis/v9"
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

// A timedBench is a Sender on a Redis client with the defaults of go-redis.
type timedBench struct {
	*bench
	rdb   *redis.Client
	timed *Timed
}

func newTimedBench(t testing.TB, rdb *redis.Client) *timedBench {
	b := timedBenchThrough(t, rdb)
	b.rdb = rdb
	return b
}

// timedBenchThrough returns a timedBench whose calls go through outer, which is or embeds a client of go-redis.
func timedBenchThrough(t testing.TB, outer redis.UniversalClient) *timedBench {
	require.NoError(t, outer.ScriptLoad(context.Background(), echoing.Source()).Err())
	timed := NewTimed(outer)
	require.NotNil(t, timed)
	b := newBench(t, func(c *Config) {
		c.Transport, c.Bounded = NewRedis(outer, Synced{}), timed
		c.Idle = func(string) int { return int(outer.PoolStats().IdleConns) }
	})
	return &timedBench{bench: b, timed: timed}
}

func echoRequest() Request {
	return Request{Call: Call{Script: echoing, Keys: []string{"a"}, Args: []any{1}}}
}

// send sends a request whose caller may send it itself.
func (b *timedBench) send(ctx context.Context) Answer {
	w := b.wait(ctx)
	w.OnCaller = true
	return b.Do(w, echoRequest(), time.Now())
}

// bounds sends requests until one was bounded, and the next one will be.
func (b *timedBench) bounds() {
	b.t.Helper()
	testredis.Await(b.t, "calls are bounded", 30*time.Second, func() bool {
		require.NoError(b.t, b.send(context.Background()).Err)
		w := b.wait(context.Background())
		w.OnCaller = true
		r := echoRequest()
		if b.timed.Bound() == 0 {
			return false
		}
		_, err, sent := b.timed.RunBounded(w.Ctx, time.Now(), r.Call)
		_, onCaller := b.mayBound(w, &r, time.Now())
		return sent && err == nil && onCaller
	})
}

// Hooks see every command, in their order, and the caller sends it itself.
func TestHooksOfTheUserSeeEveryBoundedCommand(t *testing.T) {
	rdb := testredis.Client(t, testredis.Mini(t).Addr())
	var seen traces
	rdb.AddHook(traced("first", &seen))
	b := newTimedBench(t, rdb)
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
	check("first", "second")
	assert.NoError(t, b.timed.Probe("a", boundedTime, false))
	assert.Empty(t, seen.take(), "hooks see another name")
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
	b := newTimedBench(t, rdb)
	b.bounds()
	const late = 2 * boundedTime
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
	assert.NotZero(t, b.timed.Bound(), "after all that")
}

// stalls makes the proxy answer no script any more, and checks that a caller whose context is canceled leaves soon.
func (b *timedBench) stalls(p *testredis.Proxy) Answer {
	b.t.Helper()
	p.On(testredis.Script(echoing.Digest()), testredis.DelayReply(time.Minute)).Times(testredis.Always)
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(boundedTime/10, cancel)
	began := time.Now()
	a := b.send(ctx)
	assert.ErrorIs(b.t, a.Err, context.Canceled)
	assert.Less(b.t, time.Since(began), boundedTime+boundedTime/4+slack)
	return a
}

// A caller whose context is canceled leaves within the bound, whatever the hooks of the user do.
func TestBoundHoldsWhateverHooksDo(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		hook  userHook // once does is set
		later bool     // another hook is added then
	}{
		"nothing":                {},
		"a hook was added later": {later: true},
		"a copy of the command": {hook: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			return next(ctx, cmd.Clone())
		}},
		"another ctx": {hook: func(_ context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			return next(context.Background(), cmd)
		}},
		"a longer ctx": {hook: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
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
				if does.Load() && row.hook != nil && cmd.Name() == "evalsha" {
					return row.hook(ctx, cmd, next)
				}
				return next(ctx, cmd)
			}))
			b := newTimedBench(t, rdb)
			b.bounds()
			does.Store(true)
			var seen atomic.Int64
			if row.later {
				rdb.AddHook(userHook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
					seen.Add(1)
					return next(ctx, cmd)
				}))
			}
			a := b.stalls(p)
			assert.False(t, a.Abandoned, "it was sent by the caller")
			assert.Equal(t, 1, a.Unknown)
			assert.Equal(t, 1, a.Lost)
			assert.Equal(t, row.later, seen.Load() > 0)
		})
	}
}

// A bounded call that times out has an unknown outcome, and the request is sent again on another goroutine, over
// another connection. Redis counts as unhealthy until it answers.
func TestBoundedCallWithoutAnAnswerIsSentAgain(t *testing.T) {
	t.Parallel()
	p := testredis.NewProxy(t, testredis.Start(t).Addr())
	rdb := p.Client()
	var seen traces
	rdb.AddHook(traced("", &seen))
	b := newTimedBench(t, rdb)
	b.bounds()
	seen.take()
	p.On(testredis.Script(echoing.Digest()), testredis.DelayReply(time.Minute))
	began := time.Now()
	a := b.send(context.Background())
	require.NoError(t, a.Err)
	assert.Equal(t, 1, a.Unknown)
	assert.Equal(t, 1, a.Lost)
	assert.GreaterOrEqual(t, time.Since(began), boundedTime)
	list := seen.take()
	require.GreaterOrEqual(t, len(list), 2)
	assert.Equal(t, goid.Get(), list[0].goroutine)
	assert.NotEqual(t, goid.Get(), list[1].goroutine)
}

// A bounded call that gets no connection was not sent, and goes out in another way, also if a hook reads its words, or
// keeps the error for itself.
func TestBoundedCallWaitsForAConnectionForAQuarterOfItsTime(t *testing.T) {
	s := testredis.Mini(t)
	for name, hook := range map[string]userHook{
		"reads": func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			_ = cmd.Args()
			return next(ctx, cmd)
		},
		"keeps": func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if err := next(ctx, cmd); Answered(err) {
				return err
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			rdb := testredis.Client(t, s.Addr(), func(o *redis.Options) { o.PoolSize = 1 })
			rdb.AddHook(hook)
			b := newTimedBench(t, rdb)
			b.bounds()
			conn := rdb.Conn()
			require.NoError(t, conn.Ping(context.Background()).Err()) // it has the only connection
			began := time.Now()
			_, err, sent := b.timed.RunBounded(context.Background(), began, echoRequest().Call)
			assert.NoError(t, err)
			assert.False(t, sent)
			assert.GreaterOrEqual(t, time.Since(began), b.timed.bound/5)
			assert.Less(t, time.Since(began), b.timed.bound/4+slack)
			require.NoError(t, conn.Close())
			b.bounds()
		})
	}
}

// Nor was one sent whose connection is dead before go-redis has begun it: an idle one of MinIdleConns.
func TestBoundedCallOverAConnectionThatDoesNotBegin(t *testing.T) {
	p := testredis.NewProxy(t, testredis.Start(t).Addr())
	rdb := p.Client(func(o *redis.Options) { o.MinIdleConns, o.ReadTimeout = 1, 2*boundedTime })
	testredis.Await(t, "a connection is open", time.Minute, func() bool { return rdb.PoolStats().IdleConns == 1 })
	p.BlackHole(true)
	_, err, sent := NewTimed(rdb).RunBounded(context.Background(), time.Now(), echoRequest().Call)
	assert.NoError(t, err)
	assert.False(t, sent)
}

// A call whose script the server does not know goes out with its source in another way.
func TestBoundedCallOfAnUnknownScript(t *testing.T) {
	rdb := testredis.Client(t, testredis.Mini(t).Addr())
	b := newTimedBench(t, rdb)
	b.bounds()
	require.NoError(t, rdb.ScriptFlush(context.Background()).Err())
	a := b.send(context.Background())
	assert.NoError(t, a.Err)
	assert.Zero(t, a.Unknown)
}

func TestAnswersOfBoundedCalls(t *testing.T) {
	rdb := testredis.Client(t, testredis.Mini(t).Addr())
	for source, want := range map[string]any{
		"return 7": int64(7), "return '1 2 3'": "1 2 3", "return ''": "", "return false": nil, "return {err = 'OOM'}": nil,
	} {
		script := NewScript(source)
		require.NoError(t, rdb.ScriptLoad(context.Background(), source).Err())
		answer, err, sent := NewTimed(rdb).RunBounded(context.Background(), time.Now(), Call{Script: script, Keys: []string{"a"}})
		assert.Equal(t, want, answer, source)
		assert.Equal(t, want == nil, err != nil, source)
		assert.True(t, sent, source)
	}
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
	b := newTimedBench(t, rdb)
	b.bounds()
	panics.Store(true)
	a := b.send(context.Background())
	require.NotNil(t, PanicOf(a.Err))
	assert.Equal(t, "a hook", PanicOf(a.Err).Value)
}

// The time of a short read timeout is left as it is.
func TestBoundIsNoLongerThanTheReadTimeout(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{
		0: boundedTime, time.Second: boundedTime, 50 * time.Millisecond: 50 * time.Millisecond,
	} {
		rdb := testredis.Client(t, "127.0.0.1:1", func(o *redis.Options) { o.ReadTimeout = timeout })
		assert.Equal(t, want, NewTimed(rdb).Bound())
	}
}

// A bounder is a Bounder whose calls take d.
type bounder struct {
	bound, d time.Duration
	late     time.Duration // after its bound
	runs     atomic.Int64
}

func (b *bounder) Bound() time.Duration { return b.bound }

func (b *bounder) RunBounded(_ context.Context, _ time.Time, c Call) (any, error, bool) {
	b.runs.Add(1)
	if b.d > b.bound {
		time.Sleep(b.bound + b.late)
		return nil, fmt.Errorf("read: %w", os.ErrDeadlineExceeded), true
	}
	time.Sleep(b.d)
	return echo(c), nil, true
}

// Probes that take long do not pile up, and the caller does not wait for them when it is answered.
func TestProbesThatTakeLongDelayNobody(t *testing.T) {
	var probes atomic.Int64 // under way
	in(t, func(b *bench) {
		b.isFast()
		const takes = 1300 * time.Millisecond
		b.fake.setRun(after(takes, nil))
		for i := range 10 {
			go func() {
				began := time.Now()
				answers(b.t, "x", b.do(request("x")))
				if i > 0 { // the first one begins with a bounded call
					assert.Equal(b.t, takes, time.Since(began))
				}
			}()
			time.Sleep(time.Second)
			assert.LessOrEqual(b.t, probes.Load(), int64(1))
		}
		time.Sleep(time.Minute)
	}, bounded(time.Second), func(c *Config) {
		c.Probe = func(string, time.Duration) { // it has to begin connections
			probes.Add(1)
			time.Sleep(5 * time.Second)
			probes.Add(-1)
		}
	})
}

// Probes use all connections of the pool, also while Redis is slow. A caller that gets none meanwhile does not give up.
func TestProbesLeaveACallerTime(t *testing.T) {
	var probed chan struct{}
	in(t, func(b *bench) {
		b.slowness.d.Store(int64(time.Second))
		b.fake.setRun(func(_ context.Context, c Call) (any, error) {
			if b.fake.tries() == 1 {
				time.Sleep(time.Minute) // its connection is dead, as all of them are
			}
			for len(probed) == 0 {
				time.Sleep(10 * time.Millisecond)
			}
			return echo(c), nil
		})
		answers(b.t, "x", b.do(request("x")))
		time.Sleep(time.Minute)
	}, func(c *Config) {
		probed = make(chan struct{}, 1)
		c.Probe = func(_ string, within time.Duration) {
			time.Sleep(within)
			select {
			case probed <- struct{}{}:
			default:
			}
		}
	})
}

// The idle connections are probed when a request has no answer, also after Redis has refused it for a moment, and when the
// connection of one that is sent once has failed.
func TestRequestWithoutAnAnswerHasThePoolProbed(t *testing.T) {
	var probed atomic.Int64
	in(t, func(b *bench) {
		probed.Store(0)
		b.fake.setRun(func(_ context.Context, c Call) (any, error) {
			if b.fake.tries() == 1 {
				return nil, refusal("LOADING Redis is loading the dataset in memory")
			}
			for probed.Load() == 0 { // its connection is dead, as all of them are
				time.Sleep(10 * time.Millisecond)
			}
			return echo(c), nil
		})
		start := time.Now()
		answers(b.t, "x", b.do(request("x")))
		assert.Less(b.t, time.Since(start), 2*ResendTime)
		b.fake.setRun(after(0, io.EOF))
		time.Sleep(time.Minute)
		assert.ErrorIs(b.t, b.Once(b.wait(context.Background()), request("x")).Err, io.EOF)
		synctest.Wait()
		assert.EqualValues(b.t, 2, probed.Load())
	}, func(c *Config) {
		c.Probe = func(string, time.Duration) { probed.Add(1) }
	})
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
		want      bool // on the goroutine of the caller
		elsewhere bool // on another one
	}{
		"bounded":           {want: true},
		"not on the caller": {change: change{wait: func(w *Wait) { w.OnCaller = false }}, elsewhere: true},
		"a deadline": {want: true, change: change{wait: func(w *Wait) {
			w.Deadline = time.Now().Add(300 * time.Millisecond)
		}}},
		"a near deadline":    {change: change{wait: func(w *Wait) { w.Deadline = time.Now().Add(boundedTime - 1) }}, elsewhere: true},
		"ctx has a deadline": {change: change{wait: func(w *Wait) { w.Ctx = endsAfter(500 * time.Millisecond) }}, want: true},
		"ctx ends soon":      {change: change{wait: func(w *Wait) { w.Ctx = endsAfter(boundedTime - 1) }}, elsewhere: true},
		"patience":           {change: change{wait: func(w *Wait) { w.NoWait = true }}, want: true},
		"a long call":        {change: change{request: func(r *Request) { r.Long = true }}},
		"unhealthy":          {change: change{sender: func(s *Sender) { s.unhealthy.Store(true) }}},
		"slow": {change: change{sender: func(s *Sender) {
			s.record(s.batches, outcome{sent: time.Now().Add(-boundedTime/boundShare - time.Millisecond)})
		}}},
		"no connection": {change: change{sender: func(s *Sender) {
			s.config.Idle = func(string) int { return 0 }
		}}},
		"silent for a second": {change: change{sender: func(*Sender) { time.Sleep(heardTime) }}, elsewhere: true},
		"heard a moment ago":  {change: change{sender: func(*Sender) { time.Sleep(heardTime - 1) }}, want: true},
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
				bounded, onCaller := b.mayBound(w, &r, time.Now())
				assert.Equal(t, row.want, onCaller)
				assert.Equal(t, row.want || row.elsewhere, bounded)
			}, bounded(0))
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

func bounded(takes time.Duration) func(*Config) {
	return func(c *Config) {
		c.Bounded, c.Idle = &bounder{bound: boundedTime, d: takes}, func(string) int { return 1 }
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
		assert.EqualValues(b.t, 1, bounder.runs.Load())
		b.fake.setRun(nil)
		bounder.d = 0
		for range 5 {
			answers(b.t, "x", send())
			assert.EqualValues(b.t, 1, bounder.runs.Load(), "Redis was slow just now")
		}
		for range 30 {
			answers(b.t, "x", send())
		}
		assert.Greater(b.t, bounder.runs.Load(), int64(1), "Redis is fast again")
		time.Sleep(time.Minute)
	}, bounded(time.Second))
}

// If bounded calls end much too late one after the other, no call is bounded for a minute.
func TestLateEndsSwitchBoundsOff(t *testing.T) {
	in(t, func(b *bench) {
		bounder := b.config.Bounded.(*bounder)
		send := func(runs int) {
			b.t.Helper()
			b.isFast()
			var all sync.WaitGroup
			for range 4 {
				w := b.wait(context.Background())
				w.OnCaller = true
				all.Go(func() { answers(b.t, "x", b.Do(w, request("x"), time.Now())) })
			}
			all.Wait()
			assert.EqualValues(b.t, runs, bounder.runs.Load())
		}
		stops := func(late time.Duration, runs int) {
			b.t.Helper()
			bounder.late = late
			send(runs)
		}
		tooLate := boundedTime + 1
		stops(tooLate, 4) // the process was stopped, and all calls that were under way are late
		stops(boundedTime, 8)
		stops(tooLate, 12)
		assert.Empty(b.t, b.log.String())
		stops(tooLate, 16)
		assert.Equal(b.t, 1, strings.Count(b.log.String(), "level=WARN"))
		send(16)
		time.Sleep(unboundTime)
		send(20)
	}, bounded(time.Second))
}

// A bounded call without an answer is no error for its caller: the request has no answer yet.
func TestBoundedCallWithoutAnAnswerIsSilent(t *testing.T) {
	in(t, func(b *bench) {
		b.isFast()
		b.fake.setRun(after(time.Minute, nil))
		w := b.wait(context.Background())
		w.OnCaller, w.Deadline = true, time.Now().Add(2*boundedTime)
		a := b.Do(w, request("x"), time.Now())
		assert.Equal(b.t, ErrTimeUp, a.Err)
		assert.Equal(b.t, 1, a.Unknown)
		assert.Equal(b.t, 1, a.Lost)
		assert.True(b.t, a.Abandoned)
		assert.Len(b.t, b.fake.times(), 1)
		time.Sleep(2 * time.Minute)
	}, bounded(time.Second))
}

// A lateConn is a connection whose reads report in their own way that the time is up, as those of some tunnels do.
type lateConn struct{ net.Conn }

func (c lateConn) Read(b []byte) (n int, err error) {
	if n, err = c.Conn.Read(b); errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("read: %w", context.DeadlineExceeded)
	}
	return n, err
}

// A bounded call that was sent counts as sent, also if its connection reports the end of its time as a context does.
func TestBoundedCallThatWasSentCounts(t *testing.T) {
	t.Parallel()
	p := testredis.NewProxy(t, testredis.Start(t).Addr())
	rdb := p.Client(func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return lateConn{conn}, err
		}
	})
	b := newTimedBench(t, rdb)
	b.bounds()
	p.On(testredis.Script(echoing.Digest()), testredis.DelayReply(time.Minute))
	a := b.send(context.Background())
	require.NoError(t, a.Err)
	assert.Equal(t, 1, a.Unknown)
	assert.Equal(t, 1, a.Lost)
}

// A hook may look at a command as it likes, and go-redis for an answer in its cache.
func TestHooksLookAtABoundedCall(t *testing.T) {
	t.Parallel()
	addr := testredis.Start(t).Addr()
	for name, opts := range map[string][]func(*redis.Options){
		"hook": nil,
		"cache": {func(o *redis.Options) {
			o.Protocol, o.ClientSideCacheConfig = 3, &redis.ClientSideCacheConfig{}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			rdb := testredis.Client(t, addr, opts...)
			words := []any{"evalsha", echoing.Digest(), 1, "a", 1}
			rdb.AddHook(userHook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
				if cmd.Name() == "evalsha" {
					assert.Equal(t, words, cmd.Args())
					assert.True(t, cmd.NoRetry())
				}
				err := next(ctx, cmd)
				if cmd.Name() == "evalsha" {
					assert.True(t, cmd.NoRetry())
					assert.Equal(t, redis.NewCmd(ctx, words...).String()+": 1 1 0", cmd.String())
				}
				return err
			}))
			newTimedBench(t, rdb).bounds()
		})
	}
}
