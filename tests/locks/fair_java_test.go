package locks

// Fair locks beside the fair locks of Redisson.
//
// Rules: whichever waiter joins or leaves, the timeouts that Java counts from are right: too short a one loses a waiter
// its place, too long a one blocks Java. A queue with thousands of waiters costs Redis little at a time.

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A live waiter keeps its position against Java for any time, even if the timeout of a position is short.
func TestFairLiveWaiterKeepsItsPlaceAgainstJava(t *testing.T) {
	t.Parallel()
	for _, worth := range []time.Duration{time.Second, 2 * time.Second} {
		t.Run(worth.String(), func(t *testing.T) {
			t.Parallel()
			b := locktest.NewBench(t, testredis.Start(t).Addr())
			q := servedQueue{Bench: b}
			held := b.Client(WithWatchdogTimeout(2 * time.Second)).NewFairLock(b.LockName) // adds only 2s to the first timeouts
			b.Must(held.Lock(ctx))
			c := b.Client(WithFairWaitTimeout(worth), WithPollInterval(time.Hour))
			visitor := b.Client().NewFairLock(b.LockName)
			q.join(ctx, c.NewFairLock(b.LockName), "first")
			q.join(ctx, c.NewFairLock(b.LockName), "second")
			b.Must(b.Rdb.PExpire(ctx, b.LockName, time.Hour).Err()) // so that the waiters send heartbeats as late as possible
			queue := b.Queue()
			keys := []string{b.LockName, "redisson_lock_queue:{" + b.LockName + "}", "redisson_lock_timeout:{" + b.LockName + "}"}
			for start := time.Now(); time.Since(start) < record.FairLife+2*time.Second; time.Sleep(locktest.Full(20*time.Millisecond, 2*time.Millisecond)) {
				b.Tries(visitor, false) // a relock client tries
				// A Java client tries, evicts waiters that it considers dead, and leaves.
				for _, script := range []string{locktest.JavaAcquire, locktest.JavaGiveUp} {
					b.Must(
						b.Rdb.Eval(ctx, script, keys, "java:1", "channel", 1000, worth.Milliseconds(), time.Now().UnixMilli()).Err(),
					)
				}
				require.Equal(t, queue, b.Queue(), "the queue stays as it was")
			}
			b.Must(held.Unlock(ctx))
			q.wantOrder("first", "second")
		})
	}
}

// A fairQueue is a queue whose waiters send nothing by themselves, and the timeouts that they would have if each script
// shortened those of all waiters.
type fairQueue struct {
	*locktest.Bench
	client *Client
	lock   contract.Record
	worth  int64
	all    []string         // fields
	right  map[string]int64 // field -> timeout
	last   int              // number of the last waiter that has joined
}

// newFairQueue returns an empty queue of a lock that another client holds.
func newFairQueue(b *locktest.Bench) *fairQueue {
	c := b.Client(WithFairWaitTimeout(100 * time.Second))
	l := locktest.RecordOf(c.NewFairLock(b.LockName))
	q := &fairQueue{Bench: b, client: c, lock: l, worth: locktest.WaitTimeoutOf(l), right: make(map[string]int64)}
	q.isHeld()
	b.Cleanup(b.Forget)
	return q
}

func (q *fairQueue) isHeld() {
	q.Must(q.Rdb.HSet(ctx, q.LockName, locktest.JavaOther+":1", 1).Err())
	q.Must(q.Rdb.PExpire(ctx, q.LockName, time.Hour).Err())
}

func (q *fairQueue) isJava(waiter string) bool { return strings.Count(waiter, ":") == 1 }

func (q *fairQueue) now() int64 {
	now, err := q.Rdb.Time(ctx).Result()
	q.Must(err)
	return now.UnixMilli()
}

func (q *fairQueue) timeout(waiter string) int64 {
	return int64(q.Rdb.ZScore(ctx, locktest.KeysOf(q.lock)[2], waiter).Val())
}

