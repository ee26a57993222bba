package relock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Types of users that embed those of go-redis.
type (
	ownClient  struct{ *redis.Client }
	ownCluster struct{ *redis.ClusterClient }
	ownRing    struct{ *redis.Ring }
	ownAny     struct{ redis.UniversalClient }
)

// withSlots returns a ClusterClient that is told which servers have the slots, and asks no server for that. The client
// of redis.NewFailoverClusterClient is such a client; its Close leaves a goroutine of go-redis behind.
func withSlots(t testing.TB, nodes func(ctx context.Context) ([]redis.ClusterNode, error)) *redis.ClusterClient {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		RouteRandomly: true,
		ClusterSlots: func(ctx context.Context) ([]redis.ClusterSlot, error) {
			all, err := nodes(ctx)
			return []redis.ClusterSlot{{End: 16383, Nodes: all}}, err
		},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// clusterClient returns a ClusterClient for the server at addr, which has all slots.
func clusterClient(t testing.TB, addr string) *redis.ClusterClient {
	return withSlots(t, func(context.Context) ([]redis.ClusterNode, error) {
		return []redis.ClusterNode{{Addr: addr}}, nil
	})
}

// autoPipeliner returns the AutoPipeliner of rdb.
func autoPipeliner(t testing.TB, rdb redis.UniversalClient) *redis.AutoPipeliner {
	auto, err := rdb.AutoPipeline()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, auto.Close()) })
	return auto
}

// deferredPipeliner returns the AutoPipeliner of rdb that returns before the answer is there.
func deferredPipeliner(t testing.TB, rdb redis.UniversalClient) *redis.AutoPipeliner {
	auto, err := rdb.AsyncAutoPipeline()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, auto.Close()) })
	return auto
}

// clientsOf returns Redis clients of every kind for one server that has all slots.
func clientsOf(t testing.TB, addr string, inCluster bool) map[string]redis.UniversalClient {
	all := map[string]redis.UniversalClient{
		"ClusterClient that knows slots":   clusterClient(t, addr),
		"type with a ClusterClient":        &ownCluster{clusterClient(t, addr)},
		"type with an interface":           ownAny{&ownAny{clusterClient(t, addr)}},
		"AutoPipeliner of a Client":        autoPipeliner(t, testredis.Client(t, addr)),
		"AutoPipeliner of a ClusterClient": autoPipeliner(t, clusterClient(t, addr)),
	}
	if inCluster { // for which a Client is not meant
		asks := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, Protocol: 2})
		t.Cleanup(func() { assert.NoError(t, asks.Close()) })
		all["ClusterClient that asks for slots"] = asks
	} else {
		all["Client"] = testredis.Client(t, addr)
		all["type with a Client"] = ownClient{testredis.Client(t, addr)}
	}
	return all
}

// onServersOfBothModes runs test on a server that is in Cluster mode, and on one that is not.
func onServersOfBothModes(t *testing.T, test func(t *testing.T, addr string, inCluster bool)) {
	t.Run("in Cluster mode", func(t *testing.T) {
		t.Parallel()
		test(t, testredis.StartCluster(t, 1, 0).Client().Options().Addrs[0], true)
	})
	t.Run("not in Cluster mode", func(t *testing.T) {
		t.Parallel()
		test(t, testredis.Start(t).Addr(), false)
	})
}

// clientsOn returns a Client, which only messages can notify in time, on each of the given Redis clients.
func (b *bench) clientsOn(all map[string]redis.UniversalClient) map[string]*Client {
	clients := make(map[string]*Client)
	for name, rdb := range all {
		clients[name] = b.clientOn(rdb, WithPollInterval(time.Hour))
	}
	return clients
}

