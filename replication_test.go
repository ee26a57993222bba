package relock

// Every lock type when a replica takes over: with the record, and without it, which
// no lock in Redis can prevent. Then the old holder is told, frees nobody else, and
// a fencing token tells who is the old one. A slot that is half way to another
// master is here too.
//
// Rules: all lock types go through one failover together, for these take seconds.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/relock-go/relock/internal/testredis"
)

// takeoverTime is how long clients may take to find a new master.
const takeoverTime = 20 * time.Second

// A survivor is a lock of one type that is held when the master goes, and its rival.
type survivor struct {
	kind     string
	name     string
	l, rival Locker
	owner    context.Context
	guarded  context.Context
	token    int64
	next     chan error // what rival.Lock returned
}

// takeovers are the lock types for which a takeover is a risk: a RedLock has
// independent servers, see redlock_test.go; and a MultiLock of several masters is
// in TestClusterFailover.
var takeovers = append(slices.DeleteFunc(slices.Clone(clusterLocks), func(k clusterLock) bool {
	return strings.HasPrefix(k.name, "multi")
}), clusterLock{"multi", newPairLock, newPairLock})

// newPairLock is a MultiLock of one slot, if name has a tag.
func newPairLock(c *Client, name string) Locker {
	return c.NewMultiLock(c.NewLock(name), c.NewLock(name+"-2"))
}

// takeoverLocks has the lock of every type held.
func takeoverLocks(t *testing.T, client func(opts ...Option) *Client, tag string, lease time.Duration) (all []*survivor) {
	for _, k := range takeovers {
		name := tag + k.name
		s := &survivor{kind: k.name, name: name, owner: WithOwner(context.Background()), next: make(chan error, 1)}
		s.l, s.rival = k.one(client(WithWatchdogTimeout(lease)), name), k.rival(client(), name)
		if err := s.l.Lock(s.owner); err != nil {
			t.Fatal(k.name, err)
		}
		var err error
		if s.guarded, err = s.l.Guard(s.owner); err != nil {
			t.Fatal(k.name, err)
		}
		s.token = tokenFor(s.owner, s.l)
		all = append(all, s)
	}
	return all
}

// tokenFor is the fencing token of l, or 0 if it has none.
func tokenFor(ctx context.Context, l Locker) int64 {
	if f, ok := l.(*Lock); ok && f.fenced {
		token, _ := f.Token(ctx)
		return token
	}
	return 0
}

// awaitAll has the rivals wait for all locks, and returns once they are heard on
// the server of that client.
func awaitAll(t *testing.T, all []*survivor, rdb *redis.Client) {
	t.Helper()
	for _, s := range all {
		go func() { s.next <- s.rival.Lock(s.owner) }()
	}
	testredis.Await(t, "all rivals are subscribed", clusterSoon, func() bool {
		plain, _ := rdb.PubSubChannels(context.Background(), "*").Result()
		sharded, _ := rdb.PubSubShardChannels(context.Background(), "*").Result()
		heard := strings.Join(append(plain, sharded...), " ")
		return !slices.ContainsFunc(all, func(s *survivor) bool { return !strings.Contains(heard, s.name) })
	})
}

// goesOn is what must happen where the record has survived.
func (s *survivor) goesOn(t *testing.T) {
	t.Helper()
	testredis.Await(t, s.kind+": the holder finds the new master", takeoverTime, func() bool {
		held, err := s.l.IsHeld(s.owner)
		return held && err == nil
	})
	select {
	case err := <-s.next:
		t.Errorf("%s: a second holder: %v", s.kind, err)
	default:
	}
	if s.guarded.Err() != nil {
		t.Errorf("%s: %v", s.kind, context.Cause(s.guarded))
	}
	if err := s.l.Unlock(s.owner); err != nil {
		t.Errorf("%s: %v", s.kind, err)
	}
	s.isNext(t)
}

// takes has the rival take the lock once it finds the new master: somebody who has
// not heard of Redis yet is told of an outage at once.
func (s *survivor) takes() error {
	var err error
	for start := time.Now(); time.Since(start) < takeoverTime; {
		if err = s.rival.Lock(s.owner); err == nil {
			return nil
		}
	}
	return err
}

// isNext waits until the rival has the lock.
func (s *survivor) isNext(t *testing.T) {
	t.Helper()
	select {
	case err := <-s.next:
		if err != nil {
			t.Fatalf("%s: %v", s.kind, err)
		}
	case <-time.After(takeoverTime):
		t.Fatalf("%s: the rival waits in vain", s.kind)
	}
}

// isLost is what must happen where the record has not survived.
func (s *survivor) isLost(t *testing.T) {
	t.Helper()
	s.isNext(t) // on the new master nobody has it
	if token := tokenFor(s.owner, s.rival); s.token != 0 && token <= s.token {
		t.Errorf("%s: token %d after %d", s.kind, token, s.token)
	}
	select {
	case <-s.guarded.Done():
	case <-time.After(takeoverTime):
		t.Fatalf("%s: the old holder is not told", s.kind)
	}
	if cause := context.Cause(s.guarded); !errors.Is(cause, ErrLockLost) {
		t.Errorf("%s: %v", s.kind, cause)
	}
	if err := s.l.Unlock(s.owner); !errors.Is(err, ErrLockLost) {
		t.Errorf("%s: unlock: %v", s.kind, err)
	}
	if held, err := s.rival.IsHeld(s.owner); !held || err != nil {
		t.Errorf("%s: the new holder: %v, %v", s.kind, held, err)
	}
}

