package relock

// Places of clients that do not react: they have crashed, are paused or have lost their subscription.
//
// Rules: a client that does not use its grant costs the others one provisional lease, and then no more. It keeps its
// place as long as it may be alive, and a place that is passed over keeps its position. Whatever is stored of such
// clients, each script runs a limited number of commands.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/poller"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A release passes over a client whose connection is closed.
func TestLineSkipsADeadClient(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.manual().takes()
		dead := b.manual().joins() // it is not subscribed
		alive := b.contender().joins()
		asked := alive.settled()
		first.release(false)
		alive.gets()
		assert.Equal(b, asked, alive.scripts.n.Load(), "scripts of the next client")
		assert.Zero(b, b.placeOf(dead.id), "the place of the dead client")
		alive.unlocks()
		b.emptyLine()
	})
}

// A client whose connection was cut loses its entry, and enters the line again when it is connected again.
func TestLineClientWithoutConnectionComesBack(t *testing.T) {
	b := newFaultBench(t)
	b.opts = []Option{WithPollInterval(time.Hour)}
	first := b.contender().takes()
	cut := b.contenderOn(b.proxy.Client()).joins()
	next := b.contender().joins()
	rule := b.proxy.On(testredis.Command("subscribe"), testredis.HoldRequest).Times(testredis.Always)
	b.proxy.CutAll()
	testredis.Await(b, "the server knows that the connection is gone", soon, func() bool {
		return b.hearers(b.releaseChannel()+":"+cut.client.ID()) == 0
	})
	first.unlocks()
	next.gets()
	cut.waits()
	rule.Release()
	cut.joined()
	next.unlocks()
	cut.gets().unlocks()
}

// A client that is subscribed and does not react delays the others by one provisional lease. Then it is passed over
// until it asks, and its next grant has the whole lease.
func TestLinePausedClientCostsOneLease(t *testing.T) {
	onEachLine(t, func(b *bench) {
		ctx := context.Background()
		first := b.contender().takes()
		paused := b.manual().listens().joins()
		next := b.contender(WithPollInterval(100 * time.Millisecond)).joins()
		first.unlocks()
		b.awaitHolder(paused.id)
		assert.InDelta(b, 3500, b.pttl().Milliseconds(), 1500, "the provisional lease")
		b.must(b.rdb.PExpire(ctx, b.name, 100*time.Millisecond).Err()) // the provisional lease expires
		next.gets()
		assert.Equal(b, "suspect", b.placeOf(paused.id).state, "the place of the paused client")

		last := b.contender(WithPollInterval(100 * time.Millisecond)).joins()
		next.unlocks()
		last.gets() // and not the paused client
		assert.Equal(b, []string{paused.id}, b.clientsInLine(), "the line")
		behind := b.manual().listens().joins()

		paused.joins() // it asks
		assert.Equal(b, "confirmed", b.placeOf(paused.id).state, "the place of the client that has asked")
		assert.Equal(b, []string{paused.id, behind.id}, b.clientsInLine(), "the line")
		last.unlocks()
		assert.Equal(b, paused.field, b.holder(), "the holder")
		assert.Greater(b, b.pttl(), 50*time.Second, "the lease of the grant")
		assert.Equal(b, int64(1), paused.release(false)[0], "released")
	})
}

// The same applies if the grant came from a client that had been granted the lock itself.
func TestLineExpiryOfALaterGrantIsNoticed(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.manual().takes()
		one, two, three := b.manual().listens().joins(), b.manual().listens().joins(), b.manual().listens().joins()
		first.release(false)
		one.release(false)
		require.Equal(b, two.field, b.holder(), "the holder")
		require.NoError(b, b.rdb.Del(context.Background(), b.name).Err()) // the lease expires
		require.Equal(b, int64(1), three.ask(contract.Push)[0], "the lock is free")
		assert.Equal(b, []string{two.id}, b.clientsInLine(), "the line")
		assert.Equal(b, "suspect", b.placeOf(two.id).state, "the place whose grant was not used")
	})
}

