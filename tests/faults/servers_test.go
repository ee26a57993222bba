package faults

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/wake"
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
	ctx, owner := ContextWithOwner(ctx), ContextWithOwner(ctx)
	name := b.LockName + what
	l, rival := kind.One(holds, name), kind.Rival(waits, name)
	b.Must(l.Lock(ctx))
	got := make(chan error, 1)
	go func() { got <- rival.Lock(owner) }()
	testredis.Await(b, what+": the waiter listens", locktest.Soon, func() bool {
		if _, reader := rival.(*ReadLock); reader { // it is not in the wait queue
			return locktest.Subscribed(waits, record.PrefixName("redisson_rwlock", name))
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
				return locktest.Subscribed(c, record.ClientKey(c.ID()))
			})
		}
		for what, w := range all {
			freed, err := w.Forced.ForceUnlock(ctx)
			b.Must(err)
			assert.True(t, freed, what)
			locktest.Await(b, what+": the holder learns of the release", w.Guarded.Done())
			b.MustBe(w.Release(ctx), ErrLockLost)
		}
	})
}

// ofEitherMode returns Redis clients whose types do not tell the mode of their servers. The server at addr, which has all
// slots, does not answer if it is asked for it.
func ofEitherMode(t testing.TB, addr string) map[string]redis.UniversalClient {
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended) })
	silent := func() *redis.ClusterClient {
		rdb := locktest.ClusterClient(t, addr)
		rdb.AddHook(locktest.CommandHook(func(cmd redis.Cmder) {
			if cmd.Name() == "hello" && len(cmd.Args()) == 1 { // that of a new connection names the protocol
				<-ended
			}
		}))
		return rdb
	}
	return map[string]redis.UniversalClient{
		"ClusterClient that knows slots": silent(),
		"AutoPipeliner":                  locktest.AutoPipeliner(t, silent()),
	}
}

// asksForSlots returns a ClusterClient whose servers are in Cluster mode, because it asks them for their slots.
func asksForSlots(t testing.TB, addr string) *redis.ClusterClient {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}})
	t.Cleanup(func() { assert.NoError(t, rdb.Close()) })
	return rdb
}

// What a Client publishes reaches the waiters and holders of a Cluster, also with its first request, and without asking
// a server for its mode.
func TestMessagesReachAClusterThatTellsNoMode(t *testing.T) {
	t.Parallel()
	addr := testredis.StartCluster(t, 1, 0).Client().Options().Addrs[0]
	for kind := range ofEitherMode(t, addr) {
		for _, what := range []string{"ForceUnlock", "Unlock", "Unlock of a fair lock", "SetPermits"} {
			t.Run(kind+", "+what, func(t *testing.T) {
				t.Parallel()
				b := locktest.NewBench(t, addr)
				hour, rarely := WithPollInterval(time.Hour), WithWatchdogTimeout(locktest.Rarely)
				publishes := b.ClientOn(ofEitherMode(t, addr)[kind], rarely)
				holds, waits := b.ClientOn(asksForSlots(t, addr), rarely), b.ClientOn(asksForSlots(t, addr), hour)
				ctx, owner := ContextWithOwner(ctx), ContextWithOwner(ctx)
				var held, awaited Locker
				var release func() error
				switch what {
				case "ForceUnlock":
					held, awaited = holds.NewLock(b.LockName), waits.NewLock(b.LockName)
					release = func() error {
						testredis.Await(b, "the holder listens", locktest.Soon, func() bool {
							return locktest.Subscribed(holds, record.ClientKey(holds.ID()))
						})
						guarded, err := held.Guard(ctx)
						b.Must(err)
						freed, err := publishes.NewLock(b.LockName).ForceUnlock(ctx)
						assert.True(b, freed)
						locktest.Await(b, "the holder learns of the release", guarded.Done())
						b.MustBe(held.Unlock(ctx), ErrLockLost)
						return err
					}
				case "Unlock":
					held, awaited = publishes.NewLock(b.LockName), waits.NewLock(b.LockName)
					release = func() error { return held.Unlock(ctx) }
				case "Unlock of a fair lock":
					held, awaited = publishes.NewFairLock(b.LockName), waits.NewFairLock(b.LockName)
					release = func() error { return held.Unlock(ctx) }
				case "SetPermits":
					held, awaited = holds.NewSemaphore(b.LockName, 1), waits.NewSemaphore(b.LockName, 1)
					release = func() error { return publishes.NewSemaphore(b.LockName, 1).SetPermits(ctx, 2) }
					defer func() { b.Must(held.Unlock(ctx)) }()
				}
				b.Must(held.Lock(ctx))
				got := make(chan error, 1)
				go func() { got <- awaited.Lock(owner) }()
				testredis.Await(b, "the waiter has a place", locktest.Soon, func() bool {
					i, err := holds.Inspect(ctx, b.LockName)
					b.Must(err)
					return len(i.Waiters) == 1 && i.Waiters[0].Reachable == ReachableYes
				})
				b.Must(release())
				b.Must(locktest.Await(b, "the waiter acquires it", got))
				b.Must(awaited.Unlock(owner))
			})
		}
	}
}

