//go:build go1.25

package engine

import (
	"context"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/fakeredis"
)

// Until MinHold has passed, neither other goroutines of the process nor the owner itself get the lock again.
func TestMinHoldHandsNothingOffBeforeItHasPassed(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		const d = 12 * time.Second
		l, start := newLimitedLock(e.redis, contract.Limits{MinHold: d}), time.Now()
		e.take(l, 1)
		var wg sync.WaitGroup
		for o := Owner(2); o < 4; o++ {
			wg.Go(func() {
				e.take(l, o)
				assert.GreaterOrEqual(t, time.Since(start), time.Duration(o-1)*d, "the time until %v has it", o)
				e.giveBack(l, o)
			})
			synctest.Wait()
		}
		e.giveBack(l, 1)
		wg.Wait()
		e.take(l, 1)
		assert.GreaterOrEqual(t, time.Since(start), 3*d, "the time until the first owner has it again")
		assert.Less(t, time.Since(start), 3*d+3*time.Second+4*time.Millisecond, "each waits for the max wake delay at most")
		e.giveBack(l, 1)
		time.Sleep(d)
	})
}

// What is given back unused ends no MinHold if the owner has acquired the lock before, whichever level is released first:
// that hold is used.
func TestMinHoldIsKeptForAHoldThatWasAcquiredBefore(t *testing.T) {
	for _, first := range []bool{true, false} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			l := newLimitedLock(e.redis, contract.Limits{MinHold: 10 * time.Second})
			var report Report
			e.take(l, 1)
			e.take(l, 1, Request{Wait: forever, Report: &report})
			if !first {
				e.giveBack(l, 1)
			}
			require.NoError(t, report.GiveBack(ctx))
			if first {
				e.giveBack(l, 1)
			}
			time.Sleep(9 * time.Second)
			e.assertHeld("the record before its time is over")
			time.Sleep(2 * time.Second)
			e.assertFree("the record after its time")
		})
	}
}

// What was given back unused is free at once, although it has MinHold and a caller of this process waits for it: that one
// asks Redis itself. A later hold of the same owner is not touched.
func TestGiveBackOfAHoldThatWasNotUsed(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newLimitedLock(e.redis, contract.Limits{MinHold: 10 * time.Second})
		var report Report
		e.take(l, 1, Request{Wait: forever, Report: &report})
		got := later(func() error { _, err := e.acquire(ctx, l, 2, Request{Wait: forever}); return err })
		synctest.Wait()
		before := e.redis.Holder("x")
		giveBack := report.GiveBack
		require.NoError(t, giveBack(ctx))
		require.NoError(t, <-got)
		assert.NotEqual(t, before, e.redis.Holder("x"), "it was handed off")
		assert.NoError(t, giveBack(ctx), "nothing is held")
		e.giveBack(l, 2)
		e.take(l, 1, Request{Wait: forever, Report: &report})
		assert.NoError(t, giveBack(ctx))
		e.assertHeld("the later hold")
		require.NoError(t, report.GiveBack(ctx))
		e.assertFree("the record before MinHold has passed")
	})
}

// newLimitedLock returns a fakeLock with limits.
func newLimitedLock(r *fakeredis.Redis, l contract.Limits) *fakeLock {
	lock := newFakeLock(r, "x")
	lock.traits.Limits = l
	return lock
}

// A release that Redis has not confirmed continues in the background, and does not delete the record before MinHold has
// passed.
func TestMinHoldUnconfirmedDeletesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newLimitedLock(e.redis, contract.Limits{MinHold: 40 * time.Second})
		e.take(l, 1)
		e.faults(fakeredis.Fault{Block: io.EOF})
		assert.Error(t, e.Release(ctx, l, 1))
		time.Sleep(3 * time.Second)
		e.heal()
		time.Sleep(31 * time.Second)
		e.assertHeld("the record after the first lease, and before its time is over")
		time.Sleep(7 * time.Second)
		e.assertFree("the record after its time")
	})
}

