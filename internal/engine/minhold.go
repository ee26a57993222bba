package engine

// MinHold: how a record stays in Redis until MinHold has passed.
//
// Rules: see limits.go. The release sets the lease that the record has from then on. While another request may run after it,
// for example one that has confirmed a grant, the record is deleted when MinHold is over. A read lock and a write lock of one owner share a lease in Redis, which only
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

// keeping returns what a request is for that makes the record of h last, and reports whether nothing else needs the lease,
// and no other request may set it. A read lock and a write lock of one owner are in the same key in Redis, and so have one
// lease.
func keeping(h *hold) (why purpose, alone bool) {
	h.lockState.Lock()
	defer h.lockState.Unlock()
	if h.fieldSent || h.counterpartLocked() != nil {
		return toKeep, false
	}
	r := h.reachLocked()
	return toLimit, r.Renewal+r.Late == 0
}

// askToKeep sends a request that sets the lease of the record to rest. expires reports whether the record then expires with
// that lease. A request that was under way before may be overtaken by this one, although its answer comes first.
func askToKeep(h *hold, wait *send.Wait, rest time.Duration, lastReply time.Time) (answer send.Answer, expires bool) {
	why, before := keeping(h)
	answer = setLease(h, wait, rest, why, lastReply)
	_, after := keeping(h)
	return answer, before && after
}

// keepRecord makes the record stay in Redis until MinHold has passed. It returns true if the record then expires by itself,
// and false if the caller has to delete it now.
func keepRecord(ctx context.Context, h *hold) bool {
	for rest := beginMinHold(h); rest > 0; rest = restOfMinHold(h) {
		answer, expires := askToKeep(h, &send.Wait{
			Ctx: context.WithoutCancel(ctx), Background: true, Deadline: time.Now().Add(UnlockTime),
		}, rest, time.Time{})
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