// passes has a lock pass from the Client that holds it to the one that waits, which Inspect shows to the holder.
func (b *bench) passes(kind lockKind, what string, holds, waits *Client) {
	b.Helper()
	ctx, owner := ContextWithOwner(context.Background()), ContextWithOwner(context.Background())
	name := b.name + what
	l, rival := kind.one(holds, name), kind.rival(waits, name)
	b.must(l.Lock(ctx))
	got := make(chan error, 1)
	go func() { got <- rival.Lock(owner) }()
	testredis.Await(b, what+": the waiter listens", soon, func() bool {
		if _, reader := rival.(*ReadLock); reader { // it is not in the wait queue
			return waits.engine.Hub().IsConfirmed(record.PrefixName("redisson_rwlock", name))
		}
		i, err := holds.Inspect(ctx, name)
		b.must(err)
		return len(i.Waiters) == 1 && i.Waiters[0].Reachable == ReachableYes
	})
	b.must(l.Unlock(ctx))
	b.must(await(b, what+": the waiter gets the lock", got))
	b.must(rival.Unlock(owner))
}

// Clients of every kind hear of the releases of all others, on a server of either mode.
func TestClientsOfEveryKindNotifyEachOther(t *testing.T) {
	t.Parallel()
	onServersOfBothModes(t, func(t *testing.T, addr string, inCluster bool) {
		b := newBench(t, addr)
		hold, wait := b.clientsOn(clientsOf(t, addr, inCluster)), b.clientsOn(clientsOf(t, addr, inCluster))
		for _, kind := range recordLocks {
			for from, holds := range hold {
				for to, waits := range wait {
					b.passes(kind, kind.name+", "+from+", "+to, holds, waits)
				}
			}
		}
	})
}

// No client starves while clients of other kinds want the same lock all the time.
func TestNoKindOfClientStarves(t *testing.T) {
	t.Parallel()
	const turns = 10
	onServersOfBothModes(t, func(t *testing.T, addr string, inCluster bool) {
		b := newBench(t, addr)
		for _, kind := range recordLocks {
			var all sync.WaitGroup
			var inside, hungry atomic.Int32
			clients := clientsOf(t, addr, inCluster)
			hungry.Store(int32(len(clients)))
			for what, rdb := range clients {
				l := kind.one(b.clientOn(rdb), b.name+kind.name)
				waitgroup.Go(&all, func() {
					ctx := ContextWithOwner(context.Background())
					for n := 1; hungry.Load() > 0 && !t.Failed(); n++ {
						assert.NoError(t, l.Lock(ctx), what)
						assert.True(t, inside.Add(1) == 1 || kind.shared, "%s: another owner holds the %s", what, kind.name)
						inside.Add(-1)
						assert.NoError(t, l.Unlock(ctx), what)
						if n == turns {
							hungry.Add(-1)
						}
					}
				})
			}
			testredis.Await(b, kind.name+": all have had their turns", soon, func() bool { return hungry.Load() == 0 })
			all.Wait()
		}
	})
}

// A forced release reaches the holder, whatever the kinds of both clients are.
func TestForcedReleaseReachesClientsOfEveryKind(t *testing.T) {
	t.Parallel()
	onServersOfBothModes(t, func(t *testing.T, addr string, inCluster bool) {
		b := newBench(t, addr)
		hold, force := clientsOf(t, addr, inCluster), clientsOf(t, addr, inCluster)
		holders, all := make(map[string]*Client), make(map[string]watched)
		for from, rdb := range hold {
			holders[from] = b.clientOn(rdb, WithWatchdogTimeout(rarely))
			for to, rdb := range force {
				what := from + ", " + to
				l, forced := holders[from].NewLock(b.name+what), b.clientOn(rdb).NewLock(b.name+what) // its first request
				all[what] = b.watch(l, forced, func(l Locker, owner context.Context) error { return l.Lock(owner) })
			}
		}
		for from, c := range holders {
			testredis.Await(b, from+" listens", soon, func() bool {
				return c.engine.Hub().IsConfirmed(record.ClientChannel(c.ID()))
			})
		}
		for what, w := range all {
			freed, err := w.forced.ForceUnlock(context.Background())
			b.must(err)
			assert.True(t, freed, what)
			await(b, what+": the holder learns of the release", w.guarded.Done())
			b.mustBe(w.release(context.Background()), ErrLockLost)
		}
	})
}