// If a repeated release finds no record before MinHold has passed, the record was gone before the release.
func TestMinHoldUnlockReportsARecordThatIsGone(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newLimitedLock(e.redis, contract.Limits{MinHold: 10 * time.Second})
		e.take(l, 1)
		lost := true
		e.redis.Set(func() {
			delete(e.redis.Records, "x")
			e.redis.Fault = func(string) fakeredis.Fault {
				defer func() { lost = false }()
				if lost {
					return fakeredis.Fault{Block: io.EOF}
				}
				return fakeredis.Fault{}
			}
		})
		assert.ErrorIs(t, e.Release(ctx, l, 1), ErrLockLost)
		e.redis.Set(func() { assert.False(t, lost, "a request was lost") })
	})
}

// A release whose answer was lost has kept the record for MinHold. If it is repeated after that, it finds no record,
// and the lock was not lost.
func TestMinHoldUnlockIsNilWhenTheTimeEndsBeforeItsAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newLimitedLock(e.redis, contract.Limits{MinHold: 10 * time.Millisecond})
		e.take(l, 1)
		answers := 0
		e.fail(func(string) (f fakeredis.Fault) {
			if answers++; answers == 1 {
				f.Err, f.Answer = io.EOF, 20*time.Millisecond
			}
			return f
		})
		e.giveBack(l, 1)
		e.redis.Set(func() { assert.Equal(t, 2, answers, "the release was repeated") })
		e.assertFree()
	})
}

// A hold ends when MaxHold is over, with a cause of its own, and its record does not outlive MaxHold.
func TestMaxHoldEndsAHold(t *testing.T) {
	for _, d := range []time.Duration{time.Second, 29 * time.Second, 30 * time.Second, 31 * time.Second, 45 * time.Second,
		10 * time.Minute} {
		for _, latency := range []time.Duration{0, 300 * time.Millisecond} {
			inBubble(t, func(t *testing.T, e *bubbleEngine) {
				e.redis.Latency = latency
				l, start := newLimitedLock(e.redis, contract.Limits{Max: d}), time.Now()
				ok, err := e.acquire(ctx, l, 1, Request{Wait: forever})
				require.True(t, ok)
				require.NoError(t, err)
				guarded, err := e.Guard(ctx, l, 1)
				require.NoError(t, err)
				e.faults(fakeredis.Fault{Block: io.EOF}, "release") // so that the record expires
				<-guarded.Done()
				held := time.Since(start)
				assert.LessOrEqual(t, held, d, "%v: how long it was trusted", d)
				assert.GreaterOrEqual(
					t,
					held,
					d-min(d, 30*time.Second)/50-4*time.Millisecond-2*latency,
					"%v: how long it was trusted",
					d,
				)
				assert.ErrorIs(t, context.Cause(guarded), ErrMaxHold)
				assert.ErrorIs(t, context.Cause(guarded), ErrLockLost)
				e.assertHeld("%v: trust outlives the record", d)
				time.AfterFunc(20*time.Millisecond, e.heal)
				if d <= 30*time.Second {
					assert.Zero(t, e.redis.Count("renew"), "%v: renewals", d)
				}
				ok, err = e.acquire(ctx, newFakeLock(e.redis, "x"), 2, Request{Wait: forever})
				assert.True(t, ok)
				assert.NoError(t, err)
				assert.Less(t, time.Since(start), d+4*latency+20*time.Millisecond, "%v: the time until the next one has it", d)
				assert.NoError(t, e.Release(ctx, l, 2))
				assert.ErrorIs(t, e.Release(ctx, l, 1), ErrMaxHold)
				assert.ErrorIs(t, e.Release(ctx, l, 1), ErrNotHeld)
			})
		}
	}
}

