//go:build go1.25

package send

// Bounded calls on the nodes of a Cluster, and through types of the user.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/petermattis/goid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

// A nodesBench is a Sender on a Redis client that is, or embeds, a ClusterClient.
type nodesBench struct {
	*bench
	rdb    *redis.ClusterClient
	prompt *Prompt
}

// newNodesBench returns a nodesBench whose calls go through outer, which is or embeds rdb.
func newNodesBench(t testing.TB, rdb *redis.ClusterClient, outer redis.UniversalClient) *nodesBench {
	p := NewPrompt(outer, outer)
	require.NotNil(t, p)
	p.limit.d = rideOut // a busy machine is no reason to go another way
	b := newBench(t, func(c *Config) {
		c.Transport, c.Bounded = p, p
		c.Home = func(key string) string { return masterOf(rdb, key).Options().Addr }
		c.Idle = func(key string) int { return int(masterOf(rdb, key).PoolStats().IdleConns) }
	})
	p.Spawn = b.config.Spawn
	return &nodesBench{b, rdb, p}
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
	return b.prompt.RunBounded(context.Background(), time.Now(), echoRequestFor(key).Call)
}

// bounds sends requests until one to the master of key was bounded, and the next one will be.
func (b *nodesBench) bounds(key string) {
	b.t.Helper()
	testredis.Await(b.t, "calls are bounded", 30*time.Second, func() bool {
		require.NoError(b.t, b.sendTo(context.Background(), key).Err)
		w := b.wait(context.Background())
		w.OnCaller = true
		r := echoRequestFor(key)
		if b.prompt.Bound() == 0 {
			return false
		}
		_, err, sent := b.runBounded(key)
		return sent && err == nil && b.mayBound(w, &r, time.Now())
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

// Hooks on the ClusterClient and on its nodes, added before and after ours, see every command, in their order, and the
// caller sends it itself. The nodes may have been made before.
func TestHooksOfNodesSeeEveryBoundedCommand(t *testing.T) {
	t.Parallel()
	cluster := startProxied(t)
	ctx := context.Background()
	for name, used := range map[string]bool{"new nodes": false, "nodes in use": true} {
		t.Run(name, func(t *testing.T) {
			rdb := cluster.client()
			var seen traces
			rdb.AddHook(traced("cluster", &seen))
			rdb.OnNewNode(func(node *redis.Client) { node.AddHook(traced("node", &seen)) })
			if used {
				require.NoError(t, rdb.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
					return node.Ping(ctx).Err()
				}))
			}
			b := newNodesBench(t, rdb, rdb)
			rdb.OnNewNode(func(node *redis.Client) { node.AddHook(traced("later node", &seen)) })
			check := func(key string, hooks ...string) {
				t.Helper()
				b.bounds(key)
				seen.take()
				assert.NoError(t, b.sendTo(ctx, key).Err)
				var want []trace
				for _, name := range hooks {
					want = append(want, trace{name, goid.Get()})
				}
				assert.Equal(t, want, seen.take())
			}
			onNode := []string{"node", "later node"}
			if used {
				onNode = []string{"node"}
			}
			for _, addr := range cluster.Addrs() {
				key := b.keyOn(addr, 0)
				check(key, append([]string{"cluster"}, onNode...)...)
				masterOf(rdb, key).AddHook(traced("last", &seen))
				seen.take()
				require.NoError(t, b.sendTo(ctx, key).Err)
				var names []string
				for _, one := range seen.take() {
					names = append(names, one.hook)
				}
				want := append(append([]string{"cluster"}, onNode...), "last")
				assert.Equal(t, want, names[len(names)-len(want):], "while our hook is being added again")
				check(key, want...)
			}
			rdb.AddHook(traced("later cluster", &seen))
			for _, addr := range cluster.Addrs() {
				check(b.keyOn(addr, 0), append(append([]string{"cluster", "later cluster"}, onNode...), "last")...)
			}
		})
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

	rule := cluster.proxies[cluster.Addrs()[0]].On(testredis.Script(echoing.Digest()), testredis.DelayReply(time.Minute)).
		Times(testredis.Always)
	canceled, cancel := context.WithCancel(ctx)
	time.AfterFunc(promptTime/10, cancel)
	began := time.Now()
	a := b.sendTo(canceled, hangs)
	assert.ErrorIs(t, a.Err, context.Canceled)
	assert.Less(t, time.Since(began), promptTime+promptTime/4+slack)
	assert.False(t, a.Abandoned, "sent by the caller")
	assert.Equal(t, 1, a.Unknown)
	assert.Equal(t, 1, a.Lost)
	for range 3 {
		b.bounds(well) // so Redis is healthy
		soon, cancel := context.WithTimeout(ctx, promptTime+promptTime/2)
		a := b.sendTo(soon, hangs)
		cancel()
		assert.ErrorIs(t, a.Err, context.DeadlineExceeded)
		assert.True(t, a.Abandoned, "sent on another goroutine")
	}
	assert.GreaterOrEqual(t, node.PoolStats().TotalConns, before-1)
	rule.Release()
	b.bounds(hangs)
}

// After MOVED the same call reaches another node, within the same time, and was run once.
func TestBoundedCallFollowsASlot(t *testing.T) {
	t.Parallel()
	cluster := startProxied(t)
	nodes := cluster.Nodes()
	addrs := cluster.Addrs()
	ctx := context.Background()
	// A client that knows all nodes, and the old master of a slot that has moved from the first to the second node.
	moved := func(t *testing.T, n int, opts ...func(*redis.ClusterOptions)) (b *nodesBench, key string, seen *traces) {
		rdb := cluster.client(opts...)
		seen = new(traces)
		rdb.OnNewNode(func(node *redis.Client) { node.AddHook(traced(node.Options().Addr, seen)) })
		b = newNodesBench(t, rdb, rdb)
		key = b.keyOn(addrs[0], n)
		cluster.MigrateSlot(key, nodes[1])
		b.bounds(b.keyOn(addrs[0], 100))
		if len(opts) == 0 { // go-redis, which reloads the state beside the call, may need one of them
			warm(t, masterOf(rdb, b.keyOn(addrs[1], 0)))
		}
		return b, key, seen
	}
	another := func(t *testing.T, b *nodesBench, key string) { // the caller does not send it itself
		t.Helper()
		_, err, sent := b.runBounded(key)
		assert.NoError(t, err)
		assert.False(t, sent)
	}
	arrives := func(t *testing.T, b *nodesBench, key string) {
		t.Helper()
		a := b.sendTo(ctx, key)
		assert.NoError(t, a.Err)
		assert.Zero(t, a.Unknown)
	}
	t.Run("to a node that is proven", func(t *testing.T) {
		b, key, seen := moved(t, 0)
		b.bounds(b.keyOn(addrs[1], 0))
		seen.take()
		answer, err, sent := b.runBounded(key)
		assert.NoError(t, err)
		assert.True(t, sent)
		assert.Equal(t, "1 1 0", answer)
		assert.Equal(t, []trace{{addrs[0], goid.Get()}, {addrs[1], goid.Get()}}, seen.take())
	})
	t.Run("to a node that hangs", func(t *testing.T) {
		b, key, seen := moved(t, 0)
		masterOf(b.rdb, key).AddHook(new(counter)) // the hooks of the two nodes have different numbers
		b.bounds(b.keyOn(addrs[0], 100))
		b.bounds(b.keyOn(addrs[1], 0))
		seen.take()
		cluster.proxies[addrs[1]].On(testredis.Script(echoing.Digest()), testredis.DelayReply(time.Minute))
		canceled, cancel := context.WithCancel(ctx)
		time.AfterFunc(promptTime/10, cancel)
		began := time.Now()
		a := b.sendTo(canceled, key)
		assert.ErrorIs(t, a.Err, context.Canceled)
		assert.Less(t, time.Since(began), promptTime+promptTime/4+slack)
		assert.False(t, a.Abandoned, "sent by the caller")
		assert.Equal(t, 1, a.Unknown, "the answer of the first node is no run")
		assert.Equal(t, 1, a.Lost)
		assert.Equal(t, []trace{{addrs[0], goid.Get()}, {addrs[1], goid.Get()}}, seen.take())
	})
	t.Run("when the time is up", func(t *testing.T) {
		rdb := cluster.client()
		var late atomic.Bool
		rdb.OnNewNode(func(node *redis.Client) {
			node.AddHook(userHook(func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
				if node.Options().Addr == addrs[1] && late.Load() && cmd.Name() == "evalsha" {
					time.Sleep(promptTime + promptTime/4)
				}
				return next(ctx, cmd)
			}))
		})
		b := newNodesBench(t, rdb, rdb)
		b.prompt.limit.d = b.prompt.bound / 5
		key := b.keyOn(addrs[0], 0)
		cluster.MigrateSlot(key, nodes[1])
		b.bounds(b.keyOn(addrs[0], 100))
		b.bounds(b.keyOn(addrs[1], 0))
		arrived := cluster.proxies[addrs[1]].On(testredis.Script(echoing.Digest()), testredis.DelayReply(0))
		late.Store(true)
		another(t, b, key)
		assert.Zero(t, arrived.Count())
		late.Store(false)
		require.NoError(t, b.sendTo(ctx, key).Err)
	})
	t.Run("to a node to which our hook was added again", func(t *testing.T) {
		b, key, _ := moved(t, 0)
		masterOf(b.rdb, b.keyOn(addrs[1], 0)).AddHook(new(counter))
		b.bounds(b.keyOn(addrs[1], 0))
		another(t, b, key) // which of the hooks is the last one is not known there
		arrives(t, b, key)
	})
	t.Run("to a node without an idle connection", func(t *testing.T) {
		b, key, seen := moved(t, 0, func(o *redis.ClusterOptions) { o.PoolSize = 1 })
		b.bounds(b.keyOn(addrs[1], 0))
		conn := masterOf(b.rdb, b.keyOn(addrs[1], 0)).Conn()
		require.NoError(t, conn.Ping(ctx).Err())
		seen.take()
		began := time.Now()
		another(t, b, key)
		assert.Less(t, time.Since(began), b.prompt.limit.d, "without a wait")
		assert.Equal(t, []trace{{addrs[0], goid.Get()}, {addrs[1], goid.Get()}}, seen.take())
		require.NoError(t, conn.Close())
		arrives(t, b, key)
	})
	t.Run("to a node that is not proven", func(t *testing.T) {
		b, key, seen := moved(t, 0)
		seen.take()
		another(t, b, key)
		assert.Equal(t, []trace{{addrs[0], goid.Get()}}, seen.take())
		assert.True(t, b.prompt.seatFor(key).proven.Load(), "nothing speaks against the first node")
		arrives(t, b, key)
		b.bounds(key)
	})
	t.Run("a slot that is being moved", func(t *testing.T) {
		rdb := cluster.client()
		var seen traces
		rdb.OnNewNode(func(node *redis.Client) { node.AddHook(traced(node.Options().Addr, &seen)) })
		b := newNodesBench(t, rdb, rdb)
		key := b.keyOn(addrs[0], 1)
		b.bounds(key)
		finish := cluster.BeginMigration(key, nodes[1])
		defer finish()
		seen.take()
		began := time.Now()
		another(t, b, key)
		assert.Less(t, time.Since(began), b.prompt.bound+slack)
		assert.Equal(t, []trace{{addrs[0], goid.Get()}}, seen.take())
		arrives(t, b, key)
	})
}

// A node that go-redis makes later has our hook before a call reaches it.
func TestNodeThatIsMadeLaterHasOurHook(t *testing.T) {
	t.Parallel()
	cluster := startProxied(t)
	addrs := cluster.Addrs()
	var last atomic.Int64 // the index of the last node that go-redis knows
	rdb := cluster.client(func(o *redis.ClusterOptions) {
		o.ClusterSlots = func(context.Context) ([]redis.ClusterSlot, error) {
			slots := []redis.ClusterSlot{
				{Start: 0, End: 16384/3 - 1, Nodes: []redis.ClusterNode{{Addr: addrs[0]}}},
				{Start: 16384 / 3, End: 16383, Nodes: []redis.ClusterNode{{Addr: addrs[last.Load()]}}},
			}
			return slots, nil
		}
	})
	b := newNodesBench(t, rdb, rdb)
	var made atomic.Int64
	rdb.OnNewNode(func(node *redis.Client) {
		if s := seatIn(node); assert.NotNil(t, s) {
			assert.EqualValues(t, 1, s.last.Load())
			made.Add(1)
		}
	})
	own, foreign := "", ""
	for i := 0; own == "" || foreign == ""; i++ {
		key := fmt.Sprintf("key-%d", i)
		switch cluster.MasterOf(key).Addr() {
		case addrs[0]:
			own = key
		case addrs[1]:
			foreign = key
		}
	}
	b.bounds(own)
	require.EqualValues(t, 1, made.Load())
	_, err, sent := b.runBounded(foreign) // its node is unknown to go-redis
	assert.NoError(t, err)
	assert.False(t, sent)
	require.EqualValues(t, 1, made.Load())
	last.Store(1)
	require.NoError(t, b.sendTo(context.Background(), foreign).Err) // go-redis makes the node
	require.Greater(t, made.Load(), int64(1))
	b.bounds(foreign)
}

// Of a call that a replica refuses, or a node that is closed, go-redis would not make the caller wait for a pause.
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
			_, err, sent := b.prompt.RunBounded(ctx, began, call)
			assert.NoError(t, err)
			assert.False(t, sent)
			assert.Less(t, time.Since(began), b.prompt.bound+slack)
			assert.Len(t, seen.take(), 1)
			row.after(b.Once(b.wait(ctx), Request{Call: call}))
		})
	}
}

