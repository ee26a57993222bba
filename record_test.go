//go:build go1.25

package relock

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// All holders of a record are told of its loss, by the watchdog, a re-entry or the clock.
func TestLossOfASharedRecordReachesAllHolders(t *testing.T) {
	for name, notice := range map[string]func(e *bubbleEngine){
		"the watchdog": func(e *bubbleEngine) { time.Sleep(e.watchdogTimeout / 2) },
		"a re-entry": func(e *bubbleEngine) {
			ok, err := e.share(context.Background(), 2, request{wait: forever})
			assert.False(e.t, ok, "re-entry")
			assert.ErrorIs(e.t, err, ErrLockLost, "re-entry")
		},
		"the clock": func(e *bubbleEngine) {
			e.holdOf(e.shared().id(), 1, func(h *hold) { h.record.lease.until.Store(0) })
			_, _ = e.levels(e.shared(), 2)
		},
	} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			var guards []context.Context
			for o := owner(1); o <= 5; o++ {
				e.shares(o)
				guards = append(guards, e.guarded(o))
			}
			e.unlock(5)
			e.redis.set(func() { delete(e.redis.records, "x") })
			notice(e)
			for i, guarded := range guards[:4] {
				assert.ErrorIs(t, context.Cause(guarded), ErrLockLost, "%s: guard %d", name, i+1)
			}
			e.shares(6) // a new record
			for o := owner(1); o <= 4; o++ {
				assert.ErrorIs(t, e.unlockErr(o), ErrLockLost, "%s: unlock %v", name, o)
			}
			assert.NotEmpty(t, e.redis.holder("x"), "%s: an Unlock of a lost hold deleted the record of another owner", name)
			e.unlock(6)
		})
	}
}

// Each owner that shares a record has levels of its own.
func TestReadersOfOneRecordHaveTheirOwnLevels(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.shares(1)
		e.shares(2)
		e.shares(2)
		e.shares(1)
		e.shares(2)
		for _, o := range []owner{1, 2, 1, 2} {
			e.unlock(o)
			require.NotEmpty(t, e.redis.holder("x"), "the record is gone while owner 2 reads")
		}
		assert.ErrorIs(t, e.unlockErr(1), ErrNotHeld, "one Unlock too many")
		time.Sleep(3 * e.watchdogTimeout)
		require.NotEmpty(t, e.redis.holder("x"), "the record is not renewed")
		e.unlock(2)
		assert.Empty(t, e.redis.holder("x"), "the record is left")
	})
}

// A loss is reported to all holders, also if the first of them is unlocking.
func TestLossOfASharedRecordIsReportedWhileOneLeaves(t *testing.T) {
	t.Parallel()
	r := &fakeRedis{records: make(map[string]*fakeRecord)}
	e := joinBubbleEngine(t, r, "client")
	e.slice = time.Hour
	for range 50 {
		e.shares(1)
		e.shares(2)
		guarded := e.guarded(2)
		var n *name
		var shared *record
		e.holdOf(e.shared().id(), 1, func(h *hold) { n, shared = h.name, h.record })
		var all sync.WaitGroup
		n.mu.Lock() // both goroutines wait for the mutex so long that they get it in the order in which they came
		all.Go(func() {
			e.watchdog.remove(&shared.lease) // as the watchdog does before it reports a loss
			shared.leaseEnded(errGone)
		})
		time.Sleep(2 * time.Millisecond)
		all.Go(func() { _ = e.unlockErr(1) })
		time.Sleep(2 * time.Millisecond)
		n.mu.Unlock()
		n.mu.Lock()
		time.Sleep(2 * time.Millisecond)
		n.mu.Unlock()
		all.Wait()
		select {
		case <-guarded.Done():
		default: // Err would look for itself
			require.Fail(t, "a holder of the lost record is not told")
		}
		_ = e.unlockErr(2)
		r.set(func() { clear(r.records) })
	}
}

// The cost of a loss grows with the number of holders, and not with its square.
func TestLossOfASharedRecordCostsByHolder(t *testing.T) {
	const many = 5000
	e := joinBubbleEngine(t, &fakeRedis{records: make(map[string]*fakeRecord)}, "client")
	e.slice = time.Hour
	for o := owner(1); o <= many; o++ {
		e.shares(o)
	}
	var first *hold
	e.holdOf(e.shared().id(), 1, func(h *hold) { first = h })
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	first.lose(errGone)
	runtime.ReadMemStats(&after)
	assert.LessOrEqual(t, (after.TotalAlloc-before.TotalAlloc)/many, uint64(2000), "bytes for each reader")
	for o := owner(1); o <= many; o++ {
		err := e.unlockErr(o)
		require.ErrorIs(t, err, ErrLockLost, "%v was not told", o)
	}
}
