package locks

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
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A client whose connection was cut loses its entry, and enters the line again when it is connected again.
func TestLineClientWithoutConnectionComesBack(t *testing.T) {
	b := locktest.NewFaultBench(t)
	b.Opts = []Option{WithPollInterval(time.Hour)}
	first := contender(b.Bench).takes()
	cut := contenderOn(b.Bench, b.Proxy.Client()).joins()
	next := contender(b.Bench).joins()
	rule := b.Proxy.On(testredis.Command("subscribe"), testredis.HoldRequest).Times(testredis.Always)
	b.Proxy.CutAll()
	testredis.Await(b, "the server knows that the connection is gone", locktest.Soon, func() bool {
		return b.Hearers(b.ReleaseChannel()+":"+cut.client.ID()) == 0
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
	b := locktest.NewBench(t, now.Addr())
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
	old := locktest.NewBench(t, before.Addr())
	old.LockName = b.LockName
	old.Manual().Takes()
	b.Manual().Takes()
	waits := b.ClientOn(rdb).NewLock(b.LockName)
	got := make(chan error, 1)
	go func() { got <- waits.Lock(ctx) }()
	testredis.Await(
		t,
		"it stands in the line of the old master",
		locktest.Soon,
		func() bool { return len(old.ClientsInLine()) == 1 },
	)
	master.Store(now)
	// Except the connection of the subscription.
	b.Must(old.Rdb.ClientKillByFilter(ctx, "TYPE", "normal", "SKIPME", "yes").Err())
	testredis.Await(
		t,
		"it stands in the line of the new master",
		2*locktest.Soon,
		func() bool { return len(b.ClientsInLine()) == 1 },
	)
	b.Must(b.Rdb.Del(ctx, b.LockName).Err())
	b.Manual().Listens().Ask(contract.Push) // grants it
	b.Must(locktest.Await(b, "the waiter has the lock", got))
	b.Must(waits.Unlock(ctx))
}

// fillLine adds places of clients that poll to the line of a lock, with these numbers. more is what their fields have
// behind their numbers. It returns the clients.
func fillLine(b *locktest.Bench, from, to int, state, more string) (clients []string) {
	b.Helper()
	for n := from; n <= to; n++ {
		clients = append(clients, fmt.Sprintf("00000000-0000-0000-0000-%012d", n))
	}
	b.Must(b.Rdb.Eval(context.Background(), `for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
		local client = string.format('00000000-0000-0000-0000-%012d', i)
		local place = i .. ' ' .. ARGV[3] .. ' poll 60000 0 1 ' .. client .. ':1:01' .. ARGV[4] .. ' 1'
		redis.call('hset', KEYS[1], i, client, client, place)
	end
	local first = math.min(tonumber(redis.call('hget', KEYS[1], 'first') or ARGV[1]), tonumber(ARGV[1]))
	redis.call('expire', KEYS[1], 3600)
	return redis.call('hset', KEYS[1], 'first', first, 'last', ARGV[2], 'shared', redis.call('time')[1] * 1000)`,
		[]string{b.LineKey()}, from, to, state, more).Err())
	return clients
}

// Places that are passed over stay, and cost a run few commands, however many they are. Nothing is written as long as
// nothing moves.
func TestLinePlacesThatArePassedOverCostFewCommands(t *testing.T) {
	t.Parallel()
	b := locktest.NewLineBench(t, testredis.Start(t).Addr())
	suspects := fillLine(b, 1, 2000, "suspect", "")
	one, two := b.Manual().Listens(), b.Manual().Listens()
	for _, what := range []string{"first", "second"} {
		require.Equal(b, int64(1), one.Ask(contract.Defer)[0], "the lock is free")
		written := b.CommandRuns("hset")
		assert.Less(b, commands(b, func() { one.Release(false) }), 200, "commands of the %s release", what)
		assert.LessOrEqual(b, b.CommandRuns("hset")-written, 1, "writes to the line")
		require.Equal(b, suspects, b.ClientsInLine())
	}
	require.Equal(b, int64(1), one.Ask(contract.Defer)[0], "the lock is free")
	two.Joins()
	assert.Less(b, commands(b, func() { one.Release(false) }), 100, "commands of a release that passes them")
	require.Equal(b, two.Field, b.Holder(), "the holder")
	assert.Equal(b, suspects, b.ClientsInLine())
	two.Release(false)
}

// Where others pass such places all the time, the places keep their order, and the numbers that a run reads do not
// become more and more.
func TestLinePlacesThatArePassedOverKeepTheirOrder(t *testing.T) {
	t.Parallel()
	for many, most := range map[int]int{3: 3 + 2, 100: 2*100 + 2} {
		t.Run(fmt.Sprint(many), func(t *testing.T) {
			t.Parallel()
			b := locktest.NewLineBench(t, testredis.StillMini(t).Addr())
			suspects := fillLine(b, 1, many, "suspect", "")
			one, two := b.Manual().Listens(), b.Manual().Listens()
			require.Equal(b, int64(1), one.Ask(contract.Defer)[0], "the lock is free")
			widest := 0
			for range 250 {
				two.Field = fmt.Sprintf("%s:1:0%d", two.ID, two.Asked+1)
				two.Joins()
				one.Release(false)
				require.Equal(b, two.Field, b.Holder(), "the holder")
				numbers := b.Rdb.HMGet(context.Background(), b.LineKey(), "first", "last").Val()
				first, err1 := strconv.Atoi(fmt.Sprint(numbers[0]))
				last, err2 := strconv.Atoi(fmt.Sprint(numbers[1]))
				b.Must(errors.Join(err1, err2))
				widest = max(widest, last-first+1)
				one, two = two, one
			}
			assert.Equal(b, suspects, b.ClientsInLine())
			assert.LessOrEqual(b, widest, most, "numbers of the line")
			one.Release(false)
		})
	}
}

// The first suspects are told of a lock that stays free, and not more than a script can tell in a moment.
func TestLineTellsTheFirstSuspects(t *testing.T) {
	t.Parallel()
	b := locktest.NewLineBench(t, testredis.Start(t).Addr())
	fillLine(b, 1, 300, "suspect", "")
	m := b.Manual()
	require.Equal(b, int64(1), m.Ask(contract.Defer)[0], "the lock is free")
	first := b.Subscribe(b.ReleaseChannel() + ":00000000-0000-0000-0000-000000000001")
	told := b.CommandRuns("publish")
	m.Release(false)
	assert.Equal(b, 100+1, b.CommandRuns("publish")-told, "messages, one of them to all")
	assert.Equal(b, []string{"free"}, received(b, first, b.ReleaseChannel()+":00000000-0000-0000-0000-000000000001"))
}

// A waiter asks before the line expires, however long its poll interval is.
func TestLineWaiterAsksBeforeTheLineForgetsIt(t *testing.T) {
	onEachLine(t, func(b *locktest.Bench) {
		b.Manual().Takes()
		b.Manual().Listens().Joins()
		life, err := b.Rdb.PTTL(context.Background(), b.LineKey()).Result()
		b.Must(err)
		e := locktest.EngineOf(b.Client())
		for _, left := range []time.Duration{-1, time.Second, 10 * time.Minute, time.Hour} {
			delay := e.Probe().SleepInLine(b.LockName, b.ReleaseChannel()+":"+e.ID, left)
			assert.Less(b, delay, life/2, "the sleep of a waiter with a place")
		}
	})
}

// A hold that ends without a release is noticed within the poll interval, and the first entry is served first.
func TestLineNoticesARecordThatIsGone(t *testing.T) {
	onEachLine(t, func(b *locktest.Bench) {
		b.Opts = []Option{WithPollInterval(300 * time.Millisecond)}
		b.Manual().Takes()
		one, two := contender(b).joins(), contender(b).joins()
		gone := time.Now()
		b.Must(b.Rdb.Del(context.Background(), b.LockName).Err())
		one.gets()
		assert.LessOrEqual(b, time.Since(gone), locktest.Soon/2, "after DEL")
		two.waits()
		one.unlocks()
		two.gets().unlocks()
	})
}

// The waiters know when the lease of the current holder expires.
func TestLineNoticesTheEndOfALease(t *testing.T) {
	onEachLine(t, func(b *locktest.Bench) {
		m := b.Manual()
		m.Lease = 2000 // enough for both to join
		m.Takes()
		one, two := contender(b).joins(), contender(b).joins()
		one.gets()
		two.waits()
		one.unlocks()
		two.gets().unlocks()
	})
}