// A ClusterClient has one hook of ours on each node, however many Prompts there are on it.
func TestNodeHasOneHook(t *testing.T) {
	rdb := clusterOn(t, testredis.Mini(t).Addr())
	first, second := newNodesBench(t, rdb, rdb), newNodesBench(t, rdb, ownAny{rdb})
	assert.Same(t, first.prompt.nodes, second.prompt.nodes)
	first.bounds("a")
	second.bounds("a")
	newNodesBench(t, rdb, &ownCluster{rdb}).bounds("a")
	node := masterOf(rdb, "a")
	first.prompt.nodes.add(node)
	assert.Same(t, seatIn(node), NewPrompt(node, node).seat)
	first.bounds("a")
	assert.EqualValues(t, 1, seatIn(node).last.Load())
}

// A ClusterClient that was dropped is collected, although it has our hook added to its nodes. A timer of go-redis holds
// it for a minute.
func TestDroppedClusterClientIsCollected(t *testing.T) {
	t.Parallel()
	testredis.OnlyLong(t)
	addr := testredis.Mini(t).Addr()
	drop := func() weak.Pointer[redis.ClusterClient] {
		rdb := redis.NewClusterClient(clusterOn(t, addr).Options())
		newNodesBench(t, rdb, rdb).bounds("a")
		return weak.Make(rdb)
	}
	rdb := drop()
	testredis.Await(t, "the client is collected", 3*time.Minute, func() bool {
		runtime.GC()
		_, found := clusters.Load(rdb)
		return rdb.Value() == nil && !found
	})
}