// If two clients do not use their grants, each of them keeps its entry.
func TestLineTwoExpiriesLeaveTwoPlaces(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.manual().takes()
		one, two, three := b.manual().listens().joins(), b.manual().listens().joins(), b.manual().listens().joins()
		expire := func() { b.must(b.rdb.Del(context.Background(), b.name).Err()) }
		first.release(false)
		expire()
		three.joins()
		require.Equal(b, two.field, b.holder(), "the holder")
		expire()
		require.Equal(b, int64(1), three.ask(contract.Push)[0], "the lock is free")
		assert.Equal(b, []string{one.id, two.id}, b.clientsInLine(), "the line")
	})
}

// A client that asks after its grant has expired keeps its entry, even if no script has noticed the expiry.
func TestLineExpiredClientThatAsksKeepsItsPlace(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.manual().takes()
		expires, next := b.manual().listens().joins(), b.manual().listens().joins()
		first.release(false)
		b.must(b.rdb.Del(context.Background(), b.name).Err()) // the lease expires
		other := b.manual().takes()                           // TryLock without a wait: its script does not read the line
		expires.joins()
		assert.Equal(b, "confirmed", b.placeOf(expires.id).state, "the place of the client that has asked")
		assert.Equal(b, []string{expires.id, next.id}, b.clientsInLine(), "the line")

		other.release(false)
		require.Equal(b, expires.field, b.holder(), "the holder")
		b.must(b.rdb.Del(context.Background(), b.name).Err())
		assert.Equal(b, int64(1), expires.ask(contract.Push)[0], "the lock is free, and the client is first")
		assert.Equal(b, []string{next.id}, b.clientsInLine(), "the line")
	})
}

// A process whose lease expired without a release waits again, behind those that already wait.
func TestLineExpiredHolderWaitsAgainAtTheEnd(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.manual().takes()
		expires := b.manual().listens()
		expires.lease = 1000
		expires.joins()
		one, two := b.manual().listens().joins(), b.manual().listens().joins()
		first.release(false)
		require.Equal(b, expires.field, b.holder(), "the holder")
		require.NoError(b, b.rdb.Del(context.Background(), b.name).Err()) // its second lease expires
		require.Equal(b, int64(0), two.ask(contract.Push)[0], "the second place overtakes the first one")
		require.Equal(b, one.field, b.holder(), "the holder")
		expires.field = expires.id + ":1:02" // another wait
		expires.joins()
		assert.Equal(b, []string{two.id, expires.id}, b.clientsInLine(), "the line")
		one.release(false)
		assert.Equal(b, two.field, b.holder(), "the holder")
	})
}

// A subscription at the former master is replaced. Otherwise the waiter would have no entry, and would always be
// overtaken.
func TestLineClientAtAFormerMasterSubscribesAnew(t *testing.T) {
	t.Parallel()
	before, now := testredis.Start(t), testredis.Start(t)
	b := newBench(t, now.Addr())
	ctx := ContextWithOwner(context.Background())
	var master atomic.Pointer[testredis.Server]
	master.Store(before)
	rdb := redis.NewClient(&redis.Options{
		Addr: "a name that moves", ReadTimeout: time.Second,
		Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", master.Load().Addr())
		},
	})
	t.Cleanup(func() { _ = rdb.Close() })
	old := newBench(t, before.Addr())
	old.name = b.name
	old.manual().takes()
	b.manual().takes()
	waits := b.clientOn(rdb).NewLock(b.name)
	got := make(chan error, 1)
	go func() { got <- waits.Lock(ctx) }()
	testredis.Await(
		t,
		"it stands in the line of the old master",
		soon,
		func() bool { return len(old.clientsInLine()) == 1 },
	)
	master.Store(now)
	// Except the connection of the subscription.
	b.must(old.rdb.ClientKillByFilter(ctx, "TYPE", "normal", "SKIPME", "yes").Err())
	testredis.Await(
		t,
		"it stands in the line of the new master",
		2*soon,
		func() bool { return len(b.clientsInLine()) == 1 },
	)
	b.must(b.rdb.Del(ctx, b.name).Err())
	b.manual().listens().ask(contract.Push) // grants it
	b.must(await(b, "the waiter has the lock", got))
	b.must(waits.Unlock(ctx))
}

