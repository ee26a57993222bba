package faults

// Every lock type on a real Cluster: waiters are notified by sharded messages, and slots and masters may change under
// holders and waiters.

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
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

// clusterLocks are the locks that work in a Cluster.
var clusterLocks = append(
	slices.Clone(locktest.SlotLocks),
	locktest.LockKind{Name: "multi of several slots", One: newWideMultiLock, Rival: newWideMultiLock},
)

func newWideMultiLock(c *Client, name string) Locker {
	return c.NewMultiLock(c.NewLock(name), c.NewLock(name+"-b"), c.NewLock(name+"-c"))
}

func gets(b *locktest.ClusterBench, what string, got <-chan error) {
	b.Helper()
	select {
	case err := <-got:
		b.Must(err)
	case <-time.After(locktest.ClusterSoon):
		require.Fail(b, "waited in vain", what)
	}
}

func TestClusterLocksExcludeAndWake(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 1)
	for _, kind := range clusterLocks {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			b := locktest.NewClusterBench(t, cluster)
			c, other := b.Client(), b.Client()
			l, rival := kind.One(c, b.LockName), kind.Rival(other, b.LockName)

			// A waiter for a held lock is notified of its release.
			owner := ContextWithOwner(ctx)
			for range 3 {
				b.Must(l.Lock(owner))
				b.Must(l.Lock(owner))
				b.Tries(rival, false)
				next := b.StartWaiter(rival)
				b.Must(l.Unlock(owner))
				b.Must(l.Unlock(owner))
				gets(b, "the lock is free", next)
			}
			assert.Empty(t, b.OnMasters(func(ctx context.Context, rdb *redis.Client) ([]string, error) {
				return rdb.PubSubChannels(ctx, "*").Result()
			}), "plain subscriptions")
		})
	}
}

// A forced release reaches the holder, also if the channel of its Client is in another shard than the lock.
func TestClusterForcedReleaseReachesTheHolder(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 0)
	for _, kind := range clusterLocks {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			b := locktest.NewClusterBench(t, cluster)
			other := b.Client()
			for n := range 4 {
				c := b.Client(WithWatchdogTimeout(locktest.Rarely))
				name := fmt.Sprint(b.LockName, "-", n)
				w := b.Watch(kind.One(c, name), kind.One(other, name), func(l Locker, owner context.Context) error { return l.Lock(owner) })
				hears(b, c)
				freed, err := w.Forced.ForceUnlock(ctx)
				b.Must(err)
				assert.True(t, freed)
				locktest.Await(b.Bench, "the holder learns of the release", w.Guarded.Done())
				b.MustBe(w.Release(ctx), ErrLockLost)
			}
		})
	}
}

// hears waits until c has subscribed to its channel.
func hears(b *locktest.ClusterBench, c *Client) {
	b.Helper()
	testredis.Await(b, "the holder listens", locktest.ClusterSoon, func() bool {
		heard := false
		_ = b.Admin.ForEachMaster(ctx, func(ctx context.Context, rdb *redis.Client) error {
			if len(rdb.PubSubShardChannels(ctx, record.ClientKey(c.ID())).Val()) == 1 {
				heard = true
			}
			return nil
		})
		return heard
	})
}

// The slot of a lock moves to another master while it is held and awaited: the hold is renewed there, and the waiter is
// notified there.
func TestClusterHoldsSurviveASlotMove(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 0)
	for _, kind := range clusterLocks {
		t.Run(kind.Name, func(t *testing.T) {
			t.Parallel()
			b := locktest.NewClusterBench(t, cluster)
			c, other := b.Client(WithWatchdogTimeout(2*time.Second)), b.Client()
			l, rival := kind.One(c, b.LockName), kind.Rival(other, b.LockName)
			owner := ContextWithOwner(ctx)
			b.Must(l.Lock(owner))
			next := b.StartWaiter(rival)
			guarded := guardOf(b, owner, l)

			slotKey := b.LockName
			to := otherMaster(cluster, slotKey)
			cluster.MigrateSlot(slotKey, to)
			testredis.Await(b, "the waiter has followed the slot", locktest.ClusterSoon, func() bool {
				channels, err := to.Client().PubSubShardChannels(ctx, "*"+b.LockName+"*").Result()
				return err == nil && len(channels) > 0
			})
			select { // longer than the lease: the watchdog has followed the slot, too
			case <-guarded.Done():
				require.Fail(t, "lost", context.Cause(guarded))
			case err := <-next:
				require.Fail(t, "a second holder", err)
			case <-time.After(3 * time.Second):
			}
			b.Must(l.Unlock(owner))
			gets(b, "the lock is free", next)
		})
	}
}

