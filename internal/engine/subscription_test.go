//go:build go1.25

package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/wake/waketest"
)

// L1: a release wakes a waiter of another Client.
func TestEngineReleaseWakesAWaiter(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := e.another()
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
		other := e.another()
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
		other := e.another()
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

// A caller whose time is up makes a last attempt if no message could have told it that the lock was released, and no
// other caller does. It waits for the answer for as long as every caller does.
func TestEngineAsksOnceMoreWhenTheTimeIsUp(t *testing.T) {
	const wait, free = 500 * time.Millisecond, 300 * time.Millisecond
	for name, c := range map[string]struct {
		pubsub   func(p *waketest.Server)
		released bool
		attempts int
	}{
		"SUBSCRIBE hangs":              {func(p *waketest.Server) { p.ConfirmAfter = time.Hour }, true, 2},
		"SUBSCRIBE is slow":            {func(p *waketest.Server) { p.ConfirmAfter = wait + time.Millisecond }, true, 2},
		"the connection is refused":    {func(p *waketest.Server) { p.Down = true }, true, 2},
		"another owner keeps the lock": {func(p *waketest.Server) { p.ConfirmAfter = time.Hour }, false, 2},
		"the subscription is in force": {func(*waketest.Server) {}, false, 2}, // the second one is made when it is confirmed
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				other := e.another()
				other.lock(1)
				e.redis.PubSub.Set(func() { c.pubsub(&e.redis.PubSub) })
				if c.released {
					time.AfterFunc(free, func() { other.unlock(1) })
				}
				before, start := e.redis.Count("acquire"), time.Now()
				ok, err := e.lockWith(ctx, 2, Request{Wait: wait})
				assert.NoError(t, err)
				assert.Equal(t, c.released, ok, "the lock was acquired")
				assert.Equal(t, wait, time.Since(start))
				assert.Equal(t, c.attempts, e.redis.Count("acquire")-before, "attempts")
				if ok {
					e.unlock(2)
				} else {
					other.unlock(1)
				}
			})
		})
	}
}

// The last attempt of a caller whose time is up ends after MinWait, as that of every short wait, and then the newest
// fact is that another owner holds the lock.
func TestEngineWaitsBrieflyForItsLastAnswer(t *testing.T) {
	const wait = 500 * time.Millisecond
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := e.another()
		other.lock(1)
		e.redis.PubSub.Set(func() { e.redis.PubSub.ConfirmAfter = time.Hour })
		attempts := 0
		e.fail(func(verb string) (f fakeredis.Fault) {
			if verb == "acquire" {
				if attempts++; attempts == 2 {
					f.Answer = 10 * time.Second
				}
			}
			return f
		})
		start := time.Now()
		err := e.misses(ctx, 2, Request{Wait: wait})
		assert.NoError(t, err)
		assert.Equal(t, wait+send.MinWait, time.Since(start))
		other.unlock(1)
		time.Sleep(time.Minute)
		e.redis.Set(func() { assert.Nil(t, e.redis.Record("x"), "the late attempt was rolled back") })
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
