package faults

// Every lock type when a replica is promoted: with the record, and without it, which no lock in Redis can prevent. Then
// the old holder's guard ends, its Unlock does not release another hold, and its fencing token is lower. A slot that is
// half way to another master is tested here, too.
//
// Rules: all lock types go through one failover together, because failovers take seconds.
//
// WithSyncedReplicas is tested on real replicas: behind a single server, Sentinel and a Cluster.

// WithSyncedReplicas on real replicas: behind a single server, Sentinel and a Cluster.

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// takeoverTime is how long clients may take to find a new master.
const takeoverTime = 20 * time.Second

// A survivor is a lock of one type that is held when the master fails, and a competitor for it.
type survivor struct {
	kind     string
	name     string
	l, rival Locker
	owner    context.Context
	guarded  context.Context
	token    int64
	next     chan error // the result of rival.Lock
}

// takeovers are the lock types for which a takeover is a risk: a RedLock has
// independent servers, see redlock_test.go; and a MultiLock of several masters is
// in TestClusterHoldsSurviveAFailover.
var takeovers = append(slices.Clone(locktest.RecordLocks), locktest.LockKind{Name: "multi", One: newPairLock, Rival: newPairLock})

// newPairLock is a MultiLock of one slot, if name has a tag.
func newPairLock(c *Client, name string) Locker {
	return c.NewMultiLock(c.NewLock(name), c.NewLock(name+"-2"))
}

// takeoverLocks returns a held lock of every type.
func takeoverLocks(
	t *testing.T,
	client func(opts ...Option) *Client,
	tag string,
	lease time.Duration,
) (all []*survivor) {
	for _, k := range takeovers {
		name := tag + k.Name
		s := &survivor{kind: k.Name, name: name, owner: ContextWithOwner(ctx), next: make(chan error, 1)}
		s.l, s.rival = k.One(client(WithWatchdogTimeout(lease)), name), k.Rival(client(), name)
		require.NoError(t, s.l.Lock(s.owner), k.Name)
		var err error
		s.guarded, err = s.l.Guard(s.owner)
		require.NoError(t, err, k.Name)
		s.token = tokenFor(s.owner, s.l)
		all = append(all, s)
	}
	return all
}

// tokenFor returns the fencing token of l, or 0 if it has none.
func tokenFor(ctx context.Context, l Locker) int64 {
	if f, ok := l.(*Lock); ok && locktest.LockOf(f).Traits().Fenced {
		token, _ := f.Token(ctx)
		return token
	}
	return 0
}

// awaitAll makes the competitors wait for all locks, and returns when they are subscribed on the server of that client.
func awaitAll(t *testing.T, all []*survivor, rdb *redis.Client) {
	t.Helper()
	for _, s := range all {
		go func() { s.next <- s.rival.Lock(s.owner) }()
	}
	testredis.Await(t, "all rivals are subscribed", locktest.ClusterSoon, func() bool {
		plain, _ := rdb.PubSubChannels(ctx, "*").Result()
		sharded, _ := rdb.PubSubShardChannels(ctx, "*").Result()
		subscribed := strings.Join(append(plain, sharded...), " ")
		return !slices.ContainsFunc(all, func(s *survivor) bool { return !strings.Contains(subscribed, s.name) })
	})
}

// goesOn asserts the behavior of a holder whose record has survived.
func (s *survivor) goesOn(t *testing.T) {
	t.Helper()
	testredis.Await(t, s.kind+": the holder finds the new master", takeoverTime, func() bool {
		held, err := s.l.IsHeld(s.owner)
		return held && err == nil
	})
	select {
	case err := <-s.next:
		assert.Fail(t, s.kind+": a second holder", err)
	default:
	}
	assert.NoError(t, context.Cause(s.guarded), s.kind)
	assert.NoError(t, s.l.Unlock(s.owner), s.kind)
	s.isNext(t)
}

// takes acquires the lock for the competitor, and retries until it finds the new master: a client that has had no reply
// from Redis yet gets the error of an outage at once.
func (s *survivor) takes() error {
	var err error
	for start := time.Now(); time.Since(start) < takeoverTime; {
		if err = s.rival.Lock(s.owner); err == nil {
			return nil
		}
	}
	return err
}

