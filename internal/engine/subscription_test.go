//go:build go1.25

package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// L1: a release wakes a waiter of another Client.
func TestEngineReleaseWakesAWaiter(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := joinBubbleEngine(t, e.redis, "other")
		e.redis.Latency = 500 * time.Microsecond
		other.lock(1)
		go func() {
			time.Sleep(3300 * time.Millisecond)
			other.unlock(1)
		}()
		e.lock(2)
		waited := other.watchdog.Now()
		assert.LessOrEqual(
			t,
			waited,
			3303*time.Millisecond,
			"got the lock %v after the start, it was released at 3.3s",
			waited,
		)
		e.unlock(2)
	})
}

// L1: a waiter that receives no message notices a release within the poll interval.
func TestEngineLostWakeUpCostsThePollInterval(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := joinBubbleEngine(t, e.redis, "other")
		other.lock(1)
		e.redis.PubSub.Set(func() { e.redis.PubSub.Down = true })
		const releasedAfter = 7300 * time.Millisecond
		start := time.Now()
		time.AfterFunc(releasedAfter, func() { other.unlock(1) })
		e.lock(2)
		late := time.Since(start) - releasedAfter
		assert.LessOrEqual(t, late, e.PollInterval, "noticed the release after %v", late)
		assert.LessOrEqual(t, e.redis.Count("acquire"), 13, "attempts in 8s: it must not poll faster than the max wake delay")
		e.unlock(2)
	})
}

// A waiter does not miss a release between its first attempt and the confirmation of its subscription.
func TestEngineAsksAgainOnceItIsSubscribed(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := joinBubbleEngine(t, e.redis, "other")
		other.lock(1)
		e.redis.PubSub.ConfirmAfter = 100 * time.Millisecond
		start := time.Now()
		go func() {
			time.Sleep(50 * time.Millisecond)
			other.unlock(1)
		}()
		e.lock(2)
		took := time.Since(start)
		assert.LessOrEqual(t, took, 100*time.Millisecond, "noticed a release before the subscription after %v", took)
		e.unlock(2)
	})
}

// C4: a waiter that may not subscribe polls often while the lock changes hands, and rarely while one owner keeps it.
func TestPollingSlowsDownForALockThatIsKept(t *testing.T) {
	t.Parallel()
	const lease, most = 30 * time.Second, time.Second
	start := time.Now()
	count := func(holds time.Duration) int {
		var p polling
		polls := 0
		for now := start; now.Sub(start) < time.Minute; polls++ {
			since := now.Sub(start) % holds // since the lock was renewed, or acquired by the next owner
			now = now.Add(min(most, p.next(now, lease-since)))
		}
		return polls
	}
	assert.LessOrEqual(t, count(10*time.Second), 6*30+60, "requests in a minute for a lock that is kept and renewed")
	assert.GreaterOrEqual(t, count(20*time.Millisecond), 5000, "requests in a minute for a lock that changes hands")
}
