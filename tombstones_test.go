package relock

// Tombstones: when a field leaves one, and when the tombstone is removed. What the scripts do with it is in
// internal/lua/testdata/ended.txt, and what it costs other clients in costs.txt.
//
// Rules: a request that the proxy holds back may run late; until then its field has a tombstone.

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// onLinedLocks runs test for each type of lock whose processes wait in a line.
func onLinedLocks(t *testing.T, test func(b *faultBench, k faultLock)) {
	t.Parallel()
	onFaultLocks(t, oneRedis(t), func(b *faultBench, k faultLock) {
		if k.lined() {
			test(b, k)
		}
	})
}

// tombstones returns how many fields of the locks of b have a tombstone.
func (b *bench) tombstones() (n int) {
	b.Helper()
	ctx := context.Background()
	lines, err := b.rdb.Keys(ctx, "relock_line:*"+b.name+"*").Result()
	b.must(err)
	for _, line := range lines {
		if over, err := b.rdb.HGet(ctx, line, "over").Result(); err != redis.Nil {
			b.must(err)
			n += len(strings.Fields(over)) / 2
		}
	}
	return n
}

// lines returns the keys of the lines of the locks of b.
func (b *bench) lines() []string {
	b.Helper()
	keys, err := b.rdb.Keys(context.Background(), "relock_line:*"+b.name+"*").Result()
	b.must(err)
	return keys
}

// patient returns a client over the proxy that waits for each answer without a limit.
func (b *faultBench) patient(opts ...Option) *Client {
	return b.clientOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = time.Minute }), opts...)
}

// leaves gives up l as soon as ready is closed: its request is in flight then.
func (b *faultBench) leaves(l Locker, ready <-chan struct{}) {
	b.Helper()
	ctx, cancel := context.WithCancel(ContextWithOwner(context.Background()))
	defer cancel()
	got := make(chan error, 1)
	go func() { got <- l.Lock(ctx) }()
	await(b.bench, "the request is under way", ready)
	cancel()
	b.mustBe(await(b.bench, "Lock", got), context.Canceled)
}

// The answer to the last request of a field removes its tombstone, because no request can run late any more.
func TestTombstoneGoesWithTheLastAnswer(t *testing.T) {
	onLinedLocks(t, func(b *faultBench, k faultLock) {
		rule := b.proxy.On(k.takes, testredis.HoldRequest)
		b.leaves(k.one(b.patient(), b.name), rule.Fired())
		testredis.Await(b, "the field has a tombstone", soon, func() bool { return b.tombstones() > 0 })
		rule.Release()
		testredis.Await(b, "the line is gone", soon, func() bool { return len(b.lines()) == 0 })
		got, err := k.one(b.direct, b.name).TryLock(ContextWithOwner(context.Background()), 0, 0)
		b.must(err)
		assert.True(b, got, "the request has taken the lock")
		b.forget()
	})
}

// A request was sent twice, and one of both was answered: the other one may still run.
func TestTombstoneStaysWhileAnotherTryMayRun(t *testing.T) {
	b := newFaultBench(t)
	first := b.proxy.On(calls(lockAcquire), testredis.HoldRequest)
	again := b.proxy.On(calls(lockAcquire), testredis.HoldRequest)
	drops := b.proxy.On(calls(tombstoneRemove), testredis.DelayRequest(0)).Times(testredis.Always)
	b.leaves(b.patient().NewLock(b.name), again.Fired())
	testredis.Await(b, "the field has a tombstone", soon, func() bool { return b.tombstones() == 1 })
	ran := b.scriptRuns()
	again.Release()
	testredis.Await(b, "the second request has run", soon, func() bool { return b.scriptRuns() > ran })
	assert.Never(b, func() bool { return b.tombstones() == 0 }, 100*time.Millisecond, 5*time.Millisecond, "the tombstone")
	assert.Zero(b, drops.Count(), "requests that take the tombstone away")
	first.Release()
	testredis.Await(b, "the line is gone", soon, func() bool { return len(b.lines()) == 0 })
	assert.Empty(b, b.holder(), "the holder")
}

