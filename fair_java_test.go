package relock

// Fair locks beside the fair locks of Redisson.
//
// Rules: whichever waiter joins or leaves, the timeouts that Java counts from are right: too short a one loses a waiter
// its place, too long a one blocks Java. A queue with thousands of waiters costs Redis little at a time.

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
)

// A live waiter keeps its position against Java for any time, even if the timeout of a position is short.
func TestFairLiveWaiterKeepsItsPlaceAgainstJava(t *testing.T) {
	t.Parallel()
	for _, worth := range []time.Duration{time.Second, 2 * time.Second} {
		t.Run(worth.String(), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, testredis.Start(t).Addr())
			q := servedQueue{bench: b}
			ctx := context.Background()
			held := b.client(WithWatchdogTimeout(2 * time.Second)).NewFairLock(b.name) // adds only 2s to the first timeouts
			b.must(held.Lock(ctx))
			c := b.client(WithFairWaitTimeout(worth), WithPollInterval(time.Hour))
			visitor := b.client().NewFairLock(b.name)
			q.join(ctx, c.NewFairLock(b.name), "first")
			q.join(ctx, c.NewFairLock(b.name), "second")
			b.must(b.rdb.PExpire(ctx, b.name, time.Hour).Err()) // so that the waiters send heartbeats as late as possible
			queue := b.queue()
			keys := []string{b.name, "redisson_lock_queue:{" + b.name + "}", "redisson_lock_timeout:{" + b.name + "}"}
			for start := time.Now(); time.Since(start) < record.FairLife+2*time.Second; time.Sleep(full(20*time.Millisecond, 2*time.Millisecond)) {
				b.tries(visitor, false) // a relock client tries
				// A Java client tries, evicts waiters that it considers dead, and leaves.
				for _, script := range []string{javaAcquire, javaGiveUp} {
					b.must(
						b.rdb.Eval(ctx, script, keys, "java:1", "channel", 1000, worth.Milliseconds(), time.Now().UnixMilli()).Err(),
					)
				}
				require.Equal(t, queue, b.queue(), "the queue stays as it was")
			}
			b.must(held.Unlock(ctx))
			q.wantOrder("first", "second")
		})
	}
}

// A fairQueue is a queue whose waiters send nothing by themselves, and the timeouts that they would have if each script
// shortened those of all waiters.
type fairQueue struct {
	*bench
	lock  *fairLock
	worth int64
	all   []string         // fields
	right map[string]int64 // field -> timeout
	last  int              // number of the last waiter that has joined
}

// newFairQueue returns an empty queue of a lock that another client holds.
func (b *bench) newFairQueue() *fairQueue {
	l := b.client(WithFairWaitTimeout(100 * time.Second)).NewFairLock(b.name).lock.(*fairLock)
	q := &fairQueue{bench: b, lock: l, worth: l.waitTimeout(), right: make(map[string]int64)}
	q.isHeld()
	b.Cleanup(b.forget)
	return q
}

func (q *fairQueue) isHeld() {
	q.must(q.rdb.HSet(context.Background(), q.name, javaOther+":01", 1).Err())
	q.must(q.rdb.PExpire(context.Background(), q.name, time.Hour).Err())
}

func (q *fairQueue) isJava(waiter string) bool { return strings.Count(waiter, ":") == 1 }

func (q *fairQueue) now() int64 {
	now, err := q.rdb.Time(context.Background()).Result()
	q.must(err)
	return now.UnixMilli()
}

func (q *fairQueue) timeout(waiter string) int64 {
	return int64(q.rdb.ZScore(context.Background(), q.lock.keys[2], waiter).Val())
}

