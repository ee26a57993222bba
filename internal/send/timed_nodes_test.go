//go:build go1.25

package send

// Bounded calls on the nodes of a Cluster, and through types of the user.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/petermattis/goid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

// A nodesBench is a Sender on a Redis client that is, or embeds, a ClusterClient.
type nodesBench struct {
	*bench
	rdb   *redis.ClusterClient
	timed *Timed
}

// newNodesBench returns a nodesBench whose calls go through outer, which is or embeds rdb.
func newNodesBench(t testing.TB, rdb *redis.ClusterClient, outer redis.UniversalClient) *nodesBench {
	timed := NewTimed(outer)
	require.NotNil(t, timed)
	b := newBench(t, func(c *Config) {
		c.Transport, c.Bounded = NewRedis(outer, Synced{}), timed
		c.Home = func(key string) string { return masterOf(rdb, key).Options().Addr }
		c.Idle = func(key string) int { return int(masterOf(rdb, key).PoolStats().IdleConns) }
	})
	return &nodesBench{b, rdb, timed}
}

func masterOf(rdb *redis.ClusterClient, key string) *redis.Client {
	master, err := rdb.MasterForKey(context.Background(), key)
	if err != nil {
		panic(err)
	}
	return master
}

// keyOn returns the n-th key of the master with this address.
func (b *nodesBench) keyOn(addr string, n int) string {
	for i := 0; ; i++ {
		if key := fmt.Sprintf("key-%d", i); masterOf(b.rdb, key).Options().Addr == addr {
			if n--; n < 0 {
				return key
			}
		}
	}
}

func echoRequestFor(key string) Request {
	r := echoRequest()
	r.Call.Keys = []string{key}
	return r
}

// sendTo sends a request whose caller may send it itself.
func (b *nodesBench) sendTo(ctx context.Context, key string) Answer {
	w := b.wait(ctx)
	w.OnCaller = true
	return b.Do(w, echoRequestFor(key), time.Now())
}

func (b *nodesBench) runBounded(key string) (any, error, bool) {
	return b.timed.RunBounded(context.Background(), time.Now(), echoRequestFor(key).Call)
}

// bounds sends requests until one to the master of key was bounded, and the next one will be.
func (b *nodesBench) bounds(key string) {
	b.t.Helper()
	testredis.Await(b.t, "calls are bounded", 30*time.Second, func() bool {
		require.NoError(b.t, b.sendTo(context.Background(), key).Err)
		w := b.wait(context.Background())
		w.OnCaller = true
		r := echoRequestFor(key)
		if b.timed.Bound() == 0 {
			return false
		}
		_, err, sent := b.runBounded(key)
		_, onCaller := b.mayBound(w, &r, time.Now())
		return sent && err == nil && onCaller
	})
}

// warm has node open five connections.
func warm(t testing.TB, node *redis.Client) {
	var busy []*redis.Conn
	for range 5 {
		conn := node.Conn()
		require.NoError(t, conn.Ping(context.Background()).Err())
		busy = append(busy, conn)
	}
	for _, conn := range busy {
		require.NoError(t, conn.Close())
	}
}

// A proxied is a Cluster each of whose nodes has a proxy.
type proxied struct {
	*testredis.Cluster
	proxies map[string]*testredis.Proxy // by the addresses of the nodes
}

func startProxied(t testing.TB) *proxied {
	c := &proxied{testredis.StartCluster(t, 3, 0), map[string]*testredis.Proxy{}}
	for _, addr := range c.Addrs() {
		c.proxies[addr] = testredis.NewProxy(t, addr)
		require.NoError(t, testredis.Client(t, addr).ScriptLoad(context.Background(), echoing.Source()).Err())
	}
	return c
}

// client returns a client of the Cluster that connects through the proxies, and does not look for another state of the
// Cluster by itself.
func (c *proxied) client(opts ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	return c.Client(append([]func(*redis.ClusterOptions){func(o *redis.ClusterOptions) {
		o.ClusterStateReloadInterval = time.Hour
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			return new(net.Dialer).DialContext(ctx, network, c.proxies["127.0.0.1:"+port].Addr())
		}
	}}, opts...)...)
}

// clusterOn returns a ClusterClient that has been told that the server at addr has all slots.
func clusterOn(t testing.TB, addr string, opts ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	require.NoError(t, testredis.Client(t, addr).ScriptLoad(context.Background(), echoing.Source()).Err())
	o := &redis.ClusterOptions{
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: addr}}}}, nil
		},
		MaintNotificationsConfig: testredis.NoNotifications(),
	}
	for _, opt := range opts {
		opt(o)
	}
	rdb := redis.NewClusterClient(o)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// Hooks on the ClusterClient and on its nodes see every command, in their order, and the caller sends it itself.
