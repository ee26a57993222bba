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
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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

// A bench is a server that knows incr, with a client of its own and a proxy to it.
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
	require.NoError(t, incr.Load(context.Background(), b.direct).Err())
	return b
}

// executed returns how many times incr has run.
func (b *bench) executed() int {
	b.Helper()
	n, err := b.direct.Get(context.Background(), "k").Int()
	if err != nil {
		require.ErrorIs(b, err, redis.Nil)
	}
	return n
}

func (b *bench) wantExecuted(n int) {
	b.Helper()
	assert.Equal(b, n, b.executed(), "times that incr has run")
}

func (b *bench) awaitExecuted(n int) {
	b.Helper()
	Await(b, fmt.Sprintf("executed %d times", n), patience, func() bool { return b.executed() == n })
}

func timedOut(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// bothProtocols runs a test with RESP2 and with RESP3, because each has different replies, and a pool must not
// receive one of them in the wrong position.
func bothProtocols(t *testing.T, test func(b *bench, protocol func(*redis.Options))) {
	for _, v := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", v), func(t *testing.T) {
			test(newBench(t), func(o *redis.Options) { o.Protocol = v })
		})
	}
}

func TestProxyPassesEverything(t *testing.T) {
	bothProtocols(t, func(b *bench, protocol func(*redis.Options)) {
		ctx := context.Background()
		c := b.proxy.Client(protocol)
		for i := range 100 {
			n, err := runOnce(c)
			require.NoError(b, err)
			require.Equal(b, i+1, n)
		}
		assert.NoError(b, c.HSet(ctx, "h", "a", 1, "b", "\r\n").Err())
		assert.Equal(b, "\r\n", c.HGetAll(ctx, "h").Val()["b"], "HGETALL")
		assert.ErrorIs(b, c.Get(ctx, "none").Err(), redis.Nil, "GET of nothing")
		assert.Error(b, c.LPush(ctx, "h", 1).Err(), "LPUSH on a hash")
		cmds, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i := range 500 {
				p.Echo(ctx, i)
			}
			return nil
		})
		assert.NoError(b, err)
		for i, cmd := range cmds {
			assert.Equal(b, fmt.Sprint(i), cmd.(*redis.StringCmd).Val(), "echo")
		}
	})
}

func TestRequestWithoutItsReplyHasRun(t *testing.T) {
	bothProtocols(t, func(b *bench, protocol func(*redis.Options)) {
		lost := func(err error) bool { return errors.Is(err, io.EOF) }
		times := 0
		for name, c := range map[string]struct {
			fault Fault
			is    func(error) bool
		}{"lost": {LoseReply, lost}, "stalled": {StallReply, timedOut}} {
			rule := b.proxy.On(Script(incr.Hash()), c.fault)
			client := b.proxy.Client(one, protocol)
			_, err := runOnce(client)
			assert.True(b, c.is(err), "%s: the error of the client: %v", name, err)
			<-rule.Fired()
			b.wantExecuted(times + 1)
			times, err = runOnce(client)
			assert.NoError(b, err, name)
			b.wantExecuted(times)
			assert.Equal(b, 1, rule.Count(), "%s: the rule fires once", name)
		}
		assert.Equal(b, 4, times)
	})
}

func TestLoseReplyInPipelineKeepsRepliesBefore(t *testing.T) {
	ctx := context.Background()
	b := newBench(t)
	b.proxy.On(Command("INCR"), LoseReply)
	c := b.proxy.Client(one)
	p := c.Pipeline()
	before, lost, after := p.Echo(ctx, "before"), p.Incr(ctx, "k"), p.Echo(ctx, "after")
	_, err := p.Exec(ctx)
	assert.Error(t, err)
	assert.Equal(t, "before", before.Val(), "the reply before it")
	assert.Error(t, lost.Err())
	assert.Error(t, after.Err())
	b.wantExecuted(1)
}