// A forced release may be the first request of a Client. It reaches holders and waiters also if the servers say late that
// they are in Cluster mode.
func TestForcedReleaseWaitsForTheModeOfTheServers(t *testing.T) {
	t.Parallel()
	addr := testredis.StartCluster(t, 1, 0).Client().Options().Addrs[0]
	b := newBench(t, addr)
	slow := clusterClient(t, addr)
	slow.AddHook(commandHook(func(cmd redis.Cmder) {
		if cmd.Name() == "hello" {
			time.Sleep(2 * questionTime)
		}
	}))
	holder := b.clientOn(clusterClient(t, addr), WithWatchdogTimeout(rarely))
	w := b.watch(holder.NewLock(b.name), b.clientOn(slow).NewLock(b.name), func(l Locker, owner context.Context) error {
		return l.Lock(owner)
	})
	testredis.Await(b, "the holder listens", soon, func() bool {
		return holder.engine.Hub().IsConfirmed(record.ClientChannel(holder.ID()))
	})
	waiter, owner := b.clientOn(clusterClient(t, addr), WithPollInterval(time.Hour)), ContextWithOwner(context.Background())
	got := make(chan error, 1)
	go func() { got <- waiter.NewLock(b.name).Lock(owner) }()
	testredis.Await(b, "the waiter has a place", soon, func() bool { return len(b.clientsInLine()) == 1 })
	freed, err := w.forced.ForceUnlock(context.Background())
	b.must(err)
	assert.True(t, freed)
	b.must(await(b, "the waiter acquires it", got))
	await(b, "the holder learns of the release", w.guarded.Done())
	b.mustBe(w.release(context.Background()), ErrLockLost)
	b.must(waiter.NewLock(b.name).Unlock(owner))
}

// A ClusterClient on a Sentinel deployment, and the client of redis.NewFailoverClient, notify each other, also after a
// failover.
func TestClientsOfASentinelNotifyEachOther(t *testing.T) {
	t.Parallel()
	s := testredis.StartSentinel(t, 1)
	rdb := s.Client()
	b := &bench{T: t, name: fmt.Sprintf("lock-%06d", benches.Add(1)), rdb: rdb, nodes: []*redis.Client{rdb}}
	t.Cleanup(b.checkNothingIsLeft)
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: s.Addrs()[0]})
	t.Cleanup(func() { assert.NoError(t, sentinel.Close()) })
	bySlot := withSlots(t, func(ctx context.Context) ([]redis.ClusterNode, error) {
		master, err := sentinel.GetMasterAddrByName(ctx, s.MasterName()).Result()
		if err != nil {
			return nil, err
		}
		nodes := []redis.ClusterNode{{Addr: master[0] + ":" + master[1]}}
		replicas, err := sentinel.Replicas(ctx, s.MasterName()).Result()
		for _, r := range replicas {
			nodes = append(nodes, redis.ClusterNode{Addr: r["ip"] + ":" + r["port"]})
		}
		return nodes, err
	})
	clients := b.clientsOn(map[string]redis.UniversalClient{"FailoverClient": rdb, "ClusterClient": bySlot})
	one, many := clients["FailoverClient"], clients["ClusterClient"]
	for _, when := range []string{"before", "after"} {
		for _, kind := range recordLocks {
			b.passes(kind, kind.name+", to the ClusterClient, "+when, one, many)
			b.passes(kind, kind.name+", from the ClusterClient, "+when, many, one)
		}
		if when == "before" {
			s.Failover()
		}
		for name, c := range clients {
			testredis.Await(b, name+" has found the new primary", soon, func() bool {
				ok, err := c.NewLock(b.name+name).TryLock(context.Background(), 0, time.Millisecond)
				return ok && err == nil
			})
		}
	}
}