func TestHooksOfNodesSeeEveryBoundedCommand(t *testing.T) {
	t.Parallel()
	cluster := startProxied(t)
	ctx := context.Background()
	rdb := cluster.client()
	var seen traces
	rdb.AddHook(traced("cluster", &seen))
	rdb.OnNewNode(func(node *redis.Client) { node.AddHook(traced("node", &seen)) })
	b := newNodesBench(t, rdb, rdb)
	for _, addr := range cluster.Addrs() {
		key := b.keyOn(addr, 0)
		b.bounds(key)
		seen.take()
		assert.NoError(t, b.sendTo(ctx, key).Err)
		assert.Equal(t, []trace{{"cluster", goid.Get()}, {"node", goid.Get()}}, seen.take())
	}
}

// A node that hangs bounds its callers. Only requests under way close their connections, also if other nodes answer.
func TestNodeThatHangsBoundsItsCallers(t *testing.T) {
	t.Parallel()
	cluster := startProxied(t)
	rdb := cluster.client()
	b := newNodesBench(t, rdb, rdb)
	ctx := context.Background()
	hangs, well := b.keyOn(cluster.Addrs()[0], 0), b.keyOn(cluster.Addrs()[1], 0)
	b.bounds(hangs)
	b.bounds(well)
	node := masterOf(rdb, hangs)
	warm(t, node)
	before := node.PoolStats().TotalConns
	require.GreaterOrEqual(t, before, uint32(5))
	b.bounds(hangs) // again: what warm does may take long

	rule := cluster.proxies[cluster.Addrs()[0]].On(testredis.Script(echoing.Digest()), testredis.DelayReply(time.Minute)).
		Times(testredis.Always)
	canceled, cancel := context.WithCancel(ctx)
	time.AfterFunc(boundedTime/10, cancel)
	began := time.Now()
	a := b.sendTo(canceled, hangs)
	assert.ErrorIs(t, a.Err, context.Canceled)
	assert.Less(t, time.Since(began), boundedTime+boundedTime/4+slack)
	assert.False(t, a.Abandoned, "sent by the caller")
	assert.Equal(t, 1, a.Unknown)
	assert.Equal(t, 1, a.Lost)
	for range 3 {
		b.bounds(well) // so Redis is healthy
		soon, cancel := context.WithTimeout(ctx, boundedTime+boundedTime/2)
		a := b.sendTo(soon, hangs)
		cancel()
		assert.ErrorIs(t, a.Err, context.DeadlineExceeded)
		assert.True(t, a.Abandoned, "sent on another goroutine")
	}
	assert.GreaterOrEqual(t, node.PoolStats().TotalConns, before-1)
	rule.Release()
	b.bounds(hangs)
}

// A call that is led to another node was run once.
func TestBoundedCallFollowsASlot(t *testing.T) {
	t.Parallel()
	cluster := startProxied(t)
	nodes, addrs := cluster.Nodes(), cluster.Addrs()
	begin := func(t *testing.T) (b *nodesBench, key string, seen *traces) {
		rdb := cluster.client()
		seen = new(traces)
		rdb.OnNewNode(func(node *redis.Client) { node.AddHook(traced(node.Options().Addr, seen)) })
		b = newNodesBench(t, rdb, rdb)
		b.bounds(b.keyOn(addrs[1], 0))
		key = b.keyOn(addrs[0], 0)
		b.bounds(key)
		seen.take()
		return b, key, seen
	}
	arrives := func(t *testing.T, b *nodesBench, key string) {
		t.Helper()
		answer, err, sent := b.runBounded(key)
		assert.NoError(t, err)
		assert.True(t, sent)
		assert.Equal(t, "1 1 0", answer)
	}
	t.Run("that is being moved", func(t *testing.T) {
		b, key, _ := begin(t)
		defer cluster.BeginMigration(key, nodes[1])()
		arrives(t, b, key)
	})
	t.Run("that has moved", func(t *testing.T) {
		b, key, seen := begin(t)
		cluster.MigrateSlot(key, nodes[1])
		arrives(t, b, key)
		assert.Equal(t, []trace{{addrs[0], goid.Get()}, {addrs[1], goid.Get()}}, seen.take())
	})
	t.Run("to a node that hangs", func(t *testing.T) {
		b, key, seen := begin(t)
		cluster.MigrateSlot(key, nodes[1])
		cluster.proxies[addrs[1]].On(testredis.Script(echoing.Digest()), testredis.DelayReply(time.Minute))
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(boundedTime/10, cancel)
		began := time.Now()
		a := b.sendTo(ctx, key)
		assert.ErrorIs(t, a.Err, context.Canceled)
		assert.Less(t, time.Since(began), 2*boundedTime+slack)
		assert.False(t, a.Abandoned, "sent by the caller")
		assert.Equal(t, 1, a.Unknown, "the answer of the first node is no run")
		assert.Equal(t, 1, a.Lost)
		assert.Equal(t, []trace{{addrs[0], goid.Get()}, {addrs[1], goid.Get()}}, seen.take())
	})
}

