package testredis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

var incr = redis.NewScript(`return redis.call('INCR', KEYS[1])`)

// once keeps go-redis from sending a command again.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// runOnce runs incr on the key k.
func runOnce(c *redis.Client) (int, error) {
	ctx := context.Background()
	cmd := redis.NewCmd(ctx, "evalsha", incr.Hash(), 1, "k")
	if err := c.Process(ctx, once{cmd}); err != nil {
		return 0, err
	}
	return cmd.Int()
}

// A bench is a server that knows incr, a client of its own and a proxy to it.
type bench struct {
	*testing.T
	server *Server
	direct *redis.Client
	proxy  *Proxy
}

func newBench(t *testing.T) *bench {
	t.Helper()
	s := Start(t)
	b := &bench{T: t, server: s, direct: s.Client(), proxy: NewProxy(t, s.Addr())}
	if err := incr.Load(context.Background(), b.direct).Err(); err != nil {
		t.Fatal(err)
	}
	return b
}

// executed is how many times incr has run.
func (b *bench) executed() int {
	b.Helper()
	n, err := b.direct.Get(context.Background(), "k").Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		b.Fatal(err)
	}
	return n
}

func (b *bench) wantExecuted(n int) {
	b.Helper()
	if got := b.executed(); got != n {
		b.Errorf("executed %d times, not %d", got, n)
	}
}

func (b *bench) awaitExecuted(n int) {
	b.Helper()
	Await(b, fmt.Sprintf("executed %d times", n), patience, func() bool { return b.executed() == n })
}

func timedOut(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// Each protocol has replies of its own, and a pool must not see one of them misplaced.
func bothProtocols(t *testing.T, test func(b *bench, protocol func(*redis.Options))) {
	for _, v := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", v), func(t *testing.T) {
			test(newBench(t), func(o *redis.Options) { o.Protocol = v })
		})
	}
}

func TestPassesEverything(t *testing.T) {
	bothProtocols(t, func(b *bench, protocol func(*redis.Options)) {
		ctx := context.Background()
		c := b.proxy.Client(protocol)
		for i := range 100 {
			if n, err := runOnce(c); err != nil || n != i+1 {
				b.Fatalf("%d, %v", n, err)
			}
		}
		if err := c.HSet(ctx, "h", "a", 1, "b", "\r\n").Err(); err != nil {
			b.Error(err)
		}
		if got := c.HGetAll(ctx, "h").Val(); got["b"] != "\r\n" {
			b.Errorf("HGETALL: %q", got)
		}
		if err := c.Get(ctx, "none").Err(); !errors.Is(err, redis.Nil) {
			b.Errorf("GET of nothing: %v", err)
		}
		if err := c.LPush(ctx, "h", 1).Err(); err == nil {
			b.Error("LPUSH on a hash")
		}
		cmds, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := range 500 {
				p.Echo(ctx, i)
			}
			return nil
		})
		if err != nil {
			b.Error(err)
		}
		for i, cmd := range cmds {
			if got := cmd.(*redis.StringCmd).Val(); got != fmt.Sprint(i) {
				b.Errorf("echo %d is %q", i, got)
			}
		}
	})
}

func TestLoseReply(t *testing.T) {
	bothProtocols(t, func(b *bench, protocol func(*redis.Options)) {
		rule := b.proxy.On(Script(incr.Hash()), LoseReply)
		c := b.proxy.Client(protocol)
		if _, err := runOnce(c); !errors.Is(err, io.EOF) {
			b.Errorf("the client sees %v", err)
		}
		<-rule.Fired()
		b.wantExecuted(1)
		if n, err := runOnce(c); err != nil || n != 2 {
			b.Errorf("the rule fires once, but then %d, %v", n, err)
		}
		if rule.Count() != 1 {
			b.Errorf("it counts %d", rule.Count())
		}
	})
}