// An entry with a high number is not far back if the numbers before it are missing. A client that is far back polls
// seldom, and would sleep while the lock is free.
func TestLineMissingNumbersAreNoPlaces(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.manual().takes()
		b.manual().listens().joins()
		passing, last := b.manual().listens(), b.manual().listens()
		for range 150 {
			passing.field = fmt.Sprintf("%s:1:0%d", passing.id, passing.asked+1)
			passing.joins()
			passing.release(false)
		}
		answer := last.ask(contract.Push)[2]
		require.Equal(b, int64(1), answer%4, "no place")
		assert.Less(b, answer/4, int64(poller.NearHead/4), "places in front, of which there is one")
	})
}

// Clients that come and go behind one that waits for a long time do not make the scripts of the others slower, and do
// not change the order.
func TestLineClosesGaps(t *testing.T) {
	onEachLine(t, func(b *bench) {
		ctx := context.Background()
		holder := b.manual().takes()
		granted, first, second := b.manual().listens().joins(), b.manual().listens().joins(), b.manual().listens().joins()
		holder.release(false)
		require.Equal(b, granted.field, b.holder(), "the holder")
		b.must(b.rdb.PExpire(ctx, b.name, time.Hour).Err())
		passing, last := b.manual().listens(), b.manual().listens()
		comes := func(times int) {
			for n := range times {
				passing.field = fmt.Sprintf("%s:1:0%d", passing.id, passing.asked+1)
				passing.joins()
				if n == times/2 {
					last.joins()
				}
				passing.release(false)
			}
		}
		comes(300)
		span := func() int {
			numbers := b.rdb.HMGet(ctx, b.lineKey(), "first", "last").Val()
			first, err1 := strconv.Atoi(fmt.Sprint(numbers[0]))
			last, err2 := strconv.Atoi(fmt.Sprint(numbers[1]))
			b.must(errors.Join(err1, err2))
			return last - first
		}
		assert.Less(b, span(), 250, "numbers of the line")
		assert.Equal(b, []string{first.id, second.id, last.id}, b.clientsInLine(), "the line")

		b.must(b.rdb.Del(ctx, b.name).Err()) // the lease of the grant expires
		first.lease = 60 * minute
		first.ask(contract.Push)
		assert.Equal(b, first.field, b.holder(), "the holder")
		assert.Equal(b, []string{granted.id, second.id, last.id}, b.clientsInLine(), "the line")
		comes(300)
		assert.Less(b, span(), 250, "numbers of the line")
		granted.joins()
		assert.Equal(b, []string{granted.id, second.id, last.id}, b.clientsInLine(), "the line")
		for _, next := range []*manual{granted, second, last} {
			first.release(false)
			assert.Equal(b, next.field, b.holder(), "the holder")
			first = next
		}
		last.release(false)
	})
}

// A client that is paused for a long time does not make the scripts of the others slower.
func TestLinePausedClientCostsTheOthersNothing(t *testing.T) {
	t.Parallel()
	b := newLineBench(t, testredis.Start(t).Addr())
	first := b.manual().takes()
	paused := b.manual().listens().joins()
	first.release(false)
	b.awaitHolder(paused.id)
	b.must(b.rdb.Del(context.Background(), b.name).Err()) // the provisional lease expires
	one, two := b.manual().listens(), b.manual().listens()
	next := func(m *manual) {
		m.field = fmt.Sprintf("%s:1:0%d", m.id, m.asked+1)
		m.joins()
	}
	require.Equal(b, int64(1), one.ask(contract.Push)[0], "the lock is free")
	require.Equal(b, "suspect", b.placeOf(paused.id).state)
	commands := func() (n int) { // that the release of one sends
		next(two)
		n = b.commands(func() { one.release(false) })
		require.Equal(b, two.field, b.holder(), "the holder")
		one, two = two, one
		return n
	}
	at := commands()
	for range 200 {
		commands()
	}
	assert.LessOrEqual(b, commands(), at+2, "commands of a release, after 200 others; %d before", at)
}

