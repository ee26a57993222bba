//go:build go1.25

package engine

// Readers of one process that share a record: in bubbles, on a lock that refuses a second record, so that a reader that
// does not share waits; and on a real Redis.

import (
	"context"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/fakeredis"
	"github.com/relock-go/relock/internal/handoff"
	"github.com/relock-go/relock/internal/send"
)

// newSharedFake returns a fakeLock that owners of one process share.
func newSharedFake(r *fakeredis.Redis, name string) *fakeLock {
	l := newFakeLock(r, name)
	l.traits.Admission = contract.Shared
	return l
}

func (e *bubbleEngine) shared() contract.Record { return newSharedFake(e.redis, "x") }

func (e *bubbleEngine) share(ctx context.Context, o Owner, r Request) (bool, error) {
	return e.acquire(ctx, e.shared(), o, r)
}

// shares asserts that o gets the lock at once. It does not require it, because other goroutines than the test's call
// it.
func (e *bubbleEngine) shares(o Owner) {
	e.t.Helper()
	ok, err := e.share(ctx, o, Request{Wait: forever})
	assert.NoError(e.t, err, "%v is not admitted", o)
	assert.True(e.t, ok, "%v is not admitted", o)
}

// sharesNot asserts that o asks Redis, which finds the lock busy because of the record of another owner.
func (e *bubbleEngine) sharesNot(o Owner, r Request) {
	e.t.Helper()
	before := e.redis.Count("acquire")
	ok, err := e.share(ctx, o, r)
	assert.NoError(e.t, err, "%v", o)
	assert.False(e.t, ok, "%v was admitted", o)
	assert.NotEqual(e.t, before, e.redis.Count("acquire"), "%v sent no request", o)
}

// C1: all readers of a process need one request to lock and one to unlock, in any order.
func TestReadersOfOneProcessSendOneRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		for o := Owner(1); o <= 50; o++ {
			e.shares(o)
		}
		guarded := e.guarded(7)
		for _, o := range newRand(1).Perm(50) {
			e.assertHeld("the record is gone while an owner reads")
			e.unlock(Owner(o + 1))
		}
		assert.Equal(t, []string{"acquire", "release"}, e.redis.Requests, "requests")
		assert.Same(t, context.Canceled, context.Cause(guarded), "the cause of a guard")
		assert.Zero(
			t,
			e.names()+e.leases(),
			"%d holds, %d leases and %d wait queues are left",
			e.holds(),
			e.leases(),
			e.waitQueues(),
		)
	})
}

// Only one of the waiting readers sends requests, and all are admitted together.
func TestWaitingReadersAreAdmittedTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := e.another()
		other.lock(1)
		var all sync.WaitGroup
		var inside atomic.Int32
		leave := make(chan struct{})
		for o := Owner(1); o <= 50; o++ {
			all.Go(func() {
				e.shares(o)
				inside.Add(1)
				<-leave
				e.unlock(o)
			})
		}
		time.Sleep(5 * time.Second)
		// The holder sends one request, and one waiter sends one in each poll interval.
		assert.LessOrEqual(t, e.redis.Count("acquire"), 12, "attempts while they wait")
		e.redis.Set(func() { e.redis.Requests = nil })
		other.unlock(1)
		time.Sleep(time.Millisecond)
		assert.Equal(t, 1, e.redis.Count("acquire"), "attempts for all readers")
		assert.Equal(t, int32(50), inside.Load(), "readers at once")
		close(leave)
		all.Wait()
	})
}

// L5: after the hand-off window a new reader asks Redis, where a writer may wait.
func TestSharingEndsWithTheWindow(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.shares(1)
		time.Sleep(e.HandoffWindow - time.Nanosecond)
		e.shares(2)
		e.unlock(1)
		time.Sleep(time.Nanosecond)
		e.sharesNot(3, Request{Wait: 0})
		e.unlock(2)
		e.shares(3)
		e.unlock(3)
	})
}

