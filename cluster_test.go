package relock

// Every lock type on a real Cluster: waiters are notified by sharded messages, and slots and masters may change under
// holders and waiters.

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
)

// clusterSoon is how long a Cluster may take for an operation that should be immediate.
const clusterSoon = 10 * time.Second

// slotLocks are the locks whose keys share a slot, so that one request acquires them.
var slotLocks = append(
	slices.Clone(recordLocks),
	lockKind{name: "multi of one slot", one: newSlotMultiLock, rival: newSlotMultiLock},
)

// clusterLocks are the locks that work in a Cluster.
var clusterLocks = append(
	slices.Clone(slotLocks),
	lockKind{name: "multi of several slots", one: newWideMultiLock, rival: newWideMultiLock},
)

func newPlainLock(c *Client, name string) Locker  { return c.NewLock(name) }
func newFencedLock(c *Client, name string) Locker { return c.NewLock(name, Fenced()) }

func newSlotMultiLock(c *Client, name string) Locker {
	return c.NewMultiLock(c.NewLock("{"+name+"}1"), c.NewLock("{"+name+"}2"))
}

func newWideMultiLock(c *Client, name string) Locker {
	return c.NewMultiLock(c.NewLock(name), c.NewLock(name+"-b"), c.NewLock(name+"-c"))
}

// A clusterBench is a bench over a Cluster.
type clusterBench struct {
	*bench
	cluster *testredis.Cluster
	admin   *redis.ClusterClient
}

func newClusterBench(t *testing.T, cluster *testredis.Cluster) *clusterBench {
	b := &clusterBench{
		bench:   &bench{T: t, name: fmt.Sprintf("lock-%d", benches.Add(1))},
		cluster: cluster,
		admin:   cluster.Client(),
	}
	t.Cleanup(b.checkNothingIsLeft)
	return b
}

// client returns a client that is notified by messages, or that does not ask again for an hour.
func (b *clusterBench) client(opts ...Option) *Client {
	return b.clientOn(
		b.cluster.Client(),
		append([]Option{WithPollInterval(time.Hour), WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
}

// onMasters returns what ask returns on all masters for keys with the bench's name.
func (b *clusterBench) onMasters(ask func(context.Context, *redis.Client) ([]string, error)) []string {
	ctx := context.Background()
	found := make(chan []string, 16)
	err := b.admin.ForEachMaster(ctx, func(ctx context.Context, rdb *redis.Client) error {
		all, err := ask(ctx, rdb)
		found <- all
		return err
	})
	if err != nil {
		return []string{"unknown: " + err.Error()}
	}
	var names []string
	for range len(found) {
		names = append(names, <-found...)
	}
	return slices.DeleteFunc(names, func(name string) bool { return !strings.Contains(name, b.name) })
}

func (b *clusterBench) keys() []string {
	return slices.DeleteFunc(b.onMasters(func(ctx context.Context, rdb *redis.Client) ([]string, error) {
		return rdb.Keys(ctx, "*").Result()
	}), func(key string) bool {
		return strings.HasPrefix(key, "redisson_lock_token") || isLeftFree(b.admin, key)
	})
}

func (b *clusterBench) subscribed() []string {
	return b.onMasters(func(ctx context.Context, rdb *redis.Client) ([]string, error) {
		return rdb.PubSubShardChannels(ctx, "*").Result()
	})
}

func (b *clusterBench) checkNothingIsLeft() {
	if b.Failed() {
		return
	}
	testredis.Await(b, "nothing of "+b.name+" is left in Redis", clusterSoon, func() bool { return len(b.keys()) == 0 })
	testredis.Await(b, "nothing of "+b.name+" is subscribed", clusterSoon, func() bool { return len(b.subscribed()) == 0 })
}

// startWaiter locks and unlocks l on another goroutine, and returns when it waits in Redis.
func (b *clusterBench) startWaiter(l Locker) <-chan error {
	b.Helper()
	testredis.Await(
		b,
		"the last waiter is not subscribed any more",
		clusterSoon,
		func() bool { return len(b.subscribed()) == 0 },
	)
	got := make(chan error, 1)
	go func() { got <- l.Do(context.Background(), func(context.Context) error { return nil }) }()
	testredis.Await(b, "a waiter is subscribed", clusterSoon, func() bool { return len(b.subscribed()) > 0 })
	return got
}

func (b *clusterBench) gets(what string, got <-chan error) {
	b.Helper()
	select {
	case err := <-got:
		b.must(err)
	case <-time.After(clusterSoon):
		require.Fail(b, "waited in vain", what)
	}
}

func TestClusterLocksExcludeAndWake(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 1)
	ctx := context.Background()
	for _, kind := range clusterLocks {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			b := newClusterBench(t, cluster)
			c, other := b.client(), b.client()
			l, rival := kind.one(c, b.name), kind.rival(other, b.name)

			// A waiter for a held lock is notified of its release.
			owner := ContextWithOwner(ctx)
			for range 3 {
				b.must(l.Lock(owner))
				b.must(l.Lock(owner))
				b.tries(rival, false)
				next := b.startWaiter(rival)
				b.must(l.Unlock(owner))
				b.must(l.Unlock(owner))
				b.gets("the lock is free", next)
			}
			assert.Empty(t, b.onMasters(func(ctx context.Context, rdb *redis.Client) ([]string, error) {
				return rdb.PubSubChannels(ctx, "*").Result()
			}), "plain subscriptions")
		})
	}
}

