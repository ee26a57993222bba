package engine

// MinHold: how a record stays in Redis until MinHold has passed.
//
// Rules: see limits.go. The release sets the lease once that the record has from then on. A request that runs after it may
// make the record last for a lease of its own. A read lock and a write lock of one owner share a lease in Redis, which only
// the last of them may shorten.

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

// askToKeep sends a request that sets the lease of the record to rest. expires reports whether nothing else needs that
// lease, so that the record expires with it.
func askToKeep(h *hold, wait *send.Wait, rest time.Duration, lastReply time.Time) (answer send.Answer, expires bool) {
	if isAlone(h) {
		return setLease(h, wait, rest, toLimit, lastReply), true
	}
	return setLease(h, wait, rest, toKeep, lastReply), false
}

// keepRecord makes the record stay in Redis until MinHold has passed. It returns true if the record then expires by itself,
// and false if the caller has to delete it now.
func keepRecord(ctx context.Context, h *hold) bool {
	rest := beginMinHold(h)
	if rest <= 0 {
		return false
	}
	for ; rest > 0; rest = restOfMinHold(h) {
		wait := send.Wait{Ctx: context.WithoutCancel(ctx), Background: true, Deadline: time.Now().Add(UnlockTime)}
		answer, expires := askToKeep(h, &wait, rest, time.Time{})
		pause := rest // until the record has to be deleted
		if answer.Err != nil {
			expires, pause = send.RedisClosed(answer.Err), min(rest, clearPause)
		}
		if expires || h.lockState.engine.Pause(ctx, pause) != nil {
			return true // if the engine is closed, no lease is renewed any more
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