// Replicas confirm the locks of clients behind types of the user. An AutoPipeliner has no connection of its own.
func TestReplicasConfirmForClientsBehindOtherTypes(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	cluster := testredis.StartCluster(t, 3, 1)
	for _, rdb := range []redis.UniversalClient{ownCluster{cluster.Client()}, &ownAny{cluster.Client()}} {
		b := newClusterBench(t, cluster)
		c := b.clientOn(rdb, WithSyncedReplicas(1, time.Second))
		l := c.NewMultiLock(c.NewLock(b.name), c.NewLock(b.name+"-2"), c.NewFairLock(b.name+"-3"))
		b.must(l.Lock(ctx))
		b.must(l.Unlock(ctx))
	}
	b := newClusterBench(t, cluster)
	l := b.clientOn(autoPipeliner(t, cluster.Client()), WithSyncedReplicas(1, time.Second)).NewLock(b.name)
	b.mustBe(l.Lock(ctx), ErrInvalid)
}

// Redis clients behind types of the user send each request to the right master of a Cluster, hear of releases there,
// and have one connection for subscriptions to each.
func TestClientsBehindOtherTypesWorkInACluster(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 0)
	for name, rdb := range map[string]redis.UniversalClient{
		"type with a ClusterClient":        ownCluster{cluster.Client()},
		"type with an interface":           &ownAny{cluster.Client()},
		"AutoPipeliner of a ClusterClient": autoPipeliner(t, cluster.Client()),
		"deferred AutoPipeliner":           deferredPipeliner(t, cluster.Client()),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newClusterBench(t, cluster)
			long := WithPollInterval(time.Hour)
			c := b.clientOn(rdb, long, WithLogger(slog.New(slog.DiscardHandler)))
			other := b.client()
			for _, kind := range clusterLocks {
				for i, pair := range [][2]*Client{{c, other}, {other, c}} {
					what, owner := fmt.Sprint(b.name, kind.name, i), ContextWithOwner(context.Background())
					l, rival := kind.one(pair[0], what), kind.rival(pair[1], what)
					b.must(l.Lock(owner))
					got := b.startWaiter(rival)
					b.must(l.Unlock(owner))
					b.gets(what, got)
				}
			}
			const names = 30 // of which the poller asks with a request for each slot
			ctx := ContextWithOwner(context.Background())
			got := make(chan error, names)
			var held []*Lock
			for i := range names {
				l := other.NewLock(fmt.Sprint(b.name, "-", i))
				b.must(l.Lock(ctx))
				held = append(held, l)
				go func() {
					got <- c.NewLock(l.Name()).Do(context.Background(), func(context.Context) error { return nil })
				}()
			}
			testredis.Await(b, "all wait", clusterSoon, func() bool { return len(b.subscribed()) == names })
			assert.LessOrEqual(t, int(rdb.PoolStats().PubSubStats.Active), 3, "connections for subscriptions")
			for _, l := range held {
				b.must(l.Unlock(ctx))
				b.gets(l.Name(), got)
			}
		})
	}
}

// A Ring is refused behind every type.
func TestNewRefusesARingBehindOtherTypes(t *testing.T) {
	t.Parallel()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { assert.NoError(t, ring.Close()) })
	for _, rdb := range []redis.UniversalClient{
		ring, ownRing{ring}, &ownRing{ring}, ownAny{ring}, &ownAny{ownRing{ring}},
	} {
		c, err := New(rdb)
		assert.ErrorIs(t, err, ErrInvalid, "%T", rdb)
		assert.Nil(t, c, "%T", rdb)
	}
}

// The servers are asked once whether they are in Cluster mode, if that is not known, and no lock waits for the answer.
func TestServersAreAskedOnceBesideTheFirstRequest(t *testing.T) {
	t.Parallel()
	addr := testredis.Start(t).Addr()
	for name, c := range map[string]struct {
		rdb       redis.UniversalClient
		questions int64
	}{
		"a Client":                      {testredis.Client(t, addr), 0},
		"a type with a Client":          {&ownClient{testredis.Client(t, addr)}, 0},
		"a ClusterClient":               {clusterClient(t, addr), 1},
		"the AutoPipeliner of a Client": {autoPipeliner(t, testredis.Client(t, addr)), 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, addr)
			question := new(heldQuestion)
			c.rdb.AddHook(question)
			client := b.clientOn(c.rdb)
			l := client.NewLock(b.name)
			assert.Zero(t, question.asked.Load(), "New and NewLock send no request")
			question.held.Lock()
			for range 3 {
				b.must(l.Lock(context.Background()))
				b.must(l.Unlock(context.Background()))
			}
			question.held.Unlock()
			testredis.Await(b, "the answer", soon, func() bool { return client.mode.known.Load() == modeSingle })
			b.must(l.Lock(context.Background()))
			b.must(l.Unlock(context.Background()))
			assert.Equal(t, c.questions, question.asked.Load(), "questions")
		})
	}
}