// isNext waits until the competitor holds the lock.
func (s *survivor) isNext(t *testing.T) {
	t.Helper()
	select {
	case err := <-s.next:
		require.NoError(t, err, s.kind)
	case <-time.After(takeoverTime):
		require.Fail(t, s.kind+": the rival waits in vain")
	}
}

// isLost asserts the behavior of a holder whose record has not survived.
func (s *survivor) isLost(t *testing.T) {
	t.Helper()
	s.isNext(t) // on the new master the lock is free
	if token := tokenFor(s.owner, s.rival); s.token != 0 {
		assert.Greater(t, token, s.token, "%s: the token of the next holder", s.kind)
	}
	select {
	case <-s.guarded.Done():
	case <-time.After(takeoverTime):
		require.Fail(t, s.kind+": the guard of the old holder does not end")
	}
	assert.ErrorIs(t, context.Cause(s.guarded), ErrLockLost, s.kind)
	assert.ErrorIs(t, s.l.Unlock(s.owner), ErrLockLost, s.kind)
	held, err := s.rival.IsHeld(s.owner)
	assert.NoError(t, err, s.kind)
	assert.True(t, held, "%s: the new holder has lost the lock", s.kind)
}

func (s *survivor) end(t *testing.T) {
	t.Helper()
	assert.NoError(t, s.rival.Unlock(s.owner), s.kind)
}

// Rows 14, 18, 20, 21, on a primary with a replica and sentinels.
func TestSentinelTakeoverKeepsOrReportsEachHold(t *testing.T) {
	t.Parallel()
	sentinel := testredis.StartSentinel(t, 1)
	b := &locktest.Bench{T: t}
	client := func(opts ...Option) *Client {
		return b.ClientOn(sentinel.Client(func(o *redis.FailoverOptions) { o.ReadTimeout = time.Second }), opts...)
	}

	// The replica has received all records: no hold is lost.
	all := takeoverLocks(t, client, "heard-", 15*time.Second)
	old := sentinel.Master()
	awaitAll(t, all, old.Client())
	old.AwaitReplicas("waited", 1)
	sentinel.FailoverAfter(old.Kill)
	for _, s := range all {
		s.goesOn(t)
		s.end(t)
	}
	old.Restart()
	sentinel.Settle()

	// The replica has not received the records. The old primary returns and considers itself the primary for a while:
	// replies that clients get there must not last.
	old = sentinel.Master()
	old.RefuseReplicas()
	all = takeoverLocks(t, client, "unheard-", 6*time.Second)
	sentinel.FailoverAfter(old.Freeze)
	old.Thaw()
	for _, s := range all {
		go func() { s.next <- s.takes() }()
	}
	for _, s := range all {
		s.isLost(t)
		s.end(t)
	}
}

// Rows 18, 53, on a Cluster. The other half is TestClusterHoldsSurviveAFailover.
func TestClusterFailoverThatLosesTheRecordIsReported(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 1)
	b := &locktest.Bench{T: t}
	client := func(opts ...Option) *Client { return b.ClientOn(cluster.Client(), opts...) }
	tag := fmt.Sprintf("{unheard-%d}", locktest.Benches.Add(1))
	old := cluster.MasterOf(tag)
	old.RefuseReplicas()
	all := takeoverLocks(t, client, tag, 15*time.Second)
	cluster.Failover(old)
	for _, s := range all {
		go func() { s.next <- s.takes() }()
	}
	for _, s := range all {
		s.isLost(t)
		s.end(t)
	}
}