// A master crashes while its locks are held and awaited: a replica that has their records is promoted, holders continue
// there, and waiters are notified there.
func TestClusterHoldsSurviveAFailover(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 1)
	type pair struct {
		l       Locker
		owner   context.Context
		guarded context.Context
		next    <-chan error
	}
	const lease = 12 * time.Second
	var pairs []pair
	tag := fmt.Sprintf("{failover-%d}", locktest.Benches.Add(1))
	b := locktest.NewClusterBench(t, cluster)
	for _, kind := range clusterLocks {
		kb := locktest.NewClusterBench(t, cluster)
		kb.LockName = tag + kb.LockName
		c, other := kb.Client(WithWatchdogTimeout(lease)), kb.Client()
		p := pair{l: kind.One(c, kb.LockName), owner: ContextWithOwner(ctx)}
		b.Must(p.l.Lock(p.owner))
		var err error
		p.guarded, err = p.l.Guard(p.owner)
		b.Must(err)
		p.next = kb.StartWaiter(kind.Rival(other, kb.LockName))
		pairs = append(pairs, p)
	}
	old := cluster.MasterOf(tag)
	old.AwaitReplicas(tag, 1)
	begin := time.Now()
	cluster.Failover(old)
	took := time.Since(begin)
	time.Sleep(time.Until(begin.Add(lease + 2*time.Second))) // only the watchdogs send requests
	for _, p := range pairs {
		require.NoError(t, context.Cause(p.guarded), "the replica took over within %v", took)
		b.Must(p.l.Unlock(p.owner))
		gets(b, "the lock is free", p.next)
	}
}

// L7: the host of a master disappears: it answers nothing and accepts no connection. A renewal does not wait for that
// host. The lock stays held, by the record that the replica has.
func TestClusterHoldSurvivesAVanishedMasterHost(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 1)
	b := locktest.NewClusterBench(t, cluster)
	h := newHole(t)
	defer h.end()
	const lease = 10 * time.Second
	c := b.ClientOn(cluster.Client(func(o *redis.ClusterOptions) { o.Dialer = h.dialer }), WithWatchdogTimeout(lease))
	ctx := ContextWithOwner(ctx)
	l := c.NewLock(b.LockName)
	b.Must(l.Lock(ctx))
	guarded := guardOf(b, ctx, l)
	old := cluster.MasterOf(b.LockName)
	old.AwaitReplicas("{"+b.LockName+"}-synced", 1)
	t.Cleanup(old.Thaw)
	h.addr.Store(old.Addr())
	begin := time.Now()
	cluster.FailoverAfter(old, old.Freeze)
	if took := time.Since(begin); took > lease*2/3 {
		t.Skipf("the replica took over after %v: too late for a lease of %v", took, lease)
	}
	select {
	case <-guarded.Done():
		require.Fail(t, "the hold is lost", "%v after %v", context.Cause(guarded), time.Since(begin))
	case <-time.After(time.Until(begin.Add(lease + 5*time.Second))):
	}
	b.Must(l.Unlock(ctx))
}

// A hole in the network swallows the connections that are dialed while it exists.
type hole struct {
	addr  atomic.Value
	ended context.Context // at the latest with the test
	end   func()
}

func newHole(t *testing.T) *hole {
	ended, end := context.WithCancel(ctx)
	t.Cleanup(end)
	return &hole{ended: ended, end: end}
}

func (h *hole) dialer(ctx context.Context, network, addr string) (net.Conn, error) {
	if h.addr.Load() == addr && h.ended.Err() == nil {
		select {
		case <-time.After(5 * time.Second): // go-redis' DialTimeout
		case <-ctx.Done():
		case <-h.ended.Done():
		}
		return nil, &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	}
	return new(net.Dialer).DialContext(ctx, network, addr)
}