// A forced release reaches the holder, also if the channel of its Client is in another shard than the lock.
func TestClusterForcedReleaseReachesTheHolder(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 0)
	ctx := context.Background()
	for _, kind := range clusterLocks {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			b := newClusterBench(t, cluster)
			other := b.client()
			for n := range 4 {
				c := b.client(WithWatchdogTimeout(rarely))
				name := fmt.Sprint(b.name, "-", n)
				w := b.watch(kind.one(c, name), kind.one(other, name), func(l Locker, owner context.Context) error { return l.Lock(owner) })
				b.hears(c)
				freed, err := w.forced.ForceUnlock(ctx)
				b.must(err)
				assert.True(t, freed)
				await(b.bench, "the holder learns of the release", w.guarded.Done())
				b.mustBe(w.release(ctx), ErrLockLost)
			}
		})
	}
}

// hears waits until c has subscribed to its channel.
func (b *clusterBench) hears(c *Client) {
	b.Helper()
	testredis.Await(b, "the holder listens", clusterSoon, func() bool {
		heard := false
		_ = b.admin.ForEachMaster(context.Background(), func(ctx context.Context, rdb *redis.Client) error {
			if len(rdb.PubSubShardChannels(ctx, record.ClientChannel(c.ID())).Val()) == 1 {
				heard = true
			}
			return nil
		})
		return heard
	})
}

// The script of a release grants a fair lock to a waiter, whose subscription is in the shard of the lock.
func TestClusterFairLockIsGranted(t *testing.T) {
	t.Parallel()
	b := newClusterBench(t, testredis.StartCluster(t, 3, 0))
	ctx := context.Background()
	l := b.client().NewFairLock(b.name)
	b.must(l.Lock(ctx))
	got := b.startWaiter(b.client(WithPollInterval(time.Hour)).NewFairLock(b.name))
	line := record.LineKey(b.name)
	testredis.Await(
		b,
		"the waiter can be granted the lock",
		clusterSoon,
		func() bool { return b.admin.HLen(ctx, line).Val() == 1 },
	)
	r, err := l.client.send(l.lock.(*fairLock).Release(released(b.admin.HKeys(ctx, b.name).Val()[0], 0, false)))
	b.must(err)
	assert.Equal(t, reply{1, 0, 1}, r, "released, and granted")
	b.gets("the waiter has been told", got)
	b.mustBe(l.Unlock(ctx), ErrLockLost)
}