// Row 51: a slot is half way to another master, for longer than a lease. A held lock stays held. A new attempt
// succeeds, or fails and succeeds when the slot has moved.
func TestClusterSlotHalfWayKeepsHolds(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 0)
	b := &locktest.Bench{T: t}
	client := func(opts ...Option) *Client {
		return b.ClientOn(cluster.Client(), append([]Option{WithPollInterval(100 * time.Millisecond)}, opts...)...)
	}
	const lease = 4 * time.Second
	tag := fmt.Sprintf("{half-way-%d}", locktest.Benches.Add(1))
	all := takeoverLocks(t, client, tag, lease)
	awaitAll(t, all, cluster.MasterOf(tag).Client())
	alone := map[Locker]context.Context{} // without waiters, so that no queue exists
	for _, k := range takeovers {
		l := k.One(client(WithWatchdogTimeout(lease)), tag+"-alone-"+k.Name)
		b.Must(l.Lock(ctx))
		guarded := guardOf(b, ctx, l)
		alone[l] = guarded
	}
	to := otherMaster(cluster, tag)
	finish := cluster.BeginMigration(tag, to)
	passes := map[string]bool{}
	for _, k := range takeovers {
		l := k.One(client(), tag+"-new-"+k.Name)
		ok, err := l.TryLock(engine.Patiently(ctx), 0, 0)
		if err != nil {
			assert.ErrorContains(t, err, "TRYAGAIN", k.Name)
		} else {
			assert.True(t, ok, k.Name)
		}
		if passes[k.Name] = ok; !ok {
			continue
		}
		assert.NoError(t, l.Unlock(ctx), k.Name)
	}
	assert.True(t, passes["lock"], "a lock of one key cannot be taken while its slot is half way")
	time.Sleep(lease + lease/4) // without a renewal a hold would have expired
	for _, s := range all {
		select {
		case err := <-s.next:
			assert.Fail(t, s.kind+": the rival has an answer", "%v, while %v", err, context.Cause(s.guarded))
		default:
		}
	}
	for l, guarded := range alone {
		assert.NoError(t, context.Cause(guarded), l.Name())
	}
	finish()
	for l, guarded := range alone {
		if guarded.Err() == nil {
			b.Must(l.Unlock(ctx))
		}
	}
	for _, s := range all {
		s.goesOn(t)
		s.end(t)
	}
}

// Row 51: a plain lock becomes free without a message while its slot is half way: its line has a key there, and the lock
// has none. The process in the line gets it within the poll interval, and passes it on.
func TestClusterSlotHalfWayKeepsNoWaiterAsleep(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 0)
	b := &locktest.Bench{T: t}
	name := fmt.Sprintf("{waits-half-way-%d}", locktest.Benches.Add(1))
	client := func() *Client { return b.ClientOn(cluster.Client(), WithPollInterval(100*time.Millisecond)) }
	gone, waits, behind := client().NewLock(name), client().NewLock(name), client().NewLock(name)
	b.Must(gone.LockLease(ctx, time.Hour))
	got := make(chan error, 2)
	for _, l := range []*Lock{waits, behind} {
		go func() { got <- l.Do(ctx, func(context.Context) error { return nil }) }()
	}
	admin := client()
	testredis.Await(b, "both have a place", locktest.Soon, func() bool {
		i, err := admin.Inspect(ctx, name)
		return err == nil && i.Waiting == 2
	})
	rdb := cluster.MasterOf(name).Client()
	finish := cluster.BeginMigration(name, otherMaster(cluster, name))
	b.Must(rdb.Del(ctx, name).Err())
	start := time.Now()
	for range 2 {
		b.Must(locktest.Await(b, "the next one gets the lock", got))
	}
	assert.Less(t, time.Since(start), 5*time.Second, "they have waited, with a poll interval of 100ms")
	finish()
	b.MustBe(gone.Unlock(ctx), ErrLockLost)
	b.Must(gone.Lock(ctx))
	b.Must(gone.Unlock(ctx))
}

// C1, while the keys of a read/write lock are on two servers: a reader whose lease has not moved yet, or has already
// moved, is not taken for crashed, neither by itself nor by a writer.
func TestClusterReaderKeepsItsHoldCountsHalfWay(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 0)
	for _, leasesFirst := range []bool{false, true} {
		b := &locktest.Bench{T: t}
		name := fmt.Sprintf("{reader-half-way-%d}", locktest.Benches.Add(1))
		read := b.ClientOn(cluster.Client(), WithWatchdogTimeout(6*time.Second)).NewRWLock(name).Read()
		write := b.ClientOn(cluster.Client(), WithPollInterval(50*time.Millisecond)).NewRWLock(name).Write()
		reader, writer := ContextWithOwner(ctx), ContextWithOwner(ctx)
		b.Must(read.Lock(reader))
		guarded := guardOf(b, reader, read)
		got := make(chan error, 1)
		go func() { got <- write.Lock(writer) }()
		from := cluster.MasterOf(name)
		testredis.Await(b, "the sign of a writer", locktest.Soon, func() bool {
			return from.Client().Exists(ctx, "relock_rwlock_writers:"+name).Val() == 1
		})
		finish := halfWay(b, cluster, name, leasesFirst)
		locktest.Stays(b, "a writer beside a reader", got, 2500*time.Millisecond) // longer than a renewal takes
		assert.NoError(t, context.Cause(guarded), "lost")
		finish()
		b.Must(read.Unlock(reader))
		b.Must(locktest.Await(b, "the writer", got))
		b.Must(write.Unlock(writer))
	}
}

