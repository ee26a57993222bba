//go:build go1.25

package engine

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/send"
)

// All holders of a record learn of its loss, whether the watchdog, a re-entry or the clock has noticed it.
func TestLossOfASharedRecordReachesAllHolders(t *testing.T) {
	for name, notice := range map[string]func(e *bubbleEngine){
		"the watchdog": func(e *bubbleEngine) { time.Sleep(e.WatchdogTimeout / 2) },
		"a re-entry": func(e *bubbleEngine) {
			ok, err := e.share(ctx, 2, Request{Wait: forever})
			assert.False(e.t, ok, "re-entry")
			assert.ErrorIs(e.t, err, ErrLockLost, "re-entry")
		},
		"the clock": func(e *bubbleEngine) {
			e.expire(1)
			_, _ = e.holdCount(e.shared(), 2)
		},
	} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			var guards []context.Context
			for o := Owner(1); o <= 5; o++ {
				e.shares(o)
				guards = append(guards, e.guarded(o))
			}
			e.unlock(5)
			e.deleteRecord()
			notice(e)
			for i, guarded := range guards[:4] {
				assert.ErrorIs(t, context.Cause(guarded), ErrLockLost, "%s: guard %d", name, i+1)
			}
			e.shares(6) // a new record
			for o := Owner(1); o <= 4; o++ {
				assert.ErrorIs(t, e.unlockErr(o), ErrLockLost, "%s: unlock %v", name, o)
			}
			e.assertHeld("%s: an Unlock of a lost hold deleted the record of another owner", name)
			e.unlock(6)
		})
	}
}

// A loss is reported to all holders, even if the first of them is unlocking.
func TestLossOfASharedRecordIsReportedWhileOneLeaves(t *testing.T) {
	t.Parallel()
	r := fakeredis.New()
	e := joinBubbleEngine(t, r, "client")
	e.HandoffWindow = time.Hour
	for range 50 {
		e.shares(1)
		e.shares(2)
		guarded := e.guarded(2)
		var s *lockState
		var shared *record
		e.holdOf(e.shared().Traits().ID, 1, func(h *hold) { s, shared = h.lockState, h.record })
		var all sync.WaitGroup
		s.locked(func() { // both goroutines wait for the mutex long enough to get it in the order in which they came
			all.Go(func() {
				e.watchdog.Remove(&shared.lease) // as the watchdog does before it reports a loss
				shared.LeaseEnded(errGone)
			})
			time.Sleep(2 * time.Millisecond)
			all.Go(func() { _ = e.unlockErr(1) })
			time.Sleep(2 * time.Millisecond)
		})
		s.locked(func() { time.Sleep(2 * time.Millisecond) })
		all.Wait()
		select {
		case <-guarded.Done(): // Err would look at the hold itself
		case <-time.After(10 * time.Second): // another goroutine than that of the watchdog cancels it
			require.Fail(t, "a holder of the lost record is not told")
		}
		_ = e.unlockErr(2)
		r.Set(func() { clear(r.Records) })
	}
}

// The cost of a loss is linear in the number of holders, not quadratic.
func TestLossOfASharedRecordCostsByHolder(t *testing.T) {
	const many = 5000
	e := joinBubbleEngine(t, fakeredis.New(), "client")
	e.HandoffWindow = time.Hour
	for o := Owner(1); o <= many; o++ {
		e.shares(o)
	}
	var first *hold
	e.holdOf(e.shared().Traits().ID, 1, func(h *hold) { first = h })
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	first.lose(errGone)
	runtime.ReadMemStats(&after)
	assert.LessOrEqual(t, (after.TotalAlloc-before.TotalAlloc)/many, uint64(2000), "bytes for each reader")
	for o := Owner(1); o <= many; o++ {
		err := e.unlockErr(o)
		require.ErrorIs(t, err, ErrLockLost, "%v was not told", o)
	}
}

// A renewal whose goroutine a hook of the Redis client has ended may still run, as any other without an answer.
func TestRenewalMayRunAfterAHookHasEndedItsGoroutine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var works atomic.Bool
		e := joinBubbleEngine(t, fakeredis.New(), "client", func(c *Config) {
			renew := c.Renewer
			c.Renewer = func(ctx context.Context, sender *send.Sender, all []Renewal) {
				if !works.Load() {
					runtime.Goexit()
				}
				renew(ctx, sender, all)
			}
		})
		e.lock(1)
		_, field := e.holdBy(contract.LockID{Name: "x"}, 1)
		time.Sleep(e.WatchdogTimeout/3 + time.Second/2)
		assert.Equal(t, e.WatchdogTimeout, e.late.Longest(field), "the lease that may still be set")
		works.Store(true)
		time.Sleep(10 * e.WatchdogTimeout)
		assert.Zero(t, e.late.Longest(field))
		e.unlock(1)
	})
}
