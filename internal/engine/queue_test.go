//go:build go1.25

package engine

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/relock-go/relock/internal/contract"
	"github.com/relock-go/relock/internal/send"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// wants returns a hold whose claim wants the lock called name for o.
func (e *bubbleEngine) wants(o Owner, name string) *hold {
	return &hold{claim: claim{lockState: e.retain(name), lock: newFakeLock(e.redis, name), owner: o}}
}

// waitsFor returns the options of a wait that ends when ctx is done, or at the deadline.
func waitsFor(ctx context.Context, deadline time.Time) *waitOptions {
	return &waitOptions{Wait: send.Wait{Ctx: ctx, Deadline: deadline}}
}

// enterQueue waits until h was admitted, or may ask without that.
func (e *bubbleEngine) enterQueue(op *waitOptions, h *hold) error {
	o := acquireOp{waitOptions: *op, engine: e.Engine, target: target{hold: h}}
	return o.enter(func() {})
}

// A waiter whose turn comes at its deadline is admitted or gives up, and the engine forgets a local queue that no owner
// uses.
func TestQueueLeavesNothingWhenAGrantMeetsTheDeadline(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			e := newBubbleEngine(t)
			first, second := e.wants(1, "x"), e.wants(2, "x")
			require.NoError(t, e.enterQueue(waitsFor(ctx, time.Time{}), first))
			time.AfterFunc(time.Second, func() { first.leaveQueue() })
			err := e.enterQueue(waitsFor(ctx, time.Now().Add(time.Second)), second)
			assert.NoError(t, err, "no owner was seen, so it is admitted or asks")
			synctest.Wait()
			second.leaveQueue()
			assert.Zero(t, e.waitQueues(), "wait queues are left behind a waiter that was told %v", err)
		})
	}
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