// While the slot of a read/write lock moves, an Attach of a read hold fails, and the ticket keeps the hold. A forced
// release of it frees the lock for the writer that waits.
func TestClusterReaderIsReleasedByForceHalfWay(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 0)
	b := locktest.NewClusterBench(t, cluster)
	c := b.Client(WithPollInterval(100 * time.Millisecond))
	l := c.NewRWLock(b.LockName)
	ticket := b.Detach(b.Hold(l.Read()), time.Hour)
	got := b.StartWaiter(l.Write())
	testredis.Await(b, "the lock, a lease, a heartbeat and a place", locktest.Soon, func() bool { return len(b.Keys()) == 5 })
	finish := cluster.BeginMigration(b.LockName, otherMaster(cluster, b.LockName))
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := c.Attach(short, ticket)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	released, err := l.Read().ForceUnlock(ctx)
	b.Must(err)
	assert.True(t, released)
	finish()
	gets(b, "the lock is free", got)
}

var failovers = flag.Int(
	"failovers",
	1,
	"how many failovers TestSentinelFailovers goes through, with and without WithSyncedReplicas",
)

// A lock that the replicas do not confirm is not held, and leaves nothing behind.
func TestSyncedReplicas(t *testing.T) {
	t.Parallel()
	const confirmation = 500 * time.Millisecond
	cluster := testredis.StartCluster(t, 3, 1)
	for i, kind := range clusterLocks {
		t.Run(kind.Name, func(t *testing.T) { // one after the other: a master refuses its replicas for all of them
			if i%4 > 0 {
				testredis.OnlyLong(t)
			}
			b := locktest.NewClusterBench(t, cluster)
			c := b.Client(WithSyncedReplicas(1, confirmation), WithWatchdogTimeout(2*time.Second))
			l, unsynced := kind.One(c, b.LockName), kind.Rival(b.Client(), b.LockName)
			owner := ContextWithOwner(ctx)
			testredis.Await(b, "the replicas confirm", locktest.ClusterSoon, func() bool {
				return l.LockLease(owner, time.Minute) == nil // no renewal has to be confirmed while the replicas are refused
			})
			b.Must(l.Lock(owner))
			b.Must(l.Unlock(owner))

			master := cluster.MasterOf(b.LockName)
			master.RefuseReplicas()
			b.MustBe(l.Lock(owner), ErrNotSynced) // acquiring it again failed, and leaves the hold unchanged
			n, err := l.HoldCount(owner)
			assert.NoError(t, err)
			assert.Equal(t, 1, n, "levels")
			b.Must(l.Unlock(owner))

			start := time.Now()
			err = l.Lock(owner)
			b.MustBe(err, ErrNotSynced)
			assert.GreaterOrEqual(t, time.Since(start), confirmation)
			assert.LessOrEqual(t, time.Since(start), locktest.Soon)
			assert.ErrorContains(t, err, "0 of 1")
			assert.NotErrorIs(t, err, ErrNotHeld)
			b.MustBe(locktest.Second(l.TryLock(owner, 0, time.Minute)), ErrNotSynced)
			n, err = l.HoldCount(owner)
			assert.NoError(t, err)
			assert.Zero(t, n, "levels")
			testredis.Await(b, "it was released", locktest.Soon, func() bool { return len(b.Keys()) == 0 })
			b.Tries(unsynced, true)
			b.Must(unsynced.Unlock(ctx))

			master.AcceptReplicas()
			testredis.Await(b, "the replica is back", locktest.ClusterSoon, func() bool { return l.Lock(owner) == nil })
			guarded := guardOf(b, owner, l)
			master.RefuseReplicas()
			select { // renewals no longer count
			case <-guarded.Done():
				b.MustBe(context.Cause(guarded), ErrLockLost)
			case <-time.After(locktest.ClusterSoon):
				assert.Fail(t, "renewals count that no replica has confirmed")
			}
			b.MustBe(l.Unlock(owner), ErrLockLost)
			master.AcceptReplicas()
			master.AwaitReplicas("{"+b.LockName+"}", 1)

			if locktest.RecordOf(l) == nil {
				return // its holds cannot be detached
			}
			var h *Hold
			testredis.Await(b, "the replica confirms", locktest.ClusterSoon, func() bool {
				h, _, err = l.(Acquirer).TryAcquire(ctx, 0, time.Minute)
				return err == nil
			})
			master.RefuseReplicas()
			b.MustBe(h.Extend(ctx, time.Hour), ErrNotSynced)
			ticket, err := h.Detach(ctx, time.Hour)
			b.MustBe(err, ErrNotSynced)
			assert.Empty(t, ticket)
			b.Follows(unsynced)
			master.AcceptReplicas()
			master.AwaitReplicas("{"+b.LockName+"}", 1)
		})
	}
}