// What the rule is for: go-redis runs a script again and again when left to itself.
func TestLoseReplyShowsRetries(t *testing.T) {
	b := newBench(t)
	rule := b.proxy.On(Script(incr.Hash()), LoseReply).Times(Always)
	c := b.proxy.Client(func(o *redis.Options) { o.MaxRetries = 2 })
	if err := incr.EvalSha(context.Background(), c, []string{"k"}).Err(); !errors.Is(err, io.EOF) {
		t.Errorf("the client sees %v", err)
	}
	b.wantExecuted(3)
	if rule.Count() != 3 {
		t.Errorf("it counts %d", rule.Count())
	}
	rule.Release()
	if n, err := runOnce(c); err != nil || n != 4 {
		t.Errorf("the rule has ended, but then %d, %v", n, err)
	}
}

func TestLoseReplyInPipeline(t *testing.T) {
	ctx := context.Background()
	b := newBench(t)
	b.proxy.On(Command("INCR"), LoseReply)
	c := b.proxy.Client(one)
	p := c.Pipeline()
	before, lost, after := p.Echo(ctx, "before"), p.Incr(ctx, "k"), p.Echo(ctx, "after")
	if _, err := p.Exec(ctx); err == nil {
		t.Error("no error")
	}
	if before.Val() != "before" {
		t.Errorf("the reply before it: %v", before)
	}
	if lost.Err() == nil || after.Err() == nil {
		t.Errorf("%v, %v", lost.Err(), after.Err())
	}
	b.wantExecuted(1)
}

func TestStallReply(t *testing.T) {
	bothProtocols(t, func(b *bench, protocol func(*redis.Options)) {
		rule := b.proxy.On(Script(incr.Hash()), StallReply)
		c := b.proxy.Client(one, protocol)
		if _, err := runOnce(c); !timedOut(err) {
			b.Errorf("the client sees %v", err)
		}
		<-rule.Fired()
		b.wantExecuted(1)
		if n, err := runOnce(c); err != nil || n != 2 {
			b.Errorf("on a new connection %d, %v", n, err)
		}
	})
}

func TestDropRequest(t *testing.T) {
	ctx := context.Background()
	b := newBench(t)
	rule := b.proxy.On(Script(incr.Hash()), DropRequest)
	c := b.proxy.Client()
	if _, err := runOnce(c); !errors.Is(err, io.EOF) {
		t.Errorf("the client sees %v", err)
	}
	<-rule.Fired()
	b.wantExecuted(0)

	b.proxy.On(Command("incr"), DropRequest)
	p := b.proxy.Client(one).Pipeline()
	before, dropped, after := p.Echo(ctx, "before"), p.Incr(ctx, "k"), p.Incr(ctx, "k")
	_, _ = p.Exec(ctx) // its error is that of a command
	if before.Val() != "before" || dropped.Err() == nil || after.Err() == nil {
		t.Errorf("%v, %v, %v", before, dropped, after)
	}
	b.wantExecuted(0)
}

func TestDelay(t *testing.T) {
	const d = 100 * time.Millisecond
	b := newBench(t)
	c := b.proxy.Client()
	for name, fault := range map[string]Fault{"request": DelayRequest(d), "reply": DelayReply(d)} {
		rule := b.proxy.On(Script(incr.Hash()), fault).Times(2)
		for range 2 {
			start := time.Now()
			if _, err := runOnce(c); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took < d {
				t.Errorf("%s: it took %v", name, took)
			}
		}
		if rule.Count() != 2 {
			t.Errorf("%s: it counts %d", name, rule.Count())
		}
	}
	b.wantExecuted(4)
}

func TestHoldRequest(t *testing.T) {
	b := newBench(t)
	rule := b.proxy.On(Script(incr.Hash()), HoldRequest)
	c := b.proxy.Client(one)
	if _, err := runOnce(c); !timedOut(err) {
		t.Errorf("the client sees %v", err)
	}
	<-rule.Fired()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	b.wantExecuted(0)
	rule.Release()
	b.awaitExecuted(1)
	rule.Release() // harmless
}

