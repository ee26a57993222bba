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

// waitsFor returns the options of a wait that ends when ctx is done, or at the deadline.
func waitsFor(ctx context.Context, deadline time.Time) *waitOptions {
	return &waitOptions{Wait: send.Wait{Ctx: ctx, Deadline: deadline}}
}

// enterQueue waits until the claim of o was admitted, or may ask without that.
func (e *bubbleEngine) enterQueue(op *waitOptions, o Owner) (*hold, error) {
	in, err := e.retain("x").enter(op, newFakeLock(e.redis, "x"), o, false, &Request{Wait: forever}, new(target))
	return in.hold, err
}

// A waiter whose turn comes at its deadline is admitted or gives up, and the engine forgets a local queue that no owner
// uses.
func TestQueueLeavesNothingWhenAGrantMeetsTheDeadline(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			e := newBubbleEngine(t)
			first, err := e.enterQueue(waitsFor(ctx, time.Time{}), 1)
			require.NoError(t, err)
			time.AfterFunc(time.Second, func() { first.unlockHold() })
			second, err := e.enterQueue(waitsFor(ctx, time.Now().Add(time.Second)), 2)
			assert.NoError(t, err, "no owner was seen, so it is admitted or asks")
			synctest.Wait()
			second.unlockHold()
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
			first := before.Add(candidate{}, 0)
			before.Add(candidate{}, 0)
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
