package engine

// MinHold: how a record stays in Redis until MinHold has passed.
//
// Rules: see limits.go. The release sets the lease to the rest of MinHold, once. A request that runs later may make the
// record last for one lease longer, and never ends it sooner. A read lock and a write lock of one owner share a lease in
// Redis, which only the last of them may shorten.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/send"
)

// restOfMinHold returns how much of MinHold is left. If it is not over, the record is kept from now on, also if a late
// answer or a late grant would roll it back.
func (h *hold) restOfMinHold() time.Duration {
	if h.lock.Traits().Limits.MinHold == 0 {
		return 0
	}
	h.lockState.Lock()
	defer h.lockState.Unlock()
	e := h.lockState.engine
	now := e.watchdog.Now()
	if h.keepUntil > now {
		e.kept.add(h.Field().ID, now, h.keepUntil)
	}
	return max(0, h.keepUntil-now)
}

// isAlone reports whether nothing else needs the lease of the record of h. A read lock and a write lock of one owner
// are in the same key in Redis, and so have one lease.
func (h *hold) isAlone() bool {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	return !h.fieldSent && h.counterpartLocked() == nil
}

// keepFor sends a request that sets the lease of the record to rest. It reports whether the record then expires by
// itself: nothing else needs its lease, and no request is known that may still set it, or acquire the lock again.
func (h *hold) keepFor(wait *send.Wait, rest time.Duration, lastReply time.Time) (answer send.Answer, expires bool) {
	why := toKeep
	if expires = h.isAlone(); expires {
		why = toLimit
	}
	answer = h.renew(wait, rest, why, lastReply)
	return answer, expires && h.lockState.engine.late.Longest(h.Field().ID) == 0
}

// keep makes the record stay in Redis until MinHold has passed, or isOver. It returns true if the record then expires by
// itself, and false if the caller has to delete it now.
func (h *hold) keep(ctx context.Context, isOver func() bool) bool {
	for rest := h.restOfMinHold(); rest > 0; rest = h.restOfMinHold() {
		h.leaveQueue() // the next waiter makes an attempt, and finds the lock busy
		wait := send.Wait{Ctx: context.WithoutCancel(ctx), Background: true, Deadline: time.Now().Add(UnlockTime)}
		answer, expires := h.keepFor(&wait, rest, time.Time{})
		pause := min(rest, clearPause)
		switch _, err := answer.Reply(); {
		case err == nil && expires, err != nil && isOver():
			return true
		case err == nil:
			pause = rest
		}
		if h.lockState.engine.Pause(ctx, pause) != nil {
			return true // the engine is closed: no lease is renewed any more
		}
	}
	return false
}

// endMinHoldLocked makes the next Unlock release the lock before MinHold has passed, because its owner has not used it.
func (h *hold) endMinHoldLocked() {
	if h.Count() == 1 {
		h.keepUntil = 0
	}
}

// keptByCounterpart reports whether the owner holds the counterpart of the lock, whose renewals keep the record in
// Redis.
func (h *hold) keptByCounterpart() bool {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	other := h.counterpartLocked()
	return other != nil && other.Holds()
}