// A held request outlives even the cut of its connection, and others overtake it.
func TestHoldRequestThenCut(t *testing.T) {
	b := newBench(t)
	rule := b.proxy.On(Script(incr.Hash()), HoldRequest)
	c := b.proxy.Client()
	failed := make(chan error)
	go func() {
		_, err := runOnce(c)
		failed <- err
	}()
	<-rule.Fired()
	b.proxy.CutAll()
	if err := <-failed; err == nil {
		t.Error("no error")
	}
	if n, err := runOnce(c); err != nil || n != 1 {
		t.Errorf("overtaking: %d, %v", n, err)
	}
	rule.Release()
	b.awaitExecuted(2)
}

func TestHoldRequestWhileClientWaits(t *testing.T) {
	b := newBench(t)
	rule := b.proxy.On(Script(incr.Hash()), HoldRequest)
	c := b.proxy.Client()
	go func() {
		<-rule.Fired()
		rule.Release()
	}()
	if n, err := runOnce(c); err != nil || n != 1 {
		t.Errorf("%d, %v", n, err)
	}
}

func TestBlackHole(t *testing.T) {
	ctx := context.Background()
	b := newBench(t)
	c := b.proxy.Client(one)
	if err := c.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	b.proxy.BlackHole(true)
	b.proxy.BlackHole(true) // harmless
	if _, err := runOnce(c); !timedOut(err) {
		t.Errorf("an old connection: %v", err)
	}
	if err := c.Ping(ctx).Err(); !timedOut(err) {
		t.Errorf("a new connection: %v", err)
	}
	b.wantExecuted(0)
	b.proxy.BlackHole(false)
	b.awaitExecuted(1)
	if n, err := runOnce(c); err != nil || n != 2 {
		t.Errorf("%d, %v", n, err)
	}
}

func TestCutAll(t *testing.T) {
	ctx := context.Background()
	b := newBench(t)
	c := b.proxy.Client()
	failed := make(chan error)
	go func() { failed <- c.Process(ctx, once{redis.NewCmd(ctx, "blpop", "list", 0)}) }()
	blocked := func() bool { return info(b, "blocked_clients:1") }
	Await(t, "BLPOP has arrived", patience, blocked)
	b.proxy.CutAll()
	if err := <-failed; err == nil {
		t.Error("no error")
	}
	Await(t, "the server knows", patience, func() bool { return !blocked() })
	if err := c.Ping(ctx).Err(); err != nil {
		t.Errorf("a new connection: %v", err)
	}
}

func info(b *bench, line string) bool {
	b.Helper()
	text, err := b.direct.Info(context.Background(), "clients").Result()
	if err != nil {
		b.Fatal(err)
	}
	return strings.Contains(text, line)
}

func TestLatency(t *testing.T) {
	const d = 30 * time.Millisecond
	ctx := context.Background()
	b := newBench(t)
	c := b.proxy.Client()
	if err := c.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	b.proxy.Latency(d)
	start := time.Now()
	_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for range 200 {
			p.Ping(ctx)
		}
		return nil
	})
	took := time.Since(start)
	if err != nil {
		t.Error(err)
	}
	if took < 2*d || took > 50*d {
		t.Errorf("200 commands in one pipeline took %v", took)
	}
}

func TestServerGoes(t *testing.T) {
	ctx := context.Background()
	b := newBench(t)
	c := b.proxy.Client(one)
	if err := c.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	b.server.Kill()
	for range 3 {
		if err := c.Ping(ctx).Err(); err == nil {
			t.Error("no error")
		}
	}
	b.server.Restart()
	Await(t, "it answers again", patience, func() bool { return c.Ping(ctx).Err() == nil })
}