// A user may have the permissions to publish and to subscribe for the mode of its servers only: those for the other
// mode are not missed.
func TestMessagesOfAUserWithThePermissionsForOneMode(t *testing.T) {
	t.Parallel()
	onServersOfBothModes(t, func(t *testing.T, addr string, inCluster bool) {
		b := locktest.NewBench(t, addr)
		rights, other := "-spublish -ssubscribe -sunsubscribe -pubsub|shardnumsub", redis.UniversalClient(b.Rdb)
		if inCluster {
			rights, other = "-publish -subscribe -unsubscribe -pubsub|numsub", asksForSlots(t, addr)
		}
		args := []any{"acl", "setuser", "one-way", "reset", "on", ">secret", "~*", "&*", "+@all"}
		for _, right := range strings.Fields(rights) {
			args = append(args, right)
		}
		b.Must(b.Rdb.Do(ctx, args...).Err())
		rdb := redis.NewClusterClient(&redis.ClusterOptions{
			Username: "one-way", Password: "secret",
			ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
				return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: addr}}}}, nil
			},
		})
		t.Cleanup(func() { assert.NoError(t, rdb.Close()) })
		clients := clientsOn(b, map[string]redis.UniversalClient{"either": rdb, "AutoPipeliner": locktest.AutoPipeliner(t, rdb), "other": other})
		for _, kind := range locktest.RecordLocks {
			for _, from := range []string{"either", "AutoPipeliner"} {
				passes(b, kind, kind.Name+", from "+from, clients[from], clients["other"])
				passes(b, kind, kind.Name+", to "+from, clients["other"], clients[from])
			}
		}
	})
}

// Redis answers twice for each channel that is subscribed in both ways: a refusal belongs to its channel.
func TestRefusalOfAChannelThatIsSubscribedInBothWays(t *testing.T) {
	t.Parallel()
	onServersOfBothModes(t, func(t *testing.T, addr string, _ bool) {
		b := locktest.NewBench(t, addr)
		b.Must(b.Rdb.Do(ctx, "acl", "setuser", "default", "resetchannels", "&good*").Err())
		for kind, rdb := range ofEitherMode(t, addr) {
			hub := locktest.EngineOf(b.ClientOn(rdb)).Hub()
			var all []*wake.Listener
			for i := range 40 {
				all = append(all, hub.Join([]string{"bad{x}", "good{x}"}[i*i%3%2]+fmt.Sprint(i)))
			}
			for _, l := range all {
				<-l.Ready
				good := strings.HasPrefix(l.Name(), "good")
				assert.Equal(t, good, l.Confirmed(), "%s: %s", kind, l.Name())
				assert.Equal(t, !good, l.Refused(), "%s: %s", kind, l.Name())
				l.Leave()
			}
		}
	})
}

// Servers before Redis 7.0 have no sharded channels.
func TestClientsOfEveryKindOnAServerWithoutShardedChannels(t *testing.T) {
	t.Parallel()
	addr := testredis.Start(t, "--rename-command", "SPUBLISH", "", "--rename-command", "SSUBSCRIBE", "").Addr()
	b := locktest.NewBench(t, addr)
	clients, other := clientsOn(b, clientsOf(t, addr, false)), b.ClientOn(b.Rdb, WithPollInterval(time.Hour))
	for _, kind := range locktest.RecordLocks {
		for name, c := range clients {
			passes(b, kind, kind.Name+", from "+name, c, other)
			passes(b, kind, kind.Name+", to "+name, other, c)
		}
	}
}

// Replicas confirm the locks of clients behind types of the user. An AutoPipeliner has no connection of its own.
func TestReplicasConfirmForClientsBehindOtherTypes(t *testing.T) {
	t.Parallel()
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
					what, owner := fmt.Sprint(b.LockName, kind.Name, i), ContextWithOwner(ctx)
					l, rival := kind.One(pair[0], what), kind.Rival(pair[1], what)
					b.Must(l.Lock(owner))
					got := b.StartWaiter(rival)
					b.Must(l.Unlock(owner))
					gets(b, what, got)
				}
			}
			const names = 30 // of which the poller asks with a request for each slot
			ctx := ContextWithOwner(ctx)
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
