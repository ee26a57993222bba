package engine

// Local queues: the goroutines of this process that wait for one lock. They are not to be confused with the line, which
// is the wait queue in Redis (line.go).
//
// Rules: a lock has a local queue in its lock state while goroutines contend for it or hold it, unless its admission is
// Uncoordinated; each half of a read/write lock has a queue of its own. If the lock is exclusive, only the caller that
// the queue has admitted sends requests, and the others wait in the order in which they came. The mutex of the lock
// state guards the queue. Who waits in it has no mutex (entrance.go).

import (
	"errors"

	"github.com/relock-go/relock/internal/handoff"
	"github.com/relock-go/relock/internal/waitqueue"
)

// A waiter waits in a local queue, or for the owner mutex of a hold.
type waiter = waitqueue.Waiter[candidate]

// A candidate is what a waiter waits for.
type candidate struct {
	hold  *hold      // of the lock that the caller wants
	queue *waitQueue // in which the waiter is; nil: it waits for the owner mutex of hold
	// changed is that of the claim if the lock has a counterpart; otherwise nil.
	changed chan struct{}
	takes   bool // the lock may be handed off to hold
}

// in returns the queue in which the waiter is.
func (c *candidate) in() *waitqueue.Queue[candidate] {
	if c.queue != nil {
		return &c.queue.Queue
	}
	return &c.hold.ownerQueue
}

// A waitQueue is a local queue.
type waitQueue struct {
	waitqueue.Queue[candidate]
	half       string // LockID.Half of the lock
	registered bool   // it is in the queues of its lock state
	kept       bool   // it stays although no caller uses it: see keepQueueLocked
	owned      bool   // an owner has had the lock since a caller has entered the free queue

	findings                // of the admitted callers, and the request of the one that is releasing the lock
	policy   handoff.Policy // how this process shares the lock with other processes
	shared   *record        // the record that newcomers may share; or nil
	place    *place         // in the line; the last caller has left it to the next one; or nil
}

// errBypassQueue ends the waits of callers in a local queue that are to make an attempt without being admitted. There
// are four reasons:
//
//   - Redis has not answered the admitted caller, and the others must not wait for an unreachable Redis one after the
//     other.
//   - The time of a caller is up, and none of them has seen an owner of the lock.
//   - The owner of a caller has acquired the counterpart of the lock.
//   - A caller was granted a permit of a semaphore, and there are more for others.
//
// Such an attempt acquires the lock only if it is free, and does not join the line, because the place of this process
// in the line belongs to the caller that the queue has admitted. If Redis answers that the lock is busy, the call
// begins again (errRestart), and returns to its old position in the local queue, which is that of its time.
var errBypassQueue = errors.New("no answer from Redis to the caller that is ahead in the queue")
