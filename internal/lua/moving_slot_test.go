package lua_test

// While a slot moves on a Cluster, and a key is still at the old server, a script must not delete the key and create it
// again: Redis refuses that. Here all keys of a fair lock are there.

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
)

func TestQueueStaysWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := testredis.StartCluster(t, 2, 0)
	b := locktest.NewClusterBench(t, cluster)
	rdb, l := b.Admin, locktest.RecordOfFair(b.Client(), b.LockName)
	queue, timeouts, waits := locktest.QueueKey(b.LockName), record.PrefixName("redisson_lock_timeout", b.LockName), record.LineKeys(b.LockName)[1]
	attempt := func(n int) contract.Attempt {
		return contract.Attempt{Field: fmt.Sprint(locktest.JavaThread[:36], ":1:", n), Lease: time.Minute, HoldCount: 1, Late: n > 3}
	}
	run := func(c send.Call) { b.Must(locktest.Second(locktest.Run(t.Context(), rdb, c))) }
	run(l.Acquire(attempt(1)))
	run(l.Acquire(attempt(2)))
	b.Must(rdb.RPush(t.Context(), queue, locktest.JavaThread).Err())
	b.Must(rdb.ZAdd(t.Context(), timeouts, redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: locktest.JavaThread}).Err())
	run(l.Acquire(attempt(3)))
	b.Must(rdb.HSet(t.Context(), waits, attempt(4).Field, 1).Err()) // a tombstone that has expired

	for _, to := range cluster.Nodes() {
		if from := cluster.MasterOf(b.LockName); to != from {
			cluster.BeginMigration(b.LockName, to)
			run(l.RollBack(attempt(5))) // leaves a tombstone
			run(l.RollBack(attempt(2))) // has a waiter of Java behind it
			at := from.Client()
			assert.Equal(t, []string{attempt(5).Field}, at.HKeys(t.Context(), waits).Val(), "tombstones")
			assert.Equal(t, []string{locktest.JavaThread, attempt(3).Field}, at.LRange(t.Context(), queue, 0, -1).Val(), "queue")
			at.FlushAll(t.Context())
			break
		}
	}
}
