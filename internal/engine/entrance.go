package engine

// The entrance: how a wait in a local queue, or for an owner mutex, begins, and what is noted when a caller gives it up.
//
// Rules: who waits has no mutex. Whatever a caller knew of a lock state before is out of date then.

import (
	"time"

	"github.com/relock-go/relock/internal/send"
	"github.com/relock-go/relock/internal/tenancy"
)

// enqueue makes the call of op wait for what c is. It begins to wait now, unless it has waited before.
func (e *Engine) enqueue(op *waitOptions, c candidate) *waiter {
	w := c.in().Add(c, e.beginWait(op))
	e.slowBegins()
	return w
}

// gaveUpLocked notes what a caller that has waited in q, and gives up because of err, knows of the one in front. It
// returns err. A caller whose time is up makes an attempt of its own if no caller here knows yet whether the lock is busy.
func (s *lockState) gaveUpLocked(op *waitOptions, q *waitQueue, err error) error {
	f := &op.found
	f.waitsBehindLocked(s.name, q)
	f.unseen = !q.owned
	if err == send.ErrTimeUp && f.unseen && f.reply == nil && !f.request.inDoubt(time.Now()) {
		return errBypassQueue
	}
	return err
}

// leaveOwners ends the wait of w for the owner mutex of its hold. held is effect.held.
func (op *waitOptions) leaveOwners(w *waiter, held bool) {
	h := w.Value.hold
	s := h.lockState
	s.Lock()
	defer s.Unlock()
	if !held {
		op.found.waitsBehindLocked(s.name, s.findQueueLocked(h.half()))
	}
	if !w.Waits() && h.State() == tenancy.Ended {
		s.forgetLocked(h) // it has ended since, and no other goroutine has the owner mutex: as unlockHoldLocked does
	}
	h.ownerQueue.Leave(w)
}