// If the connection has failed, no answer arrives for the request, which may run for as long as the tombstone lasts.
func TestTombstoneOfALostRequestStays(t *testing.T) {
	b := newFaultBench(t)
	rule := b.proxy.On(calls(lockAcquire), testredis.HoldRequest)
	drops := b.proxy.On(calls(tombstoneRemove), testredis.DelayRequest(0)).Times(testredis.Always)
	c := b.clientOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = 300 * time.Millisecond }))
	b.leaves(c.NewLock(b.name), rule.Fired())
	testredis.Await(b, "the field has a tombstone", soon, func() bool { return b.tombstones() == 1 })
	b.must(c.Close()) // waits for the request
	assert.Zero(b, drops.Count(), "requests that take the tombstone away")
	ran := b.scriptRuns()
	rule.Release()
	testredis.Await(b, "the request has run", soon, func() bool { return b.scriptRuns() > ran })
	assert.Empty(b, b.holder(), "the holder")
	assert.Equal(b, 1, b.tombstones())
	b.must(b.rdb.Del(context.Background(), b.lineKey()).Err())
}

// A hold was released by force, and a request that asked for it may still run, although no answer to it will arrive: it
// acquires the lock for no owner.
func TestForcedReleaseOfAHoldWithALostRequestLeavesATombstone(t *testing.T) {
	b := newFaultBench(t)
	ctx := ContextWithOwner(context.Background())
	rule := b.proxy.On(calls(lockAcquire), testredis.HoldRequest)
	c := b.clientOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = 300 * time.Millisecond }))
	l := c.NewLock(b.name)
	b.must(l.LockLease(ctx, time.Hour)) // the second try
	guarded, err := l.Guard(ctx)
	b.must(err)
	_, err = b.direct.NewLock(b.name).ForceUnlock(ctx)
	b.must(err)
	_, err = l.HoldCount(ctx) // asks Redis
	b.must(err)
	<-guarded.Done()
	testredis.Await(b, "the field has a tombstone", soon, func() bool { return b.tombstones() == 1 })
	ran := b.scriptRuns()
	rule.Release()
	testredis.Await(b, "the request has run", soon, func() bool { return b.scriptRuns() > ran })
	assert.Empty(b, b.holder(), "the holder")
	b.must(b.rdb.Del(context.Background(), b.lineKey()).Err())
}

// The next caller of the process gets the entry, and the field, of a caller that left while it asked. When all requests
// have been answered, its release leaves no tombstone.
func TestTombstoneIsNotInherited(t *testing.T) {
	b := newFaultBench(t)
	b.opts = []Option{WithPollInterval(time.Hour)}
	first := b.contender().takes()
	late := b.contenderOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = time.Minute }))
	rule := b.proxy.On(asksIn(contract.Push), testredis.HoldRequest)
	ctx, cancel := context.WithCancel(late.owner)
	late.owner = ctx
	late.asks()
	await(b.bench, "the request that joins is under way", rule.Fired())
	next := late.sibling().asks()
	testredis.Await(b, "the other owner waits", soon, func() bool { return b.waitsInQueue(next.lock) })
	cancel()
	b.mustBe(await(b.bench, "Lock", late.got), context.Canceled)
	next.joined()
	rule.Release()
	testredis.Await(b, "all is answered", soon, func() bool { return late.client.engine.Probe().Stats().Late == 0 })
	first.unlocks()
	next.gets().unlocks()
	assert.Empty(b, b.lines(), "the line")
}

// A grant that arrives after its wait has ended is released. If all requests of the wait were answered, none can run
// late.
func TestLateGrantOfAnAnsweredWaitLeavesNoTombstone(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.manual().takes()
		c := b.contender()
		ctx, cancel := context.WithCancel(c.owner)
		c.owner = ctx
		c.joins()
		p := c.placeOf(c.client.ID())
		cancel()
		b.mustBe(await(b, "Lock", c.got), context.Canceled)
		testredis.Await(b, "the place is given up", soon, func() bool { return len(b.clientsInLine()) == 0 })
		ran := c.settled()
		hears := func(field string) {
			c.client.engine.Probe().HearGrant(c.lock.record, fmt.Sprintf("grant %s %d 5000 0", field, p.asked))
			ran++
			c.awaitScripts(ran)
			c.settled()
		}
		hears(p.field)
		assert.False(b, b.ended(p.field), "a tombstone")
		unknown := c.client.ID() + ":1:0999"
		hears(unknown)
		assert.True(b, b.ended(unknown), "of this field the process knows nothing")
	})
}

