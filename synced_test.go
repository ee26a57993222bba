package relock

// WithSyncedReplicas on real replicas: behind a single server, Sentinel and a Cluster.

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/testredis"
)

var failovers = flag.Int("failovers", 1, "how many failovers TestSentinelFailovers goes through, with and without WithSyncedReplicas")

// A lock that the replicas do not confirm is not held, and leaves nothing behind.
func TestSyncedReplicas(t *testing.T) {
	t.Parallel()
	const confirmation = 500 * time.Millisecond
	cluster := testredis.StartCluster(t, 3, 1)
	ctx := context.Background()
	for _, kind := range clusterLocks {
		t.Run(kind.name, func(t *testing.T) { // one after the other: a master refuses its replicas for all of them
			b := newClusterBench(t, cluster)
			c := b.client(WithSyncedReplicas(1, confirmation), WithWatchdogTimeout(2*time.Second))
			l, unsynced := kind.one(c, b.name), kind.rival(b.client(), b.name)
			owner := WithOwner(ctx)
			testredis.Await(b, "the replicas confirm", clusterSoon, func() bool { return l.Lock(owner) == nil })
			b.must(l.Lock(owner))
			b.must(l.Unlock(owner))

			master := cluster.MasterOf(b.name)
			master.RefuseReplicas()
			b.mustBe(l.Lock(owner), ErrNotSynced) // a re-entry that failed leaves the hold as it was
			n, err := l.HoldCount(owner)
			assert.NoError(t, err)
			assert.Equal(t, 1, n, "levels")
			b.must(l.Unlock(owner))

			start := time.Now()
			err = l.Lock(owner)
			b.mustBe(err, ErrNotSynced)
			assert.GreaterOrEqual(t, time.Since(start), confirmation)
			assert.LessOrEqual(t, time.Since(start), soon)
			assert.ErrorContains(t, err, "0 of 1")
			assert.NotErrorIs(t, err, ErrNotHeld)
			b.mustBe(errorOf(l.TryLock(owner, 0, time.Minute)), ErrNotSynced)
			n, err = l.HoldCount(owner)
			assert.NoError(t, err)
			assert.Zero(t, n, "levels")
			testredis.Await(b, "it was given back", soon, func() bool { return len(b.keys()) == 0 })
			b.tries(unsynced, true)
			b.must(unsynced.Unlock(ctx))

			master.AcceptReplicas()
			testredis.Await(b, "the replica is back", clusterSoon, func() bool { return l.Lock(owner) == nil })
			guarded, err := l.Guard(owner)
			b.must(err)
			master.RefuseReplicas()
			select { // renewals do not count any more
			case <-guarded.Done():
				b.mustBe(context.Cause(guarded), ErrLockLost)
			case <-time.After(clusterSoon):
				assert.Fail(t, "renewals count that no replica has confirmed")
			}
			b.mustBe(l.Unlock(owner), ErrLockLost)
			master.AcceptReplicas()
			master.AwaitReplicas("{"+b.name+"}", 1)
		})
	}
}

func errorOf(_ bool, err error) error { return err }

// A slot that is on its way to another master: new keys are there already.
func TestSyncedReplicasFollowTheSlot(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 1)
	b := newClusterBench(t, cluster)
	l := b.client(WithSyncedReplicas(1, time.Second)).NewLock(b.name)
	ctx := context.Background()
	b.must(l.Lock(ctx)) // its client knows the Cluster now
	b.must(l.Unlock(ctx))
	from := cluster.MasterOf(b.name)
	to := cluster.Nodes()[0]
	if to == from {
		to = cluster.Nodes()[1]
	}
	finish := cluster.BeginMigration(b.name, to)
	b.must(l.Lock(ctx))
	finish()
	b.must(l.Lock(ctx))
	b.must(l.Unlock(ctx))
	b.must(l.Unlock(ctx))
}

func TestSyncedReplicasWithoutWait(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, args := range map[string][]string{
		"no replica":    nil,
		"no permission": {"--user", "default", "on", "nopass", "~*", "&*", "+@all", "-wait"},
		"no such thing": {"--rename-command", "WAIT", ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, testredis.Start(t, args...).Addr())
			for kind, newLock := range map[string]lockMaker{"lock": newPlainLock, "fair": newFairLock, "multi": newSlotMultiLock} {
				l := newLock(b.client(WithSyncedReplicas(1, 20*time.Millisecond)), b.name)
				err := l.Lock(ctx)
				b.mustBe(err, ErrNotSynced)
				if name != "no replica" {
					assert.ErrorContains(t, err, "WAIT", kind)
				}
				b.isLocked(l, false)
			}
		})
	}
}

