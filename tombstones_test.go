package relock

// Tombstones: where a field leaves one, when it goes, and what it costs those that have nothing to do with it.
//
// Rules: a request that the proxy holds may run late; until then its field has a tombstone.

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/testredis"
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

// tombstones is how many fields of the locks of b have one.
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

// lines are the keys of the lines of the locks of b.
func (b *bench) lines() []string {
	b.Helper()
	keys, err := b.rdb.Keys(context.Background(), "relock_line:*"+b.name+"*").Result()
	b.must(err)
	return keys
}

// patient returns a client over the proxy that waits for each answer for as long as it takes.
func (b *faultBench) patient(opts ...Option) *Client {
	return b.clientOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = time.Minute }), opts...)
}

// leaves gives up l as soon as ready is closed: its request is under way then.
func (b *faultBench) leaves(l Locker, ready <-chan struct{}) {
	b.Helper()
	ctx, cancel := context.WithCancel(WithOwner(context.Background()))
	defer cancel()
	got := make(chan error, 1)
	go func() { got <- l.Lock(ctx) }()
	await(b.bench, "the request is under way", ready)
	cancel()
	b.mustBe(await(b.bench, "Lock", got), context.Canceled)
}

// The answer to the last request of a field takes its tombstone away: nothing can run late any more.
func TestTombstoneGoesWithTheLastAnswer(t *testing.T) {
	onLinedLocks(t, func(b *faultBench, k faultLock) {
		rule := b.proxy.On(k.takes, testredis.HoldRequest)
		b.leaves(k.one(b.patient(), b.name), rule.Fired())
		testredis.Await(b, "the field has a tombstone", soon, func() bool { return b.tombstones() > 0 })
		rule.Release()
		testredis.Await(b, "the line is gone", soon, func() bool { return len(b.lines()) == 0 })
		got, err := k.one(b.direct, b.name).TryLock(WithOwner(context.Background()), 0, 0)
		b.must(err)
		assert.True(b, got, "the request has taken the lock")
		b.forget()
	})
}

// A request was sent again, and one of both has been answered: the other one may still run.
func TestTombstoneStaysWhileAnotherTryMayRun(t *testing.T) {
	b := newFaultBench(t)
	first := b.proxy.On(calls(lockAcquire), testredis.HoldRequest)
	again := b.proxy.On(calls(lockAcquire), testredis.HoldRequest)
	drops := b.proxy.On(calls(tombstoneUndo), testredis.DelayRequest(0)).Times(testredis.Always)
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

// Where the connection has failed nobody hears of the request, which may run for as long as the tombstone lasts.
func TestTombstoneOfALostRequestStays(t *testing.T) {
	b := newFaultBench(t)
	rule := b.proxy.On(calls(lockAcquire), testredis.HoldRequest)
	drops := b.proxy.On(calls(tombstoneUndo), testredis.DelayRequest(0)).Times(testredis.Always)
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

// A service whose callers have a time limit leaves nothing that lasts.
func TestCallersThatLeaveLeaveNoTombstone(t *testing.T) {
	onLinedLocks(t, func(b *faultBench, k faultLock) {
		l := k.one(b.patient(), b.name)
		slow := b.proxy.On(k.takes, testredis.DelayReply(20*time.Millisecond)).Times(testredis.Always)
		for range 30 {
			before := slow.Count()
			ready := make(chan struct{})
			go func() {
				defer close(ready)
				testredis.Await(b, "the request has run", soon, func() bool { return slow.Count() > before })
			}()
			ctx, cancel := context.WithCancel(WithOwner(context.Background()))
			got := make(chan error, 1)
			go func() { got <- l.Lock(ctx) }()
			await(b.bench, "the request is under way", ready)
			cancel()
			if err := await(b.bench, "Lock", got); err == nil {
				b.must(l.Unlock(ctx))
			} else {
				b.mustBe(err, context.Canceled)
			}
		}
		testredis.Await(b, "the line is gone", soon, func() bool { return len(b.lines()) == 0 })
	})
}

// The next caller of the process has the place, and the field, of one that left while it asked. When all has been
// answered its release leaves no tombstone.
func TestTombstoneIsNotInherited(t *testing.T) {
	b := newFaultBench(t)
	b.opts = []Option{WithMaxWakeDelay(time.Hour)}
	first := b.contender().takes()
	late := b.contenderOn(b.proxy.Client(func(o *redis.Options) { o.ReadTimeout = time.Minute }))
	rule := b.proxy.On(asksIn(engine.HearsGrant), testredis.HoldRequest)
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

// A grant that comes when its wait is over is given back. Where all requests of the wait were answered nothing can run
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

// buryOthers gives the line at key tombstones of other fields.
func (b *bench) buryOthers(key string, n int) {
	b.Helper()
	ctx := context.Background()
	if n == 0 {
		b.must(b.rdb.Del(ctx, key).Err())
		return
	}
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("%s:%d:0%d %d", uuid.NewString(), i, i, time.Now().Add(time.Minute).UnixMilli()))
	}
	b.must(b.rdb.HSet(ctx, key, "over", strings.Join(all, " ")).Err())
	b.must(b.rdb.PExpire(ctx, key, time.Minute).Err())
}

// commands are how many commands Redis runs while do runs, in scripts, too.
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

// The tombstones of others cost a lock that no process waits for one command, to see that none of them is of the
// caller.
func TestTombstonesOfOthersCostOneCommand(t *testing.T) {
	t.Parallel()
	b := newLineBench(t, testredis.Start(t).Addr())
	for what, l := range map[string]Locker{
		"plain": b.client().NewLock(b.name + "1"), "fenced": b.client().NewLock(b.name+"2", Fenced()),
		"write": newWriteLock(b.client(), b.name+"3"), "semaphore": b.client().NewSemaphore(b.name+"4", 3),
	} {
		ctx := WithOwner(context.Background())
		section := func() {
			b.must(l.Lock(ctx))
			b.must(l.Unlock(ctx))
		}
		section() // the connections are there, and the permits
		free := b.commands(section)
		for _, n := range []int{1, 100} {
			b.buryOthers(lineKey(l.Name()), n)
			assert.LessOrEqual(b, b.commands(section), free+1, "%s: commands with %d tombstones, %d without", what, n, free)
			assert.Equal(b, []string{"over"}, b.rdb.HKeys(ctx, lineKey(l.Name())).Val(), "%s: the line", what)
		}
		b.buryOthers(lineKey(l.Name()), 0)
	}
}

// A line in which no client has a place any more has its tombstones, and nothing else.
func TestLineThatEndsLeavesItsTombstonesAlone(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first, waiter, other := b.manual().takes(), b.manual().listens().joins(), b.manual().listens().joins()
		waiter.release(true)
		other.release(false)
		first.release(false)
		keys, err := b.rdb.HKeys(context.Background(), b.lineKey()).Result()
		b.must(err)
		assert.Equal(b, []string{"over"}, keys)
		assert.True(b, b.ended(waiter.field))
	})
}

