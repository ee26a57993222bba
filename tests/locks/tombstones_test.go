package locks

// Tombstones: when a field leaves one. What the scripts do with it is in
// internal/lua/testdata/ended.txt, and what it costs other clients in costs.txt.
//
// Rules: a request that the proxy holds back may run late; until then its field has a tombstone.

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
)

// onLinedLocks runs test for each type of lock whose processes wait in a line.
func onLinedLocks(t *testing.T, test func(b *locktest.FaultBench, k locktest.FaultLock)) {
	t.Parallel()
	locktest.OnFaultLocks(t, locktest.OneRedis(t), func(b *locktest.FaultBench, k locktest.FaultLock) {
		if k.Lined() {
			test(b, k)
		}
	})
}

// tombstones returns how many fields of the locks of b have a tombstone.
func tombstones(b *locktest.Bench) (n int) {
	b.Helper()
	lines, err := b.Rdb.Keys(ctx, "relock_line:*"+b.LockName+"*:waits").Result()
	b.Must(err)
	for _, line := range lines {
		for _, field := range b.Rdb.HKeys(ctx, line).Val() {
			if len(field) > 36 {
				n++
			}
		}
	}
	return n
}

// lines returns the keys of the lines of the locks of b.
func lines(b *locktest.Bench) []string {
	b.Helper()
	keys, err := b.Rdb.Keys(ctx, "relock_line:*"+b.LockName+"*").Result()
	b.Must(err)
	return keys
}

// patient returns a client over the proxy that waits for each answer without a limit.
func patient(b *locktest.FaultBench, opts ...Option) *Client {
	return b.ClientOn(b.Proxy.Client(func(o *redis.Options) { o.ReadTimeout = time.Minute }), opts...)
}

// leaves gives up l as soon as ready is closed: its request is in flight then.
func leaves(b *locktest.FaultBench, l Locker, ready <-chan struct{}) {
	b.Helper()
	ctx, cancel := context.WithCancel(ContextWithOwner(ctx))
	defer cancel()
	got := make(chan error, 1)
	go func() { got <- l.Lock(ctx) }()
	locktest.Await(b.Bench, "the request is under way", ready)
	cancel()
	b.MustBe(locktest.Await(b.Bench, "Lock", got), context.Canceled)
}

// A request that runs after its caller has left takes nothing.
func TestLateRequestOfAFieldWithATombstoneTakesNothing(t *testing.T) {
	onLinedLocks(t, func(b *locktest.FaultBench, k locktest.FaultLock) {
		rule := b.Proxy.On(k.Takes, testredis.HoldRequest)
		leaves(b, k.One(patient(b), b.LockName), rule.Fired())
		testredis.Await(b, "the field has a tombstone", locktest.Soon, func() bool { return tombstones(b.Bench) > 0 })
		ran := b.ScriptRuns()
		rule.Release()
		testredis.Await(b, "the request has run", locktest.Soon, func() bool { return b.ScriptRuns() > ran })
		got, err := k.One(b.Direct, b.LockName).TryLock(ContextWithOwner(ctx), 0, 0)
		b.Must(err)
		assert.True(b, got, "the request has taken the lock")
		b.Forget()
	})
}

// If the connection has failed, no answer arrives for the request, which may run for as long as the tombstone lasts.
func TestTombstoneOfALostRequestStays(t *testing.T) {
	b := locktest.NewFaultBench(t)
	rule := b.Proxy.On(locktest.Calls(record.Script("lock_acquire")), testredis.HoldRequest)
	c := b.ClientOn(b.Proxy.Client(func(o *redis.Options) { o.ReadTimeout = 300 * time.Millisecond }))
	leaves(b, c.NewLock(b.LockName), rule.Fired())
	testredis.Await(b, "the field has a tombstone", locktest.Soon, func() bool { return tombstones(b.Bench) == 1 })
	b.Must(c.Close()) // waits for the request
	ran := b.ScriptRuns()
	rule.Release()
	testredis.Await(b, "the request has run", locktest.Soon, func() bool { return b.ScriptRuns() > ran })
	assert.Empty(b, b.Holder(), "the holder")
	assert.Equal(b, 1, tombstones(b.Bench))
	b.Must(b.Rdb.Del(ctx, b.WaitsKey()).Err())
}

// A hold was released by force, and a request that asked for it may still run, although no answer to it will arrive: it
// acquires the lock for no owner.
func TestForcedReleaseOfAHoldWithALostRequestLeavesATombstone(t *testing.T) {
	b := locktest.NewFaultBench(t)
	ctx := ContextWithOwner(ctx)
	rule := b.Proxy.On(locktest.Calls(record.Script("lock_acquire")), testredis.HoldRequest)
	c := b.ClientOn(b.Proxy.Client(func(o *redis.Options) { o.ReadTimeout = 300 * time.Millisecond }))
	l := c.NewLock(b.LockName)
	b.Must(l.LockLease(ctx, time.Hour)) // the second try
	guarded, err := l.Guard(ctx)
	b.Must(err)
	_, err = b.Direct.NewLock(b.LockName).ForceUnlock(ctx)
	b.Must(err)
	_, err = l.HoldCount(ctx) // asks Redis
	b.Must(err)
	<-guarded.Done()
	testredis.Await(b, "the field has a tombstone", locktest.Soon, func() bool { return tombstones(b.Bench) == 1 })
	ran := b.ScriptRuns()
	rule.Release()
	testredis.Await(b, "the request has run", locktest.Soon, func() bool { return b.ScriptRuns() > ran })
	assert.Empty(b, b.Holder(), "the holder")
	b.Must(b.Rdb.Del(context.Background(), b.WaitsKey()).Err())
}

