package relock

// Fair locks beside the fair locks of Redisson.
//
// Rules: the queue and the timeouts in Redis are those that Java finds and leaves. Whichever waiter joins or leaves, the
// timeouts that Java counts from are right: too short a one loses a waiter its place, too long a one blocks Java.

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
	"github.com/relock-go/relock/internal/engine"
	"github.com/relock-go/relock/internal/testredis"
)

// The queue and the timeouts that Java finds, and those that a relock waiter leaves behind when it is served.
func TestFairLockWritesRedissonsRecords(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		q := servedQueue{bench: newBench(t, addr)}
		ctx := context.Background()
		timeouts := "redisson_lock_timeout:{" + q.name + "}"
		const worth = 100 * time.Second
		c := q.client(WithFairWaitTimeout(worth))
		l := c.NewFairLock(q.name)
		q.must(l.Lock(ctx))
		q.join(ctx, c.NewFairLock(q.name), "first")
		q.join(ctx, c.NewFairLock(q.name), "second")
		queue := q.queue()
		for i, want := range []time.Duration{30*time.Second + worth, 30*time.Second + 2*worth} {
			score, err := q.rdb.ZScore(ctx, timeouts, queue[i]).Result()
			q.must(err)
			left := time.Until(time.UnixMilli(int64(score)))
			assert.LessOrEqual(t, left, want, "timeout of number %d", i+1)
			assert.GreaterOrEqual(t, left, want-20*time.Second, "timeout of number %d", i+1)
		}
		assert.True(t, strings.HasPrefix(queue[0], c.ID()+":"), "queue %v", queue)
		// A Java waiter behind them moves up with each waiter that is served, and is notified on its own channel.
		java := redis.Z{Score: float64(time.Now().Add(30*time.Second + 3*worth).UnixMilli()), Member: "java:7"}
		q.must(q.rdb.ZAdd(ctx, timeouts, java).Err())
		q.must(q.rdb.RPush(ctx, "redisson_lock_queue:{"+q.name+"}", "java:7").Err())
		messages := q.rdb.Subscribe(ctx, "redisson_lock__channel:{"+q.name+"}:java:7")
		_, err := messages.Receive(ctx)
		q.must(err)
		q.must(l.Unlock(ctx))
		m, err := messages.ReceiveMessage(ctx)
		if assert.NoError(t, err) {
			assert.Equal(t, "0", m.Payload)
		}
		q.must(messages.Close())
		q.wantOrder("first", "second")
		score := q.rdb.ZScore(ctx, timeouts, "java:7").Val()
		assert.Equal(
			t,
			java.Score-2*float64(worth.Milliseconds()),
			score,
			"the timeout of the Java waiter moved by %v ms",
			java.Score-score,
		)
		assert.Equal(t, []string{"java:7"}, q.queue())
		q.must(q.rdb.Del(ctx, q.keys()...).Err())
	})
}

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
			for start := time.Now(); time.Since(start) < fairLife+2*time.Second; time.Sleep(full(20*time.Millisecond, 2*time.Millisecond)) {
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

// The timeout of a Java waiter is counted from that of the last waiter. If it has crashed, it must not block the queue
// for longer than Redisson's timeout, whichever waiters have left.
func TestFairTimeoutsThatJavaCountsFromAreRight(t *testing.T) {
	const worth, lease = 100 * time.Second, 20 * time.Second
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client(WithFairWaitTimeout(worth)).NewFairLock(b.name)
		var waiters []*fairWaiter
		for n := range 8 {
			w := b.newFairWaiter(l, n+1)
			waiters = append(waiters, w)
			assert.Equal(t, n == 0, w.asks(contract.Push, lease) == contract.Held)
		}
		for n := range 3 {
			waiters[n].release()
			waiters[n+1].isGranted(engine.ProvisionalLease, 0)
		}
		waiters[7].leaves() // the last one

		keys := waiters[0].lock.keys
		b.must(
			b.rdb.Eval(
				ctx,
				javaAcquire,
				keys[:3],
				javaThread,
				waiters[0].lock.announce,
				1000,
				worth.Milliseconds(),
				time.Now().UnixMilli(),
			).Err(),
		)
		ofJava := func(place int) {
			t.Helper()
			assert.Equal(t, javaThread, b.queue()[place])
			left := time.Until(time.UnixMilli(int64(b.rdb.ZScore(ctx, keys[2], javaThread).Val())))
			assert.LessOrEqual(t, left, time.Duration(place+1)*worth+lease+soon)
			assert.Greater(t, left, time.Duration(place+1)*worth-soon)
		}
		ofJava(3)
		waiters[5].leaves()
		ofJava(2)
		now := float64(time.Now().Add(-time.Second).UnixMilli()) // the clock of miniredis moves in steps
		b.must(
			b.rdb.ZAdd(
				ctx,
				keys[3],
				redis.Z{Score: now, Member: ""},
				redis.Z{Score: now, Member: waiters[4].field},
				redis.Z{Score: now, Member: waiters[6].field},
			).Err(),
		)
		b.tries(l, false) // the other two have crashed
		ofJava(0)
		waiters[3].leaves()
		b.must(b.rdb.Del(ctx, b.keys()...).Err())
	})
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

