package engine

// MinHold: how a record stays in Redis until MinHold has passed.
//
// Rules: see limits.go. A read lock and a write lock of one owner share a lease in Redis, which only the last of them
// may shorten.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/send"
)

// restOfMinHold returns how much of MinHold is left. It does not apply to a hold that no call has told.
func restOfMinHold(h *hold) time.Duration {
	if h.lock.Traits().Limits.MinHold == 0 {
		return 0
	}
	h.lockState.Lock()
	defer h.lockState.Unlock()
	if !h.IsTold() {
		return 0
	}
	return max(0, h.keepUntil-h.lockState.engine.watchdog.Now())
}

// beginMinHold returns how much of MinHold is left. If it is not over, the record is kept from now on, also if a late answer
// or a late grant would roll it back.
func beginMinHold(h *hold) time.Duration {
	rest := restOfMinHold(h)
	if rest > 0 {
		h.lockState.engine.kept.add(h.Field().ID, rest)
	}
	return rest
}

// isAlone reports whether nothing else needs the lease of the record of h. A read lock and a write lock of one owner
// are in the same key in Redis, and so have one lease.
func isAlone(h *hold) bool {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	return !h.fieldSent && h.counterpartLocked() == nil
}

// keptTooLong is how long the answer to askToKeep takes at most if the record is to expire in time.
const keptTooLong = 250 * time.Millisecond

// askToKeep sends a request that sets the lease of the record to rest. expires reports whether the record then expires in
// time: no other request may still extend the lease, or give it to another field, and no other try of this one may. It
// was so when the request was sent, too: a request that was under way then may be overtaken by this one, although its
// own answer comes first. And Redis has not run the request late, when less than rest was left.
func askToKeep(h *hold, wait *send.Wait, rest time.Duration, lastReply time.Time) (answer send.Answer, expires bool) {
	began, before, why := time.Now(), isLast(h), toKeep
	if isAlone(h) {
		why = toLimit
	}
	answer = setLease(h, wait, rest, why, lastReply)
	return answer, before && isLast(h) && time.Since(began) <= keptTooLong
}

// isLast reports whether no request that was sent may still extend the lease of the record, or give it to another
// field.
func isLast(h *hold) bool {
	if !isAlone(h) {
		return false
	}
	h.lockState.Lock()
	defer h.lockState.Unlock()
	return h.reachLocked().IsSettled()
}

// keepRecord makes the record stay in Redis until MinHold has passed. It returns true if the record then expires by itself,
// and false if the caller has to delete it now.
func keepRecord(ctx context.Context, h *hold) bool {
	rest := beginMinHold(h)
	if rest <= 0 {
		return false
	}
	e := h.lockState.engine
	for ; rest > 0; rest = restOfMinHold(h) {
		wait := send.Wait{Ctx: context.WithoutCancel(ctx), Background: true, Deadline: time.Now().Add(UnlockTime)}
		answer, expires := askToKeep(h, &wait, rest, time.Time{})
		r, err := answer.Reply()
		pause := min(rest, clearPause)
		switch {
		case err == nil && r[0] != 1: // it is gone; a request that may still run must not acquire the lock again
			return !e.late.MayAcquire(h.Field().ID)
		case err == nil && expires, send.RedisClosed(err):
			return true
		case err == nil && !isAlone(h):
			pause = rest
		}
		if e.Pause(ctx, pause) != nil {
			return true // the engine is closed: no lease is renewed any more
		}
	}
	return false
}

// keptByCounterpart reports whether the owner holds the counterpart of the lock, whose renewals keep the record in
// Redis, or is about to: an attempt that has named the field of h may be under way.
func keptByCounterpart(h *hold) bool {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	other := h.counterpartLocked()
	return other != nil && (other.Holds() || h.fieldSent && other.Asks())
}