// Of a call that a replica refuses, or a node that is closed, go-redis does not make the caller wait for a long pause.
func TestBoundedCallIsNotRepeatedAfterAPause(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, row := range map[string]struct {
		hinder func(node *redis.Client)
		after  func(a Answer)
	}{
		"a replica": {func(node *redis.Client) {
			require.NoError(t, testredis.Client(t, node.Options().Addr).Do(ctx, "replicaof", "127.0.0.1", "1").Err())
		}, func(a Answer) {
			assert.True(t, RefusedWith(a.Err, "READONLY"), "%v", a.Err)
		}},
		"a closed node": {func(node *redis.Client) { require.NoError(t, node.Close()) }, func(a Answer) {
			assert.ErrorIs(t, a.Err, redis.ErrClosed)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testredis.Start(t)
			require.NoError(t, server.Client().ScriptLoad(ctx, takes.Source()).Err())
			rdb := clusterOn(t, server.Addr(), func(o *redis.ClusterOptions) { o.MinRetryBackoff = time.Second })
			var seen traces
			rdb.OnNewNode(func(node *redis.Client) { node.AddHook(traced("", &seen)) })
			b := newNodesBench(t, rdb, rdb)
			b.bounds("a")
			row.hinder(masterOf(rdb, "a"))
			seen.take()
			call := Call{Script: takes, Keys: []string{"a"}}
			began := time.Now()
			_, err, sent := b.timed.RunBounded(ctx, began, call)
			assert.NoError(t, err)
			assert.False(t, sent, "it has not run")
			assert.Less(t, time.Since(began), b.timed.bound+slack)
			assert.Len(t, seen.take(), 1)
			row.after(b.Once(b.wait(ctx), Request{Call: call}))
		})
	}
}

// Calls to a Cluster are bounded unless it waits without a limit, or go-redis asks it for information about commands.
func TestClustersWhoseCallsAreBounded(t *testing.T) {
	for name, row := range map[string]struct {
		opt  func(*redis.ClusterOptions)
		want time.Duration // 0: calls are not bounded
	}{
		"defaults":             {func(*redis.ClusterOptions) {}, boundedTime},
		"a short read timeout": {func(o *redis.ClusterOptions) { o.ReadTimeout = boundedTime / 4 }, boundedTime / 4},
		"no read timeout":      {func(o *redis.ClusterOptions) { o.ReadTimeout = -1 }, 0},
		"no deadlines":         {func(o *redis.ClusterOptions) { o.ReadTimeout = -2 }, 0},
		"no write deadlines":   {func(o *redis.ClusterOptions) { o.WriteTimeout = -2 }, 0},
		"replicas":             {func(o *redis.ClusterOptions) { o.ReadOnly = true }, 0},
		"the nearest node":     {func(o *redis.ClusterOptions) { o.RouteByLatency = true }, 0},
	} {
		o := &redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}}
		row.opt(o)
		rdb := redis.NewClusterClient(o)
		timed := NewTimed(rdb)
		if assert.Equal(t, row.want != 0, timed != nil, name) && timed != nil {
			assert.Equal(t, row.want, timed.Bound(), name)
		}
		assert.NoError(t, rdb.Close())
	}
}

// No call asks a Cluster for information about commands, which its caller would wait for.
func TestNoCallAsksForInformationAboutCommands(t *testing.T) {
	rdb := clusterOn(t, testredis.Mini(t).Addr())
	var asked atomic.Int64
	rdb.OnNewNode(func(node *redis.Client) {
		node.AddHook(userHook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			if cmd.Name() == "command" {
				asked.Add(1)
			}
			return next(ctx, cmd)
		}))
	})
	newNodesBench(t, rdb, rdb).bounds("a")
	assert.Zero(t, asked.Load())
}

// Types of users that embed those of go-redis.
type (
	ownClient  struct{ *redis.Client }
	ownCluster struct{ *redis.ClusterClient }
	ownAny     struct{ redis.UniversalClient }
	hidden     struct{ *ownClient }
	ownHidden  struct{ hidden }
	ownRing    struct{ *redis.Ring }
)

// An ownProcess is a type of a user with a Process of its own.
type ownProcess struct {
	redis.UniversalClient
	process func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error
}