// Locks that were reported as held, and that the new master after a failover does
// not have: without WithSyncedReplicas the locks that had not reached it yet, with the option none.
func TestSentinelFailovers(t *testing.T) {
	t.Parallel()
	lost := map[bool]int{}
	for _, synced := range []bool{false, true} {
		var refused int
		s := testredis.StartSentinel(t, 2)
		for i := range *failovers {
			ctx := WithOwner(context.Background())
			name := fmt.Sprintf("failover-%d", i)
			opts := []Option{WithWatchdogTimeout(time.Minute), WithLogger(slog.New(slog.DiscardHandler))}
			if synced {
				opts = append(opts, WithSyncedReplicas(1, time.Second))
			}
			rdb := s.Client(func(o *redis.FailoverOptions) { o.MaxRetries = -1 })
			c, err := New(rdb, opts...)
			require.NoError(t, err)
			before, late := c.NewLock(name+"-before"), c.NewLock(name+"-late")
			require.NoError(t, before.Lock(ctx))
			old := s.Master()
			old.AwaitReplicas("waited", 2)
			old.RefuseReplicas() // what a slow network does to the last writes before a crash
			err = late.Lock(ctx)
			held := err == nil
			if err != nil {
				require.ErrorIs(t, err, ErrNotSynced)
				refused++
			}
			master := s.Failover()
			there := func(name string) bool { return master.Client().Exists(ctx, name).Val() == 1 }
			assert.True(t, there(before.Name()), "synced %v: a lock was lost that all replicas had", synced)
			if held && !there(late.Name()) {
				lost[synced]++
			}
			assert.NoError(t, c.Close())
			_ = rdb.Close()
			if i+1 < *failovers {
				old.Restart()
				s.Settle()
			}
		}
		t.Logf("synced %v: %d failovers, %d locks lost, %d refused", synced, *failovers, lost[synced], refused)
	}
	assert.Equal(t, *failovers, lost[false], "locks lost without synced replicas")
	assert.Zero(t, lost[true], "locks lost with synced replicas")
}

// A failover sets the counter back with everything else: the next token is greater all the same.
func TestTokensAfterAFailover(t *testing.T) {
	t.Parallel()
	for kind, newLock := range map[string]lockMaker{
		"lock":  newFencedLock,
		"fair":  func(c *Client, name string) Locker { return c.NewFairLock(name, Fenced()) },
		"write": func(c *Client, name string) Locker { return c.NewRWLock(name, Fenced()).Write() },
	} {
		t.Run(kind, func(t *testing.T) {
			onEachServer(t, func(t *testing.T, addr string) {
				b := newBench(t, addr)
				l := newLock(b.client(), b.name)
				ctx := context.Background()
				token := func() int64 {
					b.must(l.Lock(ctx))
					token, err := l.(interface {
						Token(context.Context) (int64, error)
					}).Token(ctx)
					b.must(err)
					b.must(l.Unlock(ctx))
					return token
				}
				first := token()
				replicated := b.rdb.Get(ctx, tokenKey(b.name)).Val()
				var last int64
				for range 5 {
					last = token()
				}
				assert.Greater(t, last, first, "tokens")
				testredis.Await(t, "the clock of Redis goes on", soon, func() bool { // a failover takes longer
					return b.rdb.Time(ctx).Val().UnixMicro() > last
				})
				b.must(b.rdb.Set(ctx, tokenKey(b.name), replicated, 0).Err())
				assert.Greater(t, token(), last, "tokens")
			})
		})
	}
}

// A caller whose attempt is answered with busy waits for no replica, and keeps no connection.
func TestSyncedReplicasBusy(t *testing.T) {
	t.Parallel()
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	for kind, newLock := range map[string]lockMaker{"lock": newPlainLock, "fair": newFairLock, "write": newWriteLock, "multi": newSlotMultiLock} {
		held := newLock(b.client(), b.name+kind)
		b.must(held.Lock(ctx))
		l := newLock(b.client(WithSyncedReplicas(1, 2*time.Second)), b.name+kind)
		start := time.Now()
		ok, err := l.TryLock(ctx, 0, 0)
		assert.NoError(t, err, kind)
		assert.False(t, ok, kind)
		assert.LessOrEqual(t, time.Since(start), time.Second, kind)
		b.must(held.Unlock(ctx))
	}
}
