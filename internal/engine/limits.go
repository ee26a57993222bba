package engine

// The limits of a hold: MaxHold and AtLeast.
//
// Rules: a hold has the limits of the lock that took it. A hold with MaxHold is never trusted for longer than that, and no
// request asks Redis for more: the record lapses with the trust. A record with AtLeast is not deleted, and not handed over,
// before its time is over: the last Unlock sets its lease to the rest of that time. A hold that a MultiLock undoes, and ForceUnlock,
// do not wait for the time. Readers with limits share no record, because the limits of two holds differ.

import (
	"context"
	"time"

	"github.com/relock-go/relock/internal/send"
)

// Limits are how long a hold, or its record, lasts; 0: there is no limit.
type Limits struct {
	Max     time.Duration // MaxHold
	AtLeast time.Duration // AtLeast
}

// longestLimit keeps sums of times in their range.
const longestLimit = 100 * 365 * 24 * time.Hour

// CheckLease says why a hold cannot have this lease; 0: that of the watchdog.
func (l Limits) checkLease(lease time.Duration) error {
	if l.Max > 0 && lease > l.Max {
		return send.Invalid("lease %v: no longer than MaxHold(%v)", lease, l.Max)
	}
	return nil
}

// OfReaders is the admission of readers with these limits.
func (l Limits) OfReaders() Admission {
	if l != (Limits{}) {
		return Independent
	}
	return Shared
}

// cut is the lease that a fresh hold asks for, where it would ask for lease.
func (l Limits) cut(lease time.Duration) time.Duration {
	if l.Max > 0 {
		return min(lease, l.Max)
	}
	return lease
}

// end is until when a hold may last that was acquired at since, on the clock of the watchdog; 0: there is no limit.
func (l Limits) end(since time.Duration) time.Duration {
	if l.Max > 0 {
		return since + min(l.Max, longestLimit)
	}
	return 0
}

// keepTime is how much of the time of AtLeast is left to the record of h.
func (h *hold) keepTime() time.Duration {
	if h.lock.Limits().AtLeast == 0 {
		return 0
	}
	h.name.mu.Lock()
	defer h.name.mu.Unlock()
	return max(0, h.keepUntil-h.name.engine.watchdog.Now())
}

// releaseCall is the call that sets the levels of h to left. keeps says that it keeps the record for AtLeast, and late
// that it leaves a tombstone.
func (h *hold) releaseCall(left int) (c send.Call, keeps, late bool) {
	if left == 0 {
		if rest := h.keepTime(); rest > 0 {
			return h.keepCall(rest), true, false
		}
	}
	late = left == 0 && h.name.engine.late.MayRun(h.field)
	return h.verbs().Release(Release{h.field, left, late, h.name.engine.shareTime()}), false, late
}

// keepCall sets the lease of the record to rest.
func (h *hold) keepCall(rest time.Duration) send.Call {
	return h.verbs().Renew(h.field, rest, h.isAlone())
}

// isAlone says whether nothing but h needs its record: a write lock has its record together with the read lock of its owner.
func (h *hold) isAlone() bool {
	h.name.mu.Lock()
	defer h.name.mu.Unlock()
	return !h.named && h.name.otherHalfLocked(h) == nil
}

// lapsesByItself says whether a record with AtLeast is gone in time after a keepCall. No request may still extend its lease:
// neither when the keepCall is sent, because it may overtake one that is answered first, nor when it was answered.
func (h *hold) lapsesByItself() bool {
	return h.isAlone() && !h.name.engine.late.MayRun(h.field) && !h.name.engine.watchdog.IsRenewing(&h.record.lease)
}

// keep has Redis keep the record of h until the time of AtLeast is over, and says whether the record lapses then. If it
// does not, it is to be deleted by now.
func (h *hold) keep(ctx context.Context) bool {
	rest := h.keepTime()
	if rest <= 0 {
		return false
	}
	h.leaveQueue() // the next waiter asks, and finds the lock busy
	e := h.name.engine
	for end := h.recordEnd(); rest > 0; rest = h.keepTime() {
		p := &waitOptions{Wait: send.Wait{Ctx: context.WithoutCancel(ctx), Background: true, Deadline: time.Now().Add(UnlockTime)}}
		lapses := h.lapsesByItself()
		r, _, err := e.send(p, h.keepCall(rest), time.Time{})
		pause := min(rest, clearPause)
		switch {
		case err == nil && (r[0] != 1 || lapses && h.lapsesByItself()):
			return true
		case err == nil && !h.isAlone():
			pause = rest
		case err != nil && time.Now().After(end) && !h.keptByOtherHalf():
			return true
		}
		if e.waitOptionsFor(ctx).sleep(nil, nil, pause) != nil {
			return true // closed: no lease is renewed any more
		}
	}
	return false
}

// keepUntilNow is until when the record of h stays in Redis, which holds its lock from now on.
func (h *hold) keepUntilNow() time.Duration {
	if d := h.lock.Limits().AtLeast; d > 0 {
		return h.name.engine.watchdog.Now() + min(d, longestLimit)
	}
	return 0
}

// DropMinHold lets the next Unlock of o free the lock at once, because o has not used its hold.
func (e *Engine) DropMinHold(b Lock, o Owner) {
	if b.Limits().AtLeast == 0 {
		return
	}
	n := e.use(b.ID().Name)
	defer n.done()
	n.mu.Lock()
	defer n.mu.Unlock()
	if h := n.holds.get(holdKey{b.ID(), o}); h != nil && h.levels == 1 {
		h.keepUntil = 0
	}
}