// join adds waiters of relock, or of Java, whose timeouts are counted from that of the last one.
func (q *fairQueue) join(java bool, n int) {
	ctx, now := context.Background(), q.now()
	timeout := now + time.Hour.Milliseconds()
	if len(q.all) > 0 {
		timeout = q.timeout(q.all[len(q.all)-1])
	}
	pipe := q.rdb.Pipeline()
	for range n {
		q.last++
		timeout += q.worth
		waiter := fmt.Sprintf("6b3e8c2f-5d13-4c9f-8e30-1d6b%08d:7%s", q.last, map[bool]string{false: ":01"}[java])
		pipe.RPush(ctx, q.lock.keys[1], waiter)
		pipe.ZAdd(ctx, q.lock.keys[2], redis.Z{Score: float64(timeout), Member: waiter})
		if !java {
			alive := float64(now + time.Hour.Milliseconds())
			pipe.ZAdd(ctx, q.lock.keys[3], redis.Z{Score: alive, Member: waiter}, redis.Z{Score: float64(now), Member: ""})
			pipe.Expire(ctx, q.lock.keys[3], time.Hour)
		}
		q.all, q.right[waiter] = append(q.all, waiter), timeout
	}
	q.must(second(pipe.Exec(ctx)))
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

// beats sets all heartbeats of the queue, and the time at which a script last looked at them.
func (q *fairQueue) beats(until, looked int64) {
	q.must(q.rdb.Eval(context.Background(), "for _, w in ipairs(redis.call('zrange', KEYS[1], 0, -1)) do "+
		"redis.call('zadd', KEYS[1], w == '' and ARGV[2] or ARGV[1], w) end return 1",
		q.lock.keys[3:4], until, looked).Err())
}

func (q *fairQueue) givesUp(waiter string) {
	q.must(second(q.lock.client.send(q.lock.RollBack(contract.Attempt{Field: waiter, HoldCount: 1}))))
}

// check checks the queue, and the timeouts that Java counts from.
func (q *fairQueue) check(what string) {
	q.Helper()
	require.Equal(q, q.all, q.queue(), what)
	for i, waiter := range q.all {
		if q.isJava(waiter) || i == len(q.all)-1 || q.isJava(q.all[i+1]) {
			require.Equal(q, q.right[waiter], q.timeout(waiter), "%s: the timeout of waiter %d, %s, of %v", what, i, waiter, q.all)
		} else {
			require.GreaterOrEqual(q, q.timeout(waiter), q.right[waiter], "%s: the timeout of waiter %d, %s", what, i, waiter)
		}
	}
}

// Whoever leaves the queue, in whatever way and order: the timeout of each Java waiter, and each that Java counts from,
// are what Redisson's arithmetic gives.
func TestFairTimeoutsThatCountForJavaAreRightWhoeverLeaves(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for seed := range full(20, 200) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { // so that its server and its client end with it
			q := newBench(t, testredis.StillMini(t).Addr()).newFairQueue()
			rng := newRand(seed)
			of := func(java bool) (all []string) {
				for _, waiter := range q.all {
					if q.isJava(waiter) == java {
						all = append(all, waiter)
					}
				}
				return all
			}
			for step := range 60 {
				what := fmt.Sprintf("seed %d, step %d", seed, step)
				relock, java := of(false), of(true)
				switch op := rng.IntN(12); {
				case op < 4 || len(relock) == 0:
					q.join(op == 0, 1)
				case op < 8:
					waiter := relock[rng.IntN(len(relock))]
					q.givesUp(waiter)
					q.leave(waiter)
				case op == 8 && len(java) > 0:
					waiter := java[rng.IntN(len(java))]
					q.must(q.rdb.Eval(ctx, javaGiveUp, q.lock.keys[:3], waiter, "", 0, q.worth, q.now()).Err())
					q.leave(waiter)
				case op == 9:
					var dead []string
					for _, waiter := range relock {
						if rng.IntN(2) == 0 {
							dead = append(dead, waiter)
							q.must(q.rdb.ZAdd(ctx, q.lock.keys[3], redis.Z{Score: 1, Member: waiter}).Err())
						}
					}
					q.givesUp("nobody")
					q.leave(dead...)
				case q.isJava(q.all[0]):
				default: // the first one acquires the lock
					first := q.all[0]
					q.must(q.rdb.Del(ctx, q.name).Err())
					attempt := contract.Attempt{Field: first, Lease: time.Minute, HoldCount: 1, Delivery: contract.Defer}
					g, err := sendAttempt(q.lock, attempt)
					q.must(err)
					require.Equal(t, contract.Held, g.Status, what)
					q.must(q.rdb.Del(ctx, q.name).Err())
					q.isHeld()
					q.leave(first)
				}
				q.check(what)
			}
			q.forget()
		})
	}
}

// Waiters that give up at the same time, as with a common deadline, or when a process ends, cost the same however many
// wait. With Java in the queue its waiters count, and no others.
func TestFairWaitersThatGiveUpTogetherCostLittle(t *testing.T) {
	t.Parallel()
	const many = 2000
	for what, add := range map[string]func(q *fairQueue){
		"only relock":     func(q *fairQueue) { q.join(false, many) },
		"one Java waiter": func(q *fairQueue) { q.join(false, many); q.join(true, 1) },
		"a few Java waiters": func(q *fairQueue) {
			for range 5 {
				q.join(true, 1)
				q.join(false, many/5)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			q := newBench(t, testredis.Start(t).Addr()).newFairQueue()
			add(q)
			begin, check := q.watchBusy(2 * mostBusy) // one at a time, they cost half of it if the machine is busy
			begin()
			first := q.all[slices.IndexFunc(q.all, func(waiter string) bool { return !q.isJava(waiter) })]
			written := q.commandRuns("zadd")
			assert.Less(t, q.commands(func() { q.givesUp(first) }), 40, "commands of the first one")
			assert.LessOrEqual(t, q.commandRuns("zadd")-written, 2, "writes of timeouts")
			q.leave(first)
			for _, waiter := range slices.Clone(q.all) {
				if !q.isJava(waiter) {
					q.givesUp(waiter)
					q.leave(waiter)
				}
			}
			check("all of them give up")
			q.check("all of relock have left")
		})
	}
}

// A process with many waiters has crashed, and a Java service waits behind them: one script removes all of them, and
// walks through the queue once.
func TestFairManyDeadInFrontOfJavaCostOnePass(t *testing.T) {
	q := newBench(t, testredis.Start(t).Addr()).newFairQueue()
	q.join(false, 2500)
	q.beats(1, q.now())
	q.join(true, 1)
	walks := q.commandRuns("zmscore")
	q.givesUp("nobody")
	assert.Equal(t, 1, q.commandRuns("zmscore")-walks, "walks through the queue")
	q.leave(q.all[:2500]...)
	q.check("the dead have left")
}