// A reader does not join a record that is not renewed, or that has ended.
func TestReadersJoinOnlyARenewedRecord(t *testing.T) {
	for name, change := range map[string]func(e *bubbleEngine, of *record){
		"by the clock": func(_ *bubbleEngine, of *record) { of.lease.SetValidUntil(0) },
		"ended":        func(_ *bubbleEngine, of *record) { of.ended = true },
		"no slice":     func(e *bubbleEngine, _ *record) { e.HandoffWindow = 0 },
	} {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			t.Log(name)
			e.HandoffWindow = time.Hour
			e.shares(1)
			e.holdOf(e.shared().Traits().ID, 1, func(h *hold) { change(e, h.record) })
			e.sharesNot(2, Request{Wait: 0})
			_ = e.unlockErr(1)
		})
	}
	inBubble(t, func(t *testing.T, e *bubbleEngine) { // an explicit lease, on either side
		e.HandoffWindow = time.Hour
		e.shares(1)
		e.sharesNot(2, Request{Wait: 0, Lease: time.Minute})
		e.unlock(1)
		ok, err := e.share(ctx, 1, Request{Wait: 0, Lease: time.Minute})
		require.NoError(t, err)
		require.True(t, ok)
		e.sharesNot(2, Request{Wait: 0})
		e.unlock(1)
	})
	inBubble(t, func(t *testing.T, e *bubbleEngine) { // the last reader is about to release the record
		e.HandoffWindow = time.Hour
		e.redis.Latency = time.Second
		e.shares(1)
		go func() {
			assert.NoError(t, e.unlockErr(1))
		}()
		synctest.Wait()
		before := e.redis.Count("acquire")
		e.shares(2)
		assert.NotEqual(t, before, e.redis.Count("acquire"), "admitted while the record is being released")
		e.unlock(2)
	})
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.shares(1)
		_ = e.Close()
		ok, err := e.share(ctx, 2, Request{Wait: 0})
		assert.False(t, ok, "after Close")
		assert.ErrorIs(t, err, send.ErrClosed, "after Close")
		e.unlock(1)
	})
	inBubble(t, func(t *testing.T, e *bubbleEngine) { // the call of 2 has begun before Close
		e.HandoffWindow = time.Hour
		e.shares(1)
		e.isLeaving.Store(true)
		op := e.waitOptionsFor(ctx)
		op.NoWait = true
		_, err := e.acquireOnce(op, 2, Request{}, e.shared())
		assert.Equal(t, send.ErrTimeUp, err, "it asks Redis, which finds the lock busy")
		e.isLeaving.Store(false)
		e.unlock(1)
	})
	inBubble(t, func(t *testing.T, e *bubbleEngine) { // an owner that holds the counterpart asks Redis itself
		other := e.another()
		other.lock(1)
		in := make(chan Owner, 3)
		for o := Owner(1); o <= 3; o++ {
			go func() {
				e.take(newHalfFake(e.redis), o)
				in <- o
			}()
			synctest.Wait()
		}
		e.take(newOtherHalf(e.redis), 3)
		other.unlock(1)
		synctest.Wait()
		if assert.Len(t, in, 2, "owners that are admitted") {
			assert.Equal(t, Owner(3), <-in+<-in, "not the two owners without the other half")
		}
		e.unlock(1)
		e.unlock(2)
		<-in
		e.unlock(3)
		e.giveBack(newOtherHalf(e.redis), 3)
	})
}

// newHalfFake returns a shared fakeLock with a counterpart.
func newHalfFake(r *fakeredis.Redis) *fakeLock {
	l := newSharedFake(r, "x")
	l.traits.Counterpart = contract.LockID{Name: "x", Half: "other"}
	return l
}

// newOtherHalf returns the counterpart, with a record of its own.
func newOtherHalf(r *fakeredis.Redis) *fakeLock {
	l := newFakeLock(r, "other half")
	l.traits.ID = contract.LockID{Name: "x", Half: "other"}
	return l
}

// C3: nothing is left of a shared record, even after a loss.
func TestSharingLeavesNothingAfterALoss(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.shares(1)
		e.shares(2)
		e.deleteRecord()
		time.Sleep(e.WatchdogTimeout)
		assert.Zero(t, e.waitQueues(), "wait queues are left")
		_, _ = e.unlockErr(1), e.unlockErr(2)
	})
}

// Readers behind one that gives up or fails are admitted.
func TestReaderThatGivesUpDelaysNoOtherReader(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		other := e.another()
		other.lock(1)
		ctx, cancel := context.WithCancel(ctx)
		gave := later(func() error {
			_, err := e.share(ctx, 1, Request{Wait: forever})
			return err
		})
		synctest.Wait()
		var all sync.WaitGroup
		for o := Owner(2); o <= 5; o++ {
			all.Go(func() {
				e.shares(o)
				time.Sleep(time.Millisecond)
				e.unlock(o)
			})
		}
		ok, err := e.share(context.Background(), 6, Request{Wait: time.Second})
		assert.NoError(t, err, "a TryLock that waits")
		assert.False(t, ok, "a TryLock that waits")
		cancel()
		assert.ErrorIs(t, <-gave, context.Canceled)
		other.unlock(1)
		start := time.Now()
		all.Wait()
		took := time.Since(start)
		assert.LessOrEqual(t, took, 100*time.Millisecond, "the readers took %v", took)
	})
}

// After a pause of the process an Unlock may run before any timer. It returns the loss, even if it leaves the record to
// other readers.
func TestUnlockOfASharedRecordLooksAtTheClock(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.shares(1)
		e.shares(2)
		e.expire(1)
		for o := Owner(1); o <= 2; o++ {
			assert.ErrorIs(t, e.unlockErr(o), ErrLockLost, "unlock %v", o)
		}
	})
}