// join adds waiters of relock, or of Java, whose timeouts are counted from that of the last one.
func (q *fairQueue) join(java bool, n int) {
	now := q.now()
	timeout := now + time.Hour.Milliseconds()
	if len(q.all) > 0 {
		timeout = q.timeout(q.all[len(q.all)-1])
	}
	pipe := q.Rdb.Pipeline()
	for range n {
		q.last++
		timeout += q.worth
		waiter := fmt.Sprintf("6b3e8c2f-5d13-4c9f-8e30-1d6b%08d:7%s", q.last, map[bool]string{false: ":1"}[java])
		pipe.RPush(ctx, locktest.KeysOf(q.lock)[1], waiter)
		pipe.ZAdd(ctx, locktest.KeysOf(q.lock)[2], redis.Z{Score: float64(timeout), Member: waiter})
		if !java {
			pipe.HSet(ctx, locktest.KeysOf(q.lock)[3], waiter, q.place(1, now, time.Hour), "", fmt.Sprint(now, 0))
			pipe.Expire(ctx, locktest.KeysOf(q.lock)[3], time.Hour)
		}
		q.all, q.right[waiter] = append(q.all, waiter), timeout
	}
	q.Must(locktest.Second(pipe.Exec(ctx)))
}

// leave notes that waiters have left.
func (q *fairQueue) leave(leaving ...string) {
	left := int64(0)
	q.all = slices.DeleteFunc(q.all, func(waiter string) bool {
		if slices.Contains(leaving, waiter) {
			left++
			return true
		}
		q.right[waiter] -= left * q.worth
		return false
	})
}

// place is a place in the queue, as Redis stores it, of a waiter that last asked at this time.
func (q *fairQueue) place(asked, at int64, life time.Duration) string {
	java := slices.ContainsFunc(q.all, q.isJava)
	return fmt.Sprintf("5000 0 %d %d %d %d %d", asked, at/1000, at, life.Milliseconds(), map[bool]int{true: 1}[java])
}

// asked has all waiters of the queue have asked at this time, and one of them at the time last.
func (q *fairQueue) asked(at, last int64) {
	pipe := q.Rdb.Pipeline()
	for _, waiter := range q.all {
		if !q.isJava(waiter) {
			pipe.HSet(ctx, locktest.KeysOf(q.lock)[3], waiter, q.place(0, at, record.FairLife))
		}
	}
	pipe.HSet(ctx, locktest.KeysOf(q.lock)[3], "", fmt.Sprint(last, min(0, last-at))) // the clock may have gone back
	q.Must(locktest.Second(pipe.Exec(ctx)))
}

// check checks the queue, and the timeouts that Java counts from.
func (q *fairQueue) check(what string) {
	q.Helper()
	require.Equal(q, q.all, q.Queue(), what)
	timeouts := make(map[string]int64)
	for _, z := range q.Rdb.ZRangeWithScores(ctx, locktest.KeysOf(q.lock)[2], 0, -1).Val() {
		timeouts[z.Member.(string)] = int64(z.Score)
	}
	for i, waiter := range q.all {
		if q.isJava(waiter) || i == len(q.all)-1 || q.isJava(q.all[i+1]) {
			require.Equal(q, q.right[waiter], timeouts[waiter], "%s: the timeout of waiter %d, %s, of %v", what, i, waiter, q.all)
		} else {
			require.GreaterOrEqual(q, timeouts[waiter], q.right[waiter], "%s: the timeout of waiter %d, %s", what, i, waiter)
		}
	}
}

// A process with many waiters has crashed, and a Java service waits behind them: the release removes all of them, and
// walks through the queue once.
func TestFairManyDeadInFrontOfJavaCostOnePass(t *testing.T) {
	q := newFairQueue(locktest.NewBench(t, testredis.Start(t).Addr()))
	const dead = 2500
	q.join(false, dead)
	q.asked(1, q.now())
	q.join(true, 2)
	walks := q.CommandRuns("lrange")
	q.Must(locktest.Second(locktest.Send(q.client, q.lock.Release(contract.Release{Field: locktest.JavaOther + ":1"}))))
	assert.Equal(t, 1, q.CommandRuns("lrange")-walks, "walks through the queue")
	q.leave(q.all[:dead]...)
	q.check("the dead have left")
	assert.Equal(t, time.Duration(-1), q.Rdb.TTL(q.Context(), locktest.KeysOf(q.lock)[1]).Val(), "it does not expire, as before")
}