// The next caller of the process gets the entry, and the field, of a caller that left while it asked. When all requests
// have been answered, its release leaves no tombstone.
func TestTombstoneIsNotInherited(t *testing.T) {
	b := locktest.NewFaultBench(t)
	b.Opts = []Option{WithPollInterval(time.Hour)}
	first := contender(b.Bench).takes()
	late := contenderOn(b.Bench, b.Proxy.Client(func(o *redis.Options) { o.ReadTimeout = time.Minute }))
	rule := b.Proxy.On(asksIn(contract.Push), testredis.HoldRequest)
	ctx, cancel := context.WithCancel(late.owner)
	late.owner = ctx
	late.asks()
	locktest.Await(b.Bench, "the request that joins is under way", rule.Fired())
	next := late.sibling().asks()
	testredis.Await(b, "the other owner waits", locktest.Soon, func() bool { return b.WaitsInQueue(next.lock) })
	cancel()
	b.MustBe(locktest.Await(b.Bench, "Lock", late.got), context.Canceled)
	next.joined()
	rule.Release()
	testredis.Await(b, "all is answered", locktest.Soon, func() bool { return locktest.EngineOf(late.client).Probe().Stats().Late == 0 })
	first.unlocks()
	next.gets().unlocks()
	assert.Empty(b, lines(b.Bench), "the line")
}

// A grant that arrives after its wait has ended is released. If all requests of the wait were answered, none can run
// late.
func TestLateGrantOfAnAnsweredWaitLeavesNoTombstone(t *testing.T) {
	onEachLine(t, func(b *locktest.Bench) {
		b.Manual().Takes()
		c := contender(b)
		ctx, cancel := context.WithCancel(c.owner)
		c.owner = ctx
		c.joins()
		p := placeOf(c.Bench, c.client.ID())
		cancel()
		b.MustBe(locktest.Await(b, "Lock", c.got), context.Canceled)
		testredis.Await(b, "the place is given up", locktest.Soon, func() bool { return len(b.ClientsInLine()) == 0 })
		ran := c.settled()
		locktest.EngineOf(c.client).Probe().HearGrant(locktest.RecordOf(c.lock), fmt.Sprintf("grant %s %d 5000 0", p.Field, p.Asked))
		c.awaitScripts(ran + 1)
		c.settled()
		assert.False(b, slices.Contains(b.Tombstones(), p.Field), "a tombstone")
	})
}

// commands returns how many commands Redis runs while do runs, including those in scripts.
func commands(b *locktest.Bench, do func()) int {
	b.Helper()
	b.Must(b.Rdb.ConfigResetStat(ctx).Err())
	do()
	stats, err := b.Rdb.Info(ctx, "commandstats").Result()
	b.Must(err)
	all := 0
	for _, line := range strings.Split(stats, "\r\n") {
		var calls int
		name, rest, _ := strings.Cut(line, ":")
		if _, err := fmt.Sscanf(rest, "calls=%d,", &calls); err == nil && name != "cmdstat_config|resetstat" {
			all += calls
		}
	}
	return all
}

// Row 25: Redis is out of memory. Whatever ends a field leaves its tombstone all the same: a request that runs late, when
// Redis has memory again, acquires nothing, and takes no detached hold from its ticket.
func TestTombstoneNeedsNoMemory(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t, "--maxmemory-policy", "noeviction")
	for name, of := range map[string]func(c *Client, name string) contract.Record{
		"lock": locktest.RecordOfLock, "fair": locktest.RecordOfFair, "read": locktest.RecordOfReader, "write": locktest.RecordOfWriter,
		"semaphore": locktest.RecordOfSemaphore,
	} {
		t.Run(name, func(t *testing.T) {
			b := locktest.NewReleaseBench(t, s, locktest.ReleaseKind{Name: name, Mine: of, Wait: of})
			l, a := of(b.Me, b.LockName), locktest.AttemptOf(b.Me)
			a.Delivery, a.Late = contract.Barge, true
			detached := a
			detached.Field = b.Me.ID() + ":0:123456789012345"
			withoutMemory := func(c send.Call, first int64) {
				b.Must(b.Rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
				b.Does(c, first)
				b.Must(b.Rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
			}
			attach := contract.Rename{From: detached.Field, To: a.Field, Lease: time.Minute, Ends: math.MaxInt64 >> 10}
			detach := contract.Rename{From: a.Field, To: detached.Field, Lease: time.Minute, Late: true}
			b.Must(b.Rdb.FlushDB(t.Context()).Err())
			if name != "read" { // an attempt of a reader has no tombstone
				withoutMemory(l.RollBack(a), -1)
				b.Does(l.Acquire(a), 0)
				b.Must(b.Rdb.FlushDB(t.Context()).Err())
				withoutMemory(l.Rename(detach), -1)
				b.Does(l.Acquire(a), 0)
				b.Must(b.Rdb.FlushDB(t.Context()).Err())
			} else {
				split := contract.Rename{From: a.Field, To: detached.Field, Lease: time.Minute, Splits: true}
				b.Does(l.Acquire(a), 1)
				withoutMemory(l.Release(locktest.Released(detached.Field, 0, false)), -1)
				b.Does(l.Rename(split), -1)
				b.Must(b.Rdb.FlushDB(t.Context()).Err())
			}
			b.Does(l.Acquire(detached), 1)
			withoutMemory(l.Rename(detach), 1) // an Attach gives up before its request has run
			b.Does(l.Rename(attach), -1)
		})
	}
}