// fillLine adds places of clients that poll to the line of a lock, with these numbers. more is what their fields have
// behind their numbers. It returns the clients.
func (b *bench) fillLine(from, to int, state, more string) (clients []string) {
	b.Helper()
	for n := from; n <= to; n++ {
		clients = append(clients, fmt.Sprintf("00000000-0000-0000-0000-%012d", n))
	}
	b.must(b.rdb.Eval(context.Background(), `for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
		local client = string.format('00000000-0000-0000-0000-%012d', i)
		local place = i .. ' ' .. ARGV[3] .. ' poll 60000 0 1 ' .. client .. ':1:01' .. ARGV[4] .. ' 1'
		redis.call('hset', KEYS[1], i, client, client, place)
	end
	local first = math.min(tonumber(redis.call('hget', KEYS[1], 'first') or ARGV[1]), tonumber(ARGV[1]))
	redis.call('expire', KEYS[1], 3600)
	return redis.call('hset', KEYS[1], 'first', first, 'last', ARGV[2], 'shared', redis.call('time')[1] * 1000)`,
		[]string{b.lineKey()}, from, to, state, more).Err())
	return clients
}

// Places that are passed over stay, and cost a run few commands, however many they are. Nothing is written as long as
// nothing moves.
func TestLinePlacesThatArePassedOverCostFewCommands(t *testing.T) {
	t.Parallel()
	b := newLineBench(t, testredis.Start(t).Addr())
	suspects := b.fillLine(1, 2000, "suspect", "")
	one, two := b.manual().listens(), b.manual().listens()
	for _, what := range []string{"first", "second"} {
		require.Equal(b, int64(1), one.ask(contract.Defer)[0], "the lock is free")
		written := b.commandRuns("hset")
		assert.Less(b, b.commands(func() { one.release(false) }), 200, "commands of the %s release", what)
		assert.LessOrEqual(b, b.commandRuns("hset")-written, 1, "writes to the line")
		require.Equal(b, suspects, b.clientsInLine())
	}
	require.Equal(b, int64(1), one.ask(contract.Defer)[0], "the lock is free")
	two.joins()
	assert.Less(b, b.commands(func() { one.release(false) }), 100, "commands of a release that passes them")
	require.Equal(b, two.field, b.holder(), "the holder")
	assert.Equal(b, suspects, b.clientsInLine())
	two.release(false)
}

// Where others pass such places all the time, the places keep their order, and the numbers that a run reads do not
// become more and more.
func TestLinePlacesThatArePassedOverKeepTheirOrder(t *testing.T) {
	t.Parallel()
	for many, most := range map[int]int{3: 3 + 2, 100: 2*100 + 2} {
		t.Run(fmt.Sprint(many), func(t *testing.T) {
			t.Parallel()
			b := newLineBench(t, testredis.StillMini(t).Addr())
			suspects := b.fillLine(1, many, "suspect", "")
			one, two := b.manual().listens(), b.manual().listens()
			require.Equal(b, int64(1), one.ask(contract.Defer)[0], "the lock is free")
			widest := 0
			for range 250 {
				two.field = fmt.Sprintf("%s:1:0%d", two.id, two.asked+1)
				two.joins()
				one.release(false)
				require.Equal(b, two.field, b.holder(), "the holder")
				numbers := b.rdb.HMGet(context.Background(), b.lineKey(), "first", "last").Val()
				first, err1 := strconv.Atoi(fmt.Sprint(numbers[0]))
				last, err2 := strconv.Atoi(fmt.Sprint(numbers[1]))
				b.must(errors.Join(err1, err2))
				widest = max(widest, last-first+1)
				one, two = two, one
			}
			assert.Equal(b, suspects, b.clientsInLine())
			assert.LessOrEqual(b, widest, most, "numbers of the line")
			one.release(false)
		})
	}
}

// suspect returns a client whose grant was not used in time, so that its place is the first one again. The lock is free.
func (b *bench) suspect() *manual {
	b.Helper()
	first := b.manual().takes()
	late, next := b.manual().listens().joins(), b.manual().listens()
	first.release(false)
	b.awaitHolder(late.id)
	b.must(b.rdb.Del(context.Background(), b.name).Err()) // the provisional lease expires
	require.Equal(b, int64(1), next.ask(contract.Push)[0], "the lock is free")
	require.Equal(b, "suspect", b.placeOf(late.id).state)
	b.must(b.rdb.Del(context.Background(), b.name).Err())
	return late
}

