package locks

// The line beside clients that do not know it: Redisson, and MultiLocks, which wait without a place.
//
// Rules: the releases of Redisson notify the waiters in the line, and a MultiLock gets its share of a lock for which
// processes always wait in the line, also if the clock of Redis was set back. The share of Redisson is in
// internal/lua/testdata/java.txt.

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/relock-go/relock/internal/waitgroup"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// javaHolder is a field of Redisson.
func javaHolder() string { return uuid.NewString() + ":1" }

var (
	javaTakes = redis.NewScript(
		"if redis.call('exists', KEYS[1]) == 0 then redis.call('hset', KEYS[1], ARGV[1], 1); redis.call('pexpire', " +
			"KEYS[1], 30000); return 1 end return 0",
	)
	javaGives = redis.NewScript(
		"if redis.call('hdel', KEYS[1], ARGV[1]) == 1 then redis.call('publish', KEYS[2], '0') end return 0",
	)
	javaGetsIt = redis.NewScript(
		"redis.call('del', KEYS[1]); redis.call('hset', KEYS[1], ARGV[1], 1); redis.call('pexpire', KEYS[1], 30000); " +
			"return redis.call('publish', ARGV[2], 'free')",
	)
)

func javaReleases(b *locktest.Bench, field string) {
	b.Helper()
	b.Must(javaGives.Run(ctx, b.Rdb, []string{b.LockName, b.ReleaseChannel()}, field).Err())
}

// A release by a client that does not know the line notifies the waiters.
func TestLineWaitersHearARedissonHolder(t *testing.T) {
	onEachLine(t, func(b *locktest.Bench) {
		java := javaHolder()
		n, err := javaTakes.Run(ctx, b.Rdb, []string{b.LockName}, java).Int()
		b.Must(err)
		require.Equal(b, 1, n, "Redisson has the lock")
		one := contender(b).asks()
		testredis.Await(b, "the waiter hears Redisson's channel", locktest.Soon, func() bool {
			return b.Hearers(b.ReleaseChannel()) == 1
		})
		two := contender(b).asks()
		testredis.Await(b, "the waiters hear Redisson's channel", locktest.Soon, func() bool {
			return b.Hearers(b.ReleaseChannel()) == 2
		})
		one.settled()
		two.settled()
		javaReleases(b, java)
		select {
		case err := <-one.got:
			b.Must(err)
			two.waits()
			one.unlocks()
			two.gets().unlocks()
		case err := <-two.got:
			b.Must(err)
			one.waits()
			two.unlocks()
			one.gets().unlocks()
		case <-time.After(locktest.Soon):
			require.Fail(b, "no waiter noticed the release")
		}
	})
}

// A waiter that entered the line while a process of this version held the lock is notified when a release leaves the
// lock free for Redisson.
func TestLineFirstPlaceFollowsARedissonHolder(t *testing.T) {
	onEachLine(t, func(b *locktest.Bench) {
		b.Manual().Takes()
		one := contender(b).joins()
		two := contender(b).joins()
		asked := one.settled()
		java := javaHolder()
		n, err := javaGetsIt.Run(
			ctx,
			b.Rdb,
			[]string{b.LockName},
			java,
			b.ReleaseChannel()+":"+one.client.ID(),
		).Int()
		b.Must(err)
		require.Equal(b, 1, n, "subscribers that were told")
		one.awaitScripts(asked + 1)
		testredis.Await(b, "the first place hears Redisson's channel", locktest.Soon, func() bool {
			return b.Hearers(b.ReleaseChannel()) == 1
		})
		one.settled()
		javaReleases(b, java)
		one.gets()
		two.waits()
		one.unlocks()
		two.gets().unlocks()
	})
}

// A MultiLock, which has no place, gets a lock for which processes always wait in the line.
func TestLineStarvesNobodyAfterItsClockWasSetBack(t *testing.T) {
	t.Parallel()
	server := testredis.StartJumpy(t)
	b := locktest.NewLineBench(t, server.Addr())
	b.Opts = nil // a MultiLock polls once in each poll interval
	server.Jump(time.Hour)
	ctx, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	var sections atomic.Int64
	for range 3 {
		c := contender(b)
		waitgroup.Go(&all, func() {
			for c.lock.Lock(ctx) == nil {
				sections.Add(1)
				time.Sleep(time.Millisecond)
				assert.NoError(b, c.lock.Unlock(context.WithoutCancel(ctx)))
			}
		})
	}
	testredis.Await(b, "the line is busy", locktest.Soon, func() bool { return sections.Load() > 100 })
	server.Jump(-time.Hour)
	begun := sections.Load()
	testredis.Await(b, "the line is busy after the jump", locktest.Soon, func() bool { return sections.Load() > begun+100 })
	c, me := b.Client(), ContextWithOwner(context.Background())
	multi := c.NewMultiLock(c.NewLock(b.LockName), c.NewLock(b.LockName+"-b"))
	for range 5 {
		got, err := multi.TryLock(me, 5*time.Second, 0)
		b.Must(err)
		require.True(b, got, "the MultiLock waits in vain beside the line")
		b.Must(multi.Unlock(me))
	}
}