// A tombstone is taken away alone, and the line with the last one.
func TestTombstoneIsTakenAwayAlone(t *testing.T) {
	onEachLine(t, func(b *bench) {
		ctx := context.Background()
		all := []*manual{b.manual(), b.manual(), b.manual()}
		for _, m := range all {
			m.release(true)
		}
		undo := func(m *manual) int64 {
			r, err := run(ctx, b.rdb, call{Script: tombstoneUndo, Keys: []string{b.lineKey()}, Args: []any{m.field}})
			b.must(err)
			return r[0]
		}
		for i, m := range []*manual{all[1], all[0], all[2]} {
			require.Equal(b, 3-i, b.tombstones())
			assert.Equal(b, int64(-1), undo(b.manual()), "a field without a tombstone")
			assert.Equal(b, int64(1), undo(m))
			assert.Equal(b, int64(-1), undo(m), "again")
			assert.False(b, b.ended(m.field))
		}
		assert.Empty(b, b.lines(), "the line")

		first := b.manual().takes()
		waiter, gone := b.manual().listens().joins(), b.manual().listens().joins()
		gone.release(true)
		assert.Equal(b, int64(1), undo(gone))
		assert.Equal(b, []string{waiter.id}, b.clientsInLine(), "the line")
		first.release(false)
		assert.Equal(b, waiter.field, b.holder(), "the holder")
	})
}

// A field with a tombstone among others neither takes a free lock nor joins, and the others are not in its way.
func TestTombstoneAmongOthersIsSeen(t *testing.T) {
	onEachLine(t, func(b *bench) {
		ended, other := b.manual(), b.manual()
		b.buryOthers(b.lineKey(), 50)
		ended.release(true)
		for range 20 {
			b.manual().release(true)
		}
		assert.Equal(b, int64(0), ended.ask(engine.PassesLine)[0], "a free lock")
		assert.Empty(b, b.holder())
		assert.Equal(b, int64(1), other.ask(engine.PassesLine)[0], "another field")
		other.release(false)
		assert.Equal(b, 71, b.tombstones())
	})
}