func (o *ownProcess) Process(ctx context.Context, cmd redis.Cmder) error {
	return o.process(ctx, cmd, o.UniversalClient.Process)
}

// The calls of a type that embeds a client of go-redis go through its own methods, and are bounded.
func TestBoundedCallsOfTypesOfUsers(t *testing.T) {
	addr := testredis.Mini(t).Addr()
	for name, embed := range map[string]func(one *redis.Client) redis.UniversalClient{
		"a struct":         func(one *redis.Client) redis.UniversalClient { return ownClient{one} },
		"a pointer":        func(one *redis.Client) redis.UniversalClient { return &ownClient{one} },
		"a hidden struct":  func(one *redis.Client) redis.UniversalClient { return ownHidden{hidden{&ownClient{one}}} },
		"an interface":     func(one *redis.Client) redis.UniversalClient { return ownAny{one} },
		"several of these": func(one *redis.Client) redis.UniversalClient { return &ownAny{&ownClient{one}} },
	} {
		t.Run(name, func(t *testing.T) {
			rdb := testredis.Client(t, addr)
			var seen traces
			outer := &ownProcess{embed(rdb), traced("own", &seen)}
			rdb.AddHook(traced("hook", &seen))
			b := timedBenchThrough(t, outer)
			b.bounds()
			seen.take()
			assert.NoError(t, b.send(context.Background()).Err)
			assert.Equal(t, []trace{{"own", goid.Get()}, {"hook", goid.Get()}}, seen.take())
		})
	}
	for name, embed := range map[string]func(cluster *redis.ClusterClient) redis.UniversalClient{
		"a struct with a ClusterClient": func(c *redis.ClusterClient) redis.UniversalClient { return &ownCluster{c} },
		"an interface to one":           func(c *redis.ClusterClient) redis.UniversalClient { return ownAny{ownCluster{c}} },
	} {
		t.Run(name, func(t *testing.T) {
			rdb := clusterOn(t, addr)
			var seen traces
			b := newNodesBench(t, rdb, &ownProcess{embed(rdb), traced("own", &seen)})
			rdb.AddHook(traced("hook", &seen))
			b.bounds("a")
			seen.take()
			assert.NoError(t, b.sendTo(context.Background(), "a").Err)
			assert.Equal(t, []trace{{"own", goid.Get()}, {"hook", goid.Get()}}, seen.take())
		})
	}
}

// No call to a client whose options are not known is bounded.
func TestClientsWhoseCallsAreNotBounded(t *testing.T) {
	one := testredis.Client(t, "127.0.0.1:1")
	ring := redis.NewRing(&redis.RingOptions{HeartbeatFrequency: time.Hour})
	auto, err := one.AutoPipeline()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, errors.Join(auto.Close(), ring.Close())) })
	for _, rdb := range []redis.UniversalClient{ring, ownRing{ring}, ownAny{ring}, ownAny{}, nil, auto} {
		assert.Nil(t, NewTimed(rdb), "%T", rdb)
	}
}

// No call of a type is bounded whose Process sends other commands in place of those that it is given.
func TestProcessWithOtherCommandsEndsBounds(t *testing.T) {
	t.Parallel()
	for _, onCluster := range []bool{false, true} {
		p := testredis.NewProxy(t, testredis.Start(t).Addr())
		rdb := redis.UniversalClient(testredis.Client(t, p.Addr()))
		if onCluster {
			rdb = clusterOn(t, p.Addr())
		}
		outer := &ownProcess{rdb, func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			other := redis.NewCmd(ctx, cmd.Args()...)
			err := next(ctx, other)
			if value, err := other.Result(); err == nil {
				cmd.(interface{ SetVal(any) }).SetVal(value)
			}
			return err
		}}
		b := timedBenchThrough(t, outer)
		testredis.Await(t, "calls are not bounded", rideOut, func() bool {
			require.NoError(t, b.send(context.Background()).Err)
			return b.timed.Bound() == 0
		})
		assert.True(t, b.stalls(p).Abandoned, "sent on another goroutine")
	}
}

// The error of a Process that does not call that of go-redis is the error of the call.
func TestErrorOfAProcessOfTheUser(t *testing.T) {
	open := errors.New("the circuit is open")
	rdb := testredis.Client(t, "127.0.0.1:1")
	outer := &ownProcess{rdb, func(context.Context, redis.Cmder, redis.ProcessHook) error { return open }}
	ctx := context.Background()
	_, err := NewRedis(outer, Synced{}).Run(ctx, echoRequest().Call, false)
	assert.ErrorIs(t, err, open)
	_, err, sent := NewTimed(outer).RunBounded(ctx, time.Now(), echoRequest().Call)
	assert.True(t, sent)
	assert.ErrorIs(t, err, open)
}