// commands returns how many commands Redis runs while do runs, including those in scripts.
func (b *bench) commands(do func()) int {
	b.Helper()
	ctx := context.Background()
	b.must(b.rdb.ConfigResetStat(ctx).Err())
	do()
	stats, err := b.rdb.Info(ctx, "commandstats").Result()
	b.must(err)
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

// docs/limits.md says how many fields of a lock can have a tombstone: the last ones. The request of an earlier one may
// acquire the lock if it runs late.
func TestTombstonesOfALockAreLimited(t *testing.T) {
	t.Parallel()
	const most = 100
	page, err := os.ReadFile("docs/limits.md")
	require.NoError(t, err)
	assert.Regexp(t, fmt.Sprintf(`(?m)^\| requests of callers that have left, .* \| %d in a minute \|`, most), string(page))
	s := testredis.Start(t)
	for name, of := range map[string]func(c *Client, name string) contract.Record{
		"lock": recordOfLock, "fair": recordOfFair, "write": recordOfWriter, "semaphore": recordOfSemaphore,
	} {
		t.Run(name, func(t *testing.T) {
			b := newReleaseBench(t, s, releaseKind{name: name, mine: of, wait: of})
			l, fields := of(b.me, b.name), []string{}
			for i := range most + 1 {
				a := attemptOf(b.me)
				a.Field, a.Late = fmt.Sprintf("%s:%d:0%d", b.me.ID(), i, i+1), true
				b.does(l.RollBack(a), -1)
				fields = append(fields, a.Field)
			}
			for i, first := range map[int]int64{most: 0, 1: 0, 0: 1} {
				a := attemptOf(b.me)
				a.Field = fields[i]
				b.does(l.Acquire(a), first)
			}
		})
	}
}

// Row 25: Redis is out of memory. Whatever ends a field leaves its tombstone all the same: a request that runs late, when
// Redis has memory again, acquires nothing, and takes no detached hold from its ticket.
func TestTombstoneNeedsNoMemory(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t, "--maxmemory-policy", "noeviction")
	for name, of := range map[string]func(c *Client, name string) contract.Record{
		"lock": recordOfLock, "fair": recordOfFair, "read": recordOfReader, "write": recordOfWriter,
		"semaphore": recordOfSemaphore,
	} {
		t.Run(name, func(t *testing.T) {
			b := newReleaseBench(t, s, releaseKind{name: name, mine: of, wait: of})
			l, a := of(b.me, b.name), attemptOf(b.me)
			a.Delivery, a.Late = contract.Barge, true
			detached := a
			detached.Field = b.me.ID() + ":0:0123456789012345"
			withoutMemory := func(c call, first int64) {
				b.must(b.rdb.ConfigSet(t.Context(), "maxmemory", "1").Err())
				b.does(c, first)
				b.must(b.rdb.ConfigSet(t.Context(), "maxmemory", "0").Err())
			}
			attach := contract.Rename{From: detached.Field, To: a.Field, Lease: time.Minute, Ends: math.MaxInt64 >> 10}
			detach := contract.Rename{From: a.Field, To: detached.Field, Lease: time.Minute, Late: true}
			b.must(b.rdb.FlushDB(t.Context()).Err())
			if name != "read" { // an attempt of a reader has no tombstone
				withoutMemory(l.RollBack(a), -1)
				b.does(l.Acquire(a), 0)
				b.must(b.rdb.FlushDB(t.Context()).Err())
				withoutMemory(l.Rename(detach), -1)
				b.does(l.Acquire(a), 0)
				b.must(b.rdb.FlushDB(t.Context()).Err())
			} else {
				split := contract.Rename{From: a.Field, To: detached.Field, Lease: time.Minute, Splits: true}
				b.does(l.Acquire(a), 1)
				withoutMemory(l.Release(released(detached.Field, 0, false)), -1)
				b.does(l.Rename(split), -1)
				b.must(b.rdb.FlushDB(t.Context()).Err())
			}
			b.does(l.Acquire(detached), 1)
			withoutMemory(l.Rename(detach), 1) // an Attach gives up before its request has run
			b.does(l.Rename(attach), -1)
		})
	}
}
