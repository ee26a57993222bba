package locks

// Fair locks with thousands of waiters.
//
// Rules: what a waiter costs Redis does not grow with the queue: the more waiters are in front of it, the more rarely it
// asks, and none of its requests searches the whole queue. No script takes long because many waiters leave at once.

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/relock-go/relock"
	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/locktest"
	"github.com/relock-go/relock/internal/poller"
	"github.com/relock-go/relock/internal/record"
	"github.com/relock-go/relock/internal/testredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// farPlaces is how many places count: far in internal/lua/queue.lua.
const farPlaces = 7 * poller.NearHead

// asks makes the waiter at this place ask as one that is subscribed, and returns what it is told, and how long this
// request lasts.
func (q *fairQueue) asks(place int) (contract.Outcome, time.Duration) {
	q.Helper()
	a := contract.Attempt{Field: q.all[place], Lease: time.Minute, HoldCount: 1, Delivery: contract.Push, Asked: 1}
	ear := q.Rdb.Subscribe(q.Context(), locktest.AnnounceOf(q.lock)+"client:"+a.Field[:36])
	defer ear.Close()
	q.Must(locktest.Second(ear.Receive(q.Context())))
	o, err := locktest.SendAttempt(q.client, q.lock, a)
	require.NoError(q, err)
	stored := strings.Fields(q.Rdb.HGet(q.Context(), locktest.KeysOf(q.lock)[3], a.Field).Val())
	life, err := strconv.Atoi(stored[5])
	q.Must(err)
	return o, time.Duration(life) * time.Millisecond
}

// A waiter learns how many are in front of it, its requests last the longer, and it keeps its timeout.
func TestFairRequestsOfWaitersFarBehind(t *testing.T) {
	t.Parallel()
	q := newFairQueue(locktest.NewBench(t, testredis.Start(t).Addr()))
	q.join(false, 5000)
	for range 2 {
		for place, ahead := range map[int]int{0: 0, 31: 31, 100: 100, 2 * farPlaces: farPlaces, 4999: farPlaces} {
			o, life := q.asks(place)
			assert.Equal(t, ahead, o.Standing.Ahead(), "in front of waiter %d", place)
			assert.Equal(t, record.FairLife+time.Duration(ahead/poller.NearHead)*record.FairHeartbeat, life,
				"the request of waiter %d", place)
		}
		q.check("after requests")
		if len(q.all) == 5000 {
			q.join(true, 1) // beside Java each place is looked up, and the timeouts are right all the same
			q.Must(q.Rdb.Persist(q.Context(), locktest.KeysOf(q.lock)[1]).Err())
		}
	}
}

// A place in the list that the timeouts do not have, or the other way round, is noticed however far behind it is.
func TestFairWaiterFarBehindThatHasLostItsPlaceJoinsAgain(t *testing.T) {
	t.Parallel()
	q := newFairQueue(locktest.NewBench(t, testredis.Start(t).Addr()))
	q.join(false, 3000)
	q.Must(q.Rdb.LRem(q.Context(), locktest.KeysOf(q.lock)[1], 1, q.all[2500]).Err())
	q.asks(2500)
	assert.Equal(t, q.all[2500], q.Queue()[2999])
	assert.Len(t, q.Queue(), 3000)
}

// Redis was unavailable, or its clock went back: the first waiter is granted the lock, and all others keep their places,
// however many they are. Without an outage, those that have not asked for so long lose theirs.
func TestFairVeryManyWaitersSurviveAnOutage(t *testing.T) {
	t.Parallel()
	s := testredis.Start(t)
	for what, at := range map[string]time.Duration{"an outage": -time.Minute, "the clock went back": time.Hour} {
		for _, others := range []bool{false, true} {
			t.Run(fmt.Sprint(what, ", and others ask: ", others), func(t *testing.T) {
				q := newFairQueue(locktest.NewBench(t, s.Addr()))
				q.join(false, 6000)
				asked := q.now() + at.Milliseconds()
				last := asked
				if others {
					last = q.now()
				}
				q.asked(asked, last)
				q.Must(locktest.Second(locktest.Send(q.client, q.lock.Release(contract.Release{Field: locktest.JavaOther + ":1"}))))
				if others && at < 0 {
					q.leave(q.all[:5000]...) // which one script passes over
					assert.Zero(t, q.Rdb.Exists(t.Context(), q.LockName).Val())
				} else {
					assert.Equal(t, q.all[:1], q.Rdb.HKeys(t.Context(), q.LockName).Val())
					q.leave(q.all[0])
				}
				q.check(what)
			})
		}
	}
}

// farBehind returns a queue in which a real waiter is far behind others, and can be granted the lock; when it has acquired
// the lock; and what has it unlock.
func farBehind(t *testing.T) (q *fairQueue, unlock func(), acquired chan time.Time) {
	q = newFairQueue(locktest.NewBench(t, testredis.Start(t).Addr()))
	q.join(false, farPlaces)
	l, ctx := q.Client().NewFairLock(q.LockName), ContextWithOwner(t.Context())
	acquired = make(chan time.Time)
	go func() {
		q.Must(l.Lock(ctx))
		acquired <- time.Now()
	}()
	testredis.Await(t, "it can be granted the lock", locktest.Soon, func() bool { return len(q.FairPlaces()) == farPlaces+1 })
	return q, func() { q.Must(l.Unlock(ctx)) }, acquired
}

// All in front leave at once but one, which is granted the lock and never learns of it. The next waiter was far behind
// when it last asked. It finds that the grant has expired when it asks again.
func TestFairGrantThatExpiresIsNoticedByAWaiterThatWasFarBehind(t *testing.T) {
	t.Parallel()
	q, unlock, acquired := farBehind(t)
	dead := q.all[farPlaces-1]
	o, _ := q.asks(farPlaces - 1)
	assert.Equal(t, farPlaces-1, o.Standing.Ahead())
	ear := q.Rdb.Subscribe(q.Context(), locktest.AnnounceOf(q.lock)+"client:"+dead[:36])
	defer ear.Close()
	q.Must(locktest.Second(ear.Receive(q.Context())))
	pipe := q.Rdb.Pipeline()
	for _, waiter := range q.all[:farPlaces-1] {
		pipe.LRem(q.Context(), locktest.KeysOf(q.lock)[1], 1, waiter)
		pipe.ZRem(q.Context(), locktest.KeysOf(q.lock)[2], waiter)
		pipe.HDel(q.Context(), locktest.KeysOf(q.lock)[3], waiter)
	}
	q.Must(locktest.Second(pipe.Exec(q.Context())))
	start := time.Now()
	q.Must(locktest.Second(locktest.Send(q.client, q.lock.Release(contract.Release{Field: locktest.JavaOther + ":1"}))))
	assert.Less(t, (<-acquired).Sub(start), testredis.Scale(start, 5*time.Second+9*record.FairHeartbeat))
	unlock()
}