// A Redis client with client-side caching that was dropped is collected, and go-redis stops its goroutine. Its calls
// are bounded, but not on a Cluster.
func TestDroppedClientWithACacheIsCollected(t *testing.T) {
	t.Parallel()
	addr := testredis.Start(t).Addr()
	cached := func(o *redis.Options) *redis.Client {
		o.Protocol, o.ClientSideCacheConfig = 3, &redis.ClientSideCacheConfig{}
		o.MaintNotificationsConfig = testredis.NoNotifications()
		return redis.NewClient(o)
	}
	dropOne := func() weak.Pointer[redis.Client] {
		rdb := cached(&redis.Options{Addr: addr})
		b := newPromptBench(t, rdb)
		b.bounds()
		return weak.Make(rdb)
	}
	cluster := clusterOn(t, addr, func(o *redis.ClusterOptions) { o.NewClient = cached })
	b := newNodesBench(t, cluster, cluster)
	for range 20 {
		require.NoError(t, b.sendTo(context.Background(), "a").Err)
		assert.Zero(t, b.prompt.Bound())
	}
	rdb := dropOne()
	testredis.Await(t, "the client is collected", 30*time.Second, func() bool {
		runtime.GC()
		return rdb.Value() == nil
	})
}

// Calls to a Cluster are bounded unless it sets no deadlines, or go-redis asks it for information about commands.
func TestClustersWhoseCallsAreBounded(t *testing.T) {
	for name, row := range map[string]struct {
		opt  func(*redis.ClusterOptions)
		want time.Duration // 0: calls are not bounded
	}{
		"defaults":             {func(*redis.ClusterOptions) {}, promptTime},
		"a short read timeout": {func(o *redis.ClusterOptions) { o.ReadTimeout = promptTime / 4 }, promptTime / 4},
		"no read timeout":      {func(o *redis.ClusterOptions) { o.ReadTimeout = -1 }, promptTime},
		"no deadlines":         {func(o *redis.ClusterOptions) { o.ReadTimeout = -2 }, 0},
		"no write deadlines":   {func(o *redis.ClusterOptions) { o.WriteTimeout = -2 }, 0},
		"replicas":             {func(o *redis.ClusterOptions) { o.ReadOnly = true }, 0},
		"the nearest node":     {func(o *redis.ClusterOptions) { o.RouteByLatency = true }, 0},
	} {
		o := &redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}}
		row.opt(o)
		rdb := redis.NewClusterClient(o)
		p := NewPrompt(rdb, rdb)
		if assert.Equal(t, row.want != 0, p != nil, name) && p != nil {
			assert.Equal(t, row.want, p.bound, name)
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
			b := promptBenchThrough(t, outer)
			assert.Same(t, seatIn(rdb), b.prompt.seat)
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

// A withOptions has the options of another client than the one that it embeds.
type withOptions struct {
	*redis.Client
	options *redis.Options
}

func (w withOptions) Options() *redis.Options { return w.options }

// Only what is, or embeds, a single client or a ClusterClient is one.
func TestInside(t *testing.T) {
	one, other := testredis.Client(t, "127.0.0.1:1"), testredis.Client(t, "127.0.0.1:1")
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	ring := redis.NewRing(&redis.RingOptions{HeartbeatFrequency: time.Hour})
	auto, err := one.AutoPipeline()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, errors.Join(auto.Close(), cluster.Close(), ring.Close())) })
	for _, rdb := range []redis.UniversalClient{one, ownClient{one}, &ownAny{ownHidden{hidden{&ownClient{one}}}}} {
		single, many := inside(rdb)
		assert.Same(t, one, single, "%T", rdb)
		assert.Nil(t, many, "%T", rdb)
	}
	for _, rdb := range []redis.UniversalClient{cluster, &ownCluster{cluster}, ownAny{&ownAny{cluster}}} {
		single, many := inside(rdb)
		assert.Nil(t, single, "%T", rdb)
		assert.Same(t, cluster, many, "%T", rdb)
	}
	for _, rdb := range []redis.UniversalClient{
		ring, ownRing{ring}, ownAny{ring}, ownAny{}, nil, auto, withOptions{one, other.Options()},
	} {
		single, many := inside(rdb)
		assert.Nil(t, single, "%T", rdb)
		assert.Nil(t, many, "%T", rdb)
		assert.True(t, rdb == redis.UniversalClient(nil) || rdb == (ownAny{}) || NewPrompt(rdb, rdb) == nil, "%T", rdb)
	}
}

