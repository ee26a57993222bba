package testredis

import (
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var incr = redis.NewScript(`return redis.call('INCR', KEYS[1])`)

// once keeps go-redis from sending a command again.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

// runOnce runs incr on the key k.
func runOnce(c *redis.Client) (int, error) {
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
	require.NoError(t, incr.Load(ctx, b.direct).Err())
	return b
}

// executed returns how many times incr has run.
func (b *bench) executed() int {
	b.Helper()
	n, err := b.direct.Get(ctx, "k").Int()
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

func TestDropRequestRunsNothing(t *testing.T) {
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
