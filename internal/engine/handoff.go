package engine

// Local hand-off: how a lock passes from one goroutine of this process to the next without a release in Redis.
//
// Rules: a holder that unlocks hands the lock off to the first waiter of the local queue, which holds the lock from
// that moment on, without a request. The record must be valid, renewed by the watchdog and without MaxHold, and the
// tenure of this process, which is the time for which it has had the lock without another process in between, must be
// shorter than the hand-off window (internal/handoff). successorLocked has all conditions. A waiter that needs a fencing token, where
// the record has none left, gets only the field of the record, and holds the lock when it has adopted the record by an
// attempt of its own (tokens.go).

import (
	"time"

	"github.com/relock-go/relock/internal/late"
	"github.com/relock-go/relock/internal/lease"
)

// handOffLocked hands the lock of h off to the first waiter of its local queue, if this is possible, and reports
// whether it did. The owner of h is unlocking it, and its hold count is not decremented yet.
func (h *hold) handOffLocked() bool {
	next, now := h.successorLocked()
	// The caller has canceled all guards, but new ones may be made meanwhile. Then the lock is released in Redis.
	if next == nil || len(h.guards) > 0 {
		return false
	}
	s, q, r := h.lockState, h.queue, h.record
	s.forgetLocked(h)
	h.Ended()
	h.queue = nil
	h.leaveRecordLocked()
	next.queue = q
	if token, ok := r.tokenForLocked(next.lock); !ok {
		next.Adopts(r.first.Field())
		if s.engine.watchdog.IsRenewing(&r.lease) { // which the lease of the record that next makes does not show
			s.engine.late.Left(r.first.Field().ID, late.Effect{Lease: s.engine.WatchdogTimeout}, 0, true)
		}
		r.endLocked()
	} else {
		next.handedLocked(r, now)
		next.token = token
	}
	q.Release()
	return true
}

// successorLocked returns the hold that the lock of h, which is being released, may be handed off to, and the time on
// the clock of the watchdog; or nil.
func (h *hold) successorLocked() (next *hold, now time.Duration) {
	s, q, r := h.lockState, h.queue, h.record
	e := s.engine
	if e.isLeaving.Load() || q == nil || q.First() == nil || !h.Holds() || h.Count() > 1 || !h.IsTold() || r.ended {
		return nil, 0
	}
	first := q.First().Value
	next, now = first.hold, e.watchdog.Now()
	switch {
	case !first.takes, !q.policy.MayHandOff(now, e.pace()):
		return nil, 0
	case h.fieldSent, h.counterpartLocked() != nil, next.counterpartLocked() != nil:
		return nil, 0 // an attempt on the counterpart that names this field would be granted beside the successor
	case h.keepUntil > now:
		return nil, 0
	case r.lease.Limit() < lease.Never, next.lock.Traits().Limits.Max > 0:
		return nil, 0
	case !e.watchdog.Renews(&r.lease), !r.isKeptLocked(now), h.reachLocked().Longest() > e.WatchdogTimeout:
		return nil, 0 // the lease is explicit (which only the watchdog knows, not Redis), nearly over, or longer than a fresh one
	}
	return next, now
}