// A caller whose context is canceled leaves within the bound, whatever the Process of a type of the user does.
func TestBoundHoldsWhateverTypesOfUsersDo(t *testing.T) {
	t.Parallel()
	another := func(with func(context.Context) context.Context) userHook {
		return func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			other := redis.NewCmd(ctx, cmd.Args()...)
			err := next(with(ctx), other)
			if value, err := other.Result(); err == nil {
				cmd.(interface{ SetVal(any) }).SetVal(value)
			}
			return err
		}
	}
	same := func(ctx context.Context) context.Context { return ctx }
	none := func(context.Context) context.Context { return context.Background() }
	for name, row := range map[string]struct {
		process userHook // once does is set
		always  bool     // it is set from the beginning
		bounded bool     // the caller still sends the call itself
	}{
		"nothing": {bounded: true, process: func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			return next(ctx, cmd)
		}},
		"another ctx": {bounded: true, process: func(_ context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
			return next(context.Background(), cmd)
		}},
		"another command":            {process: another(same)},
		"always another command":     {process: another(same), always: true},
		"always another ctx as well": {process: another(none), always: true},
	} {
		for _, onCluster := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/cluster %v", name, onCluster), func(t *testing.T) {
				t.Parallel()
				p := testredis.NewProxy(t, testredis.Start(t).Addr())
				var does atomic.Bool
				does.Store(row.always)
				process := func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
					if does.Load() && cmd.Name() == "evalsha" {
						return row.process(ctx, cmd, next)
					}
					return next(ctx, cmd)
				}
				rdb := redis.UniversalClient(testredis.Client(t, p.Addr()))
				if onCluster {
					rdb = clusterOn(t, p.Addr())
				}
				b := promptBenchThrough(t, &ownProcess{rdb, process})
				if row.always {
					for range 50 {
						require.NoError(t, b.send(context.Background()).Err)
						require.Zero(t, b.prompt.Bound())
					}
				} else {
					b.bounds()
				}
				does.Store(true)
				a := b.stalls(p)
				assert.Equal(t, row.bounded, !a.Abandoned, "sent by the caller")
			})
		}
	}
}