// A shard that cannot be reached does not affect the locks of the other shards.
func TestClusterUnreachableShardCostsNoOtherLocks(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 0, "--cluster-require-full-coverage", "no")
	b := locktest.NewClusterBench(t, cluster)
	h := newHole(t)
	const lease = 4 * time.Second
	c := b.ClientOn(cluster.Client(func(o *redis.ClusterOptions) { o.Dialer = h.dialer }), WithWatchdogTimeout(lease))
	ctx := ContextWithOwner(ctx)
	bad := cluster.MasterOf(b.LockName)
	var good string
	for i := 0; good == ""; i++ {
		if name := fmt.Sprint(b.LockName, "-", i); cluster.MasterOf(name) != bad {
			good = name
		}
	}
	doomed, l := c.NewLock(b.LockName), c.NewLock(good)
	b.Must(doomed.Lock(ctx))
	b.Must(l.Lock(ctx))
	guarded := guardOf(b, ctx, l)
	lost := guardOf(b, ctx, doomed)
	ttl := func() time.Duration { return bad.Client().PTTL(ctx, b.LockName).Val() }
	testredis.Await(
		b,
		"both are renewed, together from now on",
		locktest.Soon,
		func() bool { return ttl() < lease*2/3+100*time.Millisecond },
	)
	testredis.Await(b, "both are renewed, together from now on", locktest.Soon, func() bool { return ttl() > lease*9/10 })
	h.addr.Store(bad.Addr())
	bad.Kill()
	locktest.Await(b.Bench, "the lock on it is lost", lost.Done())
	staysValid(b, guarded, 2*lease)
	b.Must(l.Unlock(ctx))
	b.MustBe(doomed.Unlock(ctx), ErrLockLost)
	h.addr.Store("")
	bad.Restart()
	cluster.Settle()
}

// A master is removed from the Cluster in an orderly way, while a client remembers it.
func TestClusterHoldsSurviveANodeThatLeaves(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 1)
	b := locktest.NewClusterBench(t, cluster)
	ctx := ContextWithOwner(ctx)
	l := b.Client().NewLock(b.LockName)
	b.Must(l.Lock(ctx))
	next := b.StartWaiter(b.Client().NewLock(b.LockName))
	old := cluster.MasterOf(b.LockName)
	b.Must(cluster.ReplicasOf(old)[0].Client().ClusterFailover(ctx).Err())
	testredis.Await(b, "the replica takes over", time.Minute, func() bool { return cluster.MasterOf(b.LockName) != old })
	cluster.Settle()
	id, err := old.Client().Do(ctx, "cluster", "myid").Text()
	b.Must(err)
	for _, node := range cluster.Nodes() {
		if node != old {
			b.Must(node.Client().ClusterForget(ctx, id).Err())
		}
	}
	b.Must(old.Client().Do(ctx, "cluster", "reset", "soft").Err())
	b.Must(l.Unlock(ctx))
	gets(b, "the lock is free", next)
}

// otherMaster returns a master that does not have the slot of this key.
func otherMaster(cluster *testredis.Cluster, key string) *testredis.Server {
	if to := cluster.Nodes()[0]; to != cluster.MasterOf(key) {
		return to
	}
	return cluster.Nodes()[1]
}

// halfWay begins to move the slot of a read/write lock, and moves either the leases of its readers or all other keys.
func halfWay(b *locktest.Bench, cluster *testredis.Cluster, name string, leases bool) (finish func()) {
	b.Helper()
	from, to := cluster.MasterOf(name), otherMaster(cluster, name)
	finish = cluster.BeginMigration(name, to)
	host, port, err := net.SplitHostPort(to.Addr())
	b.Must(err)
	for _, key := range from.Client().Keys(ctx, "*"+name+"*").Val() {
		if strings.Contains(key, "rwlock_timeout") == leases {
			b.Must(from.Client().Migrate(ctx, host, port, key, 0, 2*time.Second).Err())
		}
	}
	return finish
}

// S1, while the keys of a read/write lock are on two servers: a reader that unlocks does not take another reader, whose
// lease has not moved yet or has already moved, for crashed.
func TestClusterReaderUnlocksHalfWay(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 0)
	for _, leasesFirst := range []bool{false, true} {
		b := &locktest.Bench{T: t}
		name := fmt.Sprintf("{reader-unlocks-half-way-%d}", locktest.Benches.Add(1))
		one, other := ContextWithOwner(ctx), ContextWithOwner(ctx)
		leaving := b.ClientOn(cluster.Client()).NewRWLock(name).Read()
		staying := b.ClientOn(cluster.Client()).NewRWLock(name).Read()
		b.Must(leaving.Lock(one))
		b.Must(staying.Lock(other))
		to := otherMaster(cluster, name)
		finish := halfWay(b, cluster, name, leasesFirst)
		unlocked := make(chan error, 1)
		go func() { unlocked <- leaving.Unlock(one) }()
		locktest.Stays(b, "the release", unlocked, time.Second) // until Redis can tell whether the other one is alive
		finish()
		b.Must(locktest.Await(b, "the release", unlocked))
		held, err := staying.IsHeld(other)
		b.Must(err)
		assert.True(t, held, "the other reader is gone, leases first: %v", leasesFirst)
		b.Must(staying.Unlock(other))
		testredis.Await(b, "the lock is free", locktest.ClusterSoon, func() bool {
			n, err := to.Client().Exists(ctx, name).Result()
			return err == nil && n == 0
		})
	}
}