// A place that is passed over moves, and stays in the line: if a caller behind it, whose subscription is lost, takes
// the lock.
func TestLinePlaceThatMovesStaysWhenACallerLeaves(t *testing.T) {
	onEachLine(t, func(b *bench) {
		late := b.suspect()
		b.manual().takes()
		silent := b.manual().joins()
		b.must(b.rdb.Del(context.Background(), b.name).Err()) // the lease of the holder expires
		require.Equal(b, int64(1), silent.ask(contract.Push)[0], "the lock is free")
		assert.Equal(b, []string{late.id}, b.clientsInLine())
	})
}

// It moves in front of the place that was granted the lock last, whose number is missing, and which comes back if the
// lease of the grant has expired.
func TestLinePlaceThatMovesTakesNoNumberOfAGrant(t *testing.T) {
	onEachLine(t, func(b *bench) {
		late := b.suspect()
		holder := b.manual().takes()
		granted, next := b.manual().listens().joins(), b.manual().listens().joins()
		holder.release(false)
		b.awaitHolder(granted.id)
		b.must(b.rdb.Del(context.Background(), b.name).Err()) // the provisional lease expires
		holder = b.manual().takes()
		b.subscribe(b.releaseChannel())
		holder.releaseIn(0, false)
		require.Empty(b, b.holder(), "the lock is left free")
		b.manual().ask(contract.Defer)
		b.awaitHolder(next.id)
		assert.Equal(b, []string{late.id, granted.id}, b.clientsInLine())
	})
}

// The first suspects are told of a lock that stays free, and not more than a script can tell in a moment.
func TestLineTellsTheFirstSuspects(t *testing.T) {
	t.Parallel()
	b := newLineBench(t, testredis.Start(t).Addr())
	b.fillLine(1, 300, "suspect", "")
	m := b.manual()
	require.Equal(b, int64(1), m.ask(contract.Defer)[0], "the lock is free")
	first := b.subscribe(b.releaseChannel() + ":00000000-0000-0000-0000-000000000001")
	told := b.commandRuns("publish")
	m.release(false)
	assert.Equal(b, 100+1, b.commandRuns("publish")-told, "messages, one of them to all")
	assert.Equal(b, []string{"free"}, b.received(first, b.releaseChannel()+":00000000-0000-0000-0000-000000000001"))
}

// commandRuns returns how many commands with this name the server has run.
func (b *bench) commandRuns(name string) (n int) {
	b.Helper()
	stats, err := b.rdb.Info(context.Background(), "commandstats").Result()
	b.must(err)
	for _, line := range strings.Split(stats, "\r\n") {
		if _, err := fmt.Sscanf(line, "cmdstat_"+name+":calls=%d,", &n); err == nil {
			return n
		}
	}
	return 0
}

// The entry of a process that may not subscribe and has crashed is removed, even while others use the line.
func TestLineForgetsADeadClientThatAsks(t *testing.T) {
	onEachLine(t, func(b *bench) {
		first := b.manual().takes()
		dead := b.manual()
		dead.ask(contract.Poll)
		first.release(false)
		require.Equal(b, dead.field, b.holder(), "the holder")
		b.must(b.rdb.Del(context.Background(), b.name).Err()) // the provisional lease expires
		for i := range 5 {
			m := b.manual().listens()
			require.Equal(b, int64(1), m.ask(contract.Push)[0], "the lock is free")
			m.release(false)
			b.Logf("after %d sections: %v", i, b.places())
		}
		assert.Empty(b, b.clientsInLine(), "the line")
	})
}

// A waiter asks before the line expires, however long its poll interval is.
func TestLineWaiterAsksBeforeTheLineForgetsIt(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.manual().takes()
		b.manual().listens().joins()
		life, err := b.rdb.PTTL(context.Background(), b.lineKey()).Result()
		b.must(err)
		e := b.client().engine
		for _, left := range []time.Duration{-1, time.Second, 10 * time.Minute, time.Hour} {
			delay := e.Probe().SleepInLine(b.name, b.releaseChannel()+":"+e.ID, left)
			assert.Less(b, delay, life/2, "the sleep of a waiter with a place")
		}
	})
}

