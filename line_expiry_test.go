package relock

// Places of clients that do not react: they have crashed, are paused or have lost their subscription.
//
// Rules: a client that does not use its grant costs the others one provisional lease, and then no more. It keeps its
// place as long as it may be alive, and a place that is passed over keeps its position. Whatever is stored of such
// clients, each script runs a limited number of commands.
//
// What the scripts do with the places of such clients is in internal/lua/testdata/expired.txt.

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
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
