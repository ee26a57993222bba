//go:build go1.25

package engine

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// enterQueues is that of an entrance, with the lock states of the targets.
func (e *bubbleEngine) enterQueues(op *waitOptions, targets []target) error {
	var locks []contract.Lock
	for _, t := range targets {
		locks = append(locks, t.hold.commands())
	}
	all := retainAll(e.Engine, locks)
	defer all.release()
	return entrance{e.Engine}.enterQueues(op, all, targets)
}

// wantsOf returns a target for each of the locks.
func (e *bubbleEngine) wantsOf(o Owner, names ...string) (targets []target) {
	for _, name := range names {
		h := &hold{claim: claim{lockState: e.retain(name), lock: newFakeLock(e.redis, name), owner: o}}
		targets = append(targets, target{hold: h})
	}
	return targets
}

// waitsFor returns the options of a wait that ends when ctx is done, or at the deadline.
func waitsFor(ctx context.Context, deadline time.Time) *waitOptions {
	return &waitOptions{Wait: send.Wait{Ctx: ctx, Deadline: deadline}}
}

// A waiter whose turn comes at its deadline is admitted or gives up, and the engine forgets a local queue that no owner
// uses.
func TestQueueLeavesNothingWhenAGrantMeetsTheDeadline(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			e := newBubbleEngine(t)
			first, second := e.wantsOf(1, "x"), e.wantsOf(2, "x")
			require.NoError(t, e.enterQueues(waitsFor(context.Background(), time.Time{}), first))
			time.AfterFunc(time.Second, func() { leaveQueues(first) })
			err := e.enterQueues(waitsFor(context.Background(), time.Now().Add(time.Second)), second)
			assert.True(t, err == nil || err == errBypassQueue, "%v", err) // no owner was seen
			synctest.Wait()
			leaveQueues(second)
			assert.Zero(t, e.waitQueues(), "wait queues are left behind a waiter that was told %v", err)
		})
	}
}

// A Lock whose ctx is canceled at the moment when its reserve is over returns the error of its ctx. It does not return
// send.ErrTimeUp, which is for callers with a wait time.
func TestQueueReportsAnEndedContextAfterTheReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		start := time.Now()
		at := func(d time.Duration) { time.Sleep(time.Until(start.Add(d))) }
		through := func(o Owner, name string, from, until time.Duration) {
			go func() {
				at(from)
				mine := e.wantsOf(o, name)
				assert.NoError(t, e.enterQueues(waitsFor(context.Background(), time.Time{}), mine))
				at(until)
				leaveQueues(mine)
			}()
		}
		// Each time that one local queue admits owner 9, the other one is taken. The third time, at 3s, owner 9 keeps
		// x, and waits for y no longer than the reserve.
		through(1, "x", 0, time.Second)
		through(2, "y", 0, 2*time.Second)
		through(3, "x", 700*time.Millisecond, 3*time.Second)
		through(4, "y", 1500*time.Millisecond, 5*time.Second)
		at(500 * time.Millisecond)
		mine := e.wantsOf(9, "x", "y")
		err := e.enterQueues(waitsFor(&endsWhenSeen{Context: context.Background()}, time.Time{}), mine)
		assert.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, 3*time.Second+reserveTime, time.Since(start), "not when the reserve is over")
		at(6 * time.Second)
	})
}

// A waiter that leaves a queue which is forgotten already does not drop the queue that has replaced it.
func TestQueueThatReplacesAnotherIsNotDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newBubbleEngine(t)
		id := contract.LockID{Name: "x"}
		s := e.retain("x")
		s.locked(func() {
			before := s.queueLocked(id.Half)
			before.TryEnter()
			first := before.Add(candidate{}, 1)
			before.Add(candidate{}, 2)
			before.FailBehind(1, errBypassQueue)
			before.Release()
			before.Leave(first)
			s.dropQueueLocked(before)

			now := s.queueLocked(id.Half)
			now.TryEnter()
			s.dropQueueLocked(before) // as by a waiter of that queue
			assert.Same(t, now, s.queueLocked(id.Half), "there are two wait queues of one name")
			now.Release()
			s.dropQueueLocked(now)
		})
	})
}

// L6: the waiters of a process are served in the order in which they came, and only the first one sends requests.
func TestEngineServesLocalWaitersInOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		e.lock(1)
		var order []Owner
		var wg sync.WaitGroup
		for o := Owner(2); o <= 50; o++ {
			wg.Go(func() {
				e.lock(o)
				order = append(order, o)
				time.Sleep(time.Second)
				e.unlock(o)
			})
			synctest.Wait()
		}
		assert.Equal(t, 1, e.redis.Count("acquire"), "attempts while a local owner holds the lock")
		e.unlock(1)
		wg.Wait()
		assert.True(t, slices.IsSorted(order), "served in the order %v", order)
		assert.Len(t, order, 49, "served in the order %v", order)
	})
}

// A caller of several locks keeps its position in a local queue when its owner acquires another one of the locks.
func TestMultiAcquireKeepsItsPositionWhenItsOwnerAcquiresALock(t *testing.T) {
	inBubble(t, func(t *testing.T, e *bubbleEngine) {
		ctx, x, y := context.Background(), newFakeLock(e.redis, "x"), newFakeLock(e.redis, "y")
		e.lock(1)
		var order []Owner
		var wg sync.WaitGroup
		wg.Go(func() {
			ok, err := e.Acquire(ctx, 2, Request{Wait: forever}, x, y)
			assert.NoError(t, err)
			assert.True(t, ok)
			order = append(order, 2)
			e.giveBack(x, 2)
			e.giveBack(y, 2)
		})
		synctest.Wait()
		wg.Go(func() {
			e.lock(3)
			order = append(order, 3)
			e.unlock(3)
		})
		synctest.Wait()
		e.take(y, 2)
		synctest.Wait()
		e.unlock(1)
		wg.Wait()
		assert.Equal(t, []Owner{2, 3}, order)
		e.giveBack(y, 2)
	})
}

// An endsWhenSeen is a ctx that is canceled right after the first call of Err.
type endsWhenSeen struct {
	context.Context
	seen atomic.Bool
}

func (c *endsWhenSeen) Err() error {
	if c.seen.CompareAndSwap(false, true) {
		return nil
	}
	return context.Canceled
}