// The same applies to a process that is late by more than the provisional lease: it learns that the lock is free, and
// asks.
func TestLineLateClientIsToldOfAFreeLock(t *testing.T) {
	onEachLine(t, func(b *bench) {
		ctx := context.Background()
		first := b.manual().takes()
		late := b.manual().listens().joins()
		first.release(false)
		b.awaitHolder(late.id)
		b.must(b.rdb.Del(ctx, b.name).Err()) // the lease expires
		other := b.manual().takes()          // TryLock without a wait: its script does not read the line
		require.Len(b, late.messages(), 1, "messages so far")
		other.release(false)
		assert.Equal(b, []string{"free"}, late.messages(), "messages")
		assert.Empty(b, b.holder(), "the holder")
		assert.Equal(b, int64(1), late.ask(contract.Push)[0], "the lock is free")
		late.release(false)
	})
}

// A release by a holder that took the lock past the line leaves the place of an earlier grant, which has expired, in
// the line.
func TestLineReleaseKeepsThePlaceOfAnExpiredGrant(t *testing.T) {
	onEachLine(t, func(b *bench) {
		late := b.grantee()
		two := b.manual().listens().joins()
		b.must(b.rdb.Del(context.Background(), b.name).Err()) // its lease expires
		passes := b.manual().takes()
		assert.Equal(b, reply{1, 0, 1}, passes.release(false), "the release")
		assert.Equal(b, two.field, b.holder(), "the holder")
		assert.Equal(b, "suspect", b.placeOf(late.id).state, "the place whose grant has expired")
	})
}

// A hold that ends without a release is noticed within the poll interval, and the first entry is served first.
func TestLineNoticesARecordThatIsGone(t *testing.T) {
	onEachLine(t, func(b *bench) {
		b.opts = []Option{WithPollInterval(300 * time.Millisecond)}
		b.manual().takes()
		one, two := b.contender().joins(), b.contender().joins()
		gone := time.Now()
		b.must(b.rdb.Del(context.Background(), b.name).Err())
		one.gets()
		assert.LessOrEqual(b, time.Since(gone), soon/2, "after DEL")
		two.waits()
		one.unlocks()
		two.gets().unlocks()
	})
}

// The waiters know when the lease of the current holder expires.
func TestLineNoticesTheEndOfALease(t *testing.T) {
	onEachLine(t, func(b *bench) {
		m := b.manual()
		m.lease = 2000 // enough for both to join
		m.takes()
		one, two := b.contender().joins(), b.contender().joins()
		one.gets()
		two.waits()
		one.unlocks()
		two.gets().unlocks()
	})
}

// The place of a grant that has expired comes back, although the hold that followed is released by force.
func TestForcedReleaseKeepsThePlaceOfAnExpiredGrant(t *testing.T) {
	for name, record := range map[string]func(*Client, string) contract.Record{
		"lock":  recordOfLock,
		"write": recordOfWriter,
	} {
		t.Run(name, func(t *testing.T) {
			onEachLine(t, func(b *bench) {
				b.Cleanup(b.forget)
				ctx := context.Background()
				one, late, other := b.client(), b.client(), b.client()
				does := func(what call, first int64) reply {
					b.Helper()
					r, err := run(ctx, b.rdb, what)
					b.must(err)
					require.Equal(b, first, r[0])
					return r
				}
				does(record(one, b.name).Acquire(attemptOf(one)), 1)
				b.subscribe(record(late, b.name).Grants(attemptOf(late)))
				does(record(late, b.name).Acquire(attemptOf(late)), 0)
				r := does(record(one, b.name).Release(released(attemptOf(one).Field, 0, false)), 1)
				require.Equal(b, int64(1), r[2], "it is granted")
				b.must(b.rdb.Del(ctx, b.name).Err()) // the provisional lease expires
				barges := attemptOf(other)
				barges.Delivery = contract.Barge
				does(record(other, b.name).Acquire(barges), 1)
				does(record(other, b.name).Force(), 1)
				assert.Equal(b, "suspect", b.placeOf(late.ID()).state, "the place of the client")
			})
		})
	}
}