func TestDropRequestRunsNothing(t *testing.T) {
	ctx := context.Background()
	b := newBench(t)
	b.proxy.On(Command("incr"), DropRequest)
	p := b.proxy.Client(one).Pipeline()
	before, dropped, after := p.Echo(ctx, "before"), p.Incr(ctx, "k"), p.Incr(ctx, "k")
	_, _ = p.Exec(ctx) // it returns the error of a command
	assert.Equal(t, "before", before.Val())
	assert.Error(t, dropped.Err())
	assert.Error(t, after.Err())
	b.wantExecuted(0)
}

func TestDelayIsForRequestsAndReplies(t *testing.T) {
	const d = 100 * time.Millisecond
	b := newBench(t)
	c := b.proxy.Client()
	for name, fault := range map[string]Fault{"request": DelayRequest(d), "reply": DelayReply(d)} {
		rule := b.proxy.On(Script(incr.Hash()), fault).Times(2)
		for range 2 {
			start := time.Now()
			_, err := runOnce(c)
			require.NoError(t, err)
			assert.GreaterOrEqual(t, time.Since(start), d, name)
		}
		assert.Equal(t, 2, rule.Count(), "%s: the rule counts", name)
	}
	b.wantExecuted(4)
}

// A held request survives even the cut of its connection, and others overtake it.
func TestHeldRequestOutlivesItsConnection(t *testing.T) {
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
	assert.Error(t, <-failed)
	n, err := runOnce(c)
	assert.NoError(t, err)
	assert.Equal(t, 1, n, "overtaking")
	rule.Release()
	b.awaitExecuted(2)
	rule.Release() // has no effect
}

func TestCutAllClosesBothSides(t *testing.T) {
	ctx := context.Background()
	b := newBench(t)
	c := b.proxy.Client()
	failed := make(chan error)
	go func() { failed <- c.Process(ctx, once{redis.NewCmd(ctx, "blpop", "list", 0)}) }()
	blocked := func() bool { return info(b, "blocked_clients:1") }
	Await(t, "BLPOP has arrived", patience, blocked)
	b.proxy.CutAll()
	assert.Error(t, <-failed)
	Await(t, "the server knows", patience, func() bool { return !blocked() })
	assert.NoError(t, c.Ping(ctx).Err(), "a new connection")
}

func info(b *bench, line string) bool {
	b.Helper()
	text, err := b.direct.Info(context.Background(), "clients").Result()
	require.NoError(b, err)
	return strings.Contains(text, line)
}

func TestLatencyIsPerPacketNotPerCommand(t *testing.T) {
	const d = 30 * time.Millisecond
	ctx := context.Background()
	b := newBench(t)
	c := b.proxy.Client()
	require.NoError(t, c.Ping(ctx).Err())
	b.proxy.Latency(d)
	start := time.Now()
	_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for range 200 {
			p.Ping(ctx)
		}
		return nil
	})
	took := time.Since(start)
	assert.NoError(t, err)
	assert.GreaterOrEqual(t, took, 2*d, "200 commands in one pipeline")
	assert.LessOrEqual(t, took, 50*d, "200 commands in one pipeline")
}

// A fault can also be applied to a subscription. Here its server has gone silent.
func TestStallReplyHitsASubscription(t *testing.T) {
	bothProtocols(t, func(b *bench, protocol func(*redis.Options)) {
		ctx := context.Background()
		rule := b.proxy.On(Command("subscribe"), StallReply)
		c := b.proxy.Client(protocol)
		sub := c.Subscribe(ctx, "c")
		defer sub.Close()
		<-rule.Fired()
		n, err := b.direct.Publish(ctx, "c", "m").Result()
		assert.NoError(b, err)
		assert.Equal(b, int64(1), n, "subscribers")
		m, err := sub.ReceiveTimeout(ctx, 50*time.Millisecond)
		assert.True(b, timedOut(err), "%v, %v", m, err)
	})
}

// A proxy that is closed while connections are in use leaves nothing behind.
func TestProxyLeavesNothingBehind(t *testing.T) {
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
			assert.True(t, timedOut(err))
		}
		<-held.Fired()
		<-stalled.Fired()
		p.BlackHole(true)
		assert.True(t, timedOut(c.Ping(ctx).Err()))
	})
	goleak.VerifyNone(t, before)
}
