package faults

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
		"ClusterClient that knows slots":   locktest.ClusterClient(t, addr),
		"type with a ClusterClient":        &locktest.OwnCluster{ClusterClient: locktest.ClusterClient(t, addr)},
		"type with an interface":           locktest.OwnAny{UniversalClient: &locktest.OwnAny{UniversalClient: locktest.ClusterClient(t, addr)}},
		"AutoPipeliner of a Client":        locktest.AutoPipeliner(t, testredis.Client(t, addr)),
		"AutoPipeliner of a ClusterClient": locktest.AutoPipeliner(t, locktest.ClusterClient(t, addr)),
	}
	if inCluster { // for which a Client is not meant
		asks := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, Protocol: 2})
		t.Cleanup(func() { assert.NoError(t, asks.Close()) })
		all["ClusterClient that asks for slots"] = asks
	} else {
		all["Client"] = testredis.Client(t, addr)
		all["type with a Client"] = locktest.OwnClient{Client: testredis.Client(t, addr)}
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
func clientsOn(b *locktest.Bench, all map[string]redis.UniversalClient) map[string]*Client {
	clients := make(map[string]*Client)
	for name, rdb := range all {
		clients[name] = b.ClientOn(rdb, WithPollInterval(time.Hour))
	}
	return clients
}

// passes has a lock pass from the Client that holds it to the one that waits, which Inspect shows to the holder.
func passes(b *locktest.Bench, kind locktest.LockKind, what string, holds, waits *Client) {
	b.Helper()
	ctx, owner := ContextWithOwner(context.Background()), ContextWithOwner(context.Background())
	name := b.LockName + what
	l, rival := kind.One(holds, name), kind.Rival(waits, name)
	b.Must(l.Lock(ctx))
	got := make(chan error, 1)
	go func() { got <- rival.Lock(owner) }()
	testredis.Await(b, what+": the waiter listens", locktest.Soon, func() bool {
		if _, reader := rival.(*ReadLock); reader { // it is not in the wait queue
			return locktest.EngineOf(waits).Hub().IsConfirmed(record.PrefixName("redisson_rwlock", name))
		}
		i, err := holds.Inspect(ctx, name)
		b.Must(err)
		return len(i.Waiters) == 1 && i.Waiters[0].Reachable == ReachableYes
	})
	b.Must(l.Unlock(ctx))
	b.Must(locktest.Await(b, what+": the waiter gets the lock", got))
	b.Must(rival.Unlock(owner))
}

// Clients of every kind hear of the releases of all others, on a server of either mode.
func TestClientsOfEveryKindNotifyEachOther(t *testing.T) {
	t.Parallel()
	onServersOfBothModes(t, func(t *testing.T, addr string, inCluster bool) {
		b := locktest.NewBench(t, addr)
		hold, wait := clientsOn(b, clientsOf(t, addr, inCluster)), clientsOn(b, clientsOf(t, addr, inCluster))
		for _, kind := range locktest.RecordLocks {
			for from, holds := range hold {
				for to, waits := range wait {
					passes(b, kind, kind.Name+", "+from+", "+to, holds, waits)
				}
			}
		}
	})
}

// A forced release reaches the holder, whatever the kinds of both clients are.
func TestForcedReleaseReachesClientsOfEveryKind(t *testing.T) {
	t.Parallel()
	onServersOfBothModes(t, func(t *testing.T, addr string, inCluster bool) {
		b := locktest.NewBench(t, addr)
		hold, force := clientsOf(t, addr, inCluster), clientsOf(t, addr, inCluster)
		holders, all := make(map[string]*Client), make(map[string]locktest.Watched)
		for from, rdb := range hold {
			holders[from] = b.ClientOn(rdb, WithWatchdogTimeout(locktest.Rarely))
			for to, rdb := range force {
				what := from + ", " + to
				l, forced := holders[from].NewLock(b.LockName+what), b.ClientOn(rdb).NewLock(b.LockName+what) // its first request
				all[what] = b.Watch(l, forced, func(l Locker, owner context.Context) error { return l.Lock(owner) })
			}
		}
		for from, c := range holders {
			testredis.Await(b, from+" listens", locktest.Soon, func() bool {
				return locktest.EngineOf(c).Hub().IsConfirmed(record.ClientChannel(c.ID()))
			})
		}
		for what, w := range all {
			freed, err := w.Forced.ForceUnlock(context.Background())
			b.Must(err)
			assert.True(t, freed, what)
			locktest.Await(b, what+": the holder learns of the release", w.Guarded.Done())
			b.MustBe(w.Release(context.Background()), ErrLockLost)
		}
	})
}

// A forced release may be the first request of a Client. It reaches holders and waiters also if the servers say late that
// they are in Cluster mode.
func TestForcedReleaseWaitsForTheModeOfTheServers(t *testing.T) {
	t.Parallel()
	addr := testredis.StartCluster(t, 1, 0).Client().Options().Addrs[0]
	b := locktest.NewBench(t, addr)
	slow := locktest.ClusterClient(t, addr)
	slow.AddHook(locktest.CommandHook(func(cmd redis.Cmder) {
		if cmd.Name() == "hello" {
			time.Sleep(time.Second / 2) // other requests do not wait for so long
		}
	}))
	holder := b.ClientOn(locktest.ClusterClient(t, addr), WithWatchdogTimeout(locktest.Rarely))
	w := b.Watch(holder.NewLock(b.LockName), b.ClientOn(slow).NewLock(b.LockName), func(l Locker, owner context.Context) error {
		return l.Lock(owner)
	})
	testredis.Await(b, "the holder listens", locktest.Soon, func() bool {
		return locktest.EngineOf(holder).Hub().IsConfirmed(record.ClientChannel(holder.ID()))
	})
	waiter, owner := b.ClientOn(locktest.ClusterClient(t, addr), WithPollInterval(time.Hour)), ContextWithOwner(context.Background())
	got := make(chan error, 1)
	go func() { got <- waiter.NewLock(b.LockName).Lock(owner) }()
	testredis.Await(b, "the waiter has a place", locktest.Soon, func() bool { return len(b.ClientsInLine()) == 1 })
	freed, err := w.Forced.ForceUnlock(context.Background())
	b.Must(err)
	assert.True(t, freed)
	b.Must(locktest.Await(b, "the waiter acquires it", got))
	locktest.Await(b, "the holder learns of the release", w.Guarded.Done())
	b.MustBe(w.Release(context.Background()), ErrLockLost)
	b.Must(waiter.NewLock(b.LockName).Unlock(owner))
}

// A ClusterClient on a Sentinel deployment, and the client of redis.NewFailoverClient, notify each other, also after a
// failover.
func TestClientsOfASentinelNotifyEachOther(t *testing.T) {
	t.Parallel()
	s := testredis.StartSentinel(t, 1)
	rdb := s.Client()
	b := &locktest.Bench{T: t, LockName: fmt.Sprintf("lock-%06d", locktest.Benches.Add(1)), Rdb: rdb, Nodes: []*redis.Client{rdb}}
	t.Cleanup(b.CheckNothingIsLeft)
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: s.Addrs()[0]})
	t.Cleanup(func() { assert.NoError(t, sentinel.Close()) })
	bySlot := locktest.WithSlots(t, func(ctx context.Context) ([]redis.ClusterNode, error) {
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
	clients := clientsOn(b, map[string]redis.UniversalClient{"FailoverClient": rdb, "ClusterClient": bySlot})
	one, many := clients["FailoverClient"], clients["ClusterClient"]
	for _, when := range []string{"before", "after"} {
		for _, kind := range locktest.RecordLocks {
			passes(b, kind, kind.Name+", to the ClusterClient, "+when, one, many)
			passes(b, kind, kind.Name+", from the ClusterClient, "+when, many, one)
		}
		if when == "before" {
			s.Failover()
		}
		for name, c := range clients {
			testredis.Await(b, name+" has found the new primary", locktest.Soon, func() bool {
				ok, err := c.NewLock(b.LockName+name).TryLock(context.Background(), 0, time.Millisecond)
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
	for _, rdb := range []redis.UniversalClient{locktest.OwnCluster{ClusterClient: cluster.Client()}, &locktest.OwnAny{UniversalClient: cluster.Client()}} {
		b := locktest.NewClusterBench(t, cluster)
		c := b.ClientOn(rdb, WithSyncedReplicas(1, time.Second))
		l := c.NewMultiLock(c.NewLock(b.LockName), c.NewLock(b.LockName+"-2"), c.NewFairLock(b.LockName+"-3"))
		b.Must(l.Lock(ctx))
		b.Must(l.Unlock(ctx))
	}
	b := locktest.NewClusterBench(t, cluster)
	l := b.ClientOn(locktest.AutoPipeliner(t, cluster.Client()), WithSyncedReplicas(1, time.Second)).NewLock(b.LockName)
	b.MustBe(l.Lock(ctx), ErrInvalid)
}

// Redis clients behind types of the user send each request to the right master of a Cluster, hear of releases there,
// and have one connection for subscriptions to each.
func TestClientsBehindOtherTypesWorkInACluster(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 0)
	for name, rdb := range map[string]redis.UniversalClient{
		"type with a ClusterClient":        locktest.OwnCluster{ClusterClient: cluster.Client()},
		"type with an interface":           &locktest.OwnAny{UniversalClient: cluster.Client()},
		"AutoPipeliner of a ClusterClient": locktest.AutoPipeliner(t, cluster.Client()),
		"deferred AutoPipeliner":           deferredPipeliner(t, cluster.Client()),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := locktest.NewClusterBench(t, cluster)
			long := WithPollInterval(time.Hour)
			c := b.ClientOn(rdb, long, WithLogger(slog.New(slog.DiscardHandler)))
			other := b.Client()
			for _, kind := range clusterLocks {
				for i, pair := range [][2]*Client{{c, other}, {other, c}} {
					what, owner := fmt.Sprint(b.LockName, kind.Name, i), ContextWithOwner(context.Background())
					l, rival := kind.One(pair[0], what), kind.Rival(pair[1], what)
					b.Must(l.Lock(owner))
					got := b.StartWaiter(rival)
					b.Must(l.Unlock(owner))
					gets(b, what, got)
				}
			}
			const names = 30 // of which the poller asks with a request for each slot
			ctx := ContextWithOwner(context.Background())
			got := make(chan error, names)
			var held []*Lock
			for i := range names {
				l := other.NewLock(fmt.Sprint(b.LockName, "-", i))
				b.Must(l.Lock(ctx))
				held = append(held, l)
				go func() {
					got <- c.NewLock(l.Name()).Do(context.Background(), func(context.Context) error { return nil })
				}()
			}
			testredis.Await(b, "all wait", locktest.ClusterSoon, func() bool { return len(b.Subscribed()) == names })
			assert.LessOrEqual(t, int(rdb.PoolStats().PubSubStats.Active), 3, "connections for subscriptions")
			for _, l := range held {
				b.Must(l.Unlock(ctx))
				gets(b, l.Name(), got)
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
		ring, locktest.OwnRing{Ring: ring}, &locktest.OwnRing{Ring: ring}, locktest.OwnAny{UniversalClient: ring}, &locktest.OwnAny{UniversalClient: locktest.OwnRing{Ring: ring}},
	} {
		c, err := New(rdb)
		assert.ErrorIs(t, err, ErrInvalid, "%T", rdb)
		assert.Nil(t, c, "%T", rdb)
	}
}
