package locks

// Places of clients that do not react: they have crashed, are paused or have lost their subscription.
//
// Rules: a Client that has lost its subscription or its server has a place again as soon as it is connected, and asks
// before the line forgets it. A script tells a limited number of clients that the lock is free. What the scripts do with
// the places of clients that do not react is in internal/lua/testdata/expired.txt, and what these cost in costs.txt.

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
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
	ctx := ContextWithOwner(ctx)
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
func fillLine(b *locktest.Bench, from, to int, more string) (clients []string) {
	b.Helper()
	for n := from; n <= to; n++ {
		clients = append(clients, fmt.Sprintf("00000000-0000-0000-0000-%012d", n))
	}
	b.Must(b.Rdb.Eval(ctx, `for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
		local client = string.format('00000000-0000-0000-0000-%012d', i)
		local place = 'poll 60000 0 1 ' .. client .. ':1:1' .. ARGV[3] .. ' 1'
		redis.call('zadd', KEYS[1], i, client)
		redis.call('hset', KEYS[2], client, place, 'shared', redis.call('time')[1] * 1000)
	end
	redis.call('expire', KEYS[1], 3600)
	return redis.call('expire', KEYS[2], 3600)`,
		b.LineKeys(), from, to, more).Err())
	return clients
}

// A waiter asks before the line expires, however long its poll interval is.
func TestLineWaiterAsksBeforeTheLineForgetsIt(t *testing.T) {
	onEachLine(t, func(b *locktest.Bench) {
		b.Manual().Takes()
		b.Manual().Listens().Joins()
		life, err := b.Rdb.PTTL(ctx, b.WaitsKey()).Result()
		b.Must(err)
		assert.Less(b, engine.RareAsk, life/2, "the sleep of a waiter with a place")
	})
}
