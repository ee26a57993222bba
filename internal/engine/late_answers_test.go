//go:build go1.25

package engine

// Answers that are late: what Redis has confirmed counts, and what has ended meanwhile does not.

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/fakeredis"
)

// Redis confirms an extension while the old lease is valid. That too little of it is left is a reason to ask once more,
// and none to forget it: the hold is not lost before the confirmed lease ends.
func TestConfirmedExtensionCountsWhileExtendAsksAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newFakeLock(e.redis, "x")
		e.lock(1, leased(2*time.Second)) // answered at once
		guarded := e.guarded(1)
		time.Sleep(500 * time.Millisecond) // 1.48s of it is left
		e.fail(slowSpell())
		err := e.Extend(ctx, l, 1, 1900*time.Millisecond)
		e.heal()
		assert.NoError(t, err)
		assert.NoError(t, guarded.Err())
		_ = e.unlockErr(1)
	})
}

// slowSpell makes the first answer take 990 ms, and the next ones 700 ms: less than the validity that is left each time.
func slowSpell() func(string) fakeredis.Fault {
	asked := 0
	return func(string) fakeredis.Fault {
		if asked++; asked == 1 {
			return fakeredis.Fault{Answer: 990 * time.Millisecond}
		}
		return fakeredis.Fault{Answer: 700 * time.Millisecond}
	}
}

func TestConfirmedLeaseCountsWhileAReentryAsksAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1, leased(2*time.Second))
		guarded := e.guarded(1)
		time.Sleep(500 * time.Millisecond)
		e.fail(slowSpell())
		_, err := e.lockWith(ctx, 1, leased(1900*time.Millisecond))
		e.heal()
		assert.NoError(t, err)
		assert.NoError(t, guarded.Err())
		_ = e.unlockErr(1)
		_ = e.unlockErr(1)
	})
}

func TestHoldCountOfAHoldWhoseLeaseEndsMeanwhile(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newFakeLock(e.redis, "x")
		e.lock(1, leased(400*time.Millisecond))
		guarded := e.guarded(1)
		e.fail(func(string) fakeredis.Fault { return fakeredis.Fault{Answer: 600 * time.Millisecond} })
		n, err := e.HoldCount(ctx, l, 1)
		e.heal()
		require.Error(t, guarded.Err(), "the lease is over")
		other := e.another()
		other.lock(2)
		assert.NoError(t, err)
		assert.Zero(t, n, "another owner has the lock by now")
		other.unlock(2)
		_ = e.unlockErr(1)
	})
}

// The process is paused while the answer is on its way, so that no timer has noticed that the lease is over.
func TestHoldCountLooksAtTheClockAfterAPause(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newFakeLock(e.redis, "x")
		e.lock(1)
		guarded := e.guarded(1)
		e.fail(func(string) fakeredis.Fault { return fakeredis.Fault{Answer: 100 * time.Millisecond} })
		var n int
		var err error
		asked := begin(func() { n, err = e.HoldCount(ctx, l, 1) })
		time.Sleep(50 * time.Millisecond)
		e.expire(1)
		<-asked
		e.heal()
		assert.NoError(t, err)
		assert.Zero(t, n)
		assert.Error(t, guarded.Err())
		_ = e.unlockErr(1)
	})
}

// failOnce makes the next request with this verb meet the fault.
func (e *bubbleEngine) failOnce(verb string, f fakeredis.Fault) {
	var n atomic.Int64
	e.fail(func(v string) (none fakeredis.Fault) {
		if v == verb && n.Add(1) == 1 {
			return f
		}
		return none
	})
}

// With a short watchdog timeout, too, a request over a connection that hangs is sent again over another one.
func TestShortWatchdogTimeoutEndsNoRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := joinBubbleEngine(t, fakeredis.New(), "client", withWatchdogTimeout(900*time.Millisecond))
		hangs := fakeredis.Fault{Late: 20 * time.Second}
		e.lock(1, leased(time.Hour))
		e.failOnce("release", hangs)
		assert.NoError(t, e.unlockErr(1))

		other := e.another()
		other.lock(2)
		got := e.asking(1)
		time.Sleep(3 * time.Second)
		e.failOnce("acquire", hangs)
		time.Sleep(3 * time.Second)
		other.unlock(2)
		if assert.NoError(t, <-got) {
			e.unlock(1)
		}

		e.lock(1, leased(time.Hour))
		e.outage(2 * time.Second)
		assert.NoError(t, e.unlockErr(1), "Unlock tries for five seconds")
		time.Sleep(time.Minute)
	})
}