// heldQuestion is a hook that counts the questions for the mode of the servers, and holds them back while held is
// locked.
type heldQuestion struct {
	counter
	held  sync.Mutex
	asked atomic.Int64
}

func (q *heldQuestion) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "hello" && len(cmd.Args()) == 1 { // that of a new connection names the protocol
			q.asked.Add(1)
			q.held.Lock()
			defer q.held.Unlock()
		}
		return next(ctx, cmd)
	}
}

// The slot of a key is that of the specification of Redis Cluster.
func TestSlotOf(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]int{
		"123456789": 0x31C3, "": 0, "{123456789}x": 0x31C3, "x{123456789}{y}": 0x31C3,
		"somekey": 11058, "foo{hash_tag}": 2515,
	} {
		assert.Equal(t, want, slotOf(key), key)
	}
}

// A halfSecond is a Bounder that may always bound calls.
type halfSecond struct{ send.Bounder }

func (halfSecond) Bound() time.Duration { return time.Second / 2 }

// No call is bounded before the mode of the servers is known, because a bounded call does not ask for it.
func TestCallsAreBoundedOnceTheModeIsKnown(t *testing.T) {
	var m serverMode
	b := m.boundedBy(halfSecond{})
	assert.Zero(t, b.Bound())
	m.known.Store(modeSingle)
	assert.Equal(t, time.Second/2, b.Bound())
	assert.Equal(t, halfSecond{}, m.boundedBy(halfSecond{}))
}

// A server is known by its address, unless a Sentinel or a Dialer of the user decides where the connections lead.
func TestAddressesTellServersApart(t *testing.T) {
	t.Parallel()
	dialer := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("not dialed") }
	for name, c := range map[string]struct {
		rdb  func() redis.UniversalClient
		told bool
	}{
		"a server":            {func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: "a:6379"}) }, true},
		"the default address": {func() redis.UniversalClient { return redis.NewClient(&redis.Options{}) }, true},
		"embedded": {func() redis.UniversalClient {
			return struct{ redis.UniversalClient }{redis.NewClient(&redis.Options{})}
		}, true},
		"a Dialer": {func() redis.UniversalClient { return redis.NewClient(&redis.Options{Dialer: dialer}) }, false},
		"embedded, a Dialer": {func() redis.UniversalClient {
			return struct{ redis.UniversalClient }{redis.NewClient(&redis.Options{Dialer: dialer})}
		}, false},
		"a Cluster": {func() redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"a:6379"}})
		}, true},
		"a Cluster, a Dialer": {func() redis.UniversalClient {
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"a:6379"}, Dialer: dialer})
		}, false},
		"a Sentinel": {func() redis.UniversalClient {
			return redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"a:26379"}})
		}, false},
		"a Sentinel, routed": {func() redis.UniversalClient {
			return redis.NewFailoverClusterClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"a:26379"}})
		}, false},
		"any client, for a server": {func() redis.UniversalClient {
			return redis.NewUniversalClient(&redis.UniversalOptions{Addrs: []string{"a:6379"}})
		}, true},
		"any client, for a Sentinel": {func() redis.UniversalClient {
			return redis.NewUniversalClient(&redis.UniversalOptions{MasterName: "m", Addrs: []string{"a:26379"}})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := c.rdb(), c.rdb()
			first, err := New(a)
			require.NoError(t, err)
			second, err := New(b)
			require.NoError(t, err)
			t.Cleanup(func() {
				assert.NoError(t, errors.Join(first.Close(), second.Close(), a.Close(), b.Close()))
			})
			l := first.NewMultiLock(first.NewLock("x"), second.NewLock("y"))
			assert.Equal(t, c.told, l.many.doubt == nil)
		})
	}
}