// The timeout of the last waiter has nearly expired, because it has died, and it leaves. The one in front of it, which
// counts for Java now, gets no timeout with which Java would evict it.
func TestFairTimeoutOfTheNewLastWaiterIsNotTooShort(t *testing.T) {
	t.Parallel()
	for _, firstIsDead := range []bool{false, true} {
		q := newBench(t, testredis.StillMini(t).Addr()).newFairQueue()
		q.join(false, 6)
		last := q.all[5]
		q.must(q.rdb.ZAdd(context.Background(), q.lock.keys[2], redis.Z{Score: float64(q.now() + 1), Member: last}).Err())
		if firstIsDead {
			q.must(q.rdb.ZAdd(context.Background(), q.lock.keys[3], redis.Z{Score: 1, Member: q.all[0]},
				redis.Z{Score: 1, Member: last}).Err())
			q.givesUp("nobody")
			q.leave(q.all[0], last)
		} else {
			q.givesUp(last)
			q.leave(last)
		}
		require.Equal(t, q.all, q.queue())
		places := int64(len(q.all))
		assert.Equal(t, (places-1)*q.worth+q.worth/2, q.timeout(q.all[places-1])-q.now(), "with %d waiters", places)
		q.forget()
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
	b := newBench(t, testredis.Start(t).Addr())
	ctx := context.Background()
	const dead, worth = 2500, 100 * time.Second
	l := b.client(WithFairWaitTimeout(worth)).NewFairLock(b.name)
	keys := l.lock.(*fairLock).keys
	now := time.Now()
	pipe := b.rdb.Pipeline()
	for n := range dead {
		field := fmt.Sprintf("%s:%d:01", javaOther[:36], n)
		pipe.RPush(ctx, keys[1], field)
		pipe.ZAdd(ctx, keys[2], redis.Z{Score: float64(now.Add(time.Duration(n+1) * worth).UnixMilli()), Member: field})
		pipe.ZAdd(ctx, keys[3], redis.Z{Score: float64(now.Add(-time.Second).UnixMilli()), Member: field})
	}
	pipe.ZAdd(ctx, keys[3], redis.Z{Score: float64(now.UnixMilli()), Member: ""})
	pipe.RPush(ctx, keys[1], javaThread)
	pipe.ZAdd(ctx, keys[2], redis.Z{Score: float64(now.Add((dead + 1) * worth).UnixMilli()), Member: javaThread})
	b.must(second(pipe.Exec(ctx)))
	b.must(b.rdb.ConfigResetStat(ctx).Err())
	b.tries(l, false)
	assert.Equal(t, []string{javaThread}, b.queue())
	assert.Equal(t, now.Add(worth).UnixMilli(), int64(b.rdb.ZScore(ctx, keys[2], javaThread).Val()))
	assert.Contains(t, b.rdb.Info(ctx, "commandstats").Val(), "cmdstat_zmscore:calls=1,")
	b.must(b.rdb.Del(ctx, b.keys()...).Err())
}

// The line of a plain lock has fields, too: they are not taken for waiters that can be granted the lock.
func TestFairWaiterBehindJavaListensToItsChannel(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		w := b.newFairWaiter(b.client().NewFairLock(b.name), 1)
		b.must(b.rdb.HSet(ctx, b.name, w.client+":9:01", 1).Err())
		b.must(b.rdb.PExpire(ctx, b.name, time.Minute).Err())
		b.must(
			b.rdb.HSet(
				ctx,
				lineKey(b.name),
				"first",
				1,
				"last",
				1,
				"shared",
				1,
				"1",
				javaOther[:36],
				javaOther[:36],
				"1 new push 30000 0 1 "+javaOther+":01",
			).Err(),
		)
		for n := range 8 {
			attempt := contract.Attempt{Field: w.field, Lease: time.Minute, HoldCount: 1, Delivery: contract.Push, Asked: 1}
			g, err := sendAttempt(w.lock, attempt)
			b.must(err)
			assert.Equal(t, contract.Busy, g.Status)
			assert.True(t, g.Standing.LegacyHolder(), "behind %d", n)
			w.leaves()
			b.must(
				b.rdb.Eval(
					ctx,
					javaAcquire,
					w.lock.keys[:3],
					fmt.Sprint(javaThread, n),
					w.lock.announce,
					1000,
					100000,
					time.Now().UnixMilli(),
				).Err(),
			)
		}
		b.must(b.rdb.Del(ctx, b.keys()...).Err())
	})
}

// Java cannot pass over a waiter: disconnected waiters are removed from the queue if Java is the next.
func TestFairWaitersThatNobodyHearsLetJavaPass(t *testing.T) {
	onEachServer(t, func(t *testing.T, addr string) {
		b := newBench(t, addr)
		ctx := context.Background()
		l := b.client().NewFairLock(b.name)
		raw := l.lock.(*fairLock)
		b.must(l.Lock(ctx))
		for n := range 2 {
			w := b.newFairWaiter(l, n+1)
			w.asks(contract.Push, time.Minute)
			w.stopsListening()
		}
		java := b.newJavaWaiter(l, 3)
		b.must(l.Unlock(ctx))
		java.isWoken()
		left := time.Until(time.UnixMilli(int64(b.rdb.ZScore(ctx, raw.keys[2], java.field).Val())))
		assert.LessOrEqual(t, left, 30*time.Second+b.clientTimeout(raw), "the timeout of the first waiter")
		got, err := b.rdb.Eval(
			ctx,
			javaAcquire,
			raw.keys[:3],
			java.field,
			raw.announce,
			1000,
			raw.waitTimeout(),
			time.Now().UnixMilli(),
		).Int()
		b.must(err)
		assert.Equal(t, 1, got, "Java has the lock")
		b.must(b.rdb.Del(ctx, b.name).Err())
	})
}

// clientTimeout is the timeout of a position in the queue.
func (b *bench) clientTimeout(l *fairLock) time.Duration { return fromMilliseconds(l.waitTimeout()) }