// A slot that moves to another master: new keys are already there.
func TestSyncedReplicasFollowTheSlot(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 1)
	b := locktest.NewClusterBench(t, cluster)
	l := b.Client(WithSyncedReplicas(1, time.Second)).NewLock(b.LockName)
	b.Must(l.Lock(ctx)) // its client knows the Cluster from here on
	b.Must(l.Unlock(ctx))
	to := otherMaster(cluster, b.LockName)
	finish := cluster.BeginMigration(b.LockName, to)
	b.Must(l.Lock(ctx))
	finish()
	b.Must(l.Lock(ctx))
	b.Must(l.Unlock(ctx))
	b.Must(l.Unlock(ctx))
}

func TestSyncedReplicasWithoutWait(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"no replica":    nil,
		"no permission": {"--user", "default", "on", "nopass", "~*", "&*", "+@all", "-wait"},
		"no such thing": {"--rename-command", "WAIT", ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := locktest.NewBench(t, testredis.Start(t, args...).Addr())
			for kind, newLock := range map[string]locktest.LockMaker{"lock": locktest.NewPlainLock, "fair": locktest.NewFairLock,
				"multi": locktest.NewSlotMultiLock} {
				l := newLock(b.Client(WithSyncedReplicas(1, 20*time.Millisecond)), b.LockName)
				err := l.Lock(ctx)
				b.MustBe(err, ErrNotSynced)
				if name != "no replica" {
					assert.ErrorContains(t, err, "WAIT", kind)
				}
				b.IsLocked(l, false)
			}
		})
	}
}

// Locks that were reported as held, and that the new master after a failover does not have: without WithSyncedReplicas
// the locks that had not reached it yet, and with the option none.
func TestSentinelFailovers(t *testing.T) {
	t.Parallel()
	lost := map[bool]int{}
	for _, synced := range []bool{false, true} {
		var refused int
		s := testredis.StartSentinel(t, 2)
		for i := range *failovers {
			ctx := ContextWithOwner(ctx)
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

// A caller whose attempt finds the lock busy waits for no replica, and occupies no connection.
func TestSyncedReplicasBusy(t *testing.T) {
	t.Parallel()
	b := locktest.NewBench(t, testredis.Start(t).Addr())
	for kind, newLock := range map[string]locktest.LockMaker{"lock": locktest.NewPlainLock, "fair": locktest.NewFairLock, "write": locktest.NewWriteLock,
		"multi": locktest.NewSlotMultiLock} {
		held := newLock(b.Client(), b.LockName+kind)
		b.Must(held.Lock(ctx))
		l := newLock(b.Client(WithSyncedReplicas(1, 2*time.Second)), b.LockName+kind)
		start := time.Now()
		ok, err := l.TryLock(ctx, 0, 0)
		assert.NoError(t, err, kind)
		assert.False(t, ok, kind)
		assert.LessOrEqual(t, time.Since(start), testredis.Scale(start, time.Second), kind)
		b.Must(held.Unlock(ctx))
	}
}