// The limit of a hold counts from when it was acquired, also behind another one of the process: a lock with MaxHold is not
// handed off. This also holds if only one of the two holds has a limit.
func TestMaxHoldCountsFromItsOwnAcquisition(t *testing.T) {
	const d = 40 * time.Second
	type step struct{ from, to contract.Limits }
	for _, s := range []step{
		{contract.Limits{Max: d}, contract.Limits{Max: d}},
		{contract.Limits{}, contract.Limits{Max: d}},
		{contract.Limits{Max: 25 * time.Second}, contract.Limits{}},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := joinBubbleEngine(t, fakeredis.New(), "client", withWindow(time.Hour))
			first, second := newLimitedLock(e.redis, s.from), newLimitedLock(e.redis, s.to)
			e.take(first, 1)
			var got time.Time
			var guarded context.Context
			var err error
			done := begin(func() {
				e.take(second, 2)
				got = time.Now()
				guarded, err = e.Guard(ctx, second, 2)
				assert.NoError(t, err)
			})
			time.Sleep(15 * time.Second)
			e.giveBack(first, 1)
			<-done
			require.Equal(t, 2, e.redis.Count("acquire"))
			require.NoError(t, guarded.Err())
			if s.to.Max == 0 {
				time.Sleep(time.Hour)
				assert.NoError(t, guarded.Err(), "%v: the hold without a limit", s)
				e.giveBack(second, 2)
				return
			}
			e.faults(fakeredis.Fault{Block: io.EOF}, "release") // so that the record expires
			<-guarded.Done()
			assert.ErrorIs(t, context.Cause(guarded), ErrMaxHold, "%v", s)
			assert.LessOrEqual(t, time.Since(got), s.to.Max, "%v", s)
			assert.GreaterOrEqual(t, time.Since(got), s.to.Max-time.Second, "%v", s)
			e.assertHeld("%v: trust outlives the record", s)
			time.Sleep(time.Second + 10*time.Millisecond)
			e.assertFree("%v: the record outlives the limit", s)
			assert.ErrorIs(t, e.Release(ctx, second, 2), ErrMaxHold)
		})
	}
}

func TestMaxHoldIsNotProlongedByAReentry(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		for _, lease := range []time.Duration{0, 4 * time.Second} {
			l, start := newLimitedLock(e.redis, contract.Limits{Max: 5 * time.Second}), time.Now()
			for range 2 {
				ok, err := e.acquire(ctx, l, 1, leased(lease))
				require.True(t, ok)
				require.NoError(t, err)
				time.Sleep(3 * time.Second)
			}
			assert.Zero(t, holdCountOf(e.Engine, l, 1), "hold count after %v", time.Since(start))
			e.assertFree("the record")
			_ = e.Release(ctx, l, 1)
			_ = e.Release(ctx, l, 1)
		}
	})
}

func holdCountOf(e *Engine, l contract.Lock, o Owner) int {
	_, levels := e.holdCount(l, o)
	return levels
}

// The MinHold of a hold that was lost is kept, also if the lock was handed off to it by a hold without MinHold: its
// record is not deleted when its owner learns of the loss.
func TestMinHoldIsKeptAfterALossThatFollowsAHandoff(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		l := newLimitedLock(e.redis, contract.Limits{MinHold: 2 * time.Minute})
		e.lock(1)
		taken := begin(func() {
			_, err := e.acquire(ctx, l, 2, Request{Wait: forever})
			assert.NoError(t, err)
		})
		synctest.Wait()
		e.unlock(1)
		<-taken
		require.Equal(t, 1, e.redis.Count("acquire"), "it was handed off")
		e.redis.Set(func() {
			e.redis.Fault = func(string) fakeredis.Fault { return fakeredis.Fault{Err: io.EOF} } // the renewals run
		})
		time.Sleep(e.WatchdogTimeout + time.Second)
		e.heal()
		e.assertHeld("the record after the loss")
		_, err := e.acquire(ctx, l, 2, Request{})
		require.ErrorIs(t, err, ErrLockLost)
		time.Sleep(time.Minute)
		e.assertHeld("the record before its time is over")
		time.Sleep(2 * time.Minute)
		e.assertFree("the record after its time")
	})
}