func TestPubSub(t *testing.T) {
	bothProtocols(t, func(b *bench, protocol func(*redis.Options)) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		c := b.proxy.Client(protocol)
		sub := c.Subscribe(ctx, "c1", "c2")
		defer sub.Close()
		for range 2 {
			if m, err := sub.Receive(ctx); err != nil {
				b.Fatalf("%v, %v", m, err)
			}
		}
		for i := range 50 {
			if n, err := c.Publish(ctx, "c1", i).Result(); err != nil || n != 1 {
				b.Fatalf("published to %d, %v", n, err)
			}
			if m, err := sub.ReceiveMessage(ctx); err != nil || m.Payload != fmt.Sprint(i) {
				b.Fatalf("%v, %v", m, err)
			}
		}
		if err := sub.Ping(ctx, "x"); err != nil {
			b.Error(err)
		}
		if m, err := sub.Receive(ctx); err != nil {
			b.Errorf("PING: %v, %v", m, err)
		}
		if err := sub.Unsubscribe(ctx, "c2"); err != nil {
			b.Error(err)
		}
		if m, err := sub.Receive(ctx); err != nil {
			b.Errorf("UNSUBSCRIBE: %v, %v", m, err)
		}

		b.proxy.CutAll()
		if _, err := sub.Receive(ctx); err == nil {
			b.Error("a cut connection goes on")
		}
		if m, err := sub.Receive(ctx); err != nil {
			b.Errorf("subscribing again: %v, %v", m, err)
		}
	})
}

// A subscription can be struck as well, here one whose server has gone silent.
func TestPubSubStalls(t *testing.T) {
	bothProtocols(t, func(b *bench, protocol func(*redis.Options)) {
		ctx := context.Background()
		rule := b.proxy.On(Command("subscribe"), StallReply)
		c := b.proxy.Client(protocol)
		sub := c.Subscribe(ctx, "c")
		defer sub.Close()
		<-rule.Fired()
		if n, err := b.direct.Publish(ctx, "c", "m").Result(); err != nil || n != 1 {
			b.Errorf("published to %d, %v", n, err)
		}
		if m, err := sub.ReceiveTimeout(ctx, 50*time.Millisecond); !timedOut(err) {
			b.Errorf("%v, %v", m, err)
		}
	})
}

func TestMatches(t *testing.T) {
	script := Script(incr.Hash())
	const source = `return redis.call('INCR', KEYS[1])`
	for _, c := range []struct {
		match Match
		cmd   []string
		want  bool
	}{
		{script, []string{"evalsha", incr.Hash(), "1", "k"}, true},
		{script, []string{"EVAL", source, "1", "k"}, true},
		{script, []string{"eval", source + " ", "1", "k"}, false},
		{script, []string{"script", "load", source}, false},
		{script, []string{"evalsha"}, false},
		{Command("get"), []string{"GET", "k"}, true},
		{Command("get"), []string{"set", "k", "v"}, false},
		{Command("get"), nil, false},
	} {
		if got := c.match(c.cmd); got != c.want {
			t.Errorf("%q: %v", c.cmd, got)
		}
	}
}

// A proxy that ends in the middle of everything leaves nothing behind.
func TestNothingStays(t *testing.T) {
	s := Start(t)
	before := goleak.IgnoreCurrent()
	t.Run("proxy", func(t *testing.T) {
		p := NewProxy(t, s.Addr())
		held := p.On(Command("incr"), HoldRequest)
		p.On(Command("get"), DelayRequest(time.Hour))
		stalled := p.On(Command("echo"), StallReply)
		ctx := context.Background()
		c := p.Client(func(o *redis.Options) { o.ReadTimeout = 50 * time.Millisecond; o.MaxRetries = -1 })
		for _, err := range []error{c.Incr(ctx, "k").Err(), c.Get(ctx, "k").Err(), c.Echo(ctx, "x").Err()} {
			if !timedOut(err) {
				t.Error(err)
			}
		}
		<-held.Fired()
		<-stalled.Fired()
		p.BlackHole(true)
		if err := c.Ping(ctx).Err(); !timedOut(err) {
			t.Error(err)
		}
	})
	goleak.VerifyNone(t, before)
}