// The slot of a lock moves to another master while it is held and awaited: the hold is renewed there, and the waiter is
// notified there.
func TestClusterHoldsSurviveASlotMove(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 0)
	ctx := context.Background()
	for _, kind := range clusterLocks {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			b := newClusterBench(t, cluster)
			c, other := b.client(WithWatchdogTimeout(2*time.Second)), b.client()
			l, rival := kind.one(c, b.name), kind.rival(other, b.name)
			owner := ContextWithOwner(ctx)
			b.must(l.Lock(owner))
			next := b.startWaiter(rival)
			guarded, err := l.Guard(owner)
			b.must(err)

			slotKey := b.name
			from := cluster.MasterOf(slotKey)
			to := cluster.Nodes()[0]
			if to == from {
				to = cluster.Nodes()[1]
			}
			cluster.MigrateSlot(slotKey, to)
			testredis.Await(b, "the waiter has followed the slot", clusterSoon, func() bool {
				channels, err := to.Client().PubSubShardChannels(ctx, "*"+b.name+"*").Result()
				return err == nil && len(channels) > 0
			})
			select { // longer than the lease: the watchdog has followed the slot, too
			case <-guarded.Done():
				require.Fail(t, "lost", context.Cause(guarded))
			case err := <-next:
				require.Fail(t, "a second holder", err)
			case <-time.After(3 * time.Second):
			}
			b.must(l.Unlock(owner))
			b.gets("the lock is free", next)
		})
	}
}

// A master crashes while its locks are held and awaited: a replica that has their records is promoted, holders continue
// there, and waiters are notified there.
func TestClusterHoldsSurviveAFailover(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 1)
	ctx := context.Background()
	type pair struct {
		l       Locker
		owner   context.Context
		guarded context.Context
		next    <-chan error
	}
	const lease = 12 * time.Second
	var pairs []pair
	tag := fmt.Sprintf("{failover-%d}", benches.Add(1))
	b := newClusterBench(t, cluster)
	for _, kind := range clusterLocks {
		kb := newClusterBench(t, cluster)
		kb.name = tag + kb.name
		c, other := kb.client(WithWatchdogTimeout(lease)), kb.client()
		p := pair{l: kind.one(c, kb.name), owner: ContextWithOwner(ctx)}
		b.must(p.l.Lock(p.owner))
		var err error
		p.guarded, err = p.l.Guard(p.owner)
		b.must(err)
		p.next = kb.startWaiter(kind.rival(other, kb.name))
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
		b.must(p.l.Unlock(p.owner))
		b.gets("the lock is free", p.next)
	}
}

// L7: the host of a master disappears: it answers nothing and accepts no connection. A renewal does not wait for that
// host. The lock stays held, by the record that the replica has.
func TestClusterHoldSurvivesAVanishedMasterHost(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 1)
	b := newClusterBench(t, cluster)
	h := newHole(t)
	defer h.end()
	const lease = 10 * time.Second
	c := b.clientOn(cluster.Client(func(o *redis.ClusterOptions) { o.Dialer = h.dialer }), WithWatchdogTimeout(lease))
	ctx := ContextWithOwner(context.Background())
	l := c.NewLock(b.name)
	b.must(l.Lock(ctx))
	guarded, err := l.Guard(ctx)
	b.must(err)
	old := cluster.MasterOf(b.name)
	old.AwaitReplicas("{"+b.name+"}-synced", 1)
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
	b.must(l.Unlock(ctx))
}

// A hole in the network swallows the connections that are dialed while it exists.
type hole struct {
	addr  atomic.Value
	ended context.Context // at the latest with the test
	end   func()
}

func newHole(t *testing.T) *hole {
	ended, end := context.WithCancel(context.Background())
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
	b := newClusterBench(t, cluster)
	h := newHole(t)
	const lease = 4 * time.Second
	c := b.clientOn(cluster.Client(func(o *redis.ClusterOptions) { o.Dialer = h.dialer }), WithWatchdogTimeout(lease))
	ctx := ContextWithOwner(context.Background())
	bad := cluster.MasterOf(b.name)
	var good string
	for i := 0; good == ""; i++ {
		if name := fmt.Sprint(b.name, "-", i); cluster.MasterOf(name) != bad {
			good = name
		}
	}
	doomed, l := c.NewLock(b.name), c.NewLock(good)
	b.must(doomed.Lock(ctx))
	b.must(l.Lock(ctx))
	guarded, err := l.Guard(ctx)
	b.must(err)
	lost, err := doomed.Guard(ctx)
	b.must(err)
	ttl := func() time.Duration { return bad.Client().PTTL(ctx, b.name).Val() }
	testredis.Await(
		b,
		"both are renewed, together from now on",
		soon,
		func() bool { return ttl() < lease*2/3+100*time.Millisecond },
	)
	testredis.Await(b, "both are renewed, together from now on", soon, func() bool { return ttl() > lease*9/10 })
	h.addr.Store(bad.Addr())
	bad.Kill()
	await(b.bench, "the lock on it is lost", lost.Done())
	select {
	case <-guarded.Done():
		assert.Fail(t, "a lock on another shard is lost", context.Cause(guarded))
	case <-time.After(2 * lease):
	}
	b.must(l.Unlock(ctx))
	b.mustBe(doomed.Unlock(ctx), ErrLockLost)
	h.addr.Store("")
	bad.Restart()
	cluster.Settle()
}