func (s *survivor) end(t *testing.T) {
	t.Helper()
	if err := s.rival.Unlock(s.owner); err != nil {
		t.Errorf("%s: %v", s.kind, err)
	}
}

// Rows 14, 18, 20, 21, on a primary with a replica and sentinels.
func TestSentinelTakeover(t *testing.T) {
	t.Parallel()
	sentinel := testredis.StartSentinel(t, 1)
	b := &bench{T: t}
	client := func(opts ...Option) *Client {
		return b.clientOn(sentinel.Client(func(o *redis.FailoverOptions) { o.ReadTimeout = time.Second }), opts...)
	}

	// The replica has heard of everything: nobody loses anything.
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

	// The replica has not heard of it, and the old primary comes back and thinks for
	// a while that it still is one: what its clients hear there must not last.
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

// Rows 18, 53, on a Cluster. The other half is TestClusterFailover.
func TestClusterFailoverLosesTheRecord(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 1)
	b := &bench{T: t}
	client := func(opts ...Option) *Client { return b.clientOn(cluster.Client(), opts...) }
	tag := fmt.Sprintf("{unheard-%d}", benches.Add(1))
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

// Row 51: a slot is half way to another master, for longer than a lease. What is
// held stays held; what is asked for anew comes or is refused, and then comes when
// the slot has arrived.
func TestClusterSlotHalfWay(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 0)
	ctx := context.Background()
	b := &bench{T: t}
	client := func(opts ...Option) *Client {
		return b.clientOn(cluster.Client(), append([]Option{WithMaxWakeDelay(100 * time.Millisecond)}, opts...)...)
	}
	const lease = 2 * time.Second
	tag := fmt.Sprintf("{half-way-%d}", benches.Add(1))
	all := takeoverLocks(t, client, tag, lease)
	awaitAll(t, all, cluster.MasterOf(tag).Client())
	alone := map[Locker]context.Context{} // nobody waits for them, so that nothing of a queue is there
	for _, k := range takeovers {
		l := k.one(client(WithWatchdogTimeout(lease)), tag+"-alone-"+k.name)
		b.must(l.Lock(ctx))
		guarded, err := l.Guard(ctx)
		b.must(err)
		alone[l] = guarded
	}
	to := cluster.Nodes()[0]
	if to == cluster.MasterOf(tag) {
		to = cluster.Nodes()[1]
	}
	finish := cluster.BeginMigration(tag, to)
	passes := map[string]bool{}
	for _, k := range takeovers {
		l := k.one(client(), tag+"-new-"+k.name)
		ok, err := l.TryLock(ctx, 0, 0)
		if err != nil && !strings.Contains(err.Error(), "TRYAGAIN") || err == nil && !ok {
			t.Errorf("%s: %v, %v", k.name, ok, err)
		}
		if passes[k.name] = ok; !ok {
			continue
		}
		if err := l.Unlock(ctx); err != nil {
			t.Errorf("%s: %v", k.name, err)
		}
	}
	if !passes["lock"] {
		t.Error("a lock of one key cannot be taken while its slot is half way")
	}
	time.Sleep(lease + lease/4)
	for _, s := range all {
		select {
		case err := <-s.next:
			t.Errorf("%s: the rival: %v, while %v", s.kind, err, context.Cause(s.guarded))
		default:
		}
	}
	for l, guarded := range alone {
		if guarded.Err() != nil {
			t.Errorf("%s: %v", l.Name(), context.Cause(guarded))
		}
	}
	finish()
	for l, guarded := range alone {
		if guarded.Err() == nil {
			b.must(l.Unlock(ctx))
		}
	}
	for _, s := range all {
		s.goesOn(t)
		s.end(t)
	}
}

// C1, while the keys of a read/write lock are on two servers: a reader whose lease has
// not come yet, or has gone ahead, is not taken for dead, neither by itself nor by a writer.
func TestClusterReaderHalfWay(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 3, 0)
	ctx := context.Background()
	for _, leasesFirst := range []bool{false, true} {
		b := &bench{T: t}
		name := fmt.Sprintf("{reader-half-way-%d}", benches.Add(1))
		read := b.clientOn(cluster.Client(), WithWatchdogTimeout(3*time.Second)).NewRWLock(name).Read()
		write := b.clientOn(cluster.Client(), WithMaxWakeDelay(50*time.Millisecond)).NewRWLock(name).Write()
		reader, writer := WithOwner(ctx), WithOwner(ctx)
		b.must(read.Lock(reader))
		guarded, err := read.Guard(reader)
		b.must(err)
		got := make(chan error, 1)
		go func() { got <- write.Lock(writer) }()
		from, to := cluster.MasterOf(name), cluster.Nodes()[0]
		if to == from {
			to = cluster.Nodes()[1]
		}
		testredis.Await(b, "the sign of a writer", time.Second, func() bool {
			return from.Client().Exists(ctx, "relock_rwlock_writers:"+name).Val() == 1
		})
		finish := cluster.BeginMigration(name, to)
		host, port, err := net.SplitHostPort(to.Addr())
		b.must(err)
		for _, key := range from.Client().Keys(ctx, "*"+name+"*").Val() {
			if strings.Contains(key, "rwlock_timeout") == leasesFirst {
				b.must(from.Client().Migrate(ctx, host, port, key, 0, 2*time.Second).Err())
			}
		}
		stays(b, "a writer beside a reader", got, 1500*time.Millisecond) // longer than a renewal takes
		if guarded.Err() != nil {
			t.Errorf("lost: %v", context.Cause(guarded))
		}
		finish()
		b.must(read.Unlock(reader))
		b.must(await(b, "the writer", got))
		b.must(write.Unlock(writer))
	}
}