// The calls of a type that leads its commands elsewhere are not bounded.
func TestCallsThatDoNotReachOurHookAreNotBounded(t *testing.T) {
	addr := testredis.Mini(t).Addr()
	one, cluster := testredis.Client(t, addr), clusterOn(t, addr)
	elsewhere := testredis.Client(t, addr)
	auto, err := one.AutoPipeline()
	require.NoError(t, err)
	defer func() { assert.NoError(t, auto.Close()) }()
	for name, to := range map[string]interface {
		Process(context.Context, redis.Cmder) error
	}{"another client": elsewhere, "an AutoPipeliner": auto} {
		for _, rdb := range []redis.UniversalClient{one, cluster} {
			outer := &ownProcess{rdb, func(ctx context.Context, cmd redis.Cmder, _ redis.ProcessHook) error {
				return to.Process(ctx, cmd)
			}}
			b := promptBenchThrough(t, outer)
			b.config.Idle = func(string) int { return 1 }
			for range 50 {
				require.NoError(t, b.send(context.Background()).Err)
				assert.Zero(t, b.prompt.Bound(), "%s, %T", name, rdb)
			}
		}
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
	p := NewPrompt(outer, outer)
	p.Spawn = func(f func()) { f() }
	p.proven.Store(true)
	p.seat.proven.Store(true)
	_, err, sent := p.RunBounded(ctx, time.Now(), echoRequest().Call)
	assert.True(t, sent)
	assert.ErrorIs(t, err, open)
	assert.Zero(t, p.Bound())
}

// An ownSubscribe is a type of a user with a Subscribe of its own.
type ownSubscribe struct {
	redis.UniversalClient
	called int
}

func (o *ownSubscribe) Subscribe(ctx context.Context, channels ...string) *redis.PubSub {
	o.called++
	return o.UniversalClient.Subscribe(ctx, channels...)
}

// The Finite on a type with a Subscribe of its own calls that.
func TestFiniteCallsTheSubscribeOfTheUser(t *testing.T) {
	outer := &ownSubscribe{UniversalClient: testredis.Client(t, "127.0.0.1:1", withoutReadTimeout)}
	assert.NoError(t, NewFinite(outer).Subscribe(context.Background()).Close())
	assert.Equal(t, 1, outer.called)
}

// A type that embeds a client without a read timeout has a Finite, whose requests go through its methods.
func TestFiniteOfATypeOfTheUser(t *testing.T) {
	for name, send := range waysToSend {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			proxy := testredis.NewProxy(t, testredis.Mini(t).Addr())
			rdb := proxy.Client(withoutReadTimeout)
			var own atomic.Int64
			outer := &ownProcess{ownClient{rdb}, func(ctx context.Context, cmd redis.Cmder, next redis.ProcessHook) error {
				own.Add(1)
				return next(ctx, cmd)
			}}
			f := NewFinite(outer)
			require.NotNil(t, f)
			f.clone, f.Spawn = rdb.WithTimeout(200*time.Millisecond), func(f func()) { go f() }
			assert.Same(t, seatIn(rdb), f.seat)
			one, _ := OptionsOf(f)
			assert.Same(t, rdb.Options(), one)
			require.Equal(t, redis.Nil, send(ctx, f))
			proxy.On(testredis.Command("get"), testredis.StallReply)
			assert.Error(t, ends(t, func() error { return send(ctx, f) }))
			testredis.Await(t, "the connection is free again", rideOut, func() bool { return send(ctx, f) == redis.Nil })
			assert.Equal(t, name == "alone", own.Load() > 0)
		})
	}
}

// If the state of a Cluster cannot be loaded, a call waits for that no longer than its context allows, also if Redis has
// answered an earlier call with an error.
func TestCallDoesNotWaitForTheStateOfACluster(t *testing.T) {
	t.Parallel()
	var loads atomic.Int64
	release := make(chan struct{})
	defer close(release)
	rdb := clusterOn(t, testredis.Mini(t).Addr(), func(o *redis.ClusterOptions) {
		o.ClusterSlots = func(ctx context.Context) ([]redis.ClusterSlot, error) {
			if loads.Add(1) == 1 {
				return nil, refusal("NOPERM the user may not ask for the slots")
			}
			select {
			case <-ctx.Done():
			case <-release:
			}
			return nil, context.DeadlineExceeded
		}
	})
	b := newNodesBench(t, rdb, rdb)
	for range 3 {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		began := time.Now()
		_, err := b.prompt.Run(ctx, echoRequestFor("x").Call, false)
		cancel()
		assert.Error(t, err)
		assert.Less(t, time.Since(began), testredis.Scale(began, 2*time.Second))
	}
}