// An Unlock waits for a re-entry of its owner that is under way.
func TestUnlockDoesNotOvertakeAReentry(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.shares(1)
		e.shares(2)
		e.redis.Latency = time.Second
		done := later(func() error {
			_, err := e.share(ctx, 2, Request{Wait: forever})
			return err
		})
		synctest.Wait()
		e.unlock(2)
		assert.NoError(t, <-done, "the re-entry")
		e.unlock(2)
		e.unlock(1)
	})
}

// Under random faults, each reader that has not learned of a loss has a record, and no record is left in the end.
func TestSharingKeepsARecordUnderRandomFaults(t *testing.T) {
	for seed := range full[uint64](25, 100) {
		inBubble(t, func(t *testing.T, e *bubbleEngine) {
			e.redis.Latency = time.Millisecond
			e.WatchdogTimeout = time.Second
			rng := rand.New(rand.NewPCG(seed, 0))
			e.redis.Fault = func(string) fakeredis.Fault {
				switch rng.IntN(20) {
				case 0:
					return fakeredis.Fault{Err: io.EOF}
				case 1:
					return fakeredis.Fault{Block: io.EOF}
				case 2:
					return fakeredis.Fault{Ghost: time.Duration(rng.IntN(300)) * time.Millisecond}
				}
				return fakeredis.Fault{}
			}
			stop := time.Now().Add(5 * time.Second)
			var all sync.WaitGroup
			for o := Owner(1); o <= 8; o++ {
				all.Go(func() {
					rng := rand.New(rand.NewPCG(seed, uint64(o)))
					for time.Now().Before(stop) {
						ctx, cancel := context.WithTimeout(ctx, time.Duration(rng.IntN(3000))*time.Millisecond)
						ok, _ := e.share(ctx, o, Request{Wait: time.Duration(rng.IntN(2000)-1000) * time.Millisecond})
						cancel()
						if !ok {
							continue
						}
						guarded := e.guarded(o)
						time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
						assert.True(t, guarded.Err() != nil || e.redis.Holder("x") != "" || guarded.Err() != nil, // canceled meanwhile
							"seed %d: %v reads, and there is no record", seed, o)
						_ = e.unlockErr(o)
					}
				})
			}
			all.Wait()
			e.heal()
			time.Sleep(2 * e.WatchdogTimeout)
			e.assertFree("seed %d: a record is left", seed)
			assert.Zero(t, e.holds(), "seed %d: holds are left", seed)
			assert.Zero(t, e.leases(), "seed %d: leases are left", seed)
		})
	}
}

// An Unlock that does not get the owner mutex, because a re-entry has it, leaves the record to the other readers, even
// if the re-entry is granted in the end.
func TestLateReentryLeavesTheRecordToOtherReaders(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.HandoffWindow = time.Hour
		e.shares(1)
		e.shares(2)
		guarded := e.guarded(1)
		asked := false
		e.fail(func(verb string) fakeredis.Fault {
			if verb != "acquire" {
				return fakeredis.Fault{}
			}
			if asked = !asked; asked {
				return fakeredis.Fault{Block: answerError("LOADING Redis is loading the dataset in memory")}
			}
			return fakeredis.Fault{Late: UnlockTime + time.Second}
		})
		reentry := later(func() error {
			_, err := e.share(ctx, 2, Request{Wait: forever})
			return err
		})
		synctest.Wait()
		assert.Error(t, e.unlockErr(2), "the Unlock got the owner mutex")
		// The re-entry has begun again, and its hold has the record that the Unlock has found.
		assert.NoError(t, <-reentry, "the re-entry")
		e.unlock(2)
		time.Sleep(5 * time.Second)
		e.assertHeld("the record is gone while an owner reads")
		assert.NoError(t, guarded.Err(), "the guard of the other reader ended: %v", context.Cause(guarded))
		e.unlock(1)
	})
}

// If an answer of Redis takes longer than the hand-off window, the readers that wait for it do not send requests one
// after the other.
func TestReadersOfADistantRedisAreAdmittedTogether(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.redis.Latency = handoff.LongWindow // each way
		start := time.Now()
		var all sync.WaitGroup
		for o := Owner(1); o <= 50; o++ {
			all.Go(func() { e.shares(o) })
		}
		all.Wait()
		took := time.Since(start)
		assert.LessOrEqual(t, took, 4*handoff.LongWindow, "all are admitted after %v", took)
		assert.LessOrEqual(t, e.redis.Count("acquire"), 2, "requests")
		for o := Owner(1); o <= 50; o++ {
			e.unlock(o)
		}
	})
}