// A master is removed from the Cluster in an orderly way, while a client remembers it.
func TestClusterHoldsSurviveANodeThatLeaves(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 1)
	b := newClusterBench(t, cluster)
	ctx := ContextWithOwner(context.Background())
	l := b.client().NewLock(b.name)
	b.must(l.Lock(ctx))
	next := b.startWaiter(b.client().NewLock(b.name))
	old := cluster.MasterOf(b.name)
	b.must(cluster.ReplicasOf(old)[0].Client().ClusterFailover(ctx).Err())
	testredis.Await(b, "the replica takes over", time.Minute, func() bool { return cluster.MasterOf(b.name) != old })
	cluster.Settle()
	id, err := old.Client().Do(ctx, "cluster", "myid").Text()
	b.must(err)
	for _, node := range cluster.Nodes() {
		if node != old {
			b.must(node.Client().ClusterForget(ctx, id).Err())
		}
	}
	b.must(old.Client().Do(ctx, "cluster", "reset", "soft").Err())
	b.must(l.Unlock(ctx))
	b.gets("the lock is free", next)
}

// S1, while the keys of a read/write lock are on two servers: a reader that unlocks does not take another reader, whose
// lease has not moved yet or has already moved, for crashed.
func TestClusterReaderUnlocksHalfWay(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 0)
	ctx := context.Background()
	for _, leasesFirst := range []bool{false, true} {
		b := &bench{T: t}
		name := fmt.Sprintf("{reader-unlocks-half-way-%d}", benches.Add(1))
		one, other := ContextWithOwner(ctx), ContextWithOwner(ctx)
		leaving := b.clientOn(cluster.Client()).NewRWLock(name).Read()
		staying := b.clientOn(cluster.Client()).NewRWLock(name).Read()
		b.must(leaving.Lock(one))
		b.must(staying.Lock(other))
		from, to := cluster.MasterOf(name), cluster.Nodes()[0]
		if to == from {
			to = cluster.Nodes()[1]
		}
		finish := cluster.BeginMigration(name, to)
		host, port, err := net.SplitHostPort(to.Addr())
		b.must(err)
		for _, key := range from.Client().Keys(ctx, "*"+name+"*").Val() {
			if strings.Contains(key, "rwlock_timeout") == leasesFirst {
				b.must(from.Client().Migrate(ctx, host, port, key, 0, 2*time.Second).Err())
			}
		}
		unlocked := make(chan error, 1)
		go func() { unlocked <- leaving.Unlock(one) }()
		stays(b, "the release", unlocked, time.Second) // until Redis can tell whether the other one is alive
		finish()
		b.must(await(b, "the release", unlocked))
		held, err := staying.IsHeld(other)
		b.must(err)
		assert.True(t, held, "the other reader is gone, leases first: %v", leasesFirst)
		b.must(staying.Unlock(other))
		testredis.Await(b, "the lock is free", clusterSoon, func() bool {
			n, err := to.Client().Exists(ctx, name).Result()
			return err == nil && n == 0
		})
	}
}

// A hold moves from one Client to another.
func TestClusterHoldMoves(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 0)
	for _, k := range detachable {
		t.Run(k.name, func(t *testing.T) {
			b := newClusterBench(t, cluster)
			c1, c2 := b.client(), b.client()
			ticket := b.detach(b.hold(k.one(c1, b.name)), time.Minute)
			b.excludes(k.rival(c2, b.name))
			b.must(b.attach(c2, ticket).Release(context.Background()))
			b.follows(k.rival(c1, b.name))
			_, err := c1.Attach(context.Background(), ticket)
			b.mustBe(err, ErrNotHeld)
		})
	}
}
